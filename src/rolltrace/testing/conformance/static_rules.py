"""The rules that need no play: the builder's fields, its graders, and pickling."""

import pickle
from typing import Any

from rolltrace.envs.env import EnvGroupBuilder
from rolltrace.graders.grader import Grader, GroupGrader
from rolltrace.rollout.contract import MISSING, attribute_of, invalid_builder_fields
from rolltrace.testing.conformance.harness import Harness
from rolltrace.testing.conformance.violations import Rule, short_repr


def is_builder(harness: Harness, builder: Any) -> bool:
    """Whether it is a builder; otherwise there is nothing to check."""
    if isinstance(builder, EnvGroupBuilder):
        return True
    fix = "return an instance of an `EnvGroupBuilder` from `Tasks.builder`"
    harness.report(Rule.BUILDER, f"{short_repr(builder)} is not an env group builder", fix)
    return False


def validate_builder(harness: Harness, builder: Any) -> None:
    """The fields of the builder must have the types of the contract."""
    for name, expected, value in invalid_builder_fields(builder):
        what = "is not set" if value is MISSING else f"is {short_repr(value)}"
        harness.report(
            Rule.BUILDER,
            f"`{name}` of `{type(builder).__name__}` {what}",
            f"set the builder's `{name}` to {expected}",
        )


def check_pickles(harness: Harness, builder: Any) -> bytes | None:
    """The pickled builder, before anything is played, or None if it does not pickle."""
    name = type(builder).__name__
    try:
        pickled = pickle.dumps(builder)
        copy = pickle.loads(pickled)  # noqa: S301 - made a moment ago, from the caller's own object
    except Exception as error:  # noqa: BLE001 - a foreign object may raise anything here
        harness.report(
            Rule.PICKLES,
            f"`{name}` cannot be pickled: {short_repr(error)}",
            "define the builder's class at the top of a module, hold only what pickles, and make the rest "
            "in `make_episode`",
        )
        return None
    fields = ("env", "task", "tags", "episodes", "seats", "seed")
    changed = [key for key in fields if _differs(attribute_of(builder, key), attribute_of(copy, key))]
    if type(copy) is not type(builder) or changed:
        harness.report(
            Rule.PICKLES,
            f"`{name}` came back from pickle with another {', '.join(changed) or 'type'}",
            "let `__getstate__`, `__setstate__` and `__reduce__`, where there are any, keep all fields",
        )
    return pickled


def check_graders(harness: Harness, builder: Any) -> None:
    """Graders must be of the right class, and pickle."""
    for field, kind in (("grader", Grader), ("group_grader", GroupGrader)):
        grader = attribute_of(builder, field)
        if grader is None:
            continue
        if isinstance(grader, type) or not isinstance(grader, kind):
            what = "cannot be read" if grader is MISSING else f"is {short_repr(grader)}"
            fix = f"set the builder's `{field}` to an instance of a `{kind.__name__}`"
            harness.report(Rule.GRADER, f"`{field}` of `{type(builder).__name__}` {what}", fix)
        try:
            pickle.loads(pickle.dumps(grader))  # noqa: S301 - as above
        except Exception as error:  # noqa: BLE001 - as above
            harness.report(
                Rule.GRADER,
                f"`{type(grader).__name__}` cannot be pickled: {short_repr(error)}",
                "define the grader's class at the top of a module, and let it hold only what pickles",
            )


def _differs(one: Any, other: Any) -> bool:
    return one is not other and bool(one != other)
