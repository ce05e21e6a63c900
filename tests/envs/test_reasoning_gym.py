import asyncio
import importlib.util
import os
import pickle
import random
import subprocess
import sys

import pytest

from rolltrace.envs import reasoning_gym
from rolltrace.envs.reasoning_gym import ReasoningGymTasks
from rolltrace.envs.registry import load_env
from rolltrace.errors import InputError, UnknownNameError
from rolltrace.graders.scoring_pool import SCORING_POOL
from rolltrace.processes.child_processes import stop_all_children
from rolltrace.rollout.memory_sink import MemorySink
from rolltrace.rollout.runner import Runner
from stage import Remembering, said

pytestmark = pytest.mark.core

needs_package = pytest.mark.skipif(
    importlib.util.find_spec("reasoning_gym") is None, reason="needs the extra `reasoning-gym`"
)
COMPOSITE = {"datasets": [{"name": "gcd", "weight": 1, "config": {}}, {"name": "lcm", "weight": 1, "config": {}}]}
"""The one task that has to be told what it is made of."""
NO_REFERENCE = {"boxnet", "graph_color", "propositional_logic", "rubiks_cube", "rush_hour"}
"""Tasks with many right answers, of which the package names none."""


def make(name, number=0, seed=0, **options):
    return ReasoningGymTasks(name, **options).builder(number, episodes=2, seed=seed)


async def play(builder, *texts):
    """Plays an episode with each of the texts."""
    sink = MemorySink()
    policy = Remembering(lambda request: said(texts[request.identity.index]))
    async for _ in Runner(policy, sink=sink).play([builder]):
        pass
    return sorted(sink.rollouts, key=lambda rollout: rollout.index)


def tagged(answer):
    return f"So it is\n<answer>\n{answer}\n</answer>"


@needs_package
async def test_every_task_of_the_package_plays():
    """Each task plays a group: its reference is right by its own scorer, and a reply without an answer is wrong."""
    names = ReasoningGymTasks.names()
    without = set()
    for name in names:
        builder = make(name, **(COMPOSITE if name == "composite" else {}))
        right = builder.reference
        rollouts = await play(builder, tagged("?" if right is None else right), "I do not know.")
        assert [rollout.status for rollout in rollouts] == ["ok", "ok"], name
        first, second = (rollout.steps[0] for rollout in rollouts)
        if right is None:
            without.add(name)
            assert 0.0 <= first.trace.reward_data["correct"] < 0.3, name
        else:
            assert (rollouts[0].reward, first.trace.reward_data["correct"]) == (1.0, 1.0), name
        assert second.trace.reward_data == {"correct": 0.0, "format": 0.0, "well_formed": 1.0}
        assert first.trace.prompt[-1].content.startswith(builder.task_data["question"].strip())
        assert rollouts[0].task_data == builder.task_data
        assert rollouts[0].env == f"reasoning_gym:{name}"
    assert without == NO_REFERENCE
    assert len(names) >= 106


@needs_package
async def test_fractions_stay_fractions():
    """A fractional score is recorded as the task's own scorer gave it."""
    builder = make("caesar_cipher")
    right = builder.reference
    answer = f"{right} {'X' * (len(right) - 1)}"  # twice as long as it should be: half right, says the package
    rollouts = await play(builder, tagged(answer), f"Answer: {answer}")
    assert [rollout.reward for rollout in rollouts] == [0.5, pytest.approx(0.4)]
    assert [rollout.steps[0].trace.reward_data for rollout in rollouts] == [
        {"correct": 0.5, "format": 1.0, "well_formed": 1.0},
        {"correct": 0.5, "format": 0.0, "well_formed": 1.0},
    ]
    assert rollouts[0].steps[0].trace.extra == {"reference": right, "answer": answer}


