"""Writes a regression test for pytest: a small recording, and a test that replays it."""

import contextlib
import os
import re
import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from rolltrace.errors import InputError, RecordError
from rolltrace.jobs.replay_run import SELECTION_ORDER, replay_run, where_clause
from rolltrace.query.run import Run, open_single_run
from rolltrace.query.table_schema import sql_literal
from rolltrace.store.blobs import write_blob
from rolltrace.store.layout import (
    BLOBS,
    FOLDERS,
    LEDGER,
    ROLLOUTS,
    RUN_FILE,
    SCORES,
    SegmentName,
    encode_info,
    ledger_name,
    segment_name,
)
from rolltrace.store.ledger import Ledger, encode_ledger
from rolltrace.store.reader import RunReader
from rolltrace.terminal_text import escape_line
from rolltrace.trace.codec import utc_now
from rolltrace.trace.freeform import to_json_mapping
from rolltrace.trace.score import GroupKey

TEST_ROLLOUTS = 16
"""How many rollouts a test has by default, and the other members of their groups."""
_MAX_DATA_BYTES = 1 << 20
"""A data file among the env's arguments is copied beside the test, if it is not larger."""
_BLOB_NAME = re.compile(r"sha256-[0-9a-f]{64}")

_TEST = '''"""Plays recorded rollouts again: prompts, rewards and stop reasons must be as they were recorded.

Written by `rolltrace replay RUN --as-test DIR`. `rolltrace show {recording}` shows the rollouts.
If a difference is intended, delete this file and {recording}, and write them again from a new run.
"""

from pathlib import Path

from rolltrace import replay_run

RECORDING = Path(__file__).with_name("{recording}")
# Its groups, with the rewards of their rollouts:
{rewards}


def test_{name}_is_as_recorded():
    """The environment answers the recorded responses with the recorded prompts and rewards."""
    report = replay_run(RECORDING{arguments})
    assert report.is_equal, f"\\n{{report}}"
'''


def write_regression_test(
    path: str | Path,
    folder: str | Path,
    *,
    env: str | None = None,
    args: Mapping[str, Any] | None = None,
    where: str | None = None,
    limit: int | None = None,
    recorded_tools: bool = False,
) -> Path:
    """Write a recording of some groups of a run, and a test that replays it, into `folder`; returns the test's path.

    `env`, `args`, `where`, `limit` and `recorded_tools` are those of `replay_run`. Groups are copied whole, and so are
    small data files that the arguments of the environment name. Raises `InputError` if the test would fail.
    """
    folder = Path(folder)
    with open_single_run(path) as run:
        members = _select_members(run, where, TEST_ROLLOUTS if limit is None else limit)
        name = re.sub(r"\W+", "_", next(iter(members)).env, flags=re.ASCII).strip("_").lower() or "env"
        test, recording = folder / f"test_replay_{name}.py", folder / f"recording_{name}"
        for existing in (test, recording):
            if existing.exists():
                raise InputError(f"Expected {existing} not to exist: delete it, or choose another folder.")
        try:
            _copy_groups(run, members, recording)
            data = _copy_data({**run.info.config.get("args", {}), **(args or {})}, recording)
            all_args = {**(args or {}), **{name: str(file) for name, file in data}}
            report = replay_run(recording, env=env, args=all_args, recorded_tools=recorded_tools)
            if not report.is_equal:
                raise InputError(f"Expected rollouts whose replay is equal, got:\n{report}")
        except BaseException:
            shutil.rmtree(recording, ignore_errors=True)
            raise
    values = {name: repr(value) for name, value in (args or {}).items()}
    values |= {name: f"str(RECORDING / 'data' / {file.name!r})" for name, file in data}
    arguments = "" if env is None else f", env={env!r}"
    if values:
        arguments += f", args={{{', '.join(f'{name!r}: {value}' for name, value in values.items())}}}"
    arguments += ", recorded_tools=True" if recorded_tools else ""
    rewards = "\n".join(f"# {escape_line(key.address)}: {_list_rewards(rows)}" for key, rows in members.items())
    text = _TEST.format(name=name, recording=recording.name, rewards=rewards, arguments=arguments)
    test.write_text(text, encoding="utf-8")
    return test


_Members = Mapping[GroupKey, Sequence[tuple[str, float | None]]]
"""Id and reward of each rollout, by group."""


