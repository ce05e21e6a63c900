"""The parts of a rollout on their way to the encoder are the record, field by field."""

from rolltrace.trace.rollout import Header, Outcome, Rollout, Step
from rolltrace.trace.step_fields import ConversationFields, OutcomeFields, StepFields, TrailingFields


def test_row_has_the_fields_of_a_step():
    """A step is written with exactly its fields, in their order."""
    assert StepFields.__struct_fields__ == Step.__struct_fields__


def test_pieces_have_the_fields_of_a_rollout():
    """Header, ending, middle and rest, one after the other, are exactly a rollout's fields, in their order."""
    pieces = (Header, OutcomeFields, ConversationFields, TrailingFields)
    assert tuple(name for piece in pieces for name in piece.__struct_fields__) == Rollout.__struct_encode_fields__


def test_outcome_has_fields_of_the_ending():
    """How a rollout ended is said in the words of the record; only the grade comes from elsewhere."""
    assert {*Outcome.__annotations__, "grade"} == set(OutcomeFields.__struct_fields__)
