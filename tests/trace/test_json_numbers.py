"""Numbers are read back equal, and as Python numbers."""

import enum
import math
from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollout_builders import NUMBERS, finished, one_step, outcome, same, strict
from rolltrace.trace.call import Call
from rolltrace.trace.codec import decode_score, encode_score, utc_now
from rolltrace.trace.json_numbers import as_float, as_number, json_number, parse_number
from rolltrace.trace.message import Sampling
from rolltrace.trace.score import Grade, Score
from rolltrace.trace.tokens import Tokens

pytestmark = pytest.mark.core

EXACT = [0.1 + 0.2, math.nan, math.inf, -math.inf, True, False, 0, 2**63, -(2**63), 2**64, 2**200, -0.0, 5e-324, 1e22]
FLOATS = [0.1 + 0.2, math.nan, math.inf, -math.inf, -0.0, 1.7976931348623157e308, 5e-324]


class Grades(enum.IntEnum):
    GOOD = 3


class Liar(int):
    def __int__(self):
        raise RuntimeError("no")

    __index__ = __float__ = __int__


class Weird:
    @property
    def __class__(self):
        raise RuntimeError("no")


@pytest.mark.parametrize("value", EXACT, ids=repr)
@pytest.mark.parametrize("place", ["reward_data", "metrics"])
def test_numbers_of_a_step_come_back(place, value):
    """A number in a flat map is read back equal and of its own type."""
    [step] = finished(one_step(**{place: {"n": value}})).steps
    assert same(getattr(step, place), {"n": value})


@given(st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), NUMBERS))
def test_any_numbers_come_back(values):
    """All numbers of a flat map are read back, whatever their names."""
    rollout_builder = one_step(reward_data=values, metrics=values)
    rollout_builder.metrics.update(values)
    rollout = finished(rollout_builder)
    assert same(rollout.steps[0].reward_data, values)
    assert same(rollout.steps[0].metrics, values)
    assert same(rollout.metrics, values)


@pytest.mark.parametrize("value", FLOATS, ids=repr)
def test_rewards_come_back(value):
    """Every reward of a rollout, its steps and its grade is the same float again; a duration is never negative."""
    duration = 0.0 if value < 0 else value
    rollout_builder = one_step(reward=value, env_reward=value, seconds=value)
    rollout_builder.grade = Grade(value, {"n": value}, {"n": value})
    rollout_builder.calls.append(Call("grader", "judge", (), seconds=value))
    rollout = finished(rollout_builder, reward=value, reward_so_far=value, unclamped_reward=value)
    [step] = rollout.steps
    for back in (step.reward, step.env_reward, rollout.reward, rollout.reward_so_far):
        assert same(back, value)
    assert same(step.seconds, duration)
    assert same(rollout.unclamped_reward, value)
    assert same(rollout.grade, Grade(value, {"n": value}, {"n": value}))
    assert same(rollout.calls[0].seconds, duration)


@pytest.mark.parametrize("value", FLOATS, ids=repr)
def test_score_values_come_back(value):
    """The value of a score is the same float again, and so are the numbers in its data."""
    score = Score(id="s", run="r", name="n", value=value, data={"x": [value]}, created_at=utc_now())
    line = encode_score(score)
    strict(line)
    assert same(decode_score(line), score)


@given(st.lists(st.floats()))
def test_log_probabilities_come_back(values):
    """Log-probabilities are read back as floats, −inf included."""
    tokens = Tokens((1,), tuple(range(len(values))), tuple(values))
    assert same(finished(one_step(tokens=tokens)).steps[0].tokens, tokens)


@pytest.mark.parametrize("value", FLOATS, ids=repr)
def test_sampling_comes_back(value):
    """Settings that are not finite are told from missing settings."""
    [sampling] = finished(one_step(sampling=Sampling(temperature=value))).sampling
    assert same(sampling.temperature, value)


def test_numpy_scalars_come_back_as_python_numbers():
    """Scalars of numpy are accepted wherever a number is."""
    np = pytest.importorskip("numpy")
    values = {
        "f32": np.float32(0.1), "f64": np.float64(0.1), "i64": np.int64(2**62), "bool": np.bool_(True),
        "nan": np.float32("nan"), "inf": np.float16("inf"), "zero": np.array(3), "one": np.array([4.5]),
        "long": np.longdouble(0.25),
    }  # fmt: skip
    plain = {
        "f32": float(np.float32(0.1)), "f64": 0.1, "i64": 2**62, "bool": True,
        "nan": math.nan, "inf": math.inf, "zero": 3, "one": 4.5, "long": 0.25,
    }  # fmt: skip
    rollout_builder = one_step(
        {"index": np.int64(2), "seed": np.int64(7)},
        reward=np.float32(0.5),
        env_reward=np.float32("nan"),
        reward_data=values,
        metrics=values,
        env_state=values,
        seconds=np.float32(2),
        policy_version=np.int64(12),
        sampling=Sampling(temperature=np.float32(0.5), max_tokens=np.int64(9)),
        tokens=Tokens(np.arange(3), [np.int64(4)], np.array([-1.5, -math.inf], dtype=np.float32)),
    )
    rollout_builder.grade = Grade(np.float32("nan"), values)
    rollout_builder.metrics.update(values)
    rollout = finished(rollout_builder, reward=np.float32(1), reward_so_far=np.float64(1))
    [step] = rollout.steps
    assert same(step.reward_data, plain)
    assert same(step.metrics, plain)
    assert same(rollout.metrics, plain)
    assert same(step.env_state, {**plain, "one": [4.5]})
    assert same([step.reward, step.env_reward, step.seconds, step.policy_version], [0.5, math.nan, 2.0, 12])
    assert same(step.tokens, Tokens((0, 1, 2), (4,), (-1.5, -math.inf)))
    assert same(rollout.grade, Grade(math.nan, plain))
    assert same([rollout.reward, rollout.index, rollout.seed], [1.0, 2, 7])
    assert rollout.sampling == (Sampling(temperature=0.5, max_tokens=9),)
    assert rollout.notes == ()
    score = Score(id="s", run="r", name="n", value=np.float32(0.5), created_at=utc_now())
    assert same(decode_score(encode_score(score)).value, 0.5)


