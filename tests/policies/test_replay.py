"""A policy that replays recorded answers."""

import asyncio
import json
import re
from contextlib import aclosing

import pytest
from msgspec.structs import replace

from rolltrace.envs.env import Env, Observation, StepResult
from rolltrace.envs.registry import BUILT_IN
from rolltrace.errors import ContextOverflowError, InputError, PolicyError, RecordError, RoleError
from rolltrace.jobs.open_policy import open_policy, replay_policy
from rolltrace.jobs.play import play
from rolltrace.policies.policy import Completion, Request
from rolltrace.policies.replay import ReplayPolicy
from rolltrace.policies.replay_index import MAX_CACHED, ReplayIndex
from rolltrace.policies.roles import ask
from rolltrace.rollout.memory_sink import MemorySink
from rolltrace.rollout.runner import Runner
from rolltrace.store.create import create_run
from rolltrace.store.reader import RunReader
from rolltrace.store.recording import Recording
from rolltrace.testing.scripted import ScriptedReplies
from rolltrace.trace.frozen import FrozenMap
from rolltrace.trace.message import Message, ToolCall, ToolSpec
from rolltrace.trace.score import Grade
from rolltrace.trace.stop_reasons import Status, Termination
from rolltrace.trace.tokens import Tokens, Usage
from stage import Stage

VOLATILE = {
    "id",
    "run",
    "session",
    "started_at",
    "ended_at",
    "seconds",
    "policy",
    "policy_version",
    "created_at",
    "written_at",
    "crc",
}
OFFERED = ToolSpec("look", "Looks.", FrozenMap.of({"type": "object"}))


class InMemoryRecords:
    """The part of a `Run` that a replay uses, of rollouts in memory."""

    def __init__(self, rollouts, scores=()):
        self._rollouts = {rollout.id: rollout for rollout in rollouts}
        self._scores = tuple(scores)

    def identities(self):
        return (rollout.identity for rollout in self._rollouts.values())

    def scores(self):
        return iter(self._scores)

    def get(self, rollout):
        return self._rollouts[rollout]

    def close(self):
        pass


class Talk(Env):
    """An env of `turns` turns, each of which asks another role `asks` times in the same words."""

    takes_any_completion = True

    def __init__(self, turns=3, word="go", tools=(), asks=0, role="answerer", about="About"):
        self.role = role
        self.about = about
        self.turns = turns
        self.word = word
        self.tools = tools
        self.asks = asks
        self.turn = 0

    async def initial_observation(self):
        return Observation([Message("user", self.word)], tools=self.tools)

    async def step(self, completion):
        self.turn += 1
        heard = []
        for _ in range(self.asks):
            try:
                answer = await ask(self.role, [Message("user", f"{self.about} {completion.message.content}?")])
                heard.append(answer.message.content)
            except RoleError as error:
                heard.append(str(error))
        told = Message("user", f"{self.word} {self.turn} {' '.join(heard)}")
        return StepResult(1.0, self.turn >= self.turns, Observation([told], tools=self.tools), extra={"heard": heard})


def recount(path):
    """The records of a run by address, without fields that differ between plays."""
    found = {}
    for segment in sorted((path / "rollouts").iterdir()):
        for fields in map(json.loads, segment.read_text().splitlines()):
            place = tuple(fields[name] for name in ("iteration", "group", "index", "attempt"))
            found[place] = timeless(fields)
    return found


def rewards(path):
    """The rewards of the groups' graders; the last digit of a mean depends on the order in which members end."""
    return sorted((score.name, round(score.value, 9) + 0.0) for score in RunReader(path).scores())


def timeless(value):
    if isinstance(value, list):
        return [timeless(item) for item in value]
    if isinstance(value, dict):
        return {name: timeless(item) for name, item in value.items() if name not in VOLATILE}
    return value


async def played(policy, builders, roles=None, **settings):
    """The records of a play, in memory."""
    sink = MemorySink()
    async with aclosing(Runner(policy, roles=roles, sink=sink, **settings).play(builders)) as groups:
        async for _ in groups:
            pass
    return sink


