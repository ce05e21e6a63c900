"""What the responses of an iteration are like: length, repetition, scripts and phrases, in one pass over the texts."""

import math
import re
import unicodedata
import zlib
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any

import msgspec

from rolltrace.check.audit import MAX_EXAMPLES
from rolltrace.query.iteration_metrics import CHARS, HASHED
from rolltrace.query.table_schema import sql_literal

Row = dict[str, Any]

GRADER_PHRASES = (
    r"(?im)^\W*(?:(?:final|overall|total)\s+)?(?:score|rating|grade)\W{1,5}\d+(?:\.\d+)?(?:\s*(?:/|out of)\s*\d+)?\W*$"
    r"|\b(?:ignore|disregard|forget|override)\b[^.\n]{0,40}\b(?:rubric|criteri(?:on|a)|grading|scoring)\b"
    r"|\bas (?:a|an|the|your) (?:impartial |fair |strict )?(?:grader|judge|evaluator)\b"
    r"|\b(?:give|award|assign|deserves?)\b[^.\n]{0,30}\b(?:full|perfect|maximum|highest|top) "
    r"(?:score|marks|rating|reward|grade)\b"
)
"""What a grader says, or what is said to one. A phrase whose word the prompt has too does not count."""
REFUSAL = (
    r"(?i)\b(?:i['’]m|i am) sorry, (?:but )?(?:i (?:can(?:no|['’])t|can not|won['’]t|will not|am (?:not able|unable))|"
    r"i['’]m (?:not able|unable)|as an ai)\b"
    r"|\b(?:i (?:can(?:no|['’])t|can not|won['’]t|will not)|(?:i am|i['’]m) (?:not able|unable) to) "
    r"(?:help|assist|answer|comply|fulfil|provide|do that|do this|complete|continue)"
    r"|\bas an ai(?: language)?(?: model| assistant)?,? i "
    r"(?:can(?:no|['’])t|can not|am not able|am unable|don['’]t|do not)\b"
)
"""Looked for in the first `REFUSAL_CHARS` of a response."""
REFUSAL_CHARS = 300
ANSWERS = (r"\\boxed\s*\{(?:[^{}]|\{[^{}]*\})*\}", r"(?i)<answer>[^<]*</answer>")
"""What is marked as the final answer, in one way or the other."""
MAX_CHARS = 20_000
"""How much of each response is looked at."""
LONG_BYTES = 400
"""Shorter texts compress badly whatever they say."""
REPETITIVE_RATIO = 0.15
"""English prose compresses to 0.4 or 0.5 of its size, code and tables to 0.2 or more, and a loop to less than 0.1."""
CONVERGED = 0.85
"""From this similarity on, members differ in little more than single words."""
MIN_ECHO_CHARS = 60
"""A shorter prompt is often restated."""

_GROUP_MEMBERS, _MEMBER_BYTES = 8, 4_000
"""Together as much as zlib looks back: 32 KB."""
_HEADER_BYTES = 11
"""What zlib adds to every text."""
_GRADER_WORDS = re.compile("score|rating|grade|grading|rubric|criteri|judge|evaluator|marks", re.IGNORECASE)
_OTHER_CHARACTERS = re.compile(r"[^\x00-\x7f]+")


class Marked(msgspec.Struct, frozen=True):
    """Rollouts, or groups, of which something is true."""

    count: int = 0
    examples: tuple[str, ...] = ()
    """The first ids."""


class ResponseStats(msgspec.Struct, frozen=True, kw_only=True):
    """Numbers about the responses of one env in one iteration. The text of a rollout is that of all its turns."""

    rollouts: int = 0
    """Rollouts with a response, also one that is recorded as a hash."""
    texts: int = 0
    """Rollouts with a response that is recorded as text."""
    length_mean: float = 0.0
    """In characters."""
    length_std: float = 0.0
    truncated: int = 0
    long_texts: int = 0
    """Of at least `LONG_BYTES`."""
    ratio_mean: float = 0.0
    """The compressed size of the long texts, as a share of their size."""
    repetitive: Marked = Marked()
    groups: int = 0
    """Groups with at least two long texts."""
    similarity_mean: float = 0.0
    """How much of the groups' texts repeats that of other members: 0 if they share nothing, 1 if they are the same."""
    converged: Marked = Marked()
    """Groups, by an id of a member."""
    grader_phrases: Marked = Marked()
    refusals: Marked = Marked()
    answers: int = 0
    """Rollouts whose last turn marks an answer."""
    several_answers: Marked = Marked()
    prompts: int = 0
    """Rollouts whose prompt has at least `MIN_ECHO_CHARS`."""
    echoes: Marked = Marked()
    scripts: dict[str, float] = {}
    """By Unicode script, the share of characters that are letters of it; ASCII is left out."""
    script_examples: dict[str, tuple[str, ...]] = {}


def texts_query(condition: str) -> str:
    """SQL for one row for each rollout of some iterations, those of a group together."""
    marked = (
        f"len(list_distinct(regexp_extract_all(arg_max(text, step), {sql_literal(answer)})))" for answer in ANSWERS
    )
    return f"""
        with turns as (
            select rollout, step, termination, regexp_full_match(response, {HASHED}) as hashed, {CHARS} as chars,
                if(hashed, null, left(response, {MAX_CHARS})) as text
            from steps where {condition}
        ), responses as (
            select rollout, sum(chars) as chars, bool_or(termination = 'length') as truncated,
                string_agg(text, chr(10) order by step) as text,
                bool_or(regexp_matches(text, {sql_literal(GRADER_PHRASES)})) as has_phrase,
                bool_or(regexp_matches(left(text, {REFUSAL_CHARS}), {sql_literal(REFUSAL)})) as is_refusal,
                greatest({", ".join(marked)}) as answers
            from turns group by rollout
        )
        select id, split, env, iteration, "group", chars, truncated, text, has_phrase, is_refusal, answers
        from rollouts join responses on rollout = id where not retried and {condition}
        order by iteration, split, env, "group", "index", id
    """


