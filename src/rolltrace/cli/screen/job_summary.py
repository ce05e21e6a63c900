"""The progress and the summary of a job, and the result of the demo."""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from rolltrace.cli.screen.console import print_wrapped, stderr_console, wrap_lines
from rolltrace.cli.screen.number_format import format_duration, plural, short_number
from rolltrace.cli.screen.run_table import ledger_text
from rolltrace.cli.screen.styles import ROLE_STYLES
from rolltrace.terminal_text import escape_line
from rolltrace.trace.message import Message
from rolltrace.trace.rollout import Rollout
from rolltrace.trace.transcript import TranscriptMessage, transcript_events

if TYPE_CHECKING:  # `rolltrace run` needs neither the audits nor DuckDB
    from rolltrace.jobs.demo_run import DemoResult
    from rolltrace.jobs.play_summary import PlaySummary
    from rolltrace.jobs.workers.reports import GroupReport
    from rolltrace.query.groups import Group
    from rolltrace.rollout.group_runner import GroupResult

_MAX_PROGRESS_LINES = 100
_MAX_EXAMPLE_LINES = 12
_MAX_MESSAGE_LINES = 2
_MAX_EXAMPLE_WIDTH = 100
_ROLE = 11
"""The width of the column of roles."""


@contextlib.contextmanager
def progress(total: int, *, plain: bool = False) -> "Iterator[Callable[[GroupResult | GroupReport], None]]":
    """Yield a function to call with each finished group; with `plain` it prints lines on a terminal too.

    There is a line for each group, or about a hundred lines if there are more groups than that.
    """
    console = stderr_console()
    mean = _RunningMean()
    if plain or not console.is_terminal:
        every = max(1, total // _MAX_PROGRESS_LINES)

        def print_group(group: "GroupResult | GroupReport") -> None:
            mean.add(group)
            if mean.groups % every and mean.groups != total:
                return
            rewards = ", ".join(short_number(member.reward) for member in group.members)
            line = f"{mean.groups}/{total} groups, mean reward {mean}: {escape_line(group.group)}: {rewards}"
            with contextlib.suppress(OSError):  # a closed standard error does not stop the job
                console.print(line, soft_wrap=True)

        yield print_group
        return
    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("groups"), TextColumn("{task.description}", markup=False))
    with Progress(*columns, TimeRemainingColumn(), console=console, transient=True) as bar:
        task = bar.add_task("", total=total)
        yield lambda group: bar.update(task, advance=1, description=f"mean reward {mean.add(group)}")


class _RunningMean:
    """The running mean over the rewards of groups."""

    def __init__(self) -> None:
        self.groups = 0
        self._sum = 0.0
        self._count = 0

    def add(self, group: "GroupResult | GroupReport") -> "_RunningMean":
        rewards = [reward for reward in group.rewards if reward is not None]
        self.groups += 1
        self._sum += sum(rewards)
        self._count += len(rewards)
        return self

    def __str__(self) -> str:
        return short_number(self._sum / self._count if self._count else None)


def show_job_summary(console: Console, summary: "PlaySummary") -> None:
    """Print what was played and how it ended."""
    title = Text(escape_line(f"{summary.env} with {summary.policy}"), "bold")
    title.append(
        f": {summary.rollouts} rollouts in {summary.groups} groups, {format_duration(summary.seconds)}", "not bold"
    )
    mean = f"mean reward {short_number(summary.mean_reward)} (n = {summary.rewarded})"
    ends = ", ".join(f"{escape_line(reason)} {count}" for reason, count in sorted(summary.stop_reasons.items()))
    print_wrapped(console, title)
    print_wrapped(console, Text(f"{mean} · {ends}"))


