"""`rolltrace show`: the histogram of a run, changes of state in a transcript, and terminals with few characters."""

import os
import re
import subprocess
import sys

import pytest

from answers import write
from rolltrace.jobs.play import play
from rolltrace.query.run import open_run
from rolltrace.store.create import create_run
from rolltrace.trace.call import Call
from rolltrace.trace.message import Message


def bars(shown):
    """The lines of a chart, from its top to its axis."""
    lines = shown.splitlines()
    [first] = [place for place, line in enumerate(lines) if "┤" in line]
    [last] = [place for place, line in enumerate(lines) if "└" in line]
    return lines[first : last + 2]


def test_rewards_are_drawn(rolltrace, tmp_path):
    """A run has a histogram of its rewards above its table, with the highest count, the scale and what is left out."""
    with create_run(tmp_path / "run") as writer:
        for index, reward in enumerate([0.0, 0.0, 1.0, 1.0, 1.0, 1.0, None, float("nan")]):
            write(writer, index=index, reward=reward)
    shown = rolltrace("show", tmp_path / "run").stdout
    chart = bars(shown)
    assert chart[0].startswith("4 ┤")
    assert [line[3:5] for line in chart[:5]] == ["  ", "  ", "▄▄", "██", "██"]
    assert all(line.endswith("██") for line in chart[:5])
    assert chart[-1].split() == ["0", "0.25", "0.5", "0.75", "1", "reward"]
    assert shown.index("└") < shown.index("not drawn: 1 without a reward, 1 not finite") < shown.index("stopped")


def test_equal_rewards_are_not_drawn(rolltrace, tmp_path):
    """If all rewards are equal there is no histogram."""
    with create_run(tmp_path / "run") as writer:
        write(writer, index=0)
        write(writer, index=1)
    assert "┤" not in rolltrace("show", tmp_path / "run").stdout


@pytest.mark.parametrize("columns", [40, 80])
def test_chart_fits_the_terminal(in_terminal, tmp_path, columns):
    """No line of a chart is wider than the terminal, however large its counts and numbers are."""
    with create_run(tmp_path / "run") as writer:
        for index in range(60):
            write(writer, index=index, reward=(index - 30) * 1.7e306)
    _, shown = in_terminal("show", tmp_path / "run", "--limit", 0, columns=columns)
    chart = bars(re.sub(r"\x1b\[[0-9;]*m", "", shown))
    assert max(map(len, chart)) <= columns


def test_a_terminal_with_ascii_only(tmp_path):
    """A character that the encoding lacks is replaced by an ASCII one of the same width, and not escaped."""
    with create_run(tmp_path / "run") as writer:
        for index in range(4):
            write(writer, index=index, reward=float(index % 2))
    environment = os.environ | {"PYTHONIOENCODING": "ascii"}
    words = [sys.executable, "-m", "rolltrace", "show", tmp_path / "run"]
    shown = subprocess.run(words, capture_output=True, check=True, env=environment).stdout.decode("ascii")
    assert "2 +##" in shown
    assert "\\u" not in shown


def test_only_changes_of_the_state_are_shown(rolltrace, make_run):
    """After the first step only changes of the state are shown; --full shows all of it."""

    def fill(rollout_builder):
        rollout_builder.extend([Message("user", "go")])
        states = ({"turn": 1, "secret": "bread", "old": 1}, {"turn": 2, "secret": "bread", "new": True}, {"turn": 2})
        for state in (*states, {"turn": 2}):
            rollout_builder.mark_prompt_sent()
            rollout_builder.step(Message("assistant", "going"), reward=0.5, env_state=state)

    path = make_run(fill)
    told = [line for line in rolltrace("show", path, "two/0").stdout.splitlines() if "env_state" in line]
    assert [line.split("env_state")[1].strip() for line in told] == [
        "turn=1  secret=bread  old=1",
        "turn=2 (was 1)  new=true  old is gone  1 unchanged",
        "secret is gone  new is gone  1 unchanged",
        "nothing changed",
    ]
    assert rolltrace("show", path, "two/0", "--full").stdout.count("secret=bread") == 2


