"""Writes the golden lines of format version 2: run once, from this folder's parent, when a case is added.

A line that is there is never changed: readers must always read it. `python tests/golden/make_v2.py` therefore writes
only cases that have no file yet.
"""

import math
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from rolltrace.trace.call import Call
from rolltrace.trace.codec import encode_rollout, encode_score
from rolltrace.trace.convert import as_message
from rolltrace.trace.failure import Failure
from rolltrace.trace.frozen import FrozenMap
from rolltrace.trace.message import Message, Sampling, ToolCall, ToolSpec
from rolltrace.trace.rollout import Header, Outcome
from rolltrace.trace.rollout_builder import RolloutBuilder
from rolltrace.trace.score import Grade, GroupKey, Score
from rolltrace.trace.stop_reasons import EnvFailure, Layer, Status, StoppedBy, StopReason, Termination
from rolltrace.trace.tokens import Tokens, Usage

FOLDER = Path(__file__).parent / "v2"
RUN = "01970000000000000000000000000001"
SESSION = "01970000000000000000000000000002"
STARTED = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)

ADD = ToolSpec("add", "Adds.", FrozenMap.of({"type": "object", "properties": {"a": {"$ref": "#/$defs/n"}}}))


def rollout_id(number: int) -> str:
    """A fixed id."""
    return f"0197{number:028x}"


def rollout_builder(number: int, **fields: Any) -> RolloutBuilder:
    """A draft with a fixed identity."""
    required = {"id": rollout_id(number), "run": RUN, "session": SESSION, "env": "arithmetic", "task": "17"}
    return RolloutBuilder(
        Header(**{**required, "group": "17", "index": 0, "policy": "golden", "started_at": STARTED, **fields})
    )


def outcome(**fields: Any) -> Outcome:
    """A good end, apart from the fields given."""
    good = Outcome(
        ended_at=STARTED + timedelta(seconds=1.5),
        status=Status.OK,
        stop_reason=StopReason.COMPLETED,
        stopped_by=StoppedBy.ENV,
        error=None,
        reward=1.0,
        reward_so_far=1.0,
        unclamped_reward=None,
    )
    return {**good, **fields}  # type: ignore[typeddict-item]


def plain() -> bytes:
    """One question, one answer."""
    line = rollout_builder(
        1, iteration=4, seed=7, env_args={"digits": 2}, task_data={"answer": 4}, tags=("math",), policy_version=12
    )
    line.extend([Message("system", "Answer with a number."), Message("user", "What is 2 + 2? é 😀")])
    line.mark_prompt_sent()
    line.step(
        Message("assistant", "4"),
        reward=1.0,
        env_reward=1.0,
        reward_data={"correct": True, "format": 0.9},
        env_state={"asked": 1},
        extra={"expected": "4"},
        metrics={"length": 1},
        logs={"note": "a\nb"},
        sampling=Sampling(temperature=1.0, max_tokens=64, stop=("\n\n",)),
        termination=Termination.EOS,
        policy_version=12,
        usage=Usage(31, 9),
        seconds=0.41,
        tokens=Tokens((1, 2, 3), (4,), (-0.25,)),
    )
    return line.encode(outcome()).data


def tools() -> bytes:
    """Two turns: a tool is called, then the question is answered; a grader that asks a model adds to the reward."""
    line = rollout_builder(2, env="calculator", split="test", policy_version="v2")
    line.extend([Message("user", "2 + 3?")])
    line.mark_prompt_sent()
    call = ToolCall("add", '{"a": 2, "b": 3}', "c1")
    line.step(
        Message("assistant", "", tool_calls=(call,), reasoning="I can add."),
        reward=0.0, tools=(ADD,), sampling=Sampling(), termination=Termination.TOOL_CALLS, raw="<add>2 3</add>",
    )  # fmt: skip
    line.extend([Message("tool", "5", tool_call_id="c1", name="add")])
    line.mark_prompt_sent()
    line.step(
        Message("assistant", "It is 5."), reward=0.5, tools=(ADD,), sampling=Sampling(), termination=Termination.EOS
    )
    line.calls.append(
        Call(
            "grader",
            "judge",
            (Message("user", "Is 5 right?"),),
            Message("assistant", "yes"),
            usage=Usage(5, 1),
            seconds=0.2,
        )
    )
    line.grade = Grade(0.25, {"judge": 1}, {"verdict": "yes"})
    line.metrics["turns"] = 2
    return line.encode(outcome(reward=0.75, reward_so_far=0.75)).data


