"""The built-in `guess_number`."""

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolltrace.envs.env import StepResult
from rolltrace.envs.guess_number import MAX_NUMBER, UNREADABLE, GuessNumberEnv, GuessNumberTasks, read_guess
from rolltrace.envs.tasks import iterate_groups
from rolltrace.errors import EnvError, InputError, PolicyError
from rolltrace.policies.policy import to_completion
from rolltrace.rollout.limits_and_penalties import Limits
from rolltrace.rollout.memory_sink import MemorySink
from rolltrace.rollout.runner import Runner
from rolltrace.testing.check_env import check_env
from rolltrace.trace.message import Message
from rolltrace.trace.stop_reasons import Layer, StoppedBy, StopReason, Termination
from stage import Case, Remembering, expect_failure, expect_limit, fields_of, never, said


def make(number=3, seed=0, **settings):
    return GuessNumberTasks(**settings).builder(number, episodes=2, seed=seed)


async def start(target=37, **settings):
    env = GuessNumberEnv(target, **settings)
    await env.initial_observation()
    return env


def game(**settings):
    return lambda _: GuessNumberEnv(37, **settings)


def test_tasks_are_the_same_everywhere():
    """A task depends on seed, number and range; the turn cap does not change the target."""
    builder = make()
    assert (builder.env, builder.task, builder.episodes, builder.seats) == ("guess_number", "from1to100-seed0-3", 2, 1)
    assert builder.env_args == {"low": 1, "high": 100, "max_turns": 10}
    assert builder.task_data == {"number": 3, "target": 41}
    assert make(max_turns=5).seed == builder.seed
    others = [make(4), make(seed=1), make(high=99), make(low=2)]
    assert len({builder.seed, *(other.seed for other in others)}) == 5
    assert len({builder.task, *(other.task for other in others)}) == 5


@given(st.integers(-1000, 1000), st.integers(1, 50), st.integers(0, 2**63), st.integers(0, 1000))
def test_the_target_is_in_the_range(low, width, seed, number):
    """Every number of the range, the ends included, and no other can be the target."""
    assert low <= make(number, seed, low=low, high=low + width).task_data["target"] <= low + width


def test_all_numbers_come_up():
    """Neither end of the range is left out."""
    assert {make(number, high=3).task_data["target"] for number in range(50)} == {1, 2, 3}


def test_a_run_walks_different_tasks():
    """Generated tasks do not repeat."""
    tasks = GuessNumberTasks()
    groups = [
        group
        for iteration in range(3)
        for group in iterate_groups(tasks, iteration=iteration, groups=4, episodes=1, seed=7)
    ]
    assert len({group.task for group in groups}) == 12


def test_it_keeps_the_contract():
    """`check_env` finds no violation."""
    assert check_env(make()) == []
    assert check_env(make(high=4), answers=["Guess: 2", "no idea", "Guess: 3", "9" * 5000]) == []


def test_builders_pickle():
    """A pickled builder equals the original."""
    assert fields_of(pickle.loads(pickle.dumps(make()))) == fields_of(make())


async def test_the_prompt_does_not_reveal_the_target():
    """The prompt has the range, the turns and the format, and not the number."""
    (message,) = (await GuessNumberEnv(37, max_turns=7).initial_observation()).messages
    assert "from 1 to 100" in message.content
    assert "7 turns" in message.content
    assert message.content.endswith("`Guess: NUMBER`.")
    assert "37" not in message.content


async def test_a_game_in_the_record():
    """Turn, guess, hint and target are in each step's state, and the three rewards are 0, −1 and 1."""
    sink = MemorySink()
    builder = make(max_turns=5)
    replies = ["Guess: 50", "I cannot decide.", "Let me see.\nGuess: 1", f"Guess: {builder.task_data['target']}"]
    policy = Remembering(*map(said, replies))
    [_group] = [group async for group in Runner(policy, sink=sink).play([builder])]
    assert len(sink.rollouts) == 2
    for rollout in sink.rollouts:
        assert (rollout.status, rollout.stop_reason, rollout.stopped_by) == ("ok", "completed", "env")
        assert [step.reward for step in rollout.steps] == [0.0, -1.0, 0.0, 1.0]
        assert rollout.reward == 0.0
        assert [step.env_state for step in rollout.steps] == [
            {"turn": 1, "guess": 50, "hint": "too high", "target": 41},
            {"turn": 2, "guess": None, "hint": "unreadable", "target": 41},
            {"turn": 3, "guess": 1, "hint": "too low", "target": 41},
            {"turn": 4, "guess": 41, "hint": "correct", "target": 41},
        ]
        assert [step.reward_data for step in rollout.steps] == [
            {"correct": 0.0, "unreadable": 0.0},
            {"correct": 0.0, "unreadable": 1.0},
            {"correct": 0.0, "unreadable": 0.0},
            {"correct": 1.0, "unreadable": 0.0},
        ]
        heard = [message.content for message in rollout.conversation if message.role == "user"][1:]
        assert heard == [
            "Too high. 4 turns left.",
            f"{UNREADABLE} 3 turns left.",
            "Too low. 2 turns left.",
            "Correct. 1 turn left.",
        ]
        assert rollout.task_data["target"] == 41


