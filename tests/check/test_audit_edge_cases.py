"""Runs that are unusual and right, or hostile: audits neither accuse them nor fail."""

import math
import statistics
from contextlib import closing

import duckdb
import msgspec
import pytest

from rolltrace.check.audit import AuditInput, Severity, Threshold, audit
from rolltrace.check.check_run import IterationChecker, check_run
from rolltrace.check.response_stats import ANSWERS, REFUSAL
from rolltrace.check.settings import AuditSettings, CheckSettings
from rolltrace.errors import InputError
from rolltrace.query.iteration_metrics import iteration_metrics
from rolltrace.query.run import open_run
from rolltrace.store.create import create_run
from rolltrace.store.ledger import decode_ledger, encode_ledger
from rolltrace.store.recording import Recording
from rolltrace.trace.score import GroupKey
from rolltrace.trace.tokens import Tokens

HUGE_HASH = "hashed:99999999999999999999999:0123456789abcdef"
"""What a policy may answer: it looks like a hashed text of an impossible length."""


def record(path, rewards, responses=None, advantages=None, **fields):
    """Records groups of rollouts: `rewards` are those of each group of each iteration."""
    with create_run(path) as run:
        for iteration, groups in enumerate(rewards):
            batch = [reward for group in groups for reward in group]
            for number, group in enumerate(groups):
                for index, reward in enumerate(group):
                    name = f"{iteration}-{number}"
                    one = run.rollout(env="sums", task=name, group=name, index=index, iteration=iteration)
                    text = f"{reward}, says {name}/{index}" if responses is None else responses(iteration, index)
                    one.step(f"task {name}?", text, reward=reward, **fields)
                    one.end()
                    if advantages is not None:
                        run.score(one.id, "advantage", advantages(reward, batch))
    return path


def whitened(reward, batch):
    """The advantage of a reward over the mean and the deviation of its iteration."""
    return (reward - statistics.mean(batch)) / statistics.pstdev(batch)


def findings(path, audit_name, **options):
    """The messages of one audit, which must not fail."""
    [result] = check_run(path, only=[audit_name], **options).results
    assert result.error is None
    return [finding.message for finding in result.findings]


def test_whitening_where_few_groups_differ(tmp_path):
    """Late in training most groups are solved, and two that are not show no scale of the iteration."""
    mixed, solved = [1.0, 0.0, 0.0, 1.0, 1.0], [1.0] * 5
    early = [[[1.0, 0.0, 1.0, 0.0, 0.0], mixed, [0.0, 0.0, 0.0, 1.0, 0.0], solved] * 2 for _ in range(5)]
    late = [mixed, [0.0, 1.0, 1.0, 1.0, 1.0], *[solved] * 6]
    path = record(tmp_path / "run", [*early, late], advantages=whitened)
    assert findings(path, "advantage_mismatch") == []


def test_whitening_where_no_group_differs(tmp_path):
    """Without a group whose rewards differ, no formula is known."""
    path = record(tmp_path / "run", [[[1.0] * 4, [0.0] * 4, [1.0] * 4] * 2], advantages=whitened)
    assert findings(path, "advantage_mismatch") == []


def test_whitening_of_pairs(tmp_path):
    """In pairs of 0 and 1 two formulas fit; the groups with equal rewards show which one it is."""
    groups = [[1.0, 0.0]] * 9 + [[1.0, 1.0]] * 4 + [[0.0, 0.0]] * 3
    path = record(tmp_path / "run", [groups] * 4, advantages=whitened)
    assert findings(path, "advantage_mismatch") == []


@pytest.mark.parametrize("audit_name", ["length_drift", "sudden_jump", "refusals", "script_change", "converged_groups"])
def test_a_response_that_looks_like_a_hash(tmp_path, audit_name):
    """Its length is that of its text."""
    path = record(tmp_path / "run", [[[1.0, 0.0]] * 12] * 6, responses=lambda iteration, index: HUGE_HASH)
    assert findings(path, audit_name) == []
    with open_run(path) as run:
        assert {one["rollout/train/response_chars/mean"] for one in iteration_metrics(run).values()} == {len(HUGE_HASH)}


def test_rounding_is_no_jump(tmp_path):
    """The mean of equal rewards depends on how many they are, in the last digit."""
    path = record(tmp_path / "run", [[[0.1] * 3] * 8, [[0.1] * 3] * 9])
    assert findings(path, "sudden_jump") == []


