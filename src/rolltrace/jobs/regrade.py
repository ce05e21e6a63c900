"""Grades stored rollouts again, and writes the new scores beside the old ones: `regrade` and `regrade_async`."""

import contextlib
import hashlib
import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from rolltrace.errors import InputError, StorageError
from rolltrace.graders.grader import GroupGrader
from rolltrace.jobs.gc_threshold import raised_gc_threshold
from rolltrace.jobs.open_policy import open_policy
from rolltrace.jobs.regrade_graders import AnyGrader, NamedGrader, load_grader
from rolltrace.jobs.regrading import OnProgress, Regrading, Tally
from rolltrace.jobs.signal_handling import ActivePlay, run_blocking, same_parameters
from rolltrace.policies.policy import Completion, Policy, Request
from rolltrace.policies.policy_specs import close_policy
from rolltrace.policies.roles import Roles
from rolltrace.query.regrade_report import SOLVED_AT, RegradeReport, compare_scores
from rolltrace.query.regrade_scope import RegradeScope, ScopeCounts
from rolltrace.query.run import Run, open_single_run
from rolltrace.query.run_state import SessionState, session_state
from rolltrace.store.create import create_run
from rolltrace.store.layout import CACHE
from rolltrace.store.object_address import is_address
from rolltrace.store.recording import Level, Recording
from rolltrace.store.writer import RunWriter
from rolltrace.temp_folders import FileLock
from rolltrace.trace.text_transform import Redact

SECONDS = 600.0
"""How long a grader may take for one rollout or group."""
CONCURRENCY = 64


class RegradeSummary(msgspec.Struct, frozen=True, kw_only=True):
    """What a regrade did, and what moved."""

    path: str
    """Where the run is."""
    name: str
    """The name of the scores."""
    matched: int
    """Rollouts that match the condition."""
    in_scope: int
    """The same, or for a grader of groups the rollouts of their groups."""
    graded: int
    """Rollouts that got a score now."""
    failed: int
    """Of these, scores without a value: the grader raised, or took too long."""
    graded_before: int
    """Rollouts that had a score of this name already, and were not graded again."""
    skipped: dict[str, int]
    """Rollouts that were not graded, by reason."""
    rewards: int
    """Rollouts that got the new value as their reward."""
    mixed_groups: int
    """With `as_reward`: groups in which only some members have the new value as their reward."""
    seconds: float
    """Of grading, without reading the tables and the report."""
    read_errors: list[str]
    """Lines of the run that could not be read, and so were not graded."""
    report: RegradeReport

    @property
    def succeeded(self) -> bool:
        """Whether at least one rollout in scope has a value of this grader."""
        return self.report.scores > self.report.failed


class _GradedRun(msgspec.Struct, frozen=True):
    """The positional arguments of a regrade."""

    run: str | Path
    grader: str | AnyGrader | Callable[..., Any]


class _RegradeJob(_GradedRun, frozen=True, kw_only=True):
    """The arguments of a regrade; `regrade_async` explains them."""

    where: str | None = None
    args: Mapping[str, Any] | None = None
    policy: str | Policy | None = None
    roles: Mapping[str, str | Policy] | None = None
    as_reward: bool = False
    retry_failed: bool = False
    concurrency: int = CONCURRENCY
    seconds: float | None = SECONDS
    threshold: float = SOLVED_AT
    redact: Redact | None = None
    on_progress: OnProgress | None = None

    def __post_init__(self) -> None:
        if self.concurrency < 1:
            raise InputError(f"Expected concurrency of 1 or more, got {self.concurrency}.")
        if self.seconds is not None and not self.seconds > 0:
            raise InputError(f"Expected seconds above 0, or None for no limit, got {self.seconds}.")
        if not math.isfinite(self.threshold):
            raise InputError(f"Expected a finite threshold, got {self.threshold}.")

    async def regrade(self, active: ActivePlay) -> RegradeSummary:
        """Grade, compare, and make the new values rewards if asked to. `active` gets the writer, to close it."""
        policies = {**({} if self.policy is None else {"policy": self.policy}), **(self.roles or {})}
        named = load_grader(self.grader, self.args or {}, policies)
        with open_single_run(self.run) as run:
            is_group = isinstance(named.grader, GroupGrader)
            scope = RegradeScope(run, named.score_name, self.where, is_group=is_group, retry_failed=self.retry_failed)
            counts = scope.counts()
            self._require_rollouts(counts)
            tally, mixed = Tally(), 0
            async with contextlib.AsyncExitStack() as stack:
                stack.enter_context(_only_regrade(run, named.score_name))
                if self.as_reward:
                    stack.enter_context(_only_regrade(run, "reward"))
                regrading = None
                if counts.pending or self.as_reward:
                    regrading = await self._open(stack, active, scope, named, tally)
                if regrading is not None and counts.pending:
                    await regrading.grade(counts.pending)
                report = compare_scores(scope, self.threshold)
                if regrading is not None and self.as_reward:
                    await regrading.make_rewards()
                    mixed = scope.mixed_groups()
            read_errors = list(map(str, run.problems))
        skipped = {
            "it failed or was cancelled": counts.not_ok,
            "it was retried": counts.retried,
            **({} if is_group else {"it has no response": counts.without_steps}),
            **tally.skipped,
        }
        return RegradeSummary(
            path=str(run.path),
            name=named.score_name,
            matched=counts.matched,
            in_scope=counts.in_scope,
            graded=tally.graded,
            failed=tally.failed,
            graded_before=report.scores - tally.graded,
            skipped={reason: count for reason, count in skipped.items() if count},
            rewards=tally.rewards,
            mixed_groups=mixed,
            seconds=tally.seconds,
            read_errors=read_errors,
            report=report,
        )

    def _require_rollouts(self, counts: ScopeCounts) -> None:
        if not counts.matched:
            condition = "" if self.where is None else f" that match {self.where!r}"
            raise InputError(f"Expected rollouts{condition} in {self.run}, got none of {counts.total}.")

    async def _open(
        self,
        stack: contextlib.AsyncExitStack,
        active: ActivePlay,
        scope: RegradeScope,
        named: NamedGrader,
        tally: Tally,
    ) -> Regrading:
        """Open the policies and the writer, which the stack closes."""
        roles = await self._open_roles(stack)
        writer = active.writer = stack.enter_context(self._open_writer(scope.run, scope))
        stack.enter_context(raised_gc_threshold())
        return Regrading(
            scope, named, writer, roles, tally,
            concurrency=self.concurrency, seconds=self.seconds, on_progress=self.on_progress,
        )  # fmt: skip

    def _open_writer(self, run: Run, scope: RegradeScope) -> RunWriter:
        """Everything is recorded, whatever the run or an environment variable says: a score without data is no use."""
        recording = Recording(level=Level.FULL, fraction=1.0, tokens=False, calls=True, redact=self.redact)
        return create_run(run.path, join=True, continues=_dead_sessions(run, scope), trace=recording)

    async def _open_roles(self, stack: contextlib.AsyncExitStack) -> Roles:
        opened = {}
        for role, spec in {"policy": _NoPolicy() if self.policy is None else self.policy, **(self.roles or {})}.items():
            opened[role] = open_policy(spec)
            if isinstance(spec, str):
                stack.push_async_callback(close_policy, opened[role])
        return Roles(opened.pop("policy"), opened)


