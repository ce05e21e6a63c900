"""Seeds derived from names, the same on every machine and in every process."""

import hashlib
from types import NoneType

_NAMES: dict[type, str] = {kind: kind.__name__ for kind in (int, str, NoneType)}  # reading `__name__` takes longer


def derive_seed(*parts: object) -> int:
    """A 63-bit seed that depends only on the parts.

    Parts differ by type and text, so `derive_seed("1")` and `derive_seed(1)` differ.
    """
    text = "\x1f".join([f"{_NAMES.get(type(part)) or type(part).__name__}:{part}" for part in parts])
    digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1
