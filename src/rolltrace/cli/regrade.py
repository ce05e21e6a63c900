"""`rolltrace regrade`: grades stored rollouts again."""

import contextlib
import sys
from pathlib import Path

import click


@click.command(short_help="Grade stored rollouts again, beside the old scores.")
@click.argument("run", type=click.Path(path_type=Path))
@click.option(
    "--grader",
    required=True,
    metavar="NAME",
    help="auto, exact, number or math (the answer of the last response), rubric or preference (a policy judges), or "
    "your own package.module:object: a Grader, a GroupGrader, or a function.",
)
@click.option("--arg", "args", multiple=True, metavar="KEY=VALUE", help="An argument of the grader; repeatable.")
@click.option("--where", metavar="SQL", help="Only rollouts that match this condition over the columns of `rollouts`.")
@click.option(
    "--policy",
    "policies",
    multiple=True,
    metavar="[ROLE=]SPEC",
    help="The policy that a grader asks, as in `rolltrace run`: grader=SPEC; repeatable.",
)
@click.option("--as-reward", is_flag=True, help="Make the new values the rewards.")
@click.option("--retry-failed", is_flag=True, help="Also grade rollouts again whose grader failed before.")
@click.option("--concurrency", type=click.IntRange(min=1), default=64, help="Rollouts or groups graded at once.")
@click.option(
    "--timeout",
    type=click.FloatRange(min=0, min_open=True),
    default=600.0,
    help="Seconds for one rollout or group; a grader that takes longer has failed.",
)
@click.option("--threshold", type=float, default=0.5, help="From this value on, the report counts a rollout as solved.")
@click.option("--json", "as_json", is_flag=True, help="What was done and what moved, as one JSON object.")
def regrade(
    run: Path,
    grader: str,
    args: tuple[str, ...],
    where: str | None,
    policies: tuple[str, ...],
    as_reward: bool,
    retry_failed: bool,
    concurrency: int,
    timeout: float,
    threshold: float,
    as_json: bool,
) -> None:
    """Run a grader over the rollouts of RUN, and show what moved: flips, correlation, order within groups, tasks.

    The new scores are named regrade/GRADER@VERSION and stand beside the old ones; rewards change only with --as-reward.
    Rollouts that have such a score are not graded again, so the same command continues one that was interrupted. A
    grader of groups gets whole groups, whatever --where says.

    The exit code is 1 if no rollout has a value of this grader, or if the command was interrupted.
    """
    from rolltrace.cli.hints import command
    from rolltrace.cli.run import parse_arguments, parse_policies
    from rolltrace.cli.screen.console import show_read_errors, stdout_console, write_json
    from rolltrace.cli.screen.regrade_report import regrade_progress, show_regrade
    from rolltrace.cli.signals import exit_on_signal
    from rolltrace.jobs.regrade import regrade as regrade_run
    from rolltrace.store.object_address import as_path

    policy, roles = parse_policies(policies)
    path = as_path(run)
    with (
        exit_on_signal(path, " The same command grades the rest.", "The scores so far are"),
        regrade_progress(path) as on_progress,
        contextlib.redirect_stdout(sys.stderr),  # a grader that prints must not print into the data
    ):
        summary = regrade_run(
            path,
            grader,
            where=where,
            args=parse_arguments(args, "--arg"),
            policy=policy,
            roles=roles,
            as_reward=as_reward,
            retry_failed=retry_failed,
            concurrency=concurrency,
            seconds=timeout,
            threshold=threshold,
            on_progress=on_progress,
        )
    if as_json:
        write_json(summary)
    else:
        show_regrade(stdout_console(), summary)
    show_read_errors(summary.read_errors)
    if summary.report.moved and not as_reward:
        click.echo("Rewards are as they were: --as-reward makes the new values the rewards.", err=True)
    if summary.report.rollouts:
        click.echo(f"To look at one: {command('show', str(path), summary.report.rollouts[0].id)}", err=True)
    if not summary.succeeded:
        raise SystemExit(1)
