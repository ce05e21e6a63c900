"""Any value in a free-form place gives strict JSON that reads back, and never raises."""

import dataclasses
import datetime
import enum
import math
import pathlib
import uuid
from collections import OrderedDict, UserDict
from types import MappingProxyType

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rollout_builders import HOSTILE_TEXT, TEXT, finished, json_like, one_step, outcome, read, same, strict
from rolltrace.secret_redaction import redact_mapping
from rolltrace.trace import freeform
from rolltrace.trace.freeform import (
    Note,
    clean_text,
    describe,
    from_json_mapping,
    from_json_value,
    to_json_mapping,
    to_json_value,
)
from rolltrace.trace.frozen import FrozenMap
from rolltrace.trace.score import Grade

pytestmark = pytest.mark.core

STEP_PLACES = ["env_state", "extra", "logs"]
HEADER_PLACES = ["env_args", "task_data"]


class RaisedError(Exception):
    pass


class RaisingRepr:
    def __repr__(self):
        raise RaisedError


class RaisingDump:
    def model_dump(self):
        raise RaisedError


class RaisingClass:
    @property
    def __class__(self):
        raise RaisedError


class RaisingAttributes:
    def __getattr__(self, name):
        raise RaisedError


class RaisingItems(UserDict):
    def items(self):
        raise RaisedError

    __iter__ = __len__ = items


class RaisingHalfway(dict):
    def items(self):
        yield "fine", 1
        raise RaisedError


class Endless(UserDict):
    def items(self):
        number = 0
        while True:
            yield number, number
            number += 1


class EndlessList(list):
    def __iter__(self):
        while True:
            yield 1


class GivesItself:
    def tolist(self):
        return GivesItself()

    size = 1


class DumpsItself:
    def model_dump(self):
        return {"again": DumpsItself(), "once more": DumpsItself()}


class LyingText(str):
    def __str__(self):
        raise RaisedError

    isascii = encode = __str__


class list_named(list):  # noqa: N801
    pass


list_named.__name__ = "dict"


class Color(enum.Enum):
    RED = "red"


class Level(enum.IntEnum):
    HIGH = 3


class Word(enum.StrEnum):
    YES = "yes"


@dataclasses.dataclass
class Point:
    x: float
    other: object = None


class Pair(msgspec.Struct):
    left: int
    right: object


def deep(levels):
    nested = {}
    for level in range(levels):
        nested = [nested] if level % 2 else {"in": nested}
    return nested


def laughs(levels, width=10):
    shared = "ha"
    for level in range(levels):
        shared = [shared] * width if level % 2 else {str(number): shared for number in range(width)}
    return shared


def cyclic():
    loop = {"list": []}
    loop["list"].append(loop)
    return loop


HOSTILE = {
    "raising repr": RaisingRepr(),
    "raising dump": RaisingDump(),
    "raising class": RaisingClass(),
    "raising attributes": RaisingAttributes(),
    "raising items": RaisingItems(a=1),
    "raising halfway": RaisingHalfway(a=1),
    "gives itself": GivesItself(),
    "a type": dict,
    "misnamed": list_named([1]),
    "function": len,
    "module": math,
    "generator": (number for number in ()),
    "released": None,
    "deep": deep(100_000),
    "huge integer": 10**5000,
    "complex": 1j,
    "sNaN": __import__("decimal").Decimal("sNaN"),
    "exception": ValueError("\ud800"),
    "cyclic": cyclic(),
}
view = memoryview(b"gone")
view.release()
HOSTILE["released"] = view


@given(json_like())
@example({"$float": "NaN"})
@example({"$$float": {"$bytes": b""}})
@example([{"$": math.nan}, {"a": {"$unrepresentable": -0.0}}])
def test_json_like_values_come_back(value):
    """Maps, lists, text, numbers, bytes and a user's own `$` keys are read back unchanged, at any depth."""
    notes: list[Note] = []
    plain = to_json_value(value, "", notes)
    back = from_json_value(msgspec.json.decode(msgspec.json.encode(plain)))
    assert same(back, value)
    assert notes == []


