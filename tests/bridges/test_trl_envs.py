"""A `GRPOTrainer` trains on our environments: TRL samples, and the runner plays, grades and records."""

import functools
import inspect
from dataclasses import dataclass

import pytest

import rolltrace
import tiny_trl
from rolltrace.bridges.trl import record, to_trl
from rolltrace.envs.arithmetic import ArithmeticTasks
from rolltrace.envs.calculator import CalculatorTasks
from rolltrace.envs.env import SingleEnvGroup
from rolltrace.envs.guess_number import GuessNumberTasks
from rolltrace.errors import InputError
from rolltrace.trace.stop_reasons import Status
from tiny_trl import END, SpiedGRPO, favour, logps_of, rollouts_of, score, tokens_of
from unexplained_findings import explained_run

pytestmark = pytest.mark.filterwarnings("ignore")  # those of torch and transformers
CALL = '<tool_call>\n{"name": "calculator", "arguments": {"expression": "2 + 3"}}\n</tool_call>'
ANSWER = "Answer: 5\n"
TALK = {END: 6, ANSWER: 6}


@pytest.fixture
def run(request, tmp_path):
    """A run with token ids that is being written."""
    with explained_run(request, tmp_path / "run", trace=rolltrace.Recording(tokens=True)) as writer:
        yield writer


def make_trainer(tmp_path, tasks, biases=TALK, *, arguments=None, tokenizer=None, **settings):
    """A trainer of three steps with four completions each, on these tasks."""
    tokenizer = tokenizer or tiny_trl.make_tokenizer(CALL, ANSWER)
    args = tiny_trl.trl.GRPOConfig(
        output_dir=str(tmp_path / "out"), report_to=[], use_cpu=True, save_strategy="no", disable_tqdm=True,
        generation_kwargs=favour(tokenizer, biases),
        **{
            "per_device_train_batch_size": 4, "num_generations": 2, "max_completion_length": 400, "max_steps": 3,
            "logging_steps": 1, "learning_rate": 0.01, "shuffle_dataset": False, **settings,
        },
    )  # fmt: skip
    played = to_trl(tasks, **{"count": 10, **(arguments or {})})
    return SpiedGRPO(model=tiny_trl.make_model(tokenizer), args=args, processing_class=tokenizer, **played)


@dataclass
class OwnTasks(rolltrace.Tasks):
    """Tasks of a test's own environment."""

    make_env: object
    env = "own"
    count = 10
    builder_type: type = SingleEnvGroup

    def builder(self, number, *, episodes, seed):
        return self.builder_type(
            make_env=functools.partial(self.make_env, number), env=self.env, task=str(number), episodes=episodes
        )


class OwnEnv(rolltrace.Env):
    """Two turns; the second may be answered with a reward of the task's number."""

    def __init__(self, number):
        self.number = number
        self.turns = 0

    async def initial_observation(self):
        return rolltrace.Observation([{"role": "user", "content": f"Task {self.number}"}])

    async def step(self, completion):
        self.turns += 1
        again = rolltrace.Observation([{"role": "user", "content": f"Again {self.number}"}])
        return rolltrace.StepResult(float(self.number), self.turns == 2, None if self.turns == 2 else again)


def assert_equal(rollouts, trainer):
    """Ids, rewards, advantages and log-probabilities are those of the trainer."""
    remaining = iter(rollouts)
    for seen in trainer.seen:
        prompt_ids, ids, masks = seen["generated"][:3]
        assert seen["generated"][4] is None  # transformers has no log-probabilities of the sampler
        for number, rollout in zip(range(len(ids)), remaining, strict=False):
            assert tokens_of(rollout) == (prompt_ids[number], ids[number], masks[number])
            assert tiny_trl.torch.tensor(rollout.reward).item() == seen["rewards"][number, 0].item()
            assert score(rollout, "advantage").value == seen["advantages"][number].item()
            numbers = score(rollout, "trainer_logprobs").data["tokens"]
            assert [len(each) for each in numbers] == [len(step.tokens.response) for step in rollout.steps]
            flat = [number for each in numbers for number in each]
            assert flat == logps_of(seen, prompt_ids[number], ids[number], masks[number])
    assert list(remaining) == []


