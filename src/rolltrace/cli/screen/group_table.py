"""A group: the shared prompt once, then a table of its members, the best first."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Literal, NamedTuple

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from rolltrace.cli.hints import command
from rolltrace.cli.screen.console import table_cell
from rolltrace.cli.screen.detail_printer import INDENT, DetailPrinter
from rolltrace.cli.screen.number_format import plural, short_number
from rolltrace.cli.screen.styles import STATUS_STYLES
from rolltrace.cli.screen.transcript import RolloutTranscript, role_heading
from rolltrace.query.group_comparison import GroupComparison
from rolltrace.query.group_members import Member
from rolltrace.terminal_text import escape_line

_MAX_PROMPT_CHARS = 1_500
"""A longer message of the shared prompt is folded, unless `--full` is given."""
_MAX_NUMBERS = 8
"""How many numbers have a column or are listed below the table, unless `--full` is given."""
_MAX_NAME_CHARS = 20
_MIN_ANSWER = 17
"""Columns that would leave less room than this for the answer are left out."""
_GAP = 2
_SHORT_ID = 8


class _Column(NamedTuple):
    """A fact or a number about each member, in the order of the members."""

    name: str
    cells: Sequence[Text]
    justify: Literal["left", "right"] = "right"

    @property
    def width(self) -> int:
        return max(cell_len(self.name), *(cell.cell_len for cell in self.cells)) + _GAP

    @property
    def is_same_for_all(self) -> bool:
        return len(self.cells) > 1 and len({cell.plain for cell in self.cells}) == 1


def show_group(console: Console, group: GroupComparison, run: str, name: str, *, full: bool = False) -> None:
    """Print a group; `run` and `name` are what the user typed to get it."""
    printer = _GroupPrinter(console, group, full=full)
    printer.show()
    if console.is_terminal and group.members:
        first = group.members[0]
        has_unique_index = printer.labels[first.id] == f"#{first.index}"
        member_name = f"{name}/{first.index}" if has_unique_index else first.id
        printer.line()
        printer.wrapped(Text(f"{command('show', run, member_name)}   # one member", "dim"))
        printer.wrapped(Text(f"{command('view', run)}   # the members side by side", "dim"))


class _GroupPrinter(DetailPrinter):
    def __init__(self, console: Console, group: GroupComparison, *, full: bool = False) -> None:
        super().__init__(console, full=full)
        self._group = group
        self.labels = _member_labels(group)

    def show(self) -> None:
        self._head()
        self._shared_prompt()
        if self._group.members:
            self.line()
            self._members(self._group.members)
        if self._group.omitted:
            more = f"… {plural(self._group.omitted, 'member')} more: --limit shows more"
            self.wrapped(Text(more, "italic yellow"))
        if self._group.unreadable:
            self.wrapped(Text(f"{plural(self._group.unreadable, 'member')} cannot be read", "bold red"))

    def _head(self) -> None:
        group = self._group
        title = Text().append(escape_line(f"{group.split}/{group.env}/{group.iteration}/{group.group}"), "bold")
        title.append(f"  {plural(group.size, 'member')}")
        title.append("  no rewards" if not group.n else f"  mean reward {short_number(group.mean)}", "bold")
        if group.n:
            title.append(f" ± {short_number(group.std)} (n = {group.n:,})")
        self.wrapped(title)
        if group.retried:
            self.wrapped(Text(f"{plural(group.retried, 'attempt')} tried again", "yellow"))
        if group.collides:
            collision = f"{plural(group.collides, 'member')} collide: several sessions recorded the same places at once"
            self.wrapped(Text(collision, "bold red"))
        if group.no_signal is not None:
            self.wrapped(Text(escape_line(group.no_signal), "bold yellow"))
        if group.task != group.group:
            self.labelled("task", Text(escape_line(group.task)))
        self.mapping("task_data", group.task_data)
        for score in group.scores:
            if score.error is not None:
                self.failure(escape_line(score.name), score.error)
            elif score.name != "group_grade" or group.matrix is None:
                self.labelled("score", Text(f"{escape_line(score.name)} {short_number(score.value)}"))
        if group.matrix is not None:
            self.numbers("preferences", group.matrix.numbers)

    def _shared_prompt(self) -> None:
        group = self._group
        if not group.shared:
            return
        whose = {1: "its member", 2: "both members"}.get(group.size, f"all {group.size:,} members")
        self.line()
        self.wrapped(Text().append("the prompt", "bold").append(f" of {whose}", "dim"))
        transcript = RolloutTranscript(self.console, full=self.full, max_text=_MAX_PROMPT_CHARS)
        call_number = 1
        for excerpt in group.shared:
            message = excerpt.message
            self.wrapped(role_heading(message), INDENT)
            transcript.message(message, range(call_number, call_number + len(message.tool_calls)), INDENT * 2)
            call_number += len(message.tool_calls)
            if excerpt.omitted:
                more = f"… {excerpt.omitted:,} characters more: the transcript of a member has all"
                self.wrapped(Text(more, "italic yellow"), INDENT * 2)
        if group.shared_omitted:
            self.wrapped(Text(f"… {plural(group.shared_omitted, 'message')} more", "italic yellow"), INDENT)

    def _members(self, members: Sequence[Member]) -> None:
        """Print the table, then the columns that are not in it because they are the same for all, or do not fit."""
        first = [
            _Column("member", [Text(self.labels[member.id], "bold cyan") for member in members], "left"),
            _Column("reward", [Text(_short(member.reward), "bold") for member in members]),
            _Column("advantage", [_advantage(member.advantage) for member in members]),
        ]
        facts, numbers = list(_fact_columns(members)), list(_number_columns(members))
        same = [column for column in (*facts, *numbers) if column.is_same_for_all]
        numbers = [column for column in numbers if column not in same]
        most = len(numbers) if self.full else _MAX_NUMBERS
        room = self.console.width - _MIN_ANSWER - sum(column.width for column in first)
        fitting: list[_Column] = []
        for column in (*(column for column in facts if column not in same), *numbers[:most]):
            if column.width <= room:
                fitting.append(column)
                room -= column.width
        in_order = [column for column in (*numbers, *facts) if column in fitting]
        self._table([*first, *in_order], [_last_line(member) for member in members])
        left_out = [column.name for column in (*facts, *numbers) if column not in (*fitting, *same)]
        which = "all" if not self._group.omitted else "all of these"
        self._remark(f"the same for {which}", [f"{column.name} {column.cells[0].plain}" for column in same])
        self._remark("not shown", left_out)

    def _table(self, columns: Sequence[_Column], answers: Sequence[Text]) -> None:
        table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, _GAP, 0, 0))
        for column in columns:
            table.add_column(Text(column.name), justify=column.justify, no_wrap=True)
        table.add_column("answer", no_wrap=True, overflow="ellipsis")
        # Rich would take the room that a long answer needs from the other columns.
        room = max(1, self.console.width - sum(column.width for column in columns))
        for answer in answers:
            answer.truncate(room, overflow="ellipsis")
        for row in zip(*(column.cells for column in columns), answers, strict=True):
            table.add_row(*row)
        self.console.print(table)

    def _remark(self, label: str, items: Sequence[str]) -> None:
        if items:
            most = len(items) if self.full else _MAX_NUMBERS + 4
            more = f"  … {len(items) - most:,} more: --full shows all" if len(items) > most else ""
            self.wrapped(Text(f"{label}: {', '.join(items[:most])}{more}", "dim"))


def _member_labels(group: GroupComparison) -> dict[str, str]:
    """The short label of each member by id: its index, or the end of its id if several members have that index."""
    indexes = Counter(member.index for member in group.members)
    return {
        member.id: f"#{member.index}"
        if member.index is not None and indexes[member.index] == 1
        else f"…{escape_line(member.id[-_SHORT_ID:])}"
        for member in group.members
    }


def _fact_columns(members: Sequence[Member]) -> Iterator[_Column]:
    """How each member was played and how it ended."""
    facts: dict[str, Callable[[Member], int | None]] = {
        "episode": lambda member: member.episode if member.seat is not None else None,
        "seat": lambda member: member.seat,
        "attempt": lambda member: member.attempt or None,
    }
    for name, fact in facts.items():
        if any(fact(member) is not None for member in members):
            yield _Column(name, [Text(short_number(fact(member))) for member in members])
    stops = [Text(_cut(escape_line(member.stop_reason)), STATUS_STYLES.get(member.status, "")) for member in members]
    yield _Column("stopped", stops, "left")
    yield _Column("steps", [Text(str(member.steps)) for member in members])
    if any(member.completion_tokens is not None for member in members):
        yield _Column("tokens", [Text(short_number(member.completion_tokens)) for member in members])


def _number_columns(members: Sequence[Member]) -> Iterator[_Column]:
    """The terms of the reward if several differ, the numbers behind it, and other scores."""
    terms = list(_columns_by_name([{term.name: term.value for term in member.terms} for member in members]))
    if sum(not column.is_same_for_all for column in terms) > 1:
        # `steps` alone is the number of steps.
        yield from (column._replace(name="step rewards") if column.name == "steps" else column for column in terms)
    yield from _columns_by_name([member.reward_data for member in members])
    yield from _columns_by_name([member.scores for member in members])


def _columns_by_name(values: Sequence[dict[str, float]] | Sequence[dict[str, float | None]]) -> Iterator[_Column]:
    for name in dict.fromkeys(name for numbers in values for name in numbers):
        yield _Column(_cut(escape_line(name)), [Text(_short(numbers.get(name))) for numbers in values])


def _last_line(member: Member) -> Text:
    """The error of a failed member, otherwise the last line of its last answer."""
    if member.error is not None:
        error = f"{member.error.layer.value} · {member.error.type}: {member.error.message}"
        return table_cell(escape_line(error), "red")
    answers = [excerpt for excerpt in member.messages if excerpt.step is not None]
    if not answers:
        return Text("–", "dim")
    if member.omitted or answers[-1].omitted:
        return Text("(long: see its transcript)", "italic")
    message = answers[-1].message
    if message.tool_calls:
        call = message.tool_calls[-1]
        return table_cell(escape_line(f"→ {call.name} {call.arguments}"), "magenta")
    lines = message.content.strip().splitlines()
    return table_cell(escape_line(lines[-1])) if lines else Text("(empty)", "italic dim")


def _cut(text: str) -> str:
    return f"{text[: _MAX_NAME_CHARS - 1]}…" if len(text) > _MAX_NAME_CHARS else text


def _short(value: float | None) -> str:
    return short_number(None if value is None else float(f"{value:.3g}"))


def _advantage(value: float | None) -> Text:
    if value is None:
        return Text("–", "dim")
    return Text(f"{value:+.3g}" if value else "0", "green" if value > 0 else "red" if value < 0 else "yellow")
