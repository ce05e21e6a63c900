"""Seeds derived from names, the same on every machine and in every process."""

import hashlib
from collections.abc import Sequence
from functools import lru_cache
from types import NoneType

_NAMES: dict[type, str] = {kind: kind.__name__ for kind in (int, str, NoneType)}  # reading `__name__` takes longer


def derive_seed(*parts: object) -> int:
    """A 63-bit seed that depends only on the parts.

    Parts differ by type and text, so `derive_seed("1")` and `derive_seed(1)` differ.
    """
    return _hash(_join(parts))


def derive_member_seed(
    run_seed: object, split: str, iteration: int, group: str, index: int | None, attempt: int
) -> int:
    """`derive_seed` of these parts; what the members of a group have in common is joined once."""
    return _hash(f"{_join_group(run_seed, split, iteration, group)}\x1f{_join((index, attempt))}")


@lru_cache(maxsize=256, typed=True)
def _join_group(*parts: object) -> str:
    return _join(parts)


def _join(parts: Sequence[object]) -> str:
    return "\x1f".join([f"{_NAMES.get(type(part)) or type(part).__name__}:{part}" for part in parts])


def _hash(text: str) -> int:
    digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1
