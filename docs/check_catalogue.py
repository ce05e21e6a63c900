"""Writes the catalogue of audits at the end of `checks.md`, from the audits themselves. `make docs` runs it."""

from itertools import groupby
from pathlib import Path

from rolltrace.check.audit import Audit
from rolltrace.check.audit_registry import built_in_audits

PAGE = Path(__file__).parent / "checks.md"
HEADING = "## The audits\n"


def page_with_catalogue(page: str) -> str:
    """The page, with what follows its last heading replaced."""
    sections = (_family(name, list(audits)) for name, audits in groupby(built_in_audits(), lambda one: one.family))
    return page.partition(HEADING)[0] + HEADING + "\n" + "\n".join(sections)


def _family(name: str, audits: list[Audit]) -> str:
    return f"### {name.capitalize()}\n\n" + "\n".join(map(_entry, audits))


def _entry(audit: Audit) -> str:
    lines = [f"**`{audit.name}`** ({audit.severity.value}). {audit.holds}", audit.why, audit.fix]
    if audit.threshold is not None:
        needs = f", of at least {audit.threshold.min_sample}" if audit.threshold.min_sample else ""
        lines.append(f"*Threshold {audit.threshold.value:g}{needs}:* {audit.threshold.reason}")
    return "  \n".join(filter(None, lines)) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page_with_catalogue(PAGE.read_text()))
