"""`rolltrace replay`: plays a run again with its recorded responses, and compares."""

import contextlib
import shlex
import sys
from pathlib import Path

import click


@click.command(short_help="Replay a run's responses in fresh environments, and compare.")
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--where", metavar="SQL", help="Only rollouts for which this is true, such as 'reward < 0'.")
@click.option("--limit", type=click.IntRange(min=1), help="Replay at most this many rollouts.")
@click.option(
    "--env",
    metavar="ENV",
    help="Load the environment from here: a name, or package.module:name.  [default: as the run did]",
)
@click.option(
    "--arg",
    "args",
    multiple=True,
    metavar="KEY=VALUE",
    help="An argument of the environment instead of the run's own; needed for secrets; repeatable.",
)
@click.option(
    "--also",
    multiple=True,
    type=click.Choice(["env_state", "extra", "metrics", "logs", "task_data"]),
    help="Compare this field, too; repeatable.",
)
@click.option(
    "--tolerance",
    type=click.FloatRange(min=0),
    default=1e-9,
    help="Numbers that differ by at most this, relative or absolute, are equal.",
)
@click.option(
    "--recorded-tools",
    is_flag=True,
    help="Use the recorded results of tool calls instead of running the tools, such as those that call the outside.",
)
@click.option("--most", type=click.IntRange(min=1), default=5, help="Show at most this many rollouts that differ.")
@click.option(
    "--as-test",
    "test_folder",
    metavar="DIR",
    type=click.Path(path_type=Path),
    help="If the replay is equal, write a recording and a test for pytest into this folder. It has the groups of the "
    "first 16 rollouts, or of those of --where and --limit.",
)
@click.option("--json", "as_json", is_flag=True, help="The report as one JSON object.")
def replay(
    run: Path,
    where: str | None,
    limit: int | None,
    env: str | None,
    args: tuple[str, ...],
    also: tuple[str, ...],
    tolerance: float,
    recorded_tools: bool,
    most: int,
    test_folder: Path | None,
    as_json: bool,
) -> None:
    """Feed the recorded responses of RUN to fresh environments, and compare each step with the record.

    Prompts, tools, rewards, reward data and stop reasons are compared: is the environment deterministic, and did a
    change of its code move rewards? Environments, their tools and graders run again. Calls to graders, answerers and
    opponents get their recorded answers. Nothing is written to RUN.

    The exit code is 1 if a rollout differs, or if none could be replayed.
    """
    from rolltrace.cli.run import parse_arguments
    from rolltrace.cli.screen.console import show_read_errors, stdout_console, write_json
    from rolltrace.cli.screen.replay_report import show_replay_report
    from rolltrace.cli.screen.rollout_progress import rollout_progress
    from rolltrace.jobs.regression_test import TEST_ROLLOUTS, write_regression_test
    from rolltrace.jobs.replay_run import replay_run
    from rolltrace.store.object_address import as_path
    from rolltrace.terminal_text import escape_line

    path, arguments = as_path(run), parse_arguments(args, "--arg")
    if test_folder is not None and limit is None:
        limit = TEST_ROLLOUTS
    # An env that prints must not print into the data.
    with rollout_progress(path) as on_progress, contextlib.redirect_stdout(sys.stderr):
        report = replay_run(
            path, env=env, args=arguments, where=where, limit=limit, also=also, tolerance=tolerance, most=most,
            recorded_tools=recorded_tools, on_progress=on_progress,
        )  # fmt: skip
    if as_json:
        write_json(report.to_dict())
    else:
        show_replay_report(stdout_console(), report)
    show_read_errors(report.read_errors)
    if not report.is_equal:
        raise SystemExit(1)
    if test_folder is not None:
        test = write_regression_test(
            path, test_folder, env=env, args=arguments, where=where, limit=limit, recorded_tools=recorded_tools
        )
        click.echo(f"To run the test: pytest {escape_line(shlex.quote(str(test)))}", err=True)
