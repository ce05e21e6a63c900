"""Sessions that record the same rollouts: a restart supersedes, a resume supersedes what it names, ranks collide."""

import multiprocessing
import os
from datetime import timedelta

import msgspec
import pytest
from click.testing import CliRunner

from answers import score, write
from rolltrace.check.check_run import check_run
from rolltrace.cli.app import cli
from rolltrace.jobs.open_policy import replay_policy
from rolltrace.policies.policy import Request
from rolltrace.query import deduplication, run_tables
from rolltrace.query.compact import compact
from rolltrace.query.group_comparison import load_group
from rolltrace.query.part_writer import copy_to_parquet
from rolltrace.query.run import open_run
from rolltrace.query.run_listing import list_runs
from rolltrace.query.run_summary import summarize
from rolltrace.query.run_totals import query_totals
from rolltrace.store.create import create_run
from rolltrace.store.ledger import decode_ledger, encode_ledger
from rolltrace.trace.codec import utc_now
from rolltrace.trace.score import GroupKey

RANKS, EACH = 4, 20


def _record(path, barrier):
    """One rank: records the same groups and indexes as the others, at the same time."""
    with create_run(path, join=True) as writer:
        barrier.wait()
        for number in range(EACH):
            write(writer, group=str(number // 4), index=number % 4, reward=float(os.getpid() % 7))
        barrier.wait()


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    """A run in which four processes recorded the same rollouts at once."""
    path = tmp_path_factory.mktemp("ranks") / "run"
    create_run(path).close()
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(RANKS)
    processes = [context.Process(target=_record, args=(path, barrier)) for _ in range(RANKS)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(timeout=60)
    assert [process.exitcode for process in processes] == [0] * RANKS
    return path


def test_every_rollout_of_colliding_ranks_counts(ranks):
    """Rollouts that four ranks recorded at once all count, everywhere, and are marked as colliding."""
    [listed] = list_runs(ranks.parent).runs
    with open_run(ranks) as run:
        asked = query_totals(run)
        assert run.sql("select count(*), bool_and(collides) from rollouts").fetchone() == (RANKS * EACH, True)
        assert run.sql("select count(*), sum(size), bool_and(collides) from groups").fetchone() == (5, 80, True)
        assert run.sql("select count(*) from steps").fetchone() == (RANKS * EACH,)
        assert sum(1 for _ in run.rollouts()) == RANKS * EACH
    for one in (listed, summarize(ranks), asked):
        assert (one.rollouts, one.superseded, one.collides) == (RANKS * EACH, 0, RANKS * EACH)


def test_commands_say_that_ranks_collide(ranks):
    """`ls`, `summary`, `show` and `check` report the collision, and `check` fails."""
    run = CliRunner()
    for command, said in (("ls", "80 collide"), ("summary", "80 collide"), ("show", "80 collide")):
        shown = run.invoke(cli, [command, str(ranks.parent if command == "ls" else ranks)])
        assert (shown.exit_code, said in shown.stdout) == (0, True)
    checked = run.invoke(cli, ["check", str(ranks)])
    assert checked.exit_code == 1
    assert "colliding_sessions" in checked.stdout


def test_compaction_changes_nothing_about_a_collision(ranks):
    """Compacted rows collide as before."""
    compact(ranks)
    test_every_rollout_of_colliding_ranks_counts(ranks)


def numbers(path):
    """How many rollouts count, are superseded, are retried and collide."""
    with open_run(path) as run:
        asked = query_totals(run)
    return asked.rollouts, asked.superseded, asked.retried, asked.collides


@pytest.fixture(params=[False, True], ids=["lines", "compacted"])
def counted(request, path):
    """Counts the run of a test, with and without compaction."""

    def count():
        if request.param:
            compact(path)
        return numbers(path)

    return count


def test_restart_supersedes(path, counted):
    """Sessions without `continues` that follow each other are restarts: the last one counts."""
    create_run(path).close()
    for _ in range(3):
        with create_run(path, join=True) as writer:
            write(writer)
            write(writer, index=1)
    assert counted() == (2, 4, 0, 0)


def test_rollouts_without_an_index_always_count(path, counted):
    """Members without an index are never retried, superseded or colliding; they come last in their group."""
    with create_run(path) as first, create_run(path, join=True) as other:
        for writer in (first, other):
            write(writer, index=None)
            write(writer, index=None, attempt=1)
    with create_run(path, join=True, continues=[first.session]) as second:
        write(second, index=None)
        write(second)
    assert counted() == (6, 0, 0, 0)
    with open_run(path) as run:
        [group] = run.groups()
        assert [member.index for member in group.members] == [0, *[None] * 5]
    about_indexes = {"index_gaps", "attempt_gaps", "duplicate_identity", "colliding_sessions"}
    assert not about_indexes & {result.audit for result in check_run(path).with_findings}


def test_resume_supersedes_what_it_names(path, counted):
    """A session that continues another supersedes its rollouts at the same address, and keeps the others."""
    with create_run(path) as first:
        write(first)
        write(first, index=1)
    with create_run(path, join=True, continues=[first.session]) as second:
        write(second, index=1)
    assert counted() == (2, 1, 0, 0)


def test_resume_names_one_of_two(path, counted):
    """Of two sessions that recorded a rollout, only the one that is continued is superseded."""
    with create_run(path) as first, create_run(path, join=True) as other:
        write(first)
        write(other)
    with create_run(path, join=True, continues=[first.session]) as second:
        write(second)
    assert counted() == (2, 1, 0, 2)


def test_resume_with_a_clock_that_is_behind(path, counted, monkeypatch):
    """`continues` holds also if the clock of the resuming machine is an hour behind."""
    with create_run(path) as first:
        write(first)
    behind = f"{int(first.session[:12], 16) - 3_600_000:012x}{0:020x}"
    monkeypatch.setattr("rolltrace.store.writer.new_id", lambda: behind)
    with create_run(path, join=True, continues=[first.session]) as second:
        kept = write(second)
    assert second.session < first.session
    assert counted() == (1, 1, 0, 0)
    with open_run(path) as run:
        assert [rollout.id for rollout in run.rollouts()] == [kept]


def test_scores_about_a_group_are_in_the_order_of_their_lines(path):
    """A score that was written later comes later, even if the clock was set back between the two."""
    key = GroupKey("train", 0, "sums", "g")
    with create_run(path) as writer:
        write(writer, env="sums", group="g")
        for producer, back in (("old", 0), ("new", 3600)):
            at = utc_now() - timedelta(seconds=back)
            score(writer, None, 1.0, name="group_grade", group=key, producer=producer, created_at=at)
    with open_run(path) as run:
        assert [one.producer for one in load_group(run, key, 10).scores] == ["old", "new"]


async def test_readers_of_groups_and_replays_follow_a_stated_resume(path, monkeypatch):
    """A score about the group, and a replay, use the session that states the resume."""
    key = GroupKey("train", 0, "sums", "g")

    def record(writer, said):
        with writer.rollout(env="sums", task="t", group="g", index=0) as recorder:
            recorder.step("1 + 1?", said, 1.0)
        writer.score(None, "difficulty", 1.0, group=key, producer=said)

    with create_run(path) as first:
        record(first, "old")
    behind = f"{int(first.session[:12], 16) - 3_600_000:012x}{0:020x}"
    monkeypatch.setattr("rolltrace.store.writer.new_id", lambda: behind)
    with create_run(path, join=True, continues=[first.session]) as second:
        record(second, "new")
    with open_run(path) as run:
        [rollout] = run.rollouts()
        assert [score.producer for score in load_group(run, key, 10).scores] == ["new"]
    request = Request(messages=rollout.steps[0].trace.prompt, identity=rollout.identity, step=0)
    completion = await replay_policy(path).complete(request)
    assert completion.message.content == "new"


def _work(writer, index):
    with writer.rollout(env="sums", task="t", group="g", index=index) as recorder:
        recorder.step("1 + 1?", "2", 1.0)


def test_workers_of_one_job_do_not_collide(path, counted):
    """Forked workers that record their own members neither collide with nor supersede each other."""
    context = multiprocessing.get_context("fork")
    with create_run(path) as writer:
        _work(writer, 0)
        for index in range(1, 5):
            worker = context.Process(target=_work, args=(writer, index))
            worker.start()
            worker.join(timeout=60)
            assert worker.exitcode == 0
    assert counted() == (5, 0, 0, 0)
    with open_run(path) as run:
        assert run.sql("select count(distinct session) from rollouts").fetchone() == (5,)


def test_worker_that_records_a_place_again_collides_with_its_job(path, counted):
    """Sessions of one job that record the same rollout hide nothing, although one ended before the other began."""
    with create_run(path) as writer:
        for _ in range(2):
            worker = multiprocessing.get_context("fork").Process(target=_work, args=(writer, 0))
            worker.start()
            worker.join(timeout=60)
    assert counted() == (2, 0, 0, 2)


def test_attempts_of_one_job_are_attempts(path, counted):
    """An attempt that another worker of the job repeats was retried; the two do not collide."""
    with create_run(path) as writer:
        write(writer, attempt=0)
        worker = multiprocessing.get_context("fork").Process(target=write, args=(writer,), kwargs={"attempt": 1})
        worker.start()
        worker.join(timeout=60)
    assert counted() == (1, 0, 1, 0)


def append_ledger(path, ledger):
    """Appends a line to a session's ledger, as its writer would."""
    with (path / "ledger" / f"{ledger.session}.jsonl").open("ab") as file:
        file.write(encode_ledger(ledger))


def last_ledger(path, session):
    """The last line of a session's ledger."""
    return decode_ledger((path / "ledger" / f"{session}.jsonl").read_bytes().splitlines(keepends=True)[-1])


def test_session_that_writes_again_is_no_longer_superseded(path):
    """Tables in the cache or in an open run follow later changes of the ledgers."""
    with create_run(path) as first:
        write(first)
    with create_run(path, join=True) as second:
        write(second)
    compact(path)
    with open_run(path) as run:
        question = "select count(*), bool_or(collides) from rollouts"
        assert run.sql(question).fetchone() == (1, False)
        assert run.sql("select sum(size) from groups").fetchone() == (1,)
        later = last_ledger(path, second.session).written_at
        append_ledger(path, msgspec.structs.replace(last_ledger(path, first.session), written_at=later))
        assert run.sql(question).fetchone() == (2, True)
        assert run.sql("select sum(size), bool_or(collides) from groups").fetchone() == (2, True)
    assert numbers(path) == (2, 0, 0, 2)


def test_sessions_without_ledgers_go_by_their_rollouts(path, counted):
    """Without ledgers, sessions that played one after the other are restarts, and others collide."""
    with create_run(path) as first:
        write(first)
    with create_run(path, join=True) as second:
        write(second)
        with create_run(path, join=True) as third:
            write(third)
            write(third, index=1)
        write(second, index=1)
    for ledger in (path / "ledger").iterdir():
        ledger.unlink()
    assert counted() == (4, 1, 0, 4)


def test_other_parts_of_a_run_collide_too(path, counted):
    """A session that comes after the tables were stored is compared with them."""
    with create_run(path) as first:
        for index in range(3):
            write(first, index=index)
        compact(path)
        with create_run(path, join=True) as second:
            write(second, index=2)
            write(second, index=3)
    assert counted() == (5, 0, 0, 2)


def test_parts_that_share_nothing_are_compared_once(path, monkeypatch):
    """Another process does not compare them again, unless a part was added or the stored result is another user's."""
    compared = []

    def write_compared(connection, query, file):
        compared.append(file)
        return copy_to_parquet(connection, query, file)

    monkeypatch.setattr(run_tables, "MIN_CACHED_ROWS", 1)
    monkeypatch.setattr(deduplication, "copy_to_parquet", write_compared)
    with create_run(path) as first, create_run(path, join=True) as second, create_run(path, join=True) as third:
        for session, index in ((first, 0), (second, 1)):
            write(session, index=index)
            session.flush()
            assert numbers(path) == (index + 1, 0, 0, 0)
        assert (len(compared), numbers(path), len(compared)) == (1, (2, 0, 0, 0), 1)
        note = path / "cache" / deduplication.DISTINCT_FILE
        note.write_bytes(note.read_bytes().replace(b"slots", b"spots"))
        assert (numbers(path), len(compared)) == ((2, 0, 0, 0), 2)
        write(third, index=1)
        third.flush()
        assert numbers(path) == (3, 0, 0, 2)
        assert (numbers(path), len(compared)) == ((3, 0, 0, 2), 4), "what is shared is found again by each process"
