"""`rolltrace demo`: plays every built-in environment, and shows the result."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from rolltrace.query.run import Run


@click.command(short_help="Play every built-in environment.")
@click.option("--policy", default="local", metavar="SPEC", help="The policy that plays: local is the embedded model.")
@click.option("--out", type=click.Path(path_type=Path), help="The path of the new run; by default a new name in runs/.")
@click.option("--seed", type=int, default=0, help="The seed of everything random.")
def demo(policy: str, out: Path | None, seed: int) -> None:
    """Play every built-in environment with the embedded model, record and audit the run, and print what to try next.

    The exit code is 1 if something could not be recorded, or if the audits found something wrong.
    """
    from rolltrace.cli.screen.console import stdout_console
    from rolltrace.cli.screen.job_summary import progress, show_demo, show_failures
    from rolltrace.cli.signals import exit_on_signal
    from rolltrace.errors import InputError
    from rolltrace.jobs.demo_run import demo_envs, play_demo
    from rolltrace.query.run import open_run
    from rolltrace.store.create import unused_run_path

    path = out or unused_run_path("runs", "demo")
    try:
        with exit_on_signal(path), progress(len(demo_envs())) as on_group:
            result = play_demo(path, policy=policy, seed=seed, on_group=on_group)
    except InputError as error:
        if policy != "local" or path.exists():
            raise
        raise InputError(f"{error} Or play with the scripted policy: rolltrace demo --policy scripted:noisy") from error
    with open_run(path) as run:
        show_demo(stdout_console(), result, list(run.groups()))
        for summary in result.summaries:
            show_failures(summary)
        _show_next_commands(run, policy)
    if not result.succeeded:
        raise SystemExit(1)


def _show_next_commands(run: "Run", policy: str) -> None:
    """Print commands that show the run in the viewer, the longest rollout and the one with the lowest reward."""
    from rolltrace.cli.hints import command
    from rolltrace.query.address import short_addresses

    rollouts = list(run.rollouts(limit=None))
    addresses = short_addresses(rollouts)
    click.echo("\nLook at what happened:", err=True)
    click.echo(f"  {command('view', str(run.path))}   # in a browser", err=True)
    if rollouts:
        longest = max(rollouts, key=lambda rollout: len(rollout.messages))
        examples = {longest.id: (longest, "the longest")}
        if rewarded := [rollout for rollout in rollouts if rollout.reward is not None]:
            worst = min(rewarded, key=lambda rollout: rollout.reward or 0.0)
            examples[worst.id] = (worst, "the lowest reward")
        for rollout, comment in examples.values():
            click.echo(f"  {command('show', str(run.path), addresses[rollout.id])}   # {comment}", err=True)
    sql = "select role, about, policy, reply from calls"
    click.echo(f"  {command('query', str(run.path), sql)}   # the replies of graders and answerers", err=True)
    click.echo(f"  {command('show', str(run.path), '--json')} | head -1   # a record, as JSON", err=True)
    click.echo(f"  {command('run', 'arithmetic', '--policy', policy, '--groups', '8')}   # play more", err=True)
