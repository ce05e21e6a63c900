"""The worker processes that score answers: a scorer may be foreign code, and an answer is hostile text."""

from collections.abc import Callable
from typing import Any

from rolltrace.errors import GraderError, WorkerError
from rolltrace.processes.pool import ProcessPool
from rolltrace.rollout_clock import pause_deadline

SCORING_POOL = ProcessPool()


async def run_scorer(
    function: Callable[..., Any], *args: Any, cpu_seconds: float, prepare: Callable[[], object] = bool
) -> Any:
    """Call a function of a module in a worker process; `prepare` is called first, and its time is not counted.

    What it raises is a `GraderError`, except an `InputError`; so is exceeding a limit.
    """
    try:
        with pause_deadline():  # other rollouts' calls may be before this one in the queue
            return await SCORING_POOL.run(function, *args, cpu_seconds=cpu_seconds, prepare=prepare)
    except WorkerError as error:
        raise GraderError(str(error)) from error
