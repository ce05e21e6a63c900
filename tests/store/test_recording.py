"""How much is recorded: levels, fractions of groups, redaction and tokens; set in code, else by the environment."""

import base64
import re
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from rolltrace.errors import InputError
from rolltrace.store.create import create_run
from rolltrace.store.reader import RunReader
from rolltrace.store.recording import Level, Recording, resolve_recording
from rolltrace.trace.blob import Blob
from rolltrace.trace.call import Call
from rolltrace.trace.codec import utc_now
from rolltrace.trace.convert import as_message, as_tool
from rolltrace.trace.failure import Failure
from rolltrace.trace.frozen import FrozenMap
from rolltrace.trace.ids import new_id
from rolltrace.trace.message import Message, Part, Sampling, ToolCall
from rolltrace.trace.rollout import Header, Outcome
from rolltrace.trace.score import Grade, GroupKey, Score
from rolltrace.trace.stop_reasons import Layer, Status, StoppedBy
from rolltrace.trace.tokens import Tokens, Usage

WHICH = {"env": "sums", "task": "t", "group": "g", "index": 0}


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch):
    for name in ("ROLLTRACE_TRACE", "ROLLTRACE_TRACE_FRACTION", "ROLLTRACE_TRACE_TOKENS", "ROLLTRACE_TRACE_CALLS"):
        monkeypatch.delenv(name, raising=False)


def play(run, **about):
    """Records a rollout of one step."""
    with run.rollout(**{**WHICH, **about}) as recorder:
        recorder.step("secret question", "secret answer", 1.0, tokens=Tokens((1,), (2, 3), (-0.5, -1.5)))
    return recorder.id


# Where the setting comes from


def test_defaults():
    """Everything is recorded, of every group, with calls and without tokens."""
    recording = resolve_recording(None)
    assert (recording.level, recording.fraction, recording.tokens, recording.calls) == (
        Level.FULL,
        1.0,
        False,
        True,
    )


@pytest.mark.parametrize(
    "given", ["numbers", Level.NUMBERS, Recording(level="numbers"), Recording(level=Level.NUMBERS)]
)
def test_code_wins_over_the_environment(monkeypatch, given):
    """Arguments win over environment variables, which fill what is not given; a level may be given by name."""
    monkeypatch.setenv("ROLLTRACE_TRACE", "off")
    monkeypatch.setenv("ROLLTRACE_TRACE_FRACTION", "0.5")
    monkeypatch.setenv("ROLLTRACE_TRACE_TOKENS", "1")
    monkeypatch.setenv("ROLLTRACE_TRACE_CALLS", "0")
    recording = resolve_recording(given)
    assert recording.level is Level.NUMBERS
    assert (recording.fraction, recording.tokens, recording.calls) == (0.5, True, False)
    given = Recording(level=Level.FULL, fraction=0.0, tokens=False, calls=True)
    assert resolve_recording(given) == given


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("ROLLTRACE_TRACE", "all"), ("ROLLTRACE_TRACE_FRACTION", "1.5"), ("ROLLTRACE_TRACE_FRACTION", "half"),
        ("ROLLTRACE_TRACE_FRACTION", "nan"), ("ROLLTRACE_TRACE_TOKENS", "maybe"),
    ],
)  # fmt: skip
def test_wrong_variable_is_named(tmp_path, monkeypatch, variable, value):
    """The error names the variable and its invalid value, and no run is made."""
    monkeypatch.setenv(variable, value)
    with pytest.raises(InputError, match=f"{variable}.*{value}"):
        create_run(tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "fields",
    [
        {"level": "all"}, {"fraction": -0.1}, {"fraction": float("nan")}, {"fraction": "0.5"}, {"tokens": "no"},
        {"queue_bytes": 0}, {"queue_bytes": "1"}, {"segment_bytes": 0}, {"queue_seconds": -1.0}, {"redact": "names"},
    ],
)  # fmt: skip
def test_wrong_setting_is_named(fields):
    """The error names the invalid setting."""
    [name] = fields
    with pytest.raises(InputError, match=f"{name}.*{fields[name]}"):
        Recording(**fields)


