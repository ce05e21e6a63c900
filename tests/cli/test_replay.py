"""`rolltrace replay`: the report, its JSON, its exit code, and the test that it writes."""

import json
from pathlib import Path

import pytest

from rolltrace.jobs.play import play

pytestmark = pytest.mark.core


@pytest.fixture
def arithmetic(rolltrace, tmp_path):
    """A run of an env with an argument that changes its prompts."""
    play("arithmetic", "scripted:noisy", out=tmp_path / "run", groups=2, group_size=2)
    return tmp_path / "run"


def test_an_equal_replay_succeeds(rolltrace, arithmetic):
    """The report says how many rollouts were compared."""
    shown = rolltrace("replay", arithmetic)
    assert shown.exit_code == 0, shown.stderr
    assert "4 rollouts replayed, 4 steps compared" in shown.stdout
    assert shown.stdout.endswith("arithmetic: 4 rollouts, 4 equal\n\n✓ the replay is equal: 4 rollouts\n")


def test_a_difference_fails(rolltrace, arithmetic):
    """The exit code is 1; the text names the step, and the JSON has the same facts; no test is written."""
    shown = rolltrace("replay", arithmetic, "--arg", "examples=1", "--most", 1, "--as-test", "tests")
    assert shown.exit_code == 1
    assert "  step 0  prompt[" in shown.stdout
    assert "✗ 4 of 4 rollouts differ; --most 4 shows all\n" in shown.stdout
    assert " show " in shown.stdout.splitlines()[-1]
    assert not Path("tests").exists()
    data = json.loads(rolltrace("replay", arithmetic, "--arg", "examples=1", "--json").stdout)
    assert (data["is_equal"], data["compared"], data["differing_count"]) == (False, 4, 4)
    [env] = data["envs"]
    assert env["fields"]["prompt"] == 4
    assert data["differing"][0]["differences"][0]["step"] == 0


def test_unreadable_lines_are_reported(rolltrace, arithmetic):
    """Standard error names a damaged line, and the rest of its group is replayed."""
    [segment] = (arithmetic / "rollouts").iterdir()
    lines = segment.read_bytes().splitlines(keepends=True)
    segment.write_bytes(b"".join([lines[0].replace(b"What", b"That"), *lines[1:]]))
    shown = rolltrace("replay", arithmetic)
    assert shown.stdout.endswith("the replay is equal: 3 rollouts\n")
    assert shown.stderr.startswith("Not read: rollouts/")


def test_wrong_use_is_an_error(rolltrace, arithmetic):
    """Messages go to standard error, with exit code 2."""
    assert rolltrace("replay", "nowhere").exit_code == 2
    assert rolltrace("replay", arithmetic, "--where", "reward >").exit_code == 2
    assert rolltrace("replay", arithmetic, "--env", "no:where").exit_code == 2
    for tolerance in ("inf", "nan"):
        assert rolltrace("replay", arithmetic, "--tolerance", tolerance).exit_code == 2
    shown = rolltrace("replay", arithmetic, "--where", "reward > 99")
    assert (shown.exit_code, shown.stdout) == (2, "")
    assert "none fits reward > 99" in shown.stderr


def test_a_test_is_written(rolltrace, arithmetic):
    """The selected rollouts become a test, and standard error says how to run it."""
    shown = rolltrace("replay", arithmetic, "--as-test", "my tests", "--where", '"index" = 0', "--limit", 1)
    assert shown.exit_code == 0, shown.stderr
    assert shown.stderr == f"To run the test: pytest '{Path('my tests/test_replay_arithmetic.py')}'\n"
    assert rolltrace("replay", "my tests/recording_arithmetic").stdout.endswith("the replay is equal: 2 rollouts\n")
