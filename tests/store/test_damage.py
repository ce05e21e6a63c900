"""Damaged segments: valid lines are read, damage is reported, and no wrong record is returned."""

import random
import shutil

import pytest

from rolltrace.errors import RecordError, UnknownNameError
from rolltrace.query import run_tables
from rolltrace.query.run import open_run
from rolltrace.store import compression as sealed
from rolltrace.store.compression import compress_segment
from rolltrace.store.reader import RunReader
from rolltrace.trace.codec import encode_rollout
from segments import frames_of, make_run, rollout_line, segment

LINES = 40


def flip(data, rng):
    """Flips some bits."""
    for _ in range(rng.choice([1, 1, 1, 2, 8])):
        place = rng.randrange(len(data))
        data[place] ^= 1 << rng.randrange(8)


def cut(data, rng):
    """Cuts the file off at some byte."""
    del data[rng.randrange(len(data)) :]


def swap(data, rng):
    """Swaps two blocks of the same length."""
    first, second = sorted(rng.sample(range(len(data)), 2))
    length = min(rng.randint(1, 4096), second - first, len(data) - second)
    one, other = data[first : first + length], data[second : second + length]
    data[first : first + length], data[second : second + length] = other, one


def repeat(data, rng):
    """Repeats a block."""
    start = rng.randrange(len(data))
    block = data[start : start + rng.randint(1, 4096)]
    place = rng.choice([start, rng.randrange(len(data))])
    data[place:place] = block


def overwrite(data, rng):
    """Overwrites a block with another."""
    start, place = rng.randrange(len(data)), rng.randrange(len(data))
    block = data[start : start + rng.randint(1, 4096)][: len(data) - place]
    data[place : place + len(block)] = block


def zero(data, rng):
    """Overwrites a block with zeros, as a file system leaves after a power loss."""
    start = rng.randrange(len(data))
    length = min(rng.randint(1, 4096), len(data) - start)
    data[start : start + length] = bytes(length)


def insert(data, rng):
    """Inserts random bytes with line feeds among them."""
    place = rng.randrange(len(data))
    data[place:place] = rng.choice([rng.randbytes(rng.randint(1, 300)), b"\n" * rng.randint(1, 9)])


def remove(data, rng):
    """Removes a block."""
    start = rng.randrange(len(data))
    del data[start : start + rng.randint(1, 4096)]


DAMAGES = (flip, cut, swap, repeat, overwrite, zero, insert, remove)
KEEP_PLACES = (flip, zero)


class DamagedRun:
    """A run of one segment, plain or compressed, with an index, that is damaged repeatedly."""

    def __init__(self, path, is_compressed):
        rng = random.Random(7)
        self.run = make_run(path)
        self.lines = {}
        self.spans = []
        data = b""
        for number in range(LINES):
            text = "".join(rng.choices('abcdefgh \n"\\é{}[],', k=rng.randint(1, 900)))
            line = rollout_line(f"{number:032x}", text)
            self.lines[f"{number:032x}"] = line
            self.spans.append((len(data), len(data) + len(line), line))
            data += line
        self.path = segment(self.run)
        self.path.write_bytes(data)
        if is_compressed:
            self.path = compress_segment(self.path)
        self.is_compressed = is_compressed
        self.whole = self.path.read_bytes()
        self.table = self._end_of_frames() if is_compressed else len(self.whole)
        with open_run(self.run) as run:
            run.sql("select count(*) from rollouts").fetchall()
        assert len(list(self.run.glob("cache/*/ids.index"))) == 1
        shutil.copytree(self.run / "cache", self.run / "kept")

    def _end_of_frames(self):
        last = frames_of(self.path)[-1]
        return last.position + last.size

    def damage(self, rng):
        """Damages the segment; the index is the one of the whole segment, or missing."""
        damage = rng.choice(DAMAGES)
        data = bytearray(self.whole)
        damage(data, rng)
        self.path.write_bytes(data)
        shutil.rmtree(self.run / "cache", ignore_errors=True)
        if rng.random() < 0.5:
            shutil.copytree(self.run / "kept", self.run / "cache")
        return damage, bytes(data)

    def examine(self, damage, data, rng):
        """Reads all that is left, and checks it against what was written."""
        reader = RunReader(self.run)
        known = set(self.lines.values())
        found = [line for _, line in reader.cursor("rollouts").read()]
        assert set(found) <= known
        rollouts = list(reader.rollouts())
        assert [encode_rollout(rollout) for rollout in rollouts] == found
        lost = [span for span in self.spans if span[2] not in set(found)]
        if lost and not self._is_valid(data):
            assert reader.read_errors, "something is lost, and nothing was said"
        if damage in KEEP_PLACES and data[self.table :] == self.whole[self.table :]:
            self._check_places(lost, {problem.offset for problem in reader.read_errors})
        for rollout in rng.sample(sorted(self.lines), 2):
            self._check_get(reader, rollout, found)

    def _is_valid(self, data):
        """Whether the damage left only whole lines, as a cut between two does: no reader can detect that."""
        return not self.is_compressed and set(data.splitlines(keepends=True)) <= set(self.lines.values())

    def _check_places(self, lost, places):
        """Asserts that each range of lost lines begins at a problem."""
        end = None
        for first, last, _ in lost:
            assert first == end or first in places
            end = last

    def _check_get(self, reader, rollout, found):
        line = self.lines[rollout]
        try:
            record = reader.get(rollout)
        except (UnknownNameError, RecordError):
            assert line not in found
        else:
            assert line in found
            assert encode_rollout(record) == line


def damage_many(path, is_compressed, times, seed, monkeypatch):
    monkeypatch.setattr(sealed, "FRAME_BYTES", 4096)
    monkeypatch.setattr(run_tables, "MIN_CACHED_BYTES", 1)
    patient = DamagedRun(path / "run", is_compressed)
    for number in range(times):
        rng = random.Random(seed * 1_000_003 + number)
        damage, data = patient.damage(rng)
        try:
            patient.examine(damage, data, rng)
        except BaseException as error:
            error.add_note(f"{damage.__name__}, seed {seed}, number {number}")
            raise


@pytest.mark.parametrize("is_compressed", [False, True], ids=["plain", "sealed"])
def test_damage_costs_only_itself(tmp_path, monkeypatch, is_compressed):
    """After any damage, every returned record is one that was written, and every loss is reported."""
    damage_many(tmp_path, is_compressed, 100, 1, monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("is_compressed", [False, True], ids=["plain", "sealed"])
def test_ten_thousand_damages(tmp_path, monkeypatch, is_compressed):
    """The same, thousands of times."""
    damage_many(tmp_path, is_compressed, 6000, 2, monkeypatch)
