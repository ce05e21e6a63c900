"""The embedded model is served once on a machine, however many workers use it."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

import rolltrace
from embedded import embedded_model
from rolltrace.policies.llama.llama_server import SERVERS
from waiting import is_running, until

pytestmark = pytest.mark.core


def servers():
    """The processes that serve a model for this process, or for its workers."""
    commands = {}
    for path in Path("/proc").glob("[0-9]*"):
        try:
            fields = (path / "stat").read_text().rpartition(")")[2].split()
            commands[int(path.name)] = int(fields[1]), (path / "cmdline").read_bytes()
        except OSError:
            continue
    family = {os.getpid()}
    while grown := {pid for pid, (parent, _) in commands.items() if parent in family} - family:
        family |= grown
    return {pid for pid in family if b"llama.server_main" in commands[pid][1]}


def test_workers_share_one_server(tmp_path):
    """Two workers play with one server, which the process that plays has started."""
    embedded_model()
    SERVERS.stop()
    seen = []
    summary = rolltrace.play(
        "arithmetic", "local,slots=2,context_length=2048", out=tmp_path / "run", groups=4, group_size=2, workers=2,
        sampling=rolltrace.Sampling(max_tokens=8), on_group=lambda _: seen.append(servers()),
    )  # fmt: skip
    assert (summary.statuses, len(seen)) == ({"ok": 8}, 4)
    assert len(set().union(*seen)) == 1
    with rolltrace.open_run(tmp_path / "run") as run:
        assert len(list(run.sql("select distinct session from rollouts"))) == 2
    assert not list(Path(tempfile.gettempdir()).glob(f"rolltrace_models_{summary.ledger.session}*"))


SCRIPT = """
import sys
from rolltrace.policies.llama.llama_server import SERVERS
from rolltrace.policies.local import local_policy
SERVERS.share(sys.argv[1])
for _ in sys.stdin:
    server = SERVERS.get(local_policy(slots=2, context_length=2048).settings).result()
    print(server.address, type(server).__name__, flush=True)
SERVERS.stop_sharing()
"""


def test_another_process_takes_over_when_the_owner_dies(tmp_path):
    """As on a node of a cluster, where no process outlives the workers."""
    embedded_model()
    first, second = (
        subprocess.Popen([sys.executable, "-c", SCRIPT, f"test-{os.getpid()}"], stdin=subprocess.PIPE,
                         stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})
        for _ in range(2)
    )  # fmt: skip

    def ask(process):
        process.stdin.write("\n")
        process.stdin.flush()
        return process.stdout.readline().split()

    try:
        address, kind = ask(first)
        assert kind == "LlamaServer"
        assert ask(second) == [address, "SharedLlamaServer"]
        first.kill()
        first.wait()
        [served_again, kind] = ask(second)
        assert (kind, served_again == address) == ("LlamaServer", False)
    finally:
        for process in (first, second):
            process.stdin.close()
            process.stdout.close()
        second.wait(60)
        first.kill()
    until(lambda: not is_running(second.pid))
    assert not list(Path(tempfile.gettempdir()).glob(f"rolltrace_models_test-{os.getpid()}*"))
