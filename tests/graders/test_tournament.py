import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolltrace.errors import UnknownNameError
from rolltrace.graders.tournament import (
    Matchup,
    MemberMatchup,
    TournamentPattern,
    TournamentResults,
    chunks,
    pairings,
    parse_pattern,
)

PLACES = range(6)


def table(*matchups, members=4):
    return TournamentResults(members, tuple(Matchup(*matchup) for matchup in matchups))


def test_pairs_of_small_groups():
    """Examples: one way each pair meets once, both ways twice; members meet only within their chunk."""
    assert pairings(3, TournamentPattern.ONE_WAY, 4) == [(0, 1), (0, 2), (1, 2)]
    assert sorted(pairings(3, TournamentPattern.BOTH_WAYS, 4)) == [(0, 1), (0, 2), (1, 0), (1, 2), (2, 0), (2, 1)]
    assert pairings(4, TournamentPattern.ONE_WAY, 2) == [(0, 1), (2, 3)]
    assert pairings(5, TournamentPattern.ONE_WAY, 4) == [(0, 1), (0, 2), (1, 2), (3, 4)]
    assert pairings(7, TournamentPattern.ONE_WAY, 3) == [(0, 1), (0, 2), (1, 2), (3, 4), (5, 6)]
    assert pairings(1, TournamentPattern.BOTH_WAYS, 4) == []
    assert pairings(0, TournamentPattern.BOTH_WAYS, 4) == []


def test_sizes_of_chunks():
    """Examples: sizes are nearly equal, larger chunks first, with one chunk of three if pairs leave one over."""
    sizes = {(n, chunk): [len(places) for places in chunks(n, chunk)] for n in range(12) for chunk in range(2, 6)}
    assert sizes[5, 4] == [3, 2]
    assert sizes[9, 4] == [3, 3, 3]
    assert sizes[6, 4] == [3, 3]
    assert sizes[8, 4] == [4, 4]
    assert sizes[11, 5] == [4, 4, 3]
    assert sizes[3, 2] == [3]
    assert sizes[7, 2] == [3, 2, 2]
    assert sizes[1, 4] == [1]
    assert sizes[0, 4] == []


@given(members=st.integers(0, 60), chunk=st.integers(2, 61))
def test_laws_of_chunks(members, chunk):
    """There are ceil(n / chunk) chunks, in order, of sizes that differ by at most one, and never of one member.

    Only for chunks of two there may be fewer: an odd group then has one chunk of three.
    """
    made = chunks(members, chunk)
    assert [place for places in made for place in places] == list(range(members))
    sizes = [len(places) for places in made]
    if members < 2:
        assert sizes == [1] * members
        return
    assert min(sizes) >= 2
    assert max(sizes) - min(sizes) <= 1
    odd_pairs = chunk == 2 and members % 2 == 1
    assert len(sizes) == math.ceil(members / chunk) - odd_pairs
    assert max(sizes) <= chunk + odd_pairs


@given(members=st.integers(0, 40), chunk=st.integers(2, 41), pattern=st.sampled_from(TournamentPattern))
def test_who_meets_whom(members, chunk, pattern):
    """Two members meet exactly if they share a chunk: once, lower first, or once each way; no member is left out."""
    expected = {
        pair
        for places in chunks(members, chunk)
        for pair in itertools.permutations(places, 2)
        if pattern is TournamentPattern.BOTH_WAYS or pair[0] < pair[1]
    }
    pairs = pairings(members, pattern, chunk)
    assert len(pairs) == len(set(pairs))
    assert set(pairs) == expected
    met = {place for pair in pairs for place in pair}
    assert met == (set(range(members)) if members > 1 else set())


def test_patterns_by_name():
    """An unknown name is refused with a list of the known ones."""
    assert parse_pattern("both_ways") is TournamentPattern.BOTH_WAYS
    with pytest.raises(UnknownNameError, match="one_way"):
        parse_pattern("one-way")


def test_each_side_sees_its_own_score():
    """The second side has the negated score; zero stays zero, and an error is on both sides."""
    sides = table((0, 1, 0.75), (1, 0, 0.0), (0, 2, None, "no idea")).member_matchups()
    assert sides[0] == [
        MemberMatchup(1, "first", 0.75),
        MemberMatchup(1, "second", 0.0),
        MemberMatchup(2, "first", None, "no idea"),
    ]
    assert sides[1] == [MemberMatchup(0, "second", -0.75), MemberMatchup(0, "first", 0.0)]
    assert sides[2] == [MemberMatchup(0, "second", None, "no idea")]
    assert sides[3] == []
    assert math.copysign(1, sides[0][1].score) == 1


def test_the_matrix_has_the_first_side_in_rows():
    """A cell is the score of the row's member as first; it is None if they did not meet so or the judge failed."""
    matrix = table((0, 1, 0.75), (1, 0, -0.25), (0, 2, None, "no idea"), members=3).matrix()
    assert matrix == [[None, 0.75, None], [-0.25, None, None], [None, None, None]]


def test_agreement_by_hand():
    """Both orders agree if they name the same winner or both a tie; pairs with one failed order do not count."""
    played = table(
        (0, 1, 0.9), (1, 0, -0.1),  # 0 wins both times
        (0, 2, 0.5), (2, 0, 0.5),  # the first side wins each time
        (1, 2, 0.0), (2, 1, 0.0),  # a tie both times
        (0, 3, 0.5), (3, 0, None, "no idea"),
        (2, 3, 0.5),
    )  # fmt: skip
    assert played.agreement() == pytest.approx(2 / 3)
    assert played.agreements() == [0.5, 1.0, 0.5, None]
    assert played.first_position_bias() == pytest.approx((0.9 - 0.1 + 0.5 + 0.5) / 6)
    one_way = table((0, 1, 0.9), (0, 2, 0.5))
    assert (one_way.agreement(), one_way.first_position_bias(), one_way.agreements()) == (None, None, [None] * 4)


def test_a_tie_and_a_win_do_not_agree():
    """A pair that ties in one order only counts as a disagreement."""
    assert table((0, 1, 0.0), (1, 0, 0.25)).agreement() == 0.0


@given(st.dictionaries(st.tuples(st.sampled_from(PLACES), st.sampled_from(PLACES)), st.floats(-1, 1), max_size=30))
def test_what_one_wins_the_other_loses(scores):
    """The scores of all sides sum to zero."""
    played = table(*((a, b, score) for (a, b), score in scores.items() if a != b), members=len(PLACES))
    assert math.fsum(side.score for sides in played.member_matchups() for side in sides) == pytest.approx(0)


@given(st.dictionaries(st.sampled_from(PLACES), st.integers(-5, 5), min_size=2))
def test_a_judge_blind_to_order_agrees_with_itself(strengths):
    """A judge that ignores the order agrees with itself completely, and favours no side."""
    places = range(len(strengths))
    better = list(strengths.values())
    matchups = [(a, b, (better[a] - better[b]) / 10) for a, b in pairings(len(places), TournamentPattern.BOTH_WAYS, 6)]
    played = table(*matchups, members=len(places))
    assert played.agreement() == 1.0
    assert played.first_position_bias() == pytest.approx(0)