def test_calls_are_shown_with_their_step(rolltrace, make_run):
    """An answerer's calls are shown in their step, a grader's calls at the end."""

    def fill(rollout_builder):
        rollout_builder.extend([Message("user", "go")])
        for step in range(2):
            rollout_builder.mark_prompt_sent()
            rollout_builder.step(Message("assistant", f"turn {step}"), reward=0.0)
            rollout_builder.calls.append(
                Call("answerer", "helper", (), Message("assistant", f"reply {step}"), step=step)
            )
        rollout_builder.calls.append(Call("grader", "judge", (), Message("assistant", "well done"), about="style"))

    shown = rolltrace("show", make_run(fill), "two/0").stdout
    places = [shown.index(text) for text in ("turn 0", "reply 0", "turn 1", "reply 1", "■ completed", "well done")]
    assert places == sorted(places)
    assert "of the grader about style, judge, after the end" in shown


def test_grades_are_shown_in_words(rolltrace, tmp_path):
    """A rubric's criteria and a tournament's matchups are lines for people, and JSON only with --full."""
    for env in ("rubric", "preference"):
        play(env, "scripted:noisy", out=tmp_path / env, groups=1, group_size=2)
        with open_run(tmp_path / env) as run:
            rollout = next(run.rollouts(where='"index" = 0'))
        shown = rolltrace("show", tmp_path / env, rollout.id).stdout
        if env == "rubric":
            for one in rollout.grade.extra["criteria"]:
                assert f"{one['name']} {one['score']:.6g} × {one['weight']:.6g}  {one['text']}" in shown
            assert "criteria=" not in shown.split("■")[1]
        else:
            assert re.search(r"matchups +#1 (0|[+-]0\.\d\d) as first  #1 (0|[+-]0\.\d\d) as second", shown)
        assert '"name"' in rolltrace("show", tmp_path / env, rollout.id, "--full").stdout or env == "preference"


def test_reasoning_is_marked_without_colours(rolltrace, make_run):
    """Each line of reasoning has a bar before it, which tells it from the answer."""

    def fill(rollout_builder):
        rollout_builder.extend([Message("user", "go")])
        rollout_builder.mark_prompt_sent()
        rollout_builder.step(Message("assistant", "I go.", reasoning="shall I?\nyes"), reward=0.0)

    assert "  ┊ shall I?\n  ┊ yes\n  I go.\n" in rolltrace("show", make_run(fill), "two/0").stdout


def test_very_long_texts_are_folded(rolltrace, make_run):
    """Only the beginning and the end of a very long text are shown; --full shows all of it."""
    text = f"begin {'x' * 1_000_000} end"

    def fill(rollout_builder):
        rollout_builder.extend([Message("system", "s" * 10_000), Message("user", text)])
        rollout_builder.mark_prompt_sent()

    path = make_run(fill)
    shown = rolltrace("show", path, "two/0").stdout
    assert len(shown) < 40_000
    assert "begin x" in shown
    assert "x end" in shown
    assert "characters: --full shows all" in shown
    assert text in rolltrace("show", path, "two/0", "--full").stdout


def test_very_many_messages_are_folded(rolltrace, make_run):
    """Only the first and the last of very many messages are shown; --full shows all of them."""

    def fill(rollout_builder):
        rollout_builder.extend([Message("user", f"message {number}.") for number in range(3_000)])
        rollout_builder.mark_prompt_sent()

    path = make_run(fill)
    shown = rolltrace("show", path, "two/0").stdout
    assert "message 499." in shown
    assert "message 1500." not in shown
    assert "message 2999." in shown
    assert "messages and 0 steps: --full shows all" in shown
    assert "message 1500." in rolltrace("show", path, "two/0", "--full").stdout