async def replayed(sink, builders, *, strict=True, **settings):
    """The records of a replay of those records."""
    replay = ReplayPolicy(InMemoryRecords(sink.rollouts, sink.scores), strict=strict)
    return await played(replay, builders, **settings)


def counting(**fields):
    return ScriptedReplies(
        lambda request: Completion(
            message=Message("assistant", f"turn {request.step}"),
            usage=Usage(5, 2),
            policy_version=request.step,
            **fields,
        )
    )


@pytest.mark.parametrize("env", sorted(BUILT_IN))
def test_replaying_a_run_gives_the_same_run(tmp_path, env):
    """Every built-in env, played again from its record, leaves the same lines, its graders' calls included."""
    play(env, "scripted:noisy", out=tmp_path / "first", groups=2, iterations=2)
    summary = play(env, replay_policy(tmp_path / "first"), out=tmp_path / "again", groups=2, iterations=2)
    assert recount(tmp_path / "again") == recount(tmp_path / "first")
    assert summary.policy == "replay:first"
    assert rewards(tmp_path / "again") == rewards(tmp_path / "first")


async def test_everything_that_was_recorded_of_an_answer_comes_back(tmp_path):
    """Termination, parse error, raw text, version, usage and the whole prompt's token ids are those of the record."""
    answer = Completion(
        message=Message("assistant", "cut", tool_calls=(ToolCall("look", '{"at": ', id="c"),), reasoning="hm"),
        termination=Termination.LENGTH,
        parse_error="half a call",
        raw="<cut",
        policy_version="v7",
        usage=Usage(11, 3),
        tokens=None,
    )

    def say(request):
        whole = tuple(range(10 + 3 * request.step))
        return replace(answer, tokens=Tokens(whole, (90, 91), (-0.5, float("-inf")), char_lengths=(4, 0)))

    lines = []
    for name, make in (("first", lambda: ScriptedReplies(say)), ("again", lambda: replay_policy(tmp_path / "first"))):
        with create_run(tmp_path / name, trace=Recording(tokens=True)) as run:
            runner = Runner(make(), sink=run)
            async for _ in runner.play([Stage(lambda number: Talk(tools=[OFFERED]))]):
                pass
        lines.append(recount(tmp_path / name))
    assert lines[0] == lines[1]
    [rollout] = RunReader(tmp_path / "again").rollouts()
    assert [rollout.prompt_tokens(number) for number in range(3)] == [tuple(range(10 + 3 * n)) for n in range(3)]
    assert rollout.steps[0].policy_version == "v7"
    assert (rollout.steps[0].raw, rollout.steps[0].tokens.char_lengths) == ("<cut", (4, 0))


async def test_tokens_are_given_only_where_they_are_wanted():
    """A replay returns token ids only if the request asks for them."""
    sink = await played(counting(tokens=Tokens((1, 2), (3,))), [Stage(lambda number: Talk(1))])
    [rollout] = sink.rollouts
    replay = ReplayPolicy(InMemoryRecords([rollout]))
    request = Request(messages=rollout.steps[0].trace.prompt, identity=rollout.identity)
    assert (await replay.complete(request)).tokens is None
    assert (await replay.complete(replace(request, include_tokens=True))).tokens == Tokens((1, 2), (3,))


async def test_questions_put_at_once_are_answered_in_their_order():
    """Equal concurrent questions get the recorded answers in order, however long each lookup takes."""

    class Crowd(Talk):
        async def step(self, completion):
            answers = await asyncio.gather(*(ask("answerer", [Message("user", "Who?")]) for _ in range(40)))
            return StepResult(1.0, True, extra={"heard": [answer.message.content for answer in answers]})

    numbers = iter(range(100))
    sink = await played(ScriptedReplies(lambda request: f"number {next(numbers)}"), [Stage(lambda number: Crowd())])
    [rollout] = (await replayed(sink, [Stage(lambda number: Crowd())])).rollouts
    assert rollout.steps[0].extra == sink.rollouts[0].steps[0].extra


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        (
            lambda number: Talk(word="gone"),
            "turn 1 .* message 0 \\(user\\) differs in content: from character 2 on, ''",
        ),
        (lambda number: Talk(tools=[OFFERED]), "the tools were none, and are look now"),
        (lambda number: Talk(turns=4), "the record ends after 3 turns, with stop reason 'completed'"),
    ],
)
async def test_another_question_is_an_error_that_names_the_difference(changed, named):
    """A replay that diverges fails, and says where."""
    sink = await played(counting(), [Stage(lambda number: Talk())])
    [rollout] = (await replayed(sink, [Stage(changed)])).rollouts
    assert rollout.status is Status.ERROR
    assert rollout.error.type == "PolicyError"
    assert re.search(named, rollout.error.message)
    assert "strict=false" in rollout.error.message


