"""Histograms: every number in exactly one bin, between readable edges."""

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from answers import score, write
from rolltrace.errors import InputError
from rolltrace.query.histogram import histogram, query_histogram
from rolltrace.store.create import create_run

anything = st.none() | st.floats()
usual = st.sampled_from([0.0, 0.1, 0.5, 1.0, -1.0]) | st.floats(-1.0, 1.0)


@given(st.lists(anything | usual, max_size=30), st.integers(1, 40))
def test_every_number_is_in_one_bin(values, most):
    """The bins are adjacent, ordered, bounded in number, and hold each finite number once; others are counted apart."""
    found = histogram(values, most)
    finite = [value for value in values if value is not None and math.isfinite(value)]
    assert len(found.bins) <= most
    assert found.n == len(finite) == sum(one.n for one in found.bins)
    assert found.missing == values.count(None)
    assert found.n + found.missing + found.non_finite == len(values)
    for one, following in pairwise(found.bins):
        assert one.low < one.high == following.low < following.high
    for place, one in enumerate(found.bins):
        is_last = place == len(found.bins) - 1
        assert one.n == sum(one.low <= value < one.high or (is_last and value == one.high) for value in finite)
    if finite:
        assert (found.min, found.max) == (min(finite), max(finite))


def test_edges_are_round():
    """Edges have few digits: 0.3 and not 0.30000000000000004."""
    edges = [one.low for one in histogram([0.0, 1.0], 10).bins]
    assert edges == [0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9]
    assert [one.low for one in histogram([0.013, 0.061], 5).bins] == [0.0, 0.02, 0.04, 0.06]
    assert [(one.low, one.high) for one in histogram([-3.0, 994.0], 4).bins] == [
        (-500.0, 0.0), (0.0, 500.0), (500.0, 1000.0),
    ]  # fmt: skip


def test_equal_numbers_have_one_bin():
    """Equal numbers have one bin, and no numbers have none."""
    assert [(one.low, one.high, one.n) for one in histogram([2.5] * 4).bins] == [(2.5, 2.5, 4)]
    assert histogram([None, math.nan]).bins == ()


@pytest.mark.parametrize(
    "values", [[-1.7e308, 1.7e308], [0.0, 5e-324], [1e16, 1e16 + 2], [1.0, math.nextafter(1.0, 2.0)]]
)
def test_numbers_of_any_size_have_bins(values):
    """Neither a range that overflows nor one too narrow for an edge is an error."""
    assert sum(one.n for one in histogram(values).bins) == 2


def test_a_bin_is_needed():
    """A histogram of 0 bins is refused."""
    with pytest.raises(InputError, match="at least one bin"):
        histogram([0.0, 1.0], 0)


def test_sql_counts_as_python_does(opened, path):
    """SQL puts a run's rewards into the same bins as Python; earlier attempts do not count."""
    rewards = [0.1 * number for number in range(11)] + [0.30000000000000004, 1.0, math.nan, None, -0.7, 1e-9]
    with create_run(path) as writer:
        for index, reward in enumerate(rewards):
            write(writer, index=index, reward=reward)
        write(writer, index=99, attempt=0, reward=50.0)
        late = write(writer, index=99, attempt=1, reward=50.0)
        score(writer, late, 0.25)
    run = opened(path)
    assert query_histogram(run) == histogram([*rewards, 0.25])
    assert query_histogram(run, max_bins=3) == histogram([*rewards, 0.25], 3)


def test_any_expression_is_counted(opened, path):
    """Any expression over any rows can be counted: other values are missing, and parameters are not part of the SQL."""
    with create_run(path) as writer:
        for index in range(4):
            write(writer, index=index, steps=index + 1, env="a" if index else "b", metrics={"x": float(index)})
    run = opened(path)
    assert query_histogram(run, "metrics['x']", "env = ?", ["a"]) == histogram([1.0, 2.0, 3.0])
    assert query_histogram(run, "steps -- all of them") == histogram([1.0, 2.0, 3.0, 4.0])
    assert query_histogram(run, "env").missing == 4
    assert query_histogram(run, "step", table="steps").n == 10
    assert query_histogram(run, where="env = 'c'").bins == ()
