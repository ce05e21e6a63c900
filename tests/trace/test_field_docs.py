"""The docstrings of fields are read from the source."""

from rolltrace.trace.field_docs import field_docs
from rolltrace.trace.rollout import Header, Rollout, Step
from rolltrace.trace.stop_reasons import EnvFailure
from rolltrace.trace.tokens import Tokens


def test_a_docstring_belongs_to_the_field_above_it():
    """Fields without a docstring are left out, and so are properties and methods."""
    docs = field_docs(Step)
    assert docs["prompt"] == "Ranges of the rollout's `messages`."
    assert "usage" not in docs
    assert docs.keys() <= set(Step.__struct_fields__)


def test_a_docstring_of_several_lines_is_one_line():
    """Line breaks and indentation of the source are removed."""
    doc = field_docs(Tokens)["char_lengths"]
    assert doc.startswith("How many characters")
    assert "\n" not in doc
    assert "  " not in doc


def test_inherited_fields_have_their_docstrings():
    """A record has the docstrings of its base classes and its own."""
    docs = field_docs(Rollout)
    assert field_docs(Header).items() <= docs.items()
    assert "line_reward" in docs


def test_a_docstring_redefined_in_a_subclass_wins():
    """The docstring in the most derived class counts."""

    class Base:
        value: int
        """Of the base."""

    class Derived(Base):
        value: int
        """Of the subclass."""

    assert field_docs(Derived) == {"value": "Of the subclass."}


def test_members_of_enums_have_docstrings_too():
    """The members of the format's enums are documented like fields."""
    assert field_docs(EnvFailure)["CANCELLED"] == "The rollout was cancelled while the env was at work."


def test_a_class_without_source_has_no_docstrings():
    """A class that is written in C, or made by code, is no error."""
    assert field_docs(int) == {}
    assert field_docs(type("Made", (), {"__module__": "nowhere"})) == {}
