"""One fault of sampling at a time: what finds it, and which rollouts it names."""

import math

import pytest

from rolltrace.check.audit import MAX_EXAMPLES
from seeded_runs import SeededRun, assert_seeded, checked_clean, found, passes, response_of

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
    finding = assert_seeded(seeded, audit, first(one["id"] for one in records))
    assert finding.data["trend"] == [[0, 1.0], [1, 1.0], [2, 1.0]]
    assert passes(seeded, audit, threshold=1.0) is None


def test_empty_responses(seeded: SeededRun):
    """The text of some responses is lost; calls of tools or reasoning without text are no such thing."""
    records = [one for one in seeded.records(env="guess_number") if one["reward"] < 0.5][:20]

    def empty(record):
        for step in range(len(record["steps"])):
            response_of(record, step)["content"] = " \n"

    changed = seeded.change(records, empty)
    assert_seeded(seeded, "empty_responses", first(changed))
    assert "too little data" in passes(seeded, "empty_responses", min_sample=10**6)

    def reason(record):
        for step in range(len(record["steps"])):
            response_of(record, step)["reasoning"] = "Is it 7?"

    seeded.change(records, reason)
    assert passes(seeded, "empty_responses") is None


def test_stop_sequence_in_response(seeded: SeededRun):
    """A response goes on after what should have ended it; one that ends with it is fine."""
    one, other, *_ = seeded.records(env="arithmetic")
    for record, text in ((one, "Answer: 12\nUser: and 3 + 4?"), (other, "Answer: 12\nUser:")):
        seeded.change([record], lambda record, text=text: response_of(record).update(content=text))
        seeded.change([record], lambda record: record["sampling"][0].update(stop=["", "\nUser:"]))
    assert_seeded(seeded, "stop_sequence_in_response", [one["id"]])


@pytest.fixture(scope="module")
def clean_tokens(tmp_path_factory, clean_run):
    """The clean run, in which each response has ten tokens; the tokens of each turn begin with those before."""
    run = SeededRun(clean_run, tmp_path_factory.mktemp("tokens") / "run")

    def add(record):
        for number, step in enumerate(record["steps"]):
            prefix = {} if number == 0 else {"shared_prefix": 13 * number}
            logprobs = [-0.5] * 8 + [0.0, math.ulp(1.0)]  # a certain token, and one that was rounded
            step["tokens"] = {"prompt": [1, 2, 3], "response": list(range(10)), "logprobs": logprobs, **prefix}

    run.change(lambda record: True, add)
    return checked_clean(run.path)


@pytest.fixture
def tokens(tmp_path, clean_tokens):
    """A copy of that run, to be given a fault."""
    return SeededRun(clean_tokens, tmp_path / "tokens")


@pytest.mark.parametrize(
    ("audit", "make"),
    [
        ("impossible_logprobs", lambda logprobs: [*logprobs[:9], 0.25]),  # a probability
        ("impossible_logprobs", lambda logprobs: [*logprobs[:9], "NaN"]),
        ("impossible_logprobs", lambda logprobs: [*logprobs[:9], "-Infinity"]),
        ("zero_logprobs", lambda logprobs: [0.0] * 10),  # they were filled in
        ("logprob_lengths", lambda logprobs: logprobs[:9]),  # one is missing
    ],
)
def test_wrong_logprobs(tokens: SeededRun, audit, make):
    """The log-probabilities of three rollouts cannot be right."""

    def change(record):
        own = record["steps"][0]["tokens"]
        own["logprobs"] = make(own["logprobs"])

    assert_seeded(tokens, audit, tokens.change(tokens.records(env="arithmetic")[:3], change))


@pytest.mark.parametrize(("ranges", "is_found"), [([[2, 4]], False), ([[4, 9]], True), ("odd", True), ([3], True)])
def test_tokens_of_the_environment_have_no_logprobs(tokens: SeededRun, ranges, is_found):
    """What a rollout function inserted into a response was not sampled, so it has none."""

    def insert(record):
        step = record["steps"][0]
        step["tokens"]["logprobs"][3] = "NaN"
        step["extra"] = {"env_tokens": ranges}

    changed = tokens.change(tokens.records(env="arithmetic")[:3], insert)
    expected = {"impossible_logprobs": {*changed}} if is_found else {}
    assert found(tokens.check(only=["impossible_logprobs", "zero_logprobs"])) == expected


def test_history_tokenized_again(tokens: SeededRun):
    """The second prompt shares only part of the tokens of the first turn, although the text continues."""
    [record, *_] = [one for one in tokens.records(env=ENV) if len(one["steps"]) > 1]
    changed = tokens.change([record], lambda record: record["steps"][1]["tokens"].update(shared_prefix=3))
    assert_seeded(tokens, "history_tokenized_again", changed)
