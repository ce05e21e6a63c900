"""Reads a run: whatever of it is whole, with a report of what is not."""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TypeVar

import msgspec

from rolltrace.errors import RecordError, RunNotFoundError, UnknownNameError
from rolltrace.store.blobs import read_blob
from rolltrace.store.layout import BLOBS, LEDGER, ROLLOUTS, RUN_FILE, SCORES, RunInfo, decode_info, is_run
from rolltrace.store.ledger import Ledger, decode_ledger
from rolltrace.trace.codec import decode_rollout, decode_score
from rolltrace.trace.rollout import Rollout
from rolltrace.trace.score import Score

Record = TypeVar("Record")


class Problem(msgspec.Struct, frozen=True):
    """Something of a run that could not be read."""

    file: str
    """Which file, from the run's directory on."""
    line: int | None
    """Which line, counting from 1; None where it is the whole file."""
    message: str

    def __str__(self) -> str:
        return f"{self.file}{'' if self.line is None else f':{self.line}'}: {self.message}"


class RunReader:
    """A run's records, in a stable order: by file name, then line by line.

    What is damaged, torn or of a newer version costs only itself: it is reported once in `problems`.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        if not is_run(self.path):
            raise RunNotFoundError(
                f"Expected a run at {self.path}: a directory with {RUN_FILE} and {ROLLOUTS}/, "
                f"{'found other things there' if self.path.exists() else 'found nothing there'}."
            )
        self._problems: dict[tuple[str, int | None], Problem] = {}
        self.info: RunInfo | None = self._read_info()
        """What `run.json` says; None where it cannot be read, which is then a problem."""

    @property
    def problems(self) -> tuple[Problem, ...]:
        """What could not be read so far, each once."""
        return tuple(self._problems.values())

    def rollouts(self) -> Iterator[Rollout]:
        """Every rollout that can be read."""
        return self._records(ROLLOUTS, decode_rollout)

    def scores(self) -> Iterator[Score]:
        """Every score that can be read."""
        return self._records(SCORES, decode_score)

    def get(self, rollout: str) -> Rollout:
        """The rollout of this id."""
        # Ids are found by their bytes: decoding every line for one of them would take a hundred times as long.
        key = msgspec.json.encode(rollout)
        for record in self._records(ROLLOUTS, decode_rollout, lambda line: key in line):
            if record.id == rollout:
                return record
        raise UnknownNameError(f"There is no rollout {rollout!r} in {self.path}.")

    def ledgers(self) -> dict[str, Ledger]:
        """The last ledger of each session."""
        return {ledger.session: ledger for ledger in self._records(LEDGER, decode_ledger)}

    def blob(self, name: str) -> bytes:
        """The bytes of that name; the name must be a digest, and theirs."""
        return read_blob(self.path / BLOBS, name)

    def _read_info(self) -> RunInfo | None:
        try:
            return decode_info((self.path / RUN_FILE).read_bytes())
        except OSError as error:
            self._report(RUN_FILE, None, error.strerror or str(error))
        except RecordError as error:
            self._report(RUN_FILE, None, str(error))
        return None

    def _records(
        self, folder: str, decode: Callable[[bytes], Record], wanted: Callable[[bytes], bool] = bool
    ) -> Iterator[Record]:
        for path in self._files(folder):
            name = f"{folder}/{path.name}"
            for number, line in self._lines(path, name):
                if not wanted(line):
                    continue
                try:
                    record = decode(line)
                except RecordError as error:
                    self._report(name, number, str(error))
                else:
                    yield record

    def _files(self, folder: str) -> list[Path]:
        try:
            paths = sorted((self.path / folder).iterdir())
        except OSError as error:
            self._report(folder, None, error.strerror or str(error))
            return []
        files = []
        for path in paths:
            if path.suffix == ".jsonl" and path.is_file():  # a pipe or a device would never end
                files.append(path)
            else:
                self._report(f"{folder}/{path.name}", None, "Expected a file whose name ends in .jsonl.")
        return files

    def _lines(self, path: Path, name: str) -> Iterator[tuple[int, bytes]]:
        """The whole lines of a file, numbered from 1."""
        try:
            with path.open("rb") as file:
                for number, line in enumerate(file, start=1):
                    if line.endswith(b"\n"):
                        yield number, line
                    else:
                        self._report(name, number, f"Expected a whole line, got {len(line)} bytes without an end.")
        except OSError as error:
            self._report(name, None, error.strerror or str(error))

    def _report(self, file: str, line: int | None, message: str) -> None:
        self._problems.setdefault((file, line), Problem(file, line, message))


def latest_rewards(rollouts: Iterable[Rollout], scores: Iterable[Score]) -> dict[str, float | None]:
    """The reward of each rollout by id: its latest score named `reward`, else what its line says."""
    latest: dict[str, Score] = {}
    for score in scores:
        if score.name == "reward" and score.rollout is not None:
            before = latest.get(score.rollout)
            if before is None or score.at >= before.at:
                latest[score.rollout] = score
    return {rollout.id: latest[rollout.id].value if rollout.id in latest else rollout.reward for rollout in rollouts}