@needs_package
def test_the_builder_tells_the_record_what_it_was_made_with():
    """Difficulty, metadata, arguments and seed are in the builder; it pickles, and no policy sees the answer."""
    builder = make("leg_counting", number=3, seed=5, max_animals="4", min_instances=2)
    assert pickle.loads(pickle.dumps(builder)) == builder
    assert (builder.env, builder.task, builder.episodes) == ("reasoning_gym:leg_counting", "leg_counting-seed5-3", 2)
    assert builder.tags == ("reasoning_gym", "arithmetic")
    data = builder.task_data
    assert data["difficulty"] == data["metadata"]["difficulty"] == {"num_animals": [3, 4], "num_instances": [2, 15]}
    assert (data["number"], data["answer"], data["category"]) == (3, builder.reference, "arithmetic")
    assert data["metadata"]["total_legs"] == int(builder.reference)
    assert (builder.env_args["max_animals"], builder.env_args["min_instances"]) == ("4", 2)
    assert "<answer> and </answer>" in builder.question
    assert 0 <= builder.seed < 2**31


@needs_package
def test_a_task_depends_on_seed_and_number_only():
    """Equal seed and number give the same entry in any process, after any other calls; others give another."""
    # These draw from sets, or from all entries of a size at once.
    names = ["isomorphic_strings", "word_ladder", "ransom_note", "polynomial_multiplication", "acre", "gsm_symbolic"]
    first = {name: make(name, number=1, seed=2) for name in names}
    stop_all_children()
    assert {name: make(name, number=1, seed=2) for name in reversed(names)} == first
    for name in names:
        others = [make(name, number=2, seed=2), make(name, number=1, seed=3)]
        assert len({builder.question for builder in (first[name], *others)}) == 3


@needs_package
async def test_generating_does_not_wait_for_scoring(tmp_path):
    """Endless scoring calls do not delay the generation of tasks, which runs in a thread."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    waiting = f"__import__('pathlib').Path({str(pipe)!r}).read_text()"
    endless = [asyncio.create_task(SCORING_POOL.run(eval, waiting, cpu_seconds=3600)) for _ in range(8)]
    try:
        builder = await asyncio.wait_for(asyncio.to_thread(make, "gcd"), 60)
        assert builder.reference
        assert not any(task.done() for task in endless)
    finally:
        for task in endless:
            task.cancel()
        await asyncio.gather(*endless, return_exceptions=True)
    assert ReasoningGymTasks.build_in_thread


@needs_package
def test_generating_leaves_the_global_rng_alone():
    """The package seeds global generators; this happens in a worker process."""
    random.seed(3)
    expected = random.Random(3).random()
    make("pool_matrix")
    assert random.random() == expected


@needs_package
def test_the_generated_tasks_stay_as_they_are():
    """A task's name means the same question in every version, because recorded runs refer to it."""
    builder = make("gcd", number=1, seed=0)
    assert (builder.seed, builder.task_data["metadata"]["numbers"], builder.reference) == (358444212, [38, 828], "2")


@needs_package
@pytest.mark.parametrize(
    ("spec", "args", "error", "message"),
    [
        ("leg_countin", {}, UnknownNameError, r"no reasoning_gym task 'leg_countin'\. Did you mean 'leg_counting'\?"),
        ("", {}, UnknownNameError, "no reasoning_gym task ''"),
        (
            "leg_counting",
            {"max_animal": "3"},
            UnknownNameError,
            r"no argument of reasoning_gym:leg_counting 'max_animal'\. Did you mean 'max_animals'\? Known: max_animals",
        ),
        (
            "leg_counting",
            {"max_animals": "x"},
            InputError,
            "Expected `int` for argument 'max_animals' of reasoning_gym",
        ),
        ("leg_counting", {"max_animals": 1}, InputError, "got {'max_animals': 1}: max_animals must be"),
        ("leg_counting", {"seed": "3"}, InputError, "Expected no argument 'seed' of reasoning_gym:leg_counting"),
        ("composite", {}, InputError, "got {}: Must specify at least one dataset"),
    ],
)
def test_wrong_names_and_arguments_are_named(spec, args, error, message):
    """Unknown names and wrong arguments are refused with the valid ones, before anything is played."""
    with pytest.raises(error, match=message):
        load_env(f"reasoning_gym:{spec}", args)


