"""`rolltrace demo`: plays every built-in environment, and says how to look at what came of it."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from rolltrace.query.run import Run


@click.command(short_help="Play every built-in environment.")
@click.option("--out", type=click.Path(path_type=Path), help="Where the run goes; by default a fresh name in runs/.")
@click.option("--seed", type=int, default=0, show_default=True, help="What all chance is drawn from.")
def demo(out: Path | None, seed: int) -> None:
    """Play every built-in environment with the scripted policy, record it, and say how to look at it."""
    from rolltrace.cli.screen.outcome import show_failures
    from rolltrace.cli.screen.progress import progress
    from rolltrace.cli.show import show_run
    from rolltrace.envs.registry import BUILT_IN
    from rolltrace.jobs.demo import play_demo
    from rolltrace.query.run import open_run
    from rolltrace.store.create import fresh_path

    place = out or fresh_path("runs", "demo")
    with progress(len(BUILT_IN)) as on_group:
        summaries = play_demo(place, seed=seed, on_group=on_group)
    with open_run(place) as run:
        show_run(run)
        _tell_next(run)
    failed = [summary for summary in summaries if not summary.succeeded]
    for summary in failed:
        show_failures(summary)
    if failed:
        raise SystemExit(1)


def _tell_next(run: "Run") -> None:
    """Name the longest rollout and the worst one, as the two that tell most."""
    from rolltrace.cli.hints import command
    from rolltrace.cli.show import rewards_of
    from rolltrace.query.address import short_addresses

    rollouts = list(run.rollouts())
    addresses = short_addresses(rollouts)
    rewards = rewards_of(run, rollouts)
    click.echo("\nLook at what happened:", err=True)
    if rollouts:
        longest = max(rollouts, key=lambda rollout: len(rollout.messages))
        worst = min(rollouts, key=lambda rollout: _sortable(rewards[rollout.id]))
        for rollout, why in {longest.id: (longest, "the longest"), worst.id: (worst, "the lowest reward")}.values():
            click.echo(f"  {command('show', str(run.path), addresses[rollout.id])}   # {why}", err=True)
    click.echo(f"  {command('show', str(run.path), '--json')} | head -1   # a record, as it is on disk", err=True)
    click.echo(f"  {command('run', 'arithmetic', '--groups', '8')}   # play more", err=True)


def _sortable(reward: float | None) -> float:
    return float("-inf") if reward is None else reward
