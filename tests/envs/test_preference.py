import json
import pickle

import pytest

from rolltrace.envs.preference import PreferenceTasks
from rolltrace.envs.user_envs import as_tasks
from rolltrace.errors import ContextOverflowError, DataError, InputError, UnknownNameError
from rolltrace.graders.judge import PolicyJudge
from rolltrace.graders.preference_grader import PreferenceGrader
from rolltrace.jobs.play import play as play_run
from rolltrace.query.run import open_run
from rolltrace.rollout.limits_and_penalties import Limits
from rolltrace.rollout.memory_sink import MemorySink
from rolltrace.rollout.runner import Runner
from rolltrace.testing.check_env import check_env
from rolltrace.testing.scripted import ScriptedReplies
from rolltrace.trace.message import Message, Sampling
from rolltrace.trace.stop_reasons import Termination
from stage import GradedStage, Stage, never, said


def write(tmp_path, *rows):
    path = tmp_path / "own.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def judge(request):
    """Prefers the answer with more occurrences of "good"."""
    a, b = (part.count("good") for part in request.messages[1].content.partition("<answer A ")[2].split("<answer B "))
    return f"Preference: {max(-1, min(1, (a - b) / 4))}"


async def play(builder, answers, **settings):
    """The rollouts in order, their rewards, and the score about the group."""
    sink = MemorySink()

    def answer(request):
        said = answers[request.identity.index]
        said = said[request.step] if isinstance(said, list) else said
        return said(request) if callable(said) else said

    runner = Runner(
        ScriptedReplies(answer), roles={"grader": ScriptedReplies(judge, name="judge")}, sink=sink, **settings
    )
    async for _ in runner.play([builder]):
        pass
    rollouts = sorted(sink.rollouts, key=lambda rollout: rollout.index)
    rewards = {score.rollout: score for score in sink.scores if score.name == "reward"}
    group = next((score for score in sink.scores if score.name == "group_grade"), None)
    return rollouts, [rewards.get(rollout.id) for rollout in rollouts], group


def test_the_shipped_prompts_are_varied():
    """The shipped prompts are many and all different, and some of them are conversations."""
    tasks = PreferenceTasks()
    builders = [tasks.builder(number, episodes=2, seed=0) for number in range(tasks.count)]
    assert len(builders) >= 24
    assert len({builder.task for builder in builders}) == len(builders)
    assert len({builder.messages for builder in builders}) == len(builders)
    assert {len(builder.messages) for builder in builders} == {1, 2, 3}
    assert len({builder.task_data["kind"] for builder in builders}) >= 5


async def test_a_group_by_hand():
    """Answers 0 to 2 say good so many times: mean of their matchups, one quarter for each further good."""
    builder = PreferenceTasks().builder(0, episodes=3, seed=0)
    rollouts, scores, group = await play(builder, ["bad", "good", "good good"])
    assert [score.value for score in scores] == pytest.approx([-0.375, 0.0, 0.375])
    assert scores[0].data["reward_data"]["preference"] == pytest.approx(-0.375)
    assert {one["opponent"] for one in scores[0].data["extra"]["matchups"]} == {rollouts[1].id, rollouts[2].id}
    assert group.value == pytest.approx(0)
    assert group.data["reward_data"]["agreement"] == 1.0
    assert len(group.calls) == 6
    for rollout in rollouts:
        assert (rollout.env, rollout.stop_reason) == ("preference", "completed")
        assert (rollout.reward, rollout.reward_so_far) == (None, 0.0)
        assert rollout.steps[0].metrics == {"well_formed": 1.0}
        assert rollout.env_args["chunk"] == 4
        assert rollout.steps[0].trace.prompt == builder.messages


