"""A real S3 server on loopback, behind a proxy that counts requests and injects faults."""

import asyncio
import io
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import aiohttp
from aiohttp import web
from yarl import URL

from loopback import serving
from rolltrace.store.create import create_run
from rolltrace.store.object_files import ObjectFiles

BUCKET = "traces"
_SERVER = (
    "import sys; from moto.server import ThreadedMotoServer as S; s = S(port=0, verbose=False); s.start(); "
    "print(s.get_host_and_port()[1], flush=True); sys.stdin.read(); import os; os._exit(0)"
)


class Store:
    """The server and its proxy."""

    def __init__(self, server: str) -> None:
        self.server = server
        self.endpoint = ""
        self.requests: list[tuple[str, str, int]] = []
        """Method, path, and the bytes of body and answer."""
        self.fault: Callable[[str, str, int], str] = lambda method, path, number: ""
        """The fault of a request, by its method, path and number: 403, 500, slow, partial, lost, after, or none."""

        self.on_stored: Callable[[str], None] = lambda path: None
        """Called with the path of an object that the server has stored, before the client gets the answer."""

    def make_bucket(self) -> None:
        """Make an empty bucket."""
        request = urllib.request.Request(f"{self.server}/{BUCKET}", data=b"", method="PUT")
        urllib.request.urlopen(request, timeout=60).close()

    def upload(self, folder: Path, key: str) -> str:
        """Store the files of a run; returns its address."""
        files = ObjectFiles(f"s3://{BUCKET}/{key}")
        for path in folder.rglob("*"):
            if path.is_file():
                files.put(path.relative_to(folder).as_posix(), path.read_bytes())
        self.requests.clear()
        return str(files.path)

    async def forward(self, request: web.Request) -> web.StreamResponse:
        """Forward a request, with its fault."""
        number = len(self.requests)
        body = await request.read()
        fault = self.fault(request.method, request.path, number)
        self.requests.append((request.method, request.path, len(body)))
        if fault in ("403", "500"):
            return web.Response(status=int(fault))
        if fault == "lost":
            assert request.transport is not None
            request.transport.abort()
            return web.Response()
        headers = {name: value for name, value in request.headers.items() if name not in ("Host", "Content-Length")}
        url = URL(self.server + request.raw_path, encoded=True)
        async with (
            aiohttp.ClientSession(auto_decompress=False) as session,
            session.request(request.method, url, data=io.BytesIO(body) if body else None, headers=headers) as answer,
        ):
            data = await answer.read()
            kept = {name: value for name, value in answer.headers.items() if name.lower() not in _HOP_HEADERS}
            status = answer.status
        self.requests[number] = request.method, request.path, len(body) + len(data)
        if request.method == "PUT" and status == 200:
            self.on_stored(request.path)
        if fault == "slow":
            await asyncio.sleep(0.3)
        if fault == "after":  # the server has done it, and the client does not get the answer
            assert request.transport is not None
            request.transport.abort()
            return web.Response()
        if fault == "partial" and len(data) > 1:
            response = web.StreamResponse(status=status, headers={**kept, "Content-Length": str(len(data))})
            await response.prepare(request)
            await response.write(data[: len(data) // 2])
            assert request.transport is not None
            request.transport.close()
            return response
        if request.method == "HEAD":
            kept["Content-Length"] = answer.headers.get("Content-Length", "0")
        return web.Response(status=status, headers=kept, body=data)


_HOP_HEADERS = {"content-length", "transfer-encoding", "connection", "date", "server"}


@contextmanager
def s3_store() -> Iterator[Store]:
    """A server with an empty bucket, and its proxy; both are gone afterwards."""
    pipe = subprocess.PIPE
    command = [sys.executable, "-W", "ignore", "-c", _SERVER]
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            assert process.stdout is not None
            store = Store(f"http://127.0.0.1:{int(process.stdout.readline())}")
            store.make_bucket()
            with serving(store.forward) as endpoint:
                store.endpoint = f"http://{urlsplit(endpoint).netloc}"
                yield store
        finally:
            process.kill()


def record(path, rollouts: int, text: str = "1 + 1?", **options) -> list[str]:
    """Record some rollouts; returns their ids."""
    ids = []
    with create_run(path, **options) as run:
        for index in range(rollouts):
            with run.rollout(
                env="sums", task="t", group=f"g{index // 4}", index=index % 4, iteration=index // 8
            ) as one:
                prompt = [{"role": "user", "content": text}]
                one.step(prompt=prompt, response={"role": "assistant", "content": "2"}, reward=index % 2)
            ids.append(one.id)
    return ids
