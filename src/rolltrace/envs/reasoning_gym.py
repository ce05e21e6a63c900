"""The tasks of the reasoning-gym package: generated from seeds, each scored by its own scorer."""

from dataclasses import dataclass
from typing import Any

from rolltrace.envs.problem_env import ProblemGroup
from rolltrace.envs.reasoning_gym_calls import all_names, check_config, make_entry, prepare, score_answer
from rolltrace.envs.tasks import Tasks
from rolltrace.errors import EnvError, WorkerError
from rolltrace.graders.answer_check import extract_answer, extract_tagged
from rolltrace.graders.format_check import FORMAT_COEF
from rolltrace.graders.scoring_pool import run_scorer
from rolltrace.processes.pool import ProcessPool
from rolltrace.seeds import derive_seed

INSTRUCTION = "Think it through, then write your final answer, and nothing else, between <answer> and </answer>."
SCORING_SECONDS = 5.0
GENERATING_SECONDS = 120.0
_GENERATORS = ProcessPool()
"""Separate from the scoring pool, so that a new task does not wait until hostile answers have timed out."""
_SEEDS = 2**31
"""The package passes seeds to numpy, which accepts 32 bits."""


class ReasoningGymTasks(Tasks):
    """One generated task of reasoning-gym, such as leg_counting; other arguments are those of its configuration."""

    build_in_thread = True

    def __init__(
        self,
        name: str,
        format_coef: float = FORMAT_COEF,
        system: str | None = None,
        instruction: str = INSTRUCTION,
        **config: Any,
    ) -> None:
        self.name = name
        self.env = f"reasoning_gym:{name}"
        self.format_coef = format_coef
        self.system = system
        self.instruction = instruction
        self.config = config
        self._generate(check_config, name, config)

    @staticmethod
    def names() -> list[str]:
        """All tasks of the installed package."""
        names: list[str] = _GENERATORS.run_sync(all_names, cpu_seconds=GENERATING_SECONDS, prepare=prepare)
        return names

    def builder(self, number: int, *, episodes: int, seed: int) -> ProblemGroup:
        """The group that plays entry `number` of the seed, which is generated here."""
        task_seed = derive_seed("reasoning_gym", self.name, seed, number) % _SEEDS
        entry = self._generate(make_entry, self.name, self.config, task_seed)
        return ProblemGroup(
            env=self.env,
            task=f"{self.name}-seed{seed}-{number}",
            question="\n\n".join(filter(None, (entry["question"].strip(), self.instruction))),
            reference=entry["answer"],
            check=ReasoningGymScorer(self.name, self.config, entry["entry"]),
            extract=extract_answer_or_tagged,
            format_check=has_tagged_answer,
            system=self.system,
            format_coef=self.format_coef,
            tags=("reasoning_gym", entry["category"]),
            episodes=episodes,
            env_args={
                **self.config,
                "format_coef": self.format_coef,
                "system": self.system,
                "instruction": self.instruction,
            },
            task_data={
                "number": number,
                "question": entry["question"],
                "answer": entry["answer"],
                "category": entry["category"],
                "difficulty": entry["metadata"].get("difficulty"),
                "metadata": entry["metadata"],
            },
            seed=task_seed,
        )

    def _generate(self, function: Any, *args: Any) -> Any:
        try:
            return _GENERATORS.run_sync(function, *args, cpu_seconds=GENERATING_SECONDS, prepare=prepare)
        except WorkerError as error:
            raise EnvError(f"{self.env} could not be generated: {error}") from error


@dataclass(frozen=True)
class ReasoningGymScorer:
    """A check that calls the task's own scorer in a worker process: it is foreign code on hostile text."""

    name: str
    config: dict[str, Any]
    entry: str
    """A pickle from a worker process; only worker processes unpickle it."""

    async def __call__(self, answer: str, reference: str) -> float:
        """The package's own score; the reference is not used."""
        args = (self.name, self.config, self.entry, answer)
        return float(await run_scorer(score_answer, *args, cpu_seconds=SCORING_SECONDS, prepare=prepare))


def extract_answer_or_tagged(reply: str) -> str | None:
    r"""The answer in tags, otherwise that of an `Answer:` line or a `\boxed{}`."""
    return extract_tagged(reply) or extract_answer(reply)


def has_tagged_answer(reply: str) -> float:
    """1.0 if the reply has an answer in tags."""
    return float(extract_tagged(reply) is not None)
