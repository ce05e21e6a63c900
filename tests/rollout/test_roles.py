"""Other roles of an env: which policy plays them, how their calls are recorded, and how they fail."""

import asyncio
from types import SimpleNamespace

import pytest

from rolltrace.envs.env import Env, Observation, StepResult
from rolltrace.errors import GraderError, InputError, PolicyError, RoleError
from rolltrace.graders.grader import Grader, GroupGrade, GroupGrader
from rolltrace.policies.roles import ask, with_roles
from rolltrace.query.run import open_run
from rolltrace.rollout.limits_and_penalties import Limits
from rolltrace.rollout.memory_sink import MemorySink
from rolltrace.rollout.runner import Runner
from rolltrace.store.create import create_run
from rolltrace.store.recording import Recording
from rolltrace.testing.scripted import ScriptedReplies
from rolltrace.trace.blob import Blob
from rolltrace.trace.message import Message, Part, Sampling
from rolltrace.trace.score import Grade, GroupKey
from rolltrace.trace.stop_reasons import Layer, Status
from stage import Stage, never, play, recorded


class Asking(Env):
    """Asks its answerer about each reply, and ends after a given number of turns."""

    def __init__(self, turns=2, seconds=None, history=False):
        self.turns = turns
        self.seconds = seconds
        self.history = [] if history else None
        self.answers = []

    async def initial_observation(self):
        return Observation([Message("user", "go")])

    async def step(self, completion):
        question = {"role": "user", "content": f"about {completion.message.content}"}
        prompt = [question] if self.history is None else [*self.history, question]
        answer = await ask("answerer", prompt, sampling=Sampling(temperature=0.0), seconds=self.seconds)
        if self.history is not None:
            self.history = [*self.history, dict(question), answer.message]
        question["content"] = "changed afterwards"
        self.answers.append(answer.message.content)
        done = len(self.answers) == self.turns
        return StepResult(1.0, done, Observation([Message("user", answer.message.content)]))


def answering(**settings):
    return ScriptedReplies(
        lambda request: f"yes, {request.messages[-1].content}", name="answering", version=9, **settings
    )


def talking():
    return ScriptedReplies(lambda request: f"turn {request.step}", name="talking", version=1)


async def test_calls_are_recorded_with_their_step(tmp_path, monkeypatch):
    """A call records its role, policy, prompt, step, version and reply; turns are the policy's own."""
    now = 100.0
    monkeypatch.setattr("rolltrace.policies.roles.time", SimpleNamespace(perf_counter=lambda: now))

    def answer(request):
        nonlocal now
        now += 1.5
        return f"yes, {request.messages[-1].content}"

    answerer = ScriptedReplies(answer, name="answering", version=9)
    await play(tmp_path / "run", Stage(lambda number: Asking()), talking(), roles={"answerer": answerer})
    [rollout] = recorded(tmp_path / "run")
    assert rollout.policy == "talking"
    assert [step.policy_version for step in rollout.steps] == [1, 1]
    assert [(call.role, call.policy, call.policy_version, call.step) for call in rollout.calls] == [
        ("answerer", "answering", 9, 0), ("answerer", "answering", 9, 1),
    ]  # fmt: skip
    assert [[message.content for message in call.prompt] for call in rollout.calls] == [
        ["about turn 0"], ["about turn 1"],
    ]  # fmt: skip
    assert [call.reply.content for call in rollout.calls] == ["yes, about turn 0", "yes, about turn 1"]
    assert all(call.usage.completion_tokens == 4 and call.seconds == 1.5 for call in rollout.calls)


async def test_a_conversation_with_a_role_is_stored_once(tmp_path):
    """A prompt that continues an earlier call stores only its new messages, so that text grows linearly."""
    make = lambda number: Asking(turns=30, history=True)  # noqa: E731
    await play(tmp_path / "run", Stage(make), talking(), roles={"answerer": answering()})
    [rollout] = recorded(tmp_path / "run")
    assert [call.continues_call for call in rollout.calls] == [None, *range(29)]
    assert [[message.content for message in call.prompt] for call in rollout.calls] == [
        [f"about turn {number}"] for number in range(30)
    ]