def show_role_warnings(summary: "PlaySummary") -> None:
    """Warn on standard error about roles that the policy played itself, and roles that were never used."""
    console = stderr_console()
    for role in summary.unused_roles:
        warning = f"{summary.env} did not use the role {role!r}: check its name."
        console.print(Text(escape_line(warning), "yellow"), soft_wrap=True)
    if summary.roles_played_by_policy:
        roles = ", ".join(summary.roles_played_by_policy)
        warning = f"Played by the policy itself: {roles}. --policy ROLE=SPEC sets another policy for a role."
        console.print(Text(escape_line(warning), "yellow"), soft_wrap=True)


def show_failures(summary: "PlaySummary") -> None:
    """Print the failures on standard error, and why the job counts as failed if it does."""
    console = stderr_console()
    if summary.workers_lost:
        died = (
            f"{plural(summary.workers_lost, 'worker')} died; {plural(summary.groups_replayed, 'group')} played again."
        )
        console.print(Text(died, "yellow"), soft_wrap=True)
    for message, count in summary.errors.items():
        console.print(Text(f"{count} × {escape_line(message)}", "red"), soft_wrap=True)
    if summary.groups_without_reward:
        failure = f"{summary.groups_without_reward} of {summary.groups} groups have no member with a reward."
        console.print(Text(failure, "red"), soft_wrap=True)
    if not summary.ledger.complete:
        console.print(Text(f"Not everything was recorded: {ledger_text(summary.ledger)}.", "red"), soft_wrap=True)


def show_demo(console: Console, demo: "DemoResult", groups: "Sequence[Group]") -> None:
    """Print one rollout, the rewards of each group, the cost of recording, and the findings of the audits."""
    rollouts = {group.env: list(group.rollouts()) for group in groups}
    example = _example([rollouts[group.env] for group in groups if group.has_signal])
    if example is not None:
        _show_example(console, example)
        console.print()
    console.print(_table(demo.summaries, {group.env: group for group in groups}, rollouts))
    console.print()
    count = sum(summary.rollouts for summary in demo.summaries)
    played = f"{count} rollouts by {demo.policy}, graded and answered by {demo.grader}"
    print_wrapped(
        console, Text(escape_line(f"{played}, in {format_duration(demo.seconds)}; recorded in {demo.path}."), "bold")
    )
    cost = f"Recording took {format_duration(demo.recording_seconds)} of computing"
    percent = f"{100 * demo.recording_fraction:.2g} %" if demo.recording_fraction >= 0.0001 else "under 0.01 %"
    line = Text(f"{cost}: {percent} of the time. ")
    if demo.report.ok:
        line.append(f"✓ {len(demo.report.results)} audits found nothing wrong.", "green")
    print_wrapped(console, line)
    for result in demo.report.with_findings:
        finding = f"{result.audit}: {result.count} found; rolltrace check {demo.path} shows them"
        print_wrapped(console, Text(escape_line(finding), "yellow"))


def _example(groups: Sequence[Sequence[Rollout]]) -> Rollout | None:
    """The best member of one group: if possible with a positive reward and two to four turns, then the shortest."""
    played = ([rollout for rollout in group if rollout.steps and rollout.reward is not None] for group in groups)
    best = [max(members, key=lambda rollout: rollout.reward or 0.0) for members in played if members]
    return max(best, key=_example_rank, default=None)


def _example_rank(rollout: Rollout) -> tuple[bool, bool, int]:
    length = sum(len(message.content) for message in rollout.messages)
    return (rollout.reward or 0.0) > 0, 2 <= len(rollout.steps) <= 4, -length


