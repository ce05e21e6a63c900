"""`rolltrace show RUN GROUP`: the shared prompt and a table of members, at any width and with hostile content."""

import contextlib
import json
import re

import pytest

from answers import score, write
from rolltrace.jobs.play import play
from rolltrace.query.run import open_run
from rolltrace.store.create import create_run
from rolltrace.trace.failure import Failure
from rolltrace.trace.score import GroupKey
from rolltrace.trace.stop_reasons import Layer, Status

HOSTILE = "\x1b[31mred\x1b]0;title\x07 \u202eesrever\u202c [bold]markup[/bold] \x9b2J \r over \x00 数学 🙂"


def plain(text):
    """The output without colours."""
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


def in_order(text, *pieces):
    """Whether the pieces occur in the text in this order."""
    place = -1
    for piece in pieces:
        place = text.find(piece, place + 1)
        assert place >= 0, f"{piece!r} is missing, or not after the one before, in:\n{text}"


@pytest.fixture
def answers(tmp_path):
    """Records a group: an answer and a reward for each member, to a prompt of two messages."""

    def record(*members, **fields):
        with create_run(tmp_path / "run") as writer:
            for index, (answer, reward) in enumerate(members):
                with writer.rollout(env="sums", task="two", group="two", index=index, iteration=0, **fields) as rollout:
                    prompt = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "1 + 1?"}]
                    rollout.step(prompt=prompt, response=answer, reward=reward, reward_data={"correct": reward})
        return tmp_path / "run"

    return record


def table(shown):
    """The rows of the table of members: the header's words, then a row for each member."""
    lines = shown.splitlines()
    [start] = [place for place, line in enumerate(lines) if line.startswith("member ")]
    rows = []
    for line in lines[start + 1 :]:
        if not line.startswith(("#", "…")) or "more: --limit" in line:
            break
        rows.append(re.split(r"  +", line.strip()))
    return re.split(r"  +", lines[start].strip()), rows


def test_group_is_its_prompt_and_a_row_for_each_member(rolltrace, answers):
    """The shared prompt is shown once, then a table of the members, best first, and what all have in common."""
    shown = rolltrace("show", answers(("So:\nIt is 3.", 0.25), ("It is 2.\n", 1.0)), "two").stdout
    in_order(
        shown,
        "train/sums/0/two", "2 members", "mean reward 0.625 ± 0.375 (n = 2)",
        "the prompt of both members", "system", "Be brief.", "user", "1 + 1?",
        "member", "the same for all: stopped completed, steps 1",
    )  # fmt: skip
    assert table(shown) == (
        ["member", "reward", "advantage", "correct", "answer"],
        [["#1", "1", "+0.375", "1", "It is 2."], ["#0", "0.25", "-0.375", "0.25", "It is 3."]],
    )
    assert shown.count("1 + 1?") == 1


def test_a_terminal_shows_the_columns_that_fit(in_terminal, tmp_path):
    """Columns that do not fit are named below the table, and the commands that show more come last."""
    with create_run(tmp_path / "run") as writer:
        for index in range(3):
            with writer.rollout(env="sums", task="two", group="two", index=index, iteration=0) as rollout:
                numbers = {f"criterion_{name}": float(index) for name in "abcdef"}
                rollout.step(prompt="Go.", response="I go. " * 50, reward=float(index), reward_data=numbers)
    for columns, count in ((40, 0), (80, 2), (160, 6)):
        code, shown = in_terminal("show", tmp_path / "run", "two", columns=columns)
        assert code == 0
        lines = plain(shown).splitlines()
        assert max(map(len, lines)) <= columns
        header, rows = table(plain(shown))
        assert header == [
            "member",
            "reward",
            "advantage",
            *(f"criterion_{name}" for name in "abcdef"[:count]),
            "answer",
        ]
        assert [row[0] for row in rows] == ["#2", "#1", "#0"]
        assert all(row[-1].startswith("I go. I") for row in rows)
        assert ("not shown: " in plain(shown)) == (count < 6)
        in_order(plain(shown).replace("\n", " "), "show", "two/2", "# one member", "view", "# the members side by side")


