"""`rolltrace show`: what it shows, and that no recorded text can control the terminal."""

import json
import os
import re
import subprocess
import sys

import pytest

from answers import write
from rolltrace.query.run import open_run
from rolltrace.store.create import create_run
from rolltrace.store.reader import RunReader
from rolltrace.trace.codec import encode_with_scores, utc_now
from rolltrace.trace.failure import Failure
from rolltrace.trace.ids import new_id
from rolltrace.trace.message import Message, ToolCall
from rolltrace.trace.score import Grade, GroupKey, Score
from rolltrace.trace.stop_reasons import EnvFailure, Layer, Status, StoppedBy, Termination

HOSTILE = "\x1b[31mred\x1b]0;title\x07 \u202eesrever\u202c [bold]markup[/bold] :smile: \x9b2J \r over"


def in_order(text, *pieces):
    """Whether the pieces occur in the text in this order."""
    place = -1
    for piece in pieces:
        place = text.find(piece, place + 1)
        assert place >= 0, f"{piece!r} is missing, or not after the one before, in:\n{text}"


def unwrapped(text):
    """The output with wrapped lines joined."""
    return " ".join(re.sub(r"\x1b\[[0-9;]*m", "", text).replace("│", " ").split())


def tools(rollout_builder):
    rollout_builder.extend([Message("system", "Use the tool."), Message("user", "12 * 7?")])
    rollout_builder.mark_prompt_sent()
    call = ToolCall("calculator", '{"expression": "12*7"}', "c1")
    rollout_builder.step(
        Message("assistant", "Let me see.", tool_calls=(call,), reasoning="a product"),
        reward=0.0, env_reward=0.0, env_state={"turn": 1}, termination=Termination.TOOL_CALLS,
    )  # fmt: skip
    rollout_builder.extend([Message("tool", "84", tool_call_id="c1", name="calculator")])
    rollout_builder.mark_prompt_sent()
    rollout_builder.step(
        Message("assistant", "84."),
        reward=-0.1, env_reward=1.0, reward_data={"correct": True, "format": 0.5}, extra={"reference": "84"},
        parse_error="no end of turn",
    )  # fmt: skip
    rollout_builder.grade = Grade(0.25, {"style": 0.25})


def test_rollout_reads_like_a_transcript(rolltrace, make_run):
    """Messages are in order, calls with their answers, each step's numbers after its answer, and the end last."""
    shown = rolltrace("show", make_run(tools), "two/0")
    assert shown.exit_code == 0
    in_order(
        shown.stdout,
        "train/sums/0/two/0", "ok", "tester",
        "system", "Use the tool.", "user", "12 * 7?",
        "assistant", "a product", "Let me see.", "call 1", "calculator", '{"expression": "12*7"}',
        "step 0", "reward  0", "env_state", "turn=1", "tool_calls",
        "tool", "answers call 1", "84",
        "assistant", "84.", "step 1", "-0.1", "the env's 1",
        "reward_data", "correct true", "format 0.5", "extra", "reference=84", "parse_error", "no end of turn",
        "completed", "stopped by the env", "reward", "grade", "0.25", "style 0.25",
    )  # fmt: skip
    assert shown.stdout.count("12 * 7?") == 1


def test_an_edited_tool_result_answers_its_call(rolltrace, make_run):
    """A result that the env rewrites later is shown with the call that it answers."""

    def edit(rollout_builder):
        tools(rollout_builder)
        kept = rollout_builder.prompt
        rollout_builder.replace(
            [*kept[:3], Message("tool", "84 (seen)", tool_call_id="c1", name="calculator"), *kept[4:]]
        )

    shown = rolltrace("show", make_run(edit), "two/0").stdout
    in_order(shown, "answers call 1", "84", "answers call 1", "84 (seen)")
    assert "answers no call" not in shown


@pytest.mark.parametrize("failure", EnvFailure)
def test_a_turn_that_the_env_did_not_finish_is_marked(rolltrace, make_run, failure):
    """The transcript has the whole answer, and says how the env failed on it."""

    def unfinished(rollout_builder):
        rollout_builder.extend([Message("user", "A door.")])
        rollout_builder.mark_prompt_sent()
        rollout_builder.step(
            Message("assistant", "", tool_calls=(ToolCall("open", '{"what": "it"}', "c1"),)), reward=0.0
        )
        rollout_builder.set_env_failure(failure)

    run = make_run(unfinished)
    shown = rolltrace("show", run, "two/0")
    in_order(shown.stdout, "A door.", "open", '{"what": "it"}', "step 0", "env_failure", failure.value, "no reward")
    listed = json.loads(rolltrace("show", run, "two/0", "--json").stdout)
    assert listed["steps"][0]["env_failure"] == failure.value