def test_the_matchups_of_a_run_without_text(tmp_path):
    """A run recorded as numbers has all matchups: who met whom, on which side, and the score."""
    policy = ScriptedReplies(lambda request: ["bad", "good", "good good"][request.identity.index])
    roles = {"grader": ScriptedReplies(judge, name="judge")}
    play_run(PreferenceTasks(), policy, roles=roles, out=tmp_path / "run", group_size=3, trace="numbers")
    run = open_run(tmp_path / "run")
    place_of = {rollout.id: rollout.index for rollout in run.rollouts()}
    scores = list(run.scores())
    [group] = [score for score in scores if score.name == "group_grade"]
    extra = group.data["extra"]
    assert all(name.startswith("hashed:") for name in extra["ids"])
    assert extra["indexes"] == [0, 1, 2]
    met = {}
    for score in scores:
        for one in score.data["extra"]["matchups"] if score.rollout else ():
            assert one["opponent"].startswith("hashed:")
            if one["first"]:
                met[place_of[score.rollout], one["opponent_index"]] = one["score"]
    assert met == {(0, 1): -0.25, (0, 2): -0.5, (1, 0): 0.25, (1, 2): -0.25, (2, 0): 0.5, (2, 1): 0.25}
    assert {(row, column): extra["matrix"][row][column] for row, column in met} == met


async def test_every_way_out():
    """Truncated and malformed answers are compared and penalised, missing ones penalised, and failures left out."""
    answers = [
        "good",
        said("good good", Termination.LENGTH),
        said("bad", Termination.MALFORMED),
        ContextOverflowError("too long"),
        ValueError("broken"),
        lambda request: never(request),
    ]
    builder = PreferenceTasks(pattern="one_way").builder(0, episodes=6, seed=0)
    rollouts, scores, _ = await play(builder, answers, limits=Limits(timeout=60))
    assert [rollout.stop_reason for rollout in rollouts] == [
        "completed", "max_tokens", "completed", "context_overflow", "error", "timeout",
    ]  # fmt: skip
    assert scores[4] is None
    assert [score.value for score in scores[:3]] == pytest.approx([0.0, 0.375 - 1, -0.375 - 1])
    assert scores[3].value == pytest.approx(-0.1 - 1)
    assert scores[5].value == pytest.approx(-1)
    assert scores[3].data["extra"] == {"matchups": []}


async def test_a_file_of_ones_own(tmp_path):
    """A row has a prompt or messages; other keys go to the task's data, and not to the policy."""
    system = {"role": "system", "content": "Be brief."}
    path = write(
        tmp_path,
        {"id": 7, "prompt": "Why?", "secret": "unseen"},
        {"id": "talk", "messages": [system, {"role": "user", "content": "How?"}]},
    )
    tasks = PreferenceTasks(data=path)
    first, second = (tasks.builder(number, episodes=2, seed=0) for number in range(2))
    assert (first.task, first.messages, first.task_data) == ("7", (Message("user", "Why?"),), {"secret": "unseen"})
    assert second.messages == (Message("system", "Be brief."), Message("user", "How?"))
    rollouts, _, group = await play(first, ["good", "bad"])
    assert all("unseen" not in message.content for rollout in rollouts for message in rollout.messages)
    assert all("unseen" not in message.content for call in group.calls for message in call.prompt)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"id": "a"}, "expected a column `prompt` or `messages`"),
        ({"id": "a", "prompt": "x", "messages": [{"role": "user", "content": "x"}]}, "either `prompt` or `messages`"),
        ({"id": "a", "messages": []}, "at least one message"),
        ({"id": "", "prompt": "x"}, "`id`"),
        ({"id": "ok", "prompt": "x"}, "which line 1 has"),
    ],
)
def test_rows_that_will_not_do(tmp_path, row, message):
    """The error names file and line."""
    path = write(tmp_path, {"id": "ok", "prompt": "x"}, row)
    with pytest.raises(DataError, match=message) as raised:
        PreferenceTasks(data=path)
    assert str(raised.value).startswith(f"{path}:2: ")