def prompts_query(condition: str, about: str) -> str:
    """SQL for the first user's message of each group of some iterations; `about` limits `rollout` besides."""
    return f"""
        with firsts as (
            select split, env, iteration, "group", arg_min(id, {{'index': "index", 'id': id}}) as id
            from rollouts where not retried and {condition} group by all
        )
        select split, env, iteration, "group", arg_min(left(content, {MAX_CHARS}), position) as prompt
        from messages join firsts on rollout = firsts.id
        where role = 'user' and {about} group by all
    """


class ResponseCounter:
    """Adds up the responses of one env in one iteration; rows of a group come together."""

    def __init__(self) -> None:
        self._lengths: list[int] = []
        self._counts: Counter[str] = Counter()
        self._marked: dict[str, list[str]] = {}
        self._ratios: list[float] = []
        self._similarities: list[float] = []
        self._characters: Counter[str] = Counter()
        self._script_examples: dict[str, list[str]] = {}
        self._group: str | None = None
        self._members: list[tuple[str, bytes, int]] = []

    def add(self, row: Row, prompt: str) -> None:
        """Add a row of `texts_query`."""
        if row["group"] != self._group:
            self._end_group()
            self._group = row["group"]
        self._lengths.append(row["chars"])
        self._counts["truncated"] += bool(row["truncated"])
        text: str | None = row["text"]
        if text is None:
            return
        self._counts["texts"] += 1
        self._mark("refusals", row["id"], when=row["is_refusal"])
        self._mark("grader_phrases", row["id"], when=row["has_phrase"] and not _GRADER_WORDS.search(prompt))
        self._counts["answers"] += row["answers"] > 0
        self._mark("several_answers", row["id"], when=row["answers"] > 1)
        if len(prompt) >= MIN_ECHO_CHARS:
            self._counts["prompts"] += 1
            self._mark("echoes", row["id"], when=prompt in text)
        self._count_scripts(row["id"], text)
        self._compress(row["id"], text)

    def result(self) -> ResponseStats:
        """The numbers of all rows."""
        self._end_group()
        chars = max(1, self._counts["characters"])
        counts: dict[str, Any] = {name: self._counts[name] for name in ("texts", "truncated", "answers", "prompts")}
        counts |= {name: Marked(self._counts[name], tuple(ids)) for name, ids in self._marked.items()}
        return ResponseStats(
            rollouts=len(self._lengths), length_mean=_mean(self._lengths), length_std=_std(self._lengths),
            long_texts=len(self._ratios), ratio_mean=_mean(self._ratios),
            groups=len(self._similarities), similarity_mean=_mean(self._similarities),
            scripts={script: count / chars for script, count in self._characters.items()},
            script_examples={script: tuple(ids) for script, ids in self._script_examples.items()},
            **counts,
        )  # fmt: skip

    def _mark(self, name: str, rollout: str, *, when: bool) -> None:
        if when:
            self._counts[name] += 1
            examples = self._marked.setdefault(name, [])
            if len(examples) < MAX_EXAMPLES:
                examples.append(rollout)

    def _count_scripts(self, rollout: str, text: str) -> None:
        self._counts["characters"] += len(text)
        if text.isascii():
            return
        own = Counter(map(_script, "".join(_OTHER_CHARACTERS.findall(text))))
        del own[""]
        self._characters.update(own)
        for script in own:
            examples = self._script_examples.setdefault(script, [])
            if len(examples) < MAX_EXAMPLES:
                examples.append(rollout)

    def _compress(self, rollout: str, text: str) -> None:
        data = text.encode(errors="replace")
        if len(data) < LONG_BYTES:
            return
        size = len(zlib.compress(data, 1))
        ratio = size / len(data)
        self._ratios.append(ratio)
        self._mark("repetitive", rollout, when=ratio < REPETITIVE_RATIO)
        if len(self._members) < _GROUP_MEMBERS:
            size = size if len(data) <= _MEMBER_BYTES else len(zlib.compress(data[:_MEMBER_BYTES], 1))
            self._members.append((rollout, data[:_MEMBER_BYTES], size))

    def _end_group(self) -> None:
        if len(self._members) > 1:
            similarity = _similarity([data for _, data, _ in self._members], sum(size for *_, size in self._members))
            self._similarities.append(similarity)
            self._mark("converged", self._members[0][0], when=similarity >= CONVERGED)
        self._members = []


def _similarity(texts: Sequence[bytes], apart: int) -> float:
    """How much smaller texts become if they are compressed together: from 0 to 1, where all are the same.

    `apart` is the size of all if each is compressed by itself.
    """
    apart -= _HEADER_BYTES * len(texts)
    together = len(zlib.compress(b"\n".join(texts), 1)) - _HEADER_BYTES
    return min(1.0, max(0.0, (1 - together / max(apart, 1)) / (1 - 1 / len(texts))))


@lru_cache(maxsize=100_000)
def _script(character: str) -> str:
    """The Unicode script of a letter, as its name begins: `CYRILLIC`, `CJK`; empty for other characters."""
    if not character.isalpha():
        return ""
    return unicodedata.name(character, "").partition(" ")[0]


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values) if values else 0.0


def _std(values: Iterable[float]) -> float:
    numbers = [*values]
    mean = _mean(numbers)
    return math.sqrt(_mean([(value - mean) ** 2 for value in numbers]))
