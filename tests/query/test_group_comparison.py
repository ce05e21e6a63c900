"""A group's members side by side: what is shared, what differs, the terms of each reward, why there is no signal."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from answers import score, write
from rollout_builders import header, outcome, read
from rolltrace.errors import InputError, UnknownNameError
from rolltrace.jobs.play import play
from rolltrace.query.group_comparison import compare_group
from rolltrace.query.group_members import first_difference
from rolltrace.query.message_truncation import MAX_CHARACTERS, MAX_MESSAGES
from rolltrace.query.reward_breakdown import reward_components, reward_terms
from rolltrace.store.create import create_run
from rolltrace.trace.codec import utc_now
from rolltrace.trace.failure import Failure
from rolltrace.trace.message import Message, ToolCall
from rolltrace.trace.rollout_builder import RolloutBuilder
from rolltrace.trace.score import Grade, GroupKey, Score
from rolltrace.trace.stop_reasons import Layer, Status, StoppedBy
from rolltrace.trace.strict_json import encode_json
from rolltrace.trace.text_transform import hash_text

KEY = GroupKey("train", 0, "sums", "g")


@pytest.fixture
def group(opened, path):
    """The group of the run of the test."""
    return lambda **settings: compare_group(opened(path), KEY, **settings)


def member(writer, index, answer, reward=1.0, prompt=("1 + 1?",), **fields):
    """Records a member of one turn through the recorder, as a user's own loop does."""
    with writer.rollout(env="sums", task="t", group="g", index=index, iteration=0) as rollout:
        messages = [{"role": "user", "content": text} for text in prompt]
        rollout.step(prompt=messages, response=answer, reward=reward, **fields)
    return rollout.id


def failed(layer, kind, message="why"):
    return {
        "status": Status.ERROR, "stop_reason": "error", "stopped_by": StoppedBy.RUNNER, "reward": None,
        "error": Failure(layer, kind, message, "Traceback …"),
    }  # fmt: skip


def about_group(writer, data, **fields):
    score(writer, None, 0.0, name="group_grade", group=KEY, data=data, **fields)


# The comparison


def test_members_are_compared_in_the_order_of_their_rewards(group, path):
    """The best comes first and null last; each says where it differs from the one before; the prompt is there once."""
    with create_run(path) as writer:
        middle = member(writer, 0, "It is 3.", 0.25)
        best = member(writer, 1, "It is 2.", 1.0)
        none = write(writer, index=2, **failed(Layer.ENV, "ValueError"))
    found = group()
    assert [one.id for one in found.members] == [best, middle, none]
    assert (found.size, found.n, found.mean, found.std) == (3, 2, 0.625, 0.375)
    assert [one.advantage for one in found.members] == [0.375, -0.375, None]
    assert found.has_signal
    assert found.no_signal is None
    assert [excerpt.message for excerpt in found.shared] == [Message("user", "1 + 1?")]
    assert [[text.message.content for text in one.messages] for one in found.members] == [
        ["It is 2."], ["It is 3."], ["2"],
    ]  # fmt: skip
    assert [one.messages[0].step for one in found.members] == [0, 0, 0]
    assert found.members[0].differs is None
    second = found.members[1].differs
    assert (second.message, second.character, second.of, second.field) == (0, 6, best, "content")
    assert found.members[2].differs.of == middle
    assert found.members[2].error.type == "ValueError"


def test_equal_rewards_are_in_the_order_of_the_indexes(group, path):
    """Of members with equal rewards the lower index comes first, and NaN comes after every number."""
    with create_run(path) as writer:
        for index, reward in ((3, 1.0), (1, 1.0), (2, math.nan), (0, -1.0), (4, math.inf)):
            member(writer, index, "x", reward)
    assert [one.index for one in group().members] == [4, 1, 3, 0, 2]


