"""`rolltrace demo`: plays every built-in environment, and shows the result."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from rolltrace.query.run import Run


@click.command(short_help="Play every built-in environment.")
@click.option(
    "--policy", default="local", show_default=True, metavar="SPEC", help="Who answers: local is the embedded model."
)
@click.option("--out", type=click.Path(path_type=Path), help="Where the run goes; by default a fresh name in runs/.")
@click.option("--seed", type=int, default=0, show_default=True, help="What all chance is drawn from.")
def demo(policy: str, out: Path | None, seed: int) -> None:
    """Play every built-in environment with the embedded model, record it, audit it, and say how to look at it.

    Exit code 1 says that something could not be recorded, or that the audits found something wrong.
    """
    from rolltrace.cli.screen.console import stdout_console
    from rolltrace.cli.screen.job_summary import progress, show_demo, show_failures
    from rolltrace.cli.signals import exit_on_signal
    from rolltrace.errors import InputError
    from rolltrace.jobs.demo_run import demo_envs, play_demo
    from rolltrace.query.run import open_run
    from rolltrace.store.create import unused_run_path

    place = out or unused_run_path("runs", "demo")
    try:
        with exit_on_signal(place), progress(len(demo_envs())) as on_group:
            played = play_demo(place, policy=policy, seed=seed, on_group=on_group)
    except InputError as error:
        if policy != "local" or place.exists():
            raise
        raise InputError(f"{error} Or play with the scripted policy: rolltrace demo --policy scripted:noisy") from error
    with open_run(place) as run:
        show_demo(stdout_console(), played, list(run.groups()))
        for summary in played.summaries:
            show_failures(summary)
        _show_next_commands(run, policy)
    if not played.succeeded:
        raise SystemExit(1)


def _show_next_commands(run: "Run", policy: str) -> None:
    """Name the viewer, and the commands that show the longest rollout and the one with the lowest reward."""
    from rolltrace.cli.hints import command
    from rolltrace.query.address import short_addresses

    rollouts = list(run.rollouts(limit=None))
    addresses = short_addresses(rollouts)
    click.echo("\nLook at what happened:", err=True)
    click.echo(f"  {command('view', str(run.path))}   # in a browser", err=True)
    if rollouts:
        longest = max(rollouts, key=lambda rollout: len(rollout.messages))
        worst = min(rollouts, key=lambda rollout: _sortable(rollout.reward))
        examples = {longest.id: (longest, "the longest")}
        if worst.reward is not None:
            examples[worst.id] = (worst, "the lowest reward")
        for rollout, why in examples.values():
            click.echo(f"  {command('show', str(run.path), addresses[rollout.id])}   # {why}", err=True)
    sql = "select role, about, policy, reply from calls"
    click.echo(f"  {command('query', str(run.path), sql)}   # what graders and answerers said", err=True)
    click.echo(f"  {command('show', str(run.path), '--json')} | head -1   # a record, as JSON", err=True)
    click.echo(f"  {command('run', 'arithmetic', '--policy', policy, '--groups', '8')}   # play more", err=True)


def _sortable(reward: float | None) -> float:
    return float("inf") if reward is None else reward
