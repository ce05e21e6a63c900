"""What a run in an object store costs at scale: files, bytes, requests and money, and what breaks first.

One worker is simulated with the real writer (`store/upload.py`, segments, ledger, names) on a fake clock and a store
without data; workers do not depend on each other, so many cost as much as one times their number. A reader is simulated
with the real rules for making and merging parts. docs/scale.md explains the tables.
"""

import contextlib
import math
import operator
import os
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple
from unittest import mock

import measure
import msgspec

from rolltrace.query.part_writer import BATCH_BYTES
from rolltrace.query.run_tables import is_large, parts_to_merge
from rolltrace.store import object_files
from rolltrace.store.disk_writer import SYNC_SECONDS
from rolltrace.store.id_blocks import IDS_FILE, write_id_blocks
from rolltrace.store.layout import LEDGER, ROLLOUTS, SegmentName, ledger_name
from rolltrace.store.ledger import LedgerCounter
from rolltrace.store.object_address import ObjectAddress
from rolltrace.store.parts import MAX_INFO_BYTES, Part, PartInfo, RowStats
from rolltrace.store.recording import Recording
from rolltrace.store.upload import UploadingDiskWriter
from rolltrace.store.write_queue import QueuedLine
from rolltrace.trace.ids import new_id

DAY = 86_400
PAGE_KEYS = 1_000
"""How many names one LIST request returns (S3)."""
MULTIPART_BYTES = 5 << 20
"""Larger objects are uploaded in pieces of this size, with a request before and one after (obstore)."""
LIST_SECONDS = 0.1
"""Assumed: how long one page takes; a page names the next, so they come one after the other."""
MAX_LIST_SECONDS = 5.0
"""A reader that lists for longer no longer sees a growing run within seconds."""
MAX_PUTS = 3_500
"""PUT requests per second that S3 promises for a prefix."""
READER_ROLLOUTS = 30_000
"""Assumed: rollouts per second that one machine makes tables of (docs/performance.md)."""
PRICES = {"PUT": 0.005 / 1000, "LIST": 0.005 / 1000, "GET": 0.0004 / 1000, "GB-month": 0.023}
"""Dollars: list prices of S3 Standard in us-east-1 as published in 2025. DELETE is free."""
POLL_SECONDS = 2.0
AGES = ((600.0, 1_200.0), (3_600.0, 4_800.0), (20_000.0, DAY - 6_000.0))
"""Ages of a session in seconds at which it is simulated, and for how much of the day each stands."""
_MOST_SECONDS = 3_600
_LINES = 64


class SimulatedStore:
    """An object store without data: sizes by name, and counts of requests. It stands in for the package obstore."""

    exceptions = SimpleNamespace(
        **{
            name: type(name, (Exception,), {})
            for name in ("BaseError", "AlreadyExistsError", "PermissionDeniedError", "UnauthenticatedError")
        }
    )
    store = SimpleNamespace(from_url=lambda *_, **__: None)

    def __init__(self) -> None:
        self.sizes: dict[str, int] = {}
        self.requests: Counter[tuple[str, str]] = Counter()
        """By method, and the folder of a run."""
        self.uploaded: Counter[str] = Counter()
        """Bytes by folder."""

    def put(self, _: Any, key: str, data: bytes | Path, **__: Any) -> None:
        """Store an object."""
        size = data.stat().st_size if isinstance(data, Path) else len(data)
        self._count("PUT", key, 1 if size <= MULTIPART_BYTES else math.ceil(size / MULTIPART_BYTES) + 2)
        self.sizes[key] = size
        self.uploaded[key.split("/")[-2]] += size

    def head(self, _: Any, key: str) -> dict[str, int]:
        """The size of an object."""
        self._count("GET", key)
        return {"size": self.sizes[key]}

    def delete(self, _: Any, key: str) -> None:
        """Delete an object."""
        self._count("DELETE", key)
        del self.sizes[key]

    def list_with_delimiter(self, _: Any, prefix: str | None) -> dict[str, Any]:
        """The objects of a folder, by as many requests as there are pages."""
        keys = [key for key in self.sizes if key.startswith(f"{prefix}/")]
        self._count("LIST", f"{prefix}/", pages(len(keys)))
        now = datetime.now(UTC)
        objects = [{"path": key, "size": self.sizes[key], "last_modified": now, "e_tag": None} for key in keys]
        return {"common_prefixes": [], "objects": objects}

    def keys(self, folder: str) -> list[str]:
        """The names in a folder of a run."""
        return [key for key in self.sizes if key.split("/")[-2] == folder]

    def _count(self, method: str, key: str, count: int = 1) -> None:
        self.requests[method, key.split("/")[-2]] += count

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        """Let everything in this process that uses an object store use this one, with a spool of its own."""
        memory = Path("/dev/shm")  # noqa: S108 - a folder in memory, if there is one
        with (
            tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder,
            mock.patch.object(object_files, "_client", return_value=self),
            mock.patch.object(object_files, "_connect", return_value=None),
            mock.patch.dict(object_files._listings, clear=True),
            mock.patch.dict(os.environ, {"XDG_CACHE_HOME": folder}),
        ):
            yield