@pytest.mark.parametrize("trace", ["all", 5])
def test_wrong_level_is_named(tmp_path, trace):
    """An unknown level is refused before anything is created."""
    with pytest.raises(InputError, match="one of full, numbers, off"):
        create_run(tmp_path / "run", trace=trace)
    assert not (tmp_path / "run").exists()


# Levels


@pytest.mark.parametrize("trace", ["off", Recording(level="off")])
def test_off_records_nothing(tmp_path, trace):
    """At `off` the loop runs as usual, and nothing is on disk."""
    with create_run(tmp_path / "run", trace=trace) as run:
        rollout = play(run)
        run.score(rollout, "advantage", 1.0)
        assert run.flush()
    reader = RunReader(tmp_path / "run")
    assert list(reader.rollouts()) == list(reader.scores()) == []
    assert run.ledger.dispatched == 0
    assert run.ledger.complete


def test_tokens_only_when_asked_for(tmp_path):
    """Token ids and log-probabilities are recorded only if asked for."""
    tokens = []
    for asked in (None, True):
        with create_run(tmp_path / str(asked), trace=Recording(tokens=asked)) as run:
            play(run)
        [rollout] = RunReader(tmp_path / str(asked)).rollouts()
        tokens.append(rollout.steps[0].tokens)
    assert tokens == [None, Tokens((1,), (2, 3), (-0.5, -1.5))]


# Fractions


@given(st.floats(0, 1), st.text(max_size=5), st.integers(), st.text(max_size=5), st.text(max_size=5))
def test_larger_fraction_keeps_what_a_smaller_kept(share, split, iteration, env, group):
    """A group that is kept at some fraction is kept at every larger one; all at 1, none at 0."""
    key = GroupKey(split, iteration, env, group)
    assert Recording(level="full", fraction=1.0).level_for_group(key) is Level.FULL
    assert Recording(level="full", fraction=0.0).level_for_group(key) is Level.NUMBERS
    if Recording(level="full", fraction=share).level_for_group(key) is Level.FULL:
        assert Recording(level="full", fraction=(1 + share) / 2).level_for_group(key) is Level.FULL


