"""Reads `run.json`, which every run has."""

from pathlib import Path

from rolltrace.errors import NewerVersionError, OlderVersionError, RecordError, RunNotFoundError, StorageError
from rolltrace.store.layout import ROLLOUTS, RUN_FILE, RunInfo, decode_info
from rolltrace.store.safe_files import open_regular

_RESTORE = "Copy it back: it never changes after the run was made, and without it nothing of a directory is touched."


def read_info(run: Path) -> RunInfo:
    """What `run.json` of a run says; a directory without one that is valid is no run."""
    expected = f"Expected a run at {run}"
    if not run.is_dir():
        found = "a file" if run.exists() else "nothing"
        raise RunNotFoundError(f"{expected}, a directory with {RUN_FILE}: found {found} there.")
    try:
        with open_regular(run / RUN_FILE) as file:
            return decode_info(file.read())
    except FileNotFoundError:
        if (run / ROLLOUTS).is_dir():
            raise RunNotFoundError(f"{expected}, found {ROLLOUTS}/ and no {RUN_FILE}. {_RESTORE}") from None
        raise RunNotFoundError(f"{expected}, a directory with {RUN_FILE}: found other things there.") from None
    except (NewerVersionError, OlderVersionError) as error:
        raise RunNotFoundError(f"{expected} that this version reads: {RUN_FILE}: {error}") from error
    except RecordError as error:
        raise RunNotFoundError(f"{expected} with a valid {RUN_FILE}: {error} {_RESTORE}") from error
    except OSError as error:
        raise StorageError(f"Cannot read {run / RUN_FILE}: {error.strerror or error}.") from error
