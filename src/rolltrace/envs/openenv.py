"""The built-in family `openenv:URL`: environments of OpenEnv servers, with a WebSocket for each episode."""

import asyncio
import json
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any
from urllib.parse import urlsplit
from weakref import WeakKeyDictionary

import aiohttp

from rolltrace.envs.env import Env, Observation, SingleEnvGroup, SingleUse, StepResult
from rolltrace.envs.tasks import Tasks
from rolltrace.errors import EnvError, InputError
from rolltrace.policies.policy import Completion
from rolltrace.rollout_clock import pause_deadline
from rolltrace.seeds import derive_seed
from rolltrace.trace.message import Message
from rolltrace.trace.stop_reasons import StopReason

INSTRUCTION = (
    "You act in an environment. Answer each observation with one action, which is a JSON object of this schema, "
    "and nothing else:"
)
_SEEDS = 2**31
_CONNECT_SECONDS = 10.0
_CAPACITY_WAITS = (0.05, 0.1, 0.2, 0.4, 0.8, 1.6)
"""Seconds between attempts to open a session: a server needs a moment to free one that was closed."""

_slots: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[tuple[str, int], asyncio.Semaphore]] = WeakKeyDictionary()
"""The free sessions of each server, by event loop."""


class OpenEnvTasks(Tasks):
    """Episodes of an OpenEnv server; an action is a JSON object, or a text if the action has one required field."""

    def __init__(
        self,
        name: str,
        sessions: int = 1,
        max_turns: int = 50,
        instruction: str = INSTRUCTION,
        system: str | None = None,
        reset: dict[str, Any] | None = None,
        seconds: float = 60.0,
    ) -> None:
        """Choose a server by its address, such as `http://127.0.0.1:8000`.

        `sessions` is how many episodes are played at once: at most as many as the server serves. `reset` has further
        arguments of the environment's `reset`. `seconds` is how long one step may take.
        """
        if sessions < 1 or max_turns < 1:
            raise InputError(f"Expected sessions and max_turns of at least 1, got {sessions} and {max_turns}.")
        self.url = _checked_url(name)
        self.env = f"openenv:{self.url}"
        self.args: dict[str, Any] = {
            "sessions": sessions,
            "max_turns": max_turns,
            "instruction": instruction,
            "system": system,
        }
        self.args |= {"reset": reset or {}, "seconds": seconds}
        self.action_schema = read_action_schema(self.url)

    @staticmethod
    def names() -> list[str]:
        """There is no list of servers."""
        return []

    def builder(self, number: int, *, episodes: int, seed: int) -> SingleEnvGroup:
        """The group that plays the episode of this seed."""
        task_seed = derive_seed("openenv", self.url, seed, number) % _SEEDS
        return SingleEnvGroup(
            make_env=partial(OpenEnvEnv, self.url, self.action_schema, task_seed, **self.args),
            env=self.env,
            task=f"seed{seed}-{number}",
            episodes=episodes,
            tags=("openenv",),
            env_args=self.args,
            task_data={"number": number, "action_schema": self.action_schema},
            seed=task_seed,
        )