def test_members_that_say_the_same_do_not_differ(group, path):
    """Equal texts are no difference, and neither are the ids that link tool calls to answers."""

    def turn(writer, index, name):
        calls = [{"id": name, "type": "function", "function": {"name": "add", "arguments": "{}"}}]
        with writer.rollout(env="sums", task="t", group="g", index=index, iteration=0) as rollout:
            said = {"role": "assistant", "content": "", "tool_calls": calls}
            rollout.step(prompt="1 + 1?", response=said, reward=0.0)
            rollout.observe(
                [
                    {"role": "user", "content": "1 + 1?"},
                    said,
                    {"role": "tool", "content": "2", "tool_call_id": name},
                ]
            )

    with create_run(path) as writer:
        turn(writer, 0, "call_a")
        turn(writer, 1, "call_b")
    assert [one.differs for one in group().members] == [None, None]


def test_prompts_are_shared_as_far_as_they_are_the_same(group, path):
    """The common beginning of the first prompts is shown once; each member has the rest of its own."""
    with create_run(path) as writer:
        member(writer, 0, "a", prompt=("rules", "board", "you are X"))
        member(writer, 1, "b", prompt=("rules", "board", "you are O"))
        write(writer, index=2, steps=0, **failed(Layer.ENV, "OSError"))
    found = group()
    assert [excerpt.message.content for excerpt in found.shared] == []  # the third was asked something else
    with create_run(path, join=True) as writer:
        rollout_builder = writer.begin(
            header(id="never asked", run=writer.run, session=writer.session, env="sums", group="g", index=2)
        )
        writer.end(rollout_builder, outcome(**failed(Layer.ENV, "OSError")))
    found = group()
    assert [excerpt.message.content for excerpt in found.shared] == ["rules", "board"]
    assert [text.message.content for text in found.members[0].messages] == ["you are X", "a"]
    assert found.members[2].messages == ()
    assert found.members[1].differs.message == 0
    assert found.members[1].differs.character == len("you are ")


def test_the_last_attempts_of_the_latest_session_are_the_members(group, path):
    """An earlier attempt is counted, and what a restart repeated is left out with its scores."""
    with create_run(path) as writer:
        old = write(writer, index=0)
        about_group(writer, {"extra": {"ids": [old], "indexes": [0], "matrix": [[None]]}})
    with create_run(path, join=True) as writer:
        write(writer, index=0, attempt=0, **failed(Layer.POLICY, "PolicyError"))
        new = write(writer, index=0, attempt=1)
        other = write(writer, index=1)
    found = group()
    assert [one.id for one in found.members] == [new, other]
    assert found.retried == 1
    assert found.members[0].attempt == 1
    assert found.scores == ()
    assert found.matrix is None


