"""Tells a cancellation that somebody asked for from one that nobody did."""

import asyncio


def cancellation_requested() -> bool:
    """Whether somebody, a time-out included, has asked the running task to stop.

    Where nobody has, a `CancelledError` comes from code that awaited what it had itself cancelled: that is its failure,
    and no reason to stop.
    """
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def is_failure(error: BaseException) -> bool:
    """Whether an exception is a failure of the code that raised it, and not the end of the task or of the process."""
    if isinstance(error, asyncio.CancelledError):
        return not cancellation_requested()
    if isinstance(error, BaseExceptionGroup):
        return error.subgroup(_ends_process) is None
    return isinstance(error, Exception | SystemExit)


def _ends_process(error: BaseException) -> bool:
    """Whether one of a group's exceptions is the end of more than the task that raised it."""
    return not isinstance(error, Exception | SystemExit | BaseExceptionGroup | asyncio.CancelledError)
