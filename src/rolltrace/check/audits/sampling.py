"""Audits of what was sampled: truncation, parse errors, empty responses, stop sequences, log-probabilities."""

import math
from collections.abc import Iterator, Sequence
from typing import Any

from rolltrace.check.audit import MAX_EXAMPLES, AuditInput, Finding, Severity, Threshold, audit
from rolltrace.check.audit_tables import AuditTables, scope_address
from rolltrace.check.rollout_tally import tallied
from rolltrace.check.settings import CheckSettings
from rolltrace.check.trends import share_findings
from rolltrace.trace.rollout import Rollout

_ROUNDING = 1e-3
"""How far above 0 a log-probability may be by rounding in 16 bits."""
_RESPONSES = "select split, env, iteration, rollout as id, coalesce({}, false) as wrong from steps"
_MIN_TOKENS = 8
"""A response of fewer tokens may be certain, so that all its log-probabilities are 0."""


@audit(
    Severity.WARNING,
    "A response that was cut at the token limit seldom earns its reward, and teaches the policy about the limit.",
    "Raise `max_tokens`, or ask for shorter answers.",
    input=AuditInput.TABLES,
    threshold=Threshold(
        0.1,
        "A few long answers are normal; more than one in ten shifts the mean of most groups.",
        min_sample=100,
        usual_share=0.05,
    ),
)
def truncated_responses(tables: AuditTables) -> Iterator[Finding]:
    """Responses end by themselves."""
    yield from share_findings(
        tables, _RESPONSES.format("termination = 'length'"), "were cut at the token limit", "responses"
    )


@audit(
    Severity.WARNING,
    "What cannot be parsed earns no reward for its content, so the policy is trained on the format alone.",
    "Look at `raw` of a step that is named; show the format in the prompt, or make the parser more tolerant.",
    input=AuditInput.TABLES,
    threshold=Threshold(
        0.2,
        "A policy that learns a format fails at first; one in five is a large part of the signal.",
        min_sample=100,
        usual_share=0.12,
    ),
)
def parse_errors(tables: AuditTables) -> Iterator[Finding]:
    """Responses can be parsed."""
    yield from share_findings(tables, _RESPONSES.format("parse_error is not null"), "could not be parsed", "responses")


@audit(
    Severity.WARNING,
    "An empty response has nothing to reward: the sampler failed, a stop sequence came first, or the text was lost.",
    "Look at the sampling settings and at `raw` of a step that is named.",
    input=AuditInput.TABLES,
    threshold=Threshold(
        0.02, "A model seldom ends its turn at once; one in fifty points to the sampler.", 100, usual_share=0.005
    ),
)
def empty_responses(tables: AuditTables) -> Iterator[Finding]:
    """Responses have text, reasoning or calls of tools."""
    source = """
        select r.split, r.env, r.iteration, r.id,
            not regexp_matches(m.content, '\\S') and not coalesce(regexp_matches(m.reasoning, '\\S'), false)
            and coalesce(json_array_length(m.tool_calls), 0) + coalesce(json_array_length(m.parts), 0) = 0 as wrong
        from messages m join rollouts r on r.id = m.rollout where m.step is not null
    """
    yield from share_findings(tables, source, "are empty", "responses", in_batches=True)


@audit(
    Severity.WARNING,
    "The sampler did not stop where it should have, so the policy is trained on text beyond its turn.",
    "Check that the stop sequences reach the sampler; a tokenizer may join one with the text around it.",
    input=AuditInput.TABLES,
)
def stop_sequence_in_response(tables: AuditTables) -> Iterator[Finding]:
    """No response goes on after a stop sequence."""
    question = f"""
        with stops as (
            select split, env, rollout, coalesce(raw, response) as text,
                unnest(from_json(sampling -> 'stop', '["VARCHAR"]')) as stop
            from steps where json_array_length(sampling -> 'stop') > 0
        )
        select split, env, count(*) as count, min(stop) as stop,
            min(distinct rollout, {MAX_EXAMPLES}) as ids
        from stops where stop <> '' and instr(text, stop) between 1 and length(rtrim(text)) - length(stop)
        group by split, env order by split, env
    """
    for row in tables.rows(question):
        message = f"{row['count']} responses go on after a stop sequence such as {row['stop']!r}"
        yield Finding(message, tuple(row["ids"]), scope_address(row), data={"count": row["count"]})


@audit(
    Severity.ERROR,
    "The log-probability of a sampled token is at most 0 and finite; importance ratios of others are wrong or NaN.",
    "Record log-probabilities, not probabilities or logits, of the tokens that were sampled.",
    input=AuditInput.ROLLOUTS,
)
@tallied("{count} of {of} rollouts have log-probabilities above 0, or not finite")
def impossible_logprobs(rollout: Rollout, _: CheckSettings) -> bool | None:
    """Every log-probability is finite and at most 0."""
    known = _known_logprobs(rollout)
    return any(not -math.inf < one <= _ROUNDING for logprobs in known for one in logprobs) if known else None


def _known_logprobs(rollout: Rollout) -> list[Sequence[float]]:
    """The log-probabilities of each response's tokens, without those that the environment wrote."""
    return [
        _without_ranges(step.tokens.logprobs, step.extra["env_tokens"])
        if "env_tokens" in step.extra
        else step.tokens.logprobs
        for step in rollout.steps
        if step.tokens is not None and step.tokens.logprobs
    ]


def _without_ranges(numbers: Sequence[float], ranges: Any) -> list[float]:
    """The numbers that are in none of the ranges, which may be any value."""
    try:
        known = [(int(first), int(last)) for first, last in ranges]
    except (TypeError, ValueError, OverflowError):
        known = []
    return [one for place, one in enumerate(numbers) if not any(first <= place < last for first, last in known)]


@audit(
    Severity.WARNING,
    "Log-probabilities that are all 0 were not recorded but filled in, so importance ratios are wrong.",
    "Record them as missing, or ask the sampler for them.",
    input=AuditInput.ROLLOUTS,
)
@tallied("the log-probabilities of {count} of {of} rollouts are all 0")
def zero_logprobs(rollout: Rollout, _: CheckSettings) -> bool | None:
    """The log-probabilities of a response are not all 0."""
    long = [logprobs for logprobs in _known_logprobs(rollout) if len(logprobs) >= _MIN_TOKENS]
    return not all(any(logprobs) for logprobs in long) if long else None


@audit(
    Severity.ERROR,
    "Each sampled token has one log-probability; otherwise they belong to other tokens, and gradients go to the "
    "wrong ones.",
    "Look for padding, a prompt that was counted, or an end token that one side leaves out.",
    input=AuditInput.ROLLOUTS,
)
@tallied("{count} of {of} rollouts have more or fewer log-probabilities than tokens")
def logprob_lengths(rollout: Rollout, _: CheckSettings) -> bool | None:
    """There is one log-probability for each response token."""
    known = [step.tokens for step in rollout.steps if step.tokens is not None and step.tokens.logprobs is not None]
    return any(len(tokens.logprobs or ()) != len(tokens.response) for tokens in known) if known else None
