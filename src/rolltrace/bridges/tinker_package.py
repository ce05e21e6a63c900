"""The names of tinker-cookbook that its bridge uses; where it is not installed, bases to define the classes with."""

from typing import Any

from rolltrace.errors import InputError

try:
    import chz as chz
    from tinker import EncodedTextChunk as EncodedTextChunk
    from tinker import ModelInput as ModelInput
    from tinker_cookbook.completers import TokenCompleter as TokenCompleter
    from tinker_cookbook.renderers.base import Renderer as Renderer
    from tinker_cookbook.renderers.base import ToolCall as ToolCall
    from tinker_cookbook.renderers.base import UnparsedToolCall as UnparsedToolCall
    from tinker_cookbook.renderers.base import classify_parse_failure as classify_parse_failure
    from tinker_cookbook.rl import rollouts as rollouts
    from tinker_cookbook.rl.rollout_runner import TRUNCATION_METRIC_KEY as TRUNCATION_METRIC_KEY
    from tinker_cookbook.rl.types import PARSE_ERROR_MASKED_METRIC_KEY as PARSE_ERROR_MASKED_METRIC_KEY
    from tinker_cookbook.rl.types import STOP_METRIC_PREFIX as STOP_METRIC_PREFIX
    from tinker_cookbook.rl.types import Env as Env
    from tinker_cookbook.rl.types import EnvGroupBuilder as EnvGroupBuilder
    from tinker_cookbook.rl.types import InitialObservationOverflow as InitialObservationOverflow
    from tinker_cookbook.rl.types import RLDataset as RLDataset
    from tinker_cookbook.rl.types import RLDatasetBuilder as RLDatasetBuilder
    from tinker_cookbook.rl.types import StepResult as StepResult

    _missing: ImportError | None = None
except ImportError as error:
    _missing = error

    def __getattr__(name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {"chz": staticmethod(lambda kind: kind)})


def require_tinker_cookbook() -> None:
    """Raise `InputError` if tinker-cookbook is not installed."""
    if _missing is not None:
        raise InputError(f"This needs tinker-cookbook ({_missing}): pip install tinker-cookbook.") from _missing
