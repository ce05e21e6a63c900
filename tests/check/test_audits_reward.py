"""Seeded faults of rewards: terms, weights, ranges, texts in place of numbers, and graders that are not consistent."""

import pytest

from rolltrace.check.settings import CheckSettings
from seeded_runs import SeededRun, assert_seeded, checked_clean, found, own_settings, passes, play_clean

FAMILY = ["reward"]


@pytest.fixture(scope="module")
def clean_sums(tmp_path_factory):
    """A run by the real runner whose grader states its weights."""
    path = tmp_path_factory.mktemp("weighted") / "run"
    return checked_clean(play_clean(path, {"check.weighted_sums:WeightedSums": {}}))


@pytest.fixture
def sums(tmp_path, clean_sums):
    """A copy of that run, to be given a fault."""
    return SeededRun(clean_sums, tmp_path / "sums")


def ids_of(records):
    return [record["id"] for record in records]


def set_reward(record, reward):
    """Change the last step's reward, and every sum of it."""
    step = record["steps"][-1]
    change = reward - step["reward"]
    step.update(reward=reward, env_reward=reward)
    record["reward_so_far"] += change
    if record["reward"] is not None:
        record["reward"] += change


def set_grade(record, reward):
    """Change the grade, and every sum of it."""
    change = reward - record["grade"]["reward"]
    record["grade"]["reward"] = reward
    record.update(reward=record["reward"] + change, reward_so_far=record["reward_so_far"] + change)


def test_a_run_with_weights_is_clean(sums):
    """The terms explain the grades, and are within the declared range."""
    assert sums.outcome("unexplained_reward") == ([], None)
    assert sums.records()[0]["reward_min"] == -2.0


def test_a_grade_that_its_terms_do_not_explain(sums):
    """Something was added that is not recorded."""
    [record] = changed = sums.records()[5:6]
    sums.change(changed, lambda one: set_grade(one, one["grade"]["reward"] + 0.01))
    finding = assert_seeded(sums, "unexplained_reward", ids_of(changed))
    data = finding.data
    assert (data["count"], data["of"], data["sum"]) == (1, 96, pytest.approx(record["grade"]["reward"]))


def test_a_step_that_its_terms_do_not_explain(seeded):
    """Weights of steps are added up in the same way; numbers without a weight do not count."""
    records = seeded.records(env="calculator")
    seeded.change(records, lambda one: one["steps"][-1].update(reward_weights={"correct": 1.0, "missing": 2.0}))
    assert not found(seeded.check(only=FAMILY))
    right = [record for record in records if record["reward"] == 1][3]
    seeded.change([right], lambda one: one["steps"][-1].update(reward_weights={"correct": 0.5}))
    assert_seeded(seeded, "unexplained_reward", [right["id"]])


def test_without_weights_nothing_is_explained(seeded):
    """The report says why."""
    assert seeded.outcome("unexplained_reward")[1] == "no weights of terms are recorded"


def test_a_reward_outside_the_range_of_its_builder(seeded):
    """The builder of arithmetic declares −0.1 to 1."""
    changed = seeded.records(env="arithmetic")[7:8]
    seeded.change(changed, lambda one: set_reward(one, 1.5))
    finding = assert_seeded(seeded, "reward_out_of_range", ids_of(changed))
    assert finding.message == ("expected rewards from -0.1 to 1, 1 of 96 are outside; the first is 1.5")


def test_a_limit_may_charge_more_than_the_builder_declares(seeded):
    """What the env did not give is not its fault; settings are about the whole reward."""
    changed = seeded.records(env="arithmetic")[7:8]

    def charge(record):
        set_reward(record, -5.0)
        record["steps"][-1]["env_reward"] = None

    seeded.change(changed, charge)
    assert not seeded.outcome("reward_out_of_range")[0]
    declared = CheckSettings(reward_range={"arithmetic": (-1, 1)})
    [finding], _ = seeded.outcome("reward_out_of_range", declared)
    assert finding.rollouts == tuple(ids_of(changed))


