"""Other environments' tasks with a grader added, and the record that makes them again."""

import json

import msgspec
import pytest

from rolltrace.envs.env import EnvGroupBuilder
from rolltrace.envs.prompt_only import PromptOnlyEnv
from rolltrace.envs.registry import load_env
from rolltrace.envs.tasks import Tasks
from rolltrace.envs.with_grader import load_inner_tasks, with_grader
from rolltrace.errors import InputError
from rolltrace.graders.preference_grader import PreferenceGrader
from rolltrace.graders.rubric_grader import Criterion, RubricGrader
from rolltrace.rollout.memory_sink import MemorySink
from rolltrace.rollout.runner import Runner
from rolltrace.testing.scripted import ScriptedReplies
from stage import Counting, GradedStage, Stage, fields_of

ARGS = {"data": None, "env": "stage", "env_args": None, "tries": 2}
RUBRIC = RubricGrader([Criterion("Is kind.")])
PREFERENCE = PreferenceGrader()
SILENT = f"{__name__}:SilentGroup"


class SilentGroup(EnvGroupBuilder):
    """Plays one word, and does not record its arguments."""

    env = "silent"
    task = "word"

    def __init__(self, word: str = "Hello.", times: int = 1):
        self.words = " ".join([word] * times)

    async def make_episode(self, number):
        return [PromptOnlyEnv(self.words)]


async def record_of(builder):
    """A rollout as it is read from a file."""
    sink = MemorySink()
    grader = ScriptedReplies(lambda request: "1")
    async for _ in Runner(ScriptedReplies("Answer: 1"), roles={"grader": grader}, sink=sink).play([builder]):
        pass
    rollout = sink.rollouts[0]
    return rollout.env, msgspec.json.decode(msgspec.json.encode(rollout.env_args))


def files(tmp_path, args):
    """The arguments, with the names of files that hold their contents."""
    (tmp_path / "criteria.jsonl").write_text(json.dumps({"text": "Is kind.", "name": "kind", "weight": 2}) + "\n")
    (tmp_path / "prompts.jsonl").write_text('{"id": "a", "prompt": "Why?"}\n{"id": "b", "prompt": "How?"}\n')
    named = {"CRITERIA": str(tmp_path / "criteria.jsonl"), "PROMPTS": str(tmp_path / "prompts.jsonl")}
    return {
        name: files(tmp_path, value) if isinstance(value, dict) else named.get(value, value)
        for name, value in args.items()
    }


@pytest.mark.parametrize(
    ("env", "args"),
    [
        ("rubric", {}),
        ("rubric", {"data": "PROMPTS", "criteria": "CRITERIA", "tries": 1, "max_tokens": 5, "format_coef": 0.3}),
        ("rubric", {"env": "problems", "criteria": "CRITERIA", "seconds": 9.0}),
        ("rubric", {"env": "problems", "criteria": "CRITERIA", "env_args": {"examples": 2, "format_coef": 0.7}}),
        ("rubric", {"env": "calculator", "criteria": "CRITERIA", "env_args": {"difficulty": 2}}),
        ("rubric", {"env": "twenty_questions", "criteria": "CRITERIA", "env_args": {"seconds": None, "tries": 1}}),
        ("rubric", {"env": SILENT, "criteria": "CRITERIA", "env_args": {"times": 3}}),
        ("preference", {}),
        ("preference", {"data": "PROMPTS", "pattern": "one_way", "chunk": 2, "tries": 1, "max_tokens": 5}),
        ("preference", {"env": "arithmetic", "format_coef": 0.3}),
        ("preference", {"env": "arithmetic", "env_args": {"difficulty": 3, "system": "Be brief."}}),
        ("preference", {"env": SILENT, "env_args": {"word": "Oh."}}),
        ("preference", {"env": "rubric"}),
        ("preference", {"env": "rubric", "env_args": {"env": "problems", "criteria": "CRITERIA", "tries": 2}}),
        ("rubric", {"env": "preference", "criteria": "CRITERIA", "env_args": {"env": "arithmetic", "chunk": 3}}),
    ],
)
async def test_the_record_makes_the_same_builder_again(tmp_path, env, args):
    """Env and arguments of the record are those of `load_env`, with and without a grader; None may be omitted."""
    given = files(tmp_path, args)
    tasks = load_env(env, given)
    number = 0 if tasks.count == 1 else 1
    builder = tasks.builder(number, episodes=2, seed=3)
    name, recorded = await record_of(builder)
    assert name == env
    assert recorded["env"] == given.get("env")
    for again_args in (recorded, {key: value for key, value in recorded.items() if value is not None}):
        again = load_env(name, again_args).builder(number, episodes=2, seed=3)
        assert type(again) is type(builder)
        assert fields_of(again) == fields_of(builder)


