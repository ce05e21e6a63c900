"""A rollout builder freezes each value when it is given, and its line holds all of them."""

import copy
import math
import time
from datetime import UTC, datetime, timedelta, timezone

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rollout_builders import (
    ANSWER,
    ENDED,
    HOSTILE_TEXT,
    LEAVES,
    NUMBERS,
    QUESTION,
    STARTED,
    TEXT,
    finished,
    header,
    json_like,
    one_step,
    outcome,
    read,
    same,
)
from rolltrace.trace.blob import Blob
from rolltrace.trace.call import Call
from rolltrace.trace.codec import decode_rollout, encode_rollout
from rolltrace.trace.convert import as_message
from rolltrace.trace.failure import Failure
from rolltrace.trace.frozen import FrozenMap
from rolltrace.trace.ids import new_id
from rolltrace.trace.message import Message, Part, Sampling, ToolCall, ToolSpec
from rolltrace.trace.rollout_builder import RolloutBuilder
from rolltrace.trace.score import Grade
from rolltrace.trace.stop_reasons import Layer, Status, StoppedBy, Termination
from rolltrace.trace.tokens import Tokens, Usage

FREE_FORM = st.dictionaries(HOSTILE_TEXT, json_like(LEAVES | st.builds(object)), max_size=3)
FLAT = st.dictionaries(HOSTILE_TEXT, NUMBERS | TEXT, max_size=3)
MESSAGES = st.builds(
    Message,
    role=st.sampled_from(["user", "assistant", "tool"]),
    content=HOSTILE_TEXT,
    parts=st.sampled_from([(), (Part("image", blob=Blob.of(b"1"), media_type="image/png"),)]),
    tool_calls=st.sampled_from([(), (ToolCall("f", "{", "c", "bad"),)]),
    other=st.none() | st.builds(FrozenMap.of, FREE_FORM),
)
SAMPLINGS = st.none() | st.builds(
    Sampling, st.none() | NUMBERS, st.none() | st.floats(), stop=st.lists(HOSTILE_TEXT, max_size=2), top_k=st.integers()
)
STEPS = st.fixed_dictionaries(
    {"reward": NUMBERS},
    optional={
        "env_reward": NUMBERS, "reward_data": FLAT, "env_state": FREE_FORM, "extra": FREE_FORM, "metrics": FLAT,
        "logs": FREE_FORM, "sampling": SAMPLINGS, "termination": st.sampled_from([*Termination, "eos", "odd", 5]),
        "parse_error": HOSTILE_TEXT, "raw": HOSTILE_TEXT | st.integers(), "policy_version": NUMBERS | HOSTILE_TEXT,
        "usage": st.builds(Usage, NUMBERS, st.integers()), "seconds": NUMBERS,
        "tools": st.sampled_from([(), [ToolSpec("f", "d", FrozenMap.of({"$ref": 1}))], [{"name": "g"}]]),
        "tokens": st.builds(Tokens, st.lists(st.integers()), st.lists(st.integers()), st.lists(NUMBERS)),
    },
)  # fmt: skip
MOVES = st.one_of(
    st.tuples(st.just("extend"), st.lists(MESSAGES, max_size=3)),
    st.tuples(st.just("replace"), st.lists(MESSAGES, max_size=3)),
    st.tuples(st.just("send"), st.none()),
    st.tuples(st.just("set_raw_response"), HOSTILE_TEXT),
    st.tuples(st.just("step"), st.tuples(MESSAGES, STEPS)),
    st.tuples(st.just("grade"), st.builds(Grade, NUMBERS, FLAT, FREE_FORM)),
    st.tuples(st.just("call"), st.builds(
        Call, HOSTILE_TEXT, TEXT, st.lists(MESSAGES, max_size=2), st.none() | MESSAGES, seconds=st.none() | NUMBERS,
        error=st.none() | st.builds(Failure, st.sampled_from(list(Layer)), TEXT, HOSTILE_TEXT),
    )),
)  # fmt: skip
HEADERS = st.fixed_dictionaries(
    {},
    optional={
        "id": HOSTILE_TEXT, "task": HOSTILE_TEXT | st.integers(), "env_args": FREE_FORM, "task_data": FREE_FORM,
        "tags": st.lists(HOSTILE_TEXT, max_size=2), "policy_version": NUMBERS, "seed": NUMBERS, "index": NUMBERS,
        "started_at": st.datetimes(timezones=st.just(UTC) | st.none()),
    },
)  # fmt: skip
OUTCOMES = st.fixed_dictionaries(
    {},
    optional={
        "reward": st.none() | NUMBERS, "reward_so_far": NUMBERS, "unclamped_reward": st.none() | NUMBERS,
        "stop_reason": HOSTILE_TEXT, "status": st.sampled_from(list(Status)),
        "stopped_by": st.sampled_from(list(StoppedBy)),
        "error": st.none() | st.builds(Failure, st.sampled_from(list(Layer)), TEXT, HOSTILE_TEXT, HOSTILE_TEXT),
    },
)  # fmt: skip


