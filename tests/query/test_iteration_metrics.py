"""The metrics of iterations agree with the tables."""

import re
from pathlib import Path

import pytest

import rolltrace
from rolltrace.query.iteration_metrics import iteration_metrics
from rolltrace.query.run_summary import summarize

QUESTION = [{"role": "user", "content": "17 + 25?"}]


def record(path, trace=None):
    """A run of two splits and iterations, with failures, retries, truncation, missing and infinite rewards."""
    with rolltrace.create_run(path, trace=trace) as run:
        for iteration in range(2):
            for split in ("train", "test"):
                for group in range(3):
                    for index in range(3):
                        place = {"env": "sums", "task": str(group), "group": str(group), "index": index}
                        place |= {"iteration": iteration, "split": split}
                        if index == 0:  # a failed attempt, which does not count
                            with run.rollout(**place) as r:
                                r.step(QUESTION, "a lost answer", reward=9.0, reward_data={"correct": 9.0})
                                r.end(error=OSError("lost"))
                        with run.rollout(**place, attempt=int(index == 0)) as r:
                            reward = float(index * group + iteration)
                            r.step(
                                QUESTION, "é" * (index + 1), reward, reward_data={"correct": reward, "a/b c": 1.0},
                                usage={"prompt_tokens": 7, "completion_tokens": index + 1}, metrics={"speed": index},
                                termination="length" if index == 1 else None,
                            )  # fmt: skip
                            r.step(None, "again", 0.5, reward_data={"correct": 0.5}, metrics={"speed": 9.0})
                            if index == 2:
                                r.metric("speed", 100.0)
                                r.step(None, "unreadable", parse_error="no JSON")
                            r.grade(0.25, {"polite": 0.25})
                            if (split, group, index) == ("test", 0, 1):
                                r.end(error={"type": "TimeoutError", "message": "slow", "layer": "policy"})
                            if (split, group) == ("test", 1):
                                r.end("gave up", pending=True)
                        if (split, group, index) == ("train", 2, 2):
                            run.score(r.id, "reward", float("inf") if iteration else 50.0)


@pytest.fixture
def run(tmp_path):
    record(tmp_path / "run")
    with rolltrace.open_run(tmp_path / "run") as opened:
        yield opened


def test_the_numbers_are_those_of_sql(run):
    """Each metric equals a plain statement about the tables."""
    for (split, iteration), metrics in iteration_metrics(run).items():
        rollouts = f"from rollouts where not retried and split = '{split}' and iteration = {iteration}"
        steps = f"from steps where rollout in (select id {rollouts})"
        groups = f"from groups where split = '{split}' and iteration = {iteration}"
        finite = f"{rollouts} and isfinite(reward)"
        sums = (
            "sum(length(response)) as chars, sum(reward_data['correct']) as correct, sum(reward_data['a/b c']) as other"
        )
        of_steps = f"(select rollout, {sums} {steps} group by rollout)"
        expected = {
            "rollouts": f"count(*) {rollouts}",
            "groups": f"count(*) {groups}",
            "groups_without_signal": f"count(*) {groups} and n >= 2 and not has_signal",
            "no_signal_fraction": f"count(*) filter (n >= 2 and not has_signal) / count(*) {groups}",
            "reward/missing": f"count(*) {rollouts} and reward is null",
            "reward/mean": f"avg(reward) {finite}",
            "reward/std": f"stddev_pop(reward) {finite}",
            "reward/min": f"min(reward) {finite}",
            "reward/max": f"max(reward) {finite}",
            "steps/mean": f"avg(steps) {rollouts}",
            "steps/max": f"max(steps) {rollouts}",
            "prompt_tokens/mean": f"avg(prompt_tokens) {rollouts}",
            "completion_tokens/mean": f"avg(completion_tokens) {rollouts}",
            "completion_tokens/max": f"max(completion_tokens) {rollouts}",
            "response_chars/mean": f"avg(chars) from {of_steps}",
            "response_chars/max": f"max(chars) from {of_steps}",
            "seconds/mean": f"avg(seconds) {rollouts}",
            "failed_fraction": f"count(*) filter (status <> 'ok') / count(*) {rollouts}",
            "truncated_fraction": f"count(distinct rollout) / 9 {steps} and termination = 'length'",
            "parse_error_fraction": f"count(distinct rollout) / 9 {steps} and parse_error is not null",
            "reward_data/correct": f"avg(correct) from {of_steps}",
            "reward_data/a_b_c": f"avg(other) from {of_steps}",
            "grade/polite": f"avg(grade_reward_data['polite']) {rollouts}",
            "metrics/speed": "(4.5 + 5 + 100) / 3",
        }
        for column, name in (("stop_reason", "stop_reason"), ("error_layer", "error")):
            for (value,) in run.sql(f"select distinct {column} {rollouts} and {column} is not null"):
                expected[f"{name}/{value.replace(' ', '_')}"] = f"count(*) / 9 {rollouts} and {column} = '{value}'"
        values = {name: run.sql(f"select {sql}").fetchall()[0][0] for name, sql in expected.items()}
        assert metrics == pytest.approx({f"rollout/{split}/{name}": value for name, value in values.items()})


