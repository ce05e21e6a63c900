"""`rolltrace envs`: the environments, with one line each."""

import click


@click.command()
@click.argument("family", required=False)
@click.option("--json", "as_json", is_flag=True, help="One JSON object per line.")
def envs(family: str | None, as_json: bool) -> None:
    """List the environments that have a name; with FAMILY, such as textarena, all names of that family."""
    from rolltrace.cli.screen.console import stdout_console, write_json
    from rolltrace.cli.screen.env_list import show_envs
    from rolltrace.envs.registry import list_envs, list_members

    if family is not None:
        for name in list_members(family):
            if as_json:
                write_json({"name": name})
            else:
                click.echo(name)
        return
    listed = list_envs()
    if as_json:
        for env in listed:
            write_json(env)
    else:
        show_envs(stdout_console(), listed)
