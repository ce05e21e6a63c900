"""Tells a requested cancellation from a failure."""

import asyncio


def cancellation_requested() -> bool:
    """Whether the running task was asked to stop, by `cancel` or by a time-out.

    Otherwise a `CancelledError` is a failure of the code that raised it: it awaited something that it had cancelled.
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
    """Whether an exception of a group ends more than the task that raised it."""
    return not isinstance(error, Exception | SystemExit | BaseExceptionGroup | asyncio.CancelledError)
