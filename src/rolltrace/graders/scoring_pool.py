"""The worker processes that score answers, because scorers are foreign code and answers are hostile text."""

from collections.abc import Callable
from typing import Any

from rolltrace.errors import GraderError, WorkerError
from rolltrace.processes.pool import ProcessPool
from rolltrace.rollout_clock import pause_deadline

SCORING_POOL = ProcessPool()


async def run_scorer(
    function: Callable[..., Any], *args: Any, cpu_seconds: float, prepare: Callable[[], object] = bool
) -> Any:
    """Call a module-level function in a worker process; `prepare` is called first, and its time does not count.

    Raises `GraderError` if the function raises or exceeds a limit; an `InputError` is raised unchanged.
    """
    try:
        with pause_deadline():  # other rollouts' calls may be before this one in the queue
            return await SCORING_POOL.run(function, *args, cpu_seconds=cpu_seconds, prepare=prepare)
    except WorkerError as error:
        raise GraderError(str(error)) from error
