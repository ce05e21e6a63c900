"""The built-in `rubric`: prompts with criteria, or any environment with a rubric in addition to its own rewards."""

import json
import pickle

import pytest

from rolltrace.envs.registry import load_env
from rolltrace.envs.rubric import RubricTasks, read_criteria
from rolltrace.errors import DataError, InputError
from rolltrace.graders.rubric_grader import Criterion
from rolltrace.jobs.play import play
from rolltrace.query.run import open_run
from rolltrace.rollout.limits_and_penalties import Limits
from rolltrace.rollout.memory_sink import MemorySink
from rolltrace.rollout.runner import Runner
from rolltrace.testing.check_env import check_env
from rolltrace.testing.scripted import ScriptedReplies
from rolltrace.trace.message import Message, ToolCall
from rolltrace.trace.stop_reasons import Termination
from stage import never, said

SPEC = "rolltrace.envs.rubric:RubricTasks"
ROW = {
    "id": "thanks",
    "prompt": "Say thanks.",
    "criteria": [{"text": "Is kind.", "weight": 3, "name": "kind"}, {"text": "Is long.", "weight": -1}],
    "source": "me",
}


def write(tmp_path, *rows, name="own.jsonl"):
    path = tmp_path / name
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def one(tmp_path, episodes=1, **settings):
    return RubricTasks(data=write(tmp_path, ROW), **settings).builder(0, episodes=episodes, seed=0)


def judging(kind, long="Score: 0"):
    """A policy in the role of the grader; either score may be a function of the graded text."""

    def reply(request):
        asked = request.messages[1].content
        says = kind if "\nIs kind." in asked else long
        return says(asked) if callable(says) else says

    return ScriptedReplies(reply, name="judge")


async def play_group(builder, policy, grader, **settings):
    """The recorded rollouts by index, and the group."""
    sink = MemorySink()
    (group,) = [
        group async for group in Runner(policy, roles={"grader": grader}, sink=sink, **settings).play([builder])
    ]
    return sorted(sink.rollouts, key=lambda rollout: rollout.index), group


async def play_one(builder, policy, grader, **settings):
    (rollout,), _ = await play_group(builder, policy, grader, **settings)
    return rollout


def test_the_shipped_rubrics_are_varied():
    """The shipped tasks are many and all different, each with criteria, some of which are penalties."""
    tasks = RubricTasks()
    shipped = [tasks.builder(number, episodes=1, seed=0) for number in range(tasks.count)]
    assert len(shipped) >= 24
    assert len({builder.messages for builder in shipped}) == len(shipped)
    assert all(len(builder.grader.criteria) >= 2 for builder in shipped)
    weights = [criterion.weight for builder in shipped for criterion in builder.grader.criteria]
    assert min(weights) < 0 < max(weights)
    assert all(any(criterion.weight > 0 for criterion in builder.grader.criteria) for builder in shipped)


async def test_a_play_by_hand(tmp_path):
    """(3 × 0.75 − 1 × 0.25) / 4 = 0.5; the record has every number, text, prompt and reply."""
    grader = judging("Rather.\nScore: 0.75", "Score: 0.25")
    rollout = await play_one(one(tmp_path), ScriptedReplies("Thank you."), grader)
    assert (rollout.reward, rollout.status, rollout.stop_reason) == (0.5, "ok", "completed")
    assert (rollout.env, rollout.task, rollout.policy) == ("rubric", "thanks", "scripted")
    assert rollout.grade.reward_data == {"kind": 0.75, "criterion_1": 0.25, "rubric": 0.5, "format": 1.0}
    assert all("reply" not in about for about in rollout.grade.extra["criteria"])
    assert [call.about for call in rollout.calls] == [about["name"] for about in rollout.grade.extra["criteria"]]
    assert [(call.role, call.policy, call.reply.content, call.step) for call in rollout.calls] == [
        ("grader", "judge", "Rather.\nScore: 0.75", None), ("grader", "judge", "Score: 0.25", None),
    ]  # fmt: skip
    assert all("Thank you." in call.prompt[1].content for call in rollout.calls)
    assert rollout.task_data == {
        "source": "me",
        "criteria": [
            {"text": "Is kind.", "weight": 3.0, "name": "kind"}, {"text": "Is long.", "weight": -1.0, "name": None},
        ],
    }  # fmt: skip
    assert rollout.env_args["data"].endswith("own.jsonl")
    assert rollout.env_args["format_coef"] == 0.1