@pytest.mark.parametrize(
    ("tasks", "biases", "most_steps"),
    [
        (ArithmeticTasks(), {END: 6, ANSWER: 6}, 1),
        (CalculatorTasks(), {END: 7, CALL: 6, ANSWER: 5}, 6),
        (GuessNumberTasks(), {END: 7, ANSWER: 7}, 10),
    ],
    ids=lambda value: getattr(value, "env", None),
)
@pytest.mark.warns("empty_responses")
def test_three_steps_on_an_environment(tmp_path, run, tasks, biases, most_steps):
    """The environment's rewards are those that TRL learns from, and the record has the tokens that it learns on."""
    trainer = make_trainer(tmp_path, tasks, biases, arguments={"run": run})
    recorded = record(trainer, run)
    trainer.train()
    rollouts = rollouts_of(run)
    assert recorded.failed == 0
    assert [(one.iteration, one.group, one.index) for one in rollouts] == [
        (step, str(group), index) for step in range(3) for group in range(2) for index in range(2)
    ]
    assert [one.task for one in rollouts[::2]] == [tasks.builder(n, episodes=1, seed=0).task for n in range(6)]
    assert_equal(rollouts, trainer)
    assert {one.env for one in rollouts} == {tasks.env}
    assert trainer.reward_func_names == [tasks.env]
    assert most_steps == 1 or 1 < max(len(one.steps) for one in rollouts) <= most_steps
    assert all(one.steps[0].policy_version == one.iteration for one in rollouts)
    assert rollouts[0].sampling[0].temperature == trainer.args.temperature


def test_tools_are_rendered_and_run(tmp_path, run):
    """The model sees the tool as its template shows it, and the result between two answers as the template puts it."""
    trainer = make_trainer(tmp_path, CalculatorTasks(), {END: 7, CALL: 7}, arguments={"run": run})
    trainer.train()
    tokenizer = trainer.processing_class
    called = next(one for one in rollouts_of(run) if len(one.steps) > 1 and one.steps[0].metrics["tool_calls"] == 1)
    assert '"name": "calculator"' in tokenizer.decode(called.prompt_tokens(0))
    start = len(called.prompt_tokens(0)) + len(called.steps[0].tokens.response)
    between = tokenizer.decode(called.prompt_tokens(1)[start:])
    assert between == ("\n<|im_start|>user\n<tool_response>\n5\n</tool_response><|im_end|>\n<|im_start|>assistant\n")
    assert called.steps[0].trace.policy_response.tool_calls[0].arguments == '{"expression":"2 + 3"}'
    assert CALL in called.steps[0].raw


def test_a_conversation_that_outgrows_the_completion(tmp_path, run):
    """An answer is cut at `max_completion_length`, and a prompt that leaves no room ends the rollout; both are data."""
    trainer = make_trainer(tmp_path, GuessNumberTasks(), {END: 3}, arguments={"run": run}, max_completion_length=60)
    record(trainer, run)
    trainer.train()
    rollouts = rollouts_of(run)
    assert_equal(rollouts, trainer)
    assert all(len(ids) <= 60 for seen in trainer.seen for ids in seen["generated"][1])
    assert {one.stop_reason for one in rollouts} == {"max_tokens", "context_overflow"}
    assert all(one.status is Status.OK for one in rollouts)


def test_an_environment_that_fails(tmp_path, run):
    """Its rollout has no reward, which TRL leaves out of the group; the training goes on."""

    class Failing(OwnEnv):
        async def step(self, completion):
            result = await super().step(completion)
            if self.turns == 2 and self.number % 2:
                raise OSError("no board")
            return result

    trainer = make_trainer(tmp_path, OwnTasks(Failing), arguments={"run": run})
    record(trainer, run)
    trainer.train()
    rollouts = rollouts_of(run)
    assert [(one.status is Status.OK, one.reward) for one in rollouts[::2]] == [
        (True, 2.0 * number) if number % 2 == 0 else (False, None) for number in range(6)
    ]
    for seen, expected in zip(trainer.seen, (0.0, 4.0, 8.0), strict=True):
        assert seen["rewards"][:2, 0].tolist() == [expected] * 2
        assert seen["rewards"][2:, 0].isnan().all()
    assert all(tokens_of(one)[1] for one in rollouts)


