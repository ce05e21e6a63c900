"""A person as a policy, at a pipe, at a terminal, and in memory."""

import asyncio
import io
import os
import pty
import signal
import subprocess
import sys
import threading
from contextlib import aclosing

import pytest

from rolltrace.envs.env import Env, Observation, StepResult
from rolltrace.jobs.play import play, play_async
from rolltrace.policies import terminal_input
from rolltrace.policies.human import HELP, HumanPolicy
from rolltrace.policies.policy import Request
from rolltrace.policies.terminal_input import HumanQuit, TerminalInput
from rolltrace.rollout.memory_sink import MemorySink
from rolltrace.rollout.runner import Runner
from rolltrace.store.reader import RunReader
from rolltrace.trace.frozen import FrozenMap
from rolltrace.trace.message import Message, Part, ToolCall, ToolSpec
from rolltrace.trace.stop_reasons import Status, Termination
from stage import Stage

LOOK = ToolSpec("look", "Looks there.", FrozenMap.of({"type": "object", "properties": {"at": {}, "how": {}}}))


def asking(*messages, **fields):
    """A request with these messages."""
    return Request(messages=messages or (Message("user", "1 + 1?"),), **fields)


async def answer(typed, request=None):
    """The completion for this input, and what was shown."""
    shown = io.StringIO()
    person = HumanPolicy(source=io.StringIO(typed), output=shown)
    completion = await person.complete(request or asking())
    await person.close()
    return completion, shown.getvalue()


class Screen(io.StringIO):
    """Collects what was shown, and lets a test wait for a text to appear."""

    def __init__(self):
        super().__init__()
        self.news = threading.Condition()

    def write(self, text):
        with self.news:
            self.news.notify_all()
            return super().write(text)

    def wait_for(self, text):
        with self.news:
            assert self.news.wait_for(lambda: text in self.getvalue(), timeout=60)


class Typist:
    """A simulated person at a pipe: types on request and collects what was shown."""

    def __init__(self):
        self.read_end, self.write_end = os.pipe()
        self.source = os.fdopen(self.read_end)
        self.shown = Screen()

    def type(self, text):
        os.write(self.write_end, text.encode())

    async def sees(self, text):
        """Returns when this text is on the screen."""
        await asyncio.to_thread(self.shown.wait_for, text)


@pytest.fixture
def typist():
    person = Typist()
    yield person
    if person.write_end is not None:
        os.close(person.write_end)
    person.source.close()


async def test_an_answer_is_text_until_an_empty_line():
    """The lines of an answer make one message; the end of the input replaces the last empty line."""
    for typed in ("It is\n  2.\n\nnot this", "\n\nIt is\r\n  2."):
        completion, shown = await answer(typed)
        assert completion.message == Message("assistant", "It is\n  2.")
        assert completion.termination is Termination.EOS
        assert completion.raw is None
    assert "[user]\n1 + 1?\n" in shown
    assert "turn 1" in shown


async def test_tools_are_shown_and_called():
    """Calls are kept as typed, each with its own id, along with the text."""
    typed = 'Let me look.\n/call look {"at": "door"}\n  /call look\n/call look {"at": \n\n'
    completion, shown = await answer(typed, asking(tools=(LOOK,), step=3))
    assert "tool look(at, how): Looks there." in shown
    assert completion.termination is Termination.TOOL_CALLS
    assert completion.message == Message(
        "assistant",
        "Let me look.",
        tool_calls=(
            ToolCall("look", '{"at": "door"}', id="call_3_0"),
            ToolCall("look", "{}", id="call_3_1"),
            ToolCall("look", '{"at":', id="call_3_2"),
        ),
    )
    assert completion.raw == typed.rstrip("\n")


async def test_a_person_can_ask_for_help_and_mistype():
    """`/help` and a `/call` without a name are not part of the answer."""
    completion, shown = await answer("/help\n/call\n2\n\n")
    assert completion.message.content == "2"
    assert HELP in shown
    assert "Expected a tool after /call" in shown