def test_the_numbers_are_those_of_the_summary(run):
    """Rollouts, groups, rewards, failures and steps of each iteration are what `rolltrace summary` shows."""
    summary = summarize(run.path)
    metrics = iteration_metrics(run)
    assert len(metrics) == len(summary.iterations) == 4
    for one in summary.iterations:
        expected = {
            "rollouts": one.rollouts,
            "groups": one.groups,
            "groups_without_signal": one.groups_without_signal,
            "reward/mean": one.rewards.mean,
            "reward/std": one.rewards.std,
            "reward/missing": one.rewards.missing,
            "failed_fraction": one.failed / one.rollouts,
            "steps/mean": one.mean_steps,
        }
        found = metrics[one.split, one.iteration]
        assert {name: found[f"rollout/{one.split}/{name}"] for name in expected} == pytest.approx(expected)


def test_some_iterations(run):
    """The metrics of some iterations are the same as among all; those that do not exist are left out."""
    keys = [("test", 1), ("train", 0), ("train", 7)]
    everything = iteration_metrics(run)
    found = iteration_metrics(run, keys)
    assert found.keys() == set(keys[:2])
    assert all(metrics == pytest.approx(everything[key]) for key, metrics in found.items())
    assert iteration_metrics(run, []) == {}


def test_tokens_that_are_not_known(tmp_path):
    """If no step has token counts, they are left out; a rollout without steps has 0 tokens."""
    place = {"env": "sums", "task": "17+25", "group": "17+25", "index": None}
    with rolltrace.create_run(tmp_path / "counted") as run:
        for iteration, usages in enumerate([[None, None], [None, {"completion_tokens": 4, "prompt_tokens": 6}]]):
            for usage in usages:
                with run.rollout(**place, iteration=iteration) as r:
                    r.step(QUESTION, "42", 1.0, usage=usage)
        run.rollout(**place, iteration=2).end()
    with rolltrace.open_run(tmp_path / "counted") as opened:
        found = iteration_metrics(opened)
    names = ["rollout/train/completion_tokens/mean", "rollout/train/completion_tokens/max"]
    names.append("rollout/train/prompt_tokens/mean")
    tokens = [[found["train", iteration].get(name) for name in names] for iteration in range(3)]
    assert tokens == [[None] * 3, [4, 4, 6], [0, 0, 0]]


def test_lengths_are_known_without_text(tmp_path, run):
    """A run that was recorded as numbers has the same metrics, except for its times."""
    record(tmp_path / "numbers", trace="numbers")
    with rolltrace.open_run(tmp_path / "numbers") as numbers:
        without_text = iteration_metrics(numbers)
    for key, metrics in iteration_metrics(run).items():
        times = {f"rollout/{key[0]}/seconds/mean": 0.0}
        assert without_text[key] | times == pytest.approx(metrics | times)


def test_the_guide_names_every_metric(run):
    """The table of the guide has the names of all metrics, and no others."""
    guide = (Path(__file__).parents[2] / "docs" / "guides" / "live-metrics.md").read_text()
    table = guide.partition("## The metrics")[2]
    documented = {
        name for row in re.findall(r"^\| (`.*?) \|", table, re.MULTILINE) for name in re.findall("`(.+?)`", row)
    }
    kinds = {"stop_reason": "NAME", "error": "LAYER", "reward_data": "NAME", "grade": "NAME", "metrics": "NAME"}
    found = set()
    for metrics in iteration_metrics(run).values():
        for name in metrics:
            _, _, kind, *rest = name.split("/")
            found.add("/".join([kind, *([kinds[kind]] if kind in kinds else rest)]))
    assert found == documented
