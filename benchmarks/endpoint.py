"""How many requests a second the endpoint policy makes of a server that takes 50 ms, beside the bare `openai` package.

Rolltrace plays whole rollouts through the runner and records them in full; the package only asks.
"""

import asyncio
import contextlib
import gc
import itertools
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import measure

from rolltrace.envs.env import EnvGroupBuilder
from rolltrace.envs.problem_env import ProblemGroup
from rolltrace.jobs.gc_threshold import raised_gc_threshold
from rolltrace.policies.endpoint.endpoint_policy import EndpointPolicy
from rolltrace.policies.policy import Request
from rolltrace.rollout.group_runner import GroupResult
from rolltrace.rollout.runner import Runner
from rolltrace.store.create import create_run
from rolltrace.store.reader import RunReader
from rolltrace.store.writer import RunWriter
from rolltrace.trace.message import Message
from rolltrace.trace.stop_reasons import Status

MODEL = "fifty-milliseconds"
REPLY = "Both numbers are small, so I add them in my head.\nAnswer: 7"
_NEVER = 3600.0
_PARTS = 5
_HEAD_END = b"\r\n\r\n"


class FakeChatServer(asyncio.Protocol):
    """A minimal server: reads requests of a stated length, and answers each a little later."""

    received = 0
    """Requests so far, of all connections."""

    def __init__(self, latency: float, tell_at: int) -> None:
        body = json.dumps(
            {
                "id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": MODEL,
                "choices": [
                    {"index": 0, "message": {"role": "assistant", "content": REPLY}, "finish_reason": "stop"}
                ],
                "usage": {"prompt_tokens": 31, "completion_tokens": 17, "total_tokens": 48},
            }
        ).encode()  # fmt: skip
        head = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        self._answer = head.encode() + body
        self._latency = latency
        self._tell_at = tell_at
        self._received = b""
        self._transport: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client connects."""
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Answers each complete request."""
        self._received += data
        while (end := self._received.find(_HEAD_END)) >= 0:
            head = self._received[:end].lower()
            _, _, length = head.partition(b"content-length:")
            whole = end + len(_HEAD_END) + int(length.split(b"\r\n", 1)[0] or 0)
            if len(self._received) < whole:
                return
            self._received = self._received[whole:]
            asyncio.get_running_loop().call_later(self._latency, self._reply)
            FakeChatServer.received += 1
            if FakeChatServer.received == self._tell_at:
                print("full", flush=True)

    def _reply(self) -> None:
        if not self._transport.is_closing():
            self._transport.write(self._answer)


async def serve(latency: float, tell_at: int) -> None:
    """Prints the port, answers until standard input is closed, and reports when this many requests are waiting."""
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: FakeChatServer(latency, tell_at), "127.0.0.1", 0, backlog=2048)
    print(server.sockets[0].getsockname()[1], flush=True)
    await loop.run_in_executor(None, sys.stdin.read)
    server.close()


@contextlib.contextmanager
def server(latency: float, tell_at: int = 0) -> Iterator[tuple[str, Callable[[], str]]]:
    """The base URL of a server in its own process, and a function that reads a line of its output."""
    words = [sys.executable, __file__, "--serve", str(latency), str(tell_at)]
    process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)  # noqa: S603 - ours
    with process:
        hear = process.stdout.readline  # type: ignore[union-attr]
        yield f"http://127.0.0.1:{hear().strip()}/v1", hear
        process.stdin.close()  # type: ignore[union-attr]


def problem(number: int) -> EnvGroupBuilder:
    """A single question of a built-in environment."""
    return ProblemGroup(
        env="problem", task=str(number), question=f"What is {number} + 1?", reference="7", episodes=1, seed=number
    )


async def play(run: RunWriter, policy: EndpointPolicy, numbers: Iterator[int], in_flight: int) -> int:
    """Plays all groups, and drops each when it has ended."""
    results: AsyncIterator[GroupResult] = Runner(policy, sink=run, concurrency=in_flight).play(map(problem, numbers))
    return sum([len(group.rewards) - group.rewards.count(None) async for group in results])


