"""How many examples a property with a number of its own is tried with."""

from hypothesis import settings


def examples(count: int) -> int:
    """All of them under the profile `slow`, which `make test-slow` uses, and a quarter in `make test`."""
    return max(1, count * settings.default.max_examples // 100)
