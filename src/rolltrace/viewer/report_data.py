"""The data of a report: the server's answers about a part of a run."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec

from rolltrace.errors import UnknownNameError
from rolltrace.query.run import Run
from rolltrace.query.run_state import RunState, planned_episodes, run_state
from rolltrace.query.run_totals import query_totals
from rolltrace.trace.message import Message
from rolltrace.trace.score import GroupKey
from rolltrace.version import __version__
from rolltrace.viewer.filters import RolloutSelection
from rolltrace.viewer.json_response import encode_response, to_browser_types
from rolltrace.viewer.open_runs import OpenRun
from rolltrace.viewer.report_statistics import StoredAnswer, stored_answers
from rolltrace.viewer.rollout_detail import group_response, member_responses
from rolltrace.viewer.rollout_schemas import GroupResponse
from rolltrace.viewer.rollout_table import MAX_COLUMNS, MAX_ROWS, list_rollouts
from rolltrace.viewer.run_list import damage_text
from rolltrace.viewer.run_overview import run_overview
from rolltrace.viewer.run_subset import RunSubset, WrittenSubset, selected_ids
from rolltrace.viewer.schemas import Column, RunListEntry, RunResponse, RunsResponse

SELECTED = Column("selected", "selected", "boolean")
"""Whether a rollout fulfils the condition that the report was made with; a report has the others of its group, too."""

_MAX_PROBLEMS = 20

JsonObject = dict[str, Any]


class ReportRollout(NamedTuple):
    """One rollout of the report."""

    id: str
    messages: tuple[Message, ...]
    """The messages of its record."""
    json: bytes
    """The server's answer about it."""


class ReportGroup(NamedTuple):
    """One group of the report."""

    key: GroupKey
    answer: GroupResponse
    """The server's answer about the group."""
    rollouts: Iterator[ReportRollout]
    """Its rollouts, retried attempts included, read one by one."""


def fields_without(record: msgspec.Struct, *names: str) -> JsonObject:
    """The fields of an answer as the browser gets them, apart from these."""
    return {name: to_browser_types(getattr(record, name)) for name in record.__struct_fields__ if name not in names}


class ReportData:
    """Answers about a part of the run `whole`; `excerpt` is a run of that part alone, `card` its entry in a list."""

    def __init__(
        self, whole: Run, part: RunSubset, written: WrittenSubset, excerpt: OpenRun, card: RunListEntry
    ) -> None:
        self.name = whole.path.resolve().name
        self.part = part
        self.written = written
        self._selected = set() if part.where is None else selected_ids(whole, part.where, written.ids)
        self._excerpt = excerpt
        self.run = self._for_sharing(run_overview(excerpt, card), whole)
        """The server's answer about the run."""
        card = msgspec.structs.replace(
            card, key=self.name, name=self.name, live=False, planned=None, state=self.run.state,
            problem=damage_text(self.run.problem_count),
        )  # fmt: skip
        self.runs = RunsResponse(folder="", version=__version__, runs=(card,), total=1)

    @property
    def text(self) -> str:
        """What the report holds of the run, in words."""
        part, rollouts = self.part, self.run.rollouts
        if rollouts == part.all_rollouts and part.where is None:
            return f"A report on all {rollouts:,} rollouts of the run.{self._shortened()}"
        which = "" if part.where is None else f" with a rollout for which {part.where} is true"
        some = "" if len(part.keys) == part.of_groups else f"{len(part.keys):,} of the "
        groups = f"{some}{part.of_groups:,} {'group' if part.of_groups == 1 else 'groups'}{which}"
        of = f"{rollouts:,} of the run’s {part.all_rollouts:,} rollouts"
        about = f"A report on {groups}: {of}. Numbers are about these; ledger and findings are the whole run’s."
        return f"{about}{self._cut()}{self._shortened()}"

    def _cut(self) -> str:
        """What is left out of the groups."""
        part, unread = self.part, self.written.unread
        cut, most = len(part.cut_groups), part.max_members
        large = f"{'one large group' if cut == 1 else f'each of {cut:,} large groups'}"
        told = f" Of {large} it has {most:,} rollouts: the best, the worst, and others evenly between them by reward."
        long = f" Left out because their records are too long together: {unread:,} rollouts."
        return f"{told if cut else ''}{long if unread else ''}"

    def _shortened(self) -> str:
        """Which records are not complete."""
        count = self.written.shortened
        some = "one rollout" if count == 1 else f"{count:,} rollouts"
        return f" Long texts of {some} are shortened, and their token ids left out." if count else ""

    def groups(self) -> Iterator[ReportGroup]:
        """Every group, in the order of the run."""
        for key in self.part.keys:
            try:
                group = group_response(self._excerpt, key)
            except UnknownNameError:  # none of its members could be read
                continue
            rollouts = (
                ReportRollout(record.id, record.messages, encode_response(answer))
                for record, answer in member_responses(self._excerpt, key)
            )
            yield ReportGroup(key, group, rollouts)

    def table(self) -> dict[str, list[Any]]:
        """The table of rollouts, by column."""
        names = [column.name for column in self.run.columns if column != SELECTED]
        table: dict[str, list[Any]] = {}
        for first in range(0, len(names), MAX_COLUMNS):
            some = names[first : first + MAX_COLUMNS]
            rows = list(self._rows(some))
            table |= {name: [to_browser_types(row[name]) for row in rows] for name in ("id", *some)}
        if SELECTED in self.run.columns:
            table[SELECTED.name] = [one in self._selected for one in table["id"]]
        return table

    def statistics(self) -> Iterator[StoredAnswer]:
        """The answers for the charts and menus of the page."""
        return stored_answers(self._excerpt, self.run)

    def _rows(self, columns: list[str]) -> Iterator[JsonObject]:
        every, offset = RolloutSelection(retried=True), 0
        while True:
            page = list_rollouts(self._excerpt, self._excerpt.run, every, (), columns, offset, MAX_ROWS)
            yield from page.rows
            offset += MAX_ROWS
            if offset >= page.total:
                return

    def _for_sharing(self, answer: RunResponse, whole: Run) -> RunResponse:
        """The answer without paths of this machine, and with what could not be read of the whole run."""
        marks = () if self.part.where is None else (SELECTED,)
        problems = whole.problems
        return msgspec.structs.replace(
            answer,
            key=self.name,
            name=self.name,
            path=self.name,
            live=False,
            planned=None,
            state=_state(whole),
            problems=tuple(map(str, problems[:_MAX_PROBLEMS])),
            problem_count=len(problems),
            columns=(*answer.columns, *marks),
        )


def _state(run: Run) -> RunState:
    """The state of the whole run."""
    return run_state(run.ledgers().values(), planned_episodes(run.info), query_totals(run).finished)