async def with_rolltrace(url: str, requests: int, in_flight: int) -> int:
    """Plays this many rollouts of one turn, recorded in full; returns how many have a reward."""
    policy = EndpointPolicy(MODEL, url, max_in_flight=in_flight)
    with tempfile.TemporaryDirectory() as folder, create_run(Path(folder) / "run", trace="full") as run:
        with raised_gc_threshold():  # as `rolltrace.play` and `rolltrace run` do
            played = await play(run, policy, iter(range(requests)), in_flight)
        await policy.close()
    return played


async def with_policy(url: str, requests: int, in_flight: int) -> int:
    """Makes this many requests with the endpoint policy alone, without a runner; returns how many succeeded."""
    policy = EndpointPolicy(MODEL, url, max_in_flight=in_flight)

    async def ask(number: int) -> bool:
        prompt = (Message("user", f"What is {number} + 1?"),)
        return (await policy.complete(Request(messages=prompt, seed=number))).message.content == REPLY

    answered = await _in_flight(ask, requests, in_flight)
    await policy.close()
    return answered


async def with_package(url: str, requests: int, in_flight: int) -> int:
    """Makes this many requests with the bare package; returns how many succeeded."""
    from openai import AsyncOpenAI

    client = AsyncOpenAI(base_url=url, api_key="none", max_retries=0)

    async def ask(number: int) -> bool:
        prompt = [{"role": "user", "content": f"What is {number} + 1?"}]
        reply = await client.chat.completions.create(model=MODEL, messages=prompt, seed=number)  # type: ignore[call-overload]
        return bool(reply.choices[0].message.content == REPLY)

    answered = await _in_flight(ask, requests, in_flight)
    await client.close()
    return answered


async def _in_flight(ask: Callable[[int], Awaitable[bool]], requests: int, in_flight: int) -> int:
    """Makes this many requests with bounded concurrency; returns how many succeeded."""
    numbers = iter(range(requests))

    async def keep_asking() -> int:
        return sum([await ask(number) for number in numbers])

    return sum(await asyncio.gather(*(keep_asking() for _ in range(in_flight))))


Client = Callable[[str, int, int], Awaitable[int]]


def once(client: Client, url: str, requests: int, in_flight: int) -> tuple[float, float]:
    """Requests a second, and CPU milliseconds of each in this process."""
    gc.collect()
    cpu, wall = time.process_time(), time.perf_counter()
    answered = asyncio.run(client(url, requests, in_flight))  # type: ignore[arg-type]
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    if answered != requests:
        raise SystemExit(f"Expected {requests} answers, got {answered}.")
    return requests / wall, 1000 * cpu / requests


def resident_megabytes() -> float:
    """The resident memory of this process, or its peak if the system does not report the current one."""
    with contextlib.suppress(OSError):
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / (1 << 20)
    return measure.peak_megabytes()