async def test_a_message_more_or_of_another_role_is_named():
    """Roles are compared before texts, and the first message that only one of both has is shown."""

    class Prompted(Talk):
        def __init__(self, *messages):
            super().__init__(1)
            self.messages = messages

        async def initial_observation(self):
            return Observation(self.messages)

    system, user = Message("system", "Be brief."), Message("user", "go")
    sink = await played(counting(), [Stage(lambda number: Prompted(system, user))])
    errors = []
    for messages in ([user], [system], [system, user, Message("user", "and stop")]):
        [rollout] = (await replayed(sink, [Stage(lambda number, messages=messages: Prompted(*messages))])).rollouts
        errors.append(rollout.error.message)
    assert "message 0 (user) differs in role: from character 0 on, 'system' was recorded" in errors[0]
    assert "2 messages were recorded, and 1 are sent now" in errors[1]
    assert "only now there is a user message that begins 'and stop'" in errors[2]


async def test_strict_can_be_turned_off():
    """Without strictness the recorded answers are given whatever is asked, those of other roles in their order."""

    def answer(request):
        return f"{request.role} {request.messages[-1].content}"

    sink = await played(ScriptedReplies(answer), [Stage(lambda number: Talk(2, asks=1))])
    [before] = sink.rollouts
    changed = Stage(lambda number: Talk(2, word="other", asks=1, about="What is"))
    loose = await replayed(sink, [changed], strict=False)
    [rollout] = loose.rollouts
    assert rollout.status is Status.OK
    said = [step.trace.policy_response for step in before.steps]
    assert [step.trace.policy_response for step in rollout.steps] == said
    assert [call.reply for call in rollout.calls] == [call.reply for call in before.calls]
    assert rollout.steps[0].trace.prompt[0].content == "other"


async def test_a_missing_rollout_is_named():
    """A rollout that is not in the record cannot be replayed, and the error names it."""
    sink = await played(counting(), [Stage(lambda number: Talk())])
    again = await replayed(sink, [Stage(lambda number: Talk(), task="another")])
    [rollout] = again.rollouts
    assert "replay has no rollout of env 'stage', task 'another'" in rollout.error.message
    assert "index 0" in rollout.error.message


async def test_failures_and_retries_are_replayed(tmp_path):
    """A recorded failure fails with the same words and raw reply; the next attempt is answered from its own record."""

    def fail(request):
        if request.identity.attempt == 0 and request.step == 1:
            error = PolicyError("the server went away")
            error.raw = "<html>"
            return error
        return f"turn {request.step}, attempt {request.identity.attempt}"

    sink = await played(ScriptedReplies(fail), [Stage(lambda number: Talk())], retries=1)
    again = await replayed(sink, [Stage(lambda number: Talk())], retries=1)
    failed, finished = again.rollouts
    assert (failed.attempt, failed.status, failed.pending_raw) == (0, Status.ERROR, "<html>")
    assert "PolicyError: the server went away" in failed.error.message
    assert (finished.attempt, finished.status) == (1, Status.OK)
    assert finished.steps[2].trace.policy_response.content == "turn 2, attempt 1"


