"""The grader of a regrade: a built-in one, your own or an object, and the version that its scores are named after."""

import functools
import hashlib
import inspect
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from pathlib import Path
from types import FunctionType
from typing import Any, ClassVar

import msgspec

from rolltrace.arguments import call_with_arguments
from rolltrace.envs.rubric import read_criteria
from rolltrace.envs.tools import call_in_thread
from rolltrace.errors import InputError, NotGradableError, UnknownNameError
from rolltrace.graders.answer_check import AnswerCheck
from rolltrace.graders.answer_grader import CHECKS, AnswerGrader
from rolltrace.graders.format_check import FORMAT_COEF
from rolltrace.graders.grader import Grader, GroupGrader
from rolltrace.graders.judge import GUIDELINES, PolicyJudge
from rolltrace.graders.preference_grader import PREFERENCE_FORMAT_COEF, TOURNAMENT_CHUNK, PreferenceGrader
from rolltrace.graders.retrying_question import GRADER_SAMPLING, MAX_TOKENS, MAX_TRIES, REPLY_SECONDS
from rolltrace.graders.rubric_grader import Criterion, RubricGrader
from rolltrace.graders.tournament import TournamentPattern, parse_pattern
from rolltrace.imports import import_object
from rolltrace.policies.policy import Policy
from rolltrace.query.reward_breakdown import REGRADE_PREFIX
from rolltrace.secret_redaction import redact_text
from rolltrace.trace.freeform import describe
from rolltrace.trace.json_numbers import as_number
from rolltrace.trace.rollout import Rollout
from rolltrace.trace.score import Grade

AnyGrader = Grader | GroupGrader
_HASH_CHARS = 8
_MAX_DEPTH = 20


@dataclass(frozen=True)
class TaskRubricGrader(Grader):
    """A rubric with the criteria that each task has in `task_data`."""

    version: ClassVar[str] = "1"
    settings: Mapping[str, Any]
    """The arguments of `RubricGrader`."""

    async def grade(self, rollout: Rollout) -> Grade:
        """Grade by the task's criteria. Raises `NotGradableError` if it has none."""
        try:
            criteria = msgspec.convert(rollout.task_data.get("criteria") or (), tuple[Criterion, ...])
        except msgspec.ValidationError as error:
            raise NotGradableError(f"the criteria in its task_data cannot be read: {error}") from error
        if not criteria:
            raise NotGradableError("its task has no criteria: pass criteria=FILE")
        return await RubricGrader(criteria, **self.settings).grade(rollout)


@dataclass(frozen=True)
class FunctionGrader(Grader):
    """A function of a rollout that returns a number or a `Grade`; one that is not async runs in a thread."""

    function: Callable[[Rollout], Any]

    async def grade(self, rollout: Rollout) -> Grade:
        """Call the function."""
        value = await _call(self.function, rollout)
        number = as_number(value)
        return value if number is None else Grade(float(number))


@dataclass(frozen=True)
class CheckFunction:
    """A function of an answer and a reference; one that is not async runs in a thread."""

    function: Callable[[str, str], Any]

    async def __call__(self, answer: str, reference: str) -> float:
        """Call the function."""
        return float(await _call(self.function, answer, reference))


async def _call(function: Callable[..., Any], *args: Any) -> Any:
    """Call a function of the user's. A time-out abandons its thread, and the other rollouts are graded."""
    value = function(*args) if inspect.iscoroutinefunction(function) else await call_in_thread(function, *args)
    return await value if inspect.isawaitable(value) else value


def _answer_grader(
    check: str | AnswerCheck, *, extract: str = "answer", reference: str | None = None, format_coef: float | None = None
) -> AnswerGrader:
    return AnswerGrader(check=check, extract=extract, reference=reference, format_coef=format_coef)


def _rubric_grader(
    *,
    criteria: str | None = None,
    format_coef: float = FORMAT_COEF,
    seconds: float = REPLY_SECONDS,
    tries: int = MAX_TRIES,
    max_tokens: int = MAX_TOKENS,
) -> Grader:
    sampling = msgspec.structs.replace(GRADER_SAMPLING, max_tokens=max_tokens)
    settings = {"format_coef": format_coef, "seconds": seconds, "tries": tries, "sampling": sampling}
    RubricGrader([Criterion("a criterion")], **settings)  # type: ignore[arg-type]  # raises if the settings are wrong
    if criteria is None:
        return TaskRubricGrader(settings)
    return RubricGrader(read_criteria(criteria), **settings)  # type: ignore[arg-type]


