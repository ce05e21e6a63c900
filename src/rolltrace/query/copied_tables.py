"""The tables of one iteration, or of a small run, copied into memory once, so that many statements are quick."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from rolltrace.query.duckdb_engine import TableSnapshot, raising_interrupts
from rolltrace.query.result import unique_names
from rolltrace.query.run import Run
from rolltrace.query.sql_check import sql_error
from rolltrace.query.table_schema import sql_literal
from rolltrace.query.views import groups_query

if TYPE_CHECKING:
    import duckdb

COPIED_TABLES = frozenset({"rollouts", "groups", "steps", "messages", "scores", "calls"})
"""The tables that are copied, without rollouts that were played again; a table `attempts` has those."""

_OF_ROLLOUTS = "rollout between {first} and {last} and rollout in (select id from {schema}.rollouts)"
"""The range is redundant: ids begin with the time, so with it most of a long run is not read."""
_FETCH_ROWS = 1000


class CopiedTables:
    """The rows of one iteration, or of all, at one moment."""

    def __init__(self, run: Run, iteration: int | None) -> None:
        self._iteration = iteration
        self._cursors: list[duckdb.DuckDBPyConnection] = []
        """Those that no statement uses."""
        self._snapshot = run.with_snapshot(COPIED_TABLES, self._copy)

    def rows(self, sql: str) -> Iterator[dict[str, Any]]:
        """The rows of a SELECT over the copied tables."""
        import duckdb

        cursor = self._cursors.pop() if self._cursors else self._snapshot.sandbox.cursor(self._schema)
        try:
            with raising_interrupts():
                cursor.execute(sql)
                names = unique_names([str(column[0]) for column in cursor.description or ()])
                while rows := cursor.fetchmany(_FETCH_ROWS):
                    for row in rows:
                        yield dict(zip(names, row, strict=True))
        except duckdb.Error as error:
            raise sql_error(error) from error
        finally:
            self._cursors.append(cursor)

    def close(self) -> None:
        """Free the memory."""
        for cursor in self._cursors:
            cursor.close()
        self._snapshot.sandbox.unused_schemas.append(self._schema)

    def _copy(self, snapshot: TableSnapshot) -> TableSnapshot:
        cursor = snapshot.cursor()
        self._schema = snapshot.sandbox.new_schema()
        in_iteration = "true" if self._iteration is None else f"iteration = {self._iteration:d}"
        self._create(cursor, "attempts", f"select * from rollouts where {in_iteration}")
        self._create(cursor, "rollouts", f"select * from {self._schema}.attempts where not retried")
        self._create(cursor, "groups", groups_query(f"{self._schema}.rollouts"))
        row = cursor.execute(f"select min(id), max(id) from {self._schema}.rollouts").fetchone()
        first, last = (sql_literal(text or "") for text in row or ("", ""))
        about = _OF_ROLLOUTS.format(first=first, last=last, schema=self._schema)
        self._create(cursor, "steps", f"select * from steps where {in_iteration} and {about}")
        self._create(cursor, "messages", f"select * from messages where {about}")
        of_group = f"rollout is null and {in_iteration}"
        self._create(cursor, "scores", f"select * from scores where {about} union all from scores where {of_group}")
        of_score = f"rollout is null and ({in_iteration} or score in (select id from {self._schema}.scores))"
        self._create(cursor, "calls", f"select * from calls where {about} union all from calls where {of_score}")
        cursor.close()
        return snapshot

    def _create(self, cursor: "duckdb.DuckDBPyConnection", table: str, query: str) -> None:
        cursor.execute(f"create table {self._schema}.{table} as {query}")
