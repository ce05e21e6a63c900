"""Replaces attributes of the program that is recorded, so that they can be restored."""

from collections.abc import Callable
from typing import Any


def replace_attribute(target: Any, name: str, replacement: Any) -> Callable[[], None]:
    """Replace an attribute of an object, class or module; returns a function that restores it.

    An attribute that was replaced again since is left as it is.
    """
    has_own = name in vars(target)
    own = vars(target).get(name)
    setattr(target, name, replacement)

    def restore() -> None:
        if vars(target).get(name) is not replacement:
            return
        if has_own:
            setattr(target, name, own)
        else:
            delattr(target, name)

    return restore