def test_a_rollout_without_a_turn(tmp_path, run):
    """TRL gets one token that was not sampled, and so learns nothing from it."""

    class Over(OwnEnv):
        async def initial_observation(self):
            if self.number == 0:
                return rolltrace.StepResult(1.0, done=True)
            if self.number == 1:
                raise OSError("no board")
            return await super().initial_observation()

    trainer = make_trainer(tmp_path, OwnTasks(Over), arguments={"run": run}, max_steps=1)
    recorded = record(trainer, run)
    trainer.train()
    [seen] = trainer.seen
    assert seen["generated"][1] == [[trainer.processing_class.eos_token_id]] * 4
    assert seen["generated"][2] == [[0]] * 4
    assert seen["rewards"][:2, 0].tolist() == [1.0, 1.0]
    assert seen["rewards"][2:, 0].isnan().all()
    assert [len(one.steps) for one in rollouts_of(run)] == [0] * 4
    assert recorded.failed == 0


def test_a_group_grader(tmp_path, run):
    """The reward that TRL gets includes the grade of the group."""

    class Ranked(SingleEnvGroup):
        async def grade_group(self, rollouts):
            return {one.id: rolltrace.Grade(10.0 * one.index) for one in rollouts}

    trainer = make_trainer(tmp_path, OwnTasks(OwnEnv, Ranked), arguments={"run": run}, max_steps=1)
    trainer.train()
    assert trainer.seen[0]["rewards"][:, 0].tolist() == [0.0, 10.0, 2.0, 12.0]
    assert [one.reward for one in rollouts_of(run)] == [0.0, 10.0, 2.0, 12.0]


def test_evaluation_tasks(tmp_path, run):
    """They are played as the split `eval`."""
    arguments = {"run": run, "eval_tasks": ArithmeticTasks(difficulty=2), "eval_count": 3}
    trainer = make_trainer(
        tmp_path, ArithmeticTasks(), arguments=arguments, per_device_eval_batch_size=6, eval_strategy="steps",
        eval_steps=1, max_steps=1,
    )  # fmt: skip
    trainer.train()
    places = [(one.split, one.iteration, one.group, one.index, one.env_args["difficulty"]) for one in rollouts_of(run)]
    assert places == [
        *[("eval", 1, str(group), index, 2) for group in range(3) for index in range(2)],
        *[("train", 0, str(group), index, 1) for group in range(2) for index in range(2)],
    ]


def test_two_trainings_into_one_run(tmp_path, run):
    """The groups of the second are numbered on, so that it does not stand in the place of the first."""
    for _ in range(2):
        trainer = make_trainer(tmp_path, OwnTasks(OwnEnv), arguments={"run": run}, max_steps=1)
        record(trainer, run)
        trainer.train()
    assert [(int(one.group), one.index) for one in rollouts_of(run)] == [(g, n) for g in range(4) for n in range(2)]
    assert all(score(one, "advantage").value is not None for one in rollouts_of(run))


async def test_without_a_run_and_inside_an_event_loop(tmp_path):
    """Nothing is recorded, and the training works where a loop is running already, as in a notebook."""
    trainer = make_trainer(tmp_path, OwnTasks(OwnEnv))
    trainer.train()
    assert [seen["rewards"][:, 0].tolist() for seen in trainer.seen] == [[0, 0, 2, 2], [4, 4, 6, 6], [8, 8, 10, 10]]
    assert list(tmp_path.glob("run*")) == []


def test_a_generation_that_fails(tmp_path, run):
    """The error is the trainer's, and what was being played is recorded as cancelled."""
    trainer = make_trainer(tmp_path, OwnTasks(OwnEnv), arguments={"run": run})
    record(trainer, run)

    def generate(*args, **kwargs):
        raise RuntimeError("out of memory")

    trainer.model.generate = generate
    with pytest.raises(RuntimeError, match="out of memory"):
        trainer.train()
    assert [one.status for one in rollouts_of(run)] == [Status.CANCELLED] * 4


def test_log_probabilities_of_the_sampler(tmp_path, run, monkeypatch):
    """Where TRL's generation returns them, as with vLLM, they are recorded, and handed back to TRL."""
    trainer = make_trainer(tmp_path, OwnTasks(OwnEnv), arguments={"run": run}, max_steps=1)
    generate = trainer._generate_single_turn

    def with_logprobs(*args):
        ids, _ = generate(*args)
        return ids, [[-0.5 - place for place in range(len(each))] for each in ids]

    trainer._generate_single_turn = with_logprobs
    trainer.train()
    _, ids, masks, _, logprobs = trainer.seen[0]["generated"][:5]
    for number, one in enumerate(rollouts_of(run)):
        assert len(one.steps) == 2
        for step in one.steps:
            assert step.tokens.logprobs == tuple(-0.5 - place for place in range(len(step.tokens.response)))
        sampled = [value for value, bit in zip(logprobs[number], masks[number], strict=True) if bit]
        assert sampled == [value for step in one.steps for value in step.tokens.logprobs]
        assert len(logprobs[number]) == len(ids[number])


