"""Seeded faults of alignment: responses, prompts, seats and advantages that belong to something else."""

import statistics
from itertools import groupby

import pytest

from rolltrace.check.check_run import IterationChecker
from rolltrace.check.settings import AuditSettings, CheckSettings
from rolltrace.store.create import create_run
from rolltrace.testing.scripted import ScriptedReplies
from seeded_runs import (
    SeededRun,
    assert_seeded,
    checked_clean,
    found,
    own_settings,
    passes,
    play_clean,
    prose,
    response_of,
)

GAMES = "envs.countdown:countdowns"
AUDITS = ["advantage_mismatch", "advantage_formula", "advantage_sign"]


@pytest.fixture(scope="module")
def clean_games(tmp_path_factory):
    """Eight games of two seats by the real runner."""
    policy = ScriptedReplies(lambda request: str(1 + (request.seed or 0) % 2))
    plan = {"iterations": 1, "groups": 1, "group_size": 8}
    return checked_clean(play_clean(tmp_path_factory.mktemp("games") / "run", {GAMES: {"heap": 7}}, policy, **plan))


@pytest.fixture
def games(tmp_path, clean_games):
    """A copy of the games, to be given a fault."""
    return SeededRun(clean_games, tmp_path / "games")


@pytest.fixture(scope="module")
def clean_sums(tmp_path_factory):
    """A run of one env, for faults of advantages."""
    return checked_clean(play_clean(tmp_path_factory.mktemp("sums") / "run", {"arithmetic": {}}))


@pytest.fixture
def sums(tmp_path, clean_sums):
    """A copy of that run, to be given a fault."""
    return SeededRun(clean_sums, tmp_path / "sums")


def groups_of(run, env="arithmetic"):
    """The groups of an env in their order, each with its members in theirs."""
    records = sorted(run.records(env=env), key=lambda one: (one["iteration"], one["group"], one["index"]))
    return [list(group) for _, group in groupby(records, lambda one: (one["iteration"], one["group"]))]


def of_group(run, env, group=0):
    """The members of a group in their order."""
    return groups_of(run, env)[group]


def group_with(run, rewards):
    """The first group with so many different rewards."""
    return next(group for group in groups_of(run) if len({record["reward"] for record in group}) == rewards)


def ids_of(records):
    return [record["id"] for record in records]


def test_two_tasks_in_a_group(seeded):
    """A member of another task makes the group's mean meaningless."""
    group = of_group(seeded, "arithmetic")
    seeded.change(group[:1], lambda record: record.update(task="another"))
    finding = assert_seeded(seeded, "group_tasks", ids_of(group))
    assert "another" in finding.message


def test_two_prompts_in_a_group(seeded):
    """One member was asked something else than the others."""
    changed = of_group(seeded, "arithmetic")[2:3]
    seeded.change(changed, lambda record: record["messages"][0].update(content="What is 1 + 1?"))
    finding = assert_seeded(seeded, "group_prompts", ids_of(changed))
    assert finding.data == {"prompts": 2, "members": 4, "count": 1}


def test_later_prompts_may_differ(seeded):
    """Only the first prompt of a member is that of the group."""
    changed = [record for record in seeded.records(env="guess_number") if len(record["steps"]) > 1][:1]
    seeded.change(changed, lambda record: record["messages"][2].update(content="warm"))
    assert not seeded.outcome("group_prompts")[0]


@pytest.mark.parametrize(
    ("fault", "different"),
    [
        (lambda record: record.update(task="another"), "task"),
        (lambda record: record.update(seed=99), "seed"),
        (lambda record: record.update(task_data={"heap": 1}), "task_data"),
        (lambda record: record["steps"][-1]["extra"].update(reason="0 gave up."), "reason"),
        (lambda record: record["steps"][-1]["extra"].update(rewards={"0": 0.0, "1": 0.0}), "rewards"),
        (lambda record: record["steps"][-1]["metrics"].update(game_moves=2), "moves"),
    ],
)
def test_seats_that_disagree(games, fault, different):
    """The records of one episode are of two games."""
    seats = games.records(episode=3)
    games.change(seats[:1], fault)
    also = ["group_tasks"] if different == "task" else []
    finding = assert_seeded(games, "seats_disagree", ids_of(seats), also)
    assert different in finding.data["different"]


def test_a_seat_with_the_reward_of_another(games):
    """The game says that this seat lost, its record says that it won."""
    loser = next(record for record in games.records(episode=3) if record["reward"] == -1)

    def win(record):
        record.update(reward=1.0, reward_so_far=1.0)
        record["steps"][-1].update(reward=1.0, env_reward=1.0, reward_data={"game_reward": 1.0})

    games.change([loser], win)
    assert_seeded(games, "seats_disagree", [loser["id"]])


