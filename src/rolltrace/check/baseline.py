"""A baseline: the findings of a run that its owner has accepted, as a JSON file."""

from pathlib import Path

import msgspec

from rolltrace.check.audit import Finding
from rolltrace.check.audit_report import AuditReport
from rolltrace.errors import InputError, StorageError

VERSION = 1


class Baseline(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """By name of an audit, the keys of the findings that are accepted."""

    version: int = VERSION
    accepted: dict[str, frozenset[str]] = {}

    def accepts(self, audit: str, finding: Finding) -> bool:
        """Whether this finding is accepted."""
        return finding.key in self.accepted.get(audit, ())


def load_baseline(path: str | Path) -> Baseline:
    """Read a baseline."""
    try:
        baseline = msgspec.json.decode(Path(path).read_bytes(), type=Baseline)
    except OSError as error:
        raise InputError(f"Expected a baseline at {path}, but it cannot be read: {error.strerror}.") from error
    except msgspec.DecodeError as error:
        raise InputError(f"Expected a baseline in {path}, got an error: {error}.") from error
    if baseline.version > VERSION:
        raise InputError(f"Expected a baseline of version {VERSION}, got {baseline.version}: upgrade Rolltrace.")
    return baseline


def write_baseline(path: str | Path, reports: list[AuditReport], before: Baseline | None = None) -> Baseline:
    """Accept every finding of these reports, which must have all of them, and what was accepted before."""
    accepted = {} if before is None else dict(before.accepted)
    for report in reports:
        for result in report.results:
            keys = {finding.key for finding in result.findings}
            if keys:
                accepted[result.audit] = frozenset(keys.union(accepted.get(result.audit, ())))
    baseline = Baseline(accepted=accepted)
    data = msgspec.json.encode(baseline, order="deterministic")
    try:
        Path(path).write_bytes(msgspec.json.format(data, indent=2) + b"\n")
    except OSError as error:
        raise StorageError(f"The baseline cannot be written to {path}: {error.strerror}.") from error
    return baseline
