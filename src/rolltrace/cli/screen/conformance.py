"""What `check_env` found, in sentences."""

from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from rolltrace.terminal_text import escape_line
from rolltrace.testing.check_env import Rule, Violation


def show_violations(console: Console, env: str, violations: Sequence[Violation]) -> None:
    """Print one sentence for each violation, or that the environment passes."""
    for violation in violations:
        sentence = Text(escape_line(str(violation)))
        sentence.stylize("bold red", 0, len(violation.rule))
        console.print(sentence, soft_wrap=True)
    if not violations:
        # `answers` is about what the check says, not about the environment.
        console.print(Text(f"✓ {escape_line(env)} keeps all {len(Rule) - 1} rules.", "green"), soft_wrap=True)