def test_run_is_a_table_of_rollouts(rolltrace, make_run, one_plus_one):
    """Without an id, every rollout has a line with its reward and stop reason, below a summary of the run."""
    path = make_run(one_plus_one, tools)
    shown = rolltrace("show", path)
    in_order(shown.stdout, str(path), "2 rollouts in 1 group", "mean reward 1 (n = 2)", "two/0", "two/1")
    first, second = RunReader(path).rollouts()
    in_order(shown.stdout, first.id[-8:], second.id[-8:])


def test_failure_names_its_layer(rolltrace, make_run, one_plus_one):
    """An error has its layer, type and message in both views; its traceback is folded by default."""
    failure = Failure(Layer.ENV, "ValueError", "no such square", "Traceback\n  File one\n  File two\nValueError: last")
    outcome = {
        "status": Status.ERROR, "stop_reason": "error", "stopped_by": StoppedBy.RUNNER, "error": failure,
        "reward": None,
    }  # fmt: skip
    path = make_run(one_plus_one, outcome=outcome)
    assert "env · ValueError: no such square" in rolltrace("show", path).stdout
    shown = rolltrace("show", path, "two/0").stdout
    in_order(shown, "error", "stopped by the runner", "env · ValueError: no such square", "ValueError: last", "--full")
    assert "File two" not in shown
    assert "File two" in rolltrace("show", path, "two/0", "--full").stdout


def test_latest_reward_and_scores_are_shown(rolltrace, make_run, one_plus_one):
    """The latest score named reward is the reward that is shown, and a grader's failure is named."""
    path = make_run(one_plus_one, one_plus_one)
    first, second = RunReader(path).rollouts()
    failure = Failure(Layer.GRADER, "TimeoutError", "too slow")
    with create_run(path, join=True) as writer:
        common = {"run": writer.run, "session": writer.session, "created_at": utc_now()}
        writer.write_score(Score(id=new_id(), rollout=first.id, name="reward", value=0.125, producer="judge", **common))
        writer.write_score(Score(id=new_id(), rollout=second.id, name="reward", value=None, error=failure, **common))
        group = GroupKey("train", 0, "sums", "two")
        cleanup = Failure(Layer.ENV, "OSError", "left dirty")
        writer.write_score(Score(id=new_id(), group=group, name="cleanup", value=None, error=cleanup, **common))
    table = rolltrace("show", path).stdout
    in_order(table, "mean reward 0.125 (n = 1)", "two/0", "0.125", "two/1", "grader · TimeoutError: too slow")
    assert "cleanup: env · OSError: left dirty" in table
    in_order(rolltrace("show", path, "two/0").stdout, "reward 0.125", "reward_so_far 1", "judge")


def test_only_the_page_is_read(rolltrace, make_run, one_plus_one, monkeypatch):
    """A table of a few rollouts reads only their lines: damage to another line is not reported."""
    monkeypatch.setattr("rolltrace.query.run_tables.MIN_CACHED_BYTES", 1)
    path = make_run(*[one_plus_one] * 30)
    whole = rolltrace("show", path, "--limit", 30).stdout
    [segment] = (path / "rollouts").iterdir()
    lines = segment.read_bytes().splitlines(keepends=True)
    lines[20] = lines[20].replace(b"1", b"2")
    segment.write_bytes(b"".join(lines))
    shown = rolltrace("show", path, "--limit", 3)
    assert "30 rollouts in 1 group" in shown.stdout
    assert "the first 3 of 30" in shown.stdout
    assert shown.stderr == ""
    assert "two/20" in whole
    assert f"Not read: rollouts/{segment.name}, byte" in rolltrace("show", path, "--limit", 30).stderr


