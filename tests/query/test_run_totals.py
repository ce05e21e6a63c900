"""The totals of a run agree, from its lines and from its tables, in every command."""

import math
import os
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from answers import score, write
from examples import examples
from rolltrace.query import run_listing as listing
from rolltrace.query.compact import compact
from rolltrace.query.run import open_run
from rolltrace.query.run_listing import list_runs
from rolltrace.query.run_summary import summarize
from rolltrace.query.run_totals import RunTotals, query_totals, read_small_run, totals_of
from rolltrace.store.create import create_run
from rolltrace.trace.codec import add_checksum, utc_now
from rolltrace.trace.failure import INTERRUPTED, Failure
from rolltrace.trace.stop_reasons import Layer, Status

REWARDS = st.one_of(st.none(), st.floats(-2, 2), st.sampled_from([math.nan, math.inf, -math.inf, 1.7e308]))
ERRORS = [None, Failure(Layer.RUNNER, INTERRUPTED, ""), Failure(Layer.GRADER, INTERRUPTED, "")]
PLAYS = st.lists(
    st.fixed_dictionaries(
        {
            "session": st.integers(0, 2),
            "split": st.sampled_from(["train", "test"]),
            "iteration": st.sampled_from([0, 1, 2**70, 2**71]),
            "env": st.sampled_from(["sums", "products"]),
            "group": st.sampled_from(["a", "b"]),
            "index": st.integers(0, 1),
            "attempt": st.integers(0, 2),
            "policy": st.sampled_from(["p", "q"]),
            "reward": REWARDS,
            "stop_reason": st.sampled_from(["completed", "max_turns"]),
            "status": st.sampled_from(Status),
            "scores": st.lists(st.tuples(st.integers(0, 2), REWARDS, st.sampled_from(ERRORS)), max_size=2),
        }
    ),
    max_size=12,
)


def play(path, plays):
    """Writes the plays session by session, with late rewards at the given seconds."""
    moment = utc_now()
    create_run(path).close()
    for session in sorted({one["session"] for one in plays}):
        with create_run(path, join=True) as writer:
            for one in (one for one in plays if one["session"] == session):
                fields = {name: value for name, value in one.items() if name not in ("session", "scores")}
                rollout = write(writer, **fields)
                for seconds, value, error in one["scores"]:
                    score(writer, rollout, value, created_at=moment + timedelta(seconds=seconds), error=error)


def read_totals(path: Path) -> RunTotals:
    """The totals of a run of one session, from its lines."""
    small = read_small_run(path)
    assert small is not None
    return totals_of(small)


def told(totals):
    """Totals in a form that can be compared."""
    fields = msgspec.structs.asdict(totals)
    mean = fields.pop("mean_reward")
    return {**fields, "mean_reward": near(mean)}


def near(mean):
    """A mean up to rounding."""
    return None if mean is None else pytest.approx(mean, rel=1e-9, abs=1e-9)


@settings(max_examples=examples(20), deadline=None)
@given(PLAYS)
def test_lines_and_tables_say_the_same(plays):
    """Reading and SQL agree on attempts and late scores of one session; several sessions need SQL."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "run"
        play(path, plays)
        assert (read_small_run(path) is None) == (len({one["session"] for one in plays}) > 1)
        path = Path(folder) / "one"
        play(path, [{**one, "session": 0} for one in plays])
        with open_run(path) as run:
            assert msgspec.structs.asdict(read_totals(path)) == told(query_totals(run))


@settings(max_examples=3, deadline=None)
@given(PLAYS)
def test_every_verb_says_the_same(plays):
    """A listing and a summary agree with the totals, for a small run and for a large one that was compacted."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "run"
        play(path, plays)
        [small] = list_runs(path).runs
        compact(path)
        with open_run(path) as run:
            asked = query_totals(run)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(listing, "MAX_BYTES", 0)
            [large] = list_runs(path).runs
        summary = summarize(path)
        for name in ("rollouts", "retried", "superseded", "groups"):
            assert len({getattr(one, name) for one in (asked, small, large, summary)}) == 1
        for name in ("envs", "policies"):
            assert len({tuple(getattr(one, name)) for one in (asked, small, large, summary)}) == 1
        assert summary.rewards.n == asked.rewarded
        for mean in (small.mean_reward, large.mean_reward, summary.rewards.mean):
            assert mean == near(asked.mean_reward)