@dataclass
class OpenEnvEnv(Env):
    """One episode. The reward of a turn is the server's; an action that cannot be read has none, and play goes on."""

    url: str
    action_schema: dict[str, Any]
    seed: int
    sessions: int
    max_turns: int
    instruction: str
    system: str | None
    reset: Mapping[str, Any]
    seconds: float

    def __post_init__(self) -> None:
        self._life = SingleUse()
        self._session: _Session | None = None
        self._turns = 0

    async def initial_observation(self) -> Observation | StepResult:
        """Open a session, once one is free, and reset the environment."""
        self._life.start()
        self._session = _Session(self.url, self.sessions, self.seconds)
        answer = await self._session.open({"seed": self.seed, **self.reset})
        text = "\n\n".join([self.instruction, json.dumps(self.action_schema), _as_text(answer)])
        system = () if self.system is None else (Message("system", self.system),)
        observation = Observation((*system, Message("user", text)))
        if not answer.get("done"):
            return observation
        self._life.end()
        reward = answer.get("reward")
        return StepResult(_number(reward), done=True, observation=observation, reward_data=_reward_data(reward))

    async def step(self, completion: Completion) -> StepResult:
        """Send the action, and return what the server observes."""
        self._life.require_active()
        self._turns += 1
        action = parse_action(completion.message.content, self.action_schema)
        if action is None:
            return self._unreadable("I could not read an action: answer with one JSON object of the schema.")
        session = self._session
        if session is None:
            raise EnvError(f"The session of openenv:{self.url} was closed before its step.")
        answer = await session.ask("step", action)
        if "code" in answer:
            return self._unreadable(f"The action does not fit: {json.dumps(answer.get('errors'), default=str)}")
        state = await session.ask("state")
        is_last = self._turns >= self.max_turns
        done = bool(answer.get("done")) or is_last
        if done:
            self._life.end()
        reward = answer.get("reward")
        return StepResult(
            reward=_number(reward),
            done=done,
            observation=Observation((Message("user", _as_text(answer)),)),
            reward_data=_reward_data(reward),
            env_state=state,
            extra={"action": action, **_metadata(answer)},
            metrics={"unreadable": 0.0},
            stop_reason=StopReason.MAX_TURNS if is_last and not answer.get("done") else None,
        )

    def _unreadable(self, text: str) -> StepResult:
        is_last = self._turns >= self.max_turns
        if is_last:
            self._life.end()
        return StepResult(
            reward=0.0,
            done=is_last,
            observation=Observation((Message("user", text),)),
            metrics={"unreadable": 1.0},
            stop_reason=StopReason.MAX_TURNS if is_last else None,
        )

    async def close(self) -> None:
        """Close the session."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()


class _Session:
    """A WebSocket session of a server, which counts against its capacity."""

    def __init__(self, url: str, sessions: int, seconds: float) -> None:
        self._url = url
        self._sessions = sessions
        self._seconds = seconds
        self._slot: asyncio.Semaphore | None = None
        self._client: aiohttp.ClientSession | None = None
        self._socket: aiohttp.ClientWebSocketResponse | None = None

    async def open(self, reset: Mapping[str, Any]) -> dict[str, Any]:
        """Wait for a free session, open it, and reset the environment."""
        by_server = _slots.setdefault(asyncio.get_running_loop(), {})
        slot = by_server.setdefault((self._url, self._sessions), asyncio.Semaphore(self._sessions))
        with pause_deadline():
            await slot.acquire()
        self._slot = slot
        answer = await self._connect_and_reset(reset)
        for wait in _CAPACITY_WAITS:
            if answer.get("code") != "CAPACITY_REACHED":
                break
            with pause_deadline():
                await asyncio.sleep(wait)
            answer = await self._connect_and_reset(reset)
        if answer.get("code") == "CAPACITY_REACHED":
            raise EnvError(
                f"The OpenEnv server at {self._url} has no free session: let sessions={self._sessions} be at most what "
                f"it serves ({answer.get('max_sessions', 'its max_concurrent_envs')}). {answer.get('message')}"
            )
        if "code" in answer:
            raise EnvError(f"openenv:{self._url} could not be reset: {answer.get('message')} {answer.get('errors')}")
        return answer

    async def _connect_and_reset(self, reset: Mapping[str, Any]) -> dict[str, Any]:
        await self._disconnect()
        self._client = aiohttp.ClientSession()
        address = f"ws{self._url.removeprefix('http')}/ws"
        try:
            async with asyncio.timeout(_CONNECT_SECONDS):
                self._socket = await self._client.ws_connect(address, max_msg_size=0)
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            await self._disconnect()
            raise EnvError(_unreachable(self._url, error)) from error
        return await self.ask("reset", reset)

    async def ask(self, kind: str, data: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """The data of the answer; that of an error about the action or the capacity has a `code`."""
        if self._socket is None:
            raise EnvError(f"The session of openenv:{self._url} is not open.")
        try:
            async with asyncio.timeout(self._seconds):
                await self._socket.send_json({"type": kind} if data is None else {"type": kind, "data": data})
                answer = await self._socket.receive_json()
        except TimeoutError as error:
            raise EnvError(f"openenv:{self._url} did not answer {kind} within {self._seconds:g} seconds.") from error
        except (aiohttp.ClientError, OSError, TypeError, ValueError) as error:
            raise EnvError(f"openenv:{self._url} broke off at {kind}: {type(error).__name__}: {error}") from error
        answered: dict[str, Any] = answer["data"]
        is_error = answer["type"] == "error"
        if is_error and answered.get("code") not in ("VALIDATION_ERROR", "CAPACITY_REACHED"):
            raise EnvError(f"openenv:{self._url} failed at {kind}: {answered.get('code')}: {answered.get('message')}")
        return answered if is_error else {name: value for name, value in answered.items() if name != "code"}

    async def close(self) -> None:
        """Close it, and let another episode have it."""
        try:
            await self._disconnect()
        finally:
            slot, self._slot = self._slot, None
            if slot is not None:
                slot.release()

    async def _disconnect(self) -> None:
        socket, self._socket, client, self._client = self._socket, None, self._client, None
        if socket is not None:
            await socket.close()
        if client is not None:
            await client.close()


def read_action_schema(url: str) -> dict[str, Any]:
    """The JSON schema of the server's actions; raises `InputError` if there is no such server."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # as the sessions, not through a proxy
    try:
        with opener.open(f"{url}/schema", timeout=_CONNECT_SECONDS) as response:
            schema: dict[str, Any] = json.load(response)["action"]
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise InputError(_unreachable(url, error)) from error
    if schema.get("title") in ("Action", "CallToolAction", "ListToolsAction"):
        raise InputError(
            f"openenv:{url} has tools of MCP in place of actions, which is not supported: "
            "play it with verifiers, and record it with rolltrace.bridges.verifiers.record."
        )
    schema.get("properties", {}).pop("metadata", None)
    return schema


