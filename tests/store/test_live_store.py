"""A run in an object store while several processes write it: readers, queries and the viewer follow it."""

import json
import subprocess
import sys
import urllib.request

import pytest

from object_store import BUCKET, record
from rolltrace.check.check_run import check_run
from rolltrace.query.run import open_run
from rolltrace.store.create import create_run
from viewing import viewing
from waiting import until

pytestmark = pytest.mark.core

WRITER = """
import os, sys, time, rolltrace
address, group, stop = sys.argv[1:]
index = 0
with rolltrace.create_run(address, join=True, continues=()) as run:
    while not os.path.exists(stop):
        with run.rollout(env="sums", task="t", group=group, index=index) as one:
            one.step(prompt=[{"role": "user", "content": "1 + 1? " * 50}], response="2", reward=index % 2)
        index += 1
        time.sleep(0.05)
print(index)
"""


def write_while(condition, address, stop):
    """Lets three processes write a run, each its own session, while a condition holds; returns how many rollouts."""
    commands = [[sys.executable, "-c", WRITER, address, f"g{number}", str(stop)] for number in range(3)]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for command in commands]
    try:
        until(lambda: not condition() or any(process.poll() is not None for process in processes))
        assert [process.poll() for process in processes] == [None] * 3
        stop.touch()
        return sum(int(process.communicate(timeout=60)[0]) for process in processes)
    finally:
        for process in processes:
            process.kill()


def ask(viewer, path):
    """An answer of the viewer."""
    request = urllib.request.Request(f"{viewer.origin}{path}", headers={"Authorization": f"Bearer {viewer.token}"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.loads(answer.read())


@pytest.mark.parametrize("fault", ["", "500", "lost", "partial", "slow"])
def test_readers_and_the_viewer_follow_a_run_that_several_processes_write(store, tmp_path, fault):
    """What they show only grows, is complete in the end, and has no damage, whatever faults the network has."""
    address = f"s3://{BUCKET}/live-{fault}/one"
    create_run(address).close()
    store.fault = lambda method, path, number: fault if number % 4 == 1 else ""
    shown, read, revisions = [0], [0], set()

    def look() -> bool:
        """Looks once; returns whether something has not grown several times yet."""
        page = ask(viewer, "/api/rollouts?run=one&sort=-id&limit=5")
        assert len({row["id"] for row in page["rows"]}) == min(5, page["total"])
        shown.append(page["total"])
        revisions.add(ask(viewer, "/api/revisions")["revisions"]["one"])
        [(lines, ids)] = run.sql("select count(*), count(distinct id) from every_rollout").fetchall()
        assert lines == ids
        read.append(lines)
        return min(len(set(shown)), len(set(read)), len(revisions)) < 4

    with viewing(f"s3://{BUCKET}/live-{fault}") as viewer, open_run(address) as run:
        rollouts = write_while(look, address, tmp_path / "stop")
        until(lambda: look() or shown[-1] == read[-1] == rollouts)
        assert (shown, read) == (sorted(shown), sorted(read))
        assert ask(viewer, "/api/run?run=one")["ledger"]["recorded"] == rollouts
        assert ask(viewer, "/api/damage?run=one")["problems"] == []
        [newest] = ask(viewer, "/api/rollouts?run=one&sort=-id&limit=1")["rows"]
        assert ask(viewer, f"/api/rollout?run=one&id={newest['id']}")
        assert run.problems == ()
    store.fault = lambda method, path, number: ""
    assert check_run(address, only=["integrity"]).ok


def test_the_viewer_survives_a_store_that_fails_for_a_while(store):
    """During the outage it answers with what it has read or with an error message, and later shows what was added."""
    address = f"s3://{BUCKET}/failing/one"
    record(address, 4)
    with viewing(f"s3://{BUCKET}/failing") as viewer:
        assert ask(viewer, "/api/rollouts?run=one")["total"] == 4
        revisions = ask(viewer, "/api/revisions")
        store.fault = lambda method, path, number: "403"
        store.requests.clear()
        until(lambda: ask(viewer, "/api/revisions") and len(store.requests) > 3)
        assert ask(viewer, "/api/revisions") == revisions
        assert ask(viewer, "/api/rollouts?run=one")["total"] == 4
        [problem] = ask(viewer, "/api/damage?run=one")["problems"]
        [entry] = ask(viewer, "/api/runs")["runs"]
        assert "access is denied: check the credentials" in problem
        assert "access is denied: check the credentials" in entry["problem"]
        store.fault = lambda method, path, number: ""
        record(address, 3, join=True, continues=())
        until(lambda: ask(viewer, "/api/rollouts?run=one")["total"] == 7)
        assert ask(viewer, "/api/damage?run=one")["problems"] == []
