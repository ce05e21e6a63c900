"""The rollouts of a run as rows that are equal for two plays of the same plan."""

from pathlib import Path

import rolltrace


def table(path: str | Path) -> list[str]:
    """The rollouts that a run shows, without ids, times and sessions."""
    sql = "select * exclude (id, run, session, started_at, ended_at, seconds) from rollouts order by all"
    with rolltrace.open_run(path) as run:
        return [str(row) for row in run.sql(sql)]
