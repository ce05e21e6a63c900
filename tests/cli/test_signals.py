"""How commands end after a signal."""

import contextlib
import os
import signal

import pytest

from rolltrace.cli.signals import exit_on_sigterm


def test_sigterm_in_a_statement_exits_with_143():
    """DuckDB swallows the exit and its caller raises `KeyboardInterrupt`; the exit code is still that of SIGTERM."""

    def run_statement():
        with contextlib.suppress(SystemExit):
            os.kill(os.getpid(), signal.SIGTERM)
        raise KeyboardInterrupt

    with pytest.raises(SystemExit) as ended, exit_on_sigterm():
        run_statement()
    assert ended.value.code == 143


def test_ctrl_c_is_not_taken_for_sigterm():
    """Without a SIGTERM, `KeyboardInterrupt` stays what it is."""
    with pytest.raises(KeyboardInterrupt), exit_on_sigterm():
        raise KeyboardInterrupt
