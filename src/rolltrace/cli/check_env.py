"""`rolltrace check-env`: checks an environment against the rules of the contract."""

import contextlib
import sys

import click


@click.command("check-env", short_help="Check that an environment keeps the contract.")
@click.argument("env")
@click.option("--arg", "args", multiple=True, metavar="KEY=VALUE", help="An argument of the environment; repeatable.")
@click.option("--task", type=click.IntRange(min=0), default=0, help="The number of the task to play.")
@click.option("--seed", type=int, default=0, help="The seed that the task is made with.")
@click.option("--turns", type=click.IntRange(min=1), default=8, help="The maximum number of turns of a play.")
@click.option(
    "--timeout",
    type=click.FloatRange(min=0, min_open=True),
    default=30.0,
    help="Time-out of each call in seconds.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object: env, ok, and violations of rule, message, fix.")
def check_env(env: str, args: tuple[str, ...], task: int, seed: int, turns: int, timeout: float, as_json: bool) -> None:
    """Play ENV in all the ways a runner may, and print one sentence for each rule that it breaks.

    ENV is what `rolltrace run` accepts: a name that `rolltrace envs` lists, or package.module:name of your own, which
    may be an Env or MessageEnv class, an EnvGroupBuilder, Tasks, or a function that returns one. Nothing is recorded.

    The exit code is 1 if a rule is broken.
    """
    from rolltrace.cli.run import parse_arguments
    from rolltrace.cli.screen.console import stdout_console, write_json
    from rolltrace.cli.screen.env_list import show_violations
    from rolltrace.testing.check_env import Rule
    from rolltrace.testing.check_env import check_env as check

    arguments = parse_arguments(args, "--arg")
    # An env that prints must not print into the data.
    with contextlib.redirect_stdout(sys.stderr):
        violations = check(env, args=arguments, task=task, seed=seed, turns=turns, seconds=timeout)
    if as_json:
        write_json({"env": env, "ok": not violations, "violations": violations})
    else:
        rules = len(Rule) - 1  # `answers` is about what the check says, not about the environment.
        show_violations(stdout_console(), env, violations, rules)
    if violations:
        raise SystemExit(1)