@pytest.mark.parametrize(
    ("termination", "stop_reason", "reward"),
    [
        (Termination.EOS, "completed", 0.75),
        (Termination.LENGTH, "max_tokens", 0.65),
        (Termination.MALFORMED, "completed", 0.65),
    ],
)
async def test_cut_and_malformed_responses_are_graded(tmp_path, termination, stop_reason, reward):
    """Truncated and malformed responses lose 0.1 through the format, and keep what the criteria give."""
    rollout = await play_one(one(tmp_path), ScriptedReplies([said("Thank you.", termination)]), judging("1"))
    assert (rollout.reward, rollout.stop_reason) == (pytest.approx(reward), stop_reason)
    assert rollout.grade.reward_data["rubric"] == 0.75
    assert rollout.grade.reward_data["format"] == (1.0 if termination is Termination.EOS else 0.0)


async def test_a_prompt_that_does_not_fit_is_not_graded(tmp_path):
    """There is nothing to grade, and the grader is not asked."""
    rollout = await play_one(one(tmp_path), ScriptedReplies("x"), judging("1"), limits=Limits(context_length=3))
    assert (rollout.stop_reason, rollout.reward, rollout.grade, rollout.calls) == ("context_overflow", -0.1, None, ())


async def test_a_policy_that_fails_is_not_graded(tmp_path):
    """The failure is the policy's, and the grader is not asked."""
    rollout = await play_one(one(tmp_path), ScriptedReplies([ValueError("no")]), judging("1"))
    assert (rollout.error.layer, rollout.reward, rollout.calls) == ("policy", None, ())


async def test_a_failed_member_leaves_the_others_alone(tmp_path):
    """If one member cannot be graded, its failure names grader and rollout; the others keep their rewards."""

    def kind(asked):
        return "I would rather not." if "reply 2" in asked else "Score: 1"

    policy = ScriptedReplies(lambda request: f"reply {request.identity.index}")
    members, group = await play_group(one(tmp_path, episodes=4, tries=2), policy, judging(kind))
    assert [member.reward for member in members] == [0.75, 0.75, None, 0.75]
    assert group.rewards == [0.75, 0.75, None, 0.75]
    failed = members[2]
    assert (failed.status, failed.stop_reason, failed.grade) == ("error", "error", None)
    assert (failed.error.layer, failed.error.type) == ("grader", "GraderError")
    assert f"criterion 'kind' ('Is kind.') of rollout {failed.id}, got none in 2 tries" in failed.error.message
    assert "'I would rather not.'" in failed.error.message
    assert failed.steps[0].trace.policy_response == Message("assistant", "reply 2")
    said_by_grader = sorted(call.reply.content for call in failed.calls)
    assert said_by_grader == ["I would rather not.", "I would rather not.", "Score: 0"]
    assert [len(member.calls) for member in members] == [2, 2, 3, 2]


@pytest.mark.parametrize(
    ("says", "kind", "what"),
    [
        ("Score: NaN", "GraderError", "not a number from 0 to 1: 'Score: NaN'"),
        ("%%%", "GraderError", "not a number from 0 to 1: '%%%'"),
        (RuntimeError("out of order"), "GraderError", "did not answer: RuntimeError: out of order"),
        (never, "GraderError", "did not answer: TimeoutError: no answer within 20.0 s"),
    ],
)
async def test_a_grader_that_never_gives_a_score(tmp_path, says, kind, what):
    """Nonsense, NaN, an exception and a time-out are failures of the grader, with the calls in the record."""
    grader = judging(lambda asked: says() if says is never else says)
    rollout = await play_one(one(tmp_path, tries=2, seconds=20.0), ScriptedReplies("Thank you."), grader)
    assert (rollout.error.layer, rollout.error.type, rollout.reward) == ("grader", kind, None)
    assert rollout.id in rollout.error.message
    assert what in rollout.error.message
    assert rollout.reward_so_far == 0.0
    calls = [call for call in rollout.calls if call.reply is None or call.reply.content != "Score: 0"]
    assert len(calls) == 2
    assert all(call.reply is not None or call.error is not None for call in calls)


