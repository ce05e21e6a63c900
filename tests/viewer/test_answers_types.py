"""The page's types name the fields that the server's answers have."""

import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from rolltrace.query import group_comparison as comparison
from rolltrace.query import group_members, number_stats
from rolltrace.query import message_truncation as excerpts
from rolltrace.query import preference_matrix as matrices
from rolltrace.query import reward_breakdown as terms
from rolltrace.query import rubric_grid as rubrics
from rolltrace.trace import message, rollout, score
from rolltrace.trace.stop_reasons import StopReason
from rolltrace.viewer import schemas as answers

SOURCES = Path(__file__).parents[2] / "web" / "src"
TYPES = [SOURCES / "source" / f"{name}.ts" for name in ("answers", "comparison", "records")]
RECORDS = {
    "FailureRecord": rollout.Failure, "ToolCallRecord": message.ToolCall, "PartRecord": message.Part,
    "MessageRecord": message.Message, "TokensRecord": rollout.Tokens, "UsageRecord": rollout.Usage,
    "StepRecord": rollout.Step, "CallRecord": rollout.Call, "ScoreRecord": score.Score,
    "RolloutRecord": rollout.Rollout, "GroupKey": answers.GroupKey,
}  # fmt: skip
PAGE_NAMES = {
    "RunListEntry": "RunCard", "NumberStats": "Spread", "EnvironmentStats": "EnvironmentCard",
    "GroupSibling": "GroupPlace", "GroupComparison": "Comparison", "TruncatedMessage": "Excerpt", "RewardTerm": "Term",
}  # fmt: skip
"""By struct, the page's name of it where that is another."""
LATE = {"line_reward": float, "group_grade": rollout.Grade}
"""What `encode_with_scores` adds to a rollout's line."""
ELSEWHERE = {"ErrorAnswer"}
"""What no struct stands behind."""

Fields = dict[str, Any]
"""By name the fields of an inline object, or nothing."""


def structs() -> dict[str, type]:
    """By the name that the page gives it, every struct of an answer."""
    modules = (answers, comparison, excerpts, group_members, matrices, number_stats, rubrics, terms)
    found = ((name, kind, module.__name__) for module in modules for name, kind in vars(module).items())
    own = {name: kind for name, kind, module in found if inside(kind) is kind and kind.__module__ == module}
    return {page_name(name): kind for name, kind in own.items()} | RECORDS


def page_name(struct: str) -> str:
    """What the page calls a struct: the server's responses are its answers."""
    return PAGE_NAMES.get(struct, re.sub("Response$", "Answer", struct))


def declared(source: str) -> dict[str, Fields]:
    """By interface, its fields, those of what it extends included."""
    bare = re.sub(r"/\*.*?\*/|//[^\n]*", "", source, flags=re.DOTALL)
    found: dict[str, Fields] = {}
    extends: dict[str, list[str]] = {}
    for head in re.finditer(r"export interface (\w+)(?: extends ([\w, ]+))? \{", bare):
        found[head[1]] = fields(bare, head.end())
        extends[head[1]] = [name.strip() for name in (head[2] or "").split(",") if name.strip()]
    return {
        name: {**{k: v for base in extends[name] for k, v in found[base].items()}, **own} for name, own in found.items()
    }


def fields(text: str, start: int) -> Fields:
    """The fields of the object type that begins here, with those of objects written inside it."""
    found: Fields = {}
    place = start
    while (ahead := re.compile(r"\s*(\}|(?:\"?(\w+)\"?)\??:|\[[^\]]*\]:)").match(text, place)) and ahead[1] != "}":
        end, inner = ahead.end(), None
        depth = 0
        while depth or text[end] not in ";\n}":
            if text[end] == "{":
                inner = fields(text, end + 1) if depth == 0 or inner is None else inner
                depth += 1
            depth += {"}": -1, "(": 1, ")": -1}.get(text[end], 0)
            end += 1
        if ahead[2]:
            found[ahead[2]] = inner or {}
        place = end if text[end] == "}" else end + 1
    return found


def inside(kind: Any) -> type | None:
    """The struct that a field holds, in a list or not."""
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return kind
    return next((found for part in getattr(kind, "__args__", ()) if (found := inside(part)) is not None), None)


def compare(path: str, named: Fields, kind: type) -> None:
    """Both have the same fields, and so have the objects in them."""
    own = {field.encode_name: field.type for field in msgspec.structs.fields(kind)}
    if kind is rollout.Rollout:
        own |= LATE
    assert set(named) == set(own), path
    for name, inner in named.items():
        within = inside(own[name])
        if inner and within is not None:
            compare(f"{path}.{name}", inner, within)


def test_every_interface_has_the_fields_of_its_struct():
    """A field that is renamed, added or removed on one side only fails here."""
    known = structs()
    if not all(file.exists() for file in TYPES):
        pytest.skip("the sources of the page are not here")
    interfaces = declared("\n".join(file.read_text() for file in TYPES))
    assert len(interfaces) > 40
    for name, named in interfaces.items():
        if name not in ELSEWHERE:
            assert name in known, f"no struct stands behind {name}"
            compare(name, named, known[name])
    missing = {page_name(name) for name in vars(answers) if name.endswith("Response")} - set(interfaces)
    assert not missing


def test_the_page_knows_every_stop_reason():
    """Each reason has a meaning in the page's one list, which names no other."""
    reasons = SOURCES / "stop-reasons.ts"
    if not reasons.exists():
        pytest.skip("the sources of the page are not here")
    told = dict(re.findall(r'^  (\w+): \{ meaning: "(\w+)"', reasons.read_text(), flags=re.MULTILINE))
    assert set(told) == set(StopReason)
    ended = {reason for reason, meaning in told.items() if meaning == "ended"}
    assert ended == {StopReason.COMPLETED, StopReason.TOOL_STOPPED}
    others = {StopReason.PARSE_ERROR, StopReason.ERROR, StopReason.CANCELLED, StopReason.EPISODE_ABORTED}
    assert {reason for reason, meaning in told.items() if meaning == "limit"} == set(StopReason) - ended - others


def test_a_change_on_one_side_is_seen():
    """The comparison bites: in extended interfaces and in objects inside others, too."""
    source = """
        export interface Spread {
          n: number;
        }
        export interface B extends Spread {
          a: { x: string; y: number }[];
        }
    """
    assert declared(source) == {"Spread": {"n": {}}, "B": {"n": {}, "a": {"x": {}, "y": {}}}}
    with pytest.raises(AssertionError):
        compare("Count", {"value": {}}, answers.Count)
    with pytest.raises(AssertionError):
        compare("SqlResponse", {"columns": {"name": {}}, "rows": {}, "more": {}, "seconds": {}}, answers.SqlResponse)
