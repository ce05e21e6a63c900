"""Opens a run, or many at once, for reading: records by id, and tables by SQL."""

import contextlib
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import starmap
from pathlib import Path
from typing import Any, Literal, Self, TypeVar, overload

from msgspec.structs import replace

from rolltrace.errors import InputError, RecordError, UnknownNameError
from rolltrace.query.database import Database
from rolltrace.query.duckdb_engine import (
    MEMORY,
    THREADS,
    EngineLimits,
    QueryDeadline,
    TableSnapshot,
    raising_interrupts,
)
from rolltrace.query.follow import StopEvent, follow
from rolltrace.query.groups import Group, group_from_row
from rolltrace.query.record_reader import LateScoreReader, LineReader, growing_batches, with_scores
from rolltrace.query.result import QueryResult
from rolltrace.query.run_paths import open_readers
from rolltrace.query.run_tables import OnCoverage
from rolltrace.query.sql_check import Parameters, Statement
from rolltrace.query.table_schema import GROUP_ORDER, sql_identifier, sql_literal
from rolltrace.store.cursor import LineLocation, record_read_error
from rolltrace.store.layout import RunInfo
from rolltrace.store.ledger import Ledger
from rolltrace.store.parts import Bounds
from rolltrace.store.read_errors import ReadError, ReadErrors
from rolltrace.store.reader import RunReader
from rolltrace.store.run_files import RunFiles
from rolltrace.trace.rollout import Identity, Rollout
from rolltrace.trace.score import Score

Output = TypeVar("Output")

PAGE_ROWS = 50_000
"""How many locations are sorted at once, unless one file has more."""


def open_run(
    path: str | Path | RunFiles | Sequence[str | Path | RunFiles],
    memory: str = MEMORY,
    threads: int = THREADS,
    *,
    partial: bool = False,
    on_progress: OnCoverage | None = None,
) -> "Run":
    """Open the run at `path`, or with these files. A directory of runs, or several paths, are opened as one.

    A path may be a pattern such as `runs/gsm8k-*`, also in an object store. A run in a directory of runs, or one that a
    pattern matches, is left out if its `run.json` cannot be read, and is among the `problems`.

    `memory` and `threads` limit what statements may use. With `partial`, statements about a long run do not wait until
    all of its tables are made: they answer from the newest segments, and rollouts have the late scores that were read
    by then; `Run.coverage` says how much that is.
    `on_progress` is called with that number while tables are being made.
    """
    limits = EngineLimits(memory, threads)
    paths = [path] if isinstance(path, str | Path | RunFiles) else path
    readers, unreadable = open_readers(paths)
    return Run(readers, limits, partial=partial, on_progress=on_progress, unreadable=unreadable)


def open_single_run(path: str | Path) -> "Run":
    """Open the run at `path`, or the only one in that directory; `InputError` says that there are several."""
    readers, unreadable = open_readers([path])
    if (count := len(readers) + len(unreadable)) > 1:
        raise InputError(f"Expected one run, got {path} with {count} runs: name one of them.")
    return Run(readers)