def test_retried_seats_are_left_out(games):
    """An attempt that failed has no result to agree about."""
    games.change(
        games.records(episode=3)[:1],
        lambda record: record.update(status="error", stop_reason="error", reward=None, task_data={"heap": 1}),
    )
    assert not games.outcome("seats_disagree")[0]


LOW_SAMPLE = own_settings("repeated_responses", min_sample=4)


def lengthen(record):
    """Make the response long, and its own."""
    message = response_of(record)
    message["content"] = f"{prose(int(record['id'], 16), 60)} {message['content']}"


def test_responses_that_repeat(seeded):
    """A batch in which one completion was recorded for the whole group."""
    seeded.change(seeded.records(env="arithmetic"), lengthen)
    assert found(seeded.check()) == {}
    group = of_group(seeded, "arithmetic", 3)
    text = response_of(group[0])["content"]
    seeded.change(group[1:], lambda record: response_of(record).update(content=text))
    # The rewards are still those of the completions that were lost.
    finding = assert_seeded(seeded, "repeated_responses", ids_of(group), also=["inconsistent_rewards"])
    assert finding.data == {"count": 4, "of": 32, "iterations": [0]}
    assert passes(seeded, "repeated_responses", threshold=4 / 32) is None


def test_greedy_and_short_responses_may_repeat(seeded):
    """At temperature 0 all members say the same, and there are few ways to say a short answer."""
    group = of_group(seeded, "arithmetic", 3)
    text = "x" * 199
    seeded.change(group, lambda record: response_of(record).update(content=text))
    assert not seeded.outcome("repeated_responses", LOW_SAMPLE)[0]
    seeded.change(group, lambda record: response_of(record).update(content=text + "x"))
    [finding], _ = seeded.outcome("repeated_responses", LOW_SAMPLE)
    assert {*finding.rollouts} == {*ids_of(group)}

    def greedy(record):
        record["sampling"] = [{"temperature": 0.0}]
        record["steps"][0]["sampling"] = 0

    seeded.change(group, greedy)
    assert not seeded.outcome("repeated_responses", LOW_SAMPLE)[0]


def test_few_long_responses_are_too_little_data(seeded):
    """The clean run has some, and the audit says that they are not enough."""
    assert "too little data" in passes(seeded, "repeated_responses")


def test_responses_under_other_prompts(seeded):
    """The completions of two groups were exchanged, and of another two."""
    pairs = []
    for numbers in ((1, 4), (6, 7)):
        one, other = (
            [record for record in of_group(seeded, "preference", number) if len(response_of(record)["content"]) > 100]
            for number in numbers
        )
        pairs += list(zip(one, other, strict=False))
    texts = {}
    for first, second in pairs:
        texts[first["id"]], texts[second["id"]] = response_of(second)["content"], response_of(first)["content"]
    seeded.change(
        lambda record: record["id"] in texts, lambda record: response_of(record).update(content=texts[record["id"]])
    )
    finding = assert_seeded(seeded, "response_to_other_prompt", texts)
    assert finding.data["iterations"] == [0]
    assert passes(seeded, "response_to_other_prompt", threshold=len(texts) / finding.data["of"]) is None
    assert "too little data" in passes(seeded, "response_to_other_prompt", min_sample=finding.data["of"] + 1)


def advantages(run, formula):
    """By rollout, the advantage of a formula over the rewards of its group."""
    values = {}
    for group in groups_of(run):
        values |= dict(zip(ids_of(group), formula([record["reward"] for record in group]), strict=True))
    return values


def advantage_findings(run):
    """By audit of advantages with findings, the rollouts that they name."""
    outcomes = {audit: run.outcome(audit)[0] for audit in AUDITS}
    return {audit: {id_ for one in some for id_ in one.rollouts} for audit, some in outcomes.items() if some}


def centred(rewards):
    return [reward - statistics.mean(rewards) for reward in rewards]


def scaled(rewards, std=statistics.pstdev, eps=1e-4):
    return [value / (std(rewards) + eps) for value in centred(rewards)]


FORMULAS = {
    "mean": centred,
    "std": scaled,
    "std without eps": lambda rewards: scaled(rewards, eps=1e-8),
    "sample std": lambda rewards: scaled(rewards, statistics.stdev),
    "leave one out": lambda rewards: [value * 4 / 3 for value in centred(rewards)],
    "scale of the batch": lambda rewards: [value * 1.7 for value in centred(rewards)],
    "whole batch": lambda rewards: [(reward - 0.7) / 0.45 for reward in rewards],
}


