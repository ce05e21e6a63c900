"""What the calls of graders cost on disk and in CPU time; the floor is each distinct text once."""

import asyncio
import contextlib
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import measure
import msgspec

from rolltrace.envs.env import EnvGroupBuilder
from rolltrace.envs.prompt_only import PromptOnlyGroup
from rolltrace.graders.preference_grader import PreferenceGrader
from rolltrace.graders.rubric_grader import Criterion, RubricGrader
from rolltrace.policies.policy import Request
from rolltrace.rollout.runner import Runner
from rolltrace.store.create import create_run
from rolltrace.store.reader import RunReader
from rolltrace.testing.scripted import ScriptedReplies

CRITERIA = tuple(
    Criterion(f"The answer is {quality}, from its first sentence to its last.", name=quality)
    for quality in ("correct", "complete", "clear", "polite")
)
PROMPT_WORDS = 60
REPLY_WORDS = 40
_WORD_BYTES = 6


def rubric(prompt: str, task: str, episodes: int) -> EnvGroupBuilder:
    """Four questions about each answer."""
    return PromptOnlyGroup(
        env="rubric", task=task, messages=prompt, episodes=episodes, grader=RubricGrader(CRITERIA), seed=0
    )


def tournament(prompt: str, task: str, episodes: int) -> EnvGroupBuilder:
    """Each answer of a chunk is compared with each other, both ways."""
    return PromptOnlyGroup(
        env="tournament", task=task, messages=prompt, episodes=episodes, group_grader=PreferenceGrader(), seed=0
    )


CASES: dict[str, tuple[Callable[[str, str, int], EnvGroupBuilder], int]] = {
    "rubric of 4": (rubric, 8),
    "tournament of 8": (tournament, 8),
    "tournament of 16": (tournament, 16),
}


class GeneratedReplies:
    """Plays policy and grader with text that never repeats."""

    def __init__(self, words: int) -> None:
        self._prose = measure.MarkovText()
        self._words = words

    def prompt(self) -> str:
        """A question of some length."""
        return self._prose.words(PROMPT_WORDS)

    def reply(self, request: Request) -> str:
        """An answer, or a verdict that both graders can read."""
        if request.role == "grader":
            verdict = "Preference" if "Preference: X" in request.messages[-1].content else "Score"
            return f"{self._prose.words(REPLY_WORDS)}\n{verdict}: 0.5"
        return self._prose.words(self._words)


async def play(path: Path, answers: GeneratedReplies, name: str, groups: int) -> None:
    """Play the groups of a case and record them."""
    make, episodes = CASES[name]
    policy = ScriptedReplies(answers.reply)
    with create_run(path) as run:
        builders = [make(answers.prompt(), str(number), episodes) for number in range(groups)]
        async for _ in Runner(policy, sink=run).play(builders):
            pass


def floor(path: Path) -> tuple[int, int]:
    """The bytes of all distinct texts of messages and replies, and how many calls there are."""
    texts: set[str] = set()
    count = 0
    with RunReader(path) as run:
        for record in (*run.rollouts(), *run.scores()):
            texts.update(message.content for message in getattr(record, "messages", ()))
            for call in record.calls:
                count += 1
                texts.add(call.prompt[0].content)  # the instruction; what follows quotes messages
                texts.update(() if call.reply is None else (call.reply.content,))
    return sum(len(text.encode()) for text in texts), count


def call_bytes(path: Path) -> int:
    """The bytes of all `calls` fields."""
    lines = [line for file in path.glob("*/*.jsonl") for line in file.read_bytes().splitlines()]
    return sum(len(msgspec.json.decode(line, type=_Calls).calls) for line in lines)


class _Calls(msgspec.Struct):
    calls: msgspec.Raw = msgspec.Raw(b"")


def once(name: str, options: Any) -> dict[str, float]:
    """One run of a case."""
    answers = GeneratedReplies(options.kilobytes * 1024 // _WORD_BYTES)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run"
        seconds = measure.cpu_seconds(lambda: asyncio.run(play(path, answers, name, options.groups)))
        size = sum(measure.folder_bytes(path / part) for part in ("rollouts", "scores"))
        least, calls = floor(path)
        in_calls = call_bytes(path)
    return {"bytes": size, "in calls": in_calls, "floor": least, "calls": calls, "seconds": seconds}


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, interleaved, and print medians."""
    parser = measure.parser(__doc__)
    parser.add_argument("--kilobytes", type=int, default=8, help="the length of an answer")
    parser.add_argument("--groups", type=int, default=10, help="in each round")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args(arguments)
    if options.quick:
        options.groups, options.rounds = 1, 1
    measure.warm_allocator()
    measured: dict[str, list[dict[str, float]]] = {}
    for _ in range(options.rounds):
        for name in CASES:
            measured.setdefault(name, []).append(once(name, options))
    figures = [
        {
            "case": name,
            "calls": round(rounds[0]["calls"]),
            "bytes": round(measure.median([one["bytes"] for one in rounds])),
            "of them calls": round(measure.median([one["in calls"] for one in rounds])),
            "floor": round(measure.median([one["floor"] for one in rounds])),
            "bytes / floor": round(measure.median([one["bytes"] / one["floor"] for one in rounds]), 2),
            "CPU ms per call": round(1e3 * measure.median([one["seconds"] / one["calls"] for one in rounds]), 3),
        }
        for name, rounds in measured.items()
    ]
    parameters = {name: getattr(options, name) for name in ("kilobytes", "groups", "rounds")}
    report = {"benchmark": "call_bytes", **measure.machine(), "parameters": parameters, "figures": figures}
    title = f"Calls of graders: answers of {options.kilobytes} KB, {options.groups} groups, {options.rounds} rounds"
    measure.print_report(report, {title: figures}, options.json)


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        main()