def _show_example(console: Console, rollout: Rollout) -> None:
    title = Text(escape_line(f"{rollout.env} · {rollout.group} · member {rollout.index}"), "bold")
    title.append(f" · reward {short_number(rollout.reward)} in {plural(len(rollout.steps), 'turn')}")
    print_wrapped(console, title)
    width = min(console.width, _MAX_EXAMPLE_WIDTH)
    rewards = {step.step: step.reward for step in rollout.steps}
    lines: list[Text] = []
    for event in transcript_events(rollout):
        if isinstance(event, TranscriptMessage):
            reward = None if event.step is None else rewards[event.step]
            lines += _message_lines(console, event.message, reward, width)
    for line in lines[:_MAX_EXAMPLE_LINES]:
        console.print(line, soft_wrap=True)
    if len(lines) > _MAX_EXAMPLE_LINES:
        console.print(Text(f"  … {len(lines) - _MAX_EXAMPLE_LINES} lines more", "italic yellow"))
    if rollout.grade is not None:
        numbers = ", ".join(f"{name} {short_number(value)}" for name, value in rollout.grade.reward_data.items())
        grade = Text(f"{'grade':{_ROLE}}", "bold magenta").append(short_number(rollout.grade.reward), "bold")
        print_wrapped(console, grade.append(f": {escape_line(numbers)}" if numbers else "", "not bold"), "  ")


def _message_lines(console: Console, message: Message, reward: float | None, width: int) -> list[Text]:
    """The beginning of a message, with its role before it and the reward of its step after it."""
    calls = [f"→ {call.name} {call.arguments}" for call in message.tool_calls]
    text = " ".join(" ".join([message.content, *calls]).split())[: (_MAX_MESSAGE_LINES + 1) * width]
    gained = Text() if reward is None else Text(f"  reward {short_number(reward)}", "bold")
    room = width - _ROLE - 2
    body = wrap_lines(Text(escape_line(text)), console, "", room)
    if len(body) > _MAX_MESSAGE_LINES or (reward is not None and body[-1].cell_len + gained.cell_len > room):
        body = body[:_MAX_MESSAGE_LINES]
        body[-1].truncate(max(1, room - gained.cell_len - 2))
        body[-1].append(" …")
    body[-1].append_text(gained)
    roles = [f"{escape_line(message.role)[: _ROLE - 1]:{_ROLE}}", *(" " * _ROLE for _ in body[1:])]
    style = ROLE_STYLES.get(message.role, "bold cyan")
    return [Text("  ").append(role, style).append_text(line) for role, line in zip(roles, body, strict=True)]


def _table(
    summaries: "Sequence[PlaySummary]", groups: "Mapping[str, Group]", rollouts: Mapping[str, Sequence[Rollout]]
) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    table.add_column("environment", no_wrap=True)
    table.add_column("rewards of the group", no_wrap=True)
    table.add_column("signal", no_wrap=True)
    table.add_column("ended", overflow="fold")
    for summary in summaries:
        group = groups.get(summary.env)
        members = () if group is None else group.members
        rewards = " ".join(short_number(None if one.reward is None else float(f"{one.reward:.2g}")) for one in members)
        signal = Text("yes", "green") if group is not None and group.has_signal else Text("no", "yellow")
        if _is_ungraded(rollouts.get(summary.env, ())):
            rewards, signal = "–", Text("no grader", "dim")
        table.add_row(Text(escape_line(summary.env), "bold"), rewards, signal, _ends(summary))
    return table


def _is_ungraded(rollouts: Sequence[Rollout]) -> bool:
    """Whether the rollouts have only the default reward 0, as in an environment that only collects answers."""
    return bool(rollouts) and all(
        rollout.reward == 0
        and rollout.grade is None
        and not rollout.scores
        and not any(step.reward or step.env_reward or step.reward_data for step in rollout.steps)
        for rollout in rollouts
    )


def _ends(summary: "PlaySummary") -> Text:
    """How the rollouts ended, and how often a part failed."""
    ends = ", ".join(f"{escape_line(reason)} {count}" for reason, count in sorted(summary.stop_reasons.items()))
    text = Text(ends)
    for layer in sorted({message.partition(" ")[0] for message in summary.errors}):
        count = sum(times for message, times in summary.errors.items() if message.partition(" ")[0] == layer)
        text.append(f"  ({escape_line(layer)} failed {count} ×)", "red")
    return text
