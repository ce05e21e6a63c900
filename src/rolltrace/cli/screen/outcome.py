"""What came of a job, in a few lines."""

from rich.console import Console
from rich.text import Text

from rolltrace.cli.screen.console import errors, folded
from rolltrace.cli.screen.overview import ledger_text
from rolltrace.cli.screen.visible import duration, number, visible_line
from rolltrace.jobs.summary import Summary


def show_summary(console: Console, summary: Summary) -> None:
    """Print what was played and how it ended."""
    title = Text(visible_line(f"{summary.env} with {summary.policy}"), "bold")
    title.append(f": {summary.rollouts} rollouts in {summary.groups} groups, {duration(summary.seconds)}", "not bold")
    mean = f"mean reward {number(summary.mean_reward)} (n = {summary.rewarded})"
    ends = ", ".join(f"{visible_line(reason)} {count}" for reason, count in sorted(summary.stop_reasons.items()))
    for line in (title, Text(f"{mean} · {ends}")):
        for piece in folded(line, console, ""):
            console.print(piece, soft_wrap=True)


def show_roles(summary: Summary) -> None:
    """Say on standard error who played what nobody was given, and which role was given in vain."""
    console = errors()
    for role in summary.unasked_roles:
        what = f"Nothing in {summary.env} asked the role {role!r}: is that its name?"
        console.print(Text(visible_line(what), "yellow"), soft_wrap=True)
    if summary.roles_played_by_policy:
        roles = ", ".join(summary.roles_played_by_policy)
        what = f"Played by the policy itself: {roles}. --policy ROLE=SPEC gives a role to another."
        console.print(Text(visible_line(what), "yellow"), soft_wrap=True)


def show_failures(summary: Summary) -> None:
    """Say on standard error what failed, and why the job counts as failed where it does."""
    console = errors()
    for message, count in summary.errors.items():
        console.print(Text(f"{count} × {visible_line(message)}", "red"), soft_wrap=True)
    if summary.groups_without_reward:
        what = f"{summary.groups_without_reward} of {summary.groups} groups have no member with a reward."
        console.print(Text(what, "red"), soft_wrap=True)
    if not summary.ledger.complete:
        console.print(Text(f"Not everything was recorded: {ledger_text(summary.ledger)}.", "red"), soft_wrap=True)