@pytest.mark.parametrize("name", FORMULAS)
def test_advantages_of_another_group(sums, name):
    """Whatever formula was used, the group that does not follow it is found."""
    values = advantages(sums, FORMULAS[name])
    sums.score(values, "advantage")
    assert not advantage_findings(sums)
    group = group_with(sums, 2)
    ids = ids_of(group)
    turned = ids[1:] + ids[:1] if group[0]["reward"] != group[-1]["reward"] else ids[::-1]
    sums.score({rollout: values[other] for rollout, other in zip(ids, turned, strict=True)}, "advantage")
    names = advantage_findings(sums)
    assert names.pop("advantage_mismatch") == set(ids)
    assert names.keys() <= {"advantage_sign"}  # of two right answers in four, turned ones may be upside down


def test_leave_one_out_in_groups_of_different_sizes(tmp_path):
    """The scale depends on the size of the group."""
    with create_run(tmp_path / "run") as run:
        for size in range(2, 7):
            for index in range(size):
                rollout = run.rollout(env="sums", task=str(size), group=str(size), index=index)
                rollout.step(f"{size} + 1?", str(index), reward=float(index == 0))
                rollout.end()
                others = [float(other == 0) for other in range(size) if other != index]
                run.score(rollout.id, "advantage", float(index == 0) - statistics.mean(others))
    report = SeededRun(tmp_path / "run", tmp_path / "copy").check(only=AUDITS)
    assert not found(report)
    assert not any(result.note for result in report.results)


def test_an_advantage_where_all_rewards_are_equal(sums):
    """A group without signal has an advantage of 0."""
    values = advantages(sums, scaled)
    sums.score(values, "advantage")
    group = group_with(sums, 1)
    sums.score({group[0]["id"]: 0.5}, "advantage")
    assert_seeded(sums, "advantage_mismatch", ids_of(group))


def test_advantages_with_the_wrong_sign(sums):
    """The policy would learn to do worse."""
    values = advantages(sums, scaled)
    sums.score(values, "advantage")
    group = group_with(sums, 2)
    sums.score({rollout: -values[rollout] for rollout in ids_of(group)}, "advantage")
    assert_seeded(sums, "advantage_sign", ids_of(group), also=["advantage_mismatch"])


def test_advantages_that_follow_nothing(sums):
    """All advantages were shifted by one rollout, so that no formula explains them."""
    values = advantages(sums, centred)
    shifted = dict(zip(values, [*list(values.values())[1:], 0.0], strict=True))
    sums.score(shifted, "advantage")
    ids = [id_ for group in groups_of(sums) if len({one["reward"] for one in group}) > 1 for id_ in ids_of(group)]
    # In some groups they happen to be upside down.
    finding = assert_seeded(sums, "advantage_formula", ids[:10], also=["advantage_sign"])
    assert finding.data["share"] < 0.5
    lenient = CheckSettings(audits={"advantage_formula": AuditSettings(threshold=finding.data["share"])})
    assert not sums.outcome("advantage_formula", lenient)[0]
    strict = CheckSettings(audits={"advantage_formula": AuditSettings(min_sample=1000)})
    assert "too little data" in sums.outcome("advantage_formula", strict)[1]


def test_advantages_after_a_penalty_are_not_compared(sums):
    """The rewards that they follow from are not recorded; the recorder says so."""
    values = advantages(sums, centred)
    with create_run(sums.path, join=True, continues=[]) as writer:
        for number, (rollout, value) in enumerate(values.items()):
            writer.score(rollout, "advantage", value - number % 3, data={"after_penalty": True})
    assert not advantage_findings(sums)


def test_without_advantages_the_audits_say_so(sums):
    """Nothing was compared."""
    assert all("no advantages" in sums.outcome(audit)[1] for audit in AUDITS)


def test_hostile_records(tmp_path):
    """Huge numbers, NaN, odd texts, groups of one and empty runs raise nothing."""
    with create_run(tmp_path / "empty") as run:
        pass
    text = "'); drop table rollouts; -- \x00 \u202e 😀 " * 20
    with create_run(tmp_path / "run") as run:
        for index, reward in enumerate([1e308, -1e308, float("nan"), float("inf"), 0.0, -0.0]):
            for group in ("a", text, f"only{index}"):
                rollout = run.rollout(
                    env=text, task=text, group=group, index=index, seat=index % 2, episode=index // 2, split="t'est"
                )
                rollout.step(
                    text, text, reward=reward, extra={"rewards": text, "reason": [1]}, env_state={"score": "1" * 50}
                )
                rollout.end()
                run.score(rollout.id, "advantage", reward)
    for name in ("empty", "run"):
        found(SeededRun(tmp_path / name, tmp_path / f"copy of {name}").check(only=["alignment", "reward"]))
        with IterationChecker(tmp_path / name, only=["alignment", "reward"]) as checker:
            found(checker.check())
