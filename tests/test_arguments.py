from collections.abc import Callable
from pathlib import Path

import pytest

from rolltrace.arguments import Argument, bind_arguments, call_with_arguments, list_arguments
from rolltrace.errors import InputError, UnknownNameError


def typed(
    count: int = 1,
    share: float = 0.5,
    on: bool = False,
    name: str | None = None,
    many: list[int] | None = None,
    place: Path | None = None,
    function: Callable[[], int] | None = None,
):
    return count, share, on, name, many, place, function


def untyped(count=1, share=0.5, on=False, free=None, **rest):
    return count, share, on, free, rest


def test_text_becomes_what_the_annotation_says():
    """Arguments from a command line are text, and are converted to the function's types."""
    given = {"count": "3", "share": "0.25", "on": "true", "name": "7", "many": "[1, 2]", "place": "a/b"}
    assert call_with_arguments(typed, given, "it") == (3, 0.25, True, "7", [1, 2], Path("a/b"), None)


def test_null_is_none_where_none_is_allowed():
    """An optional argument can be set to null on the command line."""
    assert bind_arguments(typed, {"many": "null"}, "it") == {"many": None}


def test_python_values_pass():
    """Python callers may pass values, also of types without a text form."""
    given = {"count": 3, "on": True, "place": Path("x"), "function": len}
    assert bind_arguments(typed, given, "it") == given


def test_without_annotation_the_default_tells_the_type():
    """Without an annotation a plain default gives the type; other arguments stay as they are."""
    given = {"count": "3", "share": "1", "on": "false", "free": "3", "more": "4"}
    assert call_with_arguments(untyped, given, "it") == (3, 1.0, False, "3", {"more": "4"})


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"count": "three"}, "Expected `int` for argument 'count' of it, got 'three'."),
        ({"count": 1.5}, "Expected `int` for argument 'count' of it, got 1.5."),
        ({"on": "maybe"}, "Expected `bool` for argument 'on' of it, got 'maybe'."),
        ({"many": '[1, "a"]'}, "Expected `list[int] | None` for argument 'many' of it"),
    ],
)
def test_a_wrong_type_is_named(given, message):
    """The error names the argument, what was expected and what came."""
    with pytest.raises(InputError) as caught:
        call_with_arguments(typed, given, "it")
    assert str(caught.value).startswith(message)


def test_an_unknown_argument_suggests_the_nearest():
    """A misspelled argument is refused with the nearest one."""
    with pytest.raises(UnknownNameError, match=r"no argument of it 'cuont'\. Did you mean 'count'\?"):
        bind_arguments(typed, {"cuont": "1"}, "it")


def test_a_missing_argument_is_named():
    """The error names a required argument that is missing, unless the caller supplies it."""

    def needs(size: int, seed: int):
        return size, seed

    with pytest.raises(InputError, match="Expected argument 'size' of it, got none: pass size=VALUE"):
        bind_arguments(needs, {}, "it")
    assert bind_arguments(needs, {"size": "2"}, "it", supplied=("seed",)) == {"size": 2}


def test_an_exception_of_the_function_is_an_input_error_with_its_cause():
    """An exception in a user's constructor is the cause of an InputError; our own errors pass."""

    def breaks(own: bool = False):
        raise InputError("mine") if own else KeyError("oops")

    with pytest.raises(InputError, match="it could not be made: KeyError: 'oops'") as caught:
        call_with_arguments(breaks, {}, "it")
    assert isinstance(caught.value.__cause__, KeyError)
    with pytest.raises(InputError, match=r"^mine$"):
        call_with_arguments(breaks, {"own": "1"}, "it")


def test_unresolvable_annotations_are_left_alone():
    """An annotation that exists only for type checkers does not stop the call."""

    def vague(value: "NoSuchType" = None):  # noqa: F821
        return value

    assert call_with_arguments(vague, {"value": "x"}, "it") == "x"


def test_classes_and_listing():
    """The arguments of a class are those of its constructor, with types and defaults as Python writes them."""

    class Thing:
        def __init__(self, size: int, name: str | None = None):
            self.made = size, name

    assert list_arguments(Thing) == (Argument("size", "int", None), Argument("name", "str | None", "None"))
    assert call_with_arguments(Thing, {"size": "4"}, "it").made == (4, None)