async def test_a_turn_on_which_the_env_failed_is_replayed():
    """A turn that the env did not finish is replayed whole; an env that plays on is told that the record ends there."""
    call = ToolCall("look", '{"at": "door"}', id="c1")
    answer = Completion(
        message=Message("assistant", "", tool_calls=(call,), reasoning="hm"),
        termination=Termination.TOOL_CALLS,
        usage=Usage(3, 4),
    )

    class Falling(Talk):
        async def step(self, completion):
            if self.turn == 1:
                raise KeyError("the floor")
            return await super().step(completion)

    sink = await played(ScriptedReplies(["go", answer]), [Stage(lambda number: Falling())])
    [rollout] = (await replayed(sink, [Stage(lambda number: Falling())])).rollouts
    assert (rollout.steps[1].env_failure, rollout.error.type) == ("raised", "KeyError")
    assert (rollout.steps[1].trace.policy_response, rollout.steps[1].usage) == (answer.message, answer.usage)
    [rollout] = (await replayed(sink, [Stage(lambda number: Talk(2))])).rollouts
    assert (rollout.status, rollout.steps[1].env_failure) == (Status.OK, None)
    [rollout] = (await replayed(sink, [Stage(lambda number: Talk(3))])).rollouts
    assert "the record ends after 2 turns" in rollout.error.message


async def test_another_role_that_failed_inside_the_env_is_not_the_policys_next_turn():
    """If another role failed inside the env, the policy's turn is a recorded step, not a failed turn after it."""

    class Needy(Talk):
        async def step(self, completion):
            await ask("answerer", [Message("user", "Well?")])

    broken = ScriptedReplies(lambda request: "go" if request.role == "policy" else ValueError("no"))
    sink = await played(broken, [Stage(lambda number: Needy())])
    [rollout] = (await replayed(sink, [Stage(lambda number: Needy())])).rollouts
    assert (rollout.error.layer, rollout.steps[0].env_failure) == ("policy", "raised")
    [rollout] = (await replayed(sink, [Stage(lambda number: Talk(2))])).rollouts
    assert "the record ends after 1 turns" in rollout.error.message


async def test_an_overflow_is_replayed_as_one():
    """A prompt that did not fit the recorded policy does not fit its replay."""
    policy = ScriptedReplies(["fine", ContextOverflowError("too long")])
    sink = await played(policy, [Stage(lambda number: Talk())])
    [rollout] = (await replayed(sink, [Stage(lambda number: Talk())])).rollouts
    assert rollout.stop_reason == "context_overflow"
    assert rollout.reward == sink.rollouts[0].reward


async def test_the_same_question_asked_again_gets_the_next_answer():
    """Calls with equal prompts are answered in the order of the record, a failed one with its failure."""
    answers = iter(["one", PolicyError("lost"), "three"])

    def answer(request):
        if request.role == "policy":
            return "it"
        said = next(answers)
        return said if isinstance(said, Exception) else f"{said}!"

    sink = await played(ScriptedReplies(answer), [Stage(lambda number: Talk(1, asks=3))])
    [rollout] = (await replayed(sink, [Stage(lambda number: Talk(1, asks=3))])).rollouts
    first, second, third = rollout.steps[0].extra["heard"]
    assert (first, third) == ("one!", "three!")
    assert "PolicyError: lost" in second
    [rollout] = (await replayed(sink, [Stage(lambda number: Talk(1, asks=4))])).rollouts
    assert "the record has this call 3 ×, and now it was made once more" in rollout.steps[0].extra["heard"][3]


async def test_a_cut_reply_of_another_role_is_replayed_as_cut():
    """How the reply of a grader or answerer ended is replayed as it was, also in what a group's grader asked."""

    class Cutting(Talk):
        async def step(self, completion):
            answer = await ask("answerer", [Message("user", "And?")])
            return StepResult(1.0, True, extra={"ended": str(answer.termination)})

    class Graded(Stage):
        async def grade_group(self, rollouts):
            answer = await ask("grader", [Message("user", "Good?")])
            return {rollout.id: Grade(float(answer.termination is Termination.LENGTH)) for rollout in rollouts}

    def cut(request):
        return Completion(message=Message("assistant", "So"), termination=Termination.LENGTH)

    builders = [Graded(lambda number: Cutting())]
    again = await replayed(await played(ScriptedReplies(cut), builders), builders)
    [rollout] = again.rollouts
    assert rollout.steps[0].extra == {"ended": "length"}
    assert [call.termination for call in rollout.calls] == [Termination.LENGTH]
    [call] = [call for score in again.scores for call in score.calls]
    assert call.termination is Termination.LENGTH
    assert [score.value for score in again.scores if score.name == "reward"] == [2.0]


