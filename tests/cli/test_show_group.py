"""`rolltrace show RUN GROUP`: members side by side, at any width, and what no text in a record can do to them."""

import json
import re

import pytest

from answers import score, write
from rolltrace.jobs.play import play
from rolltrace.query.run import open_run
from rolltrace.store.create import create_run
from rolltrace.trace.rollout import Failure
from rolltrace.trace.score import GroupKey
from rolltrace.trace.stop_reasons import Layer, Status

HOSTILE = "\x1b[31mred\x1b]0;title\x07 \u202eesrever\u202c [bold]markup[/bold] \x9b2J \r over \x00 数学 🙂"


def plain(text):
    """What was shown, without its colours."""
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


def in_order(text, *pieces):
    """Whether the pieces stand in the text in this order."""
    place = -1
    for piece in pieces:
        place = text.find(piece, place + 1)
        assert place >= 0, f"{piece!r} is missing, or not after the one before, in:\n{text}"


@pytest.fixture
def answers(tmp_path):
    """Records a group: an answer and a reward for each member, to a question of two messages."""

    def record(*members, **fields):
        with create_run(tmp_path / "run") as writer:
            for index, (answer, reward) in enumerate(members):
                with writer.rollout(env="sums", task="two", group="two", index=index, iteration=0, **fields) as rollout:
                    prompt = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "1 + 1?"}]
                    rollout.step(prompt=prompt, response=answer, reward=reward, reward_data={"correct": reward})
        return tmp_path / "run"

    return record


def test_group_is_told_once_and_member_by_member(rolltrace, answers):
    """The prompt is there once, then the members, the best first, each with its numbers and where it differs."""
    shown = rolltrace("show", answers(("It is 3.", 0.25), ("It is 2.", 1.0)), "two").stdout
    in_order(
        shown,
        "train/sums/0/two", "2 members", "mean reward 0.625 ± 0.375 (n = 2)",
        "the prompt of both members", "system", "Be brief.", "user", "1 + 1?",
        "#1", "reward 1", "advantage +0.375", "completed", "1 step", "correct 1", "assistant", "It is 2.",
        "#0", "reward 0.25", "advantage -0.375", "correct 0.25", "assistant", "It is ▸3.",
    )  # fmt: skip
    assert shown.count("1 + 1?") == 1


def test_members_stand_beside_each_other_where_there_is_room(in_terminal, answers):
    """A wide terminal has all members in one row, a narrower one fewer, a narrow one or a file one below the other."""
    path = answers(*((f"answer {index}", float(index)) for index in range(4)))
    for columns, beside in ((160, 4), (80, 2), (60, 1)):
        code, shown = in_terminal("show", path, "two", columns=columns)
        assert code == 0
        lines = plain(shown).splitlines()
        assert max(map(len, lines)) <= columns
        assert [line.count("reward ") for line in lines if line.startswith("#")] == [beside] * (4 // beside)


def test_what_is_the_same_is_folded(rolltrace, tmp_path):
    """Messages and text that the neighbour has too are counted, not repeated; --full shows them."""
    with create_run(tmp_path / "run") as writer:
        for index, end in enumerate(("left", "right", "right")):
            with writer.rollout(env="sums", task="two", group="two", index=index, iteration=0) as rollout:
                first = {"role": "assistant", "content": "I will think."}
                rollout.step(prompt="Which way?", response=first, reward=0.0)
                prompt = [{"role": "user", "content": "Which way?"}, first, {"role": "user", "content": "Go on."}]
                rollout.step(prompt=prompt, response="so " * 100 + end, reward=float(-index))
    shown = rolltrace("show", tmp_path / "run", "two").stdout
    in_order(shown, "#0", "I will think.", "#1", "… 2 messages as in #0", "… 240 characters as in #0", "▸right")
    in_order(shown, "#2", "… 3 messages, all as in #1")
    assert shown.count("I will think.") == 1
    assert rolltrace("show", tmp_path / "run", "two", "--full").stdout.count("I will think.") == 3


def test_one_that_ends_earlier_says_so(rolltrace, tmp_path):
    """A member that has no more to say where its neighbour goes on is marked at its end."""
    with create_run(tmp_path / "run") as writer:
        for index in range(2):
            with writer.rollout(env="sums", task="two", group="two", index=index, iteration=0) as rollout:
                rollout.step(prompt="Go.", response="I go.", reward=float(-index))
                if index == 0:
                    history = [{"role": "user", "content": "Go."}, {"role": "assistant", "content": "I go."}]
                    rollout.step(prompt=[*history, {"role": "user", "content": "On."}], response="I went.", reward=1.0)
    in_order(rolltrace("show", tmp_path / "run", "two").stdout, "I went.", "#1", "▸ ends here; #0 goes on")


def test_the_reason_for_no_signal_is_told(rolltrace, answers):
    """A group that teaches nothing says why above all else."""
    path = answers(("a", 1.0), ("b", 1.0))
    in_order(rolltrace("show", path, "two").stdout, "Both rewards are 1.0: the group teaches nothing.", "the prompt")


def test_failures_are_told(rolltrace, tmp_path):
    """What failed, in a member and in the group as a whole, has its layer, type and message."""
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
        "#0", "#1", "reward –", "env · ValueError: no such square",
    )  # fmt: skip


