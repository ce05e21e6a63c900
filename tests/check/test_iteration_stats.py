"""Numbers of iterations: right, computed once, and never taken from a file that is damaged or of somebody else."""

import shutil
import statistics

import pytest

from rolltrace.check import iteration_stats
from rolltrace.check.check_run import IterationChecker
from rolltrace.check.iteration_stats import IterationStatsCache, by_env
from rolltrace.query.run import open_run
from rolltrace.store.create import create_run
from seeded_runs import SeededRun, response_of

FILE = "iterations-0.msgpack"


@pytest.fixture
def computed(monkeypatch):
    """The iterations whose texts were read, in order."""
    numbers = []
    original = IterationStatsCache._compute

    def compute(self, batch, rows):
        numbers.extend(row["iteration"] for row in batch)
        original(self, batch, rows)

    monkeypatch.setattr(IterationStatsCache, "_compute", compute)
    return numbers


def stats_of(path, measure=None, last=None):
    with open_run(path) as run:
        return IterationStatsCache(run).stats(measure, last)


def responses_of(path):
    """The numbers that are stored; the order of sums may change the last digit of the others."""
    return [one.responses for one in stats_of(path)]


def test_they_are_those_of_the_records(seeded: SeededRun):
    """Each number, computed from the records again."""
    seeded.change(seeded.records(env="arithmetic")[:3], lambda one: one["steps"][0].update(termination="length"))
    late = {one["id"]: float(number) for number, one in enumerate(seeded.records(env="arithmetic", iteration=0))}
    seeded.score({**late, seeded.records(env="arithmetic", iteration=1)[0]["id"]: float("nan")}, "quality")
    stats = by_env(stats_of(seeded.path, "quality"))
    assert [*stats] == sorted(("train", env) for env in {one["env"] for one in seeded.records()})
    series = stats["train", "arithmetic"]
    assert [one.iteration for one in series] == [0, 1, 2]
    for one in series:
        records = seeded.records(env="arithmetic", iteration=one.iteration)
        rewards = [record["reward"] for record in records]
        groups = {}
        for record in records:
            groups.setdefault(record["group"], []).append(record["reward"])
        lengths = [len(response_of(record)["content"]) for record in records]
        assert (one.rollouts, one.failed, one.groups) == (32, 0, 8)
        assert one.reward.mean == pytest.approx(statistics.fmean(rewards))
        assert one.reward.std == pytest.approx(statistics.pstdev(rewards))
        assert one.groups_without_signal == sum(len({*some}) == 1 for some in groups.values())
        assert one.effective == 32 - 4 * one.groups_without_signal
        assert one.group_means.std == pytest.approx(statistics.pstdev(map(statistics.fmean, groups.values())))
        assert one.responses.length_mean == pytest.approx(statistics.fmean(lengths))
        assert one.responses.length_std == pytest.approx(statistics.pstdev(lengths))
        assert one.responses.truncated == (3 if one.iteration == 0 else 0)
    assert [one.measure.n for one in series] == [32, 0, 0]
    assert series[0].measure.mean == pytest.approx(statistics.fmean(late.values()))


def test_only_new_iterations_are_computed(series: SeededRun, computed):
    """Also in another process; late rewards change no texts, and a rollout more is another iteration."""
    first = stats_of(series.path)
    assert sorted(computed) == [0, 1, 2, 3, 4, 5]
    assert [one.responses for one in stats_of(series.path)] == [one.responses for one in first]
    rollout = series.records(iteration=2)[0]["id"]
    series.score({rollout: 7.0}, "reward")
    assert len(computed) == 6
    again = stats_of(series.path)
    assert (again[2].reward.mean > first[2].reward.mean, len(computed)) == (True, 6)
    with create_run(series.path, join=True, continues=[]) as writer:
        for iteration in (3, 6):
            one = writer.rollout(env="arithmetic", task="t", group="new", index=0, iteration=iteration)
            one.step([{"role": "user", "content": "1 + 1?"}], "2", reward=1.0)
            one.end()
    assert [one.rollouts for one in stats_of(series.path)] == [64, 64, 64, 65, 64, 64, 1]
    assert sorted(computed[6:]) == [3, 6]


def test_one_checker_computes_each_iteration_once(series: SeededRun, computed):
    """From the copied tables of the iteration, with the same numbers as from the run."""
    with IterationChecker(series.path, only=["length_drift"]) as checker:
        checker.check(4)
        assert sorted(computed) == [0, 1, 2, 3, 4]
        checker.check()
        checker.check()
    assert computed[5:] == [5]
    stored = responses_of(series.path)
    shutil.rmtree(series.path / "cache")
    assert responses_of(series.path) == stored


@pytest.mark.parametrize("damage", ["truncated", "changed", "another key", "another version", "empty"])
def test_files_that_do_not_count_are_made_again(series: SeededRun, computed, damage, monkeypatch):
    """Whatever is wrong with them."""
    first = responses_of(series.path)
    file = series.path / "cache" / FILE
    data = file.read_bytes()
    if damage == "another key":
        monkeypatch.setenv("ROLLTRACE_CACHE_KEY", "of another team")
    elif damage == "another version":
        monkeypatch.setattr(iteration_stats, "_VERSION", 99)
    else:
        file.write_bytes({"truncated": data[:-9], "changed": data[:-9] + b"123456789", "empty": b""}[damage])
    assert responses_of(series.path) == first
    assert len(computed) == 12
    assert responses_of(series.path) == first
    assert len(computed) == 12


def test_a_run_that_cannot_be_written_uses_the_folder_of_the_user(series: SeededRun, computed, tmp_path, monkeypatch):
    """And if there is no such folder either, each process computes its own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    cache = series.path / "cache"
    shutil.rmtree(cache, ignore_errors=True)
    cache.write_bytes(b"")  # root may write anywhere: a file in its place cannot be written into
    first = responses_of(series.path)
    assert [path.name for path in (tmp_path / "home").rglob("*.msgpack")] == [FILE]
    assert responses_of(series.path) == first
    assert len(computed) == 6
    shutil.rmtree(tmp_path / "home")
    (tmp_path / "home").write_bytes(b"")
    assert responses_of(series.path) == first
    assert len(computed) == 12
    cache.unlink()


def test_empty_runs_and_odd_numbers(tmp_path):
    """No rollout, no reward, infinite and huge rewards, and a group of one."""
    with create_run(tmp_path / "run") as writer:
        assert stats_of(writer.path) == []
        for number, reward in enumerate([None, float("inf"), float("nan"), 1e308, 1.0]):
            one = writer.rollout(env="sums", task="t", group=f"{number}", index=0, iteration=0)
            one.step([{"role": "user", "content": "1 + 1?"}], "", reward=reward or 0.0)
            one.end()
        writer.flush()
        [one] = stats_of(writer.path)
    assert (one.rollouts, one.reward.n, one.groups) == (5, 2, 0)
    assert one.reward.mean == pytest.approx(0.5)
