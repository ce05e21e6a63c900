"""One fault of sampling at a time: what finds it, and which rollouts it names."""

import math

import pytest

from rolltrace.check.audit import MAX_EXAMPLES
from rolltrace.check.settings import AuditSettings, CheckSettings
from seeded_runs import SeededRun, assert_found, found, response_of

ENV = "guess_number"  # the env with most responses


def first(ids):
    return sorted(ids)[:MAX_EXAMPLES]


@pytest.mark.parametrize(
    ("audit", "fields"),
    [
        ("truncated_responses", {"termination": "length"}),
        ("parse_errors", {"parse_error": "there is no number"}),
    ],
)
def test_shares_of_responses(seeded: SeededRun, audit, fields):
    """Every response of one env is wrong; a higher threshold lets it pass."""
    records = seeded.records(env=ENV)

    def spoil(record):
        for step in record["steps"]:
            step.update(fields)

    seeded.change(records, spoil)
    report = seeded.check()
    assert_found(report, audit, first(one["id"] for one in records))
    [finding] = next(result.findings for result in report.results if result.audit == audit)
    assert finding.data["trend"] == [[0, 1.0], [1, 1.0], [2, 1.0]]
    lenient = CheckSettings(audits={audit: AuditSettings(threshold=1.0)})
    assert found(seeded.check(lenient)) == {}


def test_empty_responses(seeded: SeededRun):
    """The text of some responses is lost; calls of tools without text are no such thing."""
    records = [one for one in seeded.records(env="guess_number") if one["reward"] < 0.5][:20]

    def empty(record):
        for step in range(len(record["steps"])):
            response_of(record, step)["content"] = " \n"

    changed = seeded.change(records, empty)
    report = seeded.check(only=["sampling"])
    assert_found(report, "empty_responses", first(changed))
    settings = CheckSettings(audits={"empty_responses": AuditSettings(min_sample=10**6)})
    [result] = seeded.check(settings, only=["empty_responses"]).results
    assert (result.count, result.note.split(":")[0]) == (0, "too little data")


def test_stop_sequence_in_response(seeded: SeededRun):
    """A response goes on after what should have ended it; one that ends with it is fine."""
    one, other, *_ = seeded.records(env="arithmetic")
    for record, text in ((one, "Answer: 12\nUser: and 3 + 4?"), (other, "Answer: 12\nUser:")):
        seeded.change([record], lambda record, text=text: response_of(record).update(content=text))
        seeded.change([record], lambda record: record["sampling"][0].update(stop=["", "\nUser:"]))
    report = seeded.check(only=["sampling"])
    assert_found(report, "stop_sequence_in_response", [one["id"]])


def with_logprobs(seeded, make):
    """Give every response of one env ten tokens, and some of the rollouts what `make` returns."""
    records = seeded.records(env="arithmetic")

    def add(record):
        logprobs = [-0.5] * 9 + [0.0]
        record["steps"][0]["tokens"] = {"prompt": [1, 2, 3], "response": list(range(10)), "logprobs": logprobs}

    seeded.change(records, add)
    assert found(seeded.check(only=["sampling"])) == {}
    return seeded.change(
        records[:3], lambda record: record["steps"][0]["tokens"].update(logprobs=make(record["steps"][0]["tokens"]))
    )


@pytest.mark.parametrize("value", [0.25, "NaN", "-Infinity"])
def test_impossible_logprobs(seeded: SeededRun, value):
    """A probability instead of its logarithm, or no number."""
    changed = with_logprobs(seeded, lambda tokens: [*tokens["logprobs"][:9], value])
    assert_found(seeded.check(), "impossible_logprobs", changed)


def test_rounding_is_possible(seeded: SeededRun):
    """A log-probability of a certain token may be a little above 0."""
    with_logprobs(seeded, lambda tokens: [*tokens["logprobs"][:9], math.ulp(1.0)])
    assert found(seeded.check()) == {}


def test_zero_logprobs(seeded: SeededRun):
    """They were filled in."""
    changed = with_logprobs(seeded, lambda tokens: [0.0] * 10)
    assert_found(seeded.check(), "zero_logprobs", changed)


def test_logprob_lengths(seeded: SeededRun):
    """One is missing."""
    changed = with_logprobs(seeded, lambda tokens: tokens["logprobs"][:9])
    assert_found(seeded.check(), "logprob_lengths", changed)


def test_history_tokenized_again(seeded: SeededRun):
    """The second prompt shares only part of the tokens of the first turn, although the text continues."""
    records = [one for one in seeded.records(env=ENV) if len(one["steps"]) > 1][:4]

    def add(record):
        for number, step in enumerate(record["steps"]):
            prefix = {} if number == 0 else {"shared_prefix": 5 * number}
            step["tokens"] = {"prompt": [7, 8], "response": [1, 2, 3], "logprobs": None, **prefix}

    seeded.change(records, add)
    assert found(seeded.check(only=["sampling"])) == {}
    [changed] = seeded.change(records[:1], lambda record: record["steps"][1]["tokens"].update(shared_prefix=3))
    assert_found(seeded.check(), "history_tokenized_again", [changed])