def test_rubric_is_a_table(rolltrace, tmp_path):
    """Each criterion has a line with its weight and every member's score; the grader's words come with --full."""
    play("rubric", "scripted:noisy", out=tmp_path / "run", groups=1, group_size=3)
    with open_run(tmp_path / "run") as run:
        [group] = run.sql('select distinct "group" from rollouts').fetchone()
        rollouts = {rollout.index: rollout for rollout in run.rollouts()}
    shown = rolltrace("show", tmp_path / "run", group).stdout
    [heading] = [line for line in shown.splitlines() if re.fullmatch(r" +#\d +#\d +#\d", line)]
    order = [int(name[1:]) for name in heading.split()]
    for criterion in rollouts[0].grade.extra["criteria"]:
        [line] = [line for line in shown.splitlines() if line.startswith(f"  {criterion['name']} ×")]
        scores = [float(word) for word in line.split()[3:]]
        assert scores == [rollouts[index].grade.reward_data[criterion["name"]] for index in order]
    words = rollouts[0].calls[0].reply.content.splitlines()[0]
    assert words not in shown
    assert words in rolltrace("show", tmp_path / "run", group, "--full").stdout


def test_preferences_are_a_table(rolltrace, tmp_path):
    """The matrix has a line for each member that was shown first, and what the grader says of itself below."""
    play("preference", "scripted:noisy", out=tmp_path / "run", groups=1, group_size=4)
    with open_run(tmp_path / "run") as run:
        [group] = run.sql('select distinct "group" from rollouts').fetchone()
        [late] = run.scores(where="name = 'group_grade'")
    shown = rolltrace("show", tmp_path / "run", group).stdout
    [heading] = [line for line in shown.splitlines() if re.fullmatch(r" +#\d +#\d +#\d +#\d", line)]
    order = [int(name[1:]) for name in heading.split()]
    for row in order:
        [line] = [line for line in shown.splitlines() if line.startswith(f"  #{row} first ")]
        values = [late.data["extra"]["matrix"][row][column] for column in order]
        assert line.split()[2:] == ["·" if value is None else f"{value:+.2f}" if value else "0" for value in values]
    in_order(shown, "preferences", "matchups 12", "agreement")


def test_json_has_the_members_records(rolltrace, answers):
    """`--json` gives what a program wants: the whole records, as before."""
    shown = rolltrace("show", answers(("a", 1.0), ("b", 0.0)), "two", "--json")
    assert [json.loads(line)["index"] for line in shown.stdout.splitlines()] == [0, 1]


def test_limit_shows_the_best(rolltrace, answers):
    """With a limit only the best members are there, and how many there are more."""
    shown = rolltrace("show", answers(*((f"{index}", float(index)) for index in range(5))), "two", "--limit", 2).stdout
    in_order(shown, "5 members", "#4", "#3", "3 members more")
    assert "#2" not in shown


def test_one_member_is_a_transcript(rolltrace, answers):
    """The name of a group of one shows its rollout."""
    assert "stopped by the env" in rolltrace("show", answers(("a", 1.0)), "two").stdout


@pytest.mark.parametrize("columns", [40, 80, 160])
@pytest.mark.parametrize("words", [(), ("--full",)])
def test_hostile_text_cannot_steer_the_terminal_or_its_columns(in_terminal, tmp_path, columns, words):
    """Nothing but visible characters comes out of a hostile group, and no line is wider than the terminal."""
    from rich.cells import cell_len

    with create_run(tmp_path / "run") as writer:
        for index in range(3):
            with writer.rollout(
                env="sums", task=HOSTILE, group="two", index=index, iteration=0, task_data={HOSTILE: HOSTILE}
            ) as rollout:
                calls = [{"id": HOSTILE, "type": "function", "function": {"name": HOSTILE, "arguments": HOSTILE}}]
                said = {"role": "assistant", "content": HOSTILE * 5 + str(index), "tool_calls": calls, "name": HOSTILE}
                rollout.step(
                    prompt=[{"role": HOSTILE, "content": HOSTILE}, {"role": "user", "content": "y" * 100_000}],
                    response=said | {"reasoning_content": HOSTILE}, reward=float(index), reward_data={HOSTILE: 1.0},
                )  # fmt: skip
                rollout.grade(0.0, {HOSTILE: 0.5}, {"criteria": [{"name": HOSTILE, "weight": 1.0, "text": HOSTILE}]})
                rollout.end(HOSTILE)
            writer.score(rollout.id, HOSTILE, 1.0)
    code, shown = in_terminal("show", tmp_path / "run", "two", *words, columns=columns)
    assert code == 0
    ours = plain(shown)
    for character in "\x1b\x07\x9b\u202e\u202c\r\x00":
        assert character not in ours
    assert "[bold]markup" in ours.replace("\n", "")
    assert max(cell_len(line) for line in ours.splitlines()) <= columns
