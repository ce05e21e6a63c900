"""`rolltrace query`."""

import json

import pytest

from batches import hold_back
from rolltrace.query import part_processes
from rolltrace.query.sql_check import TABLES
from rolltrace.store.create import create_run

pytestmark = pytest.mark.core


def test_rows_are_a_table(rolltrace, make_run):
    """Without options the rows are a table with a header."""
    run = make_run(lambda rollout_builder: None, lambda rollout_builder: None)
    shown = rolltrace("query", run, 'select "index", reward, env from rollouts order by 1')
    assert shown.exit_code == 0, shown.stderr
    assert [line.split() for line in shown.stdout.splitlines()] == [
        ["index", "reward", "env"], ["0", "1", "sums"], ["1", "1", "sums"],
    ]  # fmt: skip


def test_rows_are_json(rolltrace, make_run):
    """With --json each row is an object of strict JSON, whatever its values are."""
    run = make_run(lambda rollout_builder: None)
    query = (
        "select 'NaN'::double as nan, {'a': [1, 2.5]} as nested, map {'k': 'inf'::double} as m, env_args, started_at,"
        " null as none, 1 as one, 2 as one from rollouts"
    )
    [line] = rolltrace("query", run, query, "--json").stdout.splitlines()
    row = json.loads(line, parse_constant=pytest.fail)
    assert (row["nan"], row["nested"], row["m"], row["env_args"]) == ("NaN", {"a": [1, 2.5]}, {"k": "Infinity"}, {})
    assert row["started_at"].endswith("Z")
    assert (row["none"], row["one"], row["one_2"]) == (None, 1, 2)


VALUES = {
    "date '2026-11-16'": ("2026-11-16", "2026-11-16"),
    "time '12:30:00.5'": ("12:30:00.500000", "12:30:00.500000"),
    "timestamp '2026-11-16 01:02:03'": ("2026-11-16 01:02:03", "2026-11-16T01:02:03Z"),
    "1.50::decimal(5, 2)": ("1.50", 1.5),
    "0.0000001::decimal(10, 7)": ("0.0000001", 1e-7),
    "'6ba7b810-9dad-11d1-80b4-00c04fd430c8'::uuid": ("6ba7b810-9dad-11d1-80b4-00c04fd430c8",) * 2,
    "'a\\x00\\x5C\\x22'::blob": ("a\\x00\\x5C\\x22", "a\\x00\\x5C\\x22"),
    "interval '1 day 3 hours'": ("1 day 03:00:00", "1 day 03:00:00"),
    "interval '-90 seconds'": ("-00:01:30", "-00:01:30"),
    "interval '400 days'": ("400 days", "400 days"),
    "interval '0.25 seconds'": ("00:00:00.25", "00:00:00.25"),
    "interval '0 days'": ("00:00:00", "00:00:00"),
    "99999999999999999999999::hugeint": ("99999999999999999999999", 99999999999999999999999),
    "[date '2026-11-16', null]": ('["2026-11-16",null]', ["2026-11-16", None]),
    "{'a': 1.50::decimal(5, 2), 'b': 1.5}": ('{"a":1.50,"b":1.5}', {"a": 1.5, "b": 1.5}),
    "map {date '2026-11-16': [true]}": ('{"2026-11-16":[true]}', {"2026-11-16": [True]}),
    "[chr(27) || '[2J']": ('["\\u001b[2J"]', ["\x1b[2J"]),
}
"""By expression, what is shown of it and what a program reads."""


def test_values_of_every_type_are_as_in_sql(rolltrace, make_run):
    """No value is shown as its Python repr, alone or nested; JSON has texts and numbers."""
    run = make_run(lambda rollout_builder: None)
    names = [f"v{number}" for number in range(len(VALUES))]
    query = f"select {', '.join(f'{sql} as {name}' for sql, name in zip(VALUES, names, strict=True))}"
    shown = rolltrace("query", run, query)
    assert shown.exit_code == 0, shown.stderr
    assert shown.stdout.splitlines()[1].split() == " ".join(text for text, _ in VALUES.values()).split()
    row = json.loads(rolltrace("query", run, query, "--json").stdout, parse_constant=pytest.fail)
    assert list(row.values()) == [value for _, value in VALUES.values()]


def test_limit_is_reported(rolltrace, make_run):
    """If rows are cut off, standard error says so."""
    run = make_run(lambda rollout_builder: None)
    shown = rolltrace("query", run, "select range from range(5)", "--limit", 2)
    assert shown.stdout.split() == ["range", "0", "1"]
    assert "the first 2 rows" in shown.stderr
    assert len(rolltrace("query", run, "select range from range(500)", "--json").stdout.splitlines()) == 500
    assert len(rolltrace("query", run, "select range from range(500)", "--json", "--limit", 3).stdout.splitlines()) == 3


@pytest.mark.parametrize(
    "sql", ["drop view rollouts", "select nothing from rollouts", "select * from '/etc/passwd'", "x"]
)
def test_wrong_statement_is_wrong_usage(rolltrace, make_run, sql):
    """An invalid statement ends with exit code 2, the engine's message and the tables."""
    shown = rolltrace("query", make_run(lambda rollout_builder: None), sql)
    assert shown.exit_code == 2
    assert "The tables are" in shown.stderr
    assert shown.stdout == ""


def test_help_names_every_table(rolltrace):
    """The command's help lists the tables."""
    told = set(rolltrace("query", "--help").stdout.replace(",", " ").replace(";", " ").split())
    assert set(TABLES) <= told


def test_a_timeout_is_a_failure(rolltrace, make_run):
    """A time-out ends with exit code 1, since the usage is right."""
    shown = rolltrace(
        "query", make_run(lambda rollout_builder: None), "select count(*) from range(10000000000)", "--timeout", 0.05
    )
    assert shown.exit_code == 1
    assert "longer than" in shown.stderr
    assert shown.stdout == ""


def test_no_run_is_wrong_usage(rolltrace, tmp_path):
    """A path without a run ends with exit code 2."""
    assert rolltrace("query", tmp_path / "nowhere", "select 1").exit_code == 2


def test_model_text_cannot_steer_the_terminal(in_terminal, make_run):
    """Control characters in recorded text are escaped, in the table and in JSON."""
    run = make_run(lambda rollout_builder: None, task="\x1b[2Jgone\x07")
    for options in ((), ("--json",)):
        code, shown = in_terminal("query", run, "select task from rollouts", *options)
        assert code == 0
        assert "\x1b[2J" not in shown
        assert "gone" in shown


def test_a_partial_answer_says_what_it_is_about(rolltrace, tmp_path, monkeypatch):
    """With --partial, a command does not wait for all tables of a long run, and says so on standard error."""
    path = tmp_path / "run"
    for session in range(4):
        with create_run(path, join=session > 0) as writer:
            for index in range(10):
                with writer.rollout(env="sums", task="t", group=str(session), index=index) as recorder:
                    recorder.step("1 + 1?", "2", 1.0)
    monkeypatch.setattr(part_processes, "BATCH_BYTES", 1)
    may_go_on = hold_back(monkeypatch, "rollouts")
    shown = rolltrace("query", path, "select count(*) as n from rollouts", "--partial", "--json")
    may_go_on.set()
    assert 0 < json.loads(shown.stdout)["n"] < 40
    assert "without --partial, the command reads all of it" in shown.stderr
    shown = rolltrace("query", path, "select count(*) as n from rollouts", "--json")
    assert json.loads(shown.stdout)["n"] == 40
    assert shown.stderr == ""