def test_a_replayed_iteration_counts_once(tmp_path):
    """A restart that repeats an iteration replaces it, and a retry replaces the attempt before it."""
    with create_run(tmp_path / "run") as writer:
        for index in range(4):
            write(writer, index=index, reward=0.0)
    with create_run(tmp_path / "run", join=True) as writer:
        write(writer, index=0, reward=None)
        write(writer, index=0, attempt=1, reward=1.0)
        for index in range(1, 4):
            write(writer, index=index, reward=1.0)
    [listed] = list_runs(tmp_path / "run").runs
    assert (listed.rollouts, listed.retried, listed.superseded, listed.mean_reward) == (4, 1, 4, 1.0)


def test_the_numbers_of_a_small_run_of_several_sessions_are_stored(tmp_path, monkeypatch):
    """Several sessions need tables, so the numbers are not computed for every listing."""
    for join in (False, True):
        with create_run(tmp_path / "run", join=join) as writer:
            write(writer)
    for folder in ("rollouts", "ledger"):
        for file in (tmp_path / "run" / folder).iterdir():
            os.utime(file, (1e9, 1e9))
    [listed] = list_runs(tmp_path / "run").runs
    monkeypatch.setattr(listing, "query_list_numbers", None)
    assert list_runs(tmp_path / "run").runs[0].superseded == listed.superseded == 1


def test_the_latest_score_is_the_latest_moment(tmp_path):
    """Times are compared as instants, in any zone and with any number of digits."""
    with create_run(tmp_path / "run") as writer:
        rollout = write(writer, reward=0.0)
        score(writer, rollout, 0.5)
    (file,) = (tmp_path / "run" / "scores").iterdir()
    record = msgspec.json.decode(file.read_bytes())
    del record["crc"]
    times = {"2026-01-02T03:04:05Z": 1.0, "2026-01-02T03:04:05.5Z": 3.0, "2026-01-02T05:00:00+02:00": 2.0}
    lines = [
        add_checksum(msgspec.json.encode(record | {"id": at, "session": at, "created_at": at, "value": value}))
        for at, value in times.items()
    ]
    file.write_bytes(b"".join(lines))
    assert read_totals(tmp_path / "run").mean_reward == 3.0
    with open_run(tmp_path / "run") as run:
        assert query_totals(run).mean_reward == 3.0


def test_the_files_are_right_about_what_was_in_flight(tmp_path, monkeypatch):
    """A rollout that another process ended after a fork is not lost, although the first process's ledger says so."""
    run = create_run(tmp_path / "run")
    ended, _lost = (run.rollout(env="e", task="t", group="g", index=index) for index in range(2))
    child = os.fork()
    if child == 0:
        ended.end()
        run.close()
        os._exit(0)
    os.waitpid(child, 0)
    run.close()
    assert run.ledger.lost == 2
    [small] = list_runs(tmp_path / "run").runs
    summary = summarize(tmp_path / "run")
    compact(tmp_path / "run")
    monkeypatch.setattr(listing, "MAX_BYTES", 0)
    [large] = list_runs(tmp_path / "run").runs
    assert (small.lost, large.lost, summary.lost, summary.ledger["in_flight"]) == (1, 1, 1, 2)


def test_a_ledger_is_reconciled_with_the_files(tmp_path):
    """Rollouts in flight are maybe lost, less the lines that the last ledger does not count; never below zero."""
    with create_run(tmp_path / "run") as writer:
        for index in range(3):
            write(writer, index=index)
    totals, ledger = read_totals(tmp_path / "run"), writer.ledger
    assert totals.reconcile(ledger) == ledger
    for recorded, in_flight, left in ((3, 2, 2), (2, 2, 1), (1, 1, 0), (5, 1, 1)):
        stale = msgspec.structs.replace(ledger, recorded=recorded, in_flight=in_flight, closed=False)
        assert totals.reconcile(stale).maybe_lost == left


def test_lines_that_are_no_records_cost_only_themselves(tmp_path):
    """Damaged lines are skipped; the rest counts."""
    with create_run(tmp_path / "run") as writer:
        write(writer, index=0)
        write(writer, index=1)
    (file,) = (tmp_path / "run" / "rollouts").iterdir()
    file.write_bytes(b"garbage\n" + file.read_bytes() + b'{"v":2,"id"')
    [listed] = list_runs(tmp_path / "run").runs
    assert (listed.rollouts, listed.problem_count) == (2, 2)