def test_repeated_rollouts_are_reported(rolltrace, make_run, one_plus_one):
    """Earlier attempts, and rollouts that a restart repeated, do not count and are reported."""
    path = make_run(one_plus_one)
    with create_run(path, join=True) as writer:
        for attempt, reward in enumerate((None, 0.5)):
            write(writer, task="two", group="two", attempt=attempt, reward=reward)
    shown = rolltrace("show", path).stdout
    assert "1 rollout in 1 group · mean reward 0.5 (n = 1)" in shown
    assert "1 attempt tried again · 1 repeated by a restart" in shown
    assert "1 in 1 iteration, 1 step · 1 attempt tried again · 1 repeated" in rolltrace("summary", path).stdout


def test_damage_is_reported_in_few_lines(rolltrace, make_run, one_plus_one):
    """A large number of unreadable places is counted, not listed."""
    path = make_run(one_plus_one)
    [segment] = (path / "rollouts").iterdir()
    segment.write_bytes(segment.read_bytes() + b"garbage\n" * 50)
    for words in (("show", path), ("query", path, "select count(*) from rollouts")):
        shown = rolltrace(*words)
        assert shown.exit_code == 0
        assert shown.stderr.count("Not read:") == 21
        assert "30 more places" in shown.stderr


def test_json_is_the_record_with_its_scores(make_run, one_plus_one):
    """`--json` gives the records as an open run does, with the current reward."""
    path = make_run(one_plus_one, tools)
    with create_run(path, join=True) as writer:
        rollout = next(RunReader(path).rollouts())
        score = Score(id=new_id(), run=writer.run, rollout=rollout.id, name="reward", value=0.125, created_at=utc_now())
        writer.write_score(score)
    ended = subprocess.run(
        [sys.executable, "-m", "rolltrace", "show", path, "--json"], capture_output=True, check=True
    )  # fmt: skip
    with open_run(path) as run:
        assert ended.stdout == b"".join(map(encode_with_scores, run.rollouts()))
    assert json.loads(ended.stdout.splitlines()[0])["reward"] == 0.125


def hostile(rollout_builder):
    rollout_builder.extend([Message("user", HOSTILE, name=HOSTILE)])
    rollout_builder.mark_prompt_sent()
    rollout_builder.step(
        Message(HOSTILE, HOSTILE, tool_calls=(ToolCall(HOSTILE, HOSTILE, HOSTILE, HOSTILE),), reasoning=HOSTILE),
        reward=0.0, reward_data={HOSTILE: 1.0}, env_state={HOSTILE: HOSTILE}, extra={HOSTILE: [{HOSTILE: HOSTILE}]},
        parse_error=HOSTILE, raw=HOSTILE, policy_version=HOSTILE,
    )  # fmt: skip
    rollout_builder.extend([Message("tool", HOSTILE, tool_call_id="other" + HOSTILE)])
    rollout_builder.add_note(HOSTILE, HOSTILE)


@pytest.fixture
def hostile_run(make_run):
    """A run in which every user-controlled text is hostile."""
    failure = Failure(Layer.ENV, HOSTILE, HOSTILE, HOSTILE)
    return make_run(
        hostile,
        outcome={"status": Status.ERROR, "stop_reason": HOSTILE, "error": failure},
        env=f"env{HOSTILE}", task=HOSTILE, group=HOSTILE, policy=HOSTILE, tags=(HOSTILE,), task_data={HOSTILE: HOSTILE},
    )  # fmt: skip


@pytest.mark.parametrize("words", [(), ("--json",), ("ID",), ("ID", "--full"), ("nobody",)])
def test_hostile_text_cannot_steer_the_terminal(in_terminal, hostile_run, words):
    """On a terminal, text of models and envs comes out as visible characters only."""
    [rollout] = RunReader(hostile_run).rollouts()
    code, shown = in_terminal("show", hostile_run, *(rollout.id if word == "ID" else word for word in words))
    assert code == (2 if "nobody" in words else 0)
    ours = re.sub(r"\x1b\[[0-9;]*m", "", shown)
    for character in "\x1b\x07\x9b\u202e\u202c\r":
        assert character not in ours
    if "nobody" not in words:
        assert "[bold]markup[/bold] :smile:" in unwrapped(shown)


