"""Forks processes whose threads all write one run at once: `many_writers.py RUN PROCESSES THREADS ROLLOUTS`."""

import os
import sys
import threading

from rolltrace.store.create import create_run
from rolltrace.store.recording import Recording


def play(writer, process, thread, rollouts):
    """What one thread writes."""
    for number in range(rollouts):
        with writer.rollout(env="sums", task="t", group=f"{process} {thread}", index=number) as recorder:
            recorder.step(f"{process} {thread} {number} " + "é" * (number * 37 % 400), "yes", number)
        writer.score(recorder.id, "advantage", number)
        if number % 10 == 0:
            assert writer.flush()


def write(run, process, threads, rollouts):
    """What one process writes."""
    with create_run(run, join=True, trace=Recording(segment_bytes=20_000)) as writer:
        workers = [threading.Thread(target=play, args=(writer, process, n, rollouts)) for n in range(threads)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
    assert writer.ledger.complete


if __name__ == "__main__":
    processes, threads, rollouts = map(int, sys.argv[2:])
    children = []
    for process in range(processes):
        child = os.fork()
        if child == 0:
            status = 1
            try:
                write(sys.argv[1], process, threads, rollouts)
                status = 0
            finally:
                os._exit(status)
        children.append(child)
    assert all(os.waitpid(child, 0)[1] == 0 for child in children)