async def test_a_retry_that_succeeds(tmp_path):
    """A score at the second try counts in full; both tries are recorded, in one conversation."""

    def reply(request):
        if "\nIs long." in request.messages[1].content:
            return "0"
        return "Score: high" if len(request.messages) == 2 else "Score: 1"

    rollout = await play_one(one(tmp_path), ScriptedReplies("Thank you."), ScriptedReplies(reply, name="judge"))
    assert rollout.reward == 0.75
    assert [about["tries"] for about in rollout.grade.extra["criteria"]] == [2, 1]
    assert [call.reply.content for call in rollout.calls] == ["Score: high", "0", "Score: 1"]
    assert "'Score: high'" in rollout.calls[2].prompt[-1].content


async def test_without_a_grader_the_policy_grades_itself(tmp_path):
    """If no policy is given for the role `grader`, the policy grades itself."""
    policy = ScriptedReplies(lambda request: "Score: 1" if request.role == "grader" else "Thanks.")
    sink = MemorySink()
    async for _ in Runner(policy, sink=sink).play([one(tmp_path)]):
        pass
    (rollout,) = sink.rollouts
    assert rollout.reward == 0.5
    assert {call.policy for call in rollout.calls} == {"scripted"}


def test_a_run_on_disk(tmp_path):
    """A run of the shipped tasks holds calls and grades, and SQL finds each criterion's number."""
    grader = ScriptedReplies("Fine.\nScore: 1", name="judge")
    summary = play(
        RubricTasks(), "scripted:noisy", roles={"grader": grader}, out=tmp_path / "run", groups=4, group_size=2
    )
    assert (summary.env, summary.rewarded) == ("rubric", 8)
    run = open_run(tmp_path / "run")
    rollouts = list(run.rollouts(limit=None))
    assert all(len(rollout.calls) == len(rollout.grade.extra["criteria"]) for rollout in rollouts)
    numbers = dict(run.sql("select id, grade_reward_data['rubric'] from rollouts"))
    assert numbers == {rollout.id: rollout.grade.reward_data["rubric"] for rollout in rollouts}
    found = list(run.sql("select distinct role, policy, reply, step from calls"))
    assert found == [("grader", "judge", "Fine.\nScore: 1", None)]


@pytest.mark.parametrize("concurrency", [1, 2, 64])
async def test_the_record_does_not_depend_on_concurrency(tmp_path, concurrency):
    """Calls are ordered by round and criterion, whatever the concurrency."""

    def reply(request):
        return "Hm." if len(request.messages) == 2 else "Score: 1"

    policy = ScriptedReplies("Thank you.")
    members, _ = await play_group(one(tmp_path, episodes=3), policy, ScriptedReplies(reply), concurrency=concurrency)
    assert len(members) == 3
    for member in members:
        assert [call.reply.content for call in member.calls] == ["Hm.", "Hm.", "Score: 1", "Score: 1"]
        assert ["Is kind." in call.prompt[1].content for call in member.calls[:2]] == [True, False]


# With another environment


CRITERION = {"text": "Is kind.", "name": "kind"}


def solve(request):
    """Uses the tool once, then answers."""
    if request.step == 0:
        call = ToolCall("calculator", '{"expression": "426 - (96 * 86)"}', "c")
        return Message("assistant", "Let me see.", tool_calls=(call,))
    return "Answer: -7830"


