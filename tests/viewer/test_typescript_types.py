"""The page's types are generated from the server's records, and describe its real answers."""

import json
import re
import runpy
import subprocess
import sys
from collections.abc import Iterator
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal, TypedDict

import msgspec
import pytest

from rolltrace.errors import InputError
from rolltrace.trace.blob import Blob
from rolltrace.trace.codec import (
    RolloutWithScores,
    decode_rollout,
    decode_score,
    encode_whole_score,
    encode_with_scores,
)
from rolltrace.trace.field_types import record_fields
from rolltrace.trace.frozen import FrozenMap
from rolltrace.trace.json_numbers import Float, Number
from rolltrace.trace.rollout import Rollout
from rolltrace.trace.stop_reasons import StopReason
from rolltrace.viewer.api import Api, RequestParameters
from rolltrace.viewer.findings import check_to_json
from rolltrace.viewer.http_errors import http_error_of
from rolltrace.viewer.open_runs import OpenRuns

ROOT = Path(__file__).parents[2]
WEB = ROOT / "web"
SCHEMA = WEB / "src" / "source" / "schema.ts"
GOLDEN = ROOT / "tests" / "golden" / "v2"

_module = runpy.run_path(str(ROOT / "docs/typescript_types.py"))
Declarations, response_types, typescript_types = map(
    _module.__getitem__, ("Declarations", "response_types", "typescript_types")
)

pytestmark = pytest.mark.skipif(not SCHEMA.exists(), reason="the sources of the page are not here")
needs_compiler = pytest.mark.skipif(
    not (WEB / "node_modules" / "typescript").exists(),
    reason="the packages of the page are not installed: `make web-check` installs them",
)


def test_the_file_is_current():
    """If a field, type or docstring changes, `make docs` updates the page's types."""
    assert SCHEMA.read_text() == typescript_types()


class Colour(StrEnum):
    """A colour."""

    RED = "red"
    BLUE = "blue"


class Cell(TypedDict):
    """A cell."""

    id: str


class Base(msgspec.Struct):
    """What others extend."""

    at: datetime
    """When; None is never."""


class Omitting(msgspec.Struct, omit_defaults=True):
    """Omits defaults."""

    name: str
    note: str | None = None
    count: int = 0
    ranges: tuple[tuple[int, int], ...] = ()
    blob: Blob | None = None


class Every(Base):
    """Every kind of field."""

    renamed: int = msgspec.field(name="written")
    plain: float
    number: Float | None
    numbers: dict[str, Number]
    anything: Any
    free: dict[str, Any]
    frozen: FrozenMap
    colours: tuple[Colour | None, ...]
    side: Literal["left", "right"]
    either: int | Omitting
    raw: Annotated[msgspec.Raw, msgspec.Meta(extra={"json_of": Omitting})]
    cells: tuple[Annotated[dict[str, Any], msgspec.Meta(extra={"json_of": Cell})], ...]
    default: int | None = None


def declared(*classes: type) -> str:
    """The declarations of these classes, and of those that they refer to."""
    declarations = Declarations()
    for cls in classes:
        declarations.name_of(cls)
    return "\n".join(declarations.sources())


def test_each_kind_of_field_has_its_type():
    """Names are those in JSON; a field is optional only if its record omits it, whether it has a default or not."""
    assert (
        declared(Every)
        == """\
/** Every kind of field. */
export interface Every extends Base {
  written: number;
  plain: number;
  number: Float | null;
  numbers: Record<string, boolean | Float>;
  anything: Json;
  free: Record<string, Json>;
  frozen: Record<string, Json>;
  colours: (Colour | null)[];
  side: "left" | "right";
  either: number | Omitting;
  raw: Omitting;
  cells: Cell[];
  default: number | null;
}

/** What others extend. */
export interface Base {
  /** When; null is never. */
  at: string;
}

/** A colour. */
export type Colour = "red" | "blue";

/** Omits defaults. */
export interface Omitting {
  name: string;
  note?: string;
  count?: number;
  ranges?: [number, number][];
  blob?: string;
}

/** A cell. */
export interface Cell {
  id: string;
  [key: string]: Json;
}
"""
    )


def test_a_field_whose_json_is_unknown_is_refused():
    """Encoded JSON must name its record: otherwise the page would not know its type."""

    class Unknown(msgspec.Struct):
        raw: msgspec.Raw

    with pytest.raises(TypeError, match="RawType"):
        declared(Unknown)


def test_two_classes_of_one_name_are_refused():
    """Two classes of one name are refused, since a name has one meaning."""
    with pytest.raises(TypeError, match="Colour"):
        declared(Colour, StrEnum("Colour", {"GREEN": "green"}))


def test_rollouts_with_scores_are_what_is_encoded():
    """The record that describes the JSON of a rollout for readers has exactly its fields."""
    omittable = {field.written_name for field in record_fields(Rollout) if field.omits_default}
    for line in golden_lines("rollout"):
        sent = json.loads(encode_with_scores(decode_rollout(line), all_scores=False))
        assert sent.keys() - RolloutWithScores.__struct_encode_fields__ == set()
        assert set(RolloutWithScores.__struct_encode_fields__) - sent.keys() <= omittable


