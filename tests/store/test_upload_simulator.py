"""The simulator in `benchmarks/` counts the requests that a real S3 server sees."""

from collections import Counter

import pytest

from rolltrace.store.ledger import LedgerCounter
from rolltrace.store.object_files import ObjectFiles, map_requests

pytestmark = pytest.mark.core


def drive(simulator, address):
    """Writes for half a minute by a fake clock: a few lines each second, then many, then none."""
    counter, now, [line, *_] = LedgerCounter(()), [0.0], simulator.make_lines(5_000)
    writer = simulator.make_writer(counter, now, address)
    for second in range(30):
        now.append(float(second))
        simulator.write_lines(writer, counter, [line] * (3 if second < 12 else 150 if second < 16 else 0))
        writer.sync_if_due()
    writer.is_closing = True
    writer.close()
    return counter.ledger("run", "session").recorded


def test_requests_are_those_of_a_real_store(simulator, store, user_cache):
    """The same writes cause the same PUT requests as on a real S3 server, also for listings and large objects."""
    simulated = simulator.SimulatedStore()
    with simulated.installed():
        assert drive(simulator, "s3://bucket/run") == 636
    assert drive(simulator, "s3://traces/simulated/run") == 636
    seen = Counter((method, path.split("/")[-2]) for method, path, _ in store.requests if method in ("PUT", "DELETE"))
    assert seen == simulated.requests
    real = ObjectFiles("s3://traces/simulated/run")
    sizes = [sorted(file.size for file in real.list_files(folder)) for folder in ("rollouts", "ledger")]
    in_memory = [sorted(simulated.sizes[key] for key in simulated.keys(folder)) for folder in ("rollouts", "ledger")]
    assert sizes[0] == in_memory[0]
    assert len(sizes[1]) == len(in_memory[1]) == 1

    files = ObjectFiles("s3://traces/pages/run")
    map_requests(lambda number: files.put(f"rollouts/{number:04d}-000000.jsonl", b"x"), range(1_001))
    for name, size in (("scores/small", 4 << 20), ("scores/large", 11 << 20)):
        store.requests.clear()
        simulated.requests.clear()
        files.put(name, bytes(size))
        simulated.put(None, f"run/{name}", bytes(size))
        assert len(store.requests) == simulated.requests["PUT", "scores"], name
    store.requests.clear()
    assert len(files.list_files("rollouts")) == 1_001
    assert len(store.requests) == simulator.pages(1_001) == 2