def _preference_grader(
    *,
    guidelines: str = GUIDELINES,
    pattern: str = TournamentPattern.BOTH_WAYS.value,
    chunk: int = TOURNAMENT_CHUNK,
    format_coef: float = PREFERENCE_FORMAT_COEF,
    seconds: float = REPLY_SECONDS,
    tries: int = MAX_TRIES,
    max_tokens: int = MAX_TOKENS,
) -> PreferenceGrader:
    sampling = msgspec.structs.replace(GRADER_SAMPLING, max_tokens=max_tokens)
    judge = PolicyJudge(guidelines=guidelines, seconds=seconds, tries=tries, sampling=sampling)
    return PreferenceGrader(judge=judge, pattern=parse_pattern(pattern), chunk=chunk, format_coef=format_coef)


GRADERS: Mapping[str, Callable[..., AnyGrader]] = {
    **{check: functools.partial(_answer_grader, check) for check in CHECKS},
    "rubric": _rubric_grader,
    "preference": _preference_grader,
}
"""The built-in graders by name."""
_ASKING = ("rubric", "preference")
"""Graders that ask the policy of the role `grader`."""
_BUILT_IN_VERSION = "1"


class NamedGrader(msgspec.Struct, frozen=True):
    """A grader, and the name of its scores."""

    grader: AnyGrader
    name: str
    version: str

    @property
    def score_name(self) -> str:
        """The name of its scores: `regrade/GRADER@VERSION`."""
        return f"{REGRADE_PREFIX}{self.name}@{self.version}"


def load_grader(
    spec: str | AnyGrader | Callable[..., Any],
    args: Mapping[str, Any],
    policies: Mapping[str, str | Policy],
) -> NamedGrader:
    """The grader of a name, of `package.module:object`, or the object itself. `policies` are part of its version."""
    name: str
    declared: str | None
    if isinstance(spec, str) and ":" not in spec:
        if spec not in GRADERS:
            unknown = UnknownNameError.for_name("grader", spec, GRADERS)
            raise UnknownNameError(f"{unknown} Your own grader has the form package.module:object.")
        if spec in _ASKING and not {"policy", "grader"} & policies.keys():
            raise InputError(f"Expected a policy for the grader {spec}, got none: pass --policy grader=SPEC.")
        grader: AnyGrader = call_with_arguments(GRADERS[spec], args, spec)
        name, declared = spec, _BUILT_IN_VERSION
    else:
        target = import_object(spec, "grader") if isinstance(spec, str) else spec
        name = spec if isinstance(spec, str) else _name_of(target)
        grader = _as_grader(target, args, name)
        declared = _declared_version(target) or _declared_version(grader)
    settings = {
        "args": grader if args else None,
        "policies": {role: _policy_name(policy) for role, policy in policies.items()},
    }
    if declared is None:
        return NamedGrader(grader, name, _hash([grader, settings["policies"]], name))
    suffix = f"-{_hash(settings, name)}" if args or policies else ""
    return NamedGrader(grader, name, f"{declared}{suffix}")


def _as_grader(target: Any, args: Mapping[str, Any], name: str) -> AnyGrader:
    """A grader from an object: a grader, its class, a function that makes one, or a function that grades."""
    if isinstance(target, Grader | GroupGrader):
        if args:
            raise InputError(f"Expected no arguments for {name}, which is a grader already, got {', '.join(args)}.")
        return target
    if isinstance(target, type) or (callable(target) and _required_arguments(target) == 0):
        made: Any = call_with_arguments(target, args, f"grader {name}")
        if isinstance(made, Grader | GroupGrader):
            return made
        raise InputError(f"Expected {name} to make a Grader or a GroupGrader, got {describe(made)}.")
    count = _required_arguments(target) if callable(target) else None
    if count == 1:
        if args:
            raise InputError(f"Expected no arguments for {name}, a function that grades, got {', '.join(args)}.")
        return FunctionGrader(target)
    if count == 2:
        return call_with_arguments(  # type: ignore[no-any-return]
            functools.partial(_answer_grader, CheckFunction(target)), args, f"grader {name}"
        )
    raise InputError(
        f"Expected {name} to be a Grader, a GroupGrader, a function of a rollout, or a function of an answer and a "
        f"reference, got {describe(target)}."
    )