def golden_lines(kind: Literal["rollout", "score"]) -> Iterator[bytes]:
    """The stored lines of rollouts, or of scores."""
    for path in sorted(GOLDEN.glob("*.jsonl")):
        if (path.stem == "scores") == (kind == "score"):
            yield from path.read_bytes().splitlines(keepends=True)


@needs_compiler
def test_every_answer_has_its_type(runs: Path, tmp_path: Path):
    """The page's compiler accepts real answers as values of their types: no field is missing or unknown."""
    answers = [*real_answers(runs), *golden_answers()]
    names = {name for name, _ in answers}
    assert {cls.__name__ for cls in response_types() if cls.__name__.endswith("Response")} <= names
    assert compiled(answers, tmp_path) == ""


@needs_compiler
@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"value": "a"}, "Property 'n' is missing"),
        ({"value": "a", "n": 1, "more": 2}, "does not exist in type 'Count'"),
        ({"value": "a", "n": "1"}, "'string' is not assignable to type 'number'"),
    ],
)
def test_the_compiler_rejects_wrong_answers(wrong: Any, told: str, tmp_path: Path):
    """A field that is missing, unknown or of another type is an error."""
    assert told in compiled([("Count", json.dumps(wrong).encode())], tmp_path)


def compiled(answers: list[tuple[str, bytes]], folder: Path) -> str:
    """The output of the TypeScript compiler for answers as values of their types."""
    values = [f"export const v{place}: schema.{name} = {text.decode()};" for place, (name, text) in enumerate(answers)]
    (folder / "answers.ts").write_text(
        "\n".join([f'import type * as schema from "{SCHEMA.with_suffix("")}";', *values])
    )
    settings = {"extends": str(WEB / "tsconfig.json"), "include": ["answers.ts"], "compilerOptions": {"types": []}}
    (folder / "tsconfig.json").write_text(json.dumps(settings))
    command = [sys.executable, str(WEB / "npm.py"), "exec", "--no", "--", "tsc", "-p", str(folder)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 0 or "error TS" in ended.stdout, ended.stderr
    return ended.stdout


def real_answers(folder: Path) -> Iterator[tuple[str, bytes]]:
    """Answers to every API path about every run, each with the name of its type."""
    library = OpenRuns(folder)
    api = Api(library)

    def ask(question: str, **parameters: Any) -> tuple[str, bytes]:
        pairs = [(name, str(value)) for name, value in parameters.items()]
        return f"{question.title().replace('_', '')}Response", api.handle(question, RequestParameters(pairs))

    about_rollout = {"rollout", "neighbours"}
    plain = set(api.handlers) - about_rollout - {"group", "facets", "text"}
    try:
        for question in sorted(plain, key=lambda name: name != "runs"):
            for path in sorted(folder.iterdir()):
                yield ask(question, run=path.name)
        for path in sorted(folder.iterdir()):
            run = path.name
            yield ask("facets", run=run, columns="env,stop_reason,tags")
            yield ask("sql", run=run, sql="select * from rollouts", limit=10)
            columns = "split,iteration,env,group,reward,tags,started_at,metrics"
            name, rows = ask("rollouts", run=run, columns=columns)
            yield name, rows
            for row in json.loads(rows)["rows"][:4]:
                for question in sorted(about_rollout):
                    yield ask(question, run=run, id=row["id"])
                yield ask("text", run=run, id=row["id"], path='["messages",0,"content"]')
                yield ask("group", run=run, **{name: row[name] for name in ("split", "iteration", "env", "group")})
            yield "FindingsResponse", check_to_json(str(path))
        yield "ErrorResponse", http_error_of(InputError("Expected a run.")).body
    finally:
        api.close()
        library.close()


def golden_answers() -> Iterator[tuple[str, bytes]]:
    """Stored rollouts and scores as the server sends them."""
    for line in golden_lines("rollout"):
        yield "RolloutWithScores", encode_with_scores(decode_rollout(line), all_scores=False)
    for line in golden_lines("score"):
        yield "Score", encode_whole_score(decode_score(line))


def test_the_page_knows_every_stop_reason():
    """Each stop reason has a description in the page's list, which has no others."""
    source = (WEB / "src" / "stop-reasons.ts").read_text()
    told = dict(re.findall(r'^  (\w+): \{ meaning: "(\w+)"', source, flags=re.MULTILINE))
    assert set(told) == set(StopReason)
    ended = {reason for reason, meaning in told.items() if meaning == "ended"}
    assert ended == {StopReason.COMPLETED, StopReason.TOOL_STOPPED}
    others = {StopReason.PARSE_ERROR, StopReason.ERROR, StopReason.CANCELLED, StopReason.EPISODE_ABORTED}
    assert {reason for reason, meaning in told.items() if meaning == "limit"} == set(StopReason) - ended - others
