"""Ctrl-C while very many requests are in flight."""

import asyncio
import signal
import subprocess
import sys
import threading

import pytest
from aiohttp import web

from loopback import chat, serving
from rolltrace.store.reader import RunReader
from rolltrace.trace.stop_reasons import Status

IN_FLIGHT = 300
ANSWERED = 40


class Slow:
    """Answers a few requests and never the others, and reports when the most possible are waiting."""

    def __init__(self, before_headers):
        self.before_headers = before_headers
        self.asked = 0
        self.waiting = 0
        self.is_full = threading.Event()

    async def answer(self, request):
        await request.read()
        self.asked += 1
        if self.asked <= ANSWERED:
            return web.json_response(chat("Answer: 7"))
        response = web.StreamResponse()
        if not self.before_headers:
            await response.prepare(request)
            await response.write(b'{"choices": [')
        self.waiting += 1
        if self.waiting == IN_FLIGHT:
            self.is_full.set()
        await asyncio.Event().wait()
        return response


@pytest.mark.parametrize("before_headers", [True, False])
def test_an_interrupted_run_records_what_was_in_flight(tmp_path, before_headers):
    """After Ctrl-C everything in flight is recorded as cancelled with its prompt, and the ledger adds up."""
    slow = Slow(before_headers)
    with serving(slow.answer) as url:
        words = [
            "run", "arithmetic", "--policy", f"openai:m@{url}", "--groups", "1000", "--group-size", "5",
            "--concurrency", str(IN_FLIGHT), "--out", "run",
        ]  # fmt: skip
        process = subprocess.Popen(
            [sys.executable, "-m", "rolltrace", *words], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        try:
            assert slow.is_full.wait(60)
            process.send_signal(signal.SIGINT)
            printed, told = process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == 1
    assert printed == b""
    [last] = told.decode().splitlines()[-1:]
    assert last.startswith("Interrupted. The rollouts in flight are recorded as cancelled in run. To complete it: ")
    assert not any(word in told for word in (b"Traceback", b"Unclosed", b"never retrieved", b"was destroyed"))
    check_record(tmp_path / "run")


def check_record(path):
    """Asserts that the answered rollouts match the server's count, and that all others were cancelled."""
    reader = RunReader(path)
    rollouts = list(reader.rollouts())
    assert not reader.read_errors
    answered = [rollout for rollout in rollouts if rollout.status is Status.OK]
    cancelled = [rollout for rollout in rollouts if rollout.status is Status.CANCELLED]
    assert len(answered) == ANSWERED
    assert len(cancelled) == len(rollouts) - ANSWERED >= IN_FLIGHT
    assert {rollout.stop_reason for rollout in cancelled} == {"cancelled"}
    assert {rollout.reward for rollout in cancelled} == {None}
    assert sum(rollout.pending_prompt is not None for rollout in cancelled) >= IN_FLIGHT
    assert all(rollout.pending_messages for rollout in cancelled if rollout.pending_prompt is not None)
    [ledger] = reader.ledgers().values()
    assert ledger.closed
    assert ledger.complete
    assert ledger.dispatched == ledger.recorded == len(rollouts)
