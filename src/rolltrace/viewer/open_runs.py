"""The runs that questions are asked of: opened when asked, closed when others need their place."""

import contextlib
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from pathlib import Path
from typing import TypeVar

from rolltrace.errors import RolltraceError, RunNotFoundError
from rolltrace.query.run import Run, open_run
from rolltrace.query.run_listing import MAX_BYTES
from rolltrace.viewer.columns import query_measures
from rolltrace.viewer.lru_cache import LruCache
from rolltrace.viewer.run_folder import FileStamp, RunFolder
from rolltrace.viewer.schemas import Measure

Found = TypeVar("Found")

MAX_WEIGHT = 8
"""How many runs are open at once; a large one takes the room of four."""
_LARGE = 4
_MEMORY = "320MB"
"""What statements over one run may take, of each of the two kinds."""
_THREADS = min(4, os.cpu_count() or 1)


class OpenRun:
    """One run that is open. Any thread may ask it."""

    def __init__(self, key: str, path: Path, standing: FileStamp, kept: LruCache) -> None:
        self.key = key
        self.path = path
        self.identity = standing.identity
        self.stamp = standing
        """How its files stood when it was last asked for."""
        self.weight = _LARGE if standing.bytes > MAX_BYTES else 1
        self.users = 0
        self.run: Run = open_run(path, memory=_MEMORY)
        """For the questions of pages."""
        self.text_run: Run = open_run(path, memory=_MEMORY, threads=_THREADS)
        """For what has to read texts, whose tables take long to make: the others do not wait for it."""
        self._kept = kept

    def cached(self, question: Hashable, find: Callable[[], Found], size: Callable[[Found], int]) -> Found:
        """What `find` finds, or found before and nothing changed since."""
        return self._kept.get_or_compute((self.key, self.identity, self.stamp.data, question), find, size)

    def close(self) -> None:
        """Give back memory and files; statements that run are interrupted."""
        self.run.close()
        self.text_run.close()


def find_measures(run: OpenRun) -> tuple[Measure, ...]:
    """Every measure of the run, found once for each state of it."""
    return run.cached("measures", lambda: query_measures(run.text_run), lambda found: 200 * len(found))


class OpenRuns:
    """The runs below a folder."""

    def __init__(self, folder: str | Path, prepares: bool = False, room: int = MAX_WEIGHT) -> None:
        self.folder = RunFolder(folder)
        self.kept = LruCache()
        self._lock = threading.Lock()
        self._opened: OrderedDict[str, OpenRun] = OrderedDict()
        self._is_closed = False
        self._room = room
        self._prebuild_tables = prepares
        """Whether the tables of a large run are made as soon as it is opened, before anybody asks for them."""

    @contextlib.contextmanager
    def open(self, key: str) -> Iterator[OpenRun]:
        """The run of this key, which stays open at least so long."""
        run = self._take(key)
        try:
            yield run
        finally:
            self._give_back(run)

    def close(self) -> None:
        """Close all runs, also those in use."""
        with self._lock:
            self._is_closed = True
            opened = list(self._opened.values())
            self._opened.clear()
        for run in opened:
            run.close()

    def _take(self, key: str) -> OpenRun:
        unused: list[OpenRun] = []
        try:
            path, standing = self.folder.find(key)
            with self._lock:
                if self._is_closed:
                    raise RunNotFoundError("The server is ending.")
                run = self._find(key, path, standing, unused)
                run.users += 1
                return run
        except RunNotFoundError:
            with self._lock:
                unused += [self._opened.pop(key)] if key in self._opened else []
            raise
        finally:
            for one in unused:
                if not one.users:
                    one.close()

    def _find(self, key: str, path: Path, standing: FileStamp, unused: list[OpenRun]) -> OpenRun:
        """The run; those that have to make room for it are put among the unused."""
        run = self._opened.get(key)
        if run is None or run.identity != standing.identity or run.path != path:
            if run is not None:
                unused.append(self._opened.pop(key))
            run = self._opened[key] = OpenRun(key, path, standing, self.kept)
            if self._prebuild_tables and run.weight == _LARGE:
                run.users += 1
                threading.Thread(target=self._prepare, args=(run,), name="rolltrace-prepare", daemon=True).start()
        run.stamp = standing
        self._opened.move_to_end(key)
        while sum(one.weight for one in self._opened.values()) > self._room and len(self._opened) > 1:
            unused.append(self._opened.popitem(last=False)[1])
        return run

    def _prepare(self, run: OpenRun) -> None:
        """Make the tables with texts; first those that a page needs."""
        try:
            with contextlib.suppress(RolltraceError):
                find_measures(run)
                run.text_run.sql("select 1 from messages limit 0").fetchall()
        finally:
            self._give_back(run)

    def _give_back(self, run: OpenRun) -> None:
        with self._lock:
            run.users -= 1
            is_unused = not run.users and self._opened.get(run.key) is not run
        if is_unused:
            run.close()