async def test_a_prompt_that_is_not_the_earlier_one_is_whole():
    """A prompt is shortened only if it continues the same conversation; a changed one is stored whole."""
    with with_roles(talking(), answerer=answering()) as calls:
        first = await ask("answerer", [Message("user", "a")])
        await ask("answerer", [Message("user", "a"), first.message, Message("user", "b")])
        await ask("answerer", [Message("user", "A"), first.message, Message("user", "b")])
        await ask("grader", [Message("user", "a"), first.message, Message("user", "b")])
    assert [(call.continues_call, len(call.prompt)) for call in calls] == [(None, 1), (0, 1), (None, 3), (None, 3)]


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0)])
async def test_several_conversations_with_a_role_are_told_apart(order):
    """Each question continues its own conversation, in whatever order the answers came."""
    turns = {number: asyncio.Event() for number in range(3)}

    async def answer(request):
        await turns[int(request.messages[0].content[-1])].wait()
        await asyncio.sleep(0)
        return "the same"

    async def talk(number):
        messages = [Message("user", f"about {number}")]
        reply = await ask("grader", messages)
        return await ask("grader", [*messages, reply.message, Message("user", "sure?")])

    with with_roles(ScriptedReplies(answer)) as calls:
        talks = [asyncio.create_task(talk(number)) for number in range(3)]
        await asyncio.sleep(0)
        for number in order:
            turns[number].set()
            await talks[number]
    assert [call.continues_call for call in calls] == [None, None, None, *order]
    assert [len(call.prompt) for call in calls] == [1] * 6


async def test_a_role_without_a_policy_is_played_by_the_policy(tmp_path):
    """A role that was given no policy is played by the policy itself, and the record says so."""
    await play(tmp_path / "run", Stage(lambda number: Asking(turns=1)), talking())
    [rollout] = recorded(tmp_path / "run")
    assert [(call.role, call.policy) for call in rollout.calls] == [("answerer", "talking")]


def test_roles_are_checked():
    """A role whose policy lacks the interface is refused before anything is played."""
    with pytest.raises(PolicyError, match="complete"):
        Runner(talking(), roles={"grader": type("Named", (), {"name": "x"})()}, sink=MemorySink())
    with pytest.raises(InputError, match="'policy'"):
        Runner(talking(), roles={"policy": talking()}, sink=MemorySink())


async def test_asking_outside_a_runner():
    """Outside a runner the error says to use `with_roles`."""
    with pytest.raises(PolicyError, match="with with_roles"):
        await ask("grader", [Message("user", "?")])


@pytest.mark.parametrize("failing", [ValueError("the server is down"), "time-out", "no completion"])
async def test_a_role_that_fails_is_the_policys_failure(tmp_path, failing):
    """The failure names the role, its policy and the error, and its layer is the policy; the call is recorded."""
    answers = {
        "time-out": lambda request: never(),
        "no completion": lambda request: None,
    }
    answerer = ScriptedReplies(answers.get(failing, lambda request: failing), name="broken")
    if failing == "no completion":
        answerer.complete = answerer.reply = lambda request: asyncio.sleep(0, "not a completion")
    await play(tmp_path / "run", Stage(lambda number: Asking(seconds=60.0)), talking(), roles={"answerer": answerer})
    [rollout] = recorded(tmp_path / "run")
    expected = {"time-out": "TimeoutError: no answer within 60.0 s", "no completion": "PolicyError"}
    assert (rollout.status, rollout.error.layer, rollout.error.type) == (Status.ERROR, Layer.POLICY, "RoleError")
    assert "answerer" in rollout.error.message
    assert "'broken'" in rollout.error.message
    assert expected.get(failing, "ValueError: the server is down") in rollout.error.message
    [call] = rollout.calls
    assert (call.reply, call.error.layer) == (None, Layer.POLICY)
    assert call.error.type in rollout.error.message
    [step] = rollout.steps
    assert (step.env_failure, step.trace.policy_response.content) == ("raised", "turn 0")