class Stopping(OwnEnv):
    async def initial_observation(self):
        return rolltrace.Observation([{"role": "user", "content": "?"}], stop=["\n"])


class Forgetting(OwnEnv):
    async def step(self, completion):
        new = rolltrace.Observation([{"role": "user", "content": "Anew"}], replaces_history=True)
        return rolltrace.StepResult(0.0, False, new)


class Changing(OwnEnv):
    async def step(self, completion):
        tool = {"name": "look", "description": "Look.", "parameters": {"type": "object", "properties": {}}}
        return rolltrace.StepResult(0.0, False, rolltrace.Observation([{"role": "user", "content": "?"}], tools=[tool]))


@pytest.mark.parametrize(
    ("env", "message"),
    [
        (Changing, "Expected the same tools in every turn"),
        (Stopping, "Expected an environment without stop sequences"),
        (Forgetting, "Expected a conversation that only grows"),
    ],
)
def test_what_cannot_be_expressed_is_refused(tmp_path, env, message):
    """One sentence says why TRL cannot play it."""
    with pytest.raises(InputError, match=message):
        make_trainer(tmp_path, OwnTasks(env)).train()


def test_an_environment_by_its_name():
    """As for `rolltrace run`."""
    arguments = to_trl("calculator", count=3, eval_tasks="arithmetic", eval_count=2)
    assert (len(arguments["train_dataset"]), len(arguments["eval_dataset"])) == (3, 2)
    assert [function.__name__ for function in arguments["reward_funcs"]] == ["calculator"]


def test_wrong_arguments_are_refused(tmp_path):
    """Each in one sentence, most of them before the training starts."""

    class TwoSeats(SingleEnvGroup):
        seats = 2

    with pytest.raises(InputError, match="Expected tasks, such as"):
        to_trl(5)
    with pytest.raises(InputError, match="Expected count=, because there is no end of tasks of arithmetic"):
        to_trl(ArithmeticTasks())
    with pytest.raises(InputError, match="Expected eval_count="):
        to_trl(OwnTasks(OwnEnv), eval_tasks=ArithmeticTasks())
    with pytest.raises(InputError, match="Expected a run that is being written"):
        to_trl(OwnTasks(OwnEnv), run="runs/mine")
    with pytest.raises(InputError, match="has one seat, got own with 2"):
        to_trl(OwnTasks(OwnEnv, TwoSeats))
    trainer = make_trainer(tmp_path, OwnTasks(OwnEnv))
    with pytest.raises(InputError, match="Expected whole groups of 2 in each process, got 3 prompts"):
        trainer.rollout_func([[{"role": "user", "content": "own train 0"}]] * 3, trainer)


def test_a_template_that_cannot_be_continued_or_parsed(tmp_path):
    """A template that renders earlier messages differently, and one whose tool calls TRL does not know, are refused."""
    tokenizer = tiny_trl.make_tokenizer(CALL, ANSWER)
    tokenizer.chat_template = (
        "{% for message in messages %}{{ loop.length }}{{ message.role }}{{ message.content }}<|im_end|>{% endfor %}"
    )
    with pytest.raises(InputError, match="Expected a chat template that renders earlier messages the same"):
        make_trainer(tmp_path, OwnTasks(OwnEnv), tokenizer=tokenizer).train()
    with pytest.raises(InputError, match="Expected a tokenizer whose tool calls TRL can parse"):
        make_trainer(tmp_path, CalculatorTasks(), tokenizer=tokenizer).train()


def test_the_private_method_is_that_of_the_version():
    """The generation that `rollout_func` uses has the signature that it relies on; if this fails, TRL has changed."""
    parameters = list(inspect.signature(tiny_trl.trl.GRPOTrainer._generate_single_turn).parameters)
    assert parameters[:5] == ["self", "prompt_ids", "images", "multimodal_fields", "num_generations"]
    called = inspect.getsource(tiny_trl.trl.GRPOTrainer._generate)
    assert "self.rollout_func(prompts, self)" in called
    assert 'extra_fields.pop("env_mask", None)' in called