class Run:
    """One run, or several as one. Each call sees what was written before it."""

    def __init__(
        self,
        readers: Sequence[RunReader],
        limits: EngineLimits | None = None,
        *,
        partial: bool = False,
        on_progress: OnCoverage | None = None,
        unreadable: Sequence[ReadError] = (),
    ) -> None:
        self._readers = tuple(readers)
        self._errors = ReadErrors()
        """Those that belong to none of the readers."""
        for error in unreadable:
            self._errors.report(error)
        self._limits = limits
        self._is_partial = partial
        self._on_progress = on_progress
        self.revision: Callable[[], object] = object
        """Statements read new lines if this returns another value than the last time; by default always."""
        self._database_or_none: Database | None = None

    @property
    def path(self) -> Path:
        """The path of the run, or of the first one."""
        return self._readers[0].path

    @property
    def paths(self) -> tuple[Path, ...]:
        """The paths of all runs."""
        return tuple(reader.path for reader in self._readers)

    @property
    def info(self) -> RunInfo:
        """The contents of `run.json`, of the first run if there are several."""
        return self._readers[0].info

    @property
    def problems(self) -> tuple[ReadError, ...]:
        """The read errors so far, one for each place; after a statement also lines that are missing or repeated.

        If several runs were named, also runs that were left out, and the name of each file begins with its run's path.
        """
        failed = [reader.errors.retryable() for reader in self._readers]  # also what looking for losses can read again
        losses = [] if self._database_or_none is None else self._database_or_none.find_losses()
        errors = list(self._errors.all())
        is_single = len(self._readers) == 1
        for number, reader in enumerate(self._readers):
            found = dict.fromkeys([*failed[number], *reader.read_errors, *(losses[number] if losses else ())])
            errors += [error if is_single else replace(error, file=f"{reader.path}/{error.file}") for error in found]
        return tuple(errors)

    @property
    def failures(self) -> int:
        """How often the system could not read something. If it grew during a call, the result may be incomplete."""
        return sum(reader.errors.failures for reader in self._readers)

    def clear_failures(self) -> None:
        """Remove what could not be read from the problems, before everything is tried again."""
        for reader in self._readers:
            reader.errors.clear_retryable()

    @property
    def is_incomplete(self) -> bool:
        """Whether the tables lack something that could not be read."""
        return self._database_or_none is not None and self._database_or_none.is_incomplete

    @property
    def coverage(self) -> float:
        """Which part of the run the last statement was about, from 0 to 1: all of it, unless opened with `partial`.

        Late scores are read last: until it is 1, some may be missing.
        """
        if self._database_or_none is None:
            return 0.0 if self._is_partial else 1.0
        return self._database_or_none.coverage

    @property
    def is_unfinished(self) -> bool:
        """Whether `continue_reading` has more to do, if this was opened with `partial`."""
        return self._database_or_none is not None and self._database_or_none.is_unfinished

    @property
    def pending_tables(self) -> set[str]:
        """Tables of which processes still read lines, those of texts only if they read these alone."""
        return set() if self._database_or_none is None else self._database_or_none.pending_tables

    @property
    def version(self) -> int:
        """Increases whenever something was added that processes have read."""
        return 0 if self._database_or_none is None else self._database_or_none.version

    def continue_reading(self) -> None:
        """Add what was read by now to the tables, although the revision is the same."""
        if self._database_or_none is not None:  # nothing was asked yet, or it was closed
            self._database_or_none.continue_reading()

    def hold(self) -> None:
        """Let later statements answer from the tables as they are now, so that their answers fit together."""
        self._database.hold()

    def refresh(self, tables: frozenset[str] = frozenset({"rollouts"})) -> None:
        """Read what was written by now of rollouts and scores, as the next statement over these tables would."""
        self._database.snapshot(tables, QueryDeadline())

    def get(self, rollout: str) -> Rollout:
        """The rollout with this id, with all its messages and steps, and the scores written by now.

        If this was opened with `partial`, it has the scores that were read by now; `coverage` says whether that is all.
        """
        if self._is_partial and self._database_or_none is None:
            self.refresh()  # long files of scores are read by processes from then on
        # First the runs whose index has the id; the others have to be scanned.
        likely = [reader for reader in self._readers if len(self._readers) > 1 and reader.id_index.contains(rollout)]
        for reader in (*likely, *self._readers[:-1]):
            with contextlib.suppress(UnknownNameError):
                return self._get(reader, rollout)
        return self._get(self._readers[-1], rollout)

    @property
    def _scans_scores(self) -> bool:
        """Whether late scores are also looked for in lines that no part has: not while processes make parts of them."""
        return not (self._is_partial and "scores" in self.pending_tables)

    def _get(self, reader: RunReader, rollout: str) -> Rollout:
        with LateScoreReader(reader, read_ahead=0) as scores:
            return scores.with_late_scores(reader.get(rollout), scans=self._scans_scores)

    def rollouts(
        self, where: str | None = None, order_by: str | None = None, limit: int | None = None, offset: int = 0
    ) -> Iterator[Rollout]:
        """Rollouts of the table `rollouts`, one by one, with their late scores; by default all, in file order.

        `where` and `order_by` are SQL expressions over its columns. The first `offset` rollouts are skipped. Damaged
        lines are left out, and are among the `problems`.
        """
        return self.rollouts_at(self._locations("rollouts", where, order_by, limit, offset))

    def rollouts_at(self, locations: Iterable[tuple[Any, ...]]) -> Iterator[Rollout]:
        """The rollouts at these locations, with their scores, without those whose line was damaged since.

        A location is a row of a run's id, the rollout's id, its file, offset and length.
        """
        with contextlib.ExitStack() as stack:
            lines = self._line_readers(stack)
            scores = {run: stack.enter_context(LateScoreReader(one.reader)) for run, one in lines.items()}
            for batch in growing_batches(locations):
                scans = self._scans_scores
                late = {
                    run: own.scores_of([row[1] for row in batch if len(scores) == 1 or row[0] == run], scans=scans)
                    for run, own in scores.items()
                }
                for run, rollout, *place in batch:
                    name, location = "" if len(self._readers) == 1 else run, LineLocation(*place)
                    reader = lines.get(name)
                    try:
                        record = self.get(rollout) if reader is None else reader.rollout(rollout, location)
                    except (RecordError, UnknownNameError) as error:  # damaged since its table was made
                        errors = self._errors if reader is None else reader.reader.errors
                        errors.report(record_read_error(location, error))
                    else:
                        yield record if reader is None else with_scores(record, late[name])

    def groups(
        self, where: str | None = None, order_by: str | None = None, limit: int | None = None, offset: int = 0
    ) -> Iterator[Group]:
        """Groups of the table `groups`, one by one; by default all, in the order of iterations, envs and names.

        As with `rollouts`, `where` and `order_by` are SQL expressions over its columns. The members' rollouts are read
        only when a group's `rollouts()` is called.
        """
        rows = self._select("groups", where, order_by, f"run, {GROUP_ORDER}", limit, offset).dicts()
        return (group_from_row(row, self._rollouts_of) for row in rows)

    def scores(
        self, where: str | None = None, order_by: str | None = None, limit: int | None = None, offset: int = 0
    ) -> Iterator[Score]:
        """Scores, one by one: as `rollouts`, of the table `scores`."""
        return self._scores_at(self._locations("scores", where, order_by, limit, offset))

    def identities(self) -> Iterator[Identity]:
        """Which rollouts there are, from the table: their lines are not read."""
        names = ", ".join(map(sql_identifier, Identity.__struct_fields__))
        return starmap(Identity, self.sql(f"select {names} from rollouts"))

    def locations(self, kind: Literal["rollouts", "scores"], where: str) -> dict[str, LineLocation]:
        """The locations of the lines of these records, by id."""
        return {row[1]: LineLocation(*row[2:]) for row in self._locations(kind, where, None, None, 0)}

    def select_locations(self, where: str | None) -> Statement:
        """A statement of Rolltrace's own for the run, id and location of the rollouts that match a user's condition."""
        return self._database.check_expressions("rollouts", where, None)

    def sql(self, sql: str, parameters: Parameters = None, timeout: float | None = None) -> QueryResult:
        """Run one SELECT over the tables of `docs/tables.md`. Statements can only read.

        `parameters` are the values of `?`, as a list, or of `$name`, as a mapping. If the statement takes longer than
        `timeout` seconds, including the making of its tables, it is stopped with a `QueryTimeoutError`.
        """
        database = self._database
        return QueryResult(database.check(sql, parameters), database, timeout)

    def select(self, sql: str, tables: frozenset[str], iterations: Bounds | None = None) -> QueryResult:
        """Run a SELECT of Rolltrace's own, which may name internal views over these tables."""
        return QueryResult(Statement(sql, tables, iterations=iterations), self._database)

    def with_snapshot(self, tables: frozenset[str], work: Callable[[TableSnapshot], Output]) -> Output:
        """Call `work` with these tables as they are now; again, if a file of them was deleted or damaged meanwhile."""
        import duckdb

        while True:
            snapshot = self._database.snapshot(tables, QueryDeadline())
            try:
                with raising_interrupts():
                    return work(snapshot)
            except duckdb.Error as error:
                self._database.recover(error, snapshot)

    def ledgers(self) -> dict[str, Ledger]:
        """The last ledger of each session."""
        return {session: ledger for reader in self._readers for session, ledger in reader.ledgers().items()}

    def blob(self, name: str) -> bytes:
        """The bytes of a blob, by its name in a message part."""
        for reader in self._readers[:-1]:
            with contextlib.suppress(RecordError):
                return reader.blob(name)
        return self._readers[-1].blob(name)

    @overload
    def follow(
        self, kind: Literal["rollouts"], *, stop: StopEvent | None = ..., seconds: float = ...
    ) -> Iterator[Rollout]: ...
    @overload
    def follow(
        self, kind: Literal["scores"], *, stop: StopEvent | None = ..., seconds: float = ...
    ) -> Iterator[Score]: ...
    @overload
    def follow(
        self, kind: Literal["ledger"], *, stop: StopEvent | None = ..., seconds: float = ...
    ) -> Iterator[Ledger]: ...
    def follow(
        self, kind: Literal["rollouts", "scores", "ledger"], *, stop: StopEvent | None = None, seconds: float = 0.5
    ) -> Iterator[Rollout] | Iterator[Score] | Iterator[Ledger]:
        """The existing records, then new ones as they are written, polling every `seconds`.

        Each rollout is yielded once, when its line is written, with the scores that are written by then: its reward may
        still change. `follow("scores")` yields later scores. It ends when `stop` is set, after everything that was
        written before.
        """
        return follow(self._readers, kind, stop or threading.Event(), seconds)

    def close(self) -> None:
        """Free memory and files. They are opened again when needed."""
        with _opening:
            opened, self._database_or_none = self._database_or_none, None
        if opened is not None:
            opened.close()
        for reader in self._readers:
            reader.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"open_run({str(self.path) if len(self._readers) == 1 else [str(path) for path in self.paths]!r})"

    @property
    def _database(self) -> Database:
        with _opening:
            if self._database_or_none is None or self._database_or_none.process != os.getpid():
                self._database_or_none = Database(
                    self._readers,
                    self._limits,
                    partial=self._is_partial,
                    on_progress=self._on_progress,
                    revision=lambda: self.revision(),
                )
            return self._database_or_none

    def _locations(
        self, table: str, where: str | None, order_by: str | None, limit: int | None, offset: int
    ) -> Iterable[tuple[Any, ...]]:
        """The locations of a table's lines."""
        if order_by is None and limit is None and not offset:
            return self._pages(table, where)
        return self._select(table, where, order_by, "run, _file, _offset", limit, offset)

    def _pages(self, table: str, where: str | None) -> Iterator[tuple[Any, ...]]:
        """All locations in file order, some files at a time: sorting all at once needs memory for each row."""
        locations = self._database.check_expressions(table, where, None)
        tables = locations.tables | {table}
        counts = f"select run, _file, count(*) from ({locations.sql}) group by run, _file order by run, _file"
        files = self.select(counts, tables, locations.iterations)  # now, so that a wrong condition raises at once

        def read() -> Iterator[tuple[Any, ...]]:
            for run, first, last in _file_ranges(files):
                between = f"run = {sql_literal(run)} and _file between {sql_literal(first)} and {sql_literal(last)}"
                sql = f"from ({locations.sql}) where {between} order by _file, _offset"
                yield from self.select(sql, tables, locations.iterations)

        return read()

    def _select(
        self, table: str, where: str | None, order_by: str | None, default_order: str, limit: int | None, offset: int
    ) -> QueryResult:
        for name, number in (("a limit", limit or 0), ("an offset", offset)):
            if number < 0:
                raise InputError(f"Expected {name} of 0 or more, got {number}.")
        statement = self._database.check_expressions(table, where, order_by)
        sql = statement.sql if order_by is not None else f"{statement.sql} order by {default_order}"
        sql += "" if limit is None else f" limit {limit:d}"
        sql += "" if not offset else f" offset {offset:d}"
        return self.select(sql, statement.tables | {table}, statement.iterations)

    def _rollouts_of(self, ids: Sequence[str]) -> Iterator[Rollout]:
        return self.rollouts(where=f"id in ({', '.join(map(sql_literal, ids))})", order_by='"index", id')

    def _scores_at(self, locations: Iterable[tuple[Any, ...]]) -> Iterator[Score]:
        """The scores at these locations, without those whose file was damaged since."""
        with contextlib.ExitStack() as stack:
            lines = self._line_readers(stack)
            for run, score, file, offset, length in locations:
                reader = lines.get("" if len(self._readers) == 1 else run)
                if reader is not None and (one := reader.score(score, LineLocation(file, offset, length))) is not None:
                    yield one

    def _line_readers(self, stack: contextlib.ExitStack) -> dict[str, LineReader]:
        """The line reader of each run, by its id; by an empty text if there is only one run."""
        return {
            "" if len(self._readers) == 1 else reader.info.id: stack.enter_context(LineReader(reader))
            for reader in self._readers
        }


def _file_ranges(files: Iterable[tuple[Any, ...]]) -> Iterator[tuple[str, str, str]]:
    """Ranges of consecutive files with about a page of rows each: run, first file and last file."""
    page: tuple[str, str, str] | None = None
    rows = 0
    for run, file, count in files:
        if page is not None and page[0] == run and rows + count <= PAGE_ROWS:
            page, rows = (run, page[1], file), rows + count
            continue
        if page is not None:
            yield page
        page, rows = (run, file, file), count
    if page is not None:
        yield page


_opening = threading.Lock()


def _reset_lock_after_fork() -> None:
    """Replace the lock: the thread that holds it may not exist in the forked process."""
    global _opening
    _opening = threading.Lock()


os.register_at_fork(after_in_child=_reset_lock_after_fork)
