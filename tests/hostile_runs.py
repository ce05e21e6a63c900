"""Runs that a stranger could make to use up a reader's time or memory, each with some good rollouts in it."""

import os
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import zstandard

from answers import write
from rolltrace.store.compression import seek_table
from rolltrace.store.create import create_run
from rolltrace.store.ledger import Ledger, encode_ledger
from rolltrace.trace.codec import add_checksum, utc_now
from segments import edit_run_info, rollout_line

GOOD = 3
"""How many good rollouts each run has, unless its `run.json` cannot be read."""
_FRAME = 16 << 20


class Size(NamedTuple):
    """How large the cases are."""

    unpacked: int
    """Bytes of line feeds in a small zstd file; 16 times as many zeros."""
    line: int
    """0 for none: it takes as much room on the disk."""
    info: int
    segments: int
    depths: tuple[int, ...]


SMALL = Size(unpacked=1 << 29, line=0, info=20 << 20, segments=200, depths=(500, 100_000))
FULL = Size(unpacked=4 << 30, line=300 << 20, info=100 << 20, segments=5_000, depths=(500, 900, 100_000))


def make_good_run(path: Path) -> Path:
    """A run of `GOOD` rollouts, closed."""
    with create_run(path) as writer:
        for index in range(GOOD):
            write(writer, index=index)
    return path


def hostile_cases(size: Size) -> dict[str, Callable[[Path], None]]:
    """By name, what makes a good run hostile."""
    nested = {
        f"config nested {depth:,} deep": lambda run, depth=depth: _nest_config(run, depth) for depth in size.depths
    }
    return {
        **nested,
        f"run.json of {size.info >> 20} MB": lambda run: edit_run_info(run, config={"x": [[]] * (size.info // 3)}),
        f"{size.unpacked >> 30 or 1} GB of line feeds in zstd": lambda run: _bomb(run, b"\n", size.unpacked),
        "the same in the ledger": lambda run: _bomb(run, b"\n", size.unpacked, "ledger"),
        f"{size.unpacked >> 26} GB of zeros in zstd": lambda run: _bomb(run, b"\0", size.unpacked << 4),
        f"{size.unpacked >> 26} GB of zeros in a sparse file": lambda run: _sparse(run, size.unpacked << 4),
        "short damaged lines in zstd": lambda run: _bomb(run, b"{}\n\n", size.unpacked),
        **({f"line of {size.line >> 20} MB": lambda run: _long_line(run, size.line)} if size.line else {}),
        "line nested 10,000 deep": lambda run: _nested_line(run, 10_000),
        "line nested 500 deep": lambda run: _nested_line(run, 500),
        f"{size.segments:,} small segments": lambda run: _many_segments(run, size.segments),
        f"{size.segments:,} ledgers, each continuing the last": lambda run: _many_ledgers(run, size.segments),
        "links in circles": _links,
        "pipes": _pipes,
    }


def _nest_config(run: Path, depth: int) -> None:
    text = (run / "run.json").read_bytes().partition(b',"crc"')[0]
    before, _, after = text.partition(b'"config":{}')
    (run / "run.json").write_bytes(
        add_checksum(before + b'"config":' + b'{"a":' * depth + b"1" + b"}" * depth + after + b"}")
    )


def _bomb(run: Path, data: bytes, length: int, folder: str = "rollouts") -> None:
    """A segment that unpacks to `length` bytes."""
    frame = zstandard.ZstdCompressor(level=3).compress(data * (_FRAME // len(data)))
    count = length // _FRAME
    (run / folder / "zz-000000.jsonl.zst").write_bytes(frame * count + seek_table([(len(frame), _FRAME)] * count))


def _sparse(run: Path, length: int) -> None:
    with (run / "rollouts" / "zz-000000.jsonl").open("wb") as file:
        file.truncate(length)
        file.seek(0, os.SEEK_END)
        file.write(b"\n" + rollout_line("last"))


def _long_line(run: Path, length: int) -> None:
    body = b'{"v":2,"id":"long","text":"%s"' % (b"x" * length)
    (run / "rollouts" / "zz-000000.jsonl").write_bytes(b'%b,"crc":"%08x"}\n' % (body, zlib.crc32(body)))


def _nested_line(run: Path, depth: int) -> None:
    line = rollout_line("nested").partition(b',"crc"')[0]
    for field in (b"env_args", b"task_data", b"logs", b"extra"):
        line = line.replace(b'"%s":{}' % field, b'"%s":%s' % (field, b'{"a":' * depth + b"[]" + b"}" * depth))
    (run / "rollouts" / "zz-000000.jsonl").write_bytes(add_checksum(line + b"}"))


def _many_segments(run: Path, count: int) -> None:
    for number in range(count):
        (run / "rollouts" / f"{number:032x}-000000.jsonl").write_bytes(rollout_line(f"r{number}", index=number))


def _many_ledgers(run: Path, count: int) -> None:
    for number in range(count):
        name = f"{number:012x}{0:020x}"
        before = (f"{number - 1:012x}{0:020x}",) if number else ()
        line = encode_ledger(Ledger(run="run", session=name, written_at=utc_now(), continues=before))
        (run / "ledger" / f"{name}.jsonl").write_bytes(line)


def _links(run: Path) -> None:
    (run / "rollouts" / "zz-000000.jsonl").symlink_to("zz-000000.jsonl")
    (run / "ledger" / "zz.jsonl").symlink_to("../ledger/zz.jsonl")
    (run / "blobs" / "up").symlink_to("..")
    (run / "cache").symlink_to("cache")
    (run / "scores").rmdir() if not any((run / "scores").iterdir()) else None
    (run / "scores").symlink_to("scores")


def _pipes(run: Path) -> None:
    for name in (
        "rollouts/zz-000000.jsonl",
        "scores/zz-000000.jsonl.zst",
        "ledger/zz.jsonl",
        "blobs/sha256-" + "0" * 64,
    ):
        os.mkfifo(run / name)
    os.mkfifo(run / "cache")