def test_a_script_without_texts_before_it(tmp_path):
    """The first iteration with texts is the first, also if an earlier one has none."""
    with create_run(tmp_path / "run") as run:
        for number in range(64):
            iteration, place = divmod(number, 32)
            one = run.rollout(env="sums", task="t", group=str(place // 4), index=place % 4, iteration=iteration)
            if iteration:
                one.step("2 + 2?", "答案是四" * 20, reward=1.0)
            one.end(error=None if iteration else RuntimeError("no answer"))
    assert findings(tmp_path / "run", "script_change") == []


def test_an_iteration_without_responses(tmp_path):
    """An env whose rollouts all failed before the first turn has no lengths."""
    with create_run(tmp_path / "run") as run:
        for index in range(4):
            run.rollout(env="sums", task="t", group="g", index=index).end(error=RuntimeError("no answer"))
    with closing(IterationChecker(tmp_path / "run", only=["length_drift"])) as checker:
        [result] = checker.check(0).results
    assert result.error is None


def test_a_term_that_is_nan_once_is_not_dead(tmp_path):
    """Other values of it differ."""
    with create_run(tmp_path / "run") as run:
        for number in range(220):
            value = math.nan if number == 7 else float(number % 2)
            one = run.rollout(env="sums", task=str(number), group=str(number), index=0)
            one.step("1 + 1?", "2", reward=1.0, reward_data={"correct": value})
            one.end()
    assert findings(tmp_path / "run", "dead_reward_term") == []


def test_a_range_that_is_open_at_one_end(tmp_path):
    """A reward below it is found."""
    path = record(tmp_path / "run", [[[1.0, -1.0]]])
    settings = CheckSettings(reward_range={"sums": (0.0, math.inf)})
    [message] = findings(path, "reward_out_of_range", settings=settings)
    assert "-1" in message


@pytest.fixture
def free_form(tmp_path):
    """A run with numbers beyond floats where anything may be written."""
    with create_run(tmp_path / "run", trace=Recording(tokens=True)) as run:
        tokens = Tokens(prompt=(1,), response=(1, 2), logprobs=(-0.5, -0.5))
        for index in range(2):
            one = run.rollout(env="sums", task="t", group="g", index=index, iteration=0)
            one.step("1 + 1?", "2", reward=1.0, tokens=tokens, extra={"env_tokens": [[math.inf, 3]]})
            one.end()
            run.score(one.id, "trainer_logprobs", None, data={"tokens": [[10**400, -0.5]]})
        key = GroupKey(split="train", iteration=0, env="sums", group="g")
        run.score(None, "preference", None, group=key, data={"extra": {"matrix": [[None, 10**400], [None, None]]}})
    return tmp_path / "run"


@pytest.mark.parametrize("name", ["impossible_logprobs", "zero_logprobs", "logprob_gap", "grader"])
def test_free_form_numbers_beyond_floats(free_form, name):
    """They are left out."""
    assert [result.error for result in check_run(free_form, only=[name]).results if result.error] == []


@pytest.mark.parametrize("audit_name", ["signal_fades", "frequent_ties"])
def test_no_minimum_of_samples(tmp_path, free_form, audit_name):
    """Nothing is never enough."""
    path = free_form if audit_name == "frequent_ties" else record(tmp_path / "other", [[[1.0]]] * 6)
    settings = CheckSettings(audits={audit_name: AuditSettings(min_sample=0)})
    assert findings(path, audit_name, settings=settings) == []


def test_the_input_of_an_audit_may_be_text():
    """As its severity may."""
    threshold = Threshold(1.0, "One.")
    assert (
        audit(Severity.INFO, "Why.", input="tables", threshold=threshold)(lambda tables: ()).input is AuditInput.TABLES
    )
    with pytest.raises(InputError, match="to have no threshold, or the input TABLES, got rollouts"):
        audit(Severity.INFO, "Why.", input="rollouts", threshold=threshold)(lambda tables: ())


@pytest.mark.parametrize(
    ("text", "is_refusal"),
    [
        ("I'm unable to help with that.", True),
        ("I’m not able to assist.", True),
        ("I can’t help you.", True),
        ("I'm sorry, but I cannot.", True),
        ("As an AI model, I don't know.", True),
        ("I'm sorry, I made an error above; the answer is 5.", False),
        ("I can help: 5.", False),
    ],
)
def test_what_is_a_refusal(text, is_refusal):
    """Straight and typographic apostrophes, and no apologies for an error."""
    found = duckdb.execute("select regexp_matches($1, $2)", [text, REFUSAL]).fetchall()
    assert found == [(is_refusal,)]


def test_a_boxed_fraction_is_an_answer():
    """Braces may be nested once."""
    text = r"\boxed{\frac{1}{2}} and \boxed{5}"
    [(found,)] = duckdb.execute("select regexp_extract_all($1, $2)", [text, ANSWERS[0]]).fetchall()
    assert found == [r"\boxed{\frac{1}{2}}", r"\boxed{5}"]


def test_findings_about_a_session_have_keys_of_their_own(tmp_path):
    """An accepted loss does not hide another one."""
    path = record(tmp_path / "run", [[[1.0]]])
    [ledger] = (path / "ledger").iterdir()
    line = decode_ledger(ledger.read_bytes().splitlines(keepends=True)[-1])
    losses = {"scores_dropped": {"queue full": 1, "ENOSPC": 500}, "recorded": 3, "dispatched": 3, "scores_recorded": 1}
    with ledger.open("ab") as file:
        file.write(encode_ledger(msgspec.structs.replace(line, **losses)))
    for name in ("dropped", "lost_lines"):
        [result] = check_run(path, only=[name]).results
        assert len({finding.key for finding in result.findings}) == len(result.findings) == 2
