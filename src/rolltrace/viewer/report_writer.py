"""Writes a part of a run as one file to be read elsewhere: a page, or a tree of JSON."""

import contextlib
import os
import re
from collections.abc import Iterable, Iterator
from itertools import count
from pathlib import Path
from typing import BinaryIO

import msgspec

from rolltrace.check.check_run import check_run
from rolltrace.errors import InputError, StorageError
from rolltrace.query.run import Run
from rolltrace.store.layout import ROLLOUTS, is_run
from rolltrace.store.object_address import as_path
from rolltrace.store.object_files import files_of
from rolltrace.store.reader import RunReader
from rolltrace.store.safe_files import publish_file, remove_abandoned_files, unfinished_file
from rolltrace.temp_folders import explain_full_disk, temporary_folder
from rolltrace.viewer.findings import MAX_ROLLOUTS, findings_response
from rolltrace.viewer.json_response import encode_response, to_browser_types
from rolltrace.viewer.open_runs import OpenRuns
from rolltrace.viewer.page_files import page_folder
from rolltrace.viewer.report_data import ReportData, fields_without
from rolltrace.viewer.report_page import ReportBlocks, report_html
from rolltrace.viewer.run_list import RunList
from rolltrace.viewer.run_subset import Progress, RunSubset, select_subset, write_subset
from rolltrace.viewer.schemas import FindingsResponse

_MAX_CHECKED_BYTES = 256 << 20
_MAX_CHECKED_LINE = 8 << 20
"""A run with larger files of rollouts, or a longer line, is not checked for a report."""


def write_report(
    run: str | Path,
    out: str | Path,
    *,
    where: str | None = None,
    groups: int | None = None,
    as_json: bool = False,
    on_progress: Progress = lambda *_: None,
) -> str:
    """Write a report on the groups of `run` with a rollout that fulfils `where`, at most so many of them.

    It is a page of its own, or with `as_json` a tree: the run, its groups, their rollouts. What is returned says in
    words what it holds and what it leaves out. `on_progress` is called for each rollout.
    """
    place = _place_for(Path(out), as_path(run))
    if not as_json:
        page_folder()  # without the page, nothing is begun
    with _excerpt(run, where, groups, on_progress) as (whole, data):
        _write(_tree(data, on_progress) if as_json else _page(whole, data, on_progress), place)
        return data.text


def stream_tree(
    run: str | Path,
    out: BinaryIO,
    *,
    where: str | None = None,
    groups: int | None = None,
    on_progress: Progress = lambda *_: None,
) -> str:
    """Write the tree of JSON to a stream; what is returned says in words what it holds and what it leaves out."""
    with _excerpt(run, where, groups, on_progress) as (_, data):
        out.writelines(_tree(data, on_progress))
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
def _excerpt(
    run: str | Path, where: str | None, groups: int | None, on_progress: Progress
) -> Iterator[tuple[Run, ReportData]]:
    with Run([RunReader(run)]) as whole, temporary_folder() as folder:
        part = select_subset(whole, where, groups)
        with explain_full_disk():
            written = write_subset(whole, part, folder / "runs" / "run", on_progress)
        library = OpenRuns(folder / "runs")
        with contextlib.closing(library), library.open("run") as excerpt:
            card = RunList(library).one(excerpt.key)
            yield whole, ReportData(whole, part, written, excerpt, card)


def _page(whole: Run, data: ReportData, on_progress: Progress) -> Iterator[bytes]:
    blocks = ReportBlocks(data, whole, on_progress)
    return report_html(
        f"{data.name} · Rolltrace", blocks, lambda: blocks.head(_findings(whole, data.part, on_progress))
    )


def _findings(run: Run, part: RunSubset, on_progress: Progress) -> FindingsResponse:
    """What `check` finds in the whole run: in a part of one it would miss what was left out."""
    size = sum(file.size for file in files_of(run.path).existing(ROLLOUTS))
    if part.all_rollouts > MAX_ROLLOUTS or size > _MAX_CHECKED_BYTES or _longest_line(run) > _MAX_CHECKED_LINE:
        message = "The run is too large to be checked for a report: `rolltrace check` does it."
        return FindingsResponse(state="absent", stale=False, audits=0, found=(), message=message)
    checked = check_run(run.path, on_progress=lambda done, _: on_progress(done, part.all_rollouts, "checking"))
    return findings_response(checked)


def _longest_line(run: Run) -> int:
    return max((location.length for location in run.locations("rollouts", "true").values()), default=0)


def _tree(data: ReportData, on_progress: Progress) -> Iterator[bytes]:
    head = {
        "v": 1,
        "selection": {"text": data.text, **to_browser_types(data.part)},
        "run": to_browser_types(data.run),
    }
    yield msgspec.json.encode(head)[:-1] + b',"groups":['
    rollouts = count(1)
    for place, group in enumerate(data.groups()):
        comparison = group.answer.group
        # The messages that the members show are those of their records.
        fields = {
            **fields_without(comparison, "shared", "members"),
            "members": [fields_without(member, "messages") for member in comparison.members],
        }
        yield (b",\n" if place else b"\n") + encode_response(fields)[:-1] + b',"rollouts":['
        for number, rollout in enumerate(group.rollouts):
            yield (b",\n" if number else b"") + rollout.json
            on_progress(next(rollouts), len(data.written.ids), "writing")
        yield b"]}"
    yield b"\n]}\n"


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
