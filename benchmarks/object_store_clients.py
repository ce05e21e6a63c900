"""Compares obstore and s3fs (fsspec) on the same work against a local S3 server, each in a process of its own.

Needs: pip install obstore s3fs "moto[server]". It prints CPU seconds of the client, and wall seconds for imports.
"""

import json
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import distribution, requires
from pathlib import Path

OBJECTS = 1_000
READS = 200
PUT_BYTES = 64 << 20
THREADS = 16
FORK_SECONDS = 15
SERVER = "from moto.server import ThreadedMotoServer as S; s = S(port=0, verbose=False); s.start(); "
SERVER += "print(s.get_host_and_port()[1], flush=True); import sys; sys.stdin.read()"


class Obstore:
    """The calls of obstore."""

    packages = ("obstore",)

    def __init__(self, endpoint: str) -> None:
        import obstore
        from obstore.store import S3Store

        self._api = obstore
        self._store = S3Store("bench", endpoint=endpoint, client_options={"allow_http": True})

    def put(self, key: str, data: bytes) -> None:
        """Store an object."""
        self._api.put(self._store, key, data)

    def read(self, key: str, start: int, length: int) -> bytes:
        """Read a range."""
        return bytes(self._api.get_range(self._store, key, start=start, length=length))

    def count(self, folder: str) -> int:
        """Count the objects of a folder."""
        return len(self._api.list_with_delimiter(self._store, folder)["objects"])


class S3fs:
    """The calls of s3fs."""

    packages = ("s3fs",)

    def __init__(self, endpoint: str) -> None:
        import s3fs

        self._api = s3fs.S3FileSystem(endpoint_url=endpoint, skip_instance_cache=True)

    def put(self, key: str, data: bytes) -> None:
        """Store an object."""
        self._api.pipe_file(f"bench/{key}", data)

    def read(self, key: str, start: int, length: int) -> bytes:
        """Read a range."""
        return self._api.cat_file(f"bench/{key}", start=start, end=start + length)  # type: ignore[no-any-return]

    def count(self, folder: str) -> int:
        """Count the objects of a folder."""
        return len(self._api.ls(f"bench/{folder}", detail=True, refresh=True))


CLIENTS = {"obstore": Obstore, "s3fs": S3fs}


def measure(name: str, endpoint: str) -> dict[str, float | str]:
    """CPU seconds of this process for each kind of work, by one client."""
    began = time.perf_counter()
    client = CLIENTS[name](endpoint)
    result: dict[str, float | str] = {"import and connect, wall s": time.perf_counter() - began}
    data = secrets.token_bytes(PUT_BYTES)
    client.put("one", b"x" * 100_000)

    def cpu(what: str, work: Callable[[], object]) -> None:
        before, start = time.process_time(), time.perf_counter()
        work()
        result[f"{what}, CPU s"] = time.process_time() - before
        result[f"{what}, wall s"] = time.perf_counter() - start

    def read_in_threads() -> None:
        with ThreadPoolExecutor(THREADS) as pool:
            list(pool.map(lambda at: client.read("one", at, 4096), range(READS)))

    cpu(f"list {OBJECTS} objects", lambda: client.count("many"))
    cpu(f"{READS} range reads", lambda: [client.read("one", at, 4096) for at in range(READS)])
    cpu(f"{READS} range reads in {THREADS} threads", read_in_threads)
    cpu(f"put {PUT_BYTES >> 20} MB", lambda: client.put("large", data))
    result["a new client in a forked process"] = _after_fork(name, endpoint)
    return result


def _after_fork(name: str, endpoint: str) -> str:
    child = os.fork()
    if child == 0:
        signal.alarm(FORK_SECONDS)
        CLIENTS[name](endpoint).put("forked", b"x")
        os._exit(0)
    return "works" if os.waitpid(child, 0)[1] == 0 else "hangs or fails"


def installed_bytes(packages: tuple[str, ...]) -> int:
    """The size of packages with everything that they require."""
    seen: set[str] = set()
    rest = list(packages)
    total = 0
    while rest:
        name = rest.pop().lower()
        if name in seen:
            continue
        seen.add(name)
        try:
            files = distribution(name).files or []
        except ModuleNotFoundError:
            continue
        total += sum(Path(str(file.locate())).stat().st_size for file in files if Path(str(file.locate())).is_file())
        rest += [_name(one) for one in requires(name) or [] if "extra ==" not in one]
    return total


def _name(requirement: str) -> str:
    return "".join(letter if letter.isalnum() or letter in "._-" else " " for letter in requirement).split()[0]


def main() -> None:
    """Start a server, fill it, and measure each client."""
    if len(sys.argv) > 1:
        print(json.dumps(measure(sys.argv[1], sys.argv[2])))
        return
    settings = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_REGION": "us-east-1"}
    os.environ.update(settings, AWS_DEFAULT_REGION="us-east-1")
    server = subprocess.Popen(  # noqa: S603 - this interpreter
        [sys.executable, "-c", SERVER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert server.stdout is not None  # noqa: S101 - it was asked for
        endpoint = f"http://127.0.0.1:{int(server.stdout.readline())}"
        filler = S3fs(endpoint)
        filler._api.mkdir("bench")
        for number in range(OBJECTS):
            filler.put(f"many/{number:04d}", b"x")
        results = {
            name: json.loads(subprocess.check_output([sys.executable, __file__, name, endpoint], text=True))  # noqa: S603 - this script
            for name in CLIENTS
        }
    finally:
        server.terminate()
    for name, kind in CLIENTS.items():
        results[name]["installed MB"] = installed_bytes(kind.packages) / 1e6
    print(f"{'':45}" + "".join(f"{name:>16}" for name in results))
    for what in results["obstore"]:
        values = (results[name][what] for name in results)
        print(f"{what:45}" + "".join(f"{one:>16}" if isinstance(one, str) else f"{one:>16.3f}" for one in values))


if __name__ == "__main__":
    main()