async def test_what_is_being_played_is_not_read_again():
    """The rollouts that were used last stay cached, whenever they were first read."""
    sink = await played(counting(), [Stage(lambda number: Talk(1), episodes=MAX_CACHED + 2)])
    read = []

    class Counting(InMemoryRecords):
        def get(self, rollout):
            read.append(rollout)
            return super().get(rollout)

    finder = ReplayIndex(Counting(sink.rollouts))
    first, *others = sink.rollouts
    for rollout in others:
        assert finder.rollout(first.identity).id == first.id
        assert finder.rollout(rollout.identity).id == rollout.id
    for rollout in reversed(others[1 - MAX_CACHED :]):
        finder.rollout(rollout.identity)
    assert read == [first.id, *(rollout.id for rollout in others)]


async def test_a_rollout_that_cannot_be_read_is_not_replayed():
    """If the last of several plays cannot be decoded, or is not what the table says, an earlier one is taken."""
    sink = await played(ScriptedReplies(lambda request: "one"), [Stage(lambda number: Talk(1))])
    first = sink.rollouts[0]
    unreadable, other = (replace(first, id=name, session=f"z{name}") for name in ("x", "y"))

    class Damaged(InMemoryRecords):
        def get(self, rollout):
            if rollout == "x":
                raise RecordError("Expected a record.")
            return replace(other, index=77) if rollout == "y" else super().get(rollout)

    assert ReplayIndex(Damaged([first, unreadable, other])).rollout(first.identity).id == first.id
    assert ReplayIndex(Damaged([unreadable, other])).rollout(first.identity) is None


async def test_extra_calls_of_the_policy_are_told_from_its_turns():
    """A call in the policy's own role is told from its turns by its prompt."""
    numbers = iter(range(100))
    policy = ScriptedReplies(lambda request: f"number {next(numbers)}")
    sink = await played(policy, [Stage(lambda number: Talk(2, asks=2, role="policy"))])
    [rollout] = (await replayed(sink, [Stage(lambda number: Talk(2, asks=2, role="policy"))])).rollouts
    assert [step.extra for step in rollout.steps] == [step.extra for step in sink.rollouts[0].steps]
    assert rollout.steps[1].extra == {"heard": ["number 4", "number 5"]}


async def test_calls_that_go_on_with_a_conversation_are_found():
    """A call that was recorded as a continuation is found by its whole prompt."""

    class Chatting(Talk):
        async def step(self, completion):
            history = []
            for number in range(3):
                history.append(Message("user", f"question {number}"))
                answer = await ask("answerer", history)
                history.append(answer.message)
            return StepResult(1.0, True, extra={"heard": [message.content for message in history]})

    chatty = ScriptedReplies(lambda request: f"{len(request.messages)} messages")
    sink = await played(chatty, [Stage(lambda number: Chatting())])
    [before] = sink.rollouts
    assert [call.continues_call for call in before.calls] == [None, 0, 1]
    [rollout] = (await replayed(sink, [Stage(lambda number: Chatting())])).rollouts
    assert rollout.steps[0].extra == before.steps[0].extra
    assert rollout.calls[2].reply == before.calls[2].reply


async def test_text_that_cannot_be_written_is_no_difference():
    """A lone surrogate is recorded as another character, and the question still matches."""
    sink = await played(counting(), [Stage(lambda number: Talk(word="go \ud800"))])
    [rollout] = (await replayed(sink, [Stage(lambda number: Talk(word="go \ud800"))])).rollouts
    assert rollout.status is Status.OK


