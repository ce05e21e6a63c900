"""Writes the reference of all commands, as Markdown; `make docs` puts it into `commands.md`."""

import inspect

import click

from rolltrace.cli.app import COMMANDS, cli


def command_reference() -> str:
    """Every command with its help."""
    context = click.Context(cli, info_name="rolltrace", **cli.context_settings)
    pages = ["# Commands", inspect.cleandoc(cli.help or "")]
    for verb in COMMANDS:
        command = cli.get_command(context, verb)
        if command is not None:
            pages.append(_page(command, click.Context(command, info_name=verb, parent=context)))
    return "\n\n".join(pages) + "\n"


def _page(command: click.Command, context: click.Context) -> str:
    usage = " ".join(command.collect_usage_pieces(context))
    rows = [record for option in command.get_params(context) if (record := option.get_help_record(context))]
    options = "\n".join(f"| `{name}` | {text} |" for name, text in rows)
    parts = [
        f"## rolltrace {command.name}",
        f"`{context.command_path} {usage}`",
        inspect.cleandoc(command.help or ""),
        f"| option | |\n|---|---|\n{options}",
    ]
    return "\n\n".join(parts)


if __name__ == "__main__":
    click.echo(command_reference(), nl=False)