HOSTILE = [
    "x" * 1_000_000,
    "(" * 100_000,
    "[" * 100_000,
    '{"a":' * 50_000,
    "\x00",
    "\ud800",
    "-1",
    "[]",
    "{}",
    "1/0",
    "nan",
    "nan+nanj",
    "1e400",
    "[0]*10**10",
    "entry",
    "().__class__.__base__.__subclasses__()",
    "__import__('os').abort()",
]


@needs_package
@pytest.mark.parametrize(
    "name",
    [
        "n_queens",
        "string_insertion",
        "spiral_matrix",
        "countdown",
        "boxnet",
        "complex_arithmetic",
        "prime_factorization",
    ],
)
async def test_hostile_answers_earn_nothing_and_break_nothing(name):
    """Scorers that evaluate or parse answers run no program of the answer's, and never crash a play."""
    builder = make(name)
    builder.episodes = len(HOSTILE)
    for rollout, text in zip(await play(builder, *map(tagged, HOSTILE)), HOSTILE, strict=True):
        assert (rollout.status, rollout.error) == ("ok", None)
        step = rollout.steps[0]
        assert step.trace.reward_data["correct"] <= 0.05, text[:40]
        assert (step.metrics["unjudged"] == 1.0) == ("unjudged" in step.logs)


@needs_package
@pytest.mark.parametrize("name", ["spiral_matrix", "binary_matrix", "n_queens", "string_insertion", "puzzle24"])
async def test_an_answer_is_not_run(name, tmp_path):
    """Scorers that call `eval` get no value from a program: it is not run, and cannot read the answer."""
    canary = tmp_path / "canary"
    program = f"[__import__('pathlib').Path({str(canary)!r}).write_text('x'), 1][1:]"
    cheat = "entry['answer'].split()"
    for rollout in await play(make(name), tagged(program), tagged(cheat)):
        assert rollout.steps[0].trace.reward_data["correct"] <= 0.05
    assert not canary.exists()


@needs_package
@pytest.mark.slow
async def test_no_hostile_answer_crashes_any_task():
    """Whatever is answered to any task, each rollout ends normally, with a score from 0 to 1."""
    for name in ReasoningGymTasks.names():
        builder = make(name, **(COMPOSITE if name == "composite" else {}))
        builder.episodes = len(HOSTILE)
        rollouts = await play(builder, *map(tagged, HOSTILE))
        assert len(rollouts) == len(HOSTILE)
        for rollout in rollouts:
            assert (rollout.status, rollout.error) == ("ok", None), name
            assert 0.0 <= rollout.steps[0].trace.reward_data["correct"] <= 1.0, name


@needs_package
async def test_a_scorer_that_raises_or_hangs_makes_the_answer_wrong(monkeypatch):
    """An answer that makes the scorer raise or hang is wrong, and the record says why."""
    monkeypatch.setattr(reasoning_gym, "SCORING_SECONDS", 0.5)
    raised = await play(make("prime_factorization"), tagged("seven"), tagged("nan"))
    assert [rollout.reward for rollout in raised] == [0.0, 0.0]
    assert raised[0].steps[0].logs["unjudged"] == "ValueError: invalid literal for int() with base 10: 'seven'"
    [hung, _] = await play(make("countdown"), tagged("9**9**9**9"), "")
    assert (hung.reward, hung.stop_reason) == (0.0, "completed")
    assert hung.steps[0].logs["unjudged"] == "It took more than 0.5 seconds, and was stopped."


@needs_package
def test_the_package_is_not_imported_here():
    """Importing the package takes seconds and changes global state, so only workers do it."""
    script = (
        "import sys; from rolltrace.envs.reasoning_gym import ReasoningGymTasks\n"
        "ReasoningGymTasks('gcd').builder(0, episodes=1, seed=0)\n"
        "print(sorted(sys.modules.keys() & {'reasoning_gym', 'sympy', 'numpy'}))"
    )
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert (ended.stdout, ended.stderr) == ("[]\n", "")