@pytest.mark.parametrize(
    ("value", "number"),
    [
        (Decimal("0.1"), 0.1),
        (Decimal("NaN"), math.nan),
        (Decimal("-Infinity"), -math.inf),
        (Fraction(1, 3), 1 / 3),
        (Grades.GOOD, 3),
        (Liar(7), 7),
    ],
)
def test_other_numbers_are_numbers(value, number):
    """Numbers of other types become the nearest Python number, with few calls of their methods."""
    assert same(as_number(value), number)
    assert same(finished(one_step(reward_data={"n": value})).steps[0].reward_data, {"n": number})


@pytest.mark.parametrize(
    "value",
    ["0.5", "NaN", b"1", None, 1j, [1.0], {"a": 1}, Decimal("1e400"), Decimal("sNaN"), 10**5000, object()],
    ids=lambda value: type(value).__name__,
)
def test_other_values_are_not_numbers(value):
    """Text, containers and values that no float can hold are not numbers; nothing raises."""
    assert as_number(value) is None
    assert as_float(value) is None


def test_asking_a_hostile_object_does_not_raise():
    """An object that raises when asked for its class is not a number."""
    assert as_number(Weird()) is None


def test_an_integer_too_large_for_a_float_is_a_number_but_no_float():
    """An integer keeps all its digits; as a reward, which is a float, it is refused and not rounded to infinity."""
    assert as_number(10**400) == 10**400
    assert as_float(10**400) is None


@pytest.mark.parametrize("place", ["reward_data", "metrics"])
def test_a_non_numeric_value_is_moved_to_extra_and_noted(place):
    """A value that is not a number is left out of the map and moved to `extra`, with a note."""
    rollout = finished(one_step(**{place: {"good": 1, "bad": "0.50"}}, extra={"mine": "x"}))
    [step] = rollout.steps
    assert getattr(step, place) == {"good": 1}
    assert step.extra == {"mine": "x", f"{place}.bad": "0.50"}
    assert [(note.path, note.message) for note in rollout.notes] == [
        (f"steps[0].{place}.bad", "not a number: moved to extra")
    ]


def test_moved_values_never_overwrite_those_of_the_user():
    """If `extra` already has an entry of that name, both are kept."""
    [step] = finished(one_step(reward_data={"a": "moved"}, extra={"reward_data.a": "mine"})).steps
    assert step.extra == {"reward_data.a": "mine", "non_numeric": {"reward_data.a": "moved"}}


def test_moving_keeps_the_users_dollar_keys():
    """A `$` key in `extra` is unchanged when another entry is added."""
    [step] = finished(one_step(reward_data={"a": "moved"}, extra={"$x": 1})).steps
    assert step.extra == {"$x": 1, "reward_data.a": "moved"}


@pytest.mark.parametrize("reward", ["1.0", None, [1.0], 10**400])
def test_a_reward_that_is_not_a_number_is_nan_and_kept_in_extra(reward):
    """A reward is never parsed from text; the record says what was given."""
    rollout = finished(one_step(reward=reward))
    assert math.isnan(rollout.steps[0].reward)
    assert rollout.steps[0].extra == {"reward": reward}
    assert rollout.notes[0].path == "steps[0].reward"


def test_non_numeric_values_of_grade_score_and_rollout_are_kept_or_noted():
    """Without `extra`, a value that is not a number is put into the data, or described in a note."""
    rollout_builder = one_step()
    rollout_builder.grade = Grade("high", {"a": 1, "b": "x"})
    rollout_builder.metrics["c"] = "fast"
    rollout = finished(rollout_builder)
    assert math.isnan(rollout.grade.reward)
    assert rollout.grade.reward_data == {"a": 1}
    assert rollout.grade.extra == {"reward": "high", "reward_data.b": "x"}
    assert rollout.metrics == {}
    assert any(note.path == "metrics.c" and "'fast'" in note.message for note in rollout.notes)
    score = decode_score(encode_score(Score(id="s", run="r", name="n", value="high", created_at=utc_now())))
    assert (score.value, score.data) == (None, {"value": "high"})


@given(NUMBERS)
def test_a_number_is_written_as_text_only_if_not_finite(value):
    """Only NaN and the infinities are written as text."""
    line = strict(one_step(reward_data={"n": value}, env_state={"n": value}).encode(outcome()).data)
    written = line["steps"][0]["reward_data"]["n"]
    if isinstance(written, str):
        assert written in {"NaN", "Infinity", "-Infinity"}
        assert not math.isfinite(value)
    free = line["steps"][0]["env_state"]["n"]
    assert free == {"$float": written} if isinstance(written, str) else same(free, written)


@given(NUMBERS)
def test_encoding_a_number_is_invertible(value):
    """`parse_number` inverts `json_number`."""
    assert same(parse_number(json_number(value)), value)