def play(rollout_builder, moves):
    for name, value in moves:
        if name == "step":
            rollout_builder.step(value[0], **value[1])
        elif name == "grade":
            rollout_builder.grade = value
        elif name == "call":
            rollout_builder.calls.append(value)
        elif name == "send":
            rollout_builder.mark_prompt_sent()
        else:
            getattr(rollout_builder, name)(value)


@given(HEADERS, st.lists(MOVES, max_size=8), OUTCOMES)
def test_any_builder_gives_a_line_that_decodes_and_encodes_to_itself(header_fields, moves, outcome_fields):
    """Whatever a builder is given, its line is strict JSON that decodes and encodes to the same bytes."""
    rollout_builder = RolloutBuilder(header(**header_fields))
    play(rollout_builder, moves)
    line = rollout_builder.encode(outcome(**outcome_fields))
    rollout = read(line)
    assert encode_rollout(rollout) == line.data
    assert rollout_builder.encode(outcome(**outcome_fields)).data == line.data


def test_later_changes_do_not_change_the_line():
    """After a step, the caller may change its dicts and lists: the line has their earlier contents."""

    def given():
        return {
            "reward_data": {"a": 1},
            "metrics": {"a": 1},
            "env_state": {"board": [[0, {"deep": [1]}]]},
            "extra": {"a": ["x"]},
            "logs": {"a": {"b": 1}},
            "sampling": Sampling(temperature=0.5, stop=["a"]),
            "tools": [{"name": "f", "description": "d", "parameters": {"type": "object"}}],
            "tokens": Tokens([1], [2], [-0.5]),
        }

    first, second = given(), given()
    chats = {
        "role": "assistant",
        "content": [{"type": "text", "text": "a"}, {"type": "x", "y": [1]}],
        "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": {"a": [1]}}}],
        "custom": {"z": [1]},
    }
    prompt = [copy.deepcopy(chats)]
    header_fields = {"env_args": {"a": [1]}, "task_data": {"b": {"c": 1}}, "tags": ["t"]}
    calls_prompt = [Message("user", "hi")]
    grade = Grade(1.0, {"a": 1}, {"b": [1]})

    def record(values, response, history, fields, asked, graded):
        rollout_builder = RolloutBuilder(header(**fields))
        rollout_builder.extend([as_message(message, "", []) for message in history])
        rollout_builder.mark_prompt_sent()
        rollout_builder.step(response, reward=1.0, **values)
        rollout_builder.grade = graded
        return rollout_builder

    args = (copy.deepcopy(header_fields), calls_prompt, copy.deepcopy(grade))
    expected = record(second, copy.deepcopy(chats), copy.deepcopy(prompt), *args).encode(outcome()).data
    rollout_builder = record(first, chats, prompt, header_fields, calls_prompt, grade)
    wreck([first, chats, prompt, header_fields, calls_prompt, grade.reward_data, grade.extra])
    first["sampling"].stop.append("b")
    first["tokens"].prompt.append(9)
    first["tokens"].logprobs.clear()
    assert rollout_builder.encode(outcome()).data == expected


def wreck(value):
    """Changes every dict and list in a value, inside out."""
    if isinstance(value, dict):
        for item in value.values():
            wreck(item)
        value["wrecked"] = True
    elif isinstance(value, list):
        for item in value:
            wreck(item)
        value.append("wrecked")


def test_changes_of_a_built_rollout_do_not_change_the_record():
    """Each rollout that a builder returns is decoded again from the line."""
    rollout_builder = one_step(env_state={"a": [1]})
    rollout_builder.build(outcome()).steps[0].env_state["a"].append(2)
    assert finished(rollout_builder).steps[0].env_state == {"a": [1]}