@same_parameters(_RegradeJob)
def regrade(*args: Any, **options: Any) -> RegradeSummary:
    """Grade stored rollouts, and return when everything is written; the arguments are those of `regrade_async`.

    In the main thread, Ctrl-C and SIGTERM end it with the scores so far on disk; the same call continues.
    """
    return run_blocking(_RegradeJob(*args, **options).regrade)


@same_parameters(_RegradeJob)
async def regrade_async(*args: Any, **options: Any) -> RegradeSummary:
    """Grade the rollouts of a run that match `where`, an SQL condition over the columns of `rollouts`.

    `grader` is the name of a built-in one (`auto`, `exact`, `number`, `math`, `rubric`, `preference`), made with
    `args`, or `package.module:object`, or an object: a `Grader`, a `GroupGrader`, a function of a rollout, or a
    function of an answer and a reference. A grader of groups gets whole groups, whatever `where` says. Roles that it
    asks are played by `roles`, otherwise by `policy`.

    The scores are named `regrade/GRADER@VERSION`. A rollout that has such a score is not graded again, so the same call
    continues one that was interrupted; with `retry_failed`, those whose score has no value are. With `as_reward`, the
    new value also becomes the rollout's reward, also where it is missing because the grader failed.

    `seconds` limits the time for one rollout or group, and `concurrency` how many are graded at once. In the report,
    a value of at least `threshold` counts as solved. `redact` is called with texts that the grader adds to the run.
    """
    return await _RegradeJob(*args, **options).regrade(ActivePlay())


class _NoPolicy:
    """Takes the place of a policy for graders that ask none."""

    name = "none"
    version = None
    context_length = None

    async def complete(self, request: Request) -> Completion:
        """Raises."""
        raise InputError(f"the grader asks a policy: pass --policy {request.role}=SPEC")

    def count_tokens(self, _: Request) -> int | None:
        """Unknown."""
        return None


def _dead_sessions(run: Run, scope: RegradeScope) -> list[str]:
    """Sessions of this regrade that were killed: this one continues them. On this machine the lock shows it."""
    ledgers = run.ledgers()
    is_silent = {name for name, ledger in ledgers.items() if session_state(ledger) is SessionState.DIED}
    own = [ledger for name in scope.sessions() if (ledger := ledgers.get(name)) is not None and not ledger.closed]
    return [one.session for one in own if not is_address(run.path) or one.session in is_silent]


@contextlib.contextmanager
def _only_regrade(run: Run, score_name: str) -> Iterator[None]:
    """Raise `InputError` if another process of this machine regrades the run and writes scores of this name."""
    if is_address(run.path):
        yield
        return
    name = hashlib.blake2b(score_name.encode(), digest_size=8).hexdigest()
    try:
        (run.path / CACHE).mkdir(exist_ok=True)
        lock = FileLock(run.path / CACHE / f".regrade-{name}.lock")
        is_free = lock.acquire()
    except OSError as error:
        raise StorageError(f"Cannot write to {run.path}: {error.strerror or error}.") from error
    if not is_free:
        raise InputError(f"Expected no other regrade of {run.path} as {score_name}, but one is running.")
    try:
        yield
    finally:
        lock.release()
