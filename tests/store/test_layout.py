"""The names of a run's files: one module makes and parses them."""

import os
from contextlib import nullcontext

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolltrace.store.compression import compress_segment
from rolltrace.store.cursor import Cursor
from rolltrace.store.layout import LedgerName, SegmentName, ledger_name, segment_name, strip_extension
from rolltrace.store.run_files import LocalFiles
from rolltrace.store.segment_reader import existing_segments, list_segments
from segments import make_run, rollout_line, segment

SESSIONS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="/\0"), min_size=1, max_size=20)


@given(SESSIONS, st.one_of(st.integers(0, 1100), st.integers(999_990, 1_000_010), st.integers(0, 10**18 - 1)))
def test_segment_names_are_read_as_they_are_made(session, sequence):
    """A session and a number make one name, which is parsed back, with either suffix and without."""
    name = SegmentName(session, sequence)
    assert segment_name(session, sequence) == name.plain
    for spelling in (name.plain, name.compressed, str(name)):
        assert SegmentName.parse(spelling) == name
        assert strip_extension(spelling) == str(name)


@pytest.mark.parametrize(
    "name",
    [
        "s-00000.jsonl",
        "s-0000000.jsonl",
        f"s-{chr(0x660) * 6}.jsonl",
        "-000000.jsonl",
        "000000.jsonl",
        "s-00000a",
        "s",
        "",
    ],
)
def test_names_that_no_writer_uses_are_not_parsed(name):
    """Each segment has exactly one valid name."""
    assert SegmentName.parse(name) is None


@given(SESSIONS.filter(lambda session: "." not in session), st.integers(0, 10**6))
def test_ledger_names_are_read_as_they_are_made(session, sequence):
    """The same for ledgers, of which the first has no number."""
    assert LedgerName.parse(ledger_name(session, sequence)) == LedgerName(session, sequence)


def test_segments_are_listed_in_numeric_order(tmp_path):
    """Segments are in numeric order also past a million, and none of them counts as missing."""
    run = make_run(tmp_path / "run")
    for sequence in (999_999, 1_000_000, 1_000_001):
        segment(run, str(SegmentName("s", sequence))).write_bytes(rollout_line(f"r{sequence}"))
    segment(run, "foreign").touch()
    names = ["foreign", "s-999999", "s-1000000", "s-1000001"]
    assert list(list_segments(LocalFiles(run), "rollouts").segments) == names
    problems = []
    assert [place.file for place, _ in Cursor(LocalFiles(run), "rollouts", problems.append).read()] == [
        f"rollouts/{name}" for name in names[1:]
    ]
    assert "rollouts/s-1000000.jsonl" not in {problem.file for problem in problems}


def test_scan_returns_sizes_and_compression(tmp_path):
    """Each segment is listed once, by the file that is read: the plain one while it exists."""
    run = make_run(tmp_path / "run")
    line = rollout_line("r")
    for number in range(3):
        segment(run, f"s-{number:06d}").write_bytes(line)
    sealed = compress_segment(segment(run, "s-000000"))
    both = compress_segment(segment(run, "s-000001"))
    segment(run, "s-000001").write_bytes(line)
    segment(run, "folder").mkdir()
    (run / "rollouts/.s-000003.jsonl.zst.1").touch()
    entries = {entry.stem: entry for entry in existing_segments(LocalFiles(run), "rollouts")}
    assert both.exists()
    assert list(entries) == ["folder", "s-000000", "s-000001", "s-000002"]
    assert [entry.is_compressed for entry in entries.values()] == [False, True, False, False]
    assert [entry.is_regular for entry in entries.values()] == [False, True, True, True]
    assert entries["s-000000"].size == sealed.stat().st_size
    assert (entries["s-000002"].name, entries["s-000002"].size) == (SegmentName("s", 2), len(line))
    assert entries["folder"].name is None


def test_scan_finds_segments_that_are_compressed_meanwhile(tmp_path, monkeypatch):
    """A segment that was compressed after the listing is found; one that is gone is left out."""
    run = make_run(tmp_path / "run")
    for number in range(2):
        segment(run, f"s-{number:06d}").write_bytes(rollout_line("r"))
    with os.scandir(run / "rollouts") as entries:
        listed = list(entries)
    compress_segment(segment(run, "s-000000"))
    segment(run, "s-000001").unlink()
    real, stale = os.scandir, [nullcontext(listed)]
    monkeypatch.setattr(os, "scandir", lambda folder: stale.pop() if stale else real(folder))
    assert [(entry.stem, entry.is_compressed) for entry in existing_segments(LocalFiles(run), "rollouts")] == [
        ("s-000000", True)
    ]
