"""Writes a part of a run as one file to be read elsewhere: a page, or a tree of JSON."""

import contextlib
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from rolltrace.check.check_run import check_run
from rolltrace.errors import InputError, StorageError
from rolltrace.query.run import Run
from rolltrace.query.run_totals import query_totals
from rolltrace.store.layout import is_run
from rolltrace.store.reader import RunReader
from rolltrace.store.safe_files import publish_file, remove_abandoned_files, unfinished_file
from rolltrace.temp_folders import explain_full_disk, temporary_folder
from rolltrace.viewer.findings import MAX_ROLLOUTS, findings_response
from rolltrace.viewer.json_response import encode_response, to_browser_types
from rolltrace.viewer.open_runs import OpenRuns
from rolltrace.viewer.page_files import page_folder
from rolltrace.viewer.report_data import ReportData, ReportGroup, fields_without
from rolltrace.viewer.report_page import ReportBlocks, report_html
from rolltrace.viewer.run_list import RunList
from rolltrace.viewer.run_subset import RunSubset, select_subset, selected_ids, write_subset
from rolltrace.viewer.schemas import FindingsResponse

DEFAULT_ROLLOUTS = 1_000
"""About how many rollouts a report holds unless the number of groups is given."""


def write_report(
    run: str | Path, out: str | Path, *, where: str | None = None, groups: int | None = None, as_json: bool = False
) -> str:
    """Write a report on the groups of `run` with a rollout that fulfils `where`, at most so many of them.

    It is a page of its own, or with `as_json` a tree: the run, its groups, their rollouts, each record whole. What is
    returned says in words what it holds.
    """
    place = _place_for(Path(out), Path(run))
    if not as_json:
        page_folder()  # without the page, nothing is begun
    with _excerpt(run, where, groups) as (whole, data):
        _write(_tree(data) if as_json else _page(whole, data), place)
        return data.text


def stream_tree(run: str | Path, out: BinaryIO, *, where: str | None = None, groups: int | None = None) -> str:
    """Write the tree of JSON to a stream; what is returned says in words what it holds."""
    with _excerpt(run, where, groups) as (_, data):
        out.writelines(_tree(data))
        return data.text


def _place_for(out: Path, run: Path) -> Path:
    """Where the report goes, links followed; what must not be replaced is refused before anything is done."""
    place = out.resolve()
    if place.exists() and not place.is_file():
        kind = "a directory" if place.is_dir() else "something else"
        raise InputError(f"Expected a file to write the report to, got {kind}: {out}.")
    if not place.parent.is_dir():
        raise InputError(f"Expected a directory for the report, found none at {out.parent}: make it first.")
    inside = next((folder for folder in place.parents if is_run(folder)), None)
    if inside is not None or place.is_relative_to(run.resolve()):
        raise InputError(f"Expected a place outside of any run, got {out}: what a run holds is not replaced.")
    return place


@contextlib.contextmanager
def _excerpt(run: str | Path, where: str | None, groups: int | None) -> Iterator[tuple[Run, ReportData]]:
    with Run([RunReader(run)]) as whole, temporary_folder() as folder:
        part = select_subset(whole, where, _fitting(whole) if groups is None else groups)
        with explain_full_disk():
            write_subset(whole, part, folder / "runs" / "run")
        library = OpenRuns(folder / "runs")
        with contextlib.closing(library), library.open("run") as excerpt:
            card = RunList(library).one(excerpt.key)
            yield whole, ReportData(whole, part, set(selected_ids(whole, part)), excerpt, card)


def _fitting(run: Run) -> int | None:
    """How many groups hold about as many rollouts as a report should."""
    totals = query_totals(run)
    return None if totals.rollouts <= DEFAULT_ROLLOUTS else max(1, DEFAULT_ROLLOUTS * totals.groups // totals.rollouts)


def _page(whole: Run, data: ReportData) -> Iterator[bytes]:
    blocks = ReportBlocks(data, whole)
    return report_html(f"{data.name} · Rolltrace", blocks, lambda: blocks.head(_findings(whole.path, data.part)))


def _findings(run: Path, part: RunSubset) -> FindingsResponse:
    """What `check` finds in the whole run: in a part of one it would miss what was left out."""
    if part.all_rollouts > MAX_ROLLOUTS:
        message = (
            f"A run of more than {MAX_ROLLOUTS:,} rollouts is not checked for a report: `rolltrace check` does it."
        )
        return FindingsResponse(state="absent", stale=False, audits=0, found=(), message=message)
    return findings_response(check_run(run))


def _tree(data: ReportData) -> Iterator[bytes]:
    head = {
        "v": 1,
        "selection": {"text": data.text, **to_browser_types(data.part)},
        "run": to_browser_types(data.run),
    }
    yield msgspec.json.encode(head)[:-1] + b',"groups":['
    for place, group in enumerate(data.groups()):
        yield (b",\n" if place else b"\n") + encode_response(_branch(group))
    yield b"\n]}\n"


def _branch(group: ReportGroup) -> dict[str, Any]:
    """A group with its rollouts; the messages that its members show are those of their records."""
    comparison = group.answer.group
    return {
        **fields_without(comparison, "shared", "members"),
        "members": [fields_without(member, "messages") for member in comparison.members],
        "rollouts": [msgspec.Raw(rollout.json) for rollout in group.rollouts.values()],
    }


def _write(pieces: Iterable[bytes], place: Path) -> None:
    """Write a file atomically: the file that it replaces stays until the new one is complete."""
    try:
        remove_abandoned_files(place.parent, re.compile(rf"\.{re.escape(place.name)}\.[0-9]+\.new"))
        with unfinished_file(place.with_name(f".{place.name}.{os.getpid()}.new")) as unfinished:
            with unfinished.open("xb") as file:
                file.writelines(pieces)
            publish_file(unfinished, place, sync=False)
    except OSError as error:
        raise StorageError(f"The report could not be written to {place}: {error}.") from error