async def test_an_env_may_catch_a_failed_role(tmp_path):
    """If an env catches the error, the rollout is ok; the failed call is still recorded."""

    class Content(Asking):
        async def step(self, completion):
            try:
                return await super().step(completion)
            except RoleError:
                return StepResult(0.5, done=True)

    broken = ScriptedReplies(lambda request: ValueError("no"), name="broken")
    await play(tmp_path / "run", Stage(lambda number: Content()), talking(), roles={"answerer": broken})
    [rollout] = recorded(tmp_path / "run")
    assert (rollout.status, rollout.reward) == (Status.OK, 0.5)
    assert [call.error.message for call in rollout.calls] == ["no"]


async def test_a_retry_asks_again_with_calls_of_its_own(tmp_path):
    """Each attempt has its own calls."""
    tries = []

    def answer(request):
        tries.append(request)
        return ValueError("no") if len(tries) == 1 else "yes"

    answerer = ScriptedReplies(answer, name="answerer")
    stage = Stage(lambda number: Asking(turns=1))
    await play(tmp_path / "run", stage, talking(), roles={"answerer": answerer}, retries=1)
    first, second = recorded(tmp_path / "run")
    assert [call.error is None for call in first.calls] == [False]
    assert [call.error is None for call in second.calls] == [True]
    assert tries[0].seed != tries[1].seed
    assert [tries[0].identity.id, tries[1].identity.id] == [first.id, second.id]


async def test_a_call_in_flight_is_recorded_on_cancellation(tmp_path):
    """A cancelled rollout records the call that was not answered."""
    asked = asyncio.Event()

    async def answer(request):
        asked.set()
        await asyncio.Event().wait()

    runner = Runner(talking(), roles={"answerer": ScriptedReplies(answer)}, sink=(sink := MemorySink()))

    async def all_of(builders):
        return [group async for group in runner.play(builders)]

    task = asyncio.create_task(all_of([Stage(lambda number: Asking())]))
    await asked.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    [rollout] = sink.rollouts
    assert (rollout.status, [call.error.type for call in rollout.calls]) == (Status.CANCELLED, ["CancelledError"])


async def test_parallel_questions_are_recorded_in_the_order_of_asking(tmp_path):
    """Calls are in the order of asking, whichever answer comes first, and each has a seed independent of the others."""

    class Parallel(Grader):
        async def grade(self, rollout):
            replies = await asyncio.gather(*(ask("grader", [Message("user", str(n))]) for n in range(5)))
            return Grade(float(sum(int(reply.message.content) for reply in replies)))

    seeds = {}

    async def answer(request):
        number = int(request.messages[0].content)
        for _ in range(5 - number):
            await asyncio.sleep(0)
        seeds.setdefault(number, set()).add(request.seed)
        return str(number)

    for run in ("first", "again"):
        roles = {"answerer": answering(), "grader": ScriptedReplies(answer)}
        await play(tmp_path / run, Stage(lambda number: Asking(), grader=Parallel()), talking(), roles=roles)
        [rollout] = recorded(tmp_path / run)
        calls = [call for call in rollout.calls if call.role == "grader"]
        assert [call.prompt[0].content for call in calls] == ["0", "1", "2", "3", "4"]
        assert [call.reply.content for call in calls] == ["0", "1", "2", "3", "4"]
        assert [call.step for call in calls] == [None] * 5
        assert rollout.reward == 2.0 + 10.0
    assert [len(each) for each in seeds.values()] == [1] * 5
    assert len(set.union(*seeds.values())) == 5


