"""`rolltrace run`: plays and records."""

import contextlib
import json
import re
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from rolltrace.cli.options_from_struct import GroupedCommand, struct_from_options, struct_options
from rolltrace.rollout.limits_and_penalties import Limits

POLICY = "policy"
DEFAULT_POLICY = "scripted:noisy"
_ROLE = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=")


@click.command(cls=GroupedCommand)
@click.argument("env", required=False)
@click.option(
    "--policy",
    "policies",
    multiple=True,
    metavar="[ROLE=]SPEC",
    help="The policy: local (the embedded model), local:FILE.gguf, openai:MODEL@BASE_URL, scripted:NAME, replay:RUN, "
    "human, or your own package.module:name, each with [,KEY=VALUE…]. Repeatable: ROLE=SPEC is the policy of another "
    "role of the environment (grader, answerer, opponent) or of a seat of a game (seat1).  "
    "[default: scripted:noisy, which plays the other roles too]",
)
@click.option("--groups", type=click.IntRange(min=1), default=1, help="Groups in each iteration.")
@click.option("--group-size", type=click.IntRange(min=1), default=4, help="Episodes in each group.")
@click.option("--iterations", type=click.IntRange(min=1), default=1, help="Iterations; each plays the next groups.")
@click.option("--seed", type=int, default=0, help="The seed of everything random.")
@click.option("--concurrency", type=click.IntRange(min=1), default=64, help="Policy requests in flight, in total.")
@click.option("--workers", type=click.IntRange(min=1), help="Play in that many processes.  [default: in this process]")
@click.option(
    "--ray",
    is_flag=False,
    flag_value="",
    metavar="[ADDRESS]",
    help="Play in a Ray cluster, with --workers actors: that at ADDRESS, or the one that Ray finds or starts. Needs "
    "the extra ray.  "
    "[default: --workers is the number of processors of the cluster]",
)
@click.option(
    "--ray-option",
    "ray_options",
    multiple=True,
    metavar="KEY=VALUE",
    help='An option of Ray for each actor, such as num_cpus=2 or resources={"fast": 1}; repeatable.',
)
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    help="The path of the new run, or an address such as s3://bucket/run; by default a new name in runs/.",
)
@click.option(
    "--trace",
    "level",
    type=click.Choice(["full", "numbers", "off"]),
    help="How much to record: everything, everything but text, or nothing.  [default: $ROLLTRACE_TRACE, or full]",
)
@click.option(
    "--trace-fraction",
    "fraction",
    type=click.FloatRange(0, 1),
    help="The fraction of groups to record in full, the others as numbers.  [default: $ROLLTRACE_TRACE_FRACTION, or 1]",
)
@click.option(
    "--trace-tokens/--no-trace-tokens",
    "tokens",
    default=None,
    help="Record token ids and log-probabilities too.  [default: $ROLLTRACE_TRACE_TOKENS, or no]",
)
@click.option(
    "--trace-calls/--no-trace-calls",
    "calls",
    default=None,
    help="Record the calls of graders, answerers and opponents.  [default: $ROLLTRACE_TRACE_CALLS, or yes]",
)
@click.option(
    "--sampling",
    multiple=True,
    metavar="KEY=VALUE",
    help="A sampling setting: temperature, top_p, top_k, min_p, max_tokens or stop (a JSON list); repeatable.",
)
@click.option("--arg", "args", multiple=True, metavar="KEY=VALUE", help="An argument of the environment; repeatable.")
@click.option(
    "--strategy",
    metavar="NAME",
    default="keep-viable",
    help="What a failed rollout means to its group: fail-fast (the first failure ends the group) or "
    "keep-viable[:FRACTION] (the group counts if that fraction of its members, and at least one, is ok).",
)
@click.option(
    "--retries",
    type=click.IntRange(min=0),
    default=0,
    help="How often an episode is retried after a failure of the policy or the environment; with any strategy.",
)
@click.option(
    "--log-to",
    multiple=True,
    metavar="TRACKER",
    help="Log the metrics of each iteration to trackio[:PROJECT], wandb[:PROJECT], tensorboard:DIR or mlflow[:URI]; "
    "repeatable.",
)
@click.option("--split", default="train", help="The split that the rollouts are recorded under.")
@click.option(
    "--resume",
    metavar="RUN",
    type=click.Path(path_type=Path),
    help="Complete an interrupted run: play its unfinished groups, as it was planned. It allows only --policy, "
    "--concurrency, --workers, --ray, --ray-option, --log-to, --force, --json and the --arg of a secret.",
)
@click.option("--force", is_flag=True, help="Resume a run even if it may still be running.")
@click.option("--json", "as_json", is_flag=True, help="The summary as one JSON object.")
@struct_options(Limits, "Limits of a rollout")
@click.pass_context
def run(
    context: click.Context,
    /,
    env: str | None,
    policies: tuple[str, ...],
    out: Path | None,
    level: str | None,
    fraction: float | None,
    tokens: bool | None,
    calls: bool | None,
    sampling: tuple[str, ...],
    args: tuple[str, ...],
    strategy: str,
    resume: Path | None,
    force: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Play ENV and record every rollout.

    ENV is a name that `rolltrace envs` lists, or your own package.module:name. With --resume RUN, an interrupted run is
    completed: finished groups are not played again.

    With --workers, groups are played in processes of this machine, and with --ray in a Ray cluster, with --concurrency
    as the total. Groups of a process that dies are played again.

    The exit code is 1 if the job failed: it was interrupted, or a group has no member with a reward, or something could
    not be recorded. The run has everything that was played until then. SIGTERM has the same effect as Ctrl-C, but exit
    code 143, and ends the process within 15 seconds; a second signal ends it at once.
    """
    from rolltrace.jobs.plan import as_sampling
    from rolltrace.rollout.strategies import parse_strategy
    from rolltrace.store.create import unused_run_path
    from rolltrace.store.object_address import as_path
    from rolltrace.store.recording import Level, Recording

    options["ray"] = options["ray"] or options["ray"] is not None  # without an address it is empty
    options["ray_options"] = _parse_ray_options(options["ray_options"])
    policy, roles = parse_policies(policies)
    env_args = parse_arguments(args, "--arg")
    if resume is not None:
        _reject_options(context)
        changed: dict[str, Any] = {} if _is_default(context, "concurrency") else {"concurrency": options["concurrency"]}
        changed |= {name: options[name] for name in ("log_to", "workers", "ray", "ray_options")}
        _resume(resume, force, as_json, policy=policy, roles=roles, args=env_args, **changed)
        return
    if env is None:
        raise click.MissingParameter(ctx=context, param_hint="'ENV'", param_type="argument")
    if force:
        raise click.UsageError("Expected --force only with --resume.", context)
    if out is not None and not out.name:
        raise click.BadParameter(f"Expected a path for the run, got {str(out)!r}.", param_hint="--out")
    path = as_path(out) if out else unused_run_path("runs", f"{env}-{time.strftime('%Y%m%d-%H%M%S')}")
    limits = struct_from_options(Limits, options)
    _play(
        path, options["groups"] * options["iterations"], as_json, (policy or DEFAULT_POLICY, *roles.values()),
        env=env, policy=policy or DEFAULT_POLICY, out=path, roles=roles, args=env_args,
        sampling=as_sampling(parse_arguments(sampling, "--sampling")), strategy=parse_strategy(strategy), limits=limits,
        trace=Recording(level=None if level is None else Level(level), fraction=fraction, tokens=tokens, calls=calls),
        **options,
    )  # fmt: skip


def _resume(path: Path, force: bool, as_json: bool, *, policy: str | None, roles: dict[str, str], **job: Any) -> None:
    """Complete a run, or say that it is complete."""
    from rolltrace.jobs.resume import open_resumption
    from rolltrace.store.object_address import as_path

    path = as_path(path)
    resumption = open_resumption(path, force=force)
    for warning in resumption.warnings:
        click.echo(f"Warning: {warning}", err=True)
    specs = (policy or resumption.policy, *{**resumption.roles, **roles}.values())
    _play(path, resumption.groups_left, as_json, specs, resume=resumption, policy=policy, roles=roles, **job)


def _play(path: Path, total: int, as_json: bool, specs: Sequence[str], /, **job: Any) -> None:
    """Play with a progress bar, print the summary and the next command, and exit with code 1 if the job failed."""
    from rolltrace.cli.hints import command
    from rolltrace.cli.screen.console import stdout_console, write_json
    from rolltrace.cli.screen.job_summary import progress, show_failures, show_job_summary, show_role_warnings
    from rolltrace.cli.signals import exit_on_signal
    from rolltrace.jobs.play import play

    is_human = any(re.match(r"human(?![^:,])", spec) for spec in specs)
    with (
        exit_on_signal(path, f" To complete it: {command('run', '--resume', str(path))}"),
        progress(total, plain=is_human) as on_group,
        contextlib.redirect_stdout(sys.stderr),  # an env that prints must not print into the data
    ):
        summary = play(on_group=on_group, **job)
    if not summary.groups:
        click.echo(f"Nothing to do: every group of {path} is finished.", err=True)
    if as_json:
        write_json(summary)
    elif summary.groups:
        show_job_summary(stdout_console(), summary)
    else:
        return
    click.echo(f"To read it: {command('show', summary.path)}", err=True)
    show_role_warnings(summary)
    show_failures(summary)
    if not summary.succeeded:
        raise SystemExit(1)


_WITH_RESUME = {
    "resume",
    "force",
    "policies",
    "concurrency",
    "workers",
    "ray",
    "ray_options",
    "log_to",
    "args",
    "as_json",
}


def _reject_options(context: click.Context) -> None:
    """Raise `UsageError` for options that the plan of the run already sets."""
    rejected = [
        parameter.human_readable_name if isinstance(parameter, click.Argument) else parameter.opts[0]
        for parameter in context.command.params
        if parameter.name not in _WITH_RESUME and parameter.name and not _is_default(context, parameter.name)
    ]
    if rejected:
        raise click.UsageError(
            f"Expected no {', '.join(rejected)} with --resume: a run is completed as it was planned.", context
        )


def _is_default(context: click.Context, name: str) -> bool:
    return context.get_parameter_source(name) is not click.core.ParameterSource.COMMANDLINE


def parse_policies(specs: tuple[str, ...]) -> tuple[str | None, dict[str, str]]:
    """Parse `[ROLE=]SPEC`: the spec of the policy, if there is one, and the specs of other roles."""
    roles: dict[str, str] = {}
    for spec in specs:
        prefix = _ROLE.match(spec)
        role = prefix[1] if prefix else POLICY
        if role in roles:
            name = f"role {role!r}" if prefix else "the policy itself"
            raise click.BadParameter(f"Expected one policy for {name}, got two.", param_hint="--policy")
        roles[role] = spec[prefix.end() :] if prefix else spec
    return roles.pop(POLICY, None), roles


def _parse_ray_options(pairs: tuple[str, ...]) -> dict[str, Any]:
    """The options of Ray, whose values are JSON or text."""
    options: dict[str, Any] = {}
    for name, text in parse_arguments(pairs, "--ray-option").items():
        try:
            options[name] = json.loads(text)
        except ValueError:
            options[name] = text
    return options


def parse_arguments(pairs: tuple[str, ...], option: str) -> dict[str, str]:
    """The KEY=VALUE pairs of a repeatable option."""
    arguments: dict[str, str] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not name or not equals:
            raise click.BadParameter(f"Expected KEY=VALUE, got {pair!r}.", param_hint=option)
        if name in arguments:
            raise click.BadParameter(f"Expected each argument once, got {name!r} twice.", param_hint=option)
        arguments[name] = value
    return arguments
