"""Environments for tests of workers: sums, some of which wait, fail, or kill the process that plays them."""

import asyncio
import os
import signal
import threading
import time
from pathlib import Path

from rolltrace.envs.env import Env, EnvGroupBuilder, Observation, StepResult
from rolltrace.envs.tasks import Tasks
from rolltrace.policies.policy import Completion
from rolltrace.trace.message import Message


class SumEnv(Env):
    """Asks for a sum, and rewards a right answer. What else it does depends on its kind."""

    takes_any_completion = True

    def __init__(self, number: int, kind: str, folder: Path, index: int) -> None:
        self.number, self.kind, self.folder, self.index = number, kind, folder, index

    async def initial_observation(self) -> Observation:
        (self.folder / f"pid-{os.getpid()}").touch()
        return Observation([Message("user", f"What is {self.number} + 1? End with Answer: X")])

    async def step(self, completion: Completion) -> StepResult:
        await self._misbehave()
        is_right = completion.message.content.endswith(f"Answer: {self.number + 1}")
        return StepResult(float(is_right), done=True)

    async def _misbehave(self) -> None:
        once = self.folder / f"once-{self.number}"
        if self.kind == "kill" or (self.kind == "kill once" and not once.exists()):
            if self.index == 0:
                await asyncio.sleep(0.3)  # so that the other members are recorded
                once.touch()
                os.kill(os.getpid(), signal.SIGKILL)
        elif self.kind == "wait" and not (self.folder / "go").exists():
            (self.folder / f"waits-{self.number}-{self.index}").touch()
            await asyncio.Event().wait()
        elif self.kind == "block":
            (self.folder / f"waits-{self.number}-{self.index}").touch()
            time.sleep(100)  # noqa: ASYNC251 - an env that blocks
        elif self.kind == "raise":
            raise ValueError("this env fails")
        elif self.kind == "raise unusual":
            raise BaseException("this env fails")
        elif self.kind == "interrupt" and self.index == 0:
            raise KeyboardInterrupt
        elif self.kind == "kill late" and self.index == 0:
            threading.Timer(0.03, os._exit, [3]).start()
        elif self.kind == "fork and kill" and self.index == 0:
            if os.fork() == 0:
                time.sleep(10)  # noqa: ASYNC251 - the forked process, which has the worker's connection
                os._exit(0)
            os.kill(os.getpid(), signal.SIGKILL)
        elif self.kind == "slow":
            await asyncio.sleep(0.6)
        else:
            await asyncio.sleep(0.005)


class SumGroup(EnvGroupBuilder):
    """Episodes of one sum."""

    env = "sums"

    def __init__(self, number: int, episodes: int, kind: str, folder: str) -> None:
        self.task = str(number)
        self.number, self.episodes, self.kind, self.folder = number, episodes, kind, folder

    async def make_episode(self, number: int) -> tuple[Env]:
        return (SumEnv(self.number, self.kind, Path(self.folder), number),)


class OddGroup(SumGroup):
    """Its task is no Unicode text."""

    def __init__(self, number: int, episodes: int, kind: str, folder: str) -> None:
        super().__init__(number, episodes, kind, folder)
        self.task = "\ud800"


class Sums(Tasks):
    """Sums; `special=NUMBER:KIND` is the kind of one of them."""

    env = "sums"
    count = None

    def __init__(
        self, folder: str, special: str = ":", builder: type[EnvGroupBuilder] = SumGroup, others: str = ""
    ) -> None:
        self.folder = folder
        self.others = others
        self.number, _, self.kind = special.partition(":")
        self.make = builder

    def builder(self, number: int, *, episodes: int, seed: int) -> EnvGroupBuilder:
        kind = self.kind if self.number in {str(number), "all"} else self.others
        return self.make(number, episodes, kind, self.folder)


def sums(folder: str, special: str = ":") -> Sums:
    """For the command line: `worker_envs:sums`."""
    return Sums(folder, special)


class OnlyInParent:
    """A policy that cannot be unpickled elsewhere, or only made in the process that plays."""

    name, version, context_length = "parent", None, None

    def __init__(self, parent: int) -> None:
        if os.getpid() != int(parent):
            raise ValueError("no such policy here")

    async def complete(self, request: object) -> Completion:
        return Completion(message=Message("assistant", "Answer: 1"), termination="eos")

    def count_tokens(self, request: object) -> None:
        return None