async def test_any_text_can_be_said():
    """An answer can contain an empty line and a line that begins like a command; other slashes are text."""
    completion, _ = await answer("//call me\n\\\n/usr/bin\n//quit\n//x\n\n")
    assert completion.message.content == "/call me\n\n/usr/bin\n/quit\n//x"
    assert completion.raw == "//call me\n\\\n/usr/bin\n//quit\n//x"


async def test_only_what_is_new_is_shown():
    """A conversation that grew is shown from its new part on; one that was changed, from the change on."""
    first, second = Message("user", "the first question"), Message("user", "the second question")
    shown = io.StringIO()
    person = HumanPolicy(source=io.StringIO("one\n\ntwo\n\nthree\n\n"), output=shown)
    said = (await person.complete(asking(first))).message
    shown.truncate(shown.seek(0))
    await person.complete(asking(first, said, second))
    assert "the second question" in shown.getvalue()
    assert "the first question" not in shown.getvalue()
    assert "one" not in shown.getvalue().split()
    assert "changed" not in shown.getvalue()
    shown.truncate(shown.seek(0))
    await person.complete(asking(first, second))
    assert "has changed" in shown.getvalue()
    assert "the second question" in shown.getvalue()
    await person.close()


async def test_hostile_text_cannot_steer_the_terminal():
    """Control characters, direction marks and markup in a prompt are escaped."""
    evil = Message("user\x1b[2J", "\x1b]0;owned\x07[red]red[/red] \u202eback\nkept :smile:", name="\x9b1m")
    parts = Message("user", "", parts=(Part("image\x1b[1m", media_type="image/png"),))
    called = Message("assistant", "", tool_calls=(ToolCall("look\x1b[1m", "\x08"),))
    tool = ToolSpec("x\x1b[1m", "y\x07", FrozenMap.of({"properties": {"z\x1b": 1}}))
    _, shown = await answer("2\n\n", asking(evil, parts, called, tools=(tool,), role="grader\x1b[5m"))
    assert not any(sign in shown for sign in "\x1b\x07\x08\x9b\u202e")
    assert "␛]0;owned␇[red]red[/red] ⟨U+202E⟩back\nkept :smile:" in shown
    assert "(image␛[1m image/png)" in shown


async def test_the_role_is_named():
    """The prompt names the role, if it is not the policy's."""
    _, shown = await answer("2\n\n", asking(role="grader"))
    assert "You are the grader" in shown


@pytest.mark.parametrize("typed", ["/quit\n", "half an answer\n/quit\n\n", "", "\n\n"])
def test_leaving_stops_everything(typed):
    """`/quit`, and input that ends before an answer, raise `HumanQuit`."""
    with pytest.raises(HumanQuit):
        asyncio.run(answer(typed))


async def test_a_person_who_has_quit_is_not_asked_again(typist):
    """Waiting and later questions raise `HumanQuit` at once, until the policy is closed."""
    person = HumanPolicy(source=typist.source, output=typist.shown)
    asked = [asyncio.create_task(person.complete(asking(Message("user", f"question {n}")))) for n in range(50)]
    await typist.sees("question 0")
    typist.type("/quit\n")
    assert {type(error) for error in await asyncio.gather(*asked, return_exceptions=True)} == {HumanQuit}
    with pytest.raises(HumanQuit):
        await person.complete(asking())
    assert "question 1" not in typist.shown.getvalue()
    await person.close()
    typist.type("back\n\n")
    assert (await person.complete(asking())).message.content == "back"
    await person.close()


def with_asyncio_run(coroutine):
    """Runs it as `rolltrace.play` does."""
    return asyncio.run(coroutine)