def test_terms_of_the_reward_have_columns_if_several_differ(rolltrace, tmp_path):
    """A single term that differs has no column; two that differ have one each."""
    for name, rewards in (("one", (0.0, 0.0)), ("several", (0.0, 0.5))):
        with create_run(tmp_path / name) as writer:
            for index, reward in enumerate(rewards):
                with writer.rollout(env="sums", task="two", group="two", index=index, iteration=0) as rollout:
                    rollout.step(prompt="Go.", response="I go.", reward=reward)
                    rollout.grade(1.0 - index, {})
    assert table(rolltrace("show", tmp_path / "one", "two").stdout)[0] == ["member", "reward", "advantage", "answer"]
    header, rows = table(rolltrace("show", tmp_path / "several", "two").stdout)
    assert header == ["member", "reward", "advantage", "step rewards", "grade", "answer"]
    assert [row[3:5] for row in rows] == [["0", "1"], ["0.5", "0"]]


def test_the_end_of_a_long_answer_is_in_the_transcript(rolltrace, tmp_path):
    """A line from the middle of a long rollout is never shown as its last."""
    with create_run(tmp_path / "run") as writer:
        for index, answer in enumerate(("x\n" * 30_000, "done")):
            with writer.rollout(env="sums", task="two", group="two", index=index, iteration=0) as rollout:
                rollout.step(prompt="Go.", response=answer, reward=float(index))
    _, rows = table(rolltrace("show", tmp_path / "run", "two").stdout)
    assert [row[-1] for row in rows] == ["done", "(long: see its transcript)"]


def test_a_long_prompt_is_folded(rolltrace, tmp_path):
    """The middle of a long shared prompt is left out; --full shows it."""
    prompt = f"begin {'x' * 5_000} end"
    with create_run(tmp_path / "run") as writer:
        for index in range(2):
            with writer.rollout(env="sums", task="two", group="two", index=index, iteration=0) as rollout:
                rollout.step(prompt=prompt, response="I go.", reward=float(index))
    shown = rolltrace("show", tmp_path / "run", "two").stdout
    in_order(shown, "begin x", "characters: --full shows all", "x end", "member")
    assert prompt in rolltrace("show", tmp_path / "run", "two", "--full").stdout


def test_the_reason_for_no_signal_is_shown(rolltrace, answers):
    """A group without a learning signal says why at the top."""
    path = answers(("a", 1.0), ("b", 1.0))
    in_order(rolltrace("show", path, "two").stdout, "Both rewards are 1.0: every advantage is 0.", "the prompt")


def test_failures_are_shown(rolltrace, tmp_path):
    """Failures of a member and of the whole group have layer, type and message."""
    failure = Failure(Layer.ENV, "ValueError", "no such square", "Traceback")
    with create_run(tmp_path / "run") as writer:
        write(writer, index=0, group="two")
        write(writer, index=1, group="two", status=Status.ERROR, stop_reason="error", error=failure, reward=None)
        cleanup = Failure(Layer.ENV, "OSError", "left dirty")
        score(writer, None, None, name="cleanup", group=GroupKey("train", 0, "sums", "two"), error=cleanup)
    shown = rolltrace("show", tmp_path / "run", "two").stdout
    in_order(
        shown,
        "Only one of 2 members has a reward: 1 failed (env: ValueError).", "cleanup", "env · OSError: left dirty",
    )  # fmt: skip
    _, rows = table(shown)
    assert [row[0] for row in rows] == ["#0", "#1"]
    assert rows[1][1:3] == ["–", "–"]
    assert rows[1][-1] == "env · ValueError: no such square"


def test_each_criterion_of_a_rubric_has_a_column(rolltrace, tmp_path):
    """Each member's row has its score for each criterion; the grader's text is in its transcript."""
    play("rubric", "scripted:noisy", out=tmp_path / "run", groups=1, group_size=3)
    with open_run(tmp_path / "run") as run:
        [group] = run.sql('select distinct "group" from rollouts').fetchone()
        rollouts = {f"#{rollout.index}": rollout for rollout in run.rollouts()}
    header, rows = table(rolltrace("show", tmp_path / "run", group).stdout)
    assert len(rows) == 3
    for criterion in rollouts["#0"].grade.extra["criteria"]:
        column = header.index(criterion["name"])
        scores = [rollouts[row[0]].grade.reward_data[criterion["name"]] for row in rows]
        assert [float(row[column]) for row in rows] == scores


