"""Writes the catalogue of audits at the end of `checks.md`, from the audits themselves. `make docs` runs it."""

from itertools import groupby
from pathlib import Path

from rolltrace.check.audit import Audit, Threshold
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
        lines.append(_threshold(audit.threshold))
    return "  \n".join(filter(None, lines)) + "\n"


def _threshold(threshold: Threshold) -> str:
    needs = f", of at least {threshold.min_sample}" if threshold.min_sample else ""
    text = f"*Threshold {threshold.value:g}{needs}:* {threshold.reason}"
    if threshold.chance is not None:
        text += (
            f" If the share is really {threshold.usual_share:g}, a sample of {threshold.min_sample} is beyond the "
            f"threshold by chance in {100 * threshold.chance:.2g} % of checks."
        )
    return text


if __name__ == "__main__":
    PAGE.write_text(page_with_catalogue(PAGE.read_text()))