def in_own_loop(coroutine):
    """Runs it as a notebook or a program with its own loop does, where leftover tasks are not cancelled."""
    loop = asyncio.new_event_loop()
    try:
        return loop.run_until_complete(coroutine)
    finally:
        assert not asyncio.all_tasks(loop)
        loop.close()


@pytest.mark.parametrize("group_size", [1, 4])
@pytest.mark.parametrize("run", [with_asyncio_run, in_own_loop])
def test_what_was_played_before_leaving_is_recorded(tmp_path, group_size, run):
    """When the person quits, rollouts in flight are recorded as cancelled, and the ledger adds up."""
    source = io.StringIO("50\n\n/quit\n")
    person = HumanPolicy(source=source, output=io.StringIO())
    with pytest.raises(HumanQuit):
        run(play_async("twenty_questions", person, out=tmp_path / "run", group_size=group_size, groups=3))
    reader = RunReader(tmp_path / "run")
    rollouts = list(reader.rollouts())
    assert {rollout.status for rollout in rollouts} == {Status.CANCELLED}
    assert len(rollouts) == 3 * group_size
    [ledger] = reader.ledgers().values()
    assert ledger.closed
    assert ledger.complete
    assert ledger.recorded == len(rollouts)
    assert all(rollout.pending_prompt is not None or rollout.steps for rollout in rollouts)


@pytest.mark.parametrize("env", ["rubric", "preference"])
def test_a_grader_who_quits_ends_the_run(tmp_path, env):
    """A grader who quits ends the run like Ctrl-C, also with many questions open for a rollout or a group."""
    person = HumanPolicy(source=io.StringIO("/quit\n"), output=io.StringIO())
    with pytest.raises(KeyboardInterrupt, match="the person who plays has quit"):
        play(env, "scripted:noisy", roles={"grader": person}, out=tmp_path / "run", groups=50, concurrency=4)
    reader = RunReader(tmp_path / "run")
    assert len(list(reader.rollouts())) < 50 * 4
    [ledger] = reader.ledgers().values()
    assert ledger.complete


async def test_a_group_that_will_not_be_graded_says_so():
    """A member that finished before the person quit has a null score that says why there is no reward."""

    class Graded(Stage):
        async def grade_group(self, rollouts):
            raise AssertionError("nobody is there to be graded")

    class Brief(Rooms):
        async def step(self, completion):
            return StepResult(1.0, True)

    person = HumanPolicy(source=io.StringIO("Here.\n\n/quit\n"), output=io.StringIO())
    sink = MemorySink()
    async with aclosing(Runner(person, sink=sink).play([Graded(lambda number: Brief(), episodes=2)])) as groups:
        with pytest.raises(HumanQuit):
            await anext(groups)
    assert sorted(rollout.status for rollout in sink.rollouts) == ["cancelled", "ok"]
    [score] = sink.scores
    assert (score.name, score.value, score.error.type) == ("reward", None, "Interrupted")
    assert "HumanQuit" in score.error.message


async def test_a_question_can_be_cancelled(typist):
    """Cancelling a question takes effect at once; what is typed afterwards answers the next question."""
    person = HumanPolicy(source=typist.source, output=typist.shown)
    waiting = asyncio.create_task(person.complete(asking(Message("user", "the first"))))
    await typist.sees("the first")
    typist.type("dropped\n")
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await typist.sees("was cancelled")
    asked = asyncio.create_task(person.complete(asking(Message("user", "the second"))))
    await typist.sees("the second")
    typist.type("kept\n\n")
    assert (await asked).message.content.endswith("kept")
    await person.close()
    await _no_desk_is_served()


def terminal_threads():
    """The threads that read a person's input."""
    return [thread for thread in threading.enumerate() if thread.name == "rolltrace-terminal"]


async def _no_desk_is_served():
    for thread in terminal_threads():
        await asyncio.to_thread(thread.join, 60)
        assert not thread.is_alive()


