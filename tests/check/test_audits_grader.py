"""One fault of a grader at a time: what finds it, and which rollouts it names."""

import pytest

from rolltrace.check.settings import CheckSettings
from seeded_runs import SeededRun, assert_seeded, passes, response_of

RUBRIC, PREFERENCE = "rubric", "preference"


def matrices(seeded: SeededRun) -> list:
    """The scores of the preference grader that are about groups."""
    return [one for one in seeded.records("scores") if one["name"] == "group_grade"]


def decide(seeded: SeededRun, decision, scores=None) -> list:
    """Replace what the judge decided between the members of each group, or of some; the scores."""

    def change(record):
        size = len(record["data"]["extra"]["matrix"])
        record["data"]["extra"]["matrix"] = [
            [None if row == column else decision(row, column) for column in range(size)] for row in range(size)
        ]

    seeded.change(scores or matrices(seeded), change, "scores")
    return matrices(seeded)


def in_order(scores) -> list:
    """The scores in the order of their groups."""
    return sorted(scores, key=lambda one: (one["group"]["iteration"], one["group"]["group"]))


def first_group(scores) -> list[str]:
    """The members of the first groups: as many as a finding names."""
    return [id_ for one in in_order(scores) for id_ in one["data"]["extra"]["ids"]][:10]


def test_position_bias(seeded: SeededRun):
    """The judge prefers the answer that is shown first, whichever it is."""
    scores = decide(seeded, lambda row, column: 0.5)
    assert_seeded(seeded, "position_bias", first_group(scores), also=["order_disagreement"])
    assert passes(seeded, "position_bias", threshold=1.0) is None
    assert "too little data" in passes(seeded, "position_bias", min_sample=1000)


def test_bias_for_the_second_position(seeded: SeededRun):
    """Two of three times, so that both orders often agree."""
    decide(seeded, lambda row, column: 0.5 if row > column and (row + column) % 2 else -0.5)
    findings, _ = seeded.outcome("position_bias", CheckSettings())
    assert [one.message for one in findings] == ["the second answer won 192 of 288 comparisons"]


def test_order_disagreement(seeded: SeededRun):
    """Which answer wins depends on the order, without a bias for one position."""
    scores = decide(seeded, lambda row, column: 0.5 if 3 in (row, column) else -0.5)
    assert_seeded(seeded, "order_disagreement", first_group(scores))
    assert passes(seeded, "order_disagreement", threshold=1.0) is None
    assert "too little data" in passes(seeded, "order_disagreement", min_sample=1000)


def test_frequent_ties(seeded: SeededRun):
    """The judge decides in the first groups, and then only between the first and the last member."""
    decided, tied = in_order(matrices(seeded))[:4], in_order(matrices(seeded))[4:]
    decide(seeded, lambda row, column: 0.5 if row < column else -0.5)
    decide(seeded, lambda row, column: {(0, 3): 0.5, (3, 0): -0.5}.get((row, column), 0.0), tied)
    finding = assert_seeded(seeded, "frequent_ties", first_group(tied))
    assert not {*finding.rollouts} & {id_ for one in decided for id_ in one["data"]["extra"]["ids"]}
    assert (finding.address, finding.data["count"], finding.data["of"]) == ("train/preference", 200, 288)
    assert passes(seeded, "frequent_ties", threshold=0.9) is None
    assert "too little data" in passes(seeded, "frequent_ties", min_sample=1000)


def test_matrices_that_are_none(seeded: SeededRun):
    """Data of graders of users may be anything."""
    odd = [None, 3, [], [[None]], [[1], [2, 3]], ["ab", "cd"], [[None, "x"], [True, None]], {}]
    numbers = {one["id"]: number for number, one in enumerate(matrices(seeded))}
    seeded.change(
        matrices(seeded), lambda one: one["data"]["extra"].update(matrix=odd[numbers[one["id"]] % len(odd)]), "scores"
    )
    for audit in ("position_bias", "order_disagreement", "frequent_ties"):
        assert passes(seeded, audit).startswith(("no judge", "too little data: 0"))


def score_criteria(seeded: SeededRun, score) -> list[str]:
    """Give criteria other scores, without a contradiction in the grade; the rollouts."""
    numbers = {one["id"]: number for number, one in enumerate(seeded.records(env=RUBRIC))}

    def change(record):
        details = record["grade"]["extra"]["criteria"]
        data = record["grade"]["reward_data"]
        for one in details:
            one["score"] = data[one["name"]] = score(one, numbers[record["id"]])
        data["rubric"] = sum(one["weight"] * one["score"] for one in details) / sum(
            abs(one["weight"]) for one in details
        )
        reward = data["rubric"] + 0.1 * (data["format"] - 1)
        record["grade"]["reward"] = record["reward"] = record["reward_so_far"] = reward

    return seeded.change(seeded.records(env=RUBRIC), change)


