import asyncio
import importlib.util
import threading

import pytest

from rolltrace.envs.problem_env import ProblemGroup
from rolltrace.envs.problems import ProblemsTasks
from rolltrace.errors import GraderError, InputError
from rolltrace.graders import math_check
from rolltrace.graders.math_check import math_score
from rolltrace.rollout.memory_sink import MemorySink
from rolltrace.rollout.runner import Runner
from stage import Remembering, said

pytestmark = pytest.mark.core

needs_math_verify = pytest.mark.skipif(importlib.util.find_spec("math_verify") is None, reason="needs the extra `math`")


@needs_math_verify
@pytest.mark.parametrize(
    ("answer", "reference", "score"),
    [
        ("1/2", "0.5", 1.0),
        (r"$\frac{1}{2}$", "1/2", 1.0),
        ("(x+1)^2", "x^2+2x+1", 1.0),
        (r"\{2, 1\}", r"\{1, 2\}", 1.0),
        ("x = 3", "3", 1.0),
        (r"2\sqrt{3}", r"\sqrt{12}", 1.0),
        ("1/3", "0.3", 0.0),
        ("(x+1)^2", "x^2+1", 0.0),
        ("apples", "7", 0.0),
        ("", "7", 0.0),
        ("7" + " + 0" * 500, "7", 0.0),
        ("7" * 100_000, "7", 0.0),
        ("{{{", "7", 0.0),
        ("\x00", "7", 0.0),
        ("\ud800", "7", 0.0),
        ("__import__('os').abort()", "7", 0.0),
    ],
)
async def test_mathematics_is_compared_by_value(answer, reference, score):
    """Two forms of the same value are equal, two values are not, and text without mathematics is wrong."""
    assert await math_score(answer, reference) == score


@needs_math_verify
async def test_a_reference_without_mathematics_is_an_error():
    """A reference without mathematics is refused: every answer would be wrong."""
    with pytest.raises(InputError, match="Expected mathematics as the reference of the check `math`, got ''"):
        await math_score("7", "")


@needs_math_verify
def test_a_bomb_is_stopped_in_any_thread(monkeypatch):
    """An answer that never stops computing ends with an error, also in a thread without signals; the next is judged."""
    monkeypatch.setattr(math_check, "MATH_SECONDS", 0.5)
    found = []

    def run():
        async def ask():
            with pytest.raises(GraderError, match=r"It took more than 0\.5 seconds"):
                await math_score("9^{9^{9^9}}", "7")
            found.append(await math_score("14/2", "7"))

        asyncio.run(ask())

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert found == [1.0]


async def played(builder, text):
    sink = MemorySink()
    async for _ in Runner(Remembering(said(text)), sink=sink).play([builder]):
        pass
    [rollout] = sink.rollouts
    return rollout


@needs_math_verify
async def test_a_bomb_is_a_wrong_answer_in_the_record(monkeypatch):
    """A reply that cannot be judged earns what a wrong one does, and the record says why."""
    monkeypatch.setattr(math_check, "MATH_SECONDS", 0.5)
    builder = ProblemGroup(env="e", task="t", question="?", reference="7", check=math_score)
    rollout = await played(builder, "Answer: 99999999999!")
    assert (rollout.status, rollout.reward, rollout.stop_reason) == ("ok", 0.0, "completed")
    assert rollout.steps[0].logs == {"unjudged": "It took more than 0.5 seconds, and was stopped."}
    assert rollout.steps[0].metrics["unjudged"] == 1.0


@needs_math_verify
async def test_problems_by_math_verify(tmp_path):
    """The check is named by an argument; a reference that it cannot read fails the rollout, not the answer."""
    path = tmp_path / "own.jsonl"
    path.write_text('{"id": 1, "question": "q", "answer": "x^2 - 1"}\n{"id": 2, "question": "r", "answer": " "}\n')
    tasks = ProblemsTasks(data=str(path), check="math")
    rollout = await played(tasks.builder(0, episodes=1, seed=0), "Answer: $(x-1)(x+1)$")
    assert (rollout.reward, rollout.task_data["check"]) == (1.0, "math")
    rollout = await played(tasks.builder(1, episodes=1, seed=0), "Answer: 1")
    assert (rollout.status, rollout.reward, rollout.error.layer) == ("error", None, "env")
    assert "Expected mathematics" in rollout.error.message


def test_without_math_verify_it_says_what_to_install(monkeypatch):
    """The missing extra is named when the tasks are made, before anything is played."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"needs math-verify: pip install 'rolltrace\[math\]'"):
        ProblemsTasks(check="math")
