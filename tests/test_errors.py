"""One tree of exceptions, drawn in the module's docstring."""

import builtins
import inspect
import pickle
import re

import pytest

from rolltrace import errors
from rolltrace.errors import RolltraceError, UnknownNameError

ERRORS = [value for value in vars(errors).values() if inspect.isclass(value) and issubclass(value, Exception)]
DRAWN = re.compile(r"^ {4}(?P<branch>[│├└─ ]*)(?P<name>\w+)(?: +\((?P<builtin>\w+)\))?(?: {2,}(?P<words>.+))?$")


def drawn_tree():
    """Each class of the drawing with its parent and the builtin beside it."""
    tree, stack = {}, []
    for line in errors.__doc__.splitlines():
        if (match := DRAWN.match(line)) and line.startswith("    "):
            depth = len(match["branch"]) // 4
            del stack[depth:]
            builtin = match["builtin"]
            words = match["words"]
            if builtin is None and words and words.startswith("("):
                builtin = words[1 : words.index(")")]
            tree[match["name"]] = (stack[-1] if stack else None, builtin)
            stack.append(match["name"])
    return tree


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: error.__name__)
def test_every_error_pickles(error):
    """A pickled error has the same type and message."""
    back = pickle.loads(pickle.dumps(error("what was expected")))
    assert type(back) is error
    assert str(back) == "what was expected"
    assert back.args == ("what was expected",)


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: error.__name__)
def test_every_error_has_one_base_and_a_builtin(error):
    """All are `RolltraceError`, and each but that one is also a fitting builtin."""
    assert issubclass(error, RolltraceError)
    own = [
        base
        for base in error.__mro__
        if base.__module__ == "builtins" and base not in (Exception, BaseException, object)
    ]
    assert own or error is RolltraceError


def test_the_drawing_is_the_tree():
    """The tree in the docstring is the real one: every class, its parent, and its builtin."""
    real = {}
    for error in ERRORS:
        parents = [base.__name__ for base in error.__bases__ if base in ERRORS]
        builtin = [
            base.__name__ for base in error.__bases__ if hasattr(builtins, base.__name__) and base is not Exception
        ]
        real[error.__name__] = (parents[0] if parents else None, builtin[0] if builtin else None)
    assert drawn_tree() == real


def test_unknown_names_suggest_the_nearest():
    """The message says what was asked for, the nearest names, and all names."""
    error = UnknownNameError.for_name("env", "arithmetics", ["calculator", "arithmetic"])
    assert str(error) == "There is no env 'arithmetics'. Did you mean 'arithmetic'? Known: arithmetic, calculator."
    assert str(UnknownNameError.for_name("env", "x", [])) == "There is no env 'x'."
    assert isinstance(pickle.loads(pickle.dumps(error)), LookupError)
