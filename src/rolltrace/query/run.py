"""Opens a run, or many at once, for reading: records by id, and tables by SQL."""

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from rolltrace.errors import InputError, RecordError, RunNotFoundError, UnknownNameError
from rolltrace.query.database import Database, check_memory
from rolltrace.query.engine import MEMORY
from rolltrace.query.lines import LineReader
from rolltrace.query.result import Result
from rolltrace.query.statement import Statement
from rolltrace.store.cursor import Place
from rolltrace.store.layout import RUN_FILE, RunInfo, is_run
from rolltrace.store.ledger import Ledger
from rolltrace.store.problems import Problem
from rolltrace.store.reader import RunReader
from rolltrace.trace.rollout import Rollout
from rolltrace.trace.score import Score


def open_run(path: str | Path | Sequence[str | Path], memory: str = MEMORY) -> "Run":
    """The run at `path`; a directory that holds runs, or several paths, are all of them as one."""
    check_memory(memory)
    paths = [Path(path)] if isinstance(path, str | Path) else [Path(one) for one in path]
    found = [run for place in paths for run in _runs_at(place)]
    if not found:
        raise InputError("Expected at least one run to open, got none.")
    return Run([RunReader(run) for run in found], memory)


def _runs_at(place: Path) -> list[Path]:
    if is_run(place):
        return [place]
    try:
        inside = sorted(child for child in place.iterdir() if child.is_dir() and is_run(child))
    except OSError:
        inside = []
    if not inside:
        raise RunNotFoundError(
            f"Expected a run at {place}, a directory with {RUN_FILE}, or a directory that holds runs: "
            f"{'found other things there' if place.exists() else 'found nothing there'}."
        )
    return inside


class Run:
    """One run, or several as one; what is written meanwhile is there at the next question."""

    def __init__(self, readers: Sequence[RunReader], memory: str = MEMORY) -> None:
        self._readers = tuple(readers)
        self._memory = memory
        self._opened: Database | None = None

    @property
    def path(self) -> Path:
        """Where it is; of several, where the first is."""
        return self._readers[0].path

    @property
    def paths(self) -> tuple[Path, ...]:
        """Where they are."""
        return tuple(reader.path for reader in self._readers)

    @property
    def info(self) -> RunInfo | None:
        """What `run.json` says, of several the first's; None where it cannot be read."""
        return self._readers[0].info

    @property
    def problems(self) -> tuple[Problem, ...]:
        """What could not be read so far, each once."""
        own = tuple(self._opened.problems) if self._opened is not None else ()
        return tuple(dict.fromkeys([*(problem for reader in self._readers for problem in reader.problems), *own]))

    def get(self, rollout: str) -> Rollout:
        """The rollout of this id, with all its messages and steps."""
        for reader in self._readers[:-1]:
            try:
                return reader.get(rollout)
            except UnknownNameError:
                continue
        return self._readers[-1].get(rollout)

    def rollouts(
        self, where: str | None = None, order_by: str | None = None, limit: int | None = None
    ) -> Iterator[Rollout]:
        """Whole rollouts of the table `rollouts`, one by one; by default all, in the order of the files.

        `where` and `order_by` are SQL expressions over its columns.
        """
        return self._rollouts_at(self._places("rollouts", where, order_by, limit))

    def scores(
        self, where: str | None = None, order_by: str | None = None, limit: int | None = None
    ) -> Iterator[Score]:
        """Scores, one by one: as `rollouts`, of the table `scores`."""
        return self._scores_at(self._places("scores", where, order_by, limit))

    def sql(self, sql: str, timeout: float | None = None) -> Result:
        """The answer to one SELECT over the tables of `docs/tables.md`; it reads, and can do nothing else."""
        return self._result(self._database.check(sql), timeout)

    def ledgers(self) -> dict[str, Ledger]:
        """The last ledger of each session."""
        return {session: ledger for reader in self._readers for session, ledger in reader.ledgers().items()}

    def blob(self, name: str) -> bytes:
        """The bytes that a message carries, by their name."""
        for reader in self._readers[:-1]:
            with contextlib.suppress(RecordError):
                return reader.blob(name)
        return self._readers[-1].blob(name)

    def follow(self, *arguments: Any, **options: Any) -> Iterator[Any]:
        """Records as they are written; as `RunReader.follow`, for one run."""
        if len(self._readers) != 1:
            raise InputError(f"Expected one run to follow, got {len(self._readers)}: open them one by one.")
        followed: Iterator[Any] = self._readers[0].follow(*arguments, **options)
        return followed

    def close(self) -> None:
        """Give back memory and files; asking again opens them again."""
        opened, self._opened = self._opened, None
        if opened is not None:
            opened.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"open_run({str(self.path) if len(self._readers) == 1 else [str(path) for path in self.paths]!r})"

    @property
    def _database(self) -> Database:
        if self._opened is None:
            self._opened = Database(self._readers, self._memory)
        return self._opened

    def _result(self, statement: Statement, timeout: float | None) -> Result:
        database = self._database
        return Result(statement.sql, lambda: database.engine(statement.tables).cursor(), database.recover, timeout)

    def _places(self, table: str, where: str | None, order_by: str | None, limit: int | None) -> Result:
        """Where the lines of a table are."""
        if limit is not None and limit < 0:
            raise InputError(f"Expected a limit of 0 or more, got {limit}.")
        statement = self._database.check_expressions(table, where, order_by)
        sql = statement.sql if order_by is not None else f"{statement.sql} order by run, _file, _offset"
        sql += "" if limit is None else f" limit {limit:d}"
        return self._result(Statement(sql, statement.tables | {table}), None)

    def _rollouts_at(self, places: Result) -> Iterator[Rollout]:
        """The rollouts whose lines are at these places."""
        with contextlib.ExitStack() as stack:
            lines = self._line_readers(stack)
            for run, rollout, file, offset, length in places:
                found = lines.get("" if len(self._readers) == 1 else run)
                yield self.get(rollout) if found is None else found.rollout(rollout, Place(file, offset, length))

    def _scores_at(self, places: Result) -> Iterator[Score]:
        """The scores whose lines are at these places; one whose file was damaged since is left out."""
        with contextlib.ExitStack() as stack:
            lines = self._line_readers(stack)
            for run, score, file, offset, length in places:
                found = lines.get("" if len(self._readers) == 1 else run)
                if found is not None and (read := found.score(score, Place(file, offset, length))) is not None:
                    yield read

    def _line_readers(self, stack: contextlib.ExitStack) -> dict[str, LineReader]:
        """By run, who reads its lines; a run that is alone may have lost its id."""
        return {
            "" if len(self._readers) == 1 or reader.info is None else reader.info.id: stack.enter_context(
                LineReader(reader)
            )
            for reader in self._readers
        }
