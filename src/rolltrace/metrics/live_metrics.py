"""Logs the metrics of each iteration to trackers, in a thread, while a run is recorded: `log_metrics`."""

import logging
import threading
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from rolltrace.errors import InputError
from rolltrace.metrics.trackers import RecordedRun, Tracker, TrackerSpecs, open_trackers
from rolltrace.query.iteration_metrics import IterationKey, iteration_metrics
from rolltrace.query.run import Run, open_single_run
from rolltrace.secret_redaction import redact_text
from rolltrace.store.writer import RunWriter
from rolltrace.trace.failure import failure_of
from rolltrace.trace.freeform import describe
from rolltrace.trace.rollout import Header
from rolltrace.trace.stop_reasons import Layer

_log = logging.getLogger("rolltrace")

CLOSE_SECONDS = 30.0
"""How long closing waits for trackers: a server may not answer."""


def log_metrics(run: RunWriter | str | Path, to: TrackerSpecs) -> "LiveMetrics":
    """Log the metrics of a run to trackers: `trackio[:PROJECT]`, `wandb[:PROJECT]`, `tensorboard:DIR`, `mlflow[:URI]`.

    Of a run that is being recorded, an iteration is logged when a later one of its split has begun and none of its
    rollouts is in flight, the last ones when the run is closed. Of a path, all iterations are logged at once.
    """
    if isinstance(run, RunWriter):
        if not run.records:
            _log.warning("No metrics are logged, because the trace of %s is off.", run.path)
        metrics = LiveMetrics(open_single_run(run.path.absolute()), to if run.records else (), run)
        run.observers.append(metrics)
        return metrics
    if not isinstance(run, str | Path):
        raise InputError(f"Expected a run that is being recorded, or the path of one, got {describe(run)}.")
    metrics = LiveMetrics(open_single_run(run), to)
    metrics.close()
    return metrics


class LiveMetrics:
    """Logs the metrics of a run, in a thread. What fails is counted and logged once for each tracker, never raised."""

    def __init__(self, run: Run, to: TrackerSpecs, writer: RunWriter | None = None) -> None:
        self.failed = 0
        """How often metrics could not be computed, or a tracker failed."""
        self._run = run
        self._writer = writer
        # The name is unique also among runs at the same path.
        name = f"{run.path.absolute().name}-{run.info.id[-6:]}"
        opened = open_trackers(to, RecordedRun(run.info.id, name, run.info.config))
        self._trackers: list[tuple[str, Tracker, dict[IterationKey, int]]] = [(*one, {}) for one in opened]
        """Name, tracker, and by iteration a hash of the metrics that were logged last."""
        self._warned: set[str] = set()
        self._changed = threading.Condition()
        self._in_flight: dict[IterationKey, set[str]] = {}
        """By iteration, the ids of rollouts that have begun and not ended in this process."""
        self._newest: dict[str, int] = {}
        """By split, the newest iteration that has begun."""
        self._ended: set[IterationKey] = set()
        """Iterations of which rollouts have ended in this process."""
        self._waiting: set[IterationKey] = set()
        """Those of which rollouts have ended since they were last logged."""
        self._due: set[IterationKey] = set()
        """Those to log now."""
        self._is_closing = False
        self._thread = None
        if writer is not None:
            self._thread = threading.Thread(target=self._work, name="rolltrace-metrics", daemon=True)
            self._thread.start()

    def log(self) -> None:
        """Log what was recorded so far, without waiting for later iterations. Returns at once: a thread does it."""
        with self._changed:
            self._due |= self._waiting
            self._changed.notify()

    def close(self, timeout: float | None = None) -> None:
        """Log what is left and what late scores have changed, and close the trackers. Closing the run does this too."""
        if self._writer is not None and self in self._writer.observers:
            self._writer.observers.remove(self)
        with self._changed:
            is_first, self._is_closing = not self._is_closing, True
            self._changed.notify()
        if self._thread is None:
            if is_first:
                self._work()
            return
        timeout = CLOSE_SECONDS if timeout is None else timeout
        self._thread.join(timeout)
        if self._thread.is_alive():
            self._count_failure("any tracker", f"one did not answer within {timeout:.0f} s")

    # Called by the writer

    def rollout_began(self, header: Header) -> None:
        """The first rollout of an iteration may complete earlier ones."""
        with self._changed:
            self._in_flight.setdefault((header.split, header.iteration), set()).add(header.id)
            if header.iteration > self._newest.setdefault(header.split, header.iteration):
                self._newest[header.split] = header.iteration
                self._find_complete()

    def rollout_ended(self, header: Header) -> None:
        """The last rollout of an iteration may complete it."""
        key = header.split, header.iteration
        with self._changed:
            self._in_flight.get(key, set()).discard(header.id)
            self._ended.add(key)
            self._waiting.add(key)
            self._find_complete()

    def run_closed(self, timeout: float | None) -> None:
        """Log the rest."""
        self.close(timeout)

    def _find_complete(self) -> None:
        for split, iteration in self._waiting - self._due:
            if iteration < self._newest.get(split, iteration) and not self._in_flight.get((split, iteration)):
                self._in_flight.pop((split, iteration), None)
                self._due.add((split, iteration))
                self._changed.notify()

    # The thread

    def _work(self) -> None:
        is_over = False
        while not is_over:
            with self._changed:
                self._changed.wait_for(lambda: self._due or self._is_closing)
                is_over = self._is_closing
                # In the end all of them, because late scores may have changed any.
                keys = None if self._writer is None else set(self._ended if is_over else self._due)
                self._waiting -= self._due
                self._due.clear()
            self._guard("any tracker", self._log, keys)
        for name, tracker, _ in self._trackers:
            self._guard(name, tracker.close)
        self._run.close()

    def _log(self, keys: Collection[IterationKey] | None) -> None:
        """Log iterations whose metrics are not what was logged before; those of all splits together."""
        if self._writer is not None:
            self._writer.flush()
        metrics = iteration_metrics(self._run, keys)
        for iteration in sorted({key[1] for key in metrics}):
            for name, tracker, logged in self._trackers:
                hashes = {key: _hash(own) for key, own in metrics.items() if key[1] == iteration}
                changed = [key for key, value in hashes.items() if logged.get(key) != value]
                merged = {metric: value for key in changed for metric, value in metrics[key].items()}
                if merged and self._guard(name, tracker.log, merged, iteration):
                    logged |= hashes

    def _guard(self, name: str, action: Callable[..., None], *args: Any) -> bool:
        """Call an action; returns whether it succeeded."""
        try:
            action(*args)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - a tracker never stops the run
            failure = failure_of(Layer.CALLER, error)
            self._count_failure(name, f"{failure.type}: {redact_text(failure.message)}")
            return False
        return True

    def _count_failure(self, name: str, reason: str) -> None:
        self.failed += 1
        if name not in self._warned:
            self._warned.add(name)
            _log.warning("Could not log to %s: %s. Further failures are counted in LiveMetrics.failed.", name, reason)


def _hash(metrics: Mapping[str, float]) -> int:
    """A hash of metrics; the last digits of a number may differ each time it is computed."""
    return hash(frozenset((name, f"{value:.9g}") for name, value in metrics.items()))
