"""Plays every built-in environment once, records everything in one run, and measures the cost of recording."""

import time
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from rolltrace.check.audit import Severity
from rolltrace.check.audit_report import AuditReport
from rolltrace.check.check_run import check_run
from rolltrace.envs.registry import BUILT_IN, is_installed, load_env
from rolltrace.jobs.open_policy import open_policy
from rolltrace.jobs.plan import Plan, all_iterations, make_runner
from rolltrace.jobs.play import OnGroup, complete_summary, play_into
from rolltrace.jobs.play_summary import PlaySummary
from rolltrace.jobs.signal_handling import ActivePlay, run_blocking
from rolltrace.policies.policy_specs import close_policy
from rolltrace.query.run import open_run
from rolltrace.rollout.limits_and_penalties import Limits
from rolltrace.store.create import create_run
from rolltrace.store.writer import RunWriter
from rolltrace.temp_folders import temporary_folder
from rolltrace.trace.message import Sampling
from rolltrace.trace.rollout import Header, Outcome, Rollout, Step

POLICY = "local"
MAX_TOKENS = 96
MAX_TURNS = 6
GRADER = "scripted:noisy"
"""The policy that grades and answers: the embedded model is too small to grade, and this one takes no time."""
_ARGS: dict[str, dict[str, Any]] = {
    "arithmetic": {"examples": 3},
    "calculator": {"difficulty": 1},
    "guess_number": {"high": 20},
    "problems": {"examples": 3},
}
"""Arguments that make the tasks easier for a small model."""
_ONE_LINE = ("guess_number", "twenty_questions", "textarena:TicTacToe-v0")
"""In these a turn is one line: a model stops at its end rather than at the token limit; scripts write several."""
_MEMBERS = {"reasoning_gym": "reasoning_gym:leg_counting", "textarena": "textarena:TicTacToe-v0"}
"""An environment of each family that needs no server or network, played if the family is installed."""

_STEP_FIELDS = {*Step.__struct_fields__} - {"step", "prompt", "response", "tools", "sampling", "tokens", "env_failure"}
"""The fields of a step that `RolloutBuilder.step` takes as they are."""


class DemoResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of `play_demo`."""

    path: str
    policy: str
    """The policy that played."""
    grader: str
    """The policy that graded and answered."""
    summaries: list[PlaySummary]
    report: AuditReport
    """The result of the audits."""
    seconds: float
    """Wall-clock seconds of playing."""
    recording_seconds: float
    """CPU seconds of recording all rollouts, measured by recording them once more."""

    @property
    def recording_fraction(self) -> float:
        """Recording time as a fraction of playing time."""
        return self.recording_seconds / self.seconds

    @property
    def succeeded(self) -> bool:
        """Whether rollouts of every environment were played, and no audit of the run found an error."""
        return not self.report.fails(Severity.ERROR) and all(summary.succeeded for summary in self.summaries)


def demo_envs() -> list[str]:
    """The names of the environments to play."""
    return [*sorted(BUILT_IN), *(member for family, member in _MEMBERS.items() if is_installed(family))]


def play_demo(out: str | Path, *, policy: str = POLICY, seed: int = 0, on_group: OnGroup | None = None) -> DemoResult:
    """Play one group of four for each environment, record a new run at `out`, and audit it."""
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
            summaries = []
            for tasks in envs:
                env_plan = one_line if tasks.env in _ONE_LINE and not spec.startswith("scripted:") else plan
                iterations = await all_iterations(tasks, env_plan)
                runner = make_runner(env_plan, policy, roles, writer)
                played = await play_into(tasks, env_plan, writer, runner, on_group, open_play, iterations)
                summaries.append((played, runner))
    finally:
        await close_policy(policy)
    # Only the closed writer knows whether everything is on disk.
    return [complete_summary(summary, runner, writer) for summary, runner in summaries]


def recording_seconds(rollouts: Iterable[Rollout]) -> float:
    """CPU seconds, of all threads, that it takes to record these rollouts once more and write them to disk."""
    copies = list(rollouts)
    with temporary_folder() as folder:
        started = time.process_time()
        with create_run(folder / "again") as writer:
            for rollout in copies:
                record_again(writer, rollout)
        return time.process_time() - started


def record_again(writer: RunWriter, rollout: Rollout) -> None:
    """Record a rollout step by step, as a runner does, except for what is rare and small: failures of its env."""
    header = Header(**{name: getattr(rollout, name) for name in Header.__struct_fields__})
    rollout_builder = writer.begin(header)
    for step in rollout.steps:
        rollout_builder.replace(step.trace.prompt)
        rollout_builder.mark_prompt_sent()
        rollout_builder.step(
            step.trace.policy_response,
            tools=() if step.tools is None else rollout.tools[step.tools],
            sampling=None if step.sampling is None else rollout.sampling[step.sampling],
            **{name: getattr(step, name) for name in _STEP_FIELDS},
        )
    rollout_builder.replace(rollout.conversation)
    rollout_builder.calls.extend(rollout.calls)
    rollout_builder.grade = rollout.grade
    outcome = {name: getattr(rollout, name) for name in Outcome.__annotations__} | {"reward": rollout.line_reward}
    writer.end(rollout_builder, Outcome(**outcome))  # type: ignore[typeddict-item]
