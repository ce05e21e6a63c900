"""Scores a group by a tournament: its members are compared in pairs, and each gets the mean of its matchups."""

import asyncio
import inspect
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from rolltrace.cancellation import is_failure
from rolltrace.errors import GraderError, InputError
from rolltrace.graders.format_check import FormatCheck, check_format_coef, format_score
from rolltrace.graders.grader import GroupGrade, GroupGrader
from rolltrace.graders.judge import Judge, PolicyJudge, PreferenceFunction, validate_preference
from rolltrace.graders.tournament import (
    Matchup,
    MemberMatchup,
    TournamentPattern,
    TournamentResults,
    pairings,
    parse_pattern,
)
from rolltrace.trace.failure import failure_of
from rolltrace.trace.freeform import describe
from rolltrace.trace.rollout import Rollout
from rolltrace.trace.score import Grade
from rolltrace.trace.stop_reasons import Layer, Status
from rolltrace.trace.transcript import shared_prompt

TOURNAMENT_CHUNK = 4
PREFERENCE_FORMAT_COEF = 1.0
"""The penalty for a last response in the wrong format: the difference between a tie and losing every matchup."""

_MAX_ERROR_CHARS = 500


@dataclass(frozen=True, kw_only=True)
class PreferenceGrader(GroupGrader):
    """The reward is `preference + format_coef * (format − 1)`; `preference` is the mean score of its own matchups.

    Members that failed take no part and get no grade. A member that ended without an answer (such as a context overflow
    before its first turn) has no matchups; its preference and format are 0. A matchup that could not be judged counts
    for neither side. A member has no reward, and an error that says why, if none of its matchups could be judged or if
    no other member has an answer.
    """

    judge: Judge | PreferenceFunction = field(default_factory=PolicyJudge)
    """Compares two members: a `Judge`, or a function, which may be async."""
    pattern: TournamentPattern = TournamentPattern.BOTH_WAYS
    chunk: int = TOURNAMENT_CHUNK
    """Members meet in chunks of about this size, in the order of their indexes (see `tournament.chunks`)."""
    format_coef: float = PREFERENCE_FORMAT_COEF
    format_check: FormatCheck | None = None
    """Scores the format of a last response that is neither truncated nor malformed. None: its format is right."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "pattern", parse_pattern(self.pattern))
        if self.chunk < 2:
            raise InputError(
                f"Expected chunks of 2 or more for a tournament, got {self.chunk}: a member needs an opponent."
            )
        check_format_coef(self.format_coef)
        if not isinstance(self.judge, Judge) and not callable(self.judge):
            raise InputError(f"Expected a Judge, or a function (prompt, first, second), got {describe(self.judge)}.")

    async def grade_group(self, rollouts: Sequence[Rollout]) -> GroupGrade:
        """A grade for each ok member, and the matrix of the tournament."""
        finished = sorted((rollout for rollout in rollouts if rollout.status is Status.OK), key=lambda r: r.index or 0)
        entrants = [rollout for rollout in finished if rollout.steps]
        results = await self._play(entrants)
        ids = [rollout.id for rollout in entrants]
        indexes = [rollout.index for rollout in entrants]
        matchups = dict(zip(ids, results.member_matchups(), strict=True))
        agreements = dict(zip(ids, results.agreements(), strict=True))
        grades = {
            rollout.id: self._grade(rollout, matchups.get(rollout.id, []), entrants, agreements.get(rollout.id))
            for rollout in finished
        }
        return GroupGrade(
            grades,
            _judge_numbers(results),
            {"pattern": self.pattern, "chunk": self.chunk, "ids": ids, "indexes": indexes, "matrix": results.matrix()},
        )

    async def _play(self, entrants: Sequence[Rollout]) -> TournamentResults:
        """Play all matchups concurrently; the runner limits the requests in flight."""
        pairs = pairings(len(entrants), self.pattern, self.chunk)
        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(self._play_matchup(entrants, first, second), name=f"matchup {first}-{second}")
                for first, second in pairs
            ]
        return TournamentResults(len(entrants), tuple(task.result() for task in tasks))

    async def _play_matchup(self, entrants: Sequence[Rollout], first: int, second: int) -> Matchup:
        try:
            score = await self._compare(entrants[first], entrants[second])
        except BaseException as error:
            if not is_failure(error):
                raise
            failure = failure_of(Layer.GRADER, error)
            return Matchup(first, second, error=f"{failure.type}: {failure.message}"[:_MAX_ERROR_CHARS])
        return Matchup(first, second, score)

    async def _compare(self, first: Rollout, second: Rollout) -> float:
        prompt = shared_prompt((first, second))
        preference: Any
        if isinstance(self.judge, Judge):
            preference = await self.judge.compare(prompt, first, second)
        else:
            preference = self.judge(prompt, first, second)
            preference = await preference if inspect.isawaitable(preference) else preference
        name = getattr(self.judge, "__name__", type(self.judge).__name__)
        return validate_preference(preference, f"the judge {name}")

    def _grade(
        self, rollout: Rollout, matchups: Sequence[MemberMatchup], entrants: Sequence[Rollout], agreement: float | None
    ) -> Grade | GraderError:
        scores = [matchup.score for matchup in matchups if matchup.score is not None]
        if rollout.steps and not matchups:
            return GraderError(
                f"Expected another member to compare rollout {rollout.id} with, got none: no other member of its group "
                "has an answer. Use a larger group size, or find out why the others failed."
            )
        if matchups and not scores:
            return GraderError(
                f"None of the {len(matchups)} matchups of rollout {rollout.id} could be judged; "
                f"the first failed with {matchups[0].error}"
            )
        try:
            format_value = format_score(rollout, self.format_check)
        except Exception as error:  # noqa: BLE001 - a user's check may raise anything, and the others keep their grades
            failure = failure_of(Layer.GRADER, error)
            return GraderError(f"The format check failed on rollout {rollout.id}: {failure.type}: {failure.message}")
        preference = math.fsum(scores) / len(scores) if scores else 0.0
        numbers = {
            "preference": preference,
            "format": format_value,
            "matchups": len(matchups),
            "failed_matchups": len(matchups) - len(scores),
            "wins": sum(score > 0 for score in scores),
            "losses": sum(score < 0 for score in scores),
            "ties": sum(score == 0 for score in scores),
        }
        if agreement is not None:
            numbers["agreement"] = agreement
        return Grade(
            preference + self.format_coef * (format_value - 1),
            numbers,
            {"matchups": [_matchup_data(matchup, entrants[matchup.opponent]) for matchup in matchups]},
        )


def _matchup_data(matchup: MemberMatchup, opponent: Rollout) -> dict[str, Any]:
    """A matchup in a rollout's record. Opponent and side are also numbers, for runs that record no text."""
    data = {
        "opponent": opponent.id,
        "opponent_index": opponent.index,
        "side": matchup.side,
        "first": matchup.side == "first",
        "score": matchup.score,
    }
    return data if matchup.error is None else {**data, "error": matchup.error}


def _judge_numbers(results: TournamentResults) -> dict[str, float]:
    """Numbers about the judge: how often it failed, and whether it depends on the order of the answers."""
    numbers = {
        "matchups": len(results.matchups),
        "failed_matchups": sum(matchup.score is None for matchup in results.matchups),
        "agreement": results.agreement(),
        "first_side": results.first_position_bias(),
    }
    return {name: value for name, value in numbers.items() if value is not None}
