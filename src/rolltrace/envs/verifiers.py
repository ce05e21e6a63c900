"""The built-in family `verifiers:NAME`: tasksets of verifiers (v1) that need no container, played in this process."""

import contextlib
import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache, partial
from importlib import import_module
from typing import Any

from rolltrace.envs.env import Env, Observation, SingleEnvGroup, SingleUse, StepResult
from rolltrace.envs.tasks import Tasks
from rolltrace.envs.tools import parse_error_of
from rolltrace.envs.verifiers_tools import PLAY_ELSEWHERE, TaskTools
from rolltrace.errors import EnvError, InputError
from rolltrace.policies.policy import Completion
from rolltrace.trace.convert import as_message
from rolltrace.trace.message import Message
from rolltrace.trace.stop_reasons import StopReason, Termination

FAMILY = "verifiers"
MAX_TURNS = 50


class VerifiersTasks(Tasks):
    """A taskset of verifiers, scored by its own rewards; other arguments are those of its configuration."""

    def __init__(self, name: str, max_turns: int = MAX_TURNS, **config: Any) -> None:
        self.name = name
        self.env = f"{FAMILY}:{name}"
        if max_turns < 1:
            raise InputError(f"Expected max_turns of at least 1 for {self.env}, got {max_turns}.")
        self.max_turns = max_turns
        self.config = {key: _from_text(value) for key, value in config.items()}
        loaded = load_tasks(name, json.dumps(self.config, sort_keys=True))
        self.count = loaded.count
        check_playable(self.env, loaded.task(0))

    @staticmethod
    def names() -> list[str]:
        """Tasksets are packages of any name, so there is no list of them."""
        return []

    def builder(self, number: int, *, episodes: int, seed: int) -> SingleEnvGroup:
        """The group that plays task `number`; the taskset does not depend on the seed."""
        config = json.dumps(self.config, sort_keys=True)
        task = load_tasks(self.name, config).task(number)
        check_playable(self.env, task)
        return SingleEnvGroup(
            make_env=partial(VerifiersEnv, self.name, config, number, self.max_turns),
            env=self.env,
            task=task.data.id or task.data.name or f"{self.name}-{number}",
            episodes=episodes,
            tags=(FAMILY,),
            env_args={"max_turns": self.max_turns, **self.config},
            task_data={"key": task.key, **task.data.model_dump(mode="json", exclude_unset=True, exclude_none=True)},
        )


class LoadedTasks:
    """The tasks of a taskset, read as far as they are needed."""

    def __init__(self, taskset: Any) -> None:
        self.taskset = taskset
        self._source = iter(taskset)
        self._tasks: list[Any] = list(self._source) if taskset.bounded else []
        self.count = len(self._tasks) if taskset.bounded else None

    def task(self, number: int) -> Any:
        """The task of this number."""
        missing = number + 1 - len(self._tasks)
        if missing > 0:
            self._tasks += itertools.islice(self._source, missing)
        if number >= len(self._tasks):
            raise InputError(
                f"{type(self.taskset).__name__} has {len(self._tasks)} tasks, and none of number {number}."
            )
        return self._tasks[number]


@lru_cache(maxsize=8)
def load_tasks(name: str, config: str) -> LoadedTasks:
    """The tasks of a taskset with this configuration, which is JSON. Worker processes load it for themselves."""
    loaders = import_module("verifiers.v1.utils.loaders")
    try:
        kind = loaders.taskset_config_type(name)
        env = loaders.environment_class(name)
    except ModuleNotFoundError as error:
        missing = getattr(error.__cause__, "name", None)
        if missing is not None and missing != name.rsplit("/", 1)[-1].partition("@")[0].replace("-", "_").lower():
            raise InputError(f"{FAMILY}:{name} needs the package {missing}, which is not installed.") from error
        raise InputError(
            f"There is no taskset {name!r}: install the package that has it, or add its folder to PYTHONPATH."
        ) from error
    except (Exception, SystemExit) as error:
        raise InputError(f"{FAMILY}:{name} cannot be imported: {type(error).__name__}: {error}") from error
    if env.__name__ != "SingleAgentEnv":
        raise InputError(f"{FAMILY}:{name} has an environment of its own, {env.__name__}: {PLAY_ELSEWHERE}.")
    try:
        return LoadedTasks(loaders.load_taskset(kind.model_validate({**json.loads(config), "id": name})))
    except (Exception, SystemExit) as error:
        text = " ".join(str(error).split())
        raise InputError(f"{FAMILY}:{name} could not be loaded: {type(error).__name__}: {text}") from error