@given(st.dictionaries(TEXT | st.just("$float"), json_like(), max_size=4))
@example({"$float": "NaN"})
@example({"$bytes": "aGk="})
@example({"KEY": "0"})
def test_free_form_places_come_back(values):
    """A user's map is read back from every free-form field of a line, except for secrets in `env_args`."""
    rollout_builder = one_step(dict.fromkeys(HEADER_PLACES, values), **dict.fromkeys(STEP_PLACES, values))
    rollout_builder.grade = Grade(0.0, {}, values)
    rollout = finished(rollout_builder)
    plain = to_json_mapping(values, "", [])
    has_secrets = redact_mapping(plain) != plain
    for name in HEADER_PLACES:
        assert same(getattr(rollout, name), values) is not (has_secrets and name == "env_args")
    for name in STEP_PLACES:
        assert same(getattr(rollout.steps[0], name), values)
    assert same(rollout.grade.extra, values)
    assert rollout.notes == ()
    assert same(FrozenMap.of(values).to_dict(), values)


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("place", [*STEP_PLACES, *HEADER_PLACES])
def test_hostile_values_become_placeholders_with_a_note(place, name):
    """Values that cannot be represented become placeholders with a note; the values beside them are kept."""
    values = {"bad": HOSTILE[name], "good": 1}
    rollout_builder = one_step({place: values}) if place in HEADER_PLACES else one_step(**{place: values})
    rollout = finished(rollout_builder)
    kept = getattr(rollout if place in HEADER_PLACES else rollout.steps[0], place)
    assert kept["good"] == 1
    if name != "misnamed":
        assert "$unrepresentable" in repr(kept["bad"])
        path = place if place in HEADER_PLACES else f"steps[0].{place}"
        assert rollout.notes[0].path.startswith(f"{path}.bad")


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_values_in_the_place_of_a_map_or_a_number(name):
    """A free-form field that is no map, and a numeric field, accept any value without raising."""
    value = HOSTILE[name]
    rollout_builder = one_step(
        {"env_args": value, "task_data": value},
        reward_data=value, env_state=value, extra=value, metrics={"n": value}, logs=value,
    )  # fmt: skip
    rollout_builder.grade = Grade(0.0, value, value)
    rollout = finished(rollout_builder)
    assert rollout.notes


def test_python_values_have_a_json_form():
    """Values of common Python types are kept as the nearest JSON value."""
    values = {
        "tuple": (1, 2), "enum": Color.RED, "int enum": Level.HIGH, "str enum": Word.YES,
        "point": Point(1.5, Point(math.nan)), "pair": Pair(1, Color.RED), "set": {3, 1, 2},
        "frozen": frozenset("a"), "date": datetime.date(2026, 1, 2),
        "time": datetime.datetime(2026, 1, 2, tzinfo=datetime.UTC), "path": pathlib.PurePosixPath("/a/b"),
        "uuid": uuid.UUID(int=5), "proxy": MappingProxyType({"a": 1}), "ordered": OrderedDict(b=1, a=2),
        "bytes": [bytearray(b"x"), memoryview(b"yz")[::-1]], "text": LyingText("ok"),
    }  # fmt: skip
    rollout = finished(one_step(env_state=values))
    assert rollout.notes == ()
    assert same(rollout.steps[0].env_state, {
        "tuple": [1, 2], "enum": "red", "int enum": 3, "str enum": "yes",
        "point": {"x": 1.5, "other": {"x": math.nan, "other": None}}, "pair": {"left": 1, "right": "red"},
        "set": [1, 2, 3], "frozen": ["a"], "date": "2026-01-02", "time": "2026-01-02T00:00:00+00:00",
        "path": "/a/b", "uuid": "00000000-0000-0000-0000-000000000005", "proxy": {"a": 1},
        "ordered": {"b": 1, "a": 2}, "bytes": [b"x", b"zy"], "text": "ok",
    })  # fmt: skip


def test_keys_that_are_not_text():
    """Keys become text; if two become equal, a note says which was kept."""
    notes: list[Note] = []
    plain = to_json_mapping({1: "a", "1": "b", None: 0, 1.5: 0, Color.RED: 0, (1, 2): 0}, "here", notes)
    assert plain == {"1": "b", "None": 0, "1.5": 0, "red": 0, "tuple: (1, 2)": 0}
    assert notes == [Note("here", "two keys are both '1' as text; the later one is kept")]


def test_pydantic_models_are_maps():
    """A pydantic model is kept as its fields."""
    pydantic = pytest.importorskip("pydantic")

    class Inner(pydantic.BaseModel):
        score: float

    class Outer(pydantic.BaseModel):
        inner: Inner
        name: str

    [step] = finished(one_step(env_state={"model": Outer(inner=Inner(score=math.inf), name="n")})).steps
    assert same(step.env_state, {"model": {"inner": {"score": math.inf}, "name": "n"}})


def test_numpy_arrays_are_lists_unless_huge():
    """An array becomes a list; one that would fill the disk becomes a placeholder."""
    np = pytest.importorskip("numpy")
    huge = np.broadcast_to(np.float64(0), (10**6, 10**6))
    rollout = finished(one_step(env_state={"a": np.array([[1.5, np.nan]]), "s": np.array("x"), "huge": huge}))
    state = rollout.steps[0].env_state
    assert same(state["a"], [[1.5, math.nan]])
    assert state["s"] == "x"
    assert set(state["huge"]) == {"$unrepresentable"}
    assert [note.path for note in rollout.notes] == ["steps[0].env_state.huge"]


def test_nesting_is_cut_at_the_stated_depth():
    """Containers up to the limit are read back; a deeper one becomes a placeholder."""
    notes: list[Note] = []
    kept = deep(freeform.MAX_DEPTH - 1)
    assert from_json_value(to_json_value(kept, "", notes)) == kept
    assert notes == []
    to_json_value(deep(freeform.MAX_DEPTH + 1), "place", notes)
    assert len(notes) == 1
    assert "nested deeper" in notes[0].message