def test_a_range_in_the_settings_counts_before_the_builder_s(seeded):
    """Here calculator may only give 0, and all others anything."""
    declared = CheckSettings(reward_range={"calculator": (0, 0), "*": (-100, 100)})
    wrong = [record["id"] for record in seeded.records(env="calculator") if record["reward"] == 1]
    [finding], _ = seeded.outcome("reward_out_of_range", declared)
    assert (finding.data["count"], finding.rollouts) == (len(wrong), tuple(sorted(wrong)[:10]))


def test_rewards_that_are_all_the_same(seeded):
    """A grader that always fails."""
    records = seeded.records(env="calculator")
    seeded.change(records, lambda one: set_reward(one, 0.0))
    low = own_settings("constant_reward", min_sample=96)
    ids = sorted(ids_of(records))[:10]
    finding = assert_seeded(seeded, "constant_reward", ids, also=["small_effective_batch"], settings=low)
    assert finding.data == {"value": 0.0, "of": 96, "tasks": 24}
    seeded.change(records[:1], lambda one: set_reward(one, 1.0))
    assert not seeded.outcome("constant_reward", low)[0]
    assert "too little data" in seeded.outcome("constant_reward")[1]


def test_a_term_that_never_changes(seeded):
    """A check that always fails; in the clean run it fails now and then."""
    low = own_settings("dead_reward_term", min_sample=97)  # guess_number has more turns than others have rollouts
    records = seeded.records(env="guess_number")

    def never(record):
        for step in record["steps"]:
            step["reward_data"]["unreadable"] = 0.0

    seeded.change(records, never)
    finding = assert_seeded(seeded, "dead_reward_term", sorted(ids_of(records))[:10], settings=low)
    assert (finding.subject, finding.address) == ("unreadable", "train/guess_number")
    assert "too little data" in passes(seeded, "dead_reward_term", min_sample=1000)


def test_a_term_that_is_only_recorded_if_it_is_true(seeded):
    """The mean of such a term is always 1."""

    def one_hot(record):
        data = record["steps"][-1]["reward_data"]
        record["steps"][-1]["reward_data"] = {name: value for name, value in data.items() if value}

    records = seeded.records(env="calculator")
    seeded.change(records, one_hot)
    findings, _ = seeded.outcome("dead_reward_term", own_settings("dead_reward_term", min_sample=60))
    [finding] = [one for one in findings if one.address == "train/calculator"]
    assert finding.data["of"] < len(records)
    assert finding.subject == "correct"


def test_a_reward_for_the_format_only(sums):
    """The answer has no effect: its check always fails."""
    records = sums.records()

    def format_only(record):
        value = float(record["index"] % 2)
        record["steps"][-1]["reward_data"] = {"correct": 0.0, "format": value}
        set_reward(record, value)
        record["grade"].update(reward_data={}, reward_weights={})
        set_grade(record, 0.0)

    sums.change(records, format_only)
    low = own_settings("single_term_reward", min_sample=96)
    # The index decides, not the response, so that the same response has both rewards.
    finding = assert_seeded(
        sums, "single_term_reward", sorted(ids_of(records))[:10], also=["inconsistent_rewards"], settings=low
    )
    assert finding.data["other_terms"] == ["correct"]
    assert "too little data" in sums.outcome("single_term_reward")[1]
    sums.change(records[:9:3], lambda one: set_reward(one, 0.9 * one["index"]))
    assert not sums.outcome("single_term_reward", low)[0]


def test_a_reward_for_the_result_only_is_fine(seeded):
    """`correct` alone explains these rewards, as it should."""
    assert not seeded.outcome("single_term_reward", own_settings("single_term_reward", min_sample=10))[0]


def test_a_penalty_that_dominates(sums):
    """The weight of the length is a thousand times too large."""
    low = own_settings("dominant_penalty", min_sample=96)
    assert not sums.outcome("dominant_penalty", low)[0]
    records = sums.records()

    def heavy(record):
        grade = record["grade"]
        grade["reward_weights"]["length"] = -1.0
        set_grade(record, grade["reward_data"]["correct"] - grade["reward_data"]["length"])

    sums.change(records, heavy)
    finding = assert_seeded(
        sums, "dominant_penalty", sorted(ids_of(records))[:10], also=["reward_out_of_range"], settings=low
    )
    assert finding.subject == "length"
    assert "too little data" in sums.outcome("dominant_penalty")[1]


