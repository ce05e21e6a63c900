"""One fault of the learning signal at a time: what finds it, and which rollouts it names."""

import pytest

from rolltrace.check.settings import CheckSettings
from rolltrace.store.create import create_run
from seeded_runs import SeededRun, assert_seeded, found, passes, set_reward

LAST = 5


def first(records, count=10) -> list[str]:
    """The first ids of these rollouts, in the order of groups and members."""
    return [one["id"] for one in sorted(records, key=lambda one: (one["group"], one["index"]))][:count]


def flat(series: SeededRun, iteration) -> list:
    """The rollouts of an iteration whose groups have equal rewards."""
    groups = {}
    for one in series.records(iteration=iteration):
        groups.setdefault(one["group"], []).append(one)
    return [one for some in groups.values() if len({one["reward"] for one in some}) == 1 for one in some]


def test_the_series_has_enough_data(series: SeededRun):
    """That these audits find nothing in the clean run is not for lack of data."""
    for audit in ("groups_without_signal", "signal_fades", "small_effective_batch", "tasks_always_solved"):
        assert passes(series, audit) is None


def test_groups_without_signal(series: SeededRun):
    """In one iteration, 12 of 16 groups have equal rewards."""
    records = series.records(iteration=LAST)[: 12 * 4]
    series.change(records, lambda one: set_reward(one, 1.0))
    ids = first(flat(series, LAST))
    finding = assert_seeded(series, "groups_without_signal", ids, also=["small_effective_batch"])
    assert (finding.address, finding.data["iterations"], finding.data["of"]) == ("train/arithmetic", [LAST], 16)
    assert passes(series, "groups_without_signal", threshold=1.0) is None
    assert passes(series, "groups_without_signal", min_sample=17) == "too little data: 16 groups, at least 17 needed"


def test_signal_fades(series: SeededRun):
    """Towards the end, more groups have equal rewards than at the start."""
    for iteration in (4, 5):
        series.change(series.records(iteration=iteration)[: 12 * 4], lambda one: set_reward(one, 1.0))
    also = ["groups_without_signal", "small_effective_batch"]
    assert_seeded(series, "signal_fades", first(flat(series, LAST)), also)
    assert passes(series, "signal_fades", threshold=0.9) is None
    assert "too little data" in passes(series, "signal_fades", min_sample=100)


def test_small_effective_batch(series: SeededRun):
    """Most rollouts of an iteration failed."""

    def fail(record):
        record.update(status="error", reward=None, stop_reason="error", stopped_by="runner")
        record["error"] = {"layer": "policy", "type": "PolicyError", "message": "gone"}

    in_order = sorted(series.records(iteration=LAST), key=lambda one: (one["group"], one["index"]))
    failed = in_order[-13 * 4 :]
    series.change(failed, fail)
    equal = [one for one in flat(series, LAST) if one["reward"] is not None]
    finding = assert_seeded(series, "small_effective_batch", first([*failed, *equal]))
    assert (finding.data["count"], finding.data["of"]) == (52 + len(equal), 64)
    assert passes(series, "small_effective_batch", threshold=1.0) is None
    assert "too little data" in passes(series, "small_effective_batch", min_sample=65)


@pytest.mark.parametrize(("audit", "reward"), [("tasks_always_solved", 1.0), ("tasks_never_solved", 0.0)])
def test_tasks_that_are_always_or_never_solved(series: SeededRun, audit, reward):
    """Three of five tasks have the same reward in all tries, spread over all iterations."""
    tasks = {one["task"]: one for one in series.records()}
    same = {task for number, task in enumerate(tasks) if number % 5 in (0, 2, 4)}
    series.change(lambda one: one["task"] in same, lambda one: set_reward(one, reward))
    rewards: dict[str, dict[str, float]] = {}
    for one in series.records():
        rewards.setdefault(one["task"], {})[one["id"]] = one["reward"]
    extreme = {task for task in rewards if {*rewards[task].values()} == {reward}}
    ids = [id_ for task in sorted(extreme) for id_ in sorted(rewards[task])]
    finding = assert_seeded(series, audit, ids[:10], also=["groups_without_signal"])
    assert {*finding.data["tasks"]} == extreme >= same
    assert passes(series, audit, threshold=0.95) is None
    assert "too little data" in passes(series, audit, min_sample=1000)
    assert series.outcome(audit, CheckSettings(reward_range={"arithmetic": (-1.0, 2.0)})) == ([], None)


def test_stale_policy(series: SeededRun):
    """Three rollouts of a batch are of a policy that is five versions old."""

    def version(record, number):
        record["steps"][0]["policy_version"] = record["policy_version"] = number

    series.change(lambda one: True, lambda one: version(one, one["iteration"] + 10))
    assert found(series.check()) == {}
    stale = series.records(iteration=3)[7:10]
    series.change(stale, lambda one: version(one, 8))
    assert_seeded(series, "stale_policy", [one["id"] for one in stale])
    assert passes(series, "stale_policy", threshold=5) is None
    assert "too little data" in passes(series, "stale_policy", min_sample=1000)


def test_stale_policies_without_numbers(series: SeededRun):
    """Names of versions are in the order in which they first appear."""
    records = sorted(series.records(iteration=3), key=lambda one: one["id"])
    for number, name in enumerate(("a", "z", "b", "y", "c", "x")):
        series.change(
            records[number * 10 : number * 10 + 10], lambda one, name=name: one["steps"][0].update(policy_version=name)
        )
    assert_seeded(series, "stale_policy", [one["id"] for one in records[:10]])


def test_logprob_gap(series: SeededRun):
    """The trainer gives the tokens of some rollouts other probabilities."""
    records = series.records(iteration=LAST)[:40]
    tokens = {"prompt": [1, 2], "response": [3, 4, 5, 6, 7], "logprobs": [-1.0, -0.5, -2.0, -0.1, -0.2]}
    series.change(records, lambda one: one["steps"][0].update(tokens=tokens))
    assert passes(series, "logprob_gap") == "no log-probabilities of a trainer are recorded"

    def score(shift):
        series.close()
        with create_run(series.path, join=True, continues=[]) as writer:
            for number, one in enumerate(records):
                numbers = [value + (shift if number < 5 else 0.01) for value in tokens["logprobs"]]
                writer.score(one["id"], "trainer_logprobs", sum(numbers) / 5, data={"tokens": [numbers]})

    score(0.01)
    assert found(series.check()) == {}
    score(1.5)
    assert_seeded(series, "logprob_gap", [one["id"] for one in records[:5]])
    assert passes(series, "logprob_gap", threshold=0.5) is None
    assert passes(series, "logprob_gap", min_sample=201) == "too little data: 200 tokens, at least 201 needed"


def test_scores_without_usable_numbers_are_left_out(series: SeededRun):
    """Scores of other programs may have the same name."""
    odd = [{}, {"tokens": 3}, {"tokens": [[1.0], None, "x"]}, {"tokens": [[None, "x", 1, 2, 3]]}]
    records = series.records(iteration=LAST)[: len(odd)]
    tokens = {"prompt": [1, 2], "response": [3, 4, 5, 6, 7], "logprobs": [-1.0, -0.5, -2.0, -0.1, -0.2]}
    series.change(records, lambda one: one["steps"][0].update(tokens=tokens))
    with create_run(series.path, join=True, continues=[]) as writer:
        for one, data in zip(records, odd, strict=True):
            writer.score(one["id"], "trainer_logprobs", 0.0, data=data)
    assert passes(series, "logprob_gap") == "too little data: 3 tokens, at least 200 needed"