@pytest.mark.parametrize("env", ["rubric", "preference"])
def test_the_graders_replies_are_bounded(env):
    """The bound reaches the grader; None cannot be given."""
    builder = load_env(env, {"max_tokens": 5}).builder(0, episodes=2, seed=0)
    asking = builder.grader if env == "rubric" else builder.group_grader.judge
    assert asking.sampling.max_tokens == 5
    with pytest.raises(InputError, match="Expected `int` for argument 'max_tokens'"):
        load_env(env, {"max_tokens": None})


def test_the_other_environments_builder_is_left_alone():
    """The other environment's builder is copied, not changed."""
    stage = Stage(lambda _: None)
    stage.reward_range = (0.0, 1.0)
    before = dict(vars(stage))
    graded = with_grader(stage, "rubric", ARGS, {"criteria": []}, grader=RUBRIC)
    assert (graded.env, graded.task, graded.grader) == ("rubric", "task", RUBRIC)
    assert (graded.env_args, graded.task_data) == (ARGS, {"criteria": []})
    assert graded.reward_range is None  # the grade is added to the rewards
    assert vars(stage) == before
    assert (stage.env, stage.grader, stage.env_args) == ("stage", None, {})


def test_the_other_grader_stays():
    """A rubric and a tournament may grade the same rollouts, one each and the other all."""
    stage = Stage(lambda _: None)
    stage.grader = RUBRIC
    both = with_grader(stage, "preference", ARGS, group_grader=PREFERENCE)
    assert (both.grader, both.group_grader) == (RUBRIC, PREFERENCE)


def test_a_second_grader_is_refused():
    """A rollout has one grader, and so has a group, also by a subclass's own method."""
    stage = Stage(lambda _: None)
    stage.grader = Counting(1.0)
    with pytest.raises(InputError, match="env of rubric, got stage, which has a Counting: a rollout is graded once"):
        with_grader(stage, "rubric", ARGS, grader=RUBRIC)
    with pytest.raises(InputError, match="whose GradedStage does: a group is graded once"):
        with_grader(GradedStage(lambda _: None), "preference", ARGS, group_grader=PREFERENCE)


class Fixed(SilentGroup):
    """A group whose env name cannot be set."""

    env = property(lambda self: "fixed")


def test_a_builder_that_cannot_be_changed_is_refused():
    """The error says what could not be set and what to do."""
    with pytest.raises(InputError, match=r"`env`.*got Fixed: .*neither frozen nor a property"):
        with_grader(Fixed(), "rubric", ARGS, grader=RUBRIC)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ({"env": None, "env_args": {}}, "Expected env=NAME beside env_args for rubric"),
        ({"data": "x.jsonl"}, 'env_args={"data": "FILE"}'),
        ({"env": "no_such_env"}, "no_such_env"),
    ],
)
def test_arguments_that_do_not_go_together(args, message):
    """The error names each conflict."""
    with pytest.raises(InputError) as caught:
        load_inner_tasks("rubric", {**ARGS, **args})
    assert message in str(caught.value)


def test_which_tasks_are_played():
    """The tasks are those of another environment if one is named, else the own ones."""
    assert load_inner_tasks("rubric", {**ARGS, "env": None}) is None
    assert isinstance(load_inner_tasks("rubric", {**ARGS, "env": "arithmetic"}), Tasks)
