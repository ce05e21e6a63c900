import pickle

import pytest

from rolltrace.envs.problem_env import ProblemEnv, ProblemGroup
from rolltrace.errors import EnvError, GraderError, InputError
from rolltrace.graders.grader import GroupGrader
from rolltrace.policies.policy import Completion
from rolltrace.rollout.memory_sink import MemorySink
from rolltrace.rollout.runner import Runner
from rolltrace.testing.scripted import ScriptedReplies
from rolltrace.trace.message import Message
from rolltrace.trace.score import Grade
from rolltrace.trace.stop_reasons import Termination


def half_right(answer, reference):
    return 0.3


def has_working(reply):
    return 0.5 if "because" in reply else 0.0


async def play(text, termination=Termination.EOS, **options):
    env = ProblemEnv("What is 6 * 7?", "42", **options)
    await env.initial_observation()
    return await env.step(Completion(message=Message("assistant", text), termination=termination))


@pytest.mark.parametrize(
    ("text", "termination", "reward", "correct", "form", "well_formed", "stop_reason"),
    [
        ("Answer: 42", Termination.EOS, 1.0, 1.0, 1.0, 1.0, None),
        ("Answer: 42", Termination.STOP_SEQUENCE, 1.0, 1.0, 1.0, 1.0, None),
        ("Answer: 42", Termination.TOOL_CALLS, 1.0, 1.0, 1.0, 1.0, None),
        ("Answer: 42", Termination.LENGTH, 0.9, 1.0, 0.0, 0.0, "max_tokens"),
        ("Answer: 42", Termination.MALFORMED, 0.9, 1.0, 0.0, 0.0, None),
        ("Answer: 41", Termination.EOS, 0.0, 0.0, 1.0, 1.0, None),
        ("Answer: 41", Termination.LENGTH, -0.1, 0.0, 0.0, 0.0, "max_tokens"),
        ("it is 42", Termination.EOS, -0.1, 0.0, 0.0, 1.0, None),
        ("", Termination.EOS, -0.1, 0.0, 0.0, 1.0, None),
        ("it is", Termination.LENGTH, -0.1, 0.0, 0.0, 0.0, "max_tokens"),
        ("it is", Termination.MALFORMED, -0.1, 0.0, 0.0, 0.0, None),
    ],
)
async def test_the_reward_on_every_termination(text, termination, reward, correct, form, well_formed, stop_reason):
    """The reward is format_coef * (format - 1) + correct; a good format needs a normal end and an answer."""
    result = await play(text, termination)
    assert result.reward == pytest.approx(reward)
    assert result.reward_data == {"correct": correct, "format": form, "well_formed": well_formed}
    assert (result.done, result.stop_reason) == (True, stop_reason)


async def test_scores_between_stay_between():
    """Fractional scores of the check and of the format are not rounded."""
    result = await play("because\nAnswer: x", check=half_right, format_check=has_working, format_coef=0.2)
    assert result.reward == pytest.approx(0.2 * (0.5 - 1) + 0.3)
    assert result.reward_data == {"correct": 0.3, "format": 0.5, "well_formed": 1.0}


async def third_right(answer, reference):
    return 1 / 3


async def test_a_check_may_be_awaited():
    """An async check is awaited, and its score is kept."""
    assert (await play("Answer: x", check=third_right)).reward_data["correct"] == 1 / 3


def unable(answer, reference):
    raise GraderError("It is too long.")


def not_a_number(answer, reference):
    return float("nan")


@pytest.mark.parametrize(("check", "why"), [(unable, "It is too long."), (not_a_number, "The check returned nan.")])
async def test_an_answer_that_cannot_be_judged_is_wrong(check, why):
    """A reply that breaks the check earns no more than a wrong one; the logs say why, and a metric counts it."""
    result = await play("Answer: x", check=check)
    assert (result.reward, result.reward_data) == (0.0, {"correct": 0.0, "format": 1.0, "well_formed": 1.0})
    assert result.logs == {"unjudged": why}
    assert result.metrics == {"correct": 0.0, "format": 1.0, "answered": 1.0, "unjudged": 1.0}


def unable_form(reply):
    raise GraderError("It is too odd.")


NOT_FINITE = "Expected a finite number from the format check, got {}."


@pytest.mark.parametrize("termination", [Termination.EOS, Termination.LENGTH])
@pytest.mark.parametrize(
    ("format_check", "why"),
    [
        (unable_form, "It is too odd."),
        (lambda reply: float("nan"), NOT_FINITE.format("nan")),
        (lambda reply: float("inf"), NOT_FINITE.format("inf")),
        (lambda reply: -float("inf"), NOT_FINITE.format("-inf")),
    ],
)
async def test_a_form_that_cannot_be_judged_is_wrong(format_check, why, termination):
    """A failing format check costs the format term only; the reward stays a number, and the logs say why."""
    result = await play("Answer: 42", termination, format_check=format_check)
    assert result.reward == pytest.approx(0.9)
    assert result.reward_data == {"correct": 1.0, "format": 0.0, "well_formed": float(termination is Termination.EOS)}
    assert result.logs == {"unjudged_format": why}
    assert result.metrics == {"correct": 1.0, "format": 0.0, "answered": 1.0, "unjudged": 1.0}