def test_sharing_is_not_a_cycle():
    """The same list twice is kept twice; only a list inside itself is a cycle."""
    shared = [1]
    notes: list[Note] = []
    assert to_json_value([shared, shared], "", notes) == [[1], [1]]
    assert notes == []


@pytest.fixture
def small_limits(monkeypatch):
    monkeypatch.setattr(freeform, "MAX_VALUES", 2000)
    monkeypatch.setattr(freeform, "MAX_TEXT", 20_000)


@pytest.mark.parametrize("value", [laughs(30), laughs(9, 100), Endless(), EndlessList([1]), DumpsItself()])
@pytest.mark.usefixtures("small_limits")
def test_structures_that_unfold_without_end_are_cut(value):
    """The cost of a small structure that expands to a large one is bounded, in values, bytes and notes."""
    line = one_step(env_state={"laughs": value}).encode(outcome())
    rollout = read(line)
    assert len(line.data) < 200_000
    assert 1 <= len(rollout.notes) <= freeform.MAX_NOTES + 1
    assert any("cut after" in note.message or "nested deeper" in note.message for note in rollout.notes)


@pytest.mark.parametrize(
    "value", [["x" * 1000] * 1000, [b"x" * 1000] * 1000, {"x" * 1000 + str(n): 0 for n in range(99)}]
)
@pytest.mark.usefixtures("small_limits")
def test_text_that_repeats_without_end_is_cut(value):
    """Long text that is shared many times is bounded too."""
    line = one_step(env_state={"value": value}).encode(outcome())
    assert read(line).notes
    assert len(line.data) < 100_000


def test_many_placeholders_leave_few_notes():
    """A thousand values that cannot be kept leave a bounded number of notes."""
    rollout = finished(one_step(env_state={"all": [object() for _ in range(1000)]}))
    assert len(rollout.notes) == freeform.MAX_NOTES + 1
    assert rollout.notes[-1].message.startswith(f"{1000 - freeform.MAX_NOTES} more")


def test_generators_are_not_consumed():
    """Recording does not consume a generator that the environment still needs."""
    generator = iter([1, 2, 3])
    finished(one_step(env_state={"g": generator}))
    assert list(generator) == [1, 2, 3]


@given(HOSTILE_TEXT)
def test_any_text_can_be_written(text):
    """Lone surrogates are replaced and noted, pairs are joined, all other text is kept."""
    notes: list[Note] = []
    clean = clean_text(text, "p", notes)
    clean.encode()
    assert clean_text(clean, "p", []) == clean
    if not notes:
        assert clean == text
    rollout = finished(one_step(env_state={text: text}, logs={"t": [text]}))
    assert rollout.steps[0].logs == {"t": [clean]}
    assert bool(rollout.notes) == bool(notes)


def test_surrogates():
    """A surrogate pair becomes its character; a lone surrogate becomes U+FFFD."""
    notes: list[Note] = []
    assert clean_text("a\ud83d\ude00b\ud800c", "p", notes) == "a😀b\ufffdc"
    assert notes == [Note("p", "surrogates joined to pairs or replaced by U+FFFD: U+D800, U+D83D, U+DE00")]


@pytest.mark.parametrize(
    "marker", [{"$float": "1.5"}, {"$float": ["NaN"]}, {"$bytes": "é"}, {"$bytes": 5}, {"$bytes": "a"}, {"$other": {}}]
)
def test_unknown_markers_are_kept(marker):
    """A marker that no writer produces is read as it is, without an error."""
    assert from_json_value([marker]) == [marker]


def test_a_free_form_place_is_always_a_map():
    """A map that looks like a number's marker is still read as a map."""
    assert from_json_mapping({"$float": "NaN"}) == {"$float": "NaN"}


def test_descriptions_are_the_same_in_every_process():
    """A placeholder's text has no memory address, and is short whatever the value is."""
    assert "0x" not in describe(object())
    assert len(describe("x" * 10**6)) < 300
    assert len(describe(laughs(60))) < 300
    assert describe(RaisingRepr()).endswith("RaisingRepr instance>")


def test_lines_are_strict_json():
    """The whole line is strict JSON: no NaN, no Infinity, no line feed inside."""
    line = strict(one_step(env_state={"n": math.nan, "t": "a\nb\u2028"}).encode(outcome()).data)
    assert line["steps"][0]["env_state"] == {"n": {"$float": "NaN"}, "t": "a\nb\u2028"}


@given(st.dictionaries(TEXT, st.dictionaries(TEXT, TEXT | st.floats() | st.integers(), max_size=3) | TEXT, max_size=4))
def test_the_fast_path_for_maps_of_maps_agrees(values):
    """The fast path for small maps of flat maps agrees with the general one, and shares no map with the original."""
    walked, copied = to_json_value(values, "", []), to_json_mapping(values, "", [])
    assert copied == (walked if copied.keys() != {"value"} or walked.keys() == {"value"} else {"value": walked})
    assert all(value is not values.get(key) for key, value in copied.items() if isinstance(value, dict))
