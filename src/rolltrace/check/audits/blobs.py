"""Audits of the blobs: the bytes that messages carry are there, and are theirs."""

import hashlib
from collections.abc import Iterator
from pathlib import Path

from rolltrace.check.audit import audit
from rolltrace.check.audited_run import AuditedRun
from rolltrace.check.finding import Finding, Severity
from rolltrace.errors import RecordError
from rolltrace.store.blobs import blob_path
from rolltrace.store.layout import BLOBS
from rolltrace.store.segment_reader import open_regular


@audit(
    Severity.ERROR,
    "A message carries an image or a file of which the bytes are gone; the prompt cannot be seen as the policy saw it. "
    "Copy blobs/ back.",
)
def missing_blobs(run: AuditedRun) -> Iterator[Finding]:
    """Every blob that a record names is there."""
    for name, rollout, path in _named(run):
        if not path.is_file():
            yield Finding(f"{name} is not there", rollout=rollout, file=f"{BLOBS}/{name}")


@audit(
    Severity.ERROR,
    "The bytes of a blob are not those of its name, so they are not what the policy saw. Restore the file from a copy.",
)
def damaged_blobs(run: AuditedRun) -> Iterator[Finding]:
    """Every blob has the bytes that its name says."""
    for name, rollout, path in _named(run):
        try:
            with open_regular(path) as file:
                found = hashlib.file_digest(file, "sha256").hexdigest()
        except (FileNotFoundError, RecordError):
            continue  # told of as missing
        except OSError as error:
            yield Finding(f"cannot be read: {error.strerror}", rollout=rollout, file=f"{BLOBS}/{name}")
            continue
        if name != f"sha256-{found}":
            yield Finding(f"has bytes of digest sha256-{found}", rollout=rollout, file=f"{BLOBS}/{name}")


def _named(run: AuditedRun) -> Iterator[tuple[str, str, Path]]:
    """Each blob that a record names, the first rollout that does, and where it should be."""
    for row in run.records.rows("select name, rollout from blobs order by name"):
        yield row["name"], row["rollout"], blob_path(run.path / BLOBS, row["name"])
