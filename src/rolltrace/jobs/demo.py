"""Plays every built-in environment once and records all of it in one run."""

import asyncio
from pathlib import Path

from rolltrace.envs.registry import BUILT_IN, load_env
from rolltrace.jobs.play import OnGroup, Plan, Summary, record
from rolltrace.policies.load import load_policy
from rolltrace.store.create import create_run

POLICY = "scripted:noisy"


def play_demo(out: str | Path, *, seed: int = 0, on_group: OnGroup | None = None) -> list[Summary]:
    """One group of four for each built-in environment, in a new run at `out`; a summary of each."""
    return asyncio.run(_play_all(out, seed, on_group))


async def _play_all(out: str | Path, seed: int, on_group: OnGroup | None) -> list[Summary]:
    plan = Plan(seed=seed)
    policy = load_policy(POLICY)
    envs = [load_env(name) for name in sorted(BUILT_IN)]
    config = {"demo": True, "envs": sorted(BUILT_IN), "policy": POLICY, "group_size": plan.group_size, "seed": seed}
    with create_run(out, config) as writer:
        return [await record(tasks, policy, plan, writer, on_group) for tasks in envs]
