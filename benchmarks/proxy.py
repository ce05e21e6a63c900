"""What `rolltrace proxy` adds to a stream: time to the first byte and for each chunk, and the throughput at saturation.

Direct and proxied requests alternate in one run. Server, proxy and client are processes of their own on one machine.
"""

import asyncio
import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import aiohttp
import measure
from aiohttp import web

CHUNKS = 50
GAP_SECONDS = 0.02
"""Between two chunks of a stream, as of a model that writes fifty tokens a second."""
_BODY = {"model": "m", "messages": [{"role": "user", "content": "What is 17 + 25? " * 20}]}


async def answer(request: web.Request) -> web.StreamResponse:
    """The server: chunks with the time at which each was sent, or one answer at once."""
    body = await request.json()
    if not body.get("stream"):
        choice = {"index": 0, "message": {"role": "assistant", "content": "42"}, "finish_reason": "stop"}
        return web.json_response({"id": "x", "choices": [choice]})
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    for _ in range(CHUNKS):
        text = f'{{"choices": [{{"index": 0, "delta": {{"content": "{time.perf_counter()} "}}}}]}}'
        await response.write(f"data: {text}\n\n".encode())
        await asyncio.sleep(GAP_SECONDS)
    await response.write(b"data: [DONE]\n\n")
    return response


def serve() -> None:
    """Serve in this process, and print the address."""

    async def main() -> None:
        app = web.Application()
        app.router.add_post("/v1/chat/completions", answer)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0, backlog=2_048).start()
        print(f"http://127.0.0.1:{runner.addresses[0][1]}/v1", flush=True)
        await asyncio.Event().wait()

    asyncio.run(main())


@contextlib.contextmanager
def started(*words: str) -> Iterator[tuple[str, int]]:
    """A process that prints its address: the address, and its id."""
    command = [sys.executable, *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:  # noqa: S603
        try:
            assert process.stdout is not None  # noqa: S101 - it is a pipe
            yield process.stdout.readline().strip(), process.pid
        finally:
            process.terminate()
            process.wait()


async def stream(client: aiohttp.ClientSession, address: str, delay: float) -> tuple[float, list[float]]:
    """The time to the first byte, and the delay of each chunk, in milliseconds."""
    await asyncio.sleep(delay)
    began, late = time.perf_counter(), []
    first = 0.0
    async with client.post(f"{address}/chat/completions", json={**_BODY, "stream": True}) as response:
        async for line in response.content:
            now = time.perf_counter()
            first = first or now - began
            if b'"content": "' in line:
                late.append(1000 * (now - float(line.split(b'"content": "')[1].split(b" ")[0])))
    return 1000 * first, late


async def latencies(addresses: Sequence[str], streams: int, rounds: int) -> list[tuple[list[float], list[float]]]:
    """For each address, the times to the first byte and the delays of chunks; the addresses take turns.

    The streams of a round begin one after the other.
    """
    times: list[tuple[list[float], list[float]]] = [([], []) for _ in addresses]
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as client:
        for number in range(rounds + 1):
            for (first, late), address in zip(times, addresses, strict=True):
                delays_of_start = [CHUNKS * GAP_SECONDS * place / streams for place in range(streams)]
                for one, delays in await asyncio.gather(*(stream(client, address, wait) for wait in delays_of_start)):
                    if number:  # the first round opens connections
                        first.append(one)
                        late += delays
    return times


async def throughput(address: str, requests: int, concurrency: int) -> float:
    """Requests without streaming, as many a second as possible."""
    left = iter(range(requests))
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as client:

        async def ask() -> None:
            for _ in left:
                async with client.post(f"{address}/chat/completions", json=_BODY) as response:
                    await response.read()

        began = time.perf_counter()
        await asyncio.gather(*(ask() for _ in range(concurrency)))
    return requests / (time.perf_counter() - began)


def cpu_seconds(process: int) -> float:
    """The CPU time of a process."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measure_all(streams: int, rounds: int, requests: int) -> dict[str, list[dict[str, Any]]]:
    """Measures both ways, at a load below the proxy's capacity, and at saturation."""
    with tempfile.TemporaryDirectory() as folder, started(__file__, "--serve") as (server, _):
        words = ("-m", "rolltrace", "proxy", "--upstream", server, "--out", f"{folder}/run")
        with started(*words) as (proxy, process):
            before, began = cpu_seconds(process), time.perf_counter()
            direct, proxied = asyncio.run(latencies((server, proxy), streams, rounds))
            share = (
                2 * (cpu_seconds(process) - before) / (time.perf_counter() - began)
            )  # half of the time is the server's
            rates = [asyncio.run(throughput(address, requests, 64)) for address in (server, proxy)]
    rows = []
    for name, place in (("first byte", 0), ("a chunk", 1)):
        row: dict[str, Any] = {"ms": name}
        for fraction in (0.5, 0.99):
            ways = [measure.percentile(times[place], fraction) for times in (direct, proxied)]
            row |= {f"p{fraction * 100:.0f} direct": ways[0], f"p{fraction * 100:.0f} proxied": ways[1]}
        rows.append(row)
    return {
        f"{streams} streams at once, {100 * share:.0f} % of a core for the proxy": rows,
        "Requests a second at saturation, 64 at once": [
            {"direct": rates[0], "proxied": rates[1], "times": rates[1] / rates[0]}
        ],
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print tables."""
    parser = measure.parser(__doc__)
    parser.add_argument("--streams", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--requests", type=int, default=5_000)
    parser.add_argument("--serve", action="store_true", help="only serve, and print the address")
    options = parser.parse_args(arguments)
    if options.serve:
        serve()
        return
    if options.quick:
        options.streams, options.rounds, options.requests = 2, 1, 20
    tables = measure_all(options.streams, options.rounds, options.requests)
    report = {
        "benchmark": "proxy", **measure.machine(), "figures": tables,
        "parameters": {"streams": options.streams, "rounds": options.rounds, "requests": options.requests},
    }  # fmt: skip
    measure.print_report(report, tables, options.json)


if __name__ == "__main__":
    main()