class WorkerCosts(NamedTuple):
    """What one worker costs in a day."""

    puts: float
    ledger_puts: float
    segments: float
    recorded: float
    """Bytes of lines."""
    uploaded: float
    """Bytes of segments, each counted as often as it was uploaded."""
    ledger_uploaded: float
    """Bytes of ledgers."""
    stored: float
    stale_seconds: float
    """How long the line that waited longest was only in the spool."""


def pages(keys: float) -> int:
    """How many LIST requests a folder with so many objects takes."""
    return max(1, math.ceil(keys / PAGE_KEYS))


def make_lines(line_bytes: int) -> list[bytes]:
    """Lines of about this size, which compress like text."""
    prose = measure.MarkovText()
    return [f'{{"text":"{prose.words(line_bytes // 6 + 1)[: line_bytes - 12]}"}}\n'.encode() for _ in range(_LINES)]


def write_lines(writer: UploadingDiskWriter, counter: LedgerCounter, lines: Sequence[bytes]) -> int:
    """Hand lines of rollouts to a writer, as the thread does that writes to the disk; returns their bytes."""
    keys = [counter.start_rollout(new_id()) for _ in lines]
    queued = [
        QueuedLine(ROLLOUTS, line, key, is_from_other_session=False) for key, line in zip(keys, lines, strict=True)
    ]
    writer.write(queued)
    return sum(map(len, lines))


def make_writer(counter: LedgerCounter, now: list[float], address: str = "s3://bucket/run") -> UploadingDiskWriter:
    """A writer of a new session, whose clock is the last of these numbers."""

    class SimulatedWriter(UploadingDiskWriter):
        clock = staticmethod(lambda: now[-1])

    return SimulatedWriter(ObjectAddress(address), "run", new_id(), counter, Recording().segment_bytes)


def simulate_worker(rollouts_per_day: float, line_bytes: int, workers: int = 1, rollouts: int = 2_000) -> WorkerCosts:
    """What one of these workers costs in a day: at each age it records for a while, about so many rollouts."""
    rate = rollouts_per_day / DAY
    seconds = int(min(max(rollouts / rate, 20), max(_MOST_SECONDS, 4 / rate)))
    lines = make_lines(line_bytes)
    costs = [_simulate_age(age, seconds, rate, lines, workers) for age, _ in AGES]
    lengths = [length for _, length in AGES]
    sums = [sum(map(operator.mul, values, lengths)) for values in zip(*costs, strict=True)]
    return WorkerCosts(*sums)._replace(stale_seconds=max(one.stale_seconds for one in costs))


