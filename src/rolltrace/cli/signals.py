"""What a command that plays says and does when Ctrl-C or SIGTERM has ended it."""

import contextlib
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

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
def exit_on_signal(place: Path, hint: str = "") -> Iterator[None]:
    """End with exit code 1 after Ctrl-C and 143 after SIGTERM, and say where the record is, if there is one."""
    # Lazy, because a command that is only asked for its help needs none of it.
    from rolltrace.jobs.signal_handling import SIGTERM_EXIT_CODE
    from rolltrace.store.layout import is_run

    try:
        yield
    except KeyboardInterrupt:
        what, code = "Interrupted", 1
    except SystemExit as ended:
        if ended.code != SIGTERM_EXIT_CODE:
            raise
        what, code = "Terminated", SIGTERM_EXIT_CODE
    else:
        return
    with contextlib.suppress(OSError):  # the terminal may be gone
        if is_run(place):
            click.echo(f"{what}. What was in flight is recorded as cancelled in {place}.{hint}", err=True)
        else:
            click.echo(f"{what}. Nothing was recorded.", err=True)
    raise InterruptedExit(code)
