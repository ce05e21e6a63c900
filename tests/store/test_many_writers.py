"""Many processes and threads write one run at once while another process reads it."""

import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path

from rolltrace.check.check_run import check_run
from rolltrace.query.run import open_run
from rolltrace.store.create import create_run
from rolltrace.store.reader import RunReader

PROCESSES, THREADS, ROLLOUTS = 8, 4, 25
WRITTEN = [(str(p), str(t), n) for p in range(PROCESSES) for t in range(THREADS) for n in range(ROLLOUTS)]


def identity(rollout):
    """The process, thread and number that wrote it."""
    return *rollout.group.split(), rollout.index


def test_nothing_is_lost_duplicated_or_interleaved(tmp_path):
    """Eight processes of four threads write one run while another reads it: each line is there once, and whole."""
    create_run(tmp_path / "run").close()
    followed, over = [], threading.Event()
    follower = open_run(tmp_path / "run")
    thread = threading.Thread(
        target=lambda: followed.extend(follower.follow("rollouts", stop=over, seconds=0.01)), daemon=True
    )
    thread.start()
    script = str(Path(__file__).with_name("many_writers.py"))
    numbers = map(str, (PROCESSES, THREADS, ROLLOUTS))
    subprocess.run([sys.executable, script, tmp_path / "run", *numbers], check=True, timeout=600)
    over.set()
    thread.join()

    reader = RunReader(tmp_path / "run")
    rollouts = list(reader.rollouts())
    assert sorted(map(identity, rollouts)) == sorted(WRITTEN)
    assert Counter(rollout.id for rollout in followed) == Counter(rollout.id for rollout in rollouts)
    assert reader.read_errors == follower.problems == ()
    follower.close()
    for rollout in rollouts:
        process, thread_number, number = identity(rollout)
        assert rollout.messages[0].content.startswith(f"{process} {thread_number} {number} ")
        assert rollout.reward == number
    assert {score.rollout: score.value for score in reader.scores()} == {each.id: each.reward for each in rollouts}
    assert_sessions_are_apart(tmp_path / "run", rollouts)
    assert_ledgers_add_up(reader)
    report = check_run(tmp_path / "run", skip=["alignment"])  # every member has a prompt of its own
    assert not [result for result in report.results if result.findings or result.error]


def assert_sessions_are_apart(path, rollouts):
    """A session is one process; each writes its own files, and keeps the order of each of its threads."""
    sessions = {identity(rollout)[0]: rollout.session for rollout in rollouts}
    assert len(set(sessions.values())) == PROCESSES
    assert all(sessions[identity(rollout)[0]] == rollout.session for rollout in rollouts)
    assert {file.name.partition("-")[0] for file in (path / "rollouts").iterdir()} == set(sessions.values())
    for process in range(PROCESSES):
        for thread in range(THREADS):
            order = [each.index for each in rollouts if identity(each)[:2] == (str(process), str(thread))]
            assert order == list(range(ROLLOUTS))


def assert_ledgers_add_up(reader):
    """Each session's ledger adds up, and together they count everything."""
    ledgers = [ledger for ledger in reader.ledgers().values() if ledger.dispatched]
    assert len(ledgers) == PROCESSES
    assert all(ledger.is_balanced and ledger.complete and ledger.closed for ledger in ledgers)
    assert all(ledger.in_flight == 0 for ledger in ledgers)
    assert sum(ledger.recorded for ledger in ledgers) == len(WRITTEN)
    assert sum(ledger.scores_recorded for ledger in ledgers) == len(WRITTEN)