async def test_no_thread_is_left_without_questions(typist):
    """The input thread ends when no question is left."""
    person = HumanPolicy(source=typist.source, output=typist.shown)
    asked = [asyncio.create_task(person.complete(asking())) for _ in range(3)]
    await typist.sees("1 + 1?")
    assert len(terminal_threads()) == 1
    for task in asked:
        task.cancel()
    await asyncio.gather(*asked, return_exceptions=True)
    await _no_desk_is_served()
    await person.close()


async def test_a_person_gets_one_question_at_a_time(typist):
    """Further questions wait until the current one is answered."""
    desk_of = HumanPolicy(source=typist.source, output=typist.shown)
    asked = [asyncio.create_task(desk_of.complete(asking(Message("user", f"question {n}")))) for n in range(2)]
    await typist.sees("question 0")
    assert "question 1" not in typist.shown.getvalue()
    typist.type("a\n\n")
    assert (await asked[0]).message.content == "a"
    await typist.sees("question 1")
    typist.type("b\n\n")
    assert (await asked[1]).message.content == "b"
    await desk_of.close()


async def test_a_game_goes_on_before_another_is_begun(monkeypatch):
    """The next question of the same rollout goes before earlier ones of others, if it comes soon enough."""
    order = []

    def hold(name):
        return lambda read_line: order.append(name)

    monkeypatch.setattr(terminal_input, "SAME_ROLLOUT_SECONDS", 3600)
    desk = TerminalInput(io.StringIO(), io.StringIO())
    await desk.ask("one", hold("one 0"))
    other = asyncio.create_task(desk.ask("two", hold("two 0")))
    await asyncio.sleep(0)
    await desk.ask("one", hold("one 1"))
    assert order == ["one 0", "one 1"]
    other.cancel()
    await asyncio.gather(other, return_exceptions=True)
    monkeypatch.setattr(terminal_input, "SAME_ROLLOUT_SECONDS", 0)
    hasty = TerminalInput(io.StringIO(), io.StringIO())
    await hasty.ask("one", hold("one 2"))
    await hasty.ask("two", hold("two 2"))
    assert order[2:] == ["one 2", "two 2"]


def test_a_person_plays_in_several_event_loops():
    """One person serves several event loops, one after the other."""
    person = HumanPolicy(source=io.StringIO("a\n\nb\n\n"), output=io.StringIO())
    said = [asyncio.run(person.complete(asking())).message.content for _ in range(2)]
    assert said == ["a", "b"]


def test_all_who_play_at_the_terminal_share_it():
    """Two roles that a person plays at standard input share one terminal, and are asked one at a time."""
    code = """
import asyncio
from rolltrace.policies.human import human
from rolltrace.policies.policy import Request
from rolltrace.policies.policy_specs import load_policy
from rolltrace.trace.message import Message

async def ask():
    policies = human(), load_policy("human,name=Ada"), load_policy("human:Joe")
    question = Request(messages=(Message("user", "1 + 1?"),))
    said = await asyncio.gather(*(policy.complete(question) for policy in policies))
    print([(policy.name, one.message.content) for policy, one in zip(policies, said)])

asyncio.run(ask())
"""
    ran = subprocess.run(
        [sys.executable, "-c", code], input="a\n\nb\n\nc\n\n", capture_output=True, text=True, check=False, timeout=60
    )
    assert ran.stdout == "[('human', 'a'), ('Ada', 'b'), ('Joe', 'c')]\n", ran.stderr


class Rooms(Env):
    """An env of two turns with a tool to look."""

    def __init__(self):
        self.turn = 0

    async def initial_observation(self):
        return Observation([Message("user", "Where?")], tools=[LOOK])

    async def step(self, completion):
        self.turn += 1
        return StepResult(1.0, self.turn == 2, Observation([Message("user", "And now?")], tools=[LOOK]))