async def memory(url: str, rollouts: int, in_flight: int) -> list[dict[str, Any]]:
    """The resident memory after each part of one long play."""
    rows = []
    policy = EndpointPolicy(MODEL, url, max_in_flight=in_flight)
    with tempfile.TemporaryDirectory() as folder, create_run(Path(folder) / "run", trace="full") as run:
        numbers = iter(range(rollouts))
        for part in range(1, _PARTS + 1):
            await play(run, policy, itertools.islice(numbers, rollouts // _PARTS), in_flight)
            rows.append({"rollouts": part * (rollouts // _PARTS), "resident MB": round(resident_megabytes(), 1)})
        await policy.close()
    return rows


def stop(in_flight: int) -> dict[str, Any]:
    """The time that the command takes to end after Ctrl-C with many requests waiting, and what it has recorded."""
    with tempfile.TemporaryDirectory() as folder, server(_NEVER, tell_at=in_flight) as (url, hear):
        words = [sys.executable, "-m", "rolltrace", "run", "arithmetic", "--policy", f"openai:{MODEL}@{url}"]
        words += ["--groups", str(in_flight), "--group-size", "1", "--concurrency", str(in_flight), "--out", "run"]
        process = subprocess.Popen(words, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)  # noqa: S603
        hear()
        started = time.perf_counter()
        process.send_signal(signal.SIGINT)
        process.wait()
        seconds = time.perf_counter() - started
        statuses = [rollout.status for rollout in RunReader(Path(folder) / "run").rollouts()]
    return {
        "in flight": in_flight,
        "seconds to the end": round(seconds, 2),
        "recorded": len(statuses),
        "cancelled": statuses.count(Status.CANCELLED),
        "exit code": process.returncode,
    }


def _package_version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def compare(url: str, options: Any) -> list[dict[str, Any]]:
    """Measures all clients in turn, in rounds; returns a row for each that is installed, with ratios to the package."""
    clients: dict[str, tuple[Client, int]] = {
        "rolltrace, Runner": (with_rolltrace, options.requests),
        "rolltrace, policy alone": (with_policy, options.requests),
    }
    if _package_version("openai") is not None:
        clients["openai"] = (with_package, options.package_requests)
    measured: dict[str, list[tuple[float, float]]] = {name: [] for name in clients}
    for number, (name, (client, requests)) in itertools.product(range(options.rounds + 1), clients.items()):
        taken = once(client, url, requests, options.in_flight)
        if number > 0:  # the first round warms up
            measured[name].append(taken)
    rates = {name: measure.median([rate for rate, _ in rounds]) for name, rounds in measured.items()}
    costs = {name: measure.median([cpu for _, cpu in rounds]) for name, rounds in measured.items()}
    return [
        {
            "client": name,
            "requests per second": round(rates[name]),
            "CPU ms per request": round(costs[name], 3),
            "× openai, requests per second": round(rates[name] / rates["openai"], 2) if "openai" in rates else None,
            "× openai, requests per CPU second": round(costs["openai"] / costs[name], 2) if "openai" in costs else None,
        }
        for name in clients
    ]


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, interleaved, and print medians."""
    parser = measure.parser(__doc__)
    parser.add_argument("--requests", type=int, default=5_000, help="of Rolltrace in each round")
    parser.add_argument("--package-requests", type=int, default=1_500, help="of the package in each round")
    parser.add_argument("--rollouts", type=int, default=50_000, help="for the figures of memory")
    parser.add_argument("--in-flight", type=int, default=500)
    parser.add_argument("--latency", type=float, default=0.05, help="of the server, in seconds")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--serve", nargs=2, metavar=("SECONDS", "N"), help="only answer, as a measurement's server")
    options = parser.parse_args(arguments)
    if options.serve is not None:
        asyncio.run(serve(float(options.serve[0]), int(options.serve[1])))
        return
    if options.quick:
        options.requests, options.package_requests, options.rollouts = 40, 20, 50
        options.in_flight, options.latency, options.rounds = 10, 0.001, 1
    measure.warm_allocator()
    with server(options.latency) as (url, _):
        # Memory first, so that what the package leaves behind does not hide what a long play takes.
        held = asyncio.run(memory(url, options.rollouts, options.in_flight))
        speed = compare(url, options)
    stopped = [stop(options.in_flight) for _ in range(options.rounds)]
    names = ("requests", "package_requests", "rollouts", "in_flight", "latency", "rounds")
    report = {
        "benchmark": "endpoint",
        **measure.machine(),
        "parameters": {name: getattr(options, name) for name in names},
        "target": {"× openai, requests per second": 8, "seconds to the end": 2},
        "figures": {"speed": speed, "memory": held, "stop": stopped},
    }
    report["versions"] |= {name: _package_version(name) for name in ("aiohttp", "openai")}
    milliseconds = round(1000 * options.latency)
    title = f"Endpoint: {options.in_flight} in flight, server of {milliseconds} ms, medians of {options.rounds} rounds"
    tables = {title: speed, "Memory of one long play": held, "Ctrl-C while nothing is answered": stopped}
    measure.print_report(report, tables, options.json)


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        main()