def test_seats_of_a_game_are_named(group, path):
    """A member of a game has its episode and seat."""
    with create_run(path) as writer:
        for index in range(4):
            write(writer, index=index, episode=index // 2, seat=index % 2, reward=float(index))
    assert [(one.episode, one.seat) for one in group().members] == [(1, 1), (1, 0), (0, 1), (0, 0)]


def test_an_unknown_group_is_named(group, opened, path):
    """An unknown group is an error; a name that two runs have is refused as ambiguous."""
    with create_run(path) as writer:
        write(writer)
    with pytest.raises(UnknownNameError, match="no group 'h'"):
        compare_group(opened(path), GroupKey("train", 0, "sums", "h"))
    with create_run(path.with_name("other")) as writer:
        write(writer)
    with pytest.raises(InputError, match="2 runs"):
        compare_group(opened([path, path.with_name("other")]), KEY)


# The terms of a reward


def test_terms_are_the_parts_that_the_record_keeps(group, path):
    """Steps, grade and group grade sum to the reward, and each component has one name."""
    with create_run(path) as writer:
        rollout_builder = writer.begin(header(id="one", run=writer.run, session=writer.session, env="sums", group="g"))
        rollout_builder.extend([Message("user", "1 + 1?")])
        for _ in range(2):
            rollout_builder.mark_prompt_sent()
            rollout_builder.step(Message("assistant", "2"), reward=0.25, reward_data={"correct": True, "style": 0.5})
        rollout_builder.grade = Grade(0.5, {"style": 0.75})
        writer.end(rollout_builder, outcome(reward=None, reward_so_far=1.0))
        data = {
            "reward_so_far": 1.0,
            "group_grade": 2.0,
            "unclamped_reward": None,
            "reward_data": {"style": 1, "wins": 3},
        }
        score(writer, "one", 3.0, data=data)
    [one] = group().members
    assert one.reward == 3.0
    assert [(term.name, term.value) for term in one.terms] == [("steps", 0.5), ("grade", 0.5), ("group grade", 2.0)]
    assert one.reward_data == {"correct": 2.0, "style": 1.0, "grade.style": 0.75, "group_grade.style": 1.0, "wins": 3.0}


def test_a_clamp_is_a_term(group, path):
    """A clamp is the difference between the parts and the reward, on the line and in a score."""
    with create_run(path) as writer:
        write(writer, index=0, reward=0.0, reward_so_far=1.0, unclamped_reward=1.0)
        late = write(writer, index=1, reward=None)
        score(writer, late, 0.0, data={"reward_so_far": 1.0, "group_grade": 0.5, "unclamped_reward": 1.5})
    told = {one.index: [(term.name, term.value) for term in one.terms] for one in group().members}
    assert told[0] == [("steps", 1.0), ("clamp", -1.0)]
    assert told[1] == [("steps", 1.0), ("group grade", 0.5), ("clamp", -1.5)]


def test_a_later_score_without_parts_is_the_whole(group, path):
    """A user's score named reward replaces the sum; other scores are listed, the latest of each name."""
    with create_run(path) as writer:
        one = member(writer, 0, "2", 1.0)
        writer.score(one, "reward", 0.125)
        writer.score(one, "advantage", 0.5)
        writer.score(one, "advantage", 0.75)
    [found] = group().members
    assert [(term.name, term.value) for term in found.terms] == [("score", 0.125)]
    assert found.scores == {"advantage": 0.75}


numbers = st.floats(-1e6, 1e6)


def late(value, data):
    """A score that sets a rollout's reward."""
    return Score(id="late", run="run", rollout="rollout", name="reward", value=value, data=data, created_at=utc_now())


@given(
    st.lists(numbers, max_size=4), st.none() | numbers, st.none() | numbers, st.booleans(), st.none() | numbers, numbers
)
def test_terms_sum_up_to_the_reward(steps, grade, group_grade, is_clamped, ended_before_first_turn, other):
    """Whatever a rollout's parts and its total are, its terms sum to the reward."""
    rollout_builder = RolloutBuilder(header())
    rollout_builder.extend([Message("user", "1 + 1?")])
    for reward in steps:
        rollout_builder.mark_prompt_sent()
        rollout_builder.step(Message("assistant", "2"), reward=reward)
    if not steps and ended_before_first_turn is not None:
        rollout_builder.end_before_first_turn(reward=ended_before_first_turn)
    if grade is not None:
        rollout_builder.grade = Grade(grade)
    total = other if is_clamped else math.fsum([*steps, grade or 0.0, group_grade or 0.0])
    clamped = min(0.0, total)
    before = total if is_clamped else None
    reward = clamped if is_clamped else total
    rollout = read(rollout_builder.encode(outcome(reward=reward, reward_so_far=total, unclamped_reward=before)))
    if group_grade is not None:
        rollout = rollout.with_scores([late(reward, {"group_grade": group_grade, "unclamped_reward": before})])
    terms = reward_terms(rollout)
    largest = max(1.0, abs(total), *(abs(term.value) for term in terms))
    assert math.isclose(math.fsum(term.value for term in terms), reward, rel_tol=0.0, abs_tol=2e-6 * largest)
    assert len({term.name for term in terms}) == len(terms)


def test_a_charge_that_is_in_no_step_is_a_term():
    """A charge for a first prompt that did not fit is the term `limit`; a total without parts is `unexplained`."""
    rollout_builder = RolloutBuilder(header())
    rollout_builder.extend([Message("user", "long")])
    ended = outcome(reward=-0.1, reward_so_far=-0.1, stop_reason="context_overflow")
    assert [(term.name, term.value) for term in reward_terms(read(rollout_builder.encode(ended)))] == [("limit", -0.1)]
    rollout_builder = RolloutBuilder(header())
    terms = reward_terms(read(rollout_builder.encode(outcome(reward=3.0, reward_so_far=3.0))))
    assert [(term.name, term.value) for term in terms] == [("unexplained", 3.0)]


def test_numbers_that_do_not_fit_are_left_out():
    """Of a map in a score only finite-size numbers are used; text and huge integers are ignored."""
    rollout_builder = RolloutBuilder(header())
    rollout = read(rollout_builder.encode(outcome()))
    odd = {"reward_data": {"a": 1, "b": "two", "c": None, "d": [3], "e": 10**400, "f": math.inf}}
    assert reward_components(rollout.with_scores([late(1.0, odd)])) == {"a": 1.0, "f": math.inf}
    assert reward_components(rollout.with_scores([late(1.0, {"reward_data": "none"})])) == {}


# Where texts differ

texts = st.text(alphabet="ab\n🙂", max_size=6)
calls = st.builds(ToolCall, name=st.sampled_from(["f", "g"]), arguments=texts, id=st.none() | texts)
said = st.builds(
    Message, role=st.sampled_from(["user", "assistant"]), content=texts, reasoning=st.none() | texts,
    tool_calls=st.lists(calls, max_size=2).map(tuple), name=st.none() | st.just("n"),
)  # fmt: skip


def read_out(messages):
    """The text of a transcript as a reader sees it, each character with its place."""
    for place, message in enumerate(messages):
        yield place, "role", None, 0, (message.role, message.name or "")
        for field, text in (("reasoning", message.reasoning or ""), ("content", message.content)):
            for offset, character in enumerate(text):
                yield place, field, None, offset, character
        for number, call in enumerate(message.tool_calls):
            yield place, "tool_calls", number, 0, call.name
            for offset, character in enumerate(call.arguments):
                yield place, "tool_calls", number, offset, character


@given(st.lists(said, max_size=3), st.lists(said, max_size=3))
def test_first_difference_is_the_first(own, other):
    """Before the first difference both texts are equal, character for character, and there they are not."""
    found = first_difference(own, other, "other")
    mine, theirs = list(read_out(own)), list(read_out(other))
    if found is None:
        assert mine == theirs
        return
    order = ("role", "reasoning", "content", "tool_calls")

    def stands_before(item):
        place, field, number, offset, _ = item
        there = (found.message, order.index(found.field), found.number or 0, found.character)
        return (place, order.index(field), number or 0, offset) < there

    assert [item for item in mine if stands_before(item)] == [item for item in theirs if stands_before(item)]
    assert mine != theirs
    if found.message == min(len(own), len(other)):
        return
    if found.field in ("reasoning", "content"):
        one, two = (getattr(side[found.message], found.field) or "" for side in (own, other))
        assert one[: found.character] == two[: found.character]
        assert one[found.character : found.character + 1] != two[found.character : found.character + 1]


@given(st.text(max_size=30), st.text(min_size=1, max_size=5), st.text(max_size=5), st.sampled_from([1, 100_000]))
def test_a_difference_is_found_in_long_texts(same, one, other, times):
    """The offset is right also after a very long common text."""
    common = same * times
    first, second = common + one, common + other
    found = first_difference([Message("user", first)], [Message("user", second)], "other")
    if first == second:
        assert found is None
    else:
        assert first[: found.character] == second[: found.character]
        assert first[found.character : found.character + 1] != second[found.character : found.character + 1]


# Why there is no signal


def test_equal_rewards_have_no_signal(group, path):
    """If all rewards are equal, the sentence names the value, and why others have none."""
    with create_run(path) as writer:
        for index in range(2):
            member(writer, index, f"{index}", 1.0)
    assert group().no_signal == "Both rewards are 1.0: every advantage is 0."
    with create_run(path, join=True) as writer:
        member(writer, 2, "2", 1.0)
    assert group().no_signal == "All 3 rewards are 1.0: every advantage is 0."
    with create_run(path, join=True) as writer:
        write(writer, index=3, **failed(Layer.TOOL, "TimeoutError"))
    assert group().no_signal == (
        "All 3 rewards are 1.0: every advantage is 0. 1 of 4 members has no reward: 1 failed (tool: TimeoutError)."
    )


REASONS = {
    "1 failed (env: ValueError)": failed(Layer.ENV, "ValueError"),
    "1 cancelled": {"status": Status.CANCELLED, "stop_reason": "cancelled", "reward": None},
    "1 aborted because another seat or member failed": {
        "status": Status.ERROR, "stop_reason": "episode_aborted", "reward": None,
    },
    "1 without a grade so far": {"reward": None},
    "1 failed (grader: GraderError: too slow)": failed(Layer.GRADER, "GraderError", "too\nslow."),
}  # fmt: skip


@pytest.mark.parametrize("reason", REASONS)
def test_a_missing_reward_has_its_reason(group, path, reason):
    """If fewer than two members have a reward, the sentence says why the others have none."""
    with create_run(path) as writer:
        write(writer, index=0, **REASONS[reason])
        write(writer, index=1)
    assert group().no_signal == f"Only one of 2 members has a reward: {reason}."


def test_a_group_grader_that_failed_is_named(group, path):
    """Members without their group's grade say what became of it."""
    failure = Failure(Layer.GRADER, "TimeoutError", "no answer")
    with create_run(path) as writer:
        for index in range(2):
            score(writer, write(writer, index=index, reward=None), None, error=failure)
    found = group()
    assert found.no_signal == "None of 2 members has a reward: 2 without a grade (grader: TimeoutError: no answer)."
    assert [one.error for one in found.members] == [failure, failure]


def test_a_reward_that_is_not_finite_is_named(group, path):
    """One NaN makes every advantage undefined, and the sentence names the member."""
    with create_run(path) as writer:
        member(writer, 0, "a", 1.0)
        member(writer, 1, "b", math.nan)
    found = group()
    told = "One of 2 rewards is not finite (member 1 has NaN): so the mean and every advantage are NaN."
    assert found.no_signal == told
    assert all(math.isnan(one.advantage) for one in found.members)


def test_one_member_has_nothing_to_be_compared_with(group, path):
    """A group of one says so."""
    with create_run(path) as writer:
        member(writer, 0, "a")
    assert group().no_signal == "The group has one member: there is nothing to compare it with."


# Rubrics and preferences, as the runner records them


@pytest.mark.parametrize("trace", ["full", "numbers"])
def test_rubric_has_each_criterion_of_each_member(opened, path, trace):
    """The grid has the graders' scores, also if the run keeps no text."""
    play("rubric", "scripted:noisy", out=path, groups=1, group_size=3, trace=trace)
    run = opened(path)
    [key] = run.sql('select split, iteration, env, "group" from groups').fetchall()
    found = compare_group(run, GroupKey(*key))
    assert found.rubric.ids == tuple(one.id for one in found.members)
    for criterion, row in zip(found.rubric.criteria, found.rubric.cells, strict=True):
        assert math.isfinite(criterion.weight)
        for one, cell in zip(found.members, row, strict=True):
            assert cell.value == run.get(one.id).grade.reward_data[criterion.name]
            assert cell.words.startswith("hashed:" if trace == "numbers" else "It has ")
    assert [term.name for term in found.members[0].terms] == ["steps", "grade"]
    assert all(one.reward == pytest.approx(sum(term.value for term in one.terms)) for one in found.members)


@pytest.mark.parametrize("trace", ["full", "numbers"])
def test_preferences_are_in_the_order_of_the_members(opened, path, trace):
    """The matrix has the tournament's score of each pair, with rows and columns in the order of the rewards."""
    play("preference", "scripted:noisy", out=path, groups=1, group_size=4, trace=trace)
    run = opened(path)
    [key] = run.sql('select split, iteration, env, "group" from groups').fetchall()
    found = compare_group(run, GroupKey(*key))
    assert found.matrix.ids == tuple(one.id for one in found.members)
    assert found.matrix.indexes == tuple(one.index for one in found.members)
    for row, one in enumerate(found.matrix.ids):
        scores = run.scores(where=f"rollout = '{one}' and name = 'reward'")
        met = {
            matchup["opponent_index"]: matchup
            for [late] in [list(scores)]
            for matchup in late.data["extra"]["matchups"]
            if matchup["first"]
        }
        for column, index in enumerate(found.matrix.indexes):
            assert found.matrix.cells[row][column] == (met[index]["score"] if index in met else None)
    assert found.matrix.numbers["matchups"] == 12
    assert all(one.reward == pytest.approx(sum(term.value for term in one.terms)) for one in found.members)


ODD = [
    {}, {"extra": None}, {"extra": {"matrix": []}}, {"extra": {"matrix": [[1.0]]}}, {"extra": {"matrix": "none"}},
    {"extra": {"ids": ["stranger"], "indexes": [0], "matrix": [[None]]}},
    {"extra": {"ids": ["a"], "indexes": [0], "matrix": [[None, 1.0]]}},
    {"extra": {"ids": 5, "indexes": {}, "matrix": [[None]]}},
]  # fmt: skip


@pytest.mark.parametrize("data", ODD)
def test_an_invalid_matrix_is_ignored(group, path, data):
    """Data that is no square matrix of members is ignored, and nothing raises."""
    with create_run(path) as writer:
        write(writer, id="a")
        about_group(writer, data)
    found = group()
    assert found.matrix is None
    assert [late.name for late in found.scores] == ["group_grade"]


def test_invalid_cells_are_none(group, path):
    """A matrix keeps the cells that are numbers; an id that is no member comes last, without a name."""
    with create_run(path) as writer:
        write(writer, id="a", index=0, reward=0.0)
        write(writer, id="b", index=1, reward=1.0)
        data = {"ids": ["gone", "a", hash_text("b")], "matrix": [[None, 1, 2], [3, None, "x"], [0.5, math.nan, None]]}
        about_group(writer, {"extra": data})
    matrix = group().matrix
    assert matrix.ids == ("b", "a", None)
    assert matrix.indexes == (1, 0, None)
    assert matrix.cells[1] == (None, None, 3.0)
    assert math.isnan(matrix.cells[0][1])


def test_invalid_criteria_are_ignored(group, path):
    """Of criteria of the wrong types, the readable ones are shown, or no grid."""
    with create_run(path) as writer:
        for index, criteria in enumerate(([{"name": "a", "weight": "heavy", "score": 0.5}, {"name": 7}, "b"], "none")):
            with writer.rollout(env="sums", task="t", group="g", index=index, iteration=0) as rollout:
                rollout.step(prompt="?", response="!", reward=float(index))
                rollout.grade(0.0, {}, {"criteria": criteria})
    grid = group().rubric
    assert [(one.name, one.weight, one.text) for one in grid.criteria] == [("a", None, None)]
    assert [[cell.value for cell in row] for row in grid.cells] == [[None, 0.5]]


# Large, damaged and hashed records


def test_long_texts_and_conversations_are_truncated(group, path):
    """Texts and lists are truncated to a page's size, and each says how much was left out."""
    with create_run(path) as writer:
        with writer.rollout(env="sums", task="t", group="g", index=0, iteration=0) as rollout:
            history = [{"role": "user", "content": "s" * 50_000}]
            for turn in range(150):
                rollout.step(prompt=history, response=f"answer {turn}", reward=0.0)
                history = [
                    *history,
                    {"role": "assistant", "content": f"answer {turn}"},
                    {"role": "user", "content": "on"},
                ]
        member(writer, 1, "x" * 1_000_000, prompt=("s" * 50_000,))
    found = group()
    assert len(found.shared[0].message.content) == MAX_CHARACTERS
    assert found.shared[0].omitted == 50_000 - MAX_CHARACTERS
    huge, many = found.members
    assert len(huge.messages[0].message.content) == MAX_CHARACTERS
    assert huge.messages[0].omitted == 1_000_000 - MAX_CHARACTERS
    assert len(many.messages) == MAX_MESSAGES
    assert len(many.messages) + many.omitted == 299
    assert len(encode_json(found)) < 200_000


def test_a_very_large_group_is_compared_by_its_best(group, path):
    """The numbers are those of all members; those with the best rewards are compared."""
    with create_run(path) as writer:
        for index in range(20):
            member(writer, index, f"{index}", float(index))
    found = group(most=3)
    assert (found.size, found.n, found.mean, found.omitted) == (20, 20, 9.5, 17)
    assert [one.reward for one in found.members] == [19.0, 18.0, 17.0]
    assert found.members[0].advantage == 9.5


def test_hashed_texts_differ_as_wholes(opened, path):
    """If only lengths and hashes are recorded, a difference names the message and no offset."""
    play("arithmetic", "scripted:noisy", out=path, groups=1, group_size=4, trace="numbers")
    run = opened(path)
    [key] = run.sql('select split, iteration, env, "group" from groups').fetchall()
    found = compare_group(run, GroupKey(*key))
    assert len(found.shared) == 1
    assert found.shared[0].message.content.startswith("hashed:")
    assert {one.differs.character for one in found.members if one.differs is not None} == {0}


def damaged_run(opened, path, old, new):
    """An open run of three members, whose file was damaged after its tables were built."""
    with create_run(path) as writer:
        for index in range(3):
            member(writer, index, f"answer {index}", float(index))
    run = opened(path)
    assert len(compare_group(run, KEY).members) == 3
    [segment] = (path / "rollouts").iterdir()
    segment.write_bytes(segment.read_bytes().replace(old, new))
    return run


def test_damage_costs_only_what_it_held(opened, path):
    """A line that was damaged after its table was built is missing, and the others are compared."""
    run = damaged_run(opened, path, b"answer 1", b"answer\x001")
    found = compare_group(run, KEY)
    assert [one.index for one in found.members] == [2, 0]


def test_a_group_without_a_readable_member(opened, path):
    """If every line is damaged, the comparison has no members, says how many are missing, and raises nothing."""
    run = damaged_run(opened, path, b"answer", b"answe\x00")
    found = compare_group(run, KEY)
    assert (found.members, found.unreadable, found.omitted) == ((), 3, 0)
    assert len(run.problems) == 3


def test_a_repeated_line_is_one_member(group, path):
    """A line that is in the file twice, as after a faulty copy, is one member."""
    with create_run(path) as writer:
        for index in range(3):
            member(writer, index, f"answer {index}", float(index))
    [segment] = (path / "rollouts").iterdir()
    lines = segment.read_bytes().splitlines(keepends=True)
    segment.write_bytes(b"".join([*lines, lines[0]]))
    assert [one.index for one in group().members] == [2, 1, 0]


def test_members_come_in_windows(group, path):
    """Consecutive windows have every member once, each compared with the one before it, also across windows."""
    with create_run(path) as writer:
        ids = [member(writer, index, f"{index}", float(-index)) for index in range(20)]
    windows = [group(most=7, offset=offset) for offset in (0, 7, 14)]
    members = [one for window in windows for one in window.members]
    assert [one.id for one in members] == ids
    assert [one.differs and one.differs.of for one in members] == [None, *ids[:-1]]
    assert [(window.offset, window.omitted) for window in windows] == [(0, 13), (7, 13), (14, 14)]
    assert [window.reference and window.reference.id for window in windows] == [None, ids[6], ids[13]]
    assert [mark.id for mark in windows[1].marks] == ids
    assert [mark.rank for mark in windows[1].marks] == list(range(20))
    assert (group(offset=20).members, group().marks) == ((), ())


def test_members_are_compared_with_a_chosen_one(group, path):
    """With `against`, every member is compared with that one, also if it is in another window."""
    with create_run(path) as writer:
        ids = [member(writer, index, "even" if index % 2 == 0 else f"odd {index}", float(-index)) for index in range(8)]
    for found in (group(against=ids[2]), group(against=ids[2], offset=4)):
        assert found.is_against
        assert found.reference.id == ids[2]
        assert [one.differs and one.differs.of for one in found.members] == [
            None if one.index % 2 == 0 else ids[2] for one in found.members
        ]
    assert not group(against="no such rollout").members[0].differs


def test_a_window_ends_before_its_lines_are_too_long(group, path, monkeypatch):
    """Long records are read a few at a time, at least one with its predecessor."""
    monkeypatch.setattr("rolltrace.query.group_comparison._MAX_BYTES", 50_000)
    with create_run(path) as writer:
        for index in range(4):
            member(writer, index, "x" * (100_000 if index == 3 else 20_000), float(-index))
    assert [len(group(offset=offset).members) for offset in (0, 2, 3)] == [2, 1, 1]
