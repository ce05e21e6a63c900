"""Grades the rollouts or groups of a scope, and writes their scores."""

import asyncio
import functools
import gc
import inspect
import itertools
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from rolltrace.cancellation import is_failure
from rolltrace.errors import GraderError, NotGradableError, StorageError
from rolltrace.graders.answer_grader import AnswerGrader
from rolltrace.graders.grader import Grader, GroupGrader
from rolltrace.jobs.answer_batches import decode_results, grade_batch
from rolltrace.jobs.regrade_graders import NamedGrader
from rolltrace.policies.roles import RoleCallContext, RoleCaller, Roles
from rolltrace.processes.pool import ProcessPool
from rolltrace.processes.worker_process import ProcessSettings
from rolltrace.query.regrade_scope import PendingGroup, PendingRollout, RegradeScope
from rolltrace.rollout.contract import validate_grade, validate_group_grade
from rolltrace.seeds import derive_seed
from rolltrace.store.object_address import is_address
from rolltrace.store.object_files import files_of
from rolltrace.store.writer import RunWriter
from rolltrace.trace.call import Call
from rolltrace.trace.codec import utc_now
from rolltrace.trace.coerce import coerce_record
from rolltrace.trace.failure import Failure, failure_of
from rolltrace.trace.freeform import Note
from rolltrace.trace.ids import new_id
from rolltrace.trace.json_numbers import mean_of
from rolltrace.trace.quote import text_source
from rolltrace.trace.rollout import Rollout
from rolltrace.trace.score import Grade, GroupKey, Score
from rolltrace.trace.stop_reasons import Layer, Status
from rolltrace.trace.text_transform import has_hashed_text

OnProgress = Callable[[int, int], None]
"""Called with the number of rollouts that are done, and of those that are to be graded."""

_BATCH = 2_000
"""Rollouts that a worker process grades at once."""
_MAX_PROCESSES = 2
"""More are not faster: one process writes the scores."""
_PROCESS = ProcessSettings(memory_bytes=None)
_BATCH_SECONDS = 300.0
_FLUSH_EVERY = 1_000
"""Scores between two flushes: a loop that writes faster than the disk would fill the writer's queue."""
_REPORT_SECONDS = 0.1
"""Between two reports of progress."""

Item = TypeVar("Item")
GradeOrFailure = Grade | Failure


@dataclass
class Tally:
    """What was done so far."""

    graded: int = 0
    """Rollouts that got a score."""
    failed: int = 0
    """Of these, scores without a value."""
    skipped: Counter[str] = field(default_factory=Counter)
    """Rollouts without a score, by reason."""
    rewards: int = 0
    """Rollouts that got the value as their reward."""
    seconds: float = 0.0