def test_charges_for_limits_that_dominate(seeded):
    """Every third response was truncated, and cost 10."""
    records = seeded.records(env="arithmetic")

    def charge(record):
        set_reward(record, -10.0)
        record["steps"][-1]["env_reward"] = None

    seeded.change(records[::3], charge)
    finding = assert_seeded(
        seeded,
        "dominant_penalty",
        sorted(ids_of(records[::3]))[:10],
        settings=own_settings("dominant_penalty", min_sample=96),
    )
    assert finding.subject == "limits"


@pytest.mark.parametrize(
    ("fault", "subject"),
    [
        (lambda one: one["steps"][0]["extra"].update({"score": "0.500"}), "steps.extra.score"),
        (lambda one: one["steps"][0]["extra"].update({"reward_data.style": "0.5"}), "steps.extra.reward_data.style"),
        (lambda one: one["steps"][0]["extra"].update({"reward_data.style": None}), "steps.extra.reward_data.style"),
        (
            lambda one: one["steps"][0]["extra"].update(non_numeric={"reward_data.style": [1]}),
            "steps.extra.reward_data.style",
        ),
        (lambda one: one["steps"][0]["env_state"].update({"Total reward": "-1e-3"}), "steps.env_state.Total reward"),
        (lambda one: one.update(grade={"reward": 0.0, "extra": {"penalty": "5 %"}}), "grade.extra.penalty"),
    ],
)
def test_a_number_recorded_as_text(seeded, fault, subject):
    """A display string in place of a number, in every place for other values."""
    changed = seeded.records(env="calculator")[4:6]
    seeded.change(changed, fault)
    [finding], _ = seeded.outcome("reward_as_text")
    assert (finding.subject, {*finding.rollouts}) == (subject, {*ids_of(changed)})


def test_formatted_terms(seeded):
    """A term of the reward was recorded as a text, which the recorder moved to `extra`."""

    def moved(record):
        step = record["steps"][0]
        step["extra"] = {"reward_data.style": f"{step['reward']:.3f}"}

    assert_seeded(seeded, "reward_as_text", seeded.change(seeded.records(env="calculator")[4:6], moved))


def test_texts_that_are_no_numbers_are_fine(seeded):
    """Answers may be numbers, and scores may be words."""
    extra = {"answer": "12", "score": "high", "scored": "7 points", "reward": 0.5, "rewards": ["1", "2"]}
    seeded.change(seeded.records(env="calculator")[4:6], lambda one: one["steps"][0]["extra"].update(extra))
    assert not seeded.outcome("reward_as_text")[0]


def same_responses(run, env="arithmetic"):
    """Two rollouts of one group with the same response."""
    by_response = {}
    for record in run.records(env=env):
        key = record["task"], record["messages"][-1]["content"], str(record["steps"][0]["raw"])
        by_response.setdefault(key, []).append(record)
    return next(records for records in by_response.values() if len(records) > 1)


def test_two_rewards_for_one_response(seeded):
    """A grader that is not deterministic."""
    records = same_responses(seeded)
    seeded.change(records[:1], lambda one: set_reward(one, 0.5))
    finding = assert_seeded(seeded, "inconsistent_rewards", ids_of(records))
    assert finding.data["count"] == 1


@pytest.mark.parametrize(
    "reason",
    [
        lambda one: one["steps"][0].update(env_reward=None),
        lambda one: one.update(stop_reason="max_tokens"),
        lambda one: one["steps"][0].update(termination="length"),
        lambda one: one.update(unclamped_reward=0.5),
        lambda one: one["messages"][0].update(content="Another question."),
        lambda one: one.update(calls=[{"role": "grader", "policy": "judge", "prompt": [[0, 0]], "reply": None}]),
        lambda one: one.update(task_data={"answer": "7"}),
    ],
)
def test_reasons_for_another_reward(seeded, reason):
    """Truncated responses, other prompts and grading by a model may give another reward."""
    records = same_responses(seeded)
    seeded.change(records[:1], lambda one: set_reward(one, 0.5))
    seeded.change(records[:1], reason)
    assert not seeded.outcome("inconsistent_rewards")[0]
