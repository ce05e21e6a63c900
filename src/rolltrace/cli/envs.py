"""`rolltrace envs`: the environments, with one line each."""

import click


@click.command()
@click.option("--json", "as_json", is_flag=True, help="One JSON object per line.")
def envs(as_json: bool) -> None:
    """List the environments that have a name."""
    from rolltrace.cli.screen.catalogue import show_envs
    from rolltrace.cli.screen.console import output, write_record
    from rolltrace.envs.registry import list_envs
    from rolltrace.trace.codec import json_encoder

    found = list_envs()
    if as_json:
        for env in found:
            write_record(json_encoder.encode(env) + b"\n")
    else:
        show_envs(output(), found)