async def test_the_same_question_again_has_another_seed():
    """Asking the same question twice uses two seeds, so that the second answer may differ."""
    seeds = []
    policy = ScriptedReplies(lambda request: seeds.append(request.seed) or "x")
    with with_roles(policy):
        await ask("grader", [Message("user", "?")])
        await ask("grader", [Message("user", "?")])
    assert seeds[0] != seeds[1]


@pytest.mark.parametrize("concurrency", [1, 3])
async def test_concurrency_bounds_the_other_roles_too(concurrency):
    """The bound counts requests of all roles together, and a low bound does not deadlock."""
    in_flight = most = 0

    async def answer(request):
        nonlocal in_flight, most
        in_flight += 1
        most = max(most, in_flight)
        await asyncio.sleep(0)
        in_flight -= 1
        return "x"

    class Parallel(Grader):
        async def grade(self, rollout):
            await asyncio.gather(*(ask("grader", [Message("user", str(n))]) for n in range(5)))
            return Grade(1.0)

    runner = Runner(ScriptedReplies(answer), sink=MemorySink(), concurrency=concurrency)
    stage = Stage(lambda number: Asking(), episodes=6, grader=Parallel())
    [group] = [group async for group in runner.play([stage])]
    assert group.rewards == [3.0] * 6
    assert most == concurrency


async def test_waiting_at_the_gate_is_not_the_rollouts_time(tmp_path):
    """The rollout's clock is paused while its questions wait for a request slot, also several at once."""

    class Parallel(Asking):
        async def step(self, completion):
            await asyncio.gather(*(ask("answerer", [Message("user", str(n))]) for n in range(3)))
            return StepResult(1.0, done=True)

    loop = asyncio.get_running_loop()
    clock = loop.time
    offset = 0.0
    loop.time = lambda: clock() + offset

    async def answer(request):
        nonlocal offset
        await asyncio.sleep(0)
        offset += 4.0
        return "x"

    stage = Stage(lambda number: Parallel(), episodes=3)
    settings = {"roles": {"answerer": ScriptedReplies(answer)}, "concurrency": 1, "limits": Limits(timeout=13.0)}
    await play(tmp_path / "run", stage, talking(), **settings)
    assert [rollout.stop_reason for rollout in recorded(tmp_path / "run")] == ["completed"] * 3


# Graders


class Failing(Grader):
    async def grade(self, rollout):
        await ask("grader", [Message("user", "good?")])
        raise GraderError("cannot say")


@pytest.mark.parametrize("reply", ["fine", ValueError("down")])
async def test_a_grader_that_fails_keeps_its_calls(tmp_path, reply):
    """The failure is the grader's, also if its model failed, and its calls are recorded."""
    roles = {"answerer": answering(), "grader": ScriptedReplies(lambda request: reply, name="judge")}
    await play(tmp_path / "run", Stage(lambda number: Asking(), grader=Failing()), talking(), roles=roles)
    [rollout] = recorded(tmp_path / "run")
    assert (rollout.status, rollout.error.layer) == (Status.ERROR, Layer.GRADER)
    assert rollout.error.type == ("GraderError" if reply == "fine" else "RoleError")
    [call] = [call for call in rollout.calls if call.role == "grader"]
    assert (call.step, call.policy) == (None, "judge")
    assert (call.reply is None) == (reply != "fine")


class Judging(GroupGrader):
    """Asks about each member, and returns data about the group."""

    def __init__(self, spoil=()):
        self.spoil = spoil

    async def grade_group(self, rollouts):
        grades = {}
        for rollout in rollouts:
            reply = await ask("grader", [Message("user", f"how good is {rollout.index}?")])
            grade = Grade(float(reply.message.content))
            grades[rollout.id] = GraderError(f"no grade for {rollout.id}") if rollout.index in self.spoil else grade
        return GroupGrade(grades, {"pairs": 3}, {"matrix": [[0.0, float("nan")]]})


def judged(**settings):
    stage = Stage(lambda number: Asking(turns=1), episodes=3)
    stage.group_grader = Judging(**settings)
    return stage