async def test_a_number_outside_the_range_is_a_guess():
    """A guess outside the range gets a hint, costs nothing, and is counted."""
    env = await start()
    result = await env.step(to_completion("Guess: 100000"))
    assert (result.reward, result.env_state["hint"], result.metrics["out_of_range"]) == (0.0, "too high", 1.0)
    result = await env.step(to_completion("Guess: -5"))
    assert (result.reward, result.env_state["hint"], result.metrics["out_of_range"]) == (0.0, "too low", 1.0)
    for guess, outside in ((0, 1.0), (1, 0.0), (2, 0.0), (100, 0.0), (101, 1.0)):
        assert (await env.step(to_completion(f"Guess: {guess}"))).metrics["out_of_range"] == outside


@pytest.mark.parametrize(
    ("text", "guess"),
    [
        ("Guess: 42", 42),
        ("**Guess:** 42.", 42),
        ("> guess : **42**", 42),
        ("Guess: 1\nNo, wait.\nGuess: 2", 2),
        ("Guess: 7 (of 1 to 100)\nThat is 3 more.", 7),
        ("between 1 and 100, so 50", 50),
        ("I say 50!", 50),
        ("_50_", 50),
        ("-5", -5),
        ("−5", -5),
        ("+5", 5),
        ("1,000", 1000),
        ("Guess: 0042", 42),
        (f"Guess: {MAX_NUMBER:,}", MAX_NUMBER),
        (f"Guess: -{MAX_NUMBER}", -MAX_NUMBER),
        ("Guess: 5\nGuess:", 5),
        ("1 to 100\nGuess: fifty", None),
        ("", None),
        ("fifty", None),
        ("1.5", None),
        ("50-60", None),
        ("x1", None),
        ("1e3", None),
        ("1,00", None),
        ("²", None),
        ("٤٢", None),
        (f"Guess: {MAX_NUMBER + 1}", None),
        ("9" * 10_000, None),
        ("Guess: " + "9" * 10_000, None),
        ("\ud83d 12", 12),
    ],
)
def test_how_a_guess_is_read(text, guess):
    """The last guess line counts, else the last whole number; a number that is too long is unreadable."""
    assert read_guess(text) == guess


@given(st.text() | st.text(alphabet="0123456789,.-+ \nGuess:"))
def test_any_text_is_a_guess_or_none(text):
    """Any text is parsed to a number of bounded size or to none."""
    guess = read_guess(text)
    assert guess is None or abs(guess) <= MAX_NUMBER


@given(st.integers(-MAX_NUMBER, MAX_NUMBER), st.sampled_from(["{}", "{:,}", "Guess: {}", "so it is {:,}."]))
def test_every_number_can_be_guessed(number, form):
    """Every possible target can be written, with and without commas."""
    assert read_guess(form.format(number)) == number


@pytest.mark.parametrize(
    "text", ["1," * 300_000, "1,111" * 200_000, "-" * 600_000, "Guess:" * 100_000, "\n>" * 300_000]
)
def test_hostile_texts_end(text):
    """Parsing is linear also for text made to be slow."""
    assert read_guess(text) in (None, 111)


@given(st.integers(1, 100), st.lists(st.integers(-10, 110) | st.none(), max_size=12), st.integers(1, 10))
async def test_the_game_agrees_with_an_independent_count(target, guesses, max_turns):
    """Rewards, turns and the end agree with an independent computation."""
    env = await start(target, max_turns=max_turns)
    total, result = 0.0, StepResult(0.0, done=False)
    for turn, guess in enumerate(guesses, 1):
        result = await env.step(to_completion("hm" if guess is None else f"Guess: {guess}"))
        total += result.reward
        assert result.done == (guess == target or turn == max_turns)
        if result.done:
            break
    played = guesses[:max_turns]
    played = played[: played.index(target) + 1] if target in played else played
    assert total == (target in played) - played.count(None)
    assert result.stop_reason == ("max_turns" if len(played) == max_turns and target not in played else None)


@pytest.mark.parametrize(("last", "total"), [("Guess: 38", 0.0), ("what?", -1.0)])
async def test_the_turn_cap_is_the_envs_own_end(tmp_path, last, total):
    """The last turn ends the game as `max_turns`, whatever it was, and both graders are asked."""
    case = Case(tmp_path, game(max_turns=2), Remembering(said("Guess: 20"), said(last)))
    rollout = await case.play()
    assert (rollout.stop_reason, rollout.stopped_by) == (StopReason.MAX_TURNS, StoppedBy.ENV)
    assert case.rewards() == case.env_rewards() == [0.0, total]
    assert rollout.conversation[-1].content.endswith(" 0 turns left.")
    assert case.needs_grade
    assert case.group_graded == [total + 110]