def edited() -> bytes:
    """A history that is rewritten: the first response is edited, so it stands in its step; an old message changes."""
    line = rollout_builder(3)
    system, user = Message("system", "Turn 1."), Message("user", "Think of a number.")
    line.extend([system, user])
    line.mark_prompt_sent()
    line.step(Message("assistant", "<think>seven</think>Done."), reward=0.0)
    shown = Message("assistant", "Done.")
    line.replace([Message("system", "Turn 2."), user, shown, Message("user", "Is it odd?")])
    line.mark_prompt_sent()
    line.step(Message("assistant", "Yes."), reward=-0.1, env_reward=1.0)
    return line.encode(
        outcome(stop_reason=StopReason.CONTEXT_OVERFLOW, stopped_by=StoppedBy.RUNNER, reward=-0.1, reward_so_far=-0.1)
    ).data


def non_finite() -> bytes:
    """Numbers that JSON does not have, large ones, and a user's own keys that look like markers."""
    line = rollout_builder(4)
    line.extend([Message("user", "Divide.")])
    line.mark_prompt_sent()
    line.step(
        Message("assistant", "1 / 0"),
        reward=math.nan,
        env_reward=-math.inf,
        reward_data={"nan": math.nan, "up": math.inf, "down": -math.inf, "big": 2**200, "sum": 0.1 + 0.2, "zero": -0.0},
        metrics={"text": "fast"},
        env_state={"n": [math.nan, {"deep": math.inf}], "raw": b"\x00\xff", "$float": "mine", "m": {"$bytes": "mine"}},
        extra={"object": object(), "$only": {"$float": "NaN"}},
        logs={"surrogate": "a\ud800b"},
        tokens=Tokens((), (1, 2), (-math.inf, -0.5)),
    )
    return line.encode(outcome(reward=math.nan, reward_so_far=math.nan)).data


def image() -> bytes:
    """A message with an image that is carried, one that is an address, and parts that have no place of their own."""
    line = rollout_builder(5)
    content = [
        {"type": "text", "text": "Compare "},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo=", "detail": "low"}},
        {"type": "text", "text": "with "},
        {"type": "image_url", "image_url": {"url": "https://example.org/b.png"}},
        {"type": "hologram", "size": 3},
    ]
    line.extend([as_message({"role": "user", "content": content, "weight": 2}, "messages[0]", line.notes)])
    line.mark_prompt_sent()
    line.step(Message("assistant", "The same."), reward=1.0)
    return line.encode(outcome()).data


def failed() -> bytes:
    """A policy that failed in its second turn: the question it was sent and what came back are kept."""
    line = rollout_builder(6, attempt=1)
    line.extend([Message("user", "One?")])
    line.mark_prompt_sent()
    line.step(Message("assistant", "1"), reward=0.5, env_reward=0.5)
    line.extend([Message("user", "Two?")])
    line.mark_prompt_sent()
    line.set_raw_response("<broken")
    failure = Failure(Layer.POLICY, "TimeoutError", "no answer in 60 s", "Traceback (most recent call last): …")
    line.add_note("", "close of Env took too long")
    return line.encode(
        outcome(status=Status.ERROR, stop_reason=StopReason.ERROR, stopped_by=StoppedBy.RUNNER, error=failure,
                reward=None, reward_so_far=0.5)
    ).data  # fmt: skip


def unfinished() -> bytes:
    """A tool call on which the env raised: the turn is a step without a reward of the env's."""
    line = rollout_builder(8)
    line.extend([Message("user", "A door.")])
    line.mark_prompt_sent()
    call = ToolCall("open", '{"what": "it"}', "c1")
    line.step(
        Message("assistant", "", tool_calls=(call,)),
        reward=0.0, env_state={"door": "stuck"}, termination=Termination.TOOL_CALLS, usage=Usage(5, 4),
    )  # fmt: skip
    line.set_env_failure(EnvFailure.RAISED)
    failure = Failure(Layer.ENV, "KeyError", "'the floor'", "Traceback (most recent call last): …")
    return line.encode(
        outcome(status=Status.ERROR, stop_reason=StopReason.ERROR, stopped_by=StoppedBy.RUNNER, error=failure,
                reward=None, reward_so_far=0.0)
    ).data  # fmt: skip