async def test_the_later_session_counts():
    """If a restart played the same again, the later session's answers are used, whatever the order of the records."""
    old = await played(ScriptedReplies(["old"]), [Stage(lambda number: Talk(1))])
    new = await played(ScriptedReplies(["new"]), [Stage(lambda number: Talk(1))])
    sessions = [replace(rollout, session=f"s{n}") for n, rollout in enumerate([*old.rollouts, *new.rollouts])]
    for records in (sessions, sessions[::-1]):
        sink = await played(ReplayPolicy(InMemoryRecords(records)), [Stage(lambda number: Talk(1))])
        assert sink.rollouts[0].steps[0].trace.policy_response.content == "new"


def test_a_run_without_text_is_refused(tmp_path):
    """A run recorded as numbers is refused; in a run recorded in part as numbers, the error names the rollout."""
    play("arithmetic", "scripted:noisy", out=tmp_path / "numbers", trace="numbers")
    with pytest.raises(InputError, match="recorded as numbers: record with --trace full"):
        replay_policy(tmp_path / "numbers")
    play("arithmetic", "scripted:noisy", out=tmp_path / "some", groups=8, trace=Recording(fraction=0.5))
    replayed = replay_policy(tmp_path / "some")
    summary = play("arithmetic", replayed, out=tmp_path / "again", groups=8)
    hashed = [rollout for rollout in RunReader(tmp_path / "again").rollouts() if rollout.status is Status.ERROR]
    assert summary.statuses.keys() == {"ok", "error"}
    assert all("was recorded as numbers" in rollout.error.message for rollout in hashed)


def test_a_run_without_rollouts_is_refused(tmp_path):
    """A run without rollouts is refused."""
    create_run(tmp_path / "empty").close()
    with pytest.raises(InputError, match="got an empty one"):
        replay_policy(tmp_path / "empty")


@pytest.mark.parametrize("spec", ["replay", "replay:", "replay,strict=false"])
def test_a_replay_must_say_of_what(spec):
    """Without a run, the error says how to name one."""
    with pytest.raises(InputError, match="got none: use replay:RUN"):
        open_policy(spec)


def test_a_run_is_replayed_by_its_name(tmp_path):
    """`replay:RUN` is accepted wherever a policy is named, and takes `strict=false`."""
    play("arithmetic", "scripted:noisy", out=tmp_path / "first", groups=2)
    summary = play("arithmetic", f"replay:{tmp_path / 'first'}", out=tmp_path / "again", groups=2)
    assert summary.statuses == {"ok": 8}
    assert recount(tmp_path / "again") == recount(tmp_path / "first")
    other = play("arithmetic", f"replay:{tmp_path / 'first'}", out=tmp_path / "other", groups=2, seed=1)
    assert other.statuses == {"error": 8}
    play("guess_number", "scripted:noisy", out=tmp_path / "games")
    for suffix, statuses in (("", {"error": 4}), (",strict=false", {"ok": 4})):
        out = tmp_path / f"games{suffix}"
        changed = play(
            "guess_number", f"replay:{tmp_path / 'games'}{suffix}", out=out.with_suffix(".again"), args={"max_turns": 9}
        )
        assert changed.statuses == statuses


def test_a_replay_can_be_played_twice_and_closed(tmp_path):
    """One replaying policy works in several event loops, also after `close`."""
    play("preference", "scripted:noisy", out=tmp_path / "first")
    policy = replay_policy(tmp_path / "first")
    for name in ("second", "third"):
        play("preference", policy, out=tmp_path / name)
        asyncio.run(policy.close())
        assert recount(tmp_path / name) == recount(tmp_path / "first")
        assert rewards(tmp_path / name) == rewards(tmp_path / "first")


async def test_a_seat_that_is_played_in_a_role_is_replayed():
    """A seat that is played in a role has turns, not calls, and each seat is answered from its own record."""

    class Game(Stage):
        def role_of(self, seat):
            return "opponent" if seat else "policy"

    def game():
        return Game(lambda number: [Talk(2), Talk(2)], seats=2)

    sink = await played(ScriptedReplies(lambda request: f"{request.role} {request.step}"), [game()])
    again = await replayed(sink, [game()])
    said = {rollout.seat: [step.trace.policy_response.content for step in rollout.steps] for rollout in again.rollouts}
    assert said == {0: ["policy 0", "policy 1"], 1: ["opponent 0", "opponent 1"]}
