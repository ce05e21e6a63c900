"""Calls of the reasoning-gym package that run in worker processes: configure, generate, score."""

import base64
import dataclasses
import functools
import importlib
import pickle
import random
import re
from collections.abc import Mapping
from typing import Any

from rolltrace.arguments import bind_arguments
from rolltrace.errors import InputError, UnknownNameError
from rolltrace.graders.safe_eval import restrict_eval, restrict_sympy_eval

_SET_BY_RUN = ("seed", "size")
"""Fields of a task's configuration that the run sets."""
_NOT_A_NUMBER = re.compile(r"[-+*().\deij\s]*nan[-+*().\deijna\s]*", re.IGNORECASE)


@functools.cache
def prepare() -> None:
    """Import the package, and restrict its `eval` of answers."""
    importlib.import_module("reasoning_gym")
    restrict_eval("reasoning_gym")
    restrict_sympy_eval()


def all_names() -> list[str]:
    """The names of all tasks."""
    return sorted(importlib.import_module("reasoning_gym.factory").DATASETS)


def check_config(name: str, args: Mapping[str, Any]) -> None:
    """Raise `InputError` if there is no such task, or its arguments are wrong."""
    _configure(name, args, seed=0)


def make_entry(name: str, args: Mapping[str, Any], seed: int) -> dict[str, Any]:
    """The entry of a seed: its text and data for the record, and its pickle for `score_answer`."""
    random.seed(seed)  # a few tasks draw from the global generators
    importlib.import_module("numpy").random.seed(seed)
    dataset = _dataset(name, args, seed)
    entry = dataset[0]
    return {
        "question": str(entry["question"]),
        "answer": None if entry["answer"] is None else str(entry["answer"]),
        "category": dataset.category,
        "metadata": entry.get("metadata") or {},
        "entry": base64.b64encode(pickle.dumps(entry)).decode(),
    }


def score_answer(name: str, args: Mapping[str, Any], entry: str, answer: str) -> float:
    """The score of the task's own scorer."""
    dataset = _scoring_dataset(name, pickle.dumps(args))
    entry_data = pickle.loads(base64.b64decode(entry))  # noqa: S301 - written by `make_entry`
    if _NOT_A_NUMBER.fullmatch(answer):  # comparisons with NaN are False, so some scorers accept it as right
        raise ValueError("Expected an answer, got NaN.")
    return float(dataset.score_answer(answer, entry_data))


@functools.lru_cache(maxsize=32)
def _scoring_dataset(name: str, args: bytes) -> Any:
    """A dataset for scoring. Scorers depend on the configuration and not on the seed, so one serves all entries."""
    return _dataset(name, pickle.loads(args), seed=0)  # noqa: S301 - written one call above


def _dataset(name: str, args: Mapping[str, Any], seed: int) -> Any:
    dataset_class, config = _configure(name, args, seed)
    return dataset_class(config)


def _configure(name: str, args: Mapping[str, Any], seed: int) -> tuple[Any, Any]:
    """The task's class and its configuration."""
    datasets = importlib.import_module("reasoning_gym.factory").DATASETS
    if name not in datasets:
        raise UnknownNameError.for_name("reasoning_gym task", name, datasets)
    dataset_class, config_class = datasets[name]
    what = f"reasoning_gym:{name}"
    for field in _SET_BY_RUN:
        if field in args:
            raise InputError(f"Expected no argument {field!r} of {what}: the run's seed and groups set it.")
    known = [field.name for field in dataclasses.fields(config_class) if field.name not in _SET_BY_RUN]
    unknown = [name for name in args if name not in known]
    if unknown:
        raise UnknownNameError.for_name(f"argument of {what}", unknown[0], known)
    bound = bind_arguments(config_class, args, what)
    try:
        config = config_class(**bound, seed=seed, size=1)
        if hasattr(config, "validate"):
            config.validate()
    except (AssertionError, TypeError, ValueError) as error:
        raise InputError(f"Expected valid arguments of {what}, got {dict(args)}: {error}") from error
    return dataset_class, config