async def test_neither_answer_nor_form_can_be_judged():
    """The logs say why for each, and the reply is counted once."""
    result = await play("Answer: x", check=unable, format_check=unable_form)
    assert result.reward == pytest.approx(-0.1)
    assert result.logs == {"unjudged": "It is too long.", "unjudged_format": "It is too odd."}
    assert result.metrics["unjudged"] == 1.0


def broken(answer, reference):
    raise KeyError("bug")


async def test_a_broken_check_is_not_the_answers_fault():
    """An unexpected exception of a check fails the rollout and does not count as a wrong answer."""
    with pytest.raises(KeyError):
        await play("Answer: x", check=broken)
    with pytest.raises(KeyError):
        await play("Answer: x", format_check=lambda reply: broken(reply, None))


async def test_where_the_answer_is_looked_for_can_be_chosen():
    """Another way to extract the answer replaces the default, for the check and for the format."""
    first_word = lambda reply: reply.split()[0] if reply else None  # noqa: E731 - one line reads best
    result = await play("42 is it", extract=first_word)
    assert (result.reward, result.extra["answer"]) == (1.0, "42")
    assert (await play("", extract=first_word)).reward == pytest.approx(-0.1)


async def test_texts_are_in_extra():
    """The reference and the extracted answer are kept as text, apart from the numbers."""
    result = await play("Answer: 41")
    assert result.extra == {"reference": "42", "answer": "41"}
    assert result.metrics == {"correct": 0.0, "format": 1.0, "answered": 1.0, "unjudged": 0.0}
    assert result.logs == {}
    assert (await play("no")).extra == {"reference": "42", "answer": None}


async def test_the_prompt_has_system_examples_and_question_in_order():
    """System prompt and examples come before the question."""
    examples = (Message("user", "What is 1 + 1?"), Message("assistant", "Answer: 2"))
    env = ProblemEnv("What is 6 * 7?", "42", system="Be brief.", examples=examples)
    messages = (await env.initial_observation()).messages
    assert [(message.role, message.content) for message in messages] == [
        ("system", "Be brief."),
        ("user", "What is 1 + 1?"),
        ("assistant", "Answer: 2"),
        ("user", "What is 6 * 7?"),
    ]


async def test_calls_out_of_order_say_what_to_do():
    """An env is single use, and its error says so."""
    env = ProblemEnv("?", "42")
    reply = Completion(message=Message("assistant", ""))
    with pytest.raises(EnvError, match="before initial_observation"):
        await env.step(reply)
    await env.initial_observation()
    with pytest.raises(EnvError, match="single use"):
        await env.initial_observation()
    await env.step(reply)
    with pytest.raises(EnvError, match="after the episode was done"):
        await env.step(reply)


async def test_a_group_pickles_and_makes_fresh_envs():
    """A pickled builder plays the same problem, each time from the start."""
    group = ProblemGroup(env="e", task="t", question="?", reference="1", check=half_right, episodes=2, tags=("a",))
    copy = pickle.loads(pickle.dumps(group))
    assert copy == group
    [first], [second] = await copy.make_episode(0), await copy.make_episode(1)
    assert first is not second
    assert (first.reference, first.check, first.takes_any_completion) == ("1", half_right, True)


class HalfForEach(GroupGrader):
    """Gives every member the same grade."""

    async def grade_group(self, rollouts):
        return {rollout.id: Grade(0.5) for rollout in rollouts}


async def test_a_group_may_be_graded_as_one():
    """The group grader's grade is added to the reward for the answer."""
    group = ProblemGroup(env="e", task="t", question="?", reference="1", episodes=2, group_grader=HalfForEach())
    runner = Runner(ScriptedReplies(lambda request: f"Answer: {request.identity.index}"), sink=MemorySink())
    (played,) = [played async for played in runner.play([group])]
    assert played.rewards == [0.5, 1.5]


@pytest.mark.parametrize("format_coef", [float("nan"), float("inf"), -float("inf")])
def test_a_coefficient_that_is_no_number_is_refused(format_coef):
    """A coefficient that is not finite is refused, since no reward would be."""
    with pytest.raises(InputError, match="format_coef to be a finite number"):
        ProblemEnv("?", "1", format_coef=format_coef)
    with pytest.raises(InputError, match="format_coef to be a finite number"):
        ProblemGroup(env="e", task="t", question="?", reference="1", format_coef=format_coef)