async def test_a_rubric_grades_any_environment(tmp_path):
    """The env's own reward and the rubric's grade add up; the grader sees the tool calls; the record names both."""
    path = write(tmp_path, CRITERION, {"text": "Is long.", "weight": 1}, name="criteria.jsonl")
    tasks = load_env(SPEC, {"env": "calculator", "criteria": path, "env_args": '{"difficulty": 2}', "tries": "2"})
    assert (tasks.env, tasks.count) == ("rubric", None)
    rollout = await play_one(tasks.builder(3, episodes=1, seed=0), ScriptedReplies(solve), judging("Score: 0.5", "1"))
    assert [step.reward for step in rollout.steps] == [0.0, 1.0]
    assert (rollout.grade.reward, rollout.reward) == (0.75, 1.75)
    assert rollout.grade.reward_data == {"kind": 0.5, "criterion_1": 1.0, "rubric": 0.75, "format": 1.0}
    assert (rollout.env, rollout.task) == ("rubric", "difficulty2-seed0-3")
    assert rollout.env_args == {
        "data": None, "env": "calculator", "criteria": path, "env_args": {"difficulty": 2, "max_turns": 6},
        "format_coef": 0.1, "seconds": 60.0, "tries": 2, "max_tokens": 1024,
    }  # fmt: skip
    assert rollout.task_data["answer"] == "-7830"
    assert [criterion["text"] for criterion in rollout.task_data["criteria"]] == ["Is kind.", "Is long."]
    shown = rollout.calls[0].prompt[1].content
    assert 'calls a tool>\ncalculator({"expression": "426 - (96 * 86)"})\n' in shown
    assert ': tool "calculator">\n-7830\n' in shown


async def test_a_limit_of_the_runner_is_not_graded(tmp_path):
    """In a conversation, a truncated response ends play, and the rollout's grader is not asked."""
    path = write(tmp_path, CRITERION, name="criteria.jsonl")
    builder = RubricTasks(env="calculator", criteria=path).builder(0, episodes=1, seed=0)
    rollout = await play_one(builder, ScriptedReplies([said("Answ", Termination.LENGTH)]), judging("1"))
    assert (rollout.stop_reason, rollout.reward, rollout.calls) == ("max_tokens", -0.1, ())


def test_a_finite_data_set_keeps_its_size(tmp_path):
    """There are as many graded tasks as the other environment has, and a builder pickles with its grader."""
    path = write(tmp_path, CRITERION, name="criteria.jsonl")
    tasks = RubricTasks(env="problems", criteria=path)
    assert tasks.count == load_env("problems").count
    graded = tasks.builder(0, episodes=1, seed=0)
    assert graded.question == load_env("problems").builder(0, episodes=1, seed=0).question
    assert pickle.loads(pickle.dumps(graded)) == graded
    assert graded.grader.criteria == (Criterion("Is kind.", 1.0, "kind"),)


def test_common_criteria_for_a_file_of_prompts(tmp_path):
    """A file of prompts without criteria takes those of `criteria`, a JSON list here."""
    data = write(tmp_path, {"id": "a", "prompt": "q"}, {"id": "b", "prompt": "r"})
    path = tmp_path / "criteria.json"
    path.write_text(json.dumps([CRITERION, {"text": "Is long.", "weight": -0.5}], indent=2))
    tasks = RubricTasks(data=data, criteria=str(path))
    builder = tasks.builder(1, episodes=1, seed=0)
    assert builder.grader.criteria == (Criterion("Is kind.", 1.0, "kind"), Criterion("Is long.", -0.5))
    assert len(builder.task_data["criteria"]) == 2


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ({"env": "calculator"}, "Expected criteria=FILE beside env=calculator"),
        ({"env": "calculator", "data": "D", "criteria": "C"}, "either data=FILE or env=NAME for rubric, got both"),
        ({"criteria": "C"}, "Expected data=FILE or env=NAME beside criteria=FILE"),
        ({"env_args": "{}"}, "Expected env=NAME beside env_args"),
        ({"env": "calculatr", "criteria": "C"}, "Did you mean 'calculator'?"),
        ({"env": "calculator", "criteria": "C", "env_args": '{"dificulty": 3}'}, "Did you mean 'difficulty'?"),
        ({"tries": "0"}, "tries of at least 1"),
        ({"seconds": "0"}, "seconds above 0"),
        ({"max_tokens": "0"}, "max_tokens of at least 1, or None for no limit, got 0"),
        ({"max_tokens": "-1"}, "max_tokens of at least 1, or None for no limit, got -1"),
        ({"format_coef": "nan"}, "format_coef to be a finite number"),
    ],
)
def test_arguments_that_do_not_go_together(tmp_path, args, message):
    """The error names the conflict and what to give instead."""
    files = {"C": write(tmp_path, CRITERION, name="criteria.jsonl"), "D": write(tmp_path, ROW)}
    with pytest.raises(InputError) as caught:
        load_env(SPEC, {name: files.get(value, value) for name, value in args.items()})
    assert message in str(caught.value)


