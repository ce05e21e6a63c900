"""A tournament within a group: the pairings, and the results of the matchups."""

import math
from collections.abc import Iterator
from enum import StrEnum
from itertools import combinations, pairwise, permutations
from typing import Literal

import msgspec

from rolltrace.errors import UnknownNameError


class TournamentPattern(StrEnum):
    """Who meets whom within a chunk."""

    ONE_WAY = "one_way"
    """Each pair once, the member with the lower number first."""
    BOTH_WAYS = "both_ways"
    """Each pair twice, once in each order, so that a bias for the first or the second position cancels out."""


class Matchup(msgspec.Struct, frozen=True):
    """The numbers of two members, and the preference for the first."""

    first: int
    second: int
    score: float | None = None
    """From −1 (the second is far better) to 1 (the first is far better); None if the judge failed."""
    error: str | None = None
    """Why there is no score."""


class MemberMatchup(msgspec.Struct, frozen=True):
    """A matchup from the side of one member."""

    opponent: int
    side: Literal["first", "second"]
    score: float | None
    """The preference for this member; None if the judge failed."""
    error: str | None = None


class TournamentResults(msgspec.Struct, frozen=True):
    """The matchups of a tournament."""

    members: int
    matchups: tuple[Matchup, ...]

    def member_matchups(self) -> list[list[MemberMatchup]]:
        """For each member, its matchups from its own side."""
        by_member: list[list[MemberMatchup]] = [[] for _ in range(self.members)]
        for matchup in self.matchups:
            score, error = matchup.score, matchup.error
            by_member[matchup.first].append(MemberMatchup(matchup.second, "first", score, error))
            # Not `-score`: a tie is 0.0 on both sides.
            by_member[matchup.second].append(
                MemberMatchup(matchup.first, "second", None if score is None else 0.0 - score, error)
            )
        return by_member

    def matrix(self) -> list[list[float | None]]:
        """Rows are the first side, columns the second; None if there was no such matchup, or the judge failed."""
        rows: list[list[float | None]] = [[None] * self.members for _ in range(self.members)]
        for matchup in self.matchups:
            rows[matchup.first][matchup.second] = matchup.score
        return rows

    def agreement(self) -> float | None:
        """The fraction of pairs in which both orders have the same winner, or both are ties.

        None if no pair was compared in both orders.
        """
        return _fraction([agrees for _, _, agrees in self._pair_agreements()])

    def agreements(self) -> list[float | None]:
        """The same for each member, over its own pairs."""
        by_member: list[list[bool]] = [[] for _ in range(self.members)]
        for first, second, agrees in self._pair_agreements():
            by_member[first].append(agrees)
            by_member[second].append(agrees)
        return [_fraction(agreements) for agreements in by_member]

    def first_position_bias(self) -> float | None:
        """The mean score of the first side over pairs compared in both orders: 0 if the order does not matter.

        None if no pair was compared in both orders.
        """
        scores = [score for _, _, *both in self._pairs_in_both_orders() for score in both]
        return math.fsum(scores) / len(scores) if scores else None

    def _pair_agreements(self) -> Iterator[tuple[int, int, bool]]:
        for first, second, score, swapped in self._pairs_in_both_orders():
            yield first, second, _sign(score) == -_sign(swapped)

    def _pairs_in_both_orders(self) -> Iterator[tuple[int, int, float, float]]:
        """Pairs that were compared in both orders, with both scores, each for the side that was first."""
        scores = {(matchup.first, matchup.second): matchup.score for matchup in self.matchups}
        for (first, second), score in scores.items():
            swapped = scores.get((second, first))
            if first < second and score is not None and swapped is not None:
                yield first, second, score, swapped


def parse_pattern(name: str) -> TournamentPattern:
    """The pattern of this name."""
    try:
        return TournamentPattern(name)
    except ValueError:
        raise UnknownNameError.for_name(
            "tournament pattern", str(name), [pattern.value for pattern in TournamentPattern]
        ) from None


def pairings(members: int, pattern: TournamentPattern, chunk: int) -> list[tuple[int, int]]:
    """The numbers of first and second in each matchup: members meet only within their own chunk."""
    pairs = combinations if pattern is TournamentPattern.ONE_WAY else permutations
    return [pair for numbers in chunks(members, chunk) for pair in pairs(numbers, 2)]


def chunks(members: int, chunk: int) -> list[range]:
    """The members' numbers, split into ceil(members / chunk) consecutive chunks of nearly equal size.

    A chunk of one would have no matchup, so an odd group in chunks of two has one chunk of three.
    """
    if not members:
        return []
    count = max(1, min(-(-members // chunk), members // 2))
    small, larger = divmod(members, count)
    starts = [number * small + min(number, larger) for number in range(count + 1)]
    return [range(start, end) for start, end in pairwise(starts)]


def _sign(score: float) -> int:
    return (score > 0) - (score < 0)


def _fraction(values: list[bool]) -> float | None:
    return sum(values) / len(values) if values else None
