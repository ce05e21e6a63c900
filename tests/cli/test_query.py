"""`rolltrace query`."""

import json

import pytest

from rolltrace.query.statement import TABLES


def test_rows_are_a_table(rolltrace, make_run):
    """Without options the rows are a table with their names above."""
    run = make_run(lambda draft: None, lambda draft: None)
    shown = rolltrace("query", run, 'select "index", reward, env from rollouts order by 1')
    assert shown.exit_code == 0, shown.stderr
    assert [line.split() for line in shown.stdout.splitlines()] == [
        ["index", "reward", "env"], ["0", "1", "sums"], ["1", "1", "sums"],
    ]  # fmt: skip


def test_rows_are_json(rolltrace, make_run):
    """With --json each row is an object of strict JSON, whatever its values are."""
    run = make_run(lambda draft: None)
    query = (
        "select 'NaN'::double as nan, {'a': [1, 2.5]} as nested, map {'k': 'inf'::double} as m, env_args, started_at,"
        " null as none, 1 as one, 2 as one from rollouts"
    )
    [line] = rolltrace("query", run, query, "--json").stdout.splitlines()
    row = json.loads(line, parse_constant=pytest.fail)
    assert (row["nan"], row["nested"], row["m"], row["env_args"]) == ("NaN", {"a": [1, 2.5]}, {"k": "Infinity"}, {})
    assert row["started_at"].endswith("Z")
    assert (row["none"], row["one"], row["one_2"]) == (None, 1, 2)


def test_limit_is_told(rolltrace, make_run):
    """Rows that are not shown are told of on the other stream."""
    run = make_run(lambda draft: None)
    shown = rolltrace("query", run, "select range from range(5)", "--limit", 2)
    assert shown.stdout.split() == ["range", "0", "1"]
    assert "more rows than these 2" in shown.stderr
    assert len(rolltrace("query", run, "select range from range(500)", "--json").stdout.splitlines()) == 500
    assert len(rolltrace("query", run, "select range from range(500)", "--json", "--limit", 3).stdout.splitlines()) == 3


@pytest.mark.parametrize(
    "sql", ["drop view rollouts", "select nothing from rollouts", "select * from '/etc/passwd'", "x"]
)
def test_wrong_statement_is_wrong_usage(rolltrace, make_run, sql):
    """A statement that cannot be answered ends with exit code 2, the engine's message and the tables."""
    shown = rolltrace("query", make_run(lambda draft: None), sql)
    assert shown.exit_code == 2
    assert "The tables are" in shown.stderr
    assert shown.stdout == ""


def test_help_names_every_table(rolltrace):
    """What can be asked is told by the command itself."""
    told = set(rolltrace("query", "--help").stdout.replace(",", " ").replace(";", " ").split())
    assert set(TABLES) <= told


def test_a_timeout_is_a_failure(rolltrace, make_run):
    """A statement that takes too long ends with exit code 1: nothing is wrong with how it was asked."""
    shown = rolltrace(
        "query", make_run(lambda draft: None), "select count(*) from range(10000000000)", "--timeout", 0.05
    )
    assert shown.exit_code == 1
    assert "longer than" in shown.stderr
    assert shown.stdout == ""


def test_no_run_is_wrong_usage(rolltrace, tmp_path):
    """A place without a run ends with exit code 2."""
    assert rolltrace("query", tmp_path / "nowhere", "select 1").exit_code == 2


def test_model_text_cannot_steer_the_terminal(in_terminal, make_run):
    """Text of a record is shown, not obeyed, as table and as JSON."""
    run = make_run(lambda draft: None, task="\x1b[2Jgone\x07")
    for options in ((), ("--json",)):
        code, shown = in_terminal("query", run, "select task from rollouts", *options)
        assert code == 0
        assert "\x1b[2J" not in shown
        assert "gone" in shown