def judge(request):
    return request.messages[0].content[-2]


async def test_a_group_grader_is_recorded_with_its_calls(tmp_path):
    """Each member has its grade; one score about the group has the calls, numbers and extra data."""
    roles = {"answerer": answering(), "grader": ScriptedReplies(judge, name="judge")}
    [group] = await play(tmp_path / "run", judged(), talking(), roles=roles)
    assert group.rewards == [1.0, 2.0, 3.0]
    with open_run(tmp_path / "run") as run:
        scores = {score.name: score for score in run.scores() if score.group is not None}
        assert scores.keys() == {"group_grade"}
        score = scores["group_grade"]
        assert (score.value, score.rollout, score.error) == (1.0, None, None)
        assert score.group == GroupKey("train", 0, "stage", "task")
        assert score.data["reward_data"] == {"pairs": 3}
        assert str(score.data["extra"]["matrix"]) == "[[0.0, nan]]"
        assert [call.prompt[0].content for call in score.calls] == [f"how good is {n}?" for n in range(3)]
        assert [call.reply.content for call in score.calls] == ["0", "1", "2"]
        assert run.sql("select count(*) from calls where role = 'grader' and score is not null").fetchall() == [(3,)]


async def test_an_exception_in_place_of_a_grade_costs_one_member(tmp_path):
    """The member without a grade has a null score with the grader's error; the others keep theirs."""
    roles = {"answerer": answering(), "grader": ScriptedReplies(judge)}
    [group] = await play(tmp_path / "run", judged(spoil=(1,)), talking(), roles=roles)
    assert [member.reward for member in group.members] == [1.0, None, 3.0]
    spoilt = group.members[1]
    assert spoilt.grade_failure.layer is Layer.GRADER
    with open_run(tmp_path / "run") as run:
        rewards = {score.rollout: score for score in run.scores() if score.name == "reward"}
        assert [rewards[member.id].value for member in group.members] == [1.0, None, 3.0]
        failure = rewards[spoilt.id].error
        assert (failure.layer, failure.type, failure.message) == (
            Layer.GRADER, "GraderError", f"no grade for {spoilt.id}",
        )  # fmt: skip


async def test_a_group_grader_whose_model_fails_keeps_its_calls(tmp_path):
    """All members have a null score with the reason, and the group's score has the calls up to the failure."""
    roles = {"answerer": answering(), "grader": ScriptedReplies(lambda request: ValueError("down"), name="judge")}
    [group] = await play(tmp_path / "run", judged(), talking(), roles=roles)
    assert group.rewards == [None] * 3
    with open_run(tmp_path / "run") as run:
        [score] = [score for score in run.scores() if score.name == "group_grade"]
    assert (score.value, score.error.layer, score.error.type) == (None, Layer.GRADER, "RoleError")
    assert [call.error.message for call in score.calls] == ["down"]


@pytest.mark.parametrize("given", [GroupGrade([]), GroupGrade({}, reward_data=3), GroupGrade({}, extra=[])])
async def test_a_group_grade_of_the_wrong_shape_is_the_graders_failure(tmp_path, given):
    """A group grade of the wrong types grades no member, and each has the GraderError."""

    class Wrong(GroupGrader):
        async def grade_group(self, rollouts):
            return given

    stage = judged()
    stage.group_grader = Wrong()
    [group] = await play(tmp_path / "run", stage, talking())
    assert {member.grade_failure.type for member in group.members} == {"GraderError"}