def seat() -> bytes:
    """The second player of the third game of a group, whose grade is pending."""
    line = rollout_builder(7, env="tictactoe", group="opening", index=5, episode=2, seat=1)
    line.extend([Message("user", "Your move.", name="board")])
    line.mark_prompt_sent()
    line.step(Message("assistant", "b2"), reward=0.0, termination=Termination.STOP_SEQUENCE)
    return line.encode(outcome(reward=None, reward_so_far=0.0)).data


def quotes() -> bytes:
    """Calls that quote the conversation: one message, the words of an earlier call, and the whole conversation."""
    line = rollout_builder(8, env="prompts", task="1", group="1", policy="")
    answer = (
        "Water boils when its vapour pressure reaches that of the air: at 100 °C by the sea, at 72 °C on Everest. 😀"
    )
    rules = "Judge the answer by one criterion. End with one line `Score: X`, where X is from 0 to 1."
    conversation = (Message("user", "Why does water boil?"), Message("assistant", answer))
    line.extend(conversation)
    for criterion in ("It is right.", "It is short."):
        question = Message("user", f"<answer>\n{answer}\n</answer>\n{criterion}")
        line.calls.append(
            Call("grader", "judge", (Message("system", rules), question), Message("assistant", "Score: 1"))
        )
    line.calls.append(Call("opponent", "judge", conversation))
    return encode_rollout(line.build(outcome(reward=0.0, reward_so_far=0.0)))


def tokens() -> bytes:
    """Two turns with token ids: the second prompt shares a prefix with the first turn; each token has its length."""
    line = rollout_builder(9)
    line.extend([Message("user", "Count.")])
    line.mark_prompt_sent()
    line.step(
        Message("assistant", "one"), reward=0.0, tokens=Tokens((1, 2), (3, 0), (-0.5, -math.inf), char_lengths=(3, 0))
    )
    line.extend([Message("user", "On.")])
    line.mark_prompt_sent()
    line.step(Message("assistant", "two"), reward=1.0, tokens=Tokens((1, 2, 3, 0, 4), (5,), char_lengths=(3,)))
    return line.encode(outcome()).data


def ended_before_first_turn() -> bytes:
    """An env that was over before the policy had a turn."""
    line = rollout_builder(10, env="tictactoe", episode=0, seat=1, index=1)
    line.end_before_first_turn(
        reward=-1.0, reward_data={"lost": True}, env_state={"board": "XXX"}, logs={"by": "seat 0"}
    )
    return line.encode(outcome(reward=-1.0, reward_so_far=-1.0)).data


def scores() -> bytes:
    """A group's grade, an advantage, a grade that could not be found, and a fact about a group."""
    at = STARTED + timedelta(minutes=1)
    common: dict[str, Any] = {"run": RUN, "session": SESSION, "created_at": at}
    group = GroupKey("train", 0, "tictactoe", "opening")
    failure = Failure(Layer.GRADER, "GraderError", "no verdict")
    return b"".join(
        map(encode_score, [
            Score(id=rollout_id(101), rollout=rollout_id(7), name="reward", value=1.0, producer="tictactoe:Games",
                  data={"reward_so_far": 0.0, "group_grade": 1.0}, **common),
            Score(id=rollout_id(102), rollout=rollout_id(1), name="advantage", value=-math.inf, **common),
            Score(id=rollout_id(103), rollout=rollout_id(2), name="reward", value=None, error=failure, **common),
            Score(id=rollout_id(104), group=group, name="signal", value=0.0, data={"why": {"$x": math.nan}}, **common),
        ])
    )  # fmt: skip


CASES: dict[str, Callable[[], bytes]] = {
    "plain": plain, "tools": tools, "edited": edited, "non_finite": non_finite, "image": image, "failed": failed,
    "unfinished": unfinished, "seat": seat, "quotes": quotes, "tokens": tokens,
    "ended_before_first_turn": ended_before_first_turn, "scores": scores,
}  # fmt: skip

if __name__ == "__main__":
    for name, make in CASES.items():
        path = FOLDER / f"{name}.jsonl"
        if path.exists():
            sys.stdout.write(f"kept {path.name}\n")
        else:
            path.write_bytes(make())
            sys.stdout.write(f"wrote {path.name}\n")
