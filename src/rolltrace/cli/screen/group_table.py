"""A group: the shared prompt once, then its members side by side, the best first."""

from collections.abc import Iterator
from functools import partial

from rich.console import Console
from rich.text import Text

from rolltrace.cli.screen.columns import show_columns
from rolltrace.cli.screen.console import wrap_lines
from rolltrace.cli.screen.detail_printer import INDENT, DetailPrinter
from rolltrace.cli.screen.grids import show_matrix, show_rubric
from rolltrace.cli.screen.number_format import plural, short_number
from rolltrace.cli.screen.retelling import Retelling
from rolltrace.cli.screen.styles import STATUS_STYLES
from rolltrace.query.group_comparison import GroupComparison
from rolltrace.query.members import Member
from rolltrace.terminal_text import escape_line

_MAX_NUMBERS = 12
_MAX_ERROR_CHARS = 400
_SHORT_ID = 8
_RULE = 60


def show_group(console: Console, group: GroupComparison, *, full: bool = False) -> None:
    """Print what the group is, its shared prompt, what is known of all members together, and each of them."""
    GroupTable(console, group, full=full).show()


class GroupTable(DetailPrinter):
    """Prints one group; `full` leaves out nothing that the comparison has."""

    def __init__(self, console: Console, group: GroupComparison, *, full: bool = False) -> None:
        super().__init__(console, full=full)
        self._group = group
        self._names = member_labels(group)
        self._telling = Retelling(full=full)
        self._criteria = set() if group.rubric is None else {one.name for one in group.rubric.criteria}

    def show(self) -> None:
        """Print it."""
        group = self._group
        self._head()
        self._shared()
        if group.rubric is not None:
            self.line()
            show_rubric(self.console, group.rubric, self._names, full=self.full)
        if group.matrix is not None:
            self.line()
            show_matrix(self.console, group.matrix, self._names)
        names = [None, *self._names.values()]
        show_columns(
            self.console,
            [partial(self._block, member, before) for member, before in zip(group.members, names, strict=False)],
        )
        if group.omitted:
            self.line()
            self.wrapped(Text(f"… {plural(group.omitted, 'member')} more: --limit shows more", "italic yellow"))

    def _head(self) -> None:
        group = self._group
        title = Text().append(escape_line(f"{group.split}/{group.env}/{group.iteration}/{group.group}"), "bold")
        title.append(f"  {plural(group.size, 'member')}")
        title.append("  no rewards" if not group.n else f"  mean reward {short_number(group.mean)}", "bold")
        if group.n:
            title.append(f" ± {short_number(group.spread)} (n = {group.n:,})")
        self.wrapped(title)
        if group.retried:
            self.wrapped(Text(f"{plural(group.retried, 'attempt')} tried again", "yellow"))
        if group.collides:
            told = f"{plural(group.collides, 'member')} collide: several sessions recorded the same places at once"
            self.wrapped(Text(told, "bold red"))
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

    def _shared(self) -> None:
        group = self._group
        if not group.shared:
            return
        whom = {1: "its member", 2: "both members"}.get(group.size, f"all {group.size:,} members")
        self.line()
        self.wrapped(Text().append("the prompt", "bold").append(f" of {whom}", "dim"))
        for excerpt in group.shared:
            self.lines(self._telling.message(excerpt, self.console, self.console.width, INDENT))
        if group.shared_omitted:
            self.wrapped(Text(f"… {plural(group.shared_omitted, 'message')} more", "italic yellow"), INDENT)

    def _block(self, member: Member, before: str | None, width: int) -> list[Text]:
        """A member as lines of a width."""
        lines = [line for fact in self._facts(member) for line in wrap_lines(fact, self.console, "", width)]
        lines.append(Text("─" * min(width, _RULE), "dim"))
        return lines + self._telling.conversation(member, before, self.console, width)

    def _facts(self, member: Member) -> Iterator[Text]:
        head = Text().append(self._names[member.id], "bold cyan").append(f"  reward {_short(member.reward)}", "bold")
        if member.advantage is not None:
            head.append(f"  advantage {_signed(member.advantage)}", _colour(member.advantage))
        yield head
        end = Text().append(escape_line(member.stop_reason), STATUS_STYLES.get(member.status, ""))
        for told in _circumstances(member):
            end.append(f" · {told}", "dim")
        yield end
        if len(member.terms) > 1 or any(term.name != "steps" for term in member.terms):
            yield Text(" + ".join(f"{term.name} {_short(term.value)}" for term in member.terms))
        numbers = {name: value for name, value in member.reward_data.items() if name not in self._criteria}
        if numbers:
            yield Text(_numbers(numbers), "dim")
        if member.scores:
            yield Text().append("scores ", "dim").append(_numbers(member.scores))
        if member.error is not None:
            what = f"{member.error.layer.value} · {member.error.type}: {member.error.message}"
            yield Text(escape_line(what[:_MAX_ERROR_CHARS]), "red")


def member_labels(group: GroupComparison) -> dict[str, str]:
    """By id, the short name of each member: its index or, where several have the same, the end of its id."""
    indexes = [member.index for member in group.members]
    return {
        member.id: f"#{member.index}" if indexes.count(member.index) == 1 else f"…{escape_line(member.id[-_SHORT_ID:])}"
        for member in group.members
    }


def _circumstances(member: Member) -> Iterator[str]:
    yield plural(member.steps, "step")
    if member.completion_tokens is not None:
        yield plural(member.completion_tokens, "token")
    if member.seat is not None:
        yield f"episode {member.episode}, seat {member.seat}"
    if member.attempt:
        yield f"attempt {member.attempt}"


def _numbers(values: dict[str, float] | dict[str, float | None]) -> str:
    pairs = list(values.items())
    shown = "  ".join(f"{escape_line(name)} {_short(value)}" for name, value in pairs[:_MAX_NUMBERS])
    return f"{shown}  … {len(pairs) - _MAX_NUMBERS:,} more" if len(pairs) > _MAX_NUMBERS else shown


def _short(value: float | None) -> str:
    return short_number(None if value is None else float(f"{value:.3g}"))


def _signed(value: float) -> str:
    return f"{value:+.3g}" if value else "0"


def _colour(value: float) -> str:
    return "green" if value > 0 else "red" if value < 0 else "yellow"
