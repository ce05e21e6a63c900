"""Fixtures of the command line's tests: the command in this process and in its own."""

import os
import pty
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from rolltrace.cli.app import cli
from rolltrace.store.create import create_run
from rolltrace.trace.codec import utc_now
from rolltrace.trace.ids import new_id
from rolltrace.trace.message import Message
from rolltrace.trace.rollout import Header, Outcome
from rolltrace.trace.rollout_builder import RolloutBuilder
from rolltrace.trace.stop_reasons import Status, StoppedBy


@pytest.fixture
def rolltrace(tmp_path, monkeypatch) -> Callable[..., Result]:
    """Runs the command in this process, in an empty directory."""
    monkeypatch.chdir(tmp_path)
    return lambda *words: CliRunner().invoke(cli, [str(word) for word in words])


@pytest.fixture
def in_terminal(tmp_path) -> Callable[..., tuple[int, str]]:
    """Runs the command in its own process with a terminal as its streams; returns exit code and output."""

    def run(*words: Any, columns: int = 100, **variables: str) -> tuple[int, str]:
        ours, theirs = pty.openpty()
        kept = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "FORCE_COLOR")}
        environment = kept | {"TERM": "xterm-256color", "COLUMNS": str(columns)} | variables
        command = [sys.executable, "-m", "rolltrace", *map(str, words)]
        process = subprocess.Popen(
            command, stdin=theirs, stdout=theirs, stderr=theirs, cwd=tmp_path, env=environment, close_fds=True
        )
        os.close(theirs)
        shown = b""
        try:
            while chunk := os.read(ours, 65536):
                shown += chunk
        except OSError:  # a terminal reports the closed other side in this way
            pass
        os.close(ours)
        return process.wait(), shown.decode().replace("\r\n", "\n")

    return run


@pytest.fixture
def make_run(tmp_path) -> Callable[..., Path]:
    """Writes a run of one rollout per given function, which fills the rollout builder."""

    def make(*fill: Callable[[RolloutBuilder], None], outcome: dict[str, Any] | None = None, **fields: Any) -> Path:
        identity = {"env": "sums", "task": "two", "group": "two", "policy": "tester"} | fields
        ended = Outcome(
            ended_at=utc_now(), status=Status.OK, stop_reason="completed", stopped_by=StoppedBy.ENV, error=None,
            reward=1.0, reward_so_far=1.0, unclamped_reward=None,
        )  # fmt: skip
        with create_run(tmp_path / "run") as writer:
            for index, write in enumerate(fill):
                header = Header(
                    id=new_id(), run=writer.run, session=writer.session, started_at=utc_now(), index=index, **identity
                )
                rollout_builder = writer.begin(header)
                write(rollout_builder)
                writer.end(rollout_builder, ended | (outcome or {}))
        return tmp_path / "run"

    return make


@pytest.fixture
def one_plus_one() -> Callable[[RolloutBuilder], None]:
    """Fills a rollout builder with one right answer."""

    def fill(rollout_builder: RolloutBuilder) -> None:
        rollout_builder.extend([Message("system", "Be brief."), Message("user", "1 + 1?")])
        rollout_builder.mark_prompt_sent()
        rollout_builder.step(Message("assistant", "It is 2."), reward=1.0, env_reward=1.0, reward_data={"correct": 1.0})

    return fill