class Regrading:
    """Grades what is pending in a scope, and writes the scores."""

    def __init__(
        self,
        scope: RegradeScope,
        named: NamedGrader,
        writer: RunWriter,
        roles: Roles,
        tally: Tally,
        *,
        concurrency: int,
        seconds: float | None,
        on_progress: OnProgress | None,
    ) -> None:
        self._tally = tally
        self._scope = scope
        self._named = named
        self._score_name = named.score_name
        self._writer = writer
        self._roles = roles
        self._concurrency = concurrency
        self._slots = asyncio.Semaphore(concurrency)
        self._seconds = seconds
        self._on_progress = on_progress
        self._expected = 0
        self._unflushed = 0
        self._next_report = 0.0
        self._grader_name = f"{named.name}.{'grade_group' if isinstance(named.grader, GroupGrader) else 'grade'}"

    async def grade(self, expected: int) -> None:
        """Grade everything that is pending; `expected` is how many rollouts that are."""
        self._expected = expected
        started = time.perf_counter()
        grader = self._named.grader
        try:
            if isinstance(grader, GroupGrader):
                groups = self._scope.pending_groups()
                await _run_all(groups, functools.partial(self._grade_group, grader), self._concurrency)
            elif isinstance(grader, AnswerGrader) and grader.is_quick:
                await self._grade_answers(grader)
            else:
                rollouts = self._read_rollouts()
                await _run_all(rollouts, functools.partial(self._grade_rollout, grader), self._concurrency)
        finally:
            await self._flush()
            self._tally.seconds = time.perf_counter() - started
            self._report_progress(is_last=True)

    # Answer checks

    async def _grade_answers(self, grader: AnswerGrader) -> None:
        path = self._scope.run.path
        is_remote = is_address(path)
        files = files_of(path if is_remote else path.absolute())
        # Processes take a while to start, and do not get the credentials of an object store.
        pool = None if is_remote or self._expected <= _BATCH else ProcessPool(_PROCESS, max_processes=_MAX_PROCESSES)

        async def grade(batch: Sequence[PendingRollout]) -> None:
            rows = [pending.location for pending in batch]
            if pool is None:
                reply = await asyncio.to_thread(grade_batch, files, grader, rows)
            else:
                reply = await pool.run(
                    grade_batch, files, grader, rows, wall_seconds=_BATCH_SECONDS, prepare=gc.disable
                )
            for pending, result in zip(batch, decode_results(reply), strict=True):
                if result.skipped is not None or result.reward is None:
                    self._skip(result.skipped or "")
                else:
                    data = {"reward_data": result.reward_data, "extra": result.extra}
                    self._write_score(pending, result.reward, data)
            await self._flush()

        try:
            await _run_all(_batches(self._scope.pending_rollouts(), _BATCH), grade, 2 * _MAX_PROCESSES)
        finally:
            if pool is not None:
                await asyncio.to_thread(pool.kill)

    # Graders of one rollout

    def _read_rollouts(self) -> Iterator[tuple[PendingRollout, Rollout | None]]:
        """The pending rollouts, with None for one whose line cannot be read."""
        for batch in _batches(self._scope.pending_rollouts(), self._concurrency):
            rollouts = {rollout.id: rollout for rollout in self._read(batch)}
            yield from ((pending, rollouts.get(pending.location[1])) for pending in batch)

    def _read(self, pending: Sequence[PendingRollout]) -> list[Rollout]:
        return list(self._scope.run.rollouts_at([one.location for one in pending]))

    async def _grade_rollout(self, grader: Grader, item: tuple[PendingRollout, Rollout | None]) -> None:
        pending, rollout = item
        if rollout is None:
            self._skip("its line cannot be read")
            return
        if has_hashed_text(rollout):
            self._skip("only the hash of its text is recorded")
            return
        calls: list[Call] = []
        try:
            value = await self._call(lambda: grader.grade(rollout), calls, rollout.id)
            grade: GradeOrFailure = validate_grade(value, self._grader_name)
        except NotGradableError as error:
            self._skip(str(error))
            return
        except BaseException as error:
            if not is_failure(error):
                raise
            grade = failure_of(Layer.GRADER, error)
        self._write(pending, grade, calls, rollout)
        await self._flush_sometimes()

    async def _call(self, grade: Callable[[], Any], calls: list[Call], *seed: str | int) -> Any:
        """Call a grader, with the roles that it may ask and within its time."""
        limit = asyncio.timeout(self._seconds)
        try:
            with RoleCallContext(lambda: self._role_caller(calls, *seed)):
                async with limit:
                    value = grade()
                    return await value if inspect.isawaitable(value) else value
        except TimeoutError as error:
            if not limit.expired():
                raise
            raise TimeoutError(f"no grade within {self._seconds:g} s") from error

    def _role_caller(self, calls: list[Call], *seed: str | int) -> RoleCaller:
        return RoleCaller(
            self._roles,
            calls,
            seed=derive_seed(0, *seed),
            acquire_slot=self._slots.acquire,
            release_slot=self._slots.release,
        )

    # Graders of groups

    async def _grade_group(self, grader: GroupGrader, group: PendingGroup) -> None:
        rollouts = await asyncio.to_thread(self._read, group.members)
        members = {one.location[1]: one for one in group.members}
        ok = [rollout for rollout in rollouts if rollout.status is Status.OK]
        calls: list[Call] = []
        key, data, grades = group.key, dict[str, Any](), dict[str, Any]()
        try:
            if len(rollouts) < len(members):
                raise NotGradableError("the line of a member of its group cannot be read")
            if any(map(has_hashed_text, ok)):
                raise NotGradableError("only the hash of its text is recorded")
            seed = (key.split, key.iteration, key.env, key.group)
            value = await self._call(lambda: grader.grade_group(rollouts), calls, *seed)
            result = validate_group_grade(value, self._grader_name)
            grades, data = dict(result.grades), {"reward_data": result.reward_data, "extra": result.extra}
        except NotGradableError as error:
            for _ in ok:
                self._skip(str(error))
            return
        except BaseException as error:
            if not is_failure(error):
                raise
            grades = dict.fromkeys(members, error)
        outcomes = {rollout.id: self._member_outcome(rollout.id, grades) for rollout in ok}
        self._write_group(key, outcomes, data, calls, rollouts)
        for rollout, outcome in outcomes.items():
            self._write(members[rollout], outcome)
        await self._flush_sometimes()

    def _member_outcome(self, rollout: str, grades: Mapping[str, Any]) -> GradeOrFailure:
        try:
            if rollout not in grades:
                raise GraderError(f"Expected {self._grader_name} to grade every rollout that is ok, got no grade.")
            grade = grades[rollout]
            if isinstance(grade, BaseException) and not isinstance(grade, Exception):
                return failure_of(Layer.GRADER, grade)
            return validate_grade(grade, f"{self._grader_name} for a rollout")
        except Exception as error:  # noqa: BLE001 - the other members keep their grades
            return failure_of(Layer.GRADER, error)

    # Writing

    def _write_group(
        self,
        key: GroupKey,
        outcomes: Mapping[str, GradeOrFailure],
        data: dict[str, Any],
        calls: Sequence[Call],
        rollouts: Sequence[Rollout],
    ) -> None:
        """The score about the group: the mean of its grades, with the grader's data and calls."""
        if not calls and not any(data.values()):
            return
        rewards = [grade.reward for grade in outcomes.values() if isinstance(grade, Grade)]
        failure = next((each for each in outcomes.values() if isinstance(each, Failure)), None)
        score = self._score(
            self._score_name,
            mean_of(rewards) if rewards else None,
            group=key,
            data=data,
            error=None if rewards else failure,
            calls=tuple(calls),
        )
        self._writer.write_score(score, [text_source(rollout, rollout.id) for rollout in rollouts] if calls else ())

    def _write(
        self,
        pending: PendingRollout,
        outcome: GradeOrFailure,
        calls: Sequence[Call] = (),
        quoted: Rollout | None = None,
    ) -> None:
        """Write the grade of a rollout, or why it has none."""
        if isinstance(outcome, Failure):
            self._tally.failed += 1
            self._write_score(pending, None, {}, calls, quoted, error=outcome)
            return
        notes: list[Note] = []
        grade = coerce_record(outcome, "grade", notes)
        data = {"reward_data": grade.reward_data, "extra": grade.extra, **({"notes": notes} if notes else {})}
        self._write_score(pending, grade.reward, data, calls, quoted)

    def _write_score(
        self,
        pending: PendingRollout,
        value: float | None,
        data: Mapping[str, Any],
        calls: Sequence[Call] = (),
        quoted: Rollout | None = None,
        error: Failure | None = None,
    ) -> None:
        data = {"old_reward": pending.reward, **data}
        score = self._score(
            self._score_name, value, rollout=pending.location[1], data=data, error=error, calls=tuple(calls)
        )
        self._writer.write_score(score, [text_source(quoted, quoted.id)] if calls and quoted is not None else ())
        self._tally.graded += 1
        self._unflushed += 1
        self._report_progress()

    def _score(self, name: str, value: float | None, **fields: Any) -> Score:
        return Score(
            id=new_id(), run=self._writer.run, session=self._writer.session, name=name, value=value,
            producer=f"rolltrace regrade {self._named.name}", created_at=utc_now(), **fields,
        )  # fmt: skip

    def _skip(self, reason: str) -> None:
        self._tally.skipped[reason] += 1
        self._report_progress()

    def _report_progress(self, *, is_last: bool = False) -> None:
        if self._on_progress is not None and (is_last or time.monotonic() >= self._next_report):
            self._next_report = time.monotonic() + _REPORT_SECONDS
            self._on_progress(self._tally.graded + self._tally.skipped.total(), self._expected)

    async def _flush_sometimes(self) -> None:
        if self._unflushed >= _FLUSH_EVERY:
            await self._flush()

    async def _flush(self) -> None:
        self._unflushed = 0
        if not await asyncio.to_thread(self._writer.flush):
            raise StorageError(
                f"Some scores could not be written to {self._writer.path}; `rolltrace check` says why. "
                "The same command grades again what is missing."
            )

    # Rewards

    async def make_rewards(self) -> None:
        """Make the new values the rewards, unless they are already.

        A rollout whose score has no value gets a reward without one: its old reward has another scale than the new
        ones of its group.
        """
        for new in self._scope.new_rewards():
            failure = None if new.error_type is None else Failure(Layer.GRADER, new.error_type, new.error_message or "")
            data = {"regrade": self._score_name, "old_reward": new.old}
            self._writer.write_score(self._score("reward", new.value, rollout=new.rollout, data=data, error=failure))
            self._tally.rewards += 1
            self._unflushed += 1
            await self._flush_sometimes()
        await self._flush()


async def _run_all(items: Iterator[Item], work: Callable[[Item], Awaitable[None]], limit: int) -> None:
    """Do the work for each item, at most `limit` at once. The first exception cancels the rest."""
    tasks: set[asyncio.Task[None]] = set()
    try:
        while some := await asyncio.to_thread(lambda: list(itertools.islice(items, limit))):
            for item in some:
                while len(tasks) >= limit:
                    done, tasks = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                    for task in done:
                        task.result()
                tasks.add(asyncio.ensure_future(work(item)))
        for task in tasks:
            await task
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _batches(items: Iterator[Item], size: int) -> Iterator[list[Item]]:
    while batch := list(itertools.islice(items, size)):
        yield batch
