"""Lines of format version 2 that every release reads, and encodes to the same bytes."""

import math
from datetime import UTC, datetime
from pathlib import Path

import pytest

from rollout_builders import same, strict
from rolltrace.trace.blob import Blob
from rolltrace.trace.call import Call
from rolltrace.trace.codec import decode_rollout, decode_score, encode_rollout, encode_score
from rolltrace.trace.convert import to_openai
from rolltrace.trace.failure import Failure
from rolltrace.trace.freeform import Note
from rolltrace.trace.frozen import FrozenMap
from rolltrace.trace.message import Message, Part, Sampling, ToolCall, ToolSpec
from rolltrace.trace.rollout import EndedBeforeFirstTurn
from rolltrace.trace.score import Grade, GroupKey
from rolltrace.trace.tokens import Tokens, Usage

FOLDER = Path(__file__).parents[1] / "golden" / "v2"
ROLLOUTS = [
    "plain", "tools", "edited", "non_finite", "image", "failed", "unfinished", "seat", "quotes", "tokens",
    "ended_before_first_turn",
]  # fmt: skip


def rollout(name):
    return decode_rollout((FOLDER / f"{name}.jsonl").read_bytes())


def scores():
    return [decode_score(line) for line in (FOLDER / "scores.jsonl").read_bytes().splitlines(keepends=True)]


@pytest.mark.parametrize("name", ROLLOUTS)
def test_golden_rollouts_are_written_again_byte_for_byte(name):
    """A line that is decoded and encoded again has the same bytes."""
    line = (FOLDER / f"{name}.jsonl").read_bytes()
    strict(line)
    assert encode_rollout(decode_rollout(line)) == line


def test_golden_scores_are_written_again_byte_for_byte():
    """A score that is decoded and encoded again has the same bytes."""
    assert b"".join(map(encode_score, scores())) == (FOLDER / "scores.jsonl").read_bytes()


def test_every_golden_file_is_read():
    """No golden file is left out."""
    assert {path.stem for path in FOLDER.iterdir()} == {*ROLLOUTS, "scores"}


def test_plain():
    """One question and one answer, with every number and setting."""
    line = rollout("plain")
    assert (line.v, line.id, line.iteration, line.seed) == (2, "01970000000000000000000000000001", 4, 7)
    assert (line.env_args, line.task_data, line.tags, line.policy_version) == (
        {"digits": 2},
        {"answer": 4},
        ("math",),
        12,
    )
    assert line.started_at == datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
    assert line.seconds == 1.5
    [step] = line.steps
    assert step.trace.prompt == (Message("system", "Answer with a number."), Message("user", "What is 2 + 2? é 😀"))
    assert step.trace.policy_response == Message("assistant", "4")
    assert same(step.reward_data, {"correct": True, "format": 0.9})
    assert (step.env_state, step.extra, step.metrics, step.logs) == (
        {"asked": 1},
        {"expected": "4"},
        {"length": 1},
        {"note": "a\nb"},
    )
    assert line.sampling == (Sampling(temperature=1.0, max_tokens=64, stop=("\n\n",)),)
    assert (step.termination, step.usage, step.seconds) == ("eos", Usage(31, 9), 0.41)
    assert step.tokens == Tokens((1, 2, 3), (4,), (-0.25,))
    assert (line.reward, line.status, line.stop_reason, line.stopped_by, line.notes) == (
        1.0,
        "ok",
        "completed",
        "env",
        (),
    )


def test_tools():
    """Two turns share one growing conversation and one set of tools."""
    line = rollout("tools")
    first, second = line.steps
    assert (first.prompt, first.response, second.prompt, second.response) == (((0, 1),), 1, ((0, 3),), 3)
    call = ToolCall("add", '{"a": 2, "b": 3}', "c1")
    assert first.trace.policy_response == Message("assistant", "", tool_calls=(call,), reasoning="I can add.")
    assert line.messages[2] == Message("tool", "5", tool_call_id="c1", name="add")
    schema = {"type": "object", "properties": {"a": {"$ref": "#/$defs/n"}}}
    assert line.tools == ((ToolSpec("add", "Adds.", FrozenMap.of(schema)),),)
    assert line.tools[0][0].parameters.to_dict() == schema
    assert (first.tools, second.tools, first.raw, line.sampling) == (0, 0, "<add>2 3</add>", (Sampling(),))
    assert line.grade == Grade(0.25, {"judge": 1}, {"verdict": "yes"})
    assert line.reward == line.reward_so_far == first.reward + second.reward + line.grade.reward
    asked, replied = (Message("user", "Is 5 right?"),), Message("assistant", "yes")
    assert line.calls == (Call("grader", "judge", asked, replied, usage=Usage(5, 1), seconds=0.2),)
    assert (line.metrics, line.split, line.policy_version) == ({"turns": 2}, "test", "v2")


def test_quotes():
    """Quoted text is restored: a message, the text of an earlier call, and a whole conversation."""
    line = rollout("quotes")
    rules = "Judge the answer by one criterion. End with one line `Score: X`, where X is from 0 to 1."
    answer = line.messages[1].content
    for call, criterion in zip(line.calls, ("It is right.", "It is short."), strict=False):
        question = f"<answer>\n{answer}\n</answer>\n{criterion}"
        assert call.prompt == (Message("system", rules), Message("user", question))
    assert line.calls[2].prompt == line.messages
    assert (FOLDER / "quotes.jsonl").read_text().count(answer) == 1