@pytest.mark.parametrize("share", [0.05, 0.5, 0.9])
def test_fraction_of_many_groups(share):
    """Of many groups, about the given fraction is kept."""
    recording = Recording(level="full", fraction=share)
    kept = sum(
        recording.level_for_group(GroupKey("train", n // 100, "sums", str(n % 100))) is Level.FULL
        for n in range(10_000)
    )
    assert abs(kept / 10_000 - share) < 0.02


def test_groups_are_kept_whole(tmp_path):
    """The members of a group are all recorded in full or all as numbers, also if its name is a number."""
    with create_run(tmp_path / "run", trace=Recording(fraction=0.5)) as run:
        for index in range(4):
            for group in range(20):
                play(run, group=group, index=index)
    kept = {}
    for rollout in RunReader(tmp_path / "run").rollouts():
        kept.setdefault(rollout.group, set()).add(rollout.messages[0].content == "secret question")
    assert len(kept) == 20
    assert {len(choices) for choices in kept.values()} == {1}
    assert {True, False} == {choice for choices in kept.values() for choice in choices}


def test_every_process_chooses_the_same_groups():
    """The choice depends on the group and not on the process."""
    script = (
        "from rolltrace.store.recording import Recording\n"
        "from rolltrace.trace.score import GroupKey\n"
        "recording = Recording(level='full', fraction=0.5)\n"
        "print([recording.level_for_group(GroupKey('train', 3, 'sums', str(n))).value for n in range(64)])"
    )
    told = {
        subprocess.run(
            [sys.executable, "-c", script], capture_output=True, text=True, check=True, env={"PYTHONHASHSEED": seed}
        ).stdout
        for seed in ("1", "2")
    }
    recording = Recording(level="full", fraction=0.5)
    assert told == {f"{[recording.level_for_group(GroupKey('train', 3, 'sums', str(n))).value for n in range(64)]}\n"}


# No text


class Secrets:
    """Makes unique texts, and remembers them."""

    def __init__(self):
        self.made = []

    def __call__(self, what):
        self.made.append(f"SECRET-{what}-{len(self.made)}-é")
        return self.made[-1]

    def found_in(self, path):
        """The secrets of which any part is in a file of a run, or in a file's name."""
        data = b"".join(file.read_bytes() + file.name.encode() for file in path.rglob("*") if file.is_file())
        return [
            secret
            for secret in self.made
            if secret.rpartition("-")[0].encode() in data or base64.b64encode(secret.encode()) in data
        ]


def message(secret, role="user"):
    """A message with a secret in each of its texts."""
    return Message(
        role, secret("content"), reasoning=secret("reasoning"),
        parts=(
            Part("image", blob=Blob.of(secret("blob").encode()), media_type="image/png"),
            Part("thinking", text=secret("thought")), Part("image", url=secret("url")),
        ),
        tool_calls=(ToolCall("add", secret("arguments"), id="c1", error=secret("call error")),),
    )  # fmt: skip


def everything(run, secret):
    """Records a rollout and two scores with a secret in every place that can hold text."""
    deep = {"text": secret("deep"), "list": [secret("list"), 1, None, True, 0.5], "bytes": secret("bytes").encode()}
    other = {"role": "user", "content": secret("dict content"), "strange": secret("other field")}
    header = Header(
        id=new_id(), run=run.run, session=run.session, started_at=utc_now(), **WHICH, seed=7, iteration=3,
        env_args={"a": secret("env_args"), "n": 1}, task_data={"answer": secret("task_data"), "n": 2.5},
    )  # fmt: skip
    rollout_builder = run.begin(header)
    rollout_builder.extend([message(secret), as_message(other, "", rollout_builder.notes)])
    rollout_builder.mark_prompt_sent()
    tool = {"name": "add", "description": secret("tool"), "parameters": {"description": secret("schema")}}
    rollout_builder.step(
        message(secret, "assistant"), reward=0.1 + 0.2, env_reward=float("nan"),
        reward_data={"correct": True, "n": 3, "x": float("inf"), "stray": secret("stray")},
        env_state={"state": secret("state"), "deep": deep, "nan": float("nan"), "object": Secret(secret("object"))},
        extra={"extra": secret("extra")}, metrics={"m": 1.5}, logs={"log": secret("log")},
        tools=(as_tool(tool, "", rollout_builder.notes),), usage=Usage(5, 6), seconds=0.25,
        sampling=Sampling(temperature=0.5, stop=(secret("stop"),), other=FrozenMap.of({"guide": secret("guide")})),
        parse_error=secret("parse error"), raw=secret("raw"), tokens=Tokens((1,), (2,), (-0.5,)),
    )  # fmt: skip
    rollout_builder.replace([message(secret)])  # what was said is in the step only
    rollout_builder.mark_prompt_sent()
    rollout_builder.set_raw_response(secret("pending"))
    rollout_builder.calls.append(
        Call(
            "grader", "judge", (message(secret),), message(secret, "assistant"), raw=secret("call raw"), seconds=1.5,
            error=Failure(Layer.GRADER, "ValueError", secret("call failure"), secret("call traceback")),
        )
    )  # fmt: skip
    rollout_builder.grade = Grade(0.5, {"style": 0.25}, {"why": secret("grade")})
    rollout_builder.metrics["total"] = 9
    rollout_builder.add_note("x", secret("note"))
    failure = Failure(Layer.ENV, "ValueError", secret("failure"), secret("traceback"))
    run.end(
        rollout_builder,
        Outcome(
            ended_at=utc_now(), status=Status.ERROR, stop_reason="error", stopped_by=StoppedBy.RUNNER, error=failure,
            reward=None, reward_so_far=0.8, unclamped_reward=None,
        ),
    )  # fmt: skip
    about = {
        "id": new_id(),
        "run": run.run,
        "session": run.session,
        "rollout": rollout_builder.id,
        "created_at": utc_now(),
    }
    run.write_score(Score(**about, name="judged", value=0.5, data={"why": secret("score"), "deep": deep}))
    run.write_score(Score(**about, name="odd", value=secret("value"), error=failure))


class Secret:
    """An object whose repr has its secret."""

    def __init__(self, text):
        self._text = text

    def __repr__(self):
        return f"Secret({self._text})"


def numbers(rollout):
    """All numbers of a rollout with their paths."""
    step = rollout.steps[0]
    return repr(
        (
            rollout.reward, rollout.reward_so_far, rollout.seed, rollout.iteration, rollout.index, rollout.metrics,
            rollout.grade.reward, rollout.grade.reward_data, rollout.env_args["n"], rollout.task_data["n"],
            [(each.reward, each.env_reward, each.reward_data, each.metrics, each.usage) for each in rollout.steps],
            step.seconds, step.prompt, step.tools, step.env_state["nan"], step.env_state["deep"]["list"][1:],
            rollout.sampling[0].temperature, rollout.final, rollout.pending_prompt, rollout.calls[0].seconds,
            [each.role for each in rollout.messages], rollout.status, rollout.stop_reason, rollout.error.type,
            [len(each.parts) for each in rollout.messages], [len(each.tool_calls) for each in rollout.messages],
        )
    )  # fmt: skip


def raises(value):
    raise KeyError("cannot redact")


def returns_nothing(value):
    return None


def identity(value):
    return value


WITHOUT_TEXT = {
    "numbers": Recording(level="numbers", tokens=True),
    "no share": Recording(fraction=0.0, tokens=True),
    "raising": Recording(redact=raises, tokens=True),
    "returning nothing": Recording(redact=returns_nothing),
    "numbers and redact": Recording(level="numbers", redact=identity),
    "numbers and raising": Recording(level="numbers", redact=raises),
    "no share and redact": Recording(fraction=0.0, redact=identity),
}


@pytest.mark.parametrize("name", WITHOUT_TEXT)
def test_no_text_survives(tmp_path, name):
    """At level `numbers`, and if redaction fails, no text is in the run's files, and every number is."""
    full, bare = Secrets(), Secrets()
    with create_run(tmp_path / "full", trace=Recording(tokens=True)) as run:
        everything(run, full)
    with create_run(tmp_path / "bare", trace=WITHOUT_TEXT[name]) as run:
        everything(run, bare)
    assert len(set(full.found_in(tmp_path / "full"))) == len(full.made)  # each secret is in a place that is recorded
    assert bare.found_in(tmp_path / "bare") == []
    assert list((tmp_path / "bare/blobs").iterdir()) == []
    [whole], [stripped] = (list(RunReader(tmp_path / each).rollouts()) for each in ("full", "bare"))
    assert numbers(stripped) == numbers(whole)
    assert stripped.steps[0].tokens is None
    scores = list(RunReader(tmp_path / "bare").scores())
    assert [(score.name, score.value) for score in scores] == [("judged", 0.5), ("odd", None)]
    assert RunReader(tmp_path / "bare").read_errors == ()


@pytest.mark.parametrize(("redact", "reason"), [(raises, "redact: KeyError"), (returns_nothing, "redact: TypeError")])
def test_failed_redaction_is_counted_and_logged_once(tmp_path, caplog, redact, reason):
    """Rollouts and scores that lost their text are counted by reason, with one warning; `flush` returns False."""
    with create_run(tmp_path / "run", trace=Recording(redact=redact)) as run:
        for index in range(3):
            run.score(play(run, index=index), "advantage", 1.0, data={"why": "because"})
        assert run.flush() is False
        assert run.flush() is True
    assert run.ledger.redaction_failed == {reason: 6}
    assert run.ledger.recorded == run.ledger.scores_recorded == 3
    assert len(caplog.records) == 1


def quotes(value):
    """A redaction whose error contains the text, as that of a parser does."""
    raise ValueError(f"cannot parse {value!r}")


@pytest.mark.parametrize("redact", [quotes, lambda value: [value], lambda value: f"{value}"])
def test_failed_redaction_does_not_log_the_text(tmp_path, caplog, redact):
    """The warning names the type of the error only: its message may quote the text."""
    with create_run(tmp_path / "run", trace=Recording(redact=redact)) as run:
        run.score(play(run), "advantage", 1.0, data={"why": "secret"})
    assert "redact: " in caplog.text
    assert "secret" not in caplog.text


def test_redaction_sees_every_text(tmp_path):
    """The function gets each message and each map, and its result is recorded."""

    def redact(value):
        if isinstance(value, Message):
            return replace(
                value, content="[gone]", reasoning=None, tool_calls=(), other=None,
                parts=tuple(part for part in value.parts if part.blob is not None),
            )  # fmt: skip
        return {key: item for key, item in value.items() if not isinstance(item, str | dict)}

    secret = Secrets()
    with create_run(tmp_path / "run", trace=Recording(redact=redact, tokens=True)) as run:
        everything(run, secret)
    assert run.ledger.redaction_failed == {}
    assert [found for found in secret.found_in(tmp_path / "run") if "blob" not in found] == []
    [rollout] = RunReader(tmp_path / "run").rollouts()
    assert {each.content for each in rollout.messages} == {"[gone]"}
    assert rollout.task_data == {"n": 2.5}
    assert len(list((tmp_path / "run/blobs").iterdir())) > 0


class Addresses(Secrets):
    """Makes secrets of the shape that the guide's example hides."""

    def __call__(self, what):
        self.made.append(f"{what.replace(' ', '_')}_{len(self.made)}@example-é")
        return self.made[-1]


def test_the_documented_redaction_hides_every_text(tmp_path):
    """With the guide's example, a secret in any text of a rollout or a score is in no file of the run."""
    guide = (Path(__file__).parents[2] / "docs/guides/record-your-loop.md").read_text(encoding="utf-8")
    [example] = re.findall(r"^from rolltrace import Recording, redact_pattern\n\nhide = .*\n", guide, re.MULTILINE)
    names = {}
    exec(example, names)
    plain, secret = Addresses(), Addresses()
    with create_run(tmp_path / "plain", trace=Recording(tokens=True)) as run:
        everything(run, plain)
    with create_run(tmp_path / "run", trace=Recording(redact=names["hide"], tokens=True)) as run:
        everything(run, secret)
    assert len(set(plain.found_in(tmp_path / "plain"))) == len(plain.made)
    assert run.ledger.redaction_failed == {}
    assert [found for found in secret.found_in(tmp_path / "run") if "blob" not in found] == []
    [whole], [hidden] = (list(RunReader(tmp_path / each).rollouts()) for each in ("plain", "run"))
    assert numbers(hidden) == numbers(whole)


def test_redaction_may_answer_with_chat_dicts(tmp_path):
    """A redacted message may be returned as a dict."""

    def redact(value):
        return {"role": value.role, "content": "[gone]"} if isinstance(value, Message) else value

    with create_run(tmp_path / "run", trace=Recording(redact=redact)) as run:
        play(run)
    [rollout] = RunReader(tmp_path / "run").rollouts()
    assert rollout.messages == (Message("user", "[gone]"), Message("assistant", "[gone]"))
    assert run.ledger.complete


def test_redaction_cannot_change_what_the_loop_holds(tmp_path):
    """A function that edits its argument edits a copy."""

    def redact(value):
        if isinstance(value, dict):
            value.clear()
        return value

    state = {"board": ["x"]}
    with create_run(tmp_path / "run", trace=Recording(redact=redact)) as run, run.rollout(**WHICH) as recorder:
        recorder.step("2 + 2?", "4", env_state=state)
    assert state == {"board": ["x"]}
    [rollout] = RunReader(tmp_path / "run").rollouts()
    assert rollout.steps[0].env_state == {}
