"""One huge value in a table does not widen every row."""

import pytest

from rolltrace.store.create import create_run

MEGABYTE = 1 << 20


@pytest.fixture
def run(tmp_path):
    """Fifty rollouts; one has a stop reason of 1 MB, one a group name of 1 MB."""
    with create_run(tmp_path / "run") as writer:
        for index in range(50):
            group = "g" * MEGABYTE if index == 7 else f"group {index}"
            with writer.rollout(env="sums", task="t", group=group, index=0) as rollout:
                rollout.step(prompt="17 + 25?", response="x" * MEGABYTE if index == 9 else "42", reward=1.0)
                rollout.end("s" * MEGABYTE if index == 3 else "completed")
    return tmp_path / "run"


@pytest.mark.parametrize(
    ("verb", "more"),
    [("show", ()), ("query", ("select id, stop_reason, \"group\" from rollouts",)),
     ("query", ("select role, content from messages",))],
)  # fmt: skip
def test_a_huge_cell_is_truncated(rolltrace, run, verb, more):
    """The table says how much was left out, and is smaller than one such value."""
    shown = rolltrace(verb, run, *more)
    assert shown.exit_code == 0
    assert "characters more" in shown.stdout
    assert len(shown.stdout) < MEGABYTE // 2
    assert len(shown.stdout.splitlines()) > 50


def test_a_listing_truncates_the_names_of_envs(rolltrace, tmp_path):
    """A run whose environment has a huge name does not widen the lines of the others."""
    for number in range(20):
        with create_run(tmp_path / "runs" / f"run{number}") as writer:
            env = "e" * MEGABYTE if number == 3 else "sums"
            with writer.rollout(env=env, task="t", group="g", index=0) as rollout:
                rollout.step(prompt="?", response="!", reward=1.0)
    shown = rolltrace("ls", tmp_path / "runs")
    assert shown.exit_code == 0
    assert len(shown.stdout) < MEGABYTE // 4


def test_json_has_all_of_it(rolltrace, run):
    """Only the table is truncated, the JSON is not."""
    shown = rolltrace(
        "query", run, "select max(length(stop_reason)) as n, max(stop_reason) as s from rollouts", "--json"
    )
    assert f'"n":{MEGABYTE}' in shown.stdout
    assert "s" * MEGABYTE in shown.stdout
