"""`rolltrace ls`: the runs below a directory, for people and programs."""

import json
import re

from rolltrace.query import run_listing as listing
from rolltrace.store.create import create_run
from rolltrace.trace.codec import utc_now
from rolltrace.trace.rollout import Header

HOSTILE = "\x1b[31mred\u202e [bold]markup"


def test_runs_are_a_table(rolltrace, make_run, one_plus_one, tmp_path):
    """Each run has a line with its name, state, numbers, envs and policies, the newest first."""
    make_run(one_plus_one, one_plus_one)
    create_run(tmp_path / "more" / "empty").close()
    shown = rolltrace("ls", tmp_path)
    assert shown.exit_code == 0
    heading, newest, oldest = shown.stdout.splitlines()
    assert heading.split() == [
        "run",
        "created",
        "(UTC)",
        "state",
        "rollouts",
        "groups",
        "reward",
        "size",
        "envs",
        "policies",
    ]
    assert newest.split()[0] == "more/empty"
    words = oldest.split()
    assert words[0] == "run"
    assert words[3:7] == ["complete", "2", "1", "1"]
    assert words[-2:] == ["sums", "tester"]


def test_json(rolltrace, make_run, one_plus_one, tmp_path):
    """A program gets one object per run, with its path."""
    path = make_run(one_plus_one)
    [run] = map(json.loads, rolltrace("ls", tmp_path, "--json").stdout.splitlines())
    assert run.keys() == {
        "name", "path", "run", "created_at", "written_at", "state", "recorded", "lost", "maybe_lost", "rollouts",
        "retried", "superseded", "collides", "planned", "finished", "groups", "envs", "policies", "mean_reward",
        "bytes", "problems", "problem_count",
    }  # fmt: skip
    assert (run["name"], run["path"], run["rollouts"], run["mean_reward"]) == ("run", str(path), 1, 1.0)


def test_runs_is_where_it_looks(rolltrace, tmp_path):
    """The default directory is `runs`, as for `rolltrace run`."""
    create_run(tmp_path / "runs" / "mine").close()
    assert "mine" in rolltrace("ls").stdout


def test_no_run(rolltrace, tmp_path):
    """A directory without runs says so, and a missing one is wrong usage."""
    shown = rolltrace("ls", tmp_path)
    assert (shown.exit_code, shown.stdout) == (0, "")
    assert "no run" in shown.stderr
    assert rolltrace("ls", tmp_path / "nowhere").exit_code == 2


def test_hostile_names_cannot_steer(rolltrace, make_run, one_plus_one, tmp_path):
    """Names of directories, envs and policies are shown with their control characters escaped."""
    make_run(one_plus_one, env=HOSTILE, policy=HOSTILE).rename(tmp_path / HOSTILE)
    shown = rolltrace("ls", tmp_path).stdout
    assert shown.count("␛[31mred") == 3
    assert "\x1b" not in shown
    assert "\u202e" not in shown


def test_a_narrow_terminal(in_terminal, make_run, one_plus_one, tmp_path):
    """On a terminal of 80 columns a run takes one line, with its whole name, its state and its numbers."""
    make_run(one_plus_one, env="a_very_long_name_of_an_environment").rename(tmp_path / "gsm8k-qwen-7b-0017")
    code, shown = in_terminal("ls", tmp_path, columns=80, NO_COLOR="1")
    assert code == 0
    heading, line = (re.sub(r"\x1b\[[0-9;]*m", "", line) for line in shown.splitlines())
    assert heading.split() == ["run", "created", "state", "rollouts", "groups", "reward", "envs"]
    assert line.split()[0] == "gsm8k-qwen-7b-0017"
    assert line.split()[2:6] == ["complete", "1", "1", "1"]
    assert line.rstrip().endswith("…")
    assert len(line) <= 80


def test_names_are_never_truncated(in_terminal, make_run, one_plus_one, tmp_path):
    """A name that is too long for the terminal is wrapped, because it is needed whole for the next command."""
    make_run(one_plus_one).rename(tmp_path / ("x" * 100))
    shown = in_terminal("ls", tmp_path, columns=80, NO_COLOR="1")[1]
    assert shown.count("x") == 100
    assert max(len(re.sub(r"\x1b\[[0-9;]*m", "", line)) for line in shown.splitlines()) <= 80


def test_many_runs(rolltrace, tmp_path):
    """The newest runs are shown with the number of all; a program gets all."""
    for number in range(103):
        create_run(tmp_path / f"run{number:03d}").close()
    shown = rolltrace("ls", tmp_path)
    assert len(shown.stdout.splitlines()) == 101
    assert "The newest 100 of 103 runs" in shown.stderr
    assert len(rolltrace("ls", tmp_path, "--limit", 2).stdout.splitlines()) == 3
    everything = rolltrace("ls", tmp_path, "--json")
    assert len(everything.stdout.splitlines()) == 103
    assert everything.stderr == ""


def test_a_run_that_was_not_read(rolltrace, make_run, one_plus_one, tmp_path, monkeypatch):
    """For a large run without tables, an upper bound of its rollouts is shown."""
    make_run(one_plus_one, one_plus_one)
    monkeypatch.setattr(listing, "MAX_BYTES", 0)
    assert rolltrace("ls", tmp_path).stdout.splitlines()[1].split()[3:8] == ["complete", "≤", "2", "–", "–"]


def test_rollouts_in_flight_and_lost_are_shown(rolltrace, tmp_path):
    """Rollouts of an open session are in flight; if it is closed before they end, they are lost."""
    with create_run(tmp_path / "run") as writer:
        for number in range(2):
            writer.begin(
                Header(
                    id=str(number), run=writer.run, session=writer.session, env="e", task="t", group="g", index=number,
                    started_at=utc_now(),
                )
            )  # fmt: skip
        writer.flush()
        assert "2 in flight" in rolltrace("ls", tmp_path).stdout
        assert "2 being played, running" in rolltrace("show", tmp_path / "run").stdout
        assert "2 being played, or lost with a session that died" in rolltrace("summary", tmp_path / "run").stdout
    assert "2 lost" in rolltrace("ls", tmp_path).stdout
    assert "2 lost when it was closed" in rolltrace("show", tmp_path / "run").stdout
    assert "2 rollouts lost" in rolltrace("summary", tmp_path / "run").stdout


def test_damage_is_shown(rolltrace, make_run, one_plus_one, tmp_path):
    """A run whose last file is missing says so in its line, and standard error says what is missing."""
    path = make_run(one_plus_one)
    assert rolltrace("ls", tmp_path).stderr == ""
    for file in (path / "rollouts").iterdir():
        file.unlink()
    shown = rolltrace("ls", tmp_path)
    assert "complete · damaged" in shown.stdout
    assert f"Not read: {path}: rollouts/" in shown.stderr
    assert "1 rollouts were recorded, 0 can be read" in shown.stderr