@pytest.mark.parametrize("columns", [40, 80, 120])
def test_lines_fit_the_terminal(in_terminal, make_run, columns):
    """No line is wider than the terminal, and nothing is lost by wrapping."""
    path = make_run(
        lambda rollout_builder: (
            rollout_builder.extend([Message("user", "word " * 100 + "x" * 300)]),
            rollout_builder.mark_prompt_sent(),
        )
    )
    _, shown = in_terminal("show", path, "two/0", columns=columns)
    plain = re.sub(r"\x1b\[[0-9;]*m", "", shown)
    assert max(map(len, plain.splitlines())) <= columns
    assert plain.count("word") == 100
    assert plain.count("x") == 300


def test_colours_only_on_a_terminal(in_terminal, make_run, one_plus_one, rolltrace):
    """Output has colours on a terminal, not with NO_COLOR, and never in a pipe."""
    path = make_run(one_plus_one)
    coloured = in_terminal("show", path, "two/0")[1]
    assert re.search(r"\x1b\[[0-9;]*3[0-9]", coloured)
    assert not re.search(r"\x1b\[[0-9;]*3[0-9]", in_terminal("show", path, "two/0", NO_COLOR="1")[1])
    assert "\x1b" not in rolltrace("show", path, "two/0").stdout


def test_pipe_is_not_wrapped(rolltrace, make_run):
    """Lines in a pipe are not wrapped."""
    long = "word " * 500 + "end"
    path = make_run(lambda builder: (builder.extend([Message("user", long)]), builder.mark_prompt_sent()))
    assert f"  {long}\n" in rolltrace("show", path, "two/0").stdout


def test_wrong_names_end_with_two(rolltrace, make_run, one_plus_one):
    """A missing run and an unknown id are wrong usage: exit code 2, a helpful message, no traceback."""
    path = make_run(one_plus_one)
    for words, message in ((("nowhere",), "got nothing"), ((path, "tow/0"), "Did you mean 'two/0'")):
        shown = rolltrace("show", *words)
        assert shown.exit_code == 2
        assert message in shown.stderr
        assert shown.stdout == ""
        assert isinstance(shown.exception, SystemExit)


def test_damage_is_reported_and_the_rest_shown(rolltrace, make_run, one_plus_one):
    """A torn tail is reported on standard error; intact records are shown."""
    path = make_run(one_plus_one, one_plus_one)
    [segment] = (path / "rollouts").iterdir()
    segment.write_bytes(segment.read_bytes()[:-30])
    shown = rolltrace("show", path)
    assert shown.exit_code == 0
    assert f"rollouts/{segment.name}, byte " in shown.stderr
    assert "1 rollout in 1 group" in shown.stdout


def test_lost_rollouts_are_reported(rolltrace, make_run):
    """Lost rollouts are shown with the reason."""
    path = make_run()
    with create_run(path, join=True) as writer:
        recorder = writer.rollout(env="sums", task="t", group="g", index=0)
        writer.end(recorder._rollout_builder, {})  # without an outcome
    assert "1 unrecordable (TypeError)" in rolltrace("show", path).stdout


def test_a_rollout_that_was_ended_after_a_fork_is_not_lost(rolltrace, make_run):
    """A rollout that a forked child ended is not shown as lost, although the parent's ledger lacks it."""
    path = make_run()
    writer = create_run(path, join=True)
    rollout = writer.rollout(env="sums", task="two", group="two", index=0)
    child = os.fork()
    if child == 0:
        rollout.end()
        writer.close()
        os._exit(0)
    os.waitpid(child, 0)
    writer.close()
    assert writer.ledger.lost == 1
    shown = rolltrace("show", path).stdout
    assert "1 rollout in 1 group" in shown
    assert "lost" not in shown


def test_empty_run_is_shown(rolltrace, make_run):
    """A run without rollouts is no error."""
    shown = rolltrace("show", make_run())
    assert shown.exit_code == 0
    assert "0 rollouts" in shown.stdout


def test_closed_pipe_is_no_traceback(make_run, one_plus_one):
    """`rolltrace show RUN | head -1` ends without a traceback."""
    path = make_run(*[one_plus_one] * 300)
    process = subprocess.Popen(
        [sys.executable, "-m", "rolltrace", "show", path, "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )  # fmt: skip
    assert json.loads(process.stdout.readline())["env"] == "sums"
    process.stdout.close()
    errors = process.stderr.read()
    process.stderr.close()
    process.wait()
    assert errors == b""
