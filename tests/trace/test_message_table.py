"""Prompts as ranges: always exactly what was shown, with as few ranges as possible."""

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from rollout_builders import finished, header, outcome
from rolltrace.trace.message import Message
from rolltrace.trace.message_table import MessageTable, align
from rolltrace.trace.rollout import select_messages
from rolltrace.trace.rollout_builder import RolloutBuilder

FEW = st.sampled_from([Message(role, text) for role in ("user", "assistant") for text in ("yes", "no", "go on")])


class AgainstAPlainList(RuleBasedStateMachine):
    """Plays steps on a rollout builder and on plain lists."""

    def __init__(self):
        super().__init__()
        self.rollout_builder = RolloutBuilder(header())
        self.shown = []
        self.prompts = []
        self.responses = []
        self.moves = []
        self.is_open = False

    def move(self, messages):
        self.shown, self.is_open = messages, False
        if self.moves:
            self.moves[-1] += 1

    def close(self):
        if self.is_open:
            self.shown = [*self.shown, self.responses[-1]]
            self.is_open = False

    @rule(messages=st.lists(FEW, max_size=3))
    def extend(self, messages):
        self.close()
        self.rollout_builder.extend(messages)
        self.move([*self.shown, *messages])

    @rule(data=st.data())
    def replace(self, data):
        known = [*self.shown, *self.responses[-1:]]
        positions = st.lists(st.integers(0, max(0, len(known) - 1)), max_size=len(known))
        messages = [known[position] for position in data.draw(positions)] if known else []
        for message in data.draw(st.lists(FEW, max_size=2)):
            messages.insert(data.draw(st.integers(0, len(messages))), message)
        self.rollout_builder.replace(messages)
        self.move(messages)

    @rule(position=st.integers(0, 20), message=FEW)
    def edit_one(self, position, message):
        self.close()
        messages = list(self.shown)
        messages[position : position + 1] = [message]
        self.rollout_builder.extend([])
        self.rollout_builder.replace(messages)
        self.move(messages)

    @rule(first=st.integers(0, 5))
    def slide(self, first):
        messages = [*self.shown[:1], *self.shown[1 + first :]]
        self.rollout_builder.replace(messages)
        self.move(messages)

    @rule(response=FEW)
    def answer(self, response):
        self.close()
        self.rollout_builder.extend([])
        self.rollout_builder.mark_prompt_sent()
        self.prompts.append(self.shown)
        self.responses.append(response)
        self.moves.append(0)
        self.rollout_builder.step(response, reward=0.0)
        self.is_open = True

    @invariant()
    def is_the_same(self):
        conversation = self.rollout_builder.conversation
        assert conversation.prompt == self.shown
        assert list(self.rollout_builder.prompt) == self.shown
        assert (
            list(select_messages(conversation.messages, conversation.final_ranges(conversation.ranges))) == self.shown
        )

    def teardown(self):
        rollout = finished(self.rollout_builder)
        self.close()
        assert list(rollout.conversation) == self.shown
        assert [list(step.trace.prompt) for step in rollout.steps] == self.prompts
        assert [step.trace.policy_response for step in rollout.steps] == self.responses
        following = [*self.prompts[1:], self.shown]
        for step, held, moves in zip(rollout.steps, following, self.moves, strict=False):
            if not isinstance(step.response, int) and moves == 1:
                # The next prompt has no copy of it that was not there before.
                assert held.count(step.response) <= step.trace.prompt.count(step.response)


TestAgainstAPlainList = AgainstAPlainList.TestCase
TestAgainstAPlainList.settings = settings(max_examples=150, stateful_step_count=15, deadline=None)


def talk(turns, change, *, window=None):
    """The conversation of an env that shows its whole history each turn, after changing it."""
    rollout_builder = RolloutBuilder(header())
    history = [Message("system", "start"), Message("user", "question")]
    rollout_builder.extend(history)
    for turn in range(turns):
        rollout_builder.mark_prompt_sent()
        response = Message("assistant", f"answer {turn}")
        rollout_builder.step(response, reward=0.0)
        history = change([*history, response, Message("user", f"result {turn}")], turn)
        if window:
            history = [history[0], *history[1:][-window:]]
        rollout_builder.replace(history)
    return finished(rollout_builder)


def test_a_growing_conversation_is_one_range():
    """A conversation that only grows is one range, whether it is extended or given whole each turn."""
    rollout = talk(20, lambda history, turn: history)
    assert [step.prompt for step in rollout.steps] == [((0, 2 + 2 * turn),) for turn in range(20)]
    assert [step.response for step in rollout.steps] == [2 + 2 * turn for turn in range(20)]
    assert rollout.final == ((0, 42),)


def test_two_equal_messages_at_two_places_are_two_entries():
    """Messages are stored by occurrence, not by text."""
    rollout_builder = RolloutBuilder(header())
    same = Message("user", "again")
    rollout_builder.extend([same, same])
    rollout_builder.replace([same, same, same])
    rollout = finished(rollout_builder)
    assert rollout.messages == (same, same, same)
    assert rollout.final == ((0, 3),)


def test_a_rewritten_system_prompt_costs_one_range_more():
    """A first message that changes every turn leaves the rest in one range."""
    rollout = talk(60, lambda history, turn: [Message("system", f"turn {turn}"), *history[1:]])
    assert max(len(step.prompt) for step in rollout.steps) == 2
    assert len(rollout.messages) == 2 + 2 * 60 + 60


