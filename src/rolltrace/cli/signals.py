"""What a command does when Ctrl-C or SIGTERM ends it: its message, its exit code, and the removal of its files."""

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

import click

_EXIT_SECONDS = 5.0


class InterruptedExit(SystemExit):
    """The exit of a command that a signal ended."""

    def exit_soon(self) -> None:
        """End the process in any case: a thread that a tool left behind would keep the interpreter from ending."""
        from rolltrace.jobs.signal_handling import abandoned_tasks

        if abandoned_tasks:
            sys.stderr.flush()
            os._exit(int(str(self.code)))
        timer = threading.Timer(_EXIT_SECONDS, os._exit, (self.code,))
        timer.daemon = True
        timer.start()


@contextlib.contextmanager
def exit_on_signal(
    path: Path, hint: str = "", recorded: str = "The rollouts in flight are recorded as cancelled"
) -> Iterator[None]:
    """Exit with code 1 after Ctrl-C and 143 after SIGTERM; print what was recorded and where, if there is a run."""
    # Lazy, because `--help` does not need it.
    from rolltrace.jobs.signal_handling import SIGTERM_EXIT_CODE
    from rolltrace.store.layout import is_run

    try:
        yield
    except KeyboardInterrupt:
        outcome, code = "Interrupted", 1
    except SystemExit as error:
        if error.code != SIGTERM_EXIT_CODE:
            raise
        outcome, code = "Terminated", SIGTERM_EXIT_CODE
    else:
        return
    with contextlib.suppress(OSError):  # the terminal may be gone
        if is_run(path):
            click.echo(f"{outcome}. {recorded} in {path}.{hint}", err=True)
        else:
            click.echo(f"{outcome}. Nothing was recorded.", err=True)
    raise InterruptedExit(code)


@contextlib.contextmanager
def exit_on_sigterm() -> Iterator[None]:
    """Exit with code 143 after SIGTERM, as after Ctrl-C by way of an exception, which removes unfinished files."""
    received: list[int] = []

    def raise_exit(number: int, _: FrameType | None) -> None:
        received.append(number)
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, raise_exit)
    try:
        yield
    except KeyboardInterrupt:
        if received:  # in a statement of DuckDB, which does not say which signal interrupted it
            raise SystemExit(128 + received[0]) from None
        raise
    finally:
        signal.signal(signal.SIGTERM, before)