def check_playable(name: str, task: Any) -> None:
    """Raise `InputError` if the task needs more than a conversation with tools in this process."""
    decorators = import_module("verifiers.v1.utils.decorators")
    session = import_module("verifiers.v1.session")
    trace = import_module("verifiers.v1").Trace
    data = task.data
    if task.NEEDS_CONTAINER or data.image is not None or data.agent_user is not None:
        raise InputError(f"{name} needs a container, which is not supported: {PLAY_ELSEWHERE}.")
    if data.prompt is None:
        raise InputError(f"{name} has a task without a prompt, which a user would open: {PLAY_ELSEWHERE}.")
    if data.skills:
        raise InputError(f"{name} has skills for the program of an agent, which is not supported: {PLAY_ELSEWHERE}.")
    stops = (session.hook_boundary(hook, allow_trace=True) for hook in task.hooks("stop"))
    if decorators.discover_decorated(task, "intercept") or any(kind is not trace for kind in stops):
        raise InputError(f"{name} intercepts requests or responses, which is not supported: {PLAY_ELSEWHERE}.")


class VerifiersEnv(Env):
    """One task: a conversation with its tools, until a turn calls none; then the taskset scores the trace."""

    takes_any_completion = True

    def __init__(self, name: str, config: str, number: int, max_turns: int) -> None:
        self._name = name
        self._number = number
        self._max_turns = max_turns
        self._loaded = load_tasks(name, config)
        self._vf = import_module("verifiers.v1")
        self._task = self._loaded.task(number)
        self._life = SingleUse()
        self._stack = contextlib.AsyncExitStack()
        self._history: list[Any] = []
        """The messages so far, as verifiers has them."""
        self._turns = 0

    async def initial_observation(self) -> Observation:
        """Set the task up, and return its prompt and tools."""
        self._life.start()
        data, vf = self._task.data, self._vf
        trace_module = import_module("verifiers.v1.trace")
        runtimes = import_module("verifiers.v1.runtimes")
        task = trace_module.TraceTask(
            type=type(self._task).__name__, data=data, key=self._task.key, hash=self._task.hash
        )
        state = import_module("verifiers.v1.state").state_cls(type(self._task))()
        config = vf.AgentConfig(model="policy", runtime=runtimes.SubprocessConfig())
        self._trace = vf.Trace(task=task, state=state, agent=trace_module.AgentInfo(config=config))
        with self._failures("setup"):
            self._runtime = runtimes.make_runtime(runtimes.SubprocessConfig(), name=self._trace.id)
            self._stack.push_async_callback(self._runtime.stop)
            self._runtime.env = dict(self._task.runtime_env())
            await self._runtime.start()
            await self._invoke(self._task.setup)
            self._tools = TaskTools(f"{FAMILY}:{self._name}", state)
            await self._stack.enter_async_context(self._tools.open(self._loaded.taskset, self._task))
        prompt = data.prompt if isinstance(data.prompt, list) else [vf.UserMessage(content=data.prompt)]
        system = [] if data.system_prompt is None else [vf.SystemMessage(content=data.system_prompt)]
        return self._observation([*system, *prompt])

    async def step(self, completion: Completion) -> StepResult:
        """Add the turn to the trace, run the tools that it calls, and score the trace at its end."""
        self._life.require_active()
        self._turns += 1
        self._commit(completion)
        calls = completion.message.tool_calls if completion.termination is not Termination.LENGTH else ()
        stop = await self._stop_of_the_task()
        if stop is None and calls:
            results = [await self._run(call, number) for number, call in enumerate(calls)]
            observation = self._observation(results)
            if self._turns < self._max_turns:
                return StepResult(0.0, done=False, observation=observation, env_state=self._state())
            return await self._score(StopReason.MAX_TURNS, observation)
        if stop is None and completion.termination is Termination.LENGTH:
            stop = StopReason.MAX_TOKENS
        return await self._score(stop, None)

    def _commit(self, completion: Completion) -> None:
        vf, message = self._vf, completion.message
        calls = [
            vf.ToolCall(id=_call_id(call.id, number), name=call.name, arguments=call.arguments)
            for number, call in enumerate(message.tool_calls)
        ]
        finish = {Termination.LENGTH: "length", Termination.TOOL_CALLS: "tool_calls"}.get(
            completion.termination, "stop"
        )
        usage = completion.usage
        counted = usage and vf.Usage(prompt_tokens=usage.prompt_tokens, completion_tokens=usage.completion_tokens)
        said = vf.AssistantMessage(
            content=message.content or None, reasoning_content=message.reasoning, tool_calls=calls or None
        )
        response = vf.Response(id="", created=0, model="policy", message=said, finish_reason=finish, usage=counted)
        graph = import_module("verifiers.v1.graph")
        node = graph.prepare_turn(self._trace, list(self._history), self._tools.offered).commit(response)
        call = import_module("verifiers.v1.trace").ModelCall(
            node=node, model="policy", finish_reason=finish, usage=counted
        )
        self._trace.calls.append(call)
        self._history.append(said)

    async def _stop_of_the_task(self) -> str | None:
        session = import_module("verifiers.v1.session")
        for hook in self._task.hooks("stop"):
            with self._failures(hook.__name__):
                if await session.call_hook(hook, {self._vf.Trace: self._trace}):
                    return str(hook.__name__)
        return None

    async def _run(self, call: Any, number: int) -> Any:
        if (error := parse_error_of(call)) is not None:
            content: Any = f"Error: this call could not be read. {error}"
        else:
            content = await self._tools.call(call.name, json.loads(call.arguments))
        return self._vf.ToolMessage(tool_call_id=_call_id(call.id, number), content=content, name=call.name or None)

    async def _score(self, stop: str | None, observation: Observation | None) -> StepResult:
        self._life.end()
        trace = self._trace
        if observation is not None:  # messages that no turn answers are in the trace, too
            import_module("verifiers.v1.graph").prepare_turn(trace, list(self._history)).commit_prompt()
        trace.stop(stop or "agent_completed")
        with self._failures("finalize"):
            await self._invoke(self._task.finalize)
        with self._failures("scoring"):
            await self._task.score(trace, self._runtime)
        rewards = {name: reward for name, reward in trace.rewards.items() if reward is not None}
        return StepResult(
            reward=trace.reward,
            done=True,
            observation=observation,
            reward_data={name: reward.score for name, reward in rewards.items()},
            env_state=self._state(),
            extra={
                "reward_weights": {name: reward.weight for name, reward in rewards.items()},
                **({"info": trace.info} if trace.info else {}),
            },
            metrics={name: value for name, value in trace.metrics.items() if value is not None},
            stop_reason=stop,
        )

    def _observation(self, new: Sequence[Any]) -> Observation:
        to_chat = import_module("verifiers.v1.dialects.chat").message_to_wire
        self._history += new
        messages: list[Message] = [as_message(to_chat(message), "messages", []) for message in new]
        return Observation(messages, tools=self._tools.specs)

    def _state(self) -> dict[str, Any]:
        state: Mapping[str, Any] = {}
        with contextlib.suppress(Exception):  # a state may hold what cannot be dumped
            state = self._trace.state.model_dump(mode="json", exclude={"artifacts"})
        return {"turns": self._turns, **state}

    async def _invoke(self, hook: Any) -> None:
        decorators = import_module("verifiers.v1.utils.decorators")
        await decorators.invoke(hook, {"trace": self._trace, "runtime": self._runtime})

    @contextlib.contextmanager
    def _failures(self, what: str) -> Iterator[None]:
        try:
            yield
        except (EnvError, InputError):
            raise
        except Exception as error:
            message = f"{FAMILY}:{self._name} failed at {what}: {type(error).__name__}: {error}"
            raise EnvError(message) from error

    async def close(self) -> None:
        """Stop the tools, and remove the working directory."""
        await self._stack.aclose()


def _call_id(call_id: str | None, number: int) -> str:
    return call_id or f"call_{number}"


def _from_text(value: Any) -> Any:
    """An argument that is JSON text, such as that of a command line, as its value."""
    if isinstance(value, str):
        with contextlib.suppress(ValueError):
            return json.loads(value)
    return value