async def test_scores_of_a_fully_recorded_group_are_recorded_fully(tmp_path):
    """If a fraction of groups is recorded with text, their scores and their grader's calls are too."""
    picture = Blob.of(b"\x89PNG")

    class Showing(Judging):
        async def grade_group(self, rollouts):
            await ask("grader", [Message("user", "look", parts=(Part("image", blob=picture),))])
            grades = {rollout.id: Grade(1.0, {}, {"opponent": "someone"}) for rollout in rollouts}
            return GroupGrade(grades, {}, {"text": "a word"})

    kept = {}
    for share in (0.5, 1.0):
        with create_run(tmp_path / str(share), trace=Recording(fraction=share)) as run:
            runner = Runner(talking(), sink=run)
            stages = [Stage(lambda number: Asking(turns=1), task=str(n)) for n in range(8)]
            for stage in stages:
                stage.group_grader = Showing()
            async for _ in runner.play(stages):
                pass
        with open_run(tmp_path / str(share)) as opened:
            groups = {rollout.id: rollout.group for rollout in opened.rollouts()}
            full = {rollout.group for rollout in opened.rollouts() if rollout.messages[0].content == "go"}
            for score in opened.scores():
                group = groups[score.rollout] if score.group is None else score.group.group
                extra = score.data["extra"]
                assert (set(extra.values()) <= {"someone", "a word"}) == (group in full)
                for call in score.calls:
                    assert (call.prompt[0].content == "look") == (group in full)
                    if group in full:
                        assert opened.blob(call.prompt[0].parts[0].blob.name) == b"\x89PNG"
            kept[share] = len(full)
    assert 0 < kept[0.5] < kept[1.0] == 8


# Seats


class Seated(Env):
    async def initial_observation(self):
        return Observation([Message("user", "your move")])

    async def step(self, completion):
        return StepResult(0.0, done=True, extra={"said": completion.message.content})


class Game(Stage):
    def role_of(self, seat):
        return "policy" if seat == 0 else "opponent"


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ((), ["talking"] * 3),
        (("opponent",), ["talking", "opponent", "opponent"]),
        (("opponent", "seat2"), ["talking", "opponent", "seat2"]),
        (("seat0",), ["seat0", "talking", "talking"]),
    ],
)
async def test_each_seat_has_its_policy(tmp_path, given, expected):
    """A seat's policy is that of `seatN`, else of its role, else the policy itself; record and request agree."""
    roles = {role: ScriptedReplies(lambda request: request.role, name=role, version=role) for role in given}
    policy = ScriptedReplies(lambda request: request.role, name="talking", version="talking")
    stage = Game(lambda number: [Seated(), Seated(), Seated()], episodes=2, seats=3)
    await play(tmp_path / "run", stage, policy, roles=roles)
    rollouts = recorded(tmp_path / "run")
    assert [rollout.policy for rollout in rollouts] == expected * 2
    assert [rollout.policy_version for rollout in rollouts] == expected * 2
    assert [rollout.steps[0].policy_version for rollout in rollouts] == expected * 2
    assert [rollout.steps[0].extra["said"] for rollout in rollouts] == ["policy", "opponent", "opponent"] * 2


async def test_the_raw_reply_of_a_failed_policy_is_kept(tmp_path):
    """A policy's error may carry the raw reply; it is recorded, for the policy itself and for other roles."""

    def broken(request):
        error = PolicyError("the reply is no JSON")
        error.raw = "<html>"
        return error

    await play(tmp_path / "own", Stage(lambda number: Asking()), ScriptedReplies(broken))
    [rollout] = recorded(tmp_path / "own")
    assert (rollout.error.type, rollout.pending_raw) == ("PolicyError", "<html>")
    await play(
        tmp_path / "other", Stage(lambda number: Asking()), talking(), roles={"answerer": ScriptedReplies(broken)}
    )
    [rollout] = recorded(tmp_path / "other")
    assert [call.raw for call in rollout.calls] == ["<html>"]


@pytest.mark.parametrize("wanted", [True, False])
async def test_a_request_says_whether_tokens_are_recorded(tmp_path, wanted):
    """A request asks for tokens only if they are recorded."""
    requests = []
    with create_run(tmp_path / "run", trace=Recording(tokens=wanted)) as run:
        runner = Runner(ScriptedReplies(lambda request: requests.append(request) or "x"), sink=run)
        async for _ in runner.play([Stage(lambda number: Asking(turns=1))]):
            pass
    assert [(request.role, request.include_tokens) for request in requests] == [("policy", wanted), ("answerer", False)]


