"""Plays every built-in environment once, records all of it in one run, and says what that cost."""

import time
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from rolltrace.check.audit_report import AuditReport
from rolltrace.check.check_run import check_run
from rolltrace.envs.registry import BUILT_IN, FAMILIES, is_installed, load_env
from rolltrace.jobs.cost import recording_seconds
from rolltrace.jobs.plan import Plan
from rolltrace.jobs.play import OnGroup, open_policy, play_into
from rolltrace.jobs.play_summary import PlaySummary
from rolltrace.jobs.signal_handling import ActivePlay, run_blocking
from rolltrace.policies.policy_specs import close_policy
from rolltrace.query.run import open_run
from rolltrace.rollout.limits_and_penalties import Limits
from rolltrace.store.create import create_run
from rolltrace.trace.message import Sampling

POLICY = "local"
MAX_TOKENS = 96
MAX_TURNS = 6
GRADER = "scripted:noisy"
"""Who grades and answers: the embedded model is too small to judge anybody, and this takes no time."""
_ARGS: dict[str, dict[str, Any]] = {
    "arithmetic": {"examples": 3},
    "calculator": {"difficulty": 1},
    "guess_number": {"high": 20},
    "problems": {"examples": 3},
}
"""What helps a small model along; the rest is as it is by default."""
_ONE_LINE = ("guess_number", "twenty_questions", "textarena:TicTacToe-v0")
"""In these a turn is a line: the model stops at its end rather than at the limit."""
_MEMBERS = {"reasoning_gym": "reasoning_gym:leg_counting", "textarena": "textarena:TicTacToe-v0"}
"""Of each family that is installed, one."""


class DemoResult(msgspec.Struct, frozen=True, kw_only=True):
    """What came of it."""

    path: str
    policy: str
    """Who played."""
    grader: str
    """Who graded and answered."""
    summaries: list[PlaySummary]
    report: AuditReport
    """What the audits found."""
    seconds: float
    """How long the playing took."""
    recording_seconds: float
    """How much computing it takes to record all of it, measured by doing so once more."""

    @property
    def recording_fraction(self) -> float:
        """What recording is of the playing."""
        return self.recording_seconds / self.seconds

    @property
    def succeeded(self) -> bool:
        """Whether something was played in every environment, and all of it is recorded as it should be."""
        return self.report.ok and all(summary.succeeded for summary in self.summaries)


def demo_envs() -> list[str]:
    """The environments that are played."""
    return [*sorted(BUILT_IN), *(_MEMBERS[family] for family in sorted(FAMILIES) if is_installed(family))]


def play_demo(out: str | Path, *, policy: str = POLICY, seed: int = 0, on_group: OnGroup | None = None) -> DemoResult:
    """One group of four for each environment, in a new run at `out`, which is then audited."""
    started = time.perf_counter()
    summaries = run_blocking(partial(_play_all, out, policy, seed, on_group))
    seconds = time.perf_counter() - started
    with open_run(out) as run:
        cost = recording_seconds(run.rollouts(limit=None))
    return DemoResult(
        path=str(out),
        policy=summaries[0].policy,
        grader=GRADER,
        summaries=summaries,
        report=check_run(out),
        seconds=seconds,
        recording_seconds=cost,
    )


async def _play_all(
    out: str | Path, spec: str, seed: int, on_group: OnGroup | None, open_play: ActivePlay
) -> list[PlaySummary]:
    plan = Plan(seed=seed, limits=Limits(max_turns=MAX_TURNS), sampling=Sampling(max_tokens=MAX_TOKENS))
    one_line = msgspec.structs.replace(plan, sampling=Sampling(max_tokens=MAX_TOKENS, stop=("\n",)))
    names = demo_envs()
    envs = [load_env(name, _ARGS.get(name)) for name in names]
    policy = open_policy(spec)
    roles = dict.fromkeys(("grader", "answerer"), open_policy(GRADER))
    config = {"demo": True, "envs": names, "policy": spec, "roles": dict.fromkeys(roles, GRADER), "seed": seed}
    try:
        with create_run(out, config) as writer:
            open_play.set_writer(writer)
            summaries = []
            for tasks in envs:
                its_plan = one_line if tasks.env in _ONE_LINE else plan
                summaries.append(await play_into(tasks, policy, its_plan, writer, on_group, roles, open_play))
    finally:
        await close_policy(policy)
    # Only when the writer is closed is it known whether all of it is on the disk.
    return [msgspec.structs.replace(summary, ledger=writer.ledger) for summary in summaries]
