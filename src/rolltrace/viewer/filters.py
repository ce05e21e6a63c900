"""Selects rollouts by filters, a text search and an SQL expression, as one SELECT."""

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime

import msgspec

from rolltrace.errors import InputError
from rolltrace.query.table_schema import sql_literal
from rolltrace.viewer.columns import ColumnExpression, column_expression
from rolltrace.viewer.text_search import select_matches
from rolltrace.viewer.user_sql import SQL_TIMEOUT_SECONDS

MAX_FILTERS = 50
MAX_FILTER_CHARACTERS = 20_000
"""The limit for one filter, and for an expression."""
MAX_SEARCHED = 1_000
"""The limit for a text to search for, in characters."""

_FILTER = re.compile(r"([^:]*):(is|not|min|max|below|has|null|notnull):")
_NAMED = "select unnest($ids)"
_NUMBER = re.compile(r"-?[0-9]{1,18}")
_PERCENT_ENCODED = re.compile("%(25|2C|3A)", re.IGNORECASE)
_WORDS = {"true": "true", "false": "false", "1": "true", "0": "false"}


class Filter(msgspec.Struct, frozen=True):
    """A condition on one column."""

    column: str
    operation: str
    value: str


class RolloutSelection(msgspec.Struct, frozen=True):
    """Which rollouts are selected; hashable, so that results can be cached by it."""

    filters: tuple[Filter, ...] = ()
    search: str = ""
    since: str | None = None
    """The search is about rollouts whose ids are not below this; None if it is about all, and in one statement."""
    hits: tuple[str, ...] | None = None
    """The result of the search, if it was done before."""
    where: str = ""
    """An SQL expression over the columns of `rollouts`, after `check_expressions`."""
    retried: bool = False
    """Whether retried attempts are included."""
    responses_in_messages: bool = False
    """Whether every response is also a message, so that a search need not look at the steps."""

    @property
    def timeout(self) -> float | None:
        """How long a query may take: with an expression that a user wrote it could run for any time."""
        return SQL_TIMEOUT_SECONDS if self.where else None

    def without(self, column: str) -> "RolloutSelection":
        """The same selection without filters on a column."""
        return msgspec.structs.replace(self, filters=tuple(one for one in self.filters if one.column != column))


def parse_filter(text: str) -> Filter:
    """Parse a filter written as COLUMN:OPERATION:VALUE; the column's name is percent-encoded."""
    if len(text) > MAX_FILTER_CHARACTERS:
        raise InputError(f"Expected a filter of at most {MAX_FILTER_CHARACTERS} characters, got {len(text)}.")
    match = _FILTER.match(text)
    if match is None:
        raise InputError(
            "Expected a filter written as COLUMN:OPERATION:VALUE with is, not, min, max, below, has, null or notnull, "
            f"got {text[:200]!r}."
        )
    name = decode_column_name(match[1])
    column_expression(name)  # refuses a name that is not a column's
    return Filter(name, match[2], text[match.end() :])


def select_rollouts(selection: RolloutSelection, columns: Mapping[str, str]) -> str:
    """SQL for the selected rollouts: their `id`, and `columns` by alias."""
    joins = _JoinBuilder()
    conditions = [] if selection.retried else ["not r.retried"]
    for one in selection.filters:
        term = column_expression(one.column)
        conditions.append(_condition(joins.expression(term), term.kind, one))
    if selection.hits is not None:
        # One text: a list of ids would take longer to check than to look for.
        ids = sql_literal(msgspec.json.encode(selection.hits).decode())
        conditions.append(f"""r.id in (select unnest(from_json({ids}, '["VARCHAR"]')))""")
    elif selection.search:
        matches = select_matches(
            selection.search, selection.responses_in_messages, f"rollout >= {sql_literal(selection.since or '')}"
        )
        conditions.append(f"r.id in ({matches})")
    shown = joins.select(columns)
    # The user's expression sees only the columns of `rollouts`, not those of the joined tables.
    source = f"(select * from rollouts where (\n{selection.where}\n))" if selection.where else "rollouts"
    where = f" where {' and '.join(conditions)}" if conditions else ""
    return f"select {shown} from {source} r{joins.sql}{where}"


def select_by_id(columns: Mapping[str, str]) -> str:
    """SQL for the rollouts whose ids are the parameter `ids`; it reads less than `select_rollouts`."""
    joins = _JoinBuilder(_NAMED)
    shown = joins.select(columns)
    # The range, too: ids sort by time, and so most parts need not be read.
    named = f"r.id in ({_NAMED}) and r.id between list_min($ids) and list_max($ids)"
    return f"select {shown} from rollouts r{joins.sql} where {named}"