def _required_arguments(function: Callable[..., Any]) -> int | None:
    """How many positional arguments a function needs; None if it needs others."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return None
    required = [each for each in parameters if each.default is each.empty]
    positional = [each for each in required if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)]
    variable = [each for each in required if each.kind in (each.VAR_POSITIONAL, each.VAR_KEYWORD)]
    return len(positional) if len(positional) + len(variable) == len(required) else None


def _name_of(target: Any) -> str:
    kind = target if isinstance(target, type) or inspect.isroutine(target) else type(target)
    return f"{kind.__module__}:{kind.__qualname__}"


def _declared_version(target: Any) -> str | None:
    version = getattr(target, "version", None)
    if version is None:
        return None
    if isinstance(version, bool) or not isinstance(version, str | int) or not str(version).strip():
        raise InputError(f"Expected `version` of a grader to be a text or a whole number, got {version!r}.")
    return str(version)


def _policy_name(policy: str | Policy) -> str:
    return redact_text(policy) if isinstance(policy, str) else f"{policy.name} {policy.version}"


def _hash(value: Any, name: str) -> str:
    plain = msgspec.json.encode(_plain(value, name, 0), order="deterministic")
    return hashlib.blake2b(plain, digest_size=16).hexdigest()[:_HASH_CHARS]


def _plain(value: Any, name: str, depth: int) -> Any:
    """What a value is, so that equal settings and equal code are the same in every process."""
    if depth > _MAX_DEPTH:
        raise _unversioned(value, name)
    if value is None or isinstance(value, bool | int | float | str):
        return repr(value)
    if isinstance(value, Enum):
        return [type(value).__qualname__, repr(value.value)]
    if isinstance(value, Mapping):
        return [[repr(key), _plain(each, name, depth + 1)] for key, each in sorted(value.items(), key=repr)]
    if isinstance(value, set | frozenset):
        return sorted((_plain(each, name, depth + 1) for each in value), key=repr)
    if isinstance(value, tuple | list):
        return [_plain(each, name, depth + 1) for each in value]
    return _plain_object(value, name, depth)


def _plain_object(value: Any, name: str, depth: int) -> Any:
    if isinstance(value, functools.partial):
        return _plain([value.func, value.args, value.keywords], name, depth + 1)
    if inspect.ismethod(value):
        return _plain([value.__func__, value.__self__], name, depth + 1)
    if isinstance(value, type) or inspect.isroutine(value):
        own = _plain_function(value, name, depth) if inspect.isfunction(value) else None
        return [value.__module__, value.__qualname__, _source_hash(value, name), own]
    if is_dataclass(value):
        parts: Any = [getattr(value, each.name) for each in fields(value)]
    elif isinstance(value, msgspec.Struct):
        parts = list(msgspec.structs.astuple(value))
    elif hasattr(value, "__dict__"):
        parts = vars(value)
    else:
        raise _unversioned(value, name)
    return [_plain(type(value), name, depth + 1), _plain(parts, name, depth + 1)]


def _plain_function(function: FunctionType, name: str, depth: int) -> Any:
    """What tells functions of one name and file apart: their place, and the values that they hold."""
    cells = [cell.cell_contents for cell in function.__closure__ or ()]
    held = [function.__defaults__, function.__kwdefaults__, cells]
    code = function.__code__
    return [code.co_firstlineno, code.co_code.hex(), _plain(held, name, depth + 1)]


def _source_hash(value: Any, name: str) -> str:
    """A hash of the file that defines a class or function; empty for code of Rolltrace and of Python itself."""
    module = value.__module__ or "builtins"
    if module.partition(".")[0] in {"rolltrace", *sys.stdlib_module_names} - {"__main__"}:
        return ""
    try:
        path = getattr(sys.modules[module], "__file__", None)
        source = inspect.getsource(value).encode() if path is None else Path(path).read_bytes()
    except (OSError, TypeError, KeyError) as error:
        raise _unversioned(value, name) from error
    return hashlib.blake2b(source, digest_size=16).hexdigest()


def _unversioned(value: Any, name: str) -> InputError:
    return InputError(
        f"Expected a grader whose source and settings tell its version, got {name} with {describe(value)}: "
        "give it an attribute `version`, and change that whenever it grades differently."
    )