async def test_a_person_leaves_the_same_record_as_a_model():
    """Prompt, response, tools, termination and raw text are recorded as for any policy."""
    person = HumanPolicy(name="Ada", source=io.StringIO('/call look {"at": "x"}\n\nHere.\n\n'), output=io.StringIO())
    sink = MemorySink()
    async with aclosing(Runner(person, sink=sink).play([Stage(lambda number: Rooms())])) as groups:
        async for _ in groups:
            pass
    await person.close()
    [rollout] = sink.rollouts
    assert (rollout.policy, rollout.status, rollout.reward) == ("Ada", Status.OK, 2.0)
    first, second = rollout.steps
    assert (first.termination, second.termination) == (Termination.TOOL_CALLS, Termination.EOS)
    assert first.raw == '/call look {"at": "x"}'
    assert first.trace.policy_response.tool_calls == (ToolCall("look", '{"at": "x"}', id="call_0_0"),)
    assert second.trace.policy_response.content == "Here."
    assert rollout.tools == ((LOOK,),)


COMMAND = [
    sys.executable, "-m", "rolltrace", "run", "arithmetic", "--policy", "human",
    "--group-size", "2", "--out", "run",
]  # fmt: skip


def test_a_person_plays_through_a_pipe(tmp_path):
    """The command reads answers from standard input and shows questions on standard error."""
    ran = subprocess.run(
        COMMAND,
        input="Answer: 1\n\nI think.\nAnswer: 23",
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stderr.count("What is 3 + 20?") == 2
    assert "What is" not in ran.stdout
    rollouts = sorted(RunReader(tmp_path / "run").rollouts(), key=lambda rollout: rollout.index)
    assert [rollout.conversation[1].content for rollout in rollouts] == ["Answer: 1", "I think.\nAnswer: 23"]


def test_a_person_who_leaves_ends_the_command(tmp_path):
    """`/quit` ends the command with exit code 1, and what was in flight is in the run."""
    ran = subprocess.run(
        COMMAND, input="Answer: 1\n\n/quit\n", cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 1
    assert "recorded as cancelled" in ran.stderr
    assert "Traceback" not in ran.stderr
    assert sorted(rollout.status for rollout in RunReader(tmp_path / "run").rollouts()) == ["cancelled", "ok"]


def test_a_person_can_be_interrupted(tmp_path):
    """Ctrl-C during a question ends the command at once, and the record is kept."""
    with subprocess.Popen(
        COMMAND, cwd=tmp_path, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        while b"What is" not in (line := process.stderr.readline()):
            assert line
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 1
        told = process.stderr.read()
    assert b"recorded as cancelled" in told
    assert b"Traceback" not in told
    rollouts = list(RunReader(tmp_path / "run").rollouts())
    assert [rollout.status for rollout in rollouts] == [Status.CANCELLED, Status.CANCELLED]
    assert all(rollout.pending_messages for rollout in rollouts)


def test_a_person_plays_at_a_terminal(tmp_path):
    """At a terminal the person sees a prompt, and Ctrl-D ends an answer."""
    ours, theirs = pty.openpty()
    environment = os.environ | {"TERM": "xterm-256color", "COLUMNS": "100"}
    process = subprocess.Popen(
        COMMAND, stdin=theirs, stdout=theirs, stderr=theirs, cwd=tmp_path, env=environment, start_new_session=True
    )
    os.close(theirs)
    shown = b""
    typed = [b"Answer: 23\n\n", b"Answer: 24\n\x04"]
    try:
        while chunk := os.read(ours, 65536):
            shown += chunk
            if typed and b"rollout %d" % (2 - len(typed)) in shown:
                os.write(ours, typed.pop(0))
    except OSError:  # a terminal reports the closed other side in this way
        pass
    os.close(ours)
    assert b"> " in shown
    assert process.wait() == 0, shown.decode()
    rollouts = sorted(RunReader(tmp_path / "run").rollouts(), key=lambda rollout: rollout.index)
    assert [rollout.conversation[1].content for rollout in rollouts] == ["Answer: 23", "Answer: 24"]
