"""A taskset of verifiers with tools that share a state, hooks that use the runtime, and variants to refuse."""

from pathlib import Path

import verifiers.v1 as vf
from pydantic import Field

__all__ = ["ShopTaskset"]

WORKDIRS: list[Path] = []
"""The working directories that tasks had."""


class ShopState(vf.State):
    """What is in the basket."""

    basket: list[str] = Field(default_factory=list)


class ShopToolsConfig(vf.ToolsetConfig):
    """The price list."""

    price: int = 2


class ShopTools(vf.Toolset[ShopToolsConfig, ShopState]):
    """A shop."""

    TOOL_PREFIX = "shop"

    async def setup_task(self, task):
        self.wanted = task.wanted

    @vf.tool
    async def put(self, thing: str, count: int = 1) -> str:
        """Put things into the basket."""
        if thing == "stone":
            raise ValueError("no stones here")
        self.state.basket += [thing] * count
        return f"{len(self.state.basket)} in the basket, for {self.wanted}"


class ClockConfig(vf.SharedToolsetConfig):
    """Nothing to configure."""


class Clock(vf.Toolset[ClockConfig, vf.State]):
    """A tool of the taskset, without a prefix and without a state."""

    TOOL_PREFIX = None

    async def setup_task(self, task):
        raise AssertionError("a server of the taskset does not know the task")

    @vf.tool
    def now(self) -> str:
        """Say the time."""
        return "noon"


class ShopTaskConfig(vf.TaskConfig):
    """How the task is."""

    tools: ShopToolsConfig = ShopToolsConfig()


class ShopData(vf.TaskData):
    """What is wanted."""

    wanted: str = "apples"


class ShopTask(vf.Task[ShopData, ShopState, ShopTaskConfig]):
    """Counts what is in the basket."""

    @classmethod
    def toolsets(cls, config):
        return [ShopTools(config.tools)]

    async def setup(self, trace, runtime):
        await runtime.write("list.txt", self.data.wanted.encode())

    async def finalize(self, trace, runtime):
        WORKDIRS.append(runtime.workdir)
        trace.info["files"] = [path.name for path in runtime.workdir.iterdir()]

    @vf.reward(weight=2.0)
    async def bought(self, trace) -> float:
        return float(trace.state.basket.count(self.data.wanted))

    @vf.reward
    async def on_list(self, trace, runtime) -> float:
        return float((await runtime.read("list.txt")).decode() == self.data.wanted)

    @vf.metric
    async def things(self, trace) -> float:
        return float(len(trace.state.basket))


class ShopConfig(vf.TasksetConfig):
    """How many tasks, and which variant."""

    task: ShopTaskConfig = ShopTaskConfig()
    wanted: list[str] = Field(default_factory=lambda: ["apples", "pears", "plums"])
    image: str | None = None
    prompt: str | None = "Buy {}."
    skills: bool = False


class ShopTaskset(vf.Taskset[ShopTask, ShopConfig]):
    """One task for each thing."""

    @classmethod
    def toolsets(cls, config):
        return [Clock(ClockConfig())]

    def load(self):
        for wanted in self.config.wanted:
            prompt = None if self.config.prompt is None else self.config.prompt.format(wanted)
            skills = [Path("skill")] if self.config.skills else []
            data = ShopData(name=f"buy-{wanted}", prompt=prompt, wanted=wanted, image=self.config.image, skills=skills)
            yield ShopTask(data, self.config.task)
