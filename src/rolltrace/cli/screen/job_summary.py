"""What came of a job, in a few lines."""

from rich.console import Console
from rich.text import Text

from rolltrace.cli.screen.console import stderr_console, wrap_lines
from rolltrace.cli.screen.number_format import format_duration, short_number
from rolltrace.cli.screen.run_table import ledger_text
from rolltrace.jobs.play_summary import PlaySummary
from rolltrace.terminal_text import escape_line


def show_job_summary(console: Console, summary: PlaySummary) -> None:
    """Print what was played and how it ended."""
    title = Text(escape_line(f"{summary.env} with {summary.policy}"), "bold")
    title.append(
        f": {summary.rollouts} rollouts in {summary.groups} groups, {format_duration(summary.seconds)}", "not bold"
    )
    mean = f"mean reward {short_number(summary.mean_reward)} (n = {summary.rewarded})"
    ends = ", ".join(f"{escape_line(reason)} {count}" for reason, count in sorted(summary.stop_reasons.items()))
    for line in (title, Text(f"{mean} · {ends}")):
        for piece in wrap_lines(line, console, ""):
            console.print(piece, soft_wrap=True)


def show_role_warnings(summary: PlaySummary) -> None:
    """Say on standard error who played what nobody was given, and which role was given in vain."""
    console = stderr_console()
    for role in summary.unasked_roles:
        what = f"Nothing in {summary.env} asked the role {role!r}: is that its name?"
        console.print(Text(escape_line(what), "yellow"), soft_wrap=True)
    if summary.roles_played_by_policy:
        roles = ", ".join(summary.roles_played_by_policy)
        what = f"Played by the policy itself: {roles}. --policy ROLE=SPEC gives a role to another."
        console.print(Text(escape_line(what), "yellow"), soft_wrap=True)


def show_failures(summary: PlaySummary) -> None:
    """Say on standard error what failed, and why the job counts as failed where it does."""
    console = stderr_console()
    for message, count in summary.errors.items():
        console.print(Text(f"{count} × {escape_line(message)}", "red"), soft_wrap=True)
    if summary.groups_without_reward:
        what = f"{summary.groups_without_reward} of {summary.groups} groups have no member with a reward."
        console.print(Text(what, "red"), soft_wrap=True)
    if not summary.ledger.complete:
        console.print(Text(f"Not everything was recorded: {ledger_text(summary.ledger)}.", "red"), soft_wrap=True)