async def test_unused_roles_and_roles_of_the_policy_are_known(tmp_path):
    """The runner lists roles that were given and never asked (misspelt?), and those that the policy played itself."""
    runner = Runner(talking(), roles={"answerrer": answering(), "seat1": answering()}, sink=MemorySink())
    async for _ in runner.play([Stage(lambda number: Asking(turns=1))]):
        pass
    assert runner.roles.unused == ["answerrer", "seat1"]
    assert runner.roles.played_by_policy == ["answerer"]
    runner = Runner(talking(), roles={"seat1": answering()}, sink=MemorySink())
    async for _ in runner.play([Game(lambda number: [Seated(), Seated()], seats=2)]):
        pass
    assert (runner.roles.unused, runner.roles.played_by_policy) == ([], [])


async def test_only_a_game_has_numbered_seats(tmp_path):
    """An env with one seat is played by the policy, even if `seat0` was given; an env may ask seats of its own game."""

    class Inside(Asking):
        async def step(self, completion):
            replies = [await ask("opponent", [Message("user", "move")], seat=seat) for seat in (1, 2)]
            return StepResult(0.0, done=True, extra={"said": [reply.message.content for reply in replies]})

    def saying(text):
        return ScriptedReplies([text], name=text)

    roles = {"seat0": saying("zero"), "seat1": saying("one"), "opponent": saying("other")}
    await play(tmp_path / "run", Stage(lambda number: Inside()), talking(), roles=roles)
    [rollout] = recorded(tmp_path / "run")
    assert rollout.policy == "talking"
    assert rollout.steps[0].extra["said"] == ["one", "other"]
    assert [(call.role, call.policy) for call in rollout.calls] == [("opponent", "one"), ("opponent", "other")]


async def test_losses_in_calls_are_noted(tmp_path):
    """A value of a call that could not be recorded has a note, in the rollout's record or the group's score."""

    class Odd(Asking):
        async def step(self, completion):
            await ask("answerer", [{"role": "user", "content": object()}])
            return StepResult(0.0, done=True)

    class Judge(GroupGrader):
        async def grade_group(self, rollouts):
            await ask("grader", [{"role": "user", "content": object()}])
            return {rollout.id: Grade(1.0) for rollout in rollouts}

    stage = Stage(lambda number: Odd())
    stage.group_grader = Judge()
    await play(tmp_path / "run", stage, talking())
    [rollout] = recorded(tmp_path / "run")
    assert {note.path for note in rollout.notes} == {"calls[0].prompt[0].content"}
    with open_run(tmp_path / "run") as run:
        [score] = [score for score in run.scores() if score.name == "group_grade"]
    assert {note["path"] for note in score.data["notes"]} == {"calls[0].prompt[0].content"}


async def test_builders_may_come_later():
    """An async iterable of builders is drawn from as slots become free."""

    async def later():
        for number in range(3):
            await asyncio.sleep(0)
            yield Stage(lambda number: Asking(turns=1), task=str(number))

    runner = Runner(talking(), sink=MemorySink(), concurrency=1)
    assert sorted([group.task async for group in runner.play(later())]) == ["0", "1", "2"]


async def test_the_version_is_the_one_that_was_asked(tmp_path):
    """The version is the one when the request was sent, even if it changes before a reply that names none."""

    def moving(name):
        async def answer(request):
            policies[name].version = 7
            return "x"

        return ScriptedReplies(answer, name=name)

    policies = {name: moving(name) for name in ("player", "answerer")}
    stage = Stage(lambda number: Asking(turns=1))
    await play(tmp_path / "run", stage, policies["player"], roles={"answerer": policies["answerer"]})
    [rollout] = recorded(tmp_path / "run")
    assert [step.policy_version for step in rollout.steps] == [None]
    assert [call.policy_version for call in rollout.calls] == [None]
