"""`rolltrace ls`: the runs below a directory, for people and programs."""

import json
import re

from rolltrace.store.create import create_run

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
    assert words[3:7] == ["closed", "2", "1", "1"]
    assert words[-2:] == ["sums", "tester"]


def test_json(rolltrace, make_run, one_plus_one, tmp_path):
    """A program gets one object per run, with the path to go on with."""
    path = make_run(one_plus_one)
    [run] = map(json.loads, rolltrace("ls", tmp_path, "--json").stdout.splitlines())
    assert run.keys() == {
        "name", "path", "run", "created_at", "written_at", "state", "rollouts", "lost", "groups", "envs", "policies",
        "mean_reward", "bytes",
    }  # fmt: skip
    assert (run["name"], run["path"], run["rollouts"], run["mean_reward"]) == ("run", str(path), 1, 1.0)


def test_runs_is_where_it_looks(rolltrace, tmp_path):
    """Without a directory, it is `runs`, as `rolltrace run` makes it."""
    create_run(tmp_path / "runs" / "mine").close()
    assert "mine" in rolltrace("ls").stdout


def test_no_run(rolltrace, tmp_path):
    """A directory without runs is told so, and one that is not there is wrong usage."""
    shown = rolltrace("ls", tmp_path)
    assert (shown.exit_code, shown.stdout) == (0, "")
    assert "no run" in shown.stderr
    assert rolltrace("ls", tmp_path / "nowhere").exit_code == 2


def test_hostile_names_cannot_steer(rolltrace, make_run, one_plus_one, tmp_path):
    """A name of a directory, an env or a policy is shown, not obeyed."""
    make_run(one_plus_one, env=HOSTILE, policy=HOSTILE).rename(tmp_path / HOSTILE)
    shown = rolltrace("ls", tmp_path).stdout
    assert shown.count("␛[31mred") == 3
    assert "\x1b" not in shown
    assert "\u202e" not in shown


def test_a_narrow_terminal(in_terminal, make_run, one_plus_one, tmp_path):
    """On a narrow terminal every line fits."""
    make_run(one_plus_one)
    code, shown = in_terminal("ls", tmp_path, columns=80, NO_COLOR="1")
    assert code == 0
    assert "sums" in shown
    assert max(len(re.sub(r"\x1b\[[0-9;]*m", "", line)) for line in shown.splitlines()) <= 80
