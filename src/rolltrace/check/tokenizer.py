"""The policy's tokenizer, for audits of token ids."""

import json
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from rolltrace.errors import InputError

_FILE = "tokenizer.json"
_CONFIG = "tokenizer_config.json"


class CheckTokenizer:
    """Decodes ids, and knows the id of the beginning-of-text token."""

    def __init__(self, tokenizer: Any, bos: int | None) -> None:
        self._tokenizer = tokenizer
        self.bos = bos

    def decode(self, ids: Sequence[int]) -> str:
        """The text of these ids, without special tokens."""
        known = [one for one in ids if 0 <= one < 2**32]
        return str(self._tokenizer.decode(known, skip_special_tokens=True))


@lru_cache(maxsize=1)
def load_tokenizer(path: str) -> CheckTokenizer:
    """Load a tokenizer of the Hugging Face format: a folder with `tokenizer.json`, or that file."""
    try:
        from tokenizers import Tokenizer
    except ImportError as error:
        raise InputError(
            "Expected the package tokenizers for audits of token ids: `pip install tokenizers`."
        ) from error
    file = Path(path) / _FILE if Path(path).is_dir() else Path(path)
    try:
        tokenizer = Tokenizer.from_file(str(file))
    except Exception as error:  # the package raises no other kind
        raise InputError(f"Expected a tokenizer at {file}, but it cannot be loaded: {error}.") from error
    return CheckTokenizer(tokenizer, _bos(file.parent / _CONFIG, tokenizer))


def _bos(config: Path, tokenizer: Any) -> int | None:
    try:
        token = json.loads(config.read_bytes()).get("bos_token")
    except (OSError, ValueError, AttributeError):
        return None
    name = token.get("content") if isinstance(token, dict) else token
    found: int | None = tokenizer.token_to_id(name) if isinstance(name, str) else None
    return found
