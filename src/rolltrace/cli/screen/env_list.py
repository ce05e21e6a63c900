"""A table of environments, and the violations that `check-env` found."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table
from rich.text import Text

from rolltrace.arguments import Argument
from rolltrace.envs.registry import EnvInfo
from rolltrace.terminal_text import escape_line

if TYPE_CHECKING:
    from rolltrace.testing.check_env import Violation


def show_envs(console: Console, envs: Sequence[EnvInfo]) -> None:
    """Print one line for each environment, and one for its arguments."""
    table = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for env in envs:
        table.add_row(Text(escape_line(env.name), "bold"), _description(env))
    console.print(table)


def show_violations(console: Console, env: str, violations: "Sequence[Violation]", rules: int) -> None:
    """Print one sentence for each violation, or that the environment keeps all rules."""
    for violation in violations:
        sentence = Text(escape_line(str(violation)))
        sentence.stylize("bold red", 0, len(violation.rule))
        console.print(sentence, soft_wrap=True)
    if not violations:
        console.print(Text(f"✓ {escape_line(env)} keeps all {rules} rules.", "green"), soft_wrap=True)


def _description(env: EnvInfo) -> Text:
    description = Text(escape_line(env.summary))
    if env.error is not None:
        gap = "\n" if env.summary else ""
        return description.append(f"{gap}cannot be used: {escape_line(env.error)}", "red")
    if env.arguments:
        description.append("\n--arg " + "  ".join(map(_argument, env.arguments)), "dim")
    return description


def _argument(argument: Argument) -> str:
    return escape_line(f"{argument.name}={'…' if argument.default is None else argument.default}")
