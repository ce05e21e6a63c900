"""Damaged segments: what is whole is read, what is not is named, and nothing wrong is ever taken for right."""

import random
import shutil

import pytest

from rolltrace.errors import RecordError, UnknownNameError
from rolltrace.store import offsets, sealed
from rolltrace.store.frames import Frames
from rolltrace.store.reader import RunReader
from rolltrace.store.sealed import seal_file
from rolltrace.trace.codec import encode_rollout
from segments import make_run, rollout_line, segment

LINES = 40


def flip(data, chance):
    """Some bits flipped."""
    for _ in range(chance.choice([1, 1, 1, 2, 8])):
        place = chance.randrange(len(data))
        data[place] ^= 1 << chance.randrange(8)


def cut(data, chance):
    """Cut off at some byte."""
    del data[chance.randrange(len(data)) :]


def swap(data, chance):
    """Two blocks of the same length in each other's place."""
    first, second = sorted(chance.sample(range(len(data)), 2))
    length = min(chance.randint(1, 4096), second - first, len(data) - second)
    one, other = data[first : first + length], data[second : second + length]
    data[first : first + length], data[second : second + length] = other, one


def repeat(data, chance):
    """A block that is there twice."""
    start = chance.randrange(len(data))
    block = data[start : start + chance.randint(1, 4096)]
    place = chance.choice([start, chance.randrange(len(data))])
    data[place:place] = block


def overwrite(data, chance):
    """A block written over another."""
    start, place = chance.randrange(len(data)), chance.randrange(len(data))
    block = data[start : start + chance.randint(1, 4096)][: len(data) - place]
    data[place : place + len(block)] = block


def zero(data, chance):
    """A block of zeros, as a file system leaves after a power loss."""
    start = chance.randrange(len(data))
    length = min(chance.randint(1, 4096), len(data) - start)
    data[start : start + length] = bytes(length)


def insert(data, chance):
    """Bytes that nobody wrote, line feeds among them."""
    place = chance.randrange(len(data))
    data[place:place] = chance.choice([chance.randbytes(chance.randint(1, 300)), b"\n" * chance.randint(1, 9)])


def remove(data, chance):
    """A block that is missing."""
    start = chance.randrange(len(data))
    del data[start : start + chance.randint(1, 4096)]


DAMAGES = (flip, cut, swap, repeat, overwrite, zero, insert, remove)
KEEP_PLACES = (flip, zero)


class Patient:
    """A run of one segment, plain or sealed, with an index, that is damaged again and again."""

    def __init__(self, path, is_sealed):
        chance = random.Random(7)
        self.run = make_run(path)
        self.lines = {}
        self.spans = []
        data = b""
        for number in range(LINES):
            text = "".join(chance.choices('abcdefgh \n"\\é{}[],', k=chance.randint(1, 900)))
            line = rollout_line(f"{number:032x}", text)
            self.lines[f"{number:032x}"] = line
            self.spans.append((len(data), len(data) + len(line), line))
            data += line
        self.path = segment(self.run)
        self.path.write_bytes(data)
        if is_sealed:
            self.path = seal_file(self.path)
        self.is_sealed = is_sealed
        self.whole = self.path.read_bytes()
        self.table = self._end_of_frames() if is_sealed else len(self.whole)
        RunReader(self.run).offsets.update()
        assert len(list(self.run.glob("cache/*"))) == 1
        shutil.copytree(self.run / "cache", self.run / "kept")

    def _end_of_frames(self):
        with self.path.open("rb") as file:
            last = list(Frames(file.fileno()))[-1]
        return last.position + last.size

    def damage(self, chance):
        """Damage the segment; the index is the one of the whole segment, or there is none."""
        damage = chance.choice(DAMAGES)
        data = bytearray(self.whole)
        damage(data, chance)
        self.path.write_bytes(data)
        shutil.rmtree(self.run / "cache", ignore_errors=True)
        if chance.random() < 0.5:
            shutil.copytree(self.run / "kept", self.run / "cache")
        return damage, bytes(data)

    def examine(self, damage, data, chance):
        """Read all that is left, and check it against what was written."""
        reader = RunReader(self.run)
        known = set(self.lines.values())
        found = [line for _, line in reader.cursor("rollouts").read()]
        assert set(found) <= known
        rollouts = list(reader.rollouts())
        assert [encode_rollout(rollout) for rollout in rollouts] == found
        lost = [span for span in self.spans if span[2] not in set(found)]
        if lost and not self._is_sound(data):
            assert reader.problems, "something is lost, and nothing was said"
        if damage in KEEP_PLACES and data[self.table :] == self.whole[self.table :]:
            self._check_places(lost, {problem.offset for problem in reader.problems})
        for rollout in chance.sample(sorted(self.lines), 2):
            self._check_get(reader, rollout, found)

    def _is_sound(self, data):
        """Whether the damage left only whole lines, as after a cut between two: no reader could tell."""
        return not self.is_sealed and set(data.splitlines(keepends=True)) <= set(self.lines.values())

    def _check_places(self, lost, places):
        """Each stretch of lost lines begins where a problem is."""
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


def damage_many(path, is_sealed, times, seed, monkeypatch):
    monkeypatch.setattr(sealed, "FRAME_BYTES", 4096)
    monkeypatch.setattr(offsets, "_MOST_LINES", 10)
    patient = Patient(path / "run", is_sealed)
    for number in range(times):
        chance = random.Random(seed * 1_000_003 + number)
        damage, data = patient.damage(chance)
        try:
            patient.examine(damage, data, chance)
        except BaseException as error:
            error.add_note(f"{damage.__name__}, seed {seed}, number {number}")
            raise


@pytest.mark.parametrize("is_sealed", [False, True], ids=["plain", "sealed"])
def test_damage_costs_only_itself(tmp_path, monkeypatch, is_sealed):
    """After any damage every record that is returned is one that was written, and what is lost is named."""
    damage_many(tmp_path, is_sealed, 100, 1, monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("is_sealed", [False, True], ids=["plain", "sealed"])
def test_ten_thousand_damages(tmp_path, monkeypatch, is_sealed):
    """The same, thousands of times."""
    damage_many(tmp_path, is_sealed, 6000, 2, monkeypatch)