def test_a_tournament_has_columns_and_a_line(rolltrace, tmp_path):
    """Wins and losses are columns; the grader's data about the whole tournament is one line above."""
    play("preference", "scripted:noisy", out=tmp_path / "run", groups=1, group_size=4)
    with open_run(tmp_path / "run") as run:
        [group] = run.sql('select distinct "group" from rollouts').fetchone()
        late = {f"#{rollout.index}": rollout.reward_score.data["reward_data"] for rollout in run.rollouts()}
    shown = rolltrace("show", tmp_path / "run", group).stdout
    in_order(shown, "preferences", "matchups 12", "agreement", "member")
    header, rows = table(shown)
    for name in ("wins", "losses"):
        assert [float(row[header.index(name)]) for row in rows] == [late[row[0]][name] for row in rows]


def test_json_has_the_members_records(rolltrace, answers):
    """`--json` gives the whole records."""
    shown = rolltrace("show", answers(("a", 1.0), ("b", 0.0)), "two", "--json")
    assert [json.loads(line)["index"] for line in shown.stdout.splitlines()] == [0, 1]


def test_limit_shows_the_best(rolltrace, answers):
    """With a limit only the best members have a row, followed by the number of the others."""
    path = answers(*((f"{index}", float(index)) for index in range(5)))
    shown = rolltrace("show", path, "two", "--limit", 2).stdout
    in_order(shown, "5 members", "the same for all of these", "3 members more")
    assert [row[0] for row in table(shown)[1]] == ["#4", "#3"]


def test_one_member_is_a_transcript(rolltrace, answers):
    """A group of one is shown as its rollout's transcript."""
    assert "stopped by the env" in rolltrace("show", answers(("a", 1.0)), "two").stdout


@pytest.mark.parametrize("columns", [40, 80, 160])
@pytest.mark.parametrize("words", [(), ("--full",)])
def test_hostile_text_cannot_steer_the_terminal_or_its_columns(in_terminal, tmp_path, columns, words):
    """A hostile group comes out as visible characters only, and no line is wider than the terminal."""
    from rich.cells import cell_len

    with create_run(tmp_path / "run") as writer:
        for index in range(4):
            with (
                contextlib.suppress(RuntimeError),
                writer.rollout(
                    env="sums", task=HOSTILE, group="two", index=index, iteration=0, task_data={HOSTILE: HOSTILE}
                ) as rollout,
            ):
                calls = [{"id": HOSTILE, "type": "function", "function": {"name": HOSTILE, "arguments": HOSTILE}}]
                said = {"role": "assistant", "content": HOSTILE * 5 + str(index), "name": HOSTILE}
                if index == 1:
                    said["tool_calls"] = calls
                rollout.step(
                    prompt=[{"role": HOSTILE, "content": HOSTILE}, {"role": "user", "content": "y" * 100_000}],
                    response=said | {"reasoning_content": HOSTILE}, reward=float(index),
                    reward_data={HOSTILE: 1.0, f"{HOSTILE}2": float(index), f"\x1b{HOSTILE}": -float(index)},
                )  # fmt: skip
                rollout.grade(0.0, {HOSTILE: 0.5}, {"criteria": [{"name": HOSTILE, "weight": 1.0, "text": HOSTILE}]})
                if index == 3:
                    raise RuntimeError(HOSTILE)
                rollout.end(HOSTILE + str(index))
            writer.score(rollout.id, HOSTILE, 1.0)
    code, shown = in_terminal("show", tmp_path / "run", "two", *words, columns=columns)
    assert code == 0
    ours = plain(shown)
    for character in "\x1b\x07\x9b\u202e\u202c\r\x00":
        assert character not in ours
    assert "[bold]markup" in ours.replace("\n", "")
    assert max(cell_len(line) for line in ours.splitlines()) <= columns
    assert [row[0] for row in table(ours)[1]] == ["#2", "#1", "#0", "#3"]
