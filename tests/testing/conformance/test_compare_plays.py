from rolltrace.testing.conformance.compare_plays import difference, without_timings


def test_measured_times_are_left_out():
    """Durations and times differ from play to play, and are not compared."""
    value = {"calls": [{"name": "add", "seconds": 0.1}], "tool_seconds": 3, "started_at": "now", "lattice": 1}
    assert without_timings(value) == {"calls": [{"name": "add"}], "lattice": 1}


def test_values_that_are_not_equal_to_themselves_are_the_same():
    """A NaN in both plays is no difference."""
    assert difference(without_timings({"a": float("nan")}), without_timings({"a": float("nan")})) is None


def test_the_first_difference_is_found_where_it_is():
    """The difference names its path, so that a reader need not compare two long values."""
    assert difference({"a": 1, "b": {"c": 2}}, {"a": 1, "b": {"c": 3}}) == ("['b']['c']", 2, 3)
    assert difference({"a": 1}, {}) == ("['a']", 1, None)
    assert difference([1], [2]) == ("", [1], [2])