def _simulate_age(age: float, seconds: int, rate: float, lines: Sequence[bytes], workers: int) -> WorkerCosts:
    """What a worker of this age costs in a second."""
    store, counter, now = SimulatedStore(), LedgerCounter(()), [0.0]
    recorded, written, waiting, stale = 0, 0, [], 0.0
    with store.installed():
        writer = make_writer(counter, now)
        store.sizes |= {f"run/{LEDGER}/{ledger_name(new_id(), 0)}": 0 for _ in range(workers - 1)}
        now.append(age)
        writer.sync_if_due()
        store.requests.clear()
        for second in range(seconds):
            now.append(age + second * SYNC_SECONDS)
            due = int(rate * (second + 1)) - written
            if due:
                waiting.append(now[-1])
                recorded += write_lines(writer, counter, [lines[(written + n) % _LINES] for n in range(due)])
                written += due
            before = store.requests["PUT", ROLLOUTS]
            writer.sync_if_due()
            if waiting and store.requests["PUT", ROLLOUTS] > before:
                stale, waiting = max(stale, now[-1] - waiting[0]), []
        stored = sum(store.sizes.values())
        writer.is_closing = True
        writer.close()
    numbers = (
        store.requests["PUT", ROLLOUTS], store.requests["PUT", LEDGER], len(store.keys(ROLLOUTS)), recorded,
        store.uploaded[ROLLOUTS], store.uploaded[LEDGER], stored,
    )  # fmt: skip
    return WorkerCosts(*(number / seconds for number in numbers), stale_seconds=stale)


class IndexBytes(NamedTuple):
    """The sizes of what is derived for finding lines."""

    entry: float
    """`ids.index`, for a rollout."""
    info_per_rollout: float
    """`part.json`, for a rollout."""
    info_per_segment: float
    """`part.json`, for a segment."""

    def most_segments(self, rollouts_per_segment: float) -> float:
        """How many segments one part can cover before its `part.json` is too large to be read."""
        return MAX_INFO_BYTES / (self.info_per_segment + rollouts_per_segment * self.info_per_rollout)


def index_bytes() -> IndexBytes:
    """Encode a part of many segments, and one with many ids."""
    names = [f"{ROLLOUTS}/{SegmentName(new_id(), number)}" for number in range(1000)]
    empty = len(msgspec.json.encode(PartInfo(ranges={}, stats=RowStats())))
    info = PartInfo(
        ranges=dict.fromkeys(names, (0, 1 << 20)),
        stats=RowStats(lines=dict.fromkeys(names, 200)),
        finished=dict.fromkeys(names, 1 << 18),
    )
    per_segment = (len(msgspec.json.encode(info)) - empty) / len(names)
    entries = [(number.to_bytes(16), 0, number, 0) for number in range(20_000)]
    with tempfile.TemporaryDirectory() as folder:
        part = Part(Path(folder), PartInfo(ranges={}, stats=RowStats()))
        write_id_blocks(part, iter(entries))
        per_entry = (Path(folder) / IDS_FILE).stat().st_size / len(entries)
    per_rollout = (len(msgspec.json.encode(part.info)) - empty) / len(entries)
    return IndexBytes(per_entry, per_rollout, per_segment)


def simulate_reader(rollouts_per_day: float, line_bytes: int, polls: int = 3600) -> dict[str, float]:
    """Let a reader make parts of what is new at each poll, and merge them; scaled to a day."""
    rows = rollouts_per_day / DAY * POLL_SECONDS
    private: list[Part] = []
    published = rewritten = most = 0.0
    for _ in range(polls):
        made = max(1, math.ceil(rows * line_bytes / BATCH_BYTES))
        for _ in range(made):
            part = _part(int(rows * line_bytes / made), int(rows / made))
            published += is_large([part])
            private += [] if is_large([part]) else [part]
        if newest := parts_to_merge(private, lambda _: True):
            merged = _part(sum(part.size for part in newest), sum(part.info.stats.rows[ROLLOUTS] for part in newest))
            rewritten += merged.size
            published += is_large([merged])
            private[-len(newest) :] = [] if is_large([merged]) else [merged]
        most = max(most, len(private))
    scale = DAY / (polls * POLL_SECONDS)
    return {
        "parts": published * scale,
        "small parts": most,
        "rewritten ÷ read": rewritten / (rows * line_bytes * polls),
    }