def test_piled_scores(seeded: SeededRun):
    """Almost all scores are 0.8."""
    ids = score_criteria(seeded, lambda one, number: 0.1 if number % 20 == 0 else 0.8)
    expected = sorted(id_ for number, id_ in enumerate(ids) if number % 20)
    # Most groups have the same scores for all members, and then no signal.
    assert_seeded(seeded, "piled_scores", expected[:10], also=["small_effective_batch"])
    assert passes(seeded, "piled_scores", threshold=0.99) is None
    assert "too little data" in passes(seeded, "piled_scores", min_sample=1000)


def test_constant_criterion(seeded: SeededRun):
    """One criterion has the same score for every response, others vary."""
    ids = score_criteria(seeded, lambda one, number: 0.5 if one["name"] == "correct" else one["score"])
    names = [one for one in seeded.records(env=RUBRIC) if "correct" in one["grade"]["reward_data"]]
    assert len(names) > 16
    assert {*ids} >= {one["id"] for one in names}
    assert_seeded(seeded, "constant_criterion", sorted(one["id"] for one in names)[:10])
    assert passes(seeded, "constant_criterion", threshold=1000) is None
    assert "too little data" in passes(seeded, "constant_criterion", min_sample=1000)


def test_unreadable_replies(seeded: SeededRun):
    """Some replies of a grader had to be asked for again, and some calls failed."""
    records = [one for one in seeded.records(env=RUBRIC) if len(one["calls"]) > 1][:12]

    def ask_again(record):
        record["calls"][1].update(continues_call=0, about=record["calls"][0]["about"])

    def fail(record):
        record["calls"][0].update(reply=None, error={"layer": "policy", "type": "PolicyError", "message": "gone"})

    changed = seeded.change(records[:6], ask_again) + seeded.change(records[6:], fail)
    assert passes(seeded, "unreadable_replies") is None  # 12 of 276
    rest = [one for one in seeded.records(env=RUBRIC) if one["id"] not in changed][:20]
    changed += seeded.change(rest, fail)
    assert_seeded(seeded, "unreadable_replies", sorted(changed)[:10])
    assert passes(seeded, "unreadable_replies", threshold=0.5) is None
    assert "too little data" in passes(seeded, "unreadable_replies", min_sample=1000)


def test_a_judge_that_follows_length(seeded: SeededRun):
    """The longest response of each group gets the highest reward."""
    records = seeded.records(env=PREFERENCE)
    lengths = {one["id"]: len(response_of(one)["content"]) for one in records}
    groups: dict[tuple, list[int]] = {}
    for one in records:
        groups.setdefault((one["iteration"], one["group"]), []).append(lengths[one["id"]])
    # The longest of its group: it has the highest rank if no other is as long.
    longest = [one["id"] for one in records if sorted(groups[one["iteration"], one["group"]])[-2] < lengths[one["id"]]]

    def change(record):
        reward = lengths[record["rollout"]] / 1000
        data = record["data"]
        record["value"] = data["group_grade"] = data["reward_data"]["preference"] = reward

    seeded.change(lambda one: one["name"] == "reward" and one["rollout"] in lengths, change, "scores")
    finding = assert_seeded(seeded, "judge_follows_length", sorted(longest)[:10])
    assert (finding.address, finding.data["of"]) == ("train/preference", 96)
    assert finding.data["correlation"] == pytest.approx(1.0)
    assert passes(seeded, "judge_follows_length", threshold=1.0) is None
    assert "too little data" in passes(seeded, "judge_follows_length", min_sample=1000)


def test_criteria_of_users_may_be_anything(seeded: SeededRun):
    """No audit fails."""
    odd = [None, 3, "x", [], [None], [3], [{"name": 3, "score": "x"}], [{"score": True}], {"a": 1}]
    records = seeded.records(env=RUBRIC)
    numbers = {one["id"]: number for number, one in enumerate(records)}
    seeded.change(records, lambda one: one["grade"].update(extra={"criteria": odd[numbers[one["id"]] % len(odd)]}))
    assert not [result.error for result in seeded.check(only=["grader"]).results if result.error]
