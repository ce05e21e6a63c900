"""The text of calls is the same for every reader: from disk, by SQL, in the viewer, and in `show --json`."""

import json

import msgspec
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

import quoting
from examples import examples
from rolltrace.cli.app import cli
from rolltrace.query.run import open_run
from rolltrace.store.reader import RunReader
from rolltrace.trace.codec import decode_score, encode_score, utc_now
from rolltrace.trace.message import Message
from rolltrace.trace.score import Score
from rolltrace.viewer.api import Api, RequestParameters
from rolltrace.viewer.open_runs import OpenRuns


@settings(max_examples=examples(12), deadline=None)
@given(st.data(), st.lists(quoting.CONVERSATIONS, min_size=1, max_size=2))
def test_every_reader_gives_the_same_text(tmp_path_factory, data, conversations):
    """Whatever calls quote, each reader returns the text that was sent."""
    everything = [message for conversation in conversations for message in conversation]
    calls, own = data.draw(quoting.calls(everything)), data.draw(quoting.calls(conversations[0]))
    folder = tmp_path_factory.mktemp("runs")
    quoting.record(folder / "run", None, conversations, calls, own)
    sent, own_sent = clean(calls), clean(own)
    with RunReader(folder / "run") as reader:
        rollouts = list(reader.rollouts())
        assert [quoting.said(rollout.calls) for rollout in rollouts] == [own_sent] * len(rollouts)
        assert [quoting.said(score.calls) for score in reader.scores()] == [sent]
    with open_run(folder / "run") as run:
        for which, expected in (("score is not null", sent), (f"rollout = '{rollouts[0].id}'", own_sent)):
            rows = run.sql(f"select prompt, reply from calls where {which} order by position")
            assert texts(rows) == [message.content for message in expected]
    questions = Api(OpenRuns(folder))
    for rollout in rollouts:
        answer = json.loads(questions.handlers["rollout"](RequestParameters([("run", "run"), ("id", rollout.id)])))
        assert messages(answer["rollout"]["calls"]) == own_sent
    shown = CliRunner().invoke(cli, ["show", str(folder / "run"), rollouts[0].id, "--json"])
    assert messages(json.loads(shown.stdout)["calls"]) == own_sent


def clean(calls):
    """The messages of calls as a record can hold them, without surrogates."""
    score = Score(id="s", run="r", name="n", value=1.0, created_at=utc_now(), calls=tuple(calls))
    return quoting.said(decode_score(encode_score(score, quotes=False)).calls)


def messages(calls):
    """The messages of calls in JSON."""
    said = [message for call in calls for message in (*call["prompt"], call["reply"]) if message is not None]
    return msgspec.convert(said, list[Message])


def texts(rows):
    """The texts of rows of the table `calls`."""
    found = []
    for prompt, reply in rows:
        found += [message["content"] for message in json.loads(prompt)]
        found += [] if reply is None else [reply]
    return found