def _select_members(run: Run, where: str | None, limit: int) -> _Members:
    """All members of the groups of the first rollouts that a condition selects."""
    key = 'split, iteration, env, "group"'
    chosen = f"select * from rollouts {where_clause(where)} order by {SELECTION_ORDER} limit {limit:d}"  # noqa: S608 - as in `replay_run`
    rows = run.sql(
        f"select {key}, id, reward from rollouts semi join (select distinct {key} from ({chosen})) using ({key}) "  # noqa: S608 - as above
        f"order by {SELECTION_ORDER}"
    )
    members: dict[GroupKey, list[tuple[str, float | None]]] = {}
    for split, iteration, env, group, rollout, reward in rows:
        members.setdefault(GroupKey(split, iteration, env, group), []).append((rollout, reward))
    if not members:
        raise InputError(f"Expected rollouts for a test in {run.path}, got none.")
    return members


def _copy_groups(run: Run, members: _Members, folder: Path) -> None:
    """Make a run that has only these groups, with the lines as they are."""
    for name in FOLDERS:
        (folder / name).mkdir(parents=True)
    info = msgspec.structs.replace(run.info, planned=None, config=to_json_mapping(run.info.config, "config", []))
    (folder / RUN_FILE).write_bytes(encode_info(info))
    ids = ", ".join(sql_literal(rollout) for rows in members.values() for rollout, _ in rows)
    of_group = " or ".join(
        f"(split = {sql_literal(key.split)} and iteration = {key.iteration:d} and env = {sql_literal(key.env)} "
        f'and "group" = {sql_literal(key.group)})'
        for key in members
    )
    conditions = {ROLLOUTS: f"id in ({ids})", SCORES: f"rollout in ({ids}) or {of_group}"}
    with RunReader(run.path) as reader:
        counts = _copy_lines(run, reader, conditions, folder)
        ledgers = reader.ledgers()
    for session, lines in counts.items():
        before = ledgers.get(session) or Ledger(run=info.id, session=session, written_at=utc_now())
        ledger = Ledger(
            run=info.id,
            session=session,
            written_at=before.written_at,
            dispatched=lines[ROLLOUTS],
            recorded=lines[ROLLOUTS],
            scores_recorded=lines[SCORES],
            continues=before.continues,
            closed=True,
        )
        (folder / LEDGER / ledger_name(session, 0)).write_bytes(encode_ledger(ledger))
    for name in FOLDERS:
        if not any((folder / name).iterdir()):
            (folder / name / ".gitkeep").touch()  # git does not keep empty folders


def _copy_lines(run: Run, reader: RunReader, conditions: Mapping[str, str], folder: Path) -> dict[str, Counter[str]]:
    """Copy lines and the blobs that they name; returns the number of lines of each kind by session."""
    counts: dict[str, Counter[str]] = {}
    for kind, condition in conditions.items():
        for location in sorted(run.locations(kind, condition).values()):  # type: ignore[arg-type]
            line = reader.read_line(location)
            segment = SegmentName.parse(location.file.partition("/")[2])
            session = "recording" if segment is None else segment.session
            with (folder / kind / segment_name(session, 0)).open("ab") as file:
                file.write(line)
            counts.setdefault(session, Counter())[kind] += 1
            for name in sorted(set(_BLOB_NAME.findall(line.decode()))):
                with contextlib.suppress(RecordError):  # a text that looks like the name of a blob
                    write_blob(folder / BLOBS, name, reader.blob(name), session)
    return counts


def _copy_data(args: Mapping[str, Any], folder: Path) -> list[tuple[str, Path]]:
    """Copy the small files that arguments name; returns the names of the arguments and the copies."""
    files = {name: Path(value) for name, value in args.items() if isinstance(value, str) and os.path.isfile(value)}  # noqa: PTH113 - it raises for no text
    small = {name: file for name, file in files.items() if file.stat().st_size <= _MAX_DATA_BYTES}
    if small:
        (folder / "data").mkdir()
    return [(name, Path(shutil.copy(file, folder / "data" / f"{name}{file.suffix}"))) for name, file in small.items()]


def _list_rewards(rows: Sequence[tuple[str, float | None]]) -> str:
    return ", ".join("none" if reward is None else f"{reward:g}" for _, reward in rows)