def test_bytes_are_handed_over_once_per_content():
    """A line's blobs have each content once, from prompts, inline responses and other calls alike."""
    picture = Part("image", blob=Blob.of(b"picture"), media_type="image/png")
    nameless = Part("image", blob=Blob(Blob.of(b"picture").name), media_type="image/png")
    sound = Part("audio", blob=Blob.of(b"sound"), media_type="audio/wav")
    judged = Part("image", blob=Blob.of(b"judged"), media_type="image/png")
    rollout_builder = RolloutBuilder(header())
    rollout_builder.extend([Message("user", "a", parts=(nameless,)), Message("user", "b", parts=(picture, picture))])
    rollout_builder.mark_prompt_sent()
    rollout_builder.step(Message("assistant", "c", parts=(sound,)), reward=0.0)
    rollout_builder.replace([Message("user", "all new")])
    rollout_builder.calls.append(Call("grader", "judge", (Message("user", "", parts=(judged,)),)))
    line = rollout_builder.encode(outcome())
    assert {blob.name: blob.data for blob in line.blobs} == {
        Blob.of(data).name: data for data in (b"picture", b"sound", b"judged")
    }
    assert len(line.blobs) == 3
    assert b"picture" not in line.data


def test_blobs_are_named_by_their_content_and_nothing_else():
    """A name that is no digest, such as a path, is never a blob."""
    for name in ("../../etc/passwd", "sha256-", "sha256-" + "0" * 63, "sha256-" + "0" * 64 + "\n", ""):
        with pytest.raises(ValueError, match="Expected a blob's name"):
            Blob(name)


def test_tables_hold_distinct_sets_once():
    """Steps with equal tools or sampling share one entry of the tables."""
    rollout_builder = RolloutBuilder(header())
    add, sub = ({"name": name, "parameters": {"type": "object"}} for name in ("add", "sub"))
    for tools, temperature in (([add], 1), ([add, sub], 1.0), ([add], 0.5), ([], 0.5)):
        rollout_builder.step(ANSWER, reward=0.0, tools=tools, sampling=Sampling(temperature=temperature))
    rollout = finished(rollout_builder)
    assert [[tool.name for tool in tools] for tools in rollout.tools] == [["add"], ["add", "sub"]]
    assert [step.tools for step in rollout.steps] == [0, 1, 0, None]
    assert rollout.sampling == (Sampling(temperature=1.0), Sampling(temperature=0.5))
    assert [step.sampling for step in rollout.steps] == [0, 0, 1, 1]


def test_a_pending_prompt_says_what_was_sent_and_came_back():
    """A prompt without a step is recorded, with the raw reply."""
    rollout_builder = one_step()
    rollout_builder.extend([QUESTION])
    rollout_builder.mark_prompt_sent()
    rollout_builder.set_raw_response("<broken")
    rollout = finished(
        rollout_builder, status=Status.ERROR, reward=None, error=Failure(Layer.POLICY, "ValueError", "no")
    )
    assert rollout.pending_messages == (QUESTION, ANSWER, QUESTION)
    assert rollout.pending_raw == "<broken"
    assert rollout.error == Failure(Layer.POLICY, "ValueError", "no")
    assert finished(one_step()).pending_prompt is None


def test_a_raw_reply_is_pending_only_until_its_step():
    """After a step, neither its prompt nor its raw reply is pending."""
    rollout_builder = RolloutBuilder(header())
    rollout_builder.extend([QUESTION])
    rollout_builder.mark_prompt_sent()
    rollout_builder.set_raw_response("4")
    rollout_builder.step(ANSWER, reward=1.0)
    rollout = finished(rollout_builder)
    assert (rollout.pending_prompt, rollout.pending_raw) == (None, None)


def test_a_limit_replaces_the_last_reward_only():
    """The env's reward stays in `env_reward`."""
    rollout_builder = one_step(reward=0.7, env_reward=0.7)
    rollout_builder.replace_last_reward(-0.1)
    [step] = finished(rollout_builder).steps
    assert (step.reward, step.env_reward, list(rollout_builder.rewards)) == (-0.1, 0.7, [-0.1])


def test_fields_of_the_wrong_type_are_mended_and_noted():
    """Whatever a foreign loop puts into typed fields, its line is read back and notes say what was changed."""
    rollout_builder = one_step(
        {"task": 17, "index": "first", "tags": "math", "policy_version": 1.5},
        termination="finished", raw=["x"], usage={"prompt_tokens": 3}, tokens=5, seconds="long", policy_version=True,
    )  # fmt: skip
    rollout = finished(rollout_builder, stop_reason=404, reward="good", reward_so_far=None)
    [step] = rollout.steps
    assert (rollout.task, rollout.index, rollout.tags, rollout.stop_reason) == ("17", None, ("math",), "404")
    assert (step.termination, step.raw, step.usage, step.tokens, step.seconds) == (None, '["x"]', None, None, None)
    assert rollout.reward is None
    paths = {note.path for note in rollout.notes}
    for path in ("task", "index", "stop_reason", "reward", "steps[0].termination", "steps[0].usage", "steps[0].tokens"):
        assert path in paths