class _JoinBuilder:
    """Collects the joins of a SELECT: each source is joined once, with all values that are needed of it."""

    def __init__(self, ids: str = "") -> None:
        self._ids = ids
        self._sources: dict[Callable[[Sequence[str], str], str], dict[str, str]] = {}
        """By source, the alias of each value."""

    @property
    def sql(self) -> str:
        """The joins as SQL."""
        joins = ""
        for number, (source, names) in enumerate(self._sources.items()):
            joined = source([f"{value} as {name}" for value, name in names.items()], self._ids)
            joins += f" left join ({joined}) j{number} on j{number}.id = r.id"
        return joins

    def select(self, columns: Mapping[str, str]) -> str:
        """The SELECT list: `id`, and `columns` by alias."""
        aliased = (f"{self.expression(column_expression(name))} as {alias}" for alias, name in columns.items())
        return ", ".join(("r.id as id", *aliased))

    def expression(self, term: ColumnExpression) -> str:
        """The SQL expression of a column; adds the join that it needs."""
        if term.joined is None:
            return term.expression
        source, value = term.joined
        names = self._sources.setdefault(source, {})
        name = names.setdefault(value, f"v{len(names)}")
        return f"j{list(self._sources).index(source)}.{name}"


def _condition(expression: str, kind: str, one: Filter) -> str:
    if one.operation in ("null", "notnull"):
        return f"{expression} is {'' if one.operation == 'null' else 'not '}null"
    return _OF_KIND[kind](expression, one)


def _of_number(expression: str, one: Filter) -> str:
    value = _number(one)
    if one.operation in ("is", "not"):
        return _equal(expression, one.operation, value)
    # DuckDB sorts NaN above all numbers; here it is neither above nor below any.
    return f"({expression} {_comparison(one)} {value} and not isnan({expression}::double))"


def _of_text(expression: str, one: Filter) -> str:
    if one.operation == "has":
        return f"contains(lower({expression}::varchar), {sql_literal(one.value.lower())})"
    if one.operation in ("is", "not"):
        return _equal(f"{expression}::varchar", one.operation, sql_literal(one.value))
    return f"{expression}::varchar {_comparison(one)} {sql_literal(one.value)}"


def _of_tags(expression: str, one: Filter) -> str:
    holds = f"coalesce(list_contains({expression}, {sql_literal(one.value)}), false)"
    if one.operation in ("is", "has"):
        return holds
    if one.operation == "not":
        return f"not {holds}"
    raise _unfit(one, "tags")


def _of_time(expression: str, one: Filter) -> str:
    try:
        time = datetime.fromisoformat(one.value)
        time = time.astimezone(UTC) if time.tzinfo is not None else time.replace(tzinfo=UTC)
    except (ValueError, OverflowError) as error:
        raise InputError(
            f"Expected a time such as 2026-01-31T12:00:00Z for {one.column}, got {one.value!r}."
        ) from error
    value = f"{sql_literal(time.replace(tzinfo=None).isoformat(' '))}::timestamp"
    if one.operation in ("is", "not"):
        return _equal(expression, one.operation, value)
    return f"{expression} {_comparison(one)} {value}"


def _of_boolean(expression: str, one: Filter) -> str:
    value = _WORDS.get(one.value.lower())
    if value is None:
        raise InputError(f"Expected true or false for {one.column}, got {one.value!r}.")
    if one.operation not in ("is", "not"):
        raise _unfit(one, "true or false")
    return _equal(expression, one.operation, value)


_OF_KIND: dict[str, Callable[[str, Filter], str]] = {
    "number": _of_number, "text": _of_text, "json": _of_text, "tags": _of_tags, "time": _of_time,
    "boolean": _of_boolean,
}  # fmt: skip


def _equal(expression: str, operation: str, value: str) -> str:
    return f"{expression} is {'not ' if operation == 'is' else ''}distinct from {value}"


def _comparison(one: Filter) -> str:
    try:
        return {"min": ">=", "max": "<=", "below": "<"}[one.operation]
    except KeyError:
        raise _unfit(one, "what has an order") from None


def _number(one: Filter) -> str:
    """A number as an SQL literal; integers are exact."""
    if _NUMBER.fullmatch(one.value):
        return one.value
    try:
        return f"'{float(one.value)!r}'::double"
    except ValueError:
        raise InputError(f"Expected a number for {one.column}, got {one.value!r}.") from None


def _unfit(one: Filter, what: str) -> InputError:
    return InputError(f"Expected another operation than {one.operation!r} for {one.column}, which is {what}.")


def parse_selection(
    filters: Sequence[str], search: str, where: str, retried: bool, since: str | None = None
) -> RolloutSelection:
    """Parse the selection of a request; the expression is not checked yet."""
    if len(filters) > MAX_FILTERS:
        raise InputError(f"Expected at most {MAX_FILTERS} filters, got {len(filters)}.")
    for name, text, most in (("search", search, MAX_SEARCHED), ("where", where, MAX_FILTER_CHARACTERS)):
        if len(text) > most:
            raise InputError(f"Expected at most {most} characters in {name}, got {len(text)}.")
    return RolloutSelection(
        tuple(map(parse_filter, filters)), search, where=where.strip(), retried=retried, since=since
    )


def decode_column_name(text: str) -> str:
    """Decode a column name. It is percent-encoded because the keys of maps may contain `,` or `:`."""
    return _PERCENT_ENCODED.sub(lambda code: chr(int(code[1], 16)), text)


def read_names(text: str) -> list[str]:
    """Split a comma-separated list of column names."""
    return [decode_column_name(part) for part in text.split(",") if part]