async def test_the_right_number_in_the_last_turn_completes(tmp_path):
    """The right number in the last turn ends the game as completed, not by the cap."""
    case = Case(tmp_path, game(max_turns=2), Remembering(said("Guess: 20"), said("Guess: 37")))
    rollout = await case.play()
    assert (rollout.stop_reason, rollout.stopped_by) == (StopReason.COMPLETED, StoppedBy.ENV)
    assert case.rewards() == [0.0, 1.0]


async def test_a_cut_response_ends_it(tmp_path):
    """A truncated response costs 0.1 and is not a turn of the env, even if it holds the number."""
    policy = Remembering(said("Guess: 20"), said("Guess: 37", Termination.LENGTH))
    case = Case(tmp_path, game(), policy)
    await case.play()
    expect_limit(case, StopReason.MAX_TOKENS, total=-0.1)
    assert case.env_rewards() == [0.0, None]


async def test_it_goes_on_after_a_cut_where_so_set(tmp_path):
    """The truncated turn is kept through `observe`, and uses up a turn."""
    policy = Remembering(said("I th", Termination.LENGTH), said("Guess: 20"), said("Guess: 30"))
    case = Case(tmp_path, game(max_turns=3), policy, limits=Limits(continue_after_truncation=True))
    rollout = await case.play()
    assert (rollout.stop_reason, rollout.stopped_by) == (StopReason.MAX_TURNS, StoppedBy.ENV)
    assert case.rewards() == [-0.1, 0.0, 0.0]
    assert [step.env_state.get("turn") for step in rollout.steps] == [None, 2, 3]


async def test_a_malformed_response_ends_it(tmp_path):
    """Broken framing is a parse error and costs 1."""
    case = Case(tmp_path, game(), Remembering(said("Guess: 20"), said("Guess: 37", Termination.MALFORMED)))
    rollout = await case.play()
    assert (rollout.stop_reason, rollout.stopped_by) == (StopReason.PARSE_ERROR, StoppedBy.RUNNER)
    assert case.rewards() == [0.0, -1.0]
    assert not case.needs_grade


async def test_a_context_that_overflows_ends_it(tmp_path):
    """The −0.1 replaces the last step's reward, which is kept as the env's."""
    tokens = lambda request: len(request.messages) * 10  # noqa: E731 - one line reads best
    policy = Remembering(said("Guess: 20"), said("hm"), context_length=45, tokens=tokens)
    case = Case(tmp_path, game(), policy)
    await case.play()
    expect_limit(case, StopReason.CONTEXT_OVERFLOW, total=-0.1)
    assert case.rewards() == [0.0, -0.1]
    assert case.env_rewards() == [0.0, -1.0]


async def test_running_out_of_time_keeps_what_was_played(tmp_path):
    """A policy that does not answer in time leaves the earlier steps."""
    case = Case(tmp_path, game(), Remembering(said("hm"), never), limits=Limits(timeout=600))
    rollout = await case.play()
    expect_limit(case, StopReason.TIMEOUT, total=-1.0)
    assert len(rollout.steps) == 1


async def test_a_policy_that_fails_is_a_failure_of_the_policy(tmp_path):
    """The earlier steps are kept; there is no reward."""
    case = Case(tmp_path, game(), Remembering(said("Guess: 20"), PolicyError("gone")))
    rollout = await case.play()
    expect_failure(case, Layer.POLICY, "PolicyError")
    assert len(rollout.steps) == 1


async def test_messages_from_outside():
    """Messages are passed on; one of the policy uses up a turn, and is refused if no turn would be left."""
    env = await start(max_turns=3)
    note, reply = Message("user", "a note"), Message("assistant", "cut of")
    assert (await env.observe([note])).messages == (note,)
    assert env.turn == 0
    assert (await env.observe([reply, note])).messages == (reply, note)
    assert await env.observe([reply, reply]) is None
    assert (await env.step(to_completion("Guess: 1"))).env_state["turn"] == 2
    assert await env.observe([reply]) is None
    assert (await env.step(to_completion("Guess: 1"))).stop_reason == StopReason.MAX_TURNS
    with pytest.raises(EnvError, match="after the episode was done"):
        await env.observe([note])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"low": 5, "high": 5}, "Expected low < high"),
        ({"low": 6, "high": 5}, "got low=6 and high=5"),
        ({"high": MAX_NUMBER + 1}, "both from"),
        ({"low": -MAX_NUMBER - 1}, "both from"),
        ({"max_turns": 0}, "max_turns of at least 1"),
    ],
)
def test_wrong_settings(settings, message):
    """The error names a wrong setting before anything is played."""
    with pytest.raises(InputError, match=message):
        GuessNumberTasks(**settings)