def test_times_are_in_utc():
    """Times of other zones are converted to UTC."""
    there = timezone(timedelta(hours=2))
    rollout = finished(
        RolloutBuilder(header(started_at=STARTED.astimezone(there))), ended_at=datetime(2026, 1, 2, 5, tzinfo=UTC)
    )
    assert (rollout.started_at, rollout.ended_at) == (STARTED, datetime(2026, 1, 2, 5, tzinfo=UTC))
    assert (
        b'"started_at":"2026-01-02T03:04:05.678901Z"'
        in RolloutBuilder(header(started_at=STARTED.astimezone(there))).encode(outcome()).data
    )
    assert rollout.seconds > 0


def test_a_time_without_a_zone_is_local(monkeypatch):
    """As everywhere in Python, a naive `datetime` is local time."""
    monkeypatch.setenv("TZ", "America/New_York")
    time.tzset()
    try:
        rollout = finished(RolloutBuilder(header(started_at=datetime(2026, 1, 2, 5))))  # noqa: DTZ001
    finally:
        monkeypatch.undo()
        time.tzset()
    assert rollout.started_at == datetime(2026, 1, 2, 10, tzinfo=UTC)


def test_a_time_at_the_edge_of_all_time_does_not_raise():
    """The earliest date has no equivalent in UTC; it is kept and does not raise."""
    edge = datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=14)))
    assert finished(RolloutBuilder(header(started_at=edge))).started_at == datetime(1, 1, 1, tzinfo=UTC)


def test_a_stop_reason_of_none_is_empty():
    """A stop reason of None is recorded as empty text, and the line can be read."""
    assert finished(RolloutBuilder(header()), stop_reason=None).stop_reason == ""


def test_ids_are_unique_and_sort_by_time():
    """Ids are 32 lower-case hexadecimal digits that begin with the time."""
    ids = [new_id() for _ in range(1000)]
    assert len(set(ids)) == 1000
    assert [identity[:12] for identity in ids] == sorted(identity[:12] for identity in ids)
    assert all(len(identity) == 32 and int(identity, 16) for identity in ids)


def test_a_step_without_a_rollout_says_so():
    """The view of a step needs the rollout's messages."""
    rollout = finished(one_step())
    assert rollout.steps[0].trace.prompt == (QUESTION,)
    lonely = copy.copy(rollout.steps[0])
    lonely.__dict__.clear()
    with pytest.raises(ValueError, match=r"put it into `Rollout\.steps`"):
        lonely.trace  # noqa: B018 - reading it is the test


@given(st.lists(MESSAGES, max_size=4))
def test_frozen_messages_are_what_they_were(messages):
    """Messages given as chat dicts or as messages are the same in the record."""
    rollout_builder = RolloutBuilder(header())
    rollout_builder.extend([as_message(message, "m", []) for message in messages])
    assert same([m.role for m in finished(rollout_builder).messages], [m.role for m in messages])
    assert (
        encode_rollout(decode_rollout(rollout_builder.encode(outcome()).data)) == rollout_builder.encode(outcome()).data
    )


def test_a_rollout_made_from_another_leaves_that_one_alone():
    """Steps are views of their own rollout's messages, also if a copy with other messages shares their fields."""
    rollout_builder = RolloutBuilder(header())
    rollout_builder.extend([Message("user", "secret")])
    rollout_builder.mark_prompt_sent()
    rollout_builder.step(Message("assistant", "x"), reward=1.0)
    rollout = rollout_builder.build(outcome())
    redacted = msgspec.structs.replace(rollout, messages=(Message("user", "***"), Message("assistant", "x")))
    assert redacted.steps[0].trace.prompt[0].content == "***"
    assert rollout.steps[0].trace.prompt[0].content == "secret"


@given(*[st.one_of(st.floats(), st.integers(-9, 9))] * 3, st.sampled_from([UTC, timezone(timedelta(hours=5.5))]))
@example(math.nan, 1.0, 1.0, UTC)
@example(1.0, math.inf, 1.0, UTC)
@example(1.0, 1.0, -math.inf, UTC)
def test_the_end_of_a_rollout_comes_back(reward, so_far, unclamped, zone):
    """Rewards of every kind, and times in any zone, are read back as numbers and in UTC."""
    end = {"ended_at": ENDED.astimezone(zone), "reward": reward, "reward_so_far": so_far, "unclamped_reward": unclamped}
    rollout = finished(one_step(), **end, stop_reason="tired")
    assert (rollout.ended_at, rollout.ended_at.utcoffset(), rollout.stop_reason) == (ENDED, timedelta(0), "tired")
    found = [rollout.reward, rollout.reward_so_far, rollout.unclamped_reward]
    assert same(found, [float(reward), float(so_far), float(unclamped)])
    assert rollout.notes == ()