def test_arguments_as_a_command_line_gives_them():
    """Text arguments are converted to the grader's types."""
    given = {"pattern": "one_way", "chunk": "3", "format_coef": "0.5", "tries": "2", "seconds": "9", "max_tokens": "64"}
    builder = as_tasks(PreferenceTasks, "preference", given).builder(0, episodes=2, seed=0)
    judge = PolicyJudge(tries=2, seconds=9.0, sampling=Sampling(temperature=0.0, max_tokens=64))
    assert builder.group_grader == PreferenceGrader(judge=judge, pattern="one_way", chunk=3, format_coef=0.5)
    assert builder.env_args["chunk"] == 3


@pytest.mark.parametrize(
    ("args", "error", "message"),
    [
        ({"pattern": "knockout"}, UnknownNameError, "both_ways"),
        ({"chunk": 1}, InputError, "2 or more"),
        ({"tries": 0}, InputError, "at least 1"),
        ({"seconds": 0}, InputError, "above 0"),
        ({"max_tokens": 0}, InputError, "max_tokens of at least 1, or None for no limit, got 0"),
        ({"max_tokens": -1}, InputError, "max_tokens of at least 1, or None for no limit, got -1"),
        ({"env": "calculator", "data": "x.jsonl"}, InputError, "env_args"),
        ({"env_args": {"data": "x"}}, InputError, "env=NAME"),
        ({"env": "no_such_env"}, UnknownNameError, "no_such_env"),
        ({"data": "no/such/file.jsonl"}, DataError, "no/such/file.jsonl"),
    ],
)
def test_arguments_that_make_no_sense(args, error, message):
    """Each is refused with what to do instead."""
    with pytest.raises(error, match=message):
        PreferenceTasks(**args)


async def test_any_other_env_can_be_compared():
    """Its tasks, prompts and rewards are kept; the tournament's grade is added, and the record names both."""
    tasks = PreferenceTasks(env="arithmetic", pattern="one_way", format_coef=0.0)
    builder = tasks.builder(0, episodes=2, seed=3)
    rollouts, scores, _ = await play(builder, ["good\nAnswer: none", "bad"])
    assert {rollout.env for rollout in rollouts} == {"preference"}
    assert rollouts[0].env_args["env"] == "arithmetic"
    assert rollouts[0].env_args["env_args"]
    assert "format" in rollouts[0].steps[0].reward_data
    assert [score.value for score in scores] == pytest.approx(
        [rollouts[0].reward_so_far + 0.25, rollouts[1].reward_so_far - 0.25]
    )
    assert rollouts[1].reward_so_far == pytest.approx(-0.1)


async def test_conversations_with_tools_can_be_compared():
    """The judge sees all turns of a member."""
    builder = PreferenceTasks(env="calculator", pattern="one_way").builder(0, episodes=2, seed=3)
    _, scores, group = await play(builder, ["good good", "bad"])
    assert [score.data["reward_data"]["preference"] for score in scores] == pytest.approx([0.5, -0.5])
    assert len(group.calls) == 1


def graded_stage():
    return GradedStage(lambda _: None)


def two_seats():
    return Stage(lambda _: None, seats=2)


@pytest.mark.parametrize(("function", "message"), [("graded_stage", "graded once"), ("two_seats", "one seat")])
def test_envs_that_cannot_be_compared(monkeypatch, function, message):
    """A group that has a grader, and a game between the members, are refused."""
    monkeypatch.setattr("rolltrace.envs.with_grader.load_env", lambda env, args: as_tasks(globals()[function], env, {}))
    tasks = PreferenceTasks(env=function)
    with pytest.raises(InputError, match=message):
        tasks.builder(0, episodes=2, seed=0)


def test_builders_pickle():
    """Builders pickle with their grader."""
    for tasks in (PreferenceTasks(chunk=3), PreferenceTasks(env="arithmetic")):
        builder = tasks.builder(0, episodes=2, seed=0)
        assert pickle.loads(pickle.dumps(builder)) == builder


@pytest.mark.parametrize("args", [{}, {"pattern": "one_way", "chunk": 2}, {"env": "arithmetic"}, {"env": "calculator"}])
def test_it_keeps_the_contract(args):
    """`check_env` finds no violation."""
    assert check_env(PreferenceTasks(**args).builder(0, episodes=5, seed=0)) == []