def parse_action(text: str, schema: Mapping[str, Any]) -> dict[str, Any] | None:
    """The action in a reply: a JSON object, also in a code fence, or the value of the only required field."""
    text = text.strip()
    if text.startswith("```") and text.endswith("```"):
        text = text.partition("\n")[2].removesuffix("```").strip()
    try:
        action = json.loads(text)
    except (ValueError, RecursionError):
        action = text
    if isinstance(action, dict):
        return action
    required = schema.get("required", ())
    return {required[0]: action} if len(required) == 1 and action != "" else None


def _checked_url(name: str) -> str:
    url = name if "://" in name else f"http://{name}"
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname or "@" in parts.netloc or parts.query:
        raise InputError(f"Expected openenv:URL with an address such as http://127.0.0.1:8000, got openenv:{name}.")
    return url.rstrip("/")


def _unreachable(url: str, error: BaseException) -> str:
    why = getattr(error, "reason", None) or error
    return f"There is no OpenEnv server at {url}: start it, or correct the address. ({type(error).__name__}: {why})"


def _as_text(answer: Mapping[str, Any]) -> str:
    """The observation for the policy, without metadata: its text if that is its only field, else JSON."""
    observation = answer.get("observation")
    if isinstance(observation, dict):
        observation = {name: value for name, value in observation.items() if name != "metadata"}
        values = list(observation.values())
        if len(values) == 1 and isinstance(values[0], str):
            return values[0]
    return json.dumps(observation, ensure_ascii=False)


def _metadata(answer: Mapping[str, Any]) -> dict[str, Any]:
    observation = answer.get("observation")
    inner = observation.get("metadata") if isinstance(observation, dict) else None
    metadata = {**(inner or {}), **(answer.get("metadata") or {})}
    return {"metadata": metadata} if metadata else {}


def _number(reward: Any) -> float:
    return 0.0 if reward is None else float(reward)


def _reward_data(reward: Any) -> dict[str, float]:
    return {} if reward is None else {"openenv_reward": float(reward)}