def test_tokens():
    """The second prompt is stored without the prefix shared with the turn before, and read with it."""
    line = rollout("tokens")
    assert [step.tokens.shared_prefix for step in line.steps] == [0, 4]
    assert [step.tokens.char_lengths for step in line.steps] == [(3, 0), (3,)]
    assert line.prompt_tokens(1) == (1, 2, 3, 0, 4)


def test_ended_before_first_turn():
    """An env that ended before the first turn gave a reward, and there are no steps."""
    line = rollout("ended_before_first_turn")
    assert (line.steps, line.reward) == ((), -1.0)
    assert line.ended_before_first_turn == EndedBeforeFirstTurn(
        reward=-1.0, reward_data={"lost": True}, env_state={"board": "XXX"}, logs={"by": "seat 0"}
    )


def test_edited():
    """An edited response is inline; an old message that changed adds one range."""
    line = rollout("edited")
    first, second = line.steps
    assert first.response == Message("assistant", "<think>seven</think>Done.")
    assert [message.content for message in second.trace.prompt] == [
        "Turn 2.",
        "Think of a number.",
        "Done.",
        "Is it odd?",
    ]
    assert (second.response, second.reward, second.env_reward) == (4, -0.1, 1.0)
    assert [message.content for message in line.conversation][-1] == "Yes."
    assert (line.stop_reason, line.stopped_by) == ("context_overflow", "runner")


def test_non_finite():
    """Numbers that JSON lacks, bytes and a user's `$` keys are read back."""
    line = rollout("non_finite")
    [step] = line.steps
    assert same(
        [line.reward, line.reward_so_far, step.reward, step.env_reward], [math.nan, math.nan, math.nan, -math.inf]
    )
    assert same(step.reward_data, {
        "nan": math.nan, "up": math.inf, "down": -math.inf, "big": 2**200, "sum": 0.1 + 0.2, "zero": -0.0,
    })  # fmt: skip
    assert same(step.env_state, {
        "n": [math.nan, {"deep": math.inf}], "raw": b"\x00\xff", "$float": "mine", "m": {"$bytes": "mine"},
    })  # fmt: skip
    assert step.metrics == {}
    assert step.extra == {
        "metrics.text": "fast", "object": {"$unrepresentable": "object: <object object>"}, "$only": {"$float": "NaN"},
    }  # fmt: skip
    assert step.logs == {"surrogate": "a\ufffdb"}
    assert step.tokens == Tokens((), (1, 2), (-math.inf, -0.5))
    assert [note.path for note in line.notes] == [
        "steps[0].metrics.text", "steps[0].logs.surrogate", "steps[0].extra.object",
    ]  # fmt: skip


def test_image():
    """Parts keep their places, bytes are named by digest, URLs are kept."""
    [message, _] = rollout("image").messages
    assert message.content == "Compare with "
    assert message.parts == (
        Part(
            "image",
            offset=8,
            blob=Blob.of(b"\x89PNG\r\n\x1a\n"),
            media_type="image/png",
            other=FrozenMap.of({"detail": "low"}),
        ),
        Part("image", offset=13, url="https://example.org/b.png"),
        Part("hologram", offset=13, other=FrozenMap.of({"size": 3})),
    )
    assert message.other.to_dict() == {"weight": 2}
    assert [part["type"] for part in to_openai(message)["content"]] == [
        "text",
        "image_url",
        "text",
        "image_url",
        "hologram",
    ]


def test_failed():
    """A failure has its layer, the earlier steps, and the unanswered prompt."""
    line = rollout("failed")
    assert (line.status, line.stop_reason, line.reward, line.reward_so_far, line.attempt) == (
        "error",
        "error",
        None,
        0.5,
        1,
    )
    assert line.error == Failure("policy", "TimeoutError", "no answer in 60 s", "Traceback (most recent call last): …")
    assert [message.content for message in line.pending_messages] == ["One?", "1", "Two?"]
    assert line.pending_raw == "<broken"
    assert line.notes == (Note("", "close of Env took too long"),)


def test_unfinished():
    """A turn that the env did not finish is a step that says so; its response ends the conversation."""
    line = rollout("unfinished")
    [step] = line.steps
    assert (step.env_failure, step.env_reward, step.reward) == ("raised", None, 0.0)
    assert step.trace.policy_response.tool_calls[0].arguments == '{"what": "it"}'
    assert (line.conversation[-1], line.pending_prompt) == (step.trace.policy_response, None)


def test_seat():
    """A player of a game knows its episode and seat."""
    line = rollout("seat")
    assert (line.group, line.index, line.episode, line.seat, line.reward) == ("opening", 5, 2, 1, None)
    assert line.messages[0].name == "board"


def test_scores():
    """Scores name a rollout or a group, and say why a value is missing."""
    reward, advantage, missing, signal = scores()
    assert (reward.rollout, reward.name, reward.value) == (rollout("seat").id, "reward", 1.0)
    assert reward.data == {"reward_so_far": 0.0, "group_grade": 1.0}
    assert (advantage.name, advantage.value) == ("advantage", -math.inf)
    assert (missing.value, missing.error) == (None, Failure("grader", "GraderError", "no verdict"))
    assert signal.group == GroupKey("train", 0, "tictactoe", "opening")
    assert same(signal.data, {"why": {"$x": math.nan}})