def test_a_sliding_window_is_two_ranges():
    """A window over the history is two ranges, and nothing is stored twice."""
    rollout = talk(60, lambda history, turn: history, window=6)
    assert max(len(step.prompt) for step in rollout.steps) == 2
    assert len(rollout.messages) == 2 + 2 * 60


def test_editing_one_old_message_a_turn_costs_two_ranges_an_edit():
    """Each edited message is one new entry, and splits at most one range."""

    def edit(history, turn):
        history[1 + turn] = Message("user", f"edited in turn {turn}")
        return history

    rollout = talk(40, edit)
    for turn, step in enumerate(rollout.steps):
        assert len(step.prompt) <= 1 + 2 * turn
    assert len(rollout.messages) == 2 + 2 * 40 + 40


def test_editing_the_same_message_each_turn_costs_three_ranges():
    """A message that is edited repeatedly splits the conversation once, not once per edit."""

    def edit(history, turn):
        history[1] = Message("user", f"question, asked {turn} times")
        return history

    assert max(len(step.prompt) for step in talk(40, edit).steps) == 3


def test_an_edit_that_repeats_another_message_splits_nothing():
    """A message edited to the text of others does not change their alignment."""
    say = [
        Message("user", "continue"),
        Message("assistant", "one"),
        Message("user", "continue"),
        Message("assistant", "two"),
    ]
    conversation = MessageTable()
    conversation.extend([Message("user", "question"), *say])
    conversation.replace([Message("user", "continue"), *say, Message("user", "new")])
    assert len(conversation.messages) == 7
    assert conversation.final_ranges(conversation.ranges) == ((6, 7), (1, 6))


def test_of_two_ways_to_align_the_first_message_decides():
    """If either of two messages could have stayed, the earlier one did, so that a growing history is one range."""
    go, reply = Message("user", "go on"), Message("assistant", "yes")
    assert align([go, reply], [Message("user", "2 turns left"), reply, go]) == [None, 1, None]


def test_a_response_is_an_index_if_the_next_prompt_holds_it():
    """A response is stored once if the conversation keeps it, wherever it is put."""
    response = Message("assistant", "yes")
    system, question = Message("system", "s"), Message("user", "q")
    for following in (
        [system, question, response, Message("user", "go on")],
        [response, system, question],
        [system, response, question],
        [response, question],
        [response],
    ):
        rollout_builder = RolloutBuilder(header())
        rollout_builder.extend([system, question])
        rollout_builder.mark_prompt_sent()
        rollout_builder.step(response, reward=0.0)
        rollout_builder.replace(following)
        rollout = finished(rollout_builder)
        assert isinstance(rollout.steps[0].response, int)
        assert rollout.messages[rollout.steps[0].response] == response
        assert rollout.messages.count(response) == 1
        assert rollout.conversation == tuple(following)


def test_a_response_that_was_edited_or_left_out_is_inline():
    """A response is inline in its step if the conversation does not hold it."""
    response = Message("assistant", "<think>secret</think>yes")
    for following in ([Message("user", "q"), Message("assistant", "yes")], [Message("user", "q")], []):
        rollout_builder = RolloutBuilder(header())
        rollout_builder.extend([Message("user", "q")])
        rollout_builder.mark_prompt_sent()
        rollout_builder.step(response, reward=0.0)
        rollout_builder.replace(following)
        [step] = finished(rollout_builder).steps
        assert step.response == response


def test_a_response_equal_to_an_older_message_is_not_taken_for_it():
    """An answer that repeats an earlier one, and is then left out, is inline: an index would point at another."""
    yes = Message("assistant", "yes")
    rollout_builder = RolloutBuilder(header())
    rollout_builder.extend([yes])
    rollout_builder.mark_prompt_sent()
    rollout_builder.step(yes, reward=0.0)
    rollout_builder.replace([yes])
    rollout = finished(rollout_builder)
    assert rollout.steps[0].response == yes
    assert rollout.messages == (yes,)


def test_the_last_response_is_part_of_the_final_conversation():
    """After the last step, `final` holds the response."""
    rollout_builder = RolloutBuilder(header())
    rollout_builder.extend([Message("user", "q")])
    rollout_builder.mark_prompt_sent()
    rollout_builder.step(Message("assistant", "a"), reward=0.0)
    rollout = finished(rollout_builder)
    assert (rollout.steps[0].response, rollout.final) == (1, ((0, 2),))


@given(st.integers(1, 3), st.booleans())
def test_growth_is_linear(repeated, whole):
    """With five hundred turns of equal messages each prompt is one range, and the line's size is linear in turns."""
    sizes = {}
    for turns in (125, 250, 500):
        rollout_builder = RolloutBuilder(header())
        history = [Message("user", "again")] * repeated
        rollout_builder.extend(history)
        for _ in range(turns):
            rollout_builder.mark_prompt_sent()
            rollout_builder.step(Message("assistant", "yes"), reward=0.0, reward_data={"a": 1})
            history = [*history, Message("assistant", "yes"), Message("user", "again")]
            if whole:
                rollout_builder.replace(history)
            else:
                rollout_builder.extend(history[-1:])
        line = rollout_builder.encode(outcome())
        sizes[turns] = len(line.data)
        if turns == 500:
            rollout = rollout_builder.build(outcome())
            assert all(len(step.prompt) == 1 for step in rollout.steps)
            assert len(rollout.messages) == repeated + 2 * turns
    # Only the digits of the steps' numbers may grow.
    assert (sizes[500] - sizes[250]) / 250 <= 1.05 * (sizes[250] - sizes[125]) / 125


test_growth_is_linear = settings(max_examples=6, deadline=None)(test_growth_is_linear)