def _part(size: int, rows: int) -> Part:
    return Part(Path("part"), PartInfo(ranges={ROLLOUTS: (0, size)}, stats=RowStats(rows={ROLLOUTS: rows})))


def run_costs(workers: int, rollouts: float, one: WorkerCosts, index: IndexBytes) -> dict[str, Any]:
    """A day of a run with so many workers and rollouts."""
    segments, puts = workers * one.segments, workers * (one.puts + one.ledger_puts)
    listing = pages(segments) + pages(0)
    list_seconds = listing * LIST_SECONDS
    lists = DAY / max(POLL_SECONDS, list_seconds) * listing / 2  # on average over the day, the folder is half as long
    stored = workers * one.stored / 1e9
    dollars = puts * PRICES["PUT"] + lists * PRICES["LIST"] + workers * one.puts * PRICES["GET"]
    limits = {
        "PUT requests per second": 0.0 if puts / DAY > MAX_PUTS else math.inf,
        "listing": 24 * MAX_LIST_SECONDS / LIST_SECONDS * PAGE_KEYS / segments,
        "part.json of one part": 24 * index.most_segments(rollouts / segments) / segments,
        "reader": 0.0 if rollouts / DAY > READER_ROLLOUTS else math.inf,
    }
    first = min(limits, key=limits.__getitem__)
    return {
        "workers": workers,
        "rollouts/day": f"{rollouts:.0e}".replace("e+0", "e"),
        "objects": segments + workers,
        "KB/segment": one.recorded / one.segments / 1e3,
        "PUT/s": puts / DAY,
        "GB uploaded": workers * (one.uploaded + one.ledger_uploaded) / 1e9,
        "uploaded ÷ recorded": one.uploaded / one.recorded,
        "GB stored": stored,
        "LIST pages": listing,
        "stale s": one.stale_seconds + list_seconds,
        "$ requests": dollars,
        "$ month's storage": stored * PRICES["GB-month"],
        "breaks first": first if limits[first] < 24 else "",
        "after h": limits[first] if limits[first] < 24 else None,
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Sweep the numbers of workers and rollouts, and print tables."""
    parser = measure.parser(__doc__)
    parser.add_argument("--line-bytes", type=int, default=5_000, help="the size of a rollout's line")
    options = parser.parse_args(arguments)
    workers = [10, 10_000] if options.quick else [10, 100, 1_000, 10_000]
    rollouts = [1e6, 1e9] if options.quick else [1e6, 1e7, 1e8, 1e9]
    recorded, polls = (100, 60) if options.quick else (2_000, 3600)
    costs = {
        (number, count): simulate_worker(count / number, options.line_bytes, number, recorded)
        for count in rollouts
        for number in workers
    }
    index = index_bytes()
    tables: dict[str, list[dict[str, Any]]] = {
        "A day of one run": [run_costs(number, count, one, index) for (number, count), one in costs.items()],
        "One worker": [
            {"workers": number, "rollouts/day": count / number, **one._asdict()}
            for (number, count), one in costs.items()
        ],
        "Tables that a reader makes in a day": [
            {
                "rollouts/day": f"{count:.0e}".replace("e+0", "e"),
                **simulate_reader(count, options.line_bytes, polls),
                "ids.index GB": count * index.entry / 1e9,
                "cores": count / DAY / READER_ROLLOUTS * 2,
            }
            for count in rollouts
        ],
        "part.json": [
            {
                "bytes/rollout": index.info_per_rollout,
                "bytes/segment": index.info_per_segment,
                "most segments": index.most_segments(0),
                "most rollouts": MAX_INFO_BYTES / index.info_per_rollout,
            }
        ],
    }
    report = {
        "benchmark": "scale_simulator", **measure.machine(), "figures": tables,
        "parameters": {"line_bytes": options.line_bytes, "prices": PRICES, "list_seconds": LIST_SECONDS},
    }  # fmt: skip
    measure.print_report(report, tables, options.json)


if __name__ == "__main__":
    main()
