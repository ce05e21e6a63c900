"""Which members of a group meet, and what came of it."""

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
    """Each pair once, the member of the lower place first."""
    BOTH_WAYS = "both_ways"
    """Each pair twice, so that whoever is favoured for being first, or second, is so on both sides."""


class Matchup(msgspec.Struct, frozen=True):
    """Two members, by their places, and how far the first was preferred."""

    first: int
    second: int
    score: float | None = None
    """From −1, the second is far better, to 1, the first is; None where nobody could tell."""
    error: str | None = None
    """Why there is no score."""


class MemberMatchup(msgspec.Struct, frozen=True):
    """A matchup as one of the two sees it."""

    opponent: int
    side: Literal["first", "second"]
    score: float | None
    """How far this member was preferred; None where nobody could tell."""
    error: str | None = None


class TournamentResults(msgspec.Struct, frozen=True):
    """All matchups of a tournament, played."""

    members: int
    matchups: tuple[Matchup, ...]

    def sides(self) -> list[list[MemberMatchup]]:
        """For each member, in the order of the places, its matchups from its own side."""
        sides: list[list[MemberMatchup]] = [[] for _ in range(self.members)]
        for matchup in self.matchups:
            score, error = matchup.score, matchup.error
            sides[matchup.first].append(MemberMatchup(matchup.second, "first", score, error))
            # Not `-score`: an even matchup is 0.0 on both sides.
            sides[matchup.second].append(
                MemberMatchup(matchup.first, "second", None if score is None else 0.0 - score, error)
            )
        return sides

    def matrix(self) -> list[list[float | None]]:
        """Rows are the first side, columns the second; None where two did not meet so, or nobody could tell."""
        rows: list[list[float | None]] = [[None] * self.members for _ in range(self.members)]
        for matchup in self.matchups:
            rows[matchup.first][matchup.second] = matchup.score
        return rows

    def agreement(self) -> float | None:
        """The share of pairs in which both orders name the same winner, or neither names one.

        None where no pair was compared in both orders.
        """
        return _share([same for _, _, same in self._agreed()])

    def agreements(self) -> list[float | None]:
        """The same for each member, of the pairs it was in."""
        same: list[list[bool]] = [[] for _ in range(self.members)]
        for first, second, agreed in self._agreed():
            same[first].append(agreed)
            same[second].append(agreed)
        return [_share(own) for own in same]

    def first_position_bias(self) -> float | None:
        """The mean score of the first side over pairs compared in both orders: 0 where the order does not matter.

        None where no pair was.
        """
        scores = [one for _, _, score, swapped in self._swapped() for one in (score, swapped)]
        return math.fsum(scores) / len(scores) if scores else None

    def _agreed(self) -> Iterator[tuple[int, int, bool]]:
        for first, second, score, swapped in self._swapped():
            yield first, second, _sign(score) == -_sign(swapped)

    def _swapped(self) -> Iterator[tuple[int, int, float, float]]:
        """Pairs that were compared in both orders, with both scores, each from the side that was first."""
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
    """The places of first and second in each matchup: members meet only within their own chunk."""
    meet = combinations if pattern is TournamentPattern.ONE_WAY else permutations
    return [pair for places in chunks(members, chunk) for pair in meet(places, 2)]


def chunks(members: int, chunk: int) -> list[range]:
    """The members' places, cut into ceil(members / chunk) consecutive chunks of nearly equal size.

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


def _share(values: list[bool]) -> float | None:
    return sum(values) / len(values) if values else None