def test_an_environment_that_has_a_grader(tmp_path):
    """A rollout has one grader: a rubric of a rubric is refused."""
    path = write(tmp_path, CRITERION, name="criteria.jsonl")
    tasks = RubricTasks(env=SPEC, criteria=path)
    with pytest.raises(InputError, match=r"which has a RubricGrader: a rollout is graded once"):
        tasks.builder(0, episodes=1, seed=0)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"criteria": []}, "expected at least one criterion, got none"),
        (
            {"criteria": None},
            "expected a column `criteria`, got none: name it with criteria_column=COLUMN, or give criteria=FILE",
        ),
        ({"criteria": [{"text": "a", "weight": 0}]}, "add up to a finite number above 0, got 0.0"),
        ({"criteria": [{"text": "a", "wieght": 2}]}, "unknown field `wieght` - at `criteria[0]`"),
        ({"criteria": [{"text": "a", "weight": "2"}]}, "expected `float`, got `str` - at `criteria[0].weight`"),
        ({"criteria": [{"weight": 2}]}, "missing required field `text` - at `criteria[0]`"),
        ({"criteria": [{"text": ""}]}, "expected a text"),
        ({"criteria": [{"text": "a", "name": "format"}]}, "got 'format', which is taken"),
        ({"prompt": None}, "expected a column `prompt` or `messages`, got the columns"),
    ],
)
def test_bad_rows_are_named(tmp_path, fields, message):
    """The error names file and line of a row that makes no rubric."""
    path = write(tmp_path, ROW, {**ROW, "id": "other", **fields})
    with pytest.raises(DataError) as caught:
        RubricTasks(data=path)
    assert "own.jsonl:2: " in str(caught.value)
    assert message in str(caught.value)


def test_a_row_with_criteria_where_all_have_common_ones(tmp_path):
    """A row with its own criteria beside common ones is refused: which is meant is not guessed."""
    criteria = write(tmp_path, CRITERION, name="criteria.jsonl")
    with pytest.raises(DataError, match=r"own.jsonl:1: expected no `criteria` in a row"):
        RubricTasks(data=write(tmp_path, ROW), criteria=criteria)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "expected at least one row, got an empty file"),
        ("[]", "expected at least one row, got an empty file"),
        ("[1]", "criteria.json: row 1: expected a JSON object, got `int`"),
        ("[{", "expected a JSON list of objects, or one object per line: Input data was truncated"),
        ('["\udcff"]', "expected a JSON list of objects"),
        ('{"text": "a", "weight": 0}', "above 0, got 0.0"),
        ('{"text": "a"}\n{"txt": "b"}', "criteria.json:2: expected a column `text`, got the columns `txt`."),
        ('{"text": "a"}\n{"text": "b", "x": 1}', "criteria.json:2: object contains unknown field `x`"),
    ],
)
def test_bad_files_of_criteria(tmp_path, text, message):
    """The error names the file of criteria and what is wrong with it."""
    path = tmp_path / "criteria.json"
    path.write_text(text, errors="surrogateescape")
    with pytest.raises(DataError) as caught:
        read_criteria(path)
    assert "criteria.json" in str(caught.value)
    assert message in str(caught.value)
    with pytest.raises(DataError, match="nothing is at this path"):
        read_criteria(tmp_path / "absent.json")


def test_builders_pickle_and_keep_the_contract(tmp_path):
    """Builders pickle, and `check_env` finds no violation, alone and around another environment."""
    builder = one(tmp_path, episodes=2)
    assert pickle.loads(pickle.dumps(builder)) == builder
    assert check_env(builder) == []
    around = RubricTasks(env="calculator", criteria=write(tmp_path, CRITERION, name="criteria.jsonl"))
    assert check_env(around.builder(0, episodes=2, seed=0)) == []
