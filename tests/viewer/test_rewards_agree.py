"""All readers agree on a rollout's reward, whatever was scored late, by which session, and when."""

import json
import math
import shutil
from collections import defaultdict
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory

from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from answers import score, write
from examples import examples
from rollout_builders import same
from rolltrace.cli.app import cli
from rolltrace.query.compact import compact
from rolltrace.query.run import open_run
from rolltrace.query.run_totals import read_small_run
from rolltrace.store.create import create_run
from rolltrace.store.recording import Recording
from rolltrace.trace.json_numbers import parse_number
from rolltrace.viewer.api import Api, RequestParameters
from rolltrace.viewer.open_runs import OpenRuns

LINE_REWARDS = (1.0, None, math.nan)
NOON = datetime(2026, 1, 2, 12, tzinfo=UTC)

values = st.none() | st.sampled_from([0.0, 2.0, -3.5, math.nan, math.inf])
late = st.tuples(
    st.integers(0, 2),  # which of the writers, all of which are open at once
    st.integers(0, len(LINE_REWARDS) - 1),  # about which rollout
    st.sampled_from(["reward", "reward", "advantage"]),
    values,
    st.integers(-3, 3),  # the writer's clock, which may be set back
)
events = st.lists(late | st.sampled_from(["compact", "delete cache", "read"]), max_size=14)


class Expected:
    """The reward of each rollout, computed score by score."""

    def __init__(self, ids):
        self.rewards = dict(zip(ids, LINE_REWARDS, strict=True))
        self.line_rewards = dict(self.rewards)
        self.counts = dict.fromkeys(ids, 0)
        self._last = defaultdict(dict)  # by rollout and session, the latest time and the last value

    def check(self, *told):
        """Asserts that everything read is right."""
        for rewards in told:
            assert same({rollout: rewards.get(rollout, "missing") for rollout in self.rewards}, self.rewards)
            assert len(rewards) == len(self.rewards)

    def add(self, session, rollout, name, value, at):
        self.counts[rollout] += 1
        if name == "reward":
            before = self._last[rollout].get(session, (at,))[0]
            self._last[rollout][session] = (max(at, before), value)
            latest = max(self._last[rollout], key=lambda one: (self._last[rollout][one][0], one))
            self.rewards[rollout] = self._last[rollout][latest][1]


def told_by_python(run, expected):
    """Rewards by `run.get`, `run.rollouts` and `run.follow`, with their details."""
    for rollout in (*run.rollouts(), *map(run.get, expected.rewards)):
        assert same(rollout.line_reward, expected.line_rewards[rollout.id])
        assert len(rollout.scores) == expected.counts[rollout.id]
        rewards = [one.value for one in rollout.scores if one.name == "reward"] or [rollout.line_reward]
        assert same(rewards[-1], rollout.reward)
    yield {rollout.id: rollout.reward for rollout in run.rollouts()}
    yield {rollout: run.get(rollout).reward for rollout in expected.rewards}
    stop = type("Stop", (), {"is_set": lambda self: True, "wait": lambda self, timeout=None: True})()
    yield {rollout.id: rollout.reward for rollout in run.follow("rollouts", stop=stop)}


def told_by_sql(run, expected):
    """Rewards in `rollouts` and in `groups`, and those of the lines."""
    for rollout, line_reward in run.sql("select id, line_reward from rollouts"):
        assert same(line_reward, expected.line_rewards[rollout])
    yield dict(run.sql("select id, reward from rollouts").fetchall())
    yield dict(run.sql("select one.id, one.reward from groups, unnest(members) as t(one)").fetchall())


def told_elsewhere(path, expected):
    """Rewards in `--json`, in the viewer's answers and in the totals that are read from lines."""
    shown = CliRunner().invoke(cli, ["show", str(path), "--json"]).stdout.splitlines()
    yield {one["id"]: parse_number(one["reward"]) for one in map(json.loads, shown)}
    small = read_small_run(path)
    if small is not None:
        yield small.rewards
    library = OpenRuns(path.parent)
    questions = Api(library)

    def ask(question, **parameters):
        return json.loads(questions.handlers[question](RequestParameters([("run", path.name), *parameters.items()])))

    try:
        answers = {rollout: ask("rollout", id=rollout) for rollout in expected.rewards}
        yield {rollout: parse_number(answer["reward"]) for rollout, answer in answers.items()}
        yield {rollout: parse_number(answer["rollout"]["reward"]) for rollout, answer in answers.items()}
        yield {row["id"]: parse_number(row["reward"]) for row in ask("rollouts", columns="reward")["rows"]}
        group = ask("group", split="train", iteration="0", env="sums", group="g")["group"]
        yield {one["id"]: parse_number(one["reward"]) for one in group["members"]}
    finally:
        library.close()


def happens(event, path, run, writers, expected):
    """One event of the life of a run."""
    if event == "compact":
        compact(path)
    elif event == "delete cache":
        shutil.rmtree(path / "cache", ignore_errors=True)
    elif event == "read":
        expected.check(*told_by_python(run, expected), *told_by_sql(run, expected))
    else:
        number, index, name, value, seconds = event
        writer, rollout, at = writers[number], list(expected.rewards)[index], NOON + timedelta(seconds=seconds)
        score(writer, rollout, value, name=name, created_at=at)
        writer.flush()
        expected.add(writer.session, rollout, name, value, at)


@settings(max_examples=examples(20))
@given(events)
def test_all_readers_agree_on_every_reward(happened):
    """Python, SQL, `--json` and the viewer give the reward of the rule, in a run that grows, is compacted, is cleared.

    Of one writer the last line counts, even if the clock was set back; between writers the latest time does.
    """
    with TemporaryDirectory() as folder:
        path = Path(folder) / "run"
        with ExitStack() as stack:
            writers = [
                stack.enter_context(create_run(path, trace=Recording(segment_bytes=600), join=bool(number)))
                for number in range(3)
            ]
            ids = [write(writers[0], index=place, reward=one) for place, one in enumerate(LINE_REWARDS)]
            expected = Expected(ids)
            writers[0].flush()
            run = stack.enter_context(open_run(path))
            for event in (*happened, "read"):
                happens(event, path, run, writers, expected)
        with open_run(path) as run:
            expected.check(*told_by_python(run, expected), *told_by_sql(run, expected))
            expected.check(*told_elsewhere(path, expected))
