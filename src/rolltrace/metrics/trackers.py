"""Experiment trackers that metrics are sent to: trackio, Weights & Biases, TensorBoard and MLflow.

If the program has a run of the tracker open, the metrics go to that one, and it stays open. If not, a run is opened
that is named after the recorded run, and is continued if the recorded run is resumed.
"""

import contextlib
import contextvars
import os
import time
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

from rolltrace.errors import InputError, UnknownNameError
from rolltrace.secret_redaction import redact_text
from rolltrace.trace.freeform import describe

_PROJECT = "rolltrace"
"""The project or experiment, if none is stated."""
_RUN_TAG = "rolltrace.run"


class RecordedRun(NamedTuple):
    """What trackers are told about the run."""

    id: str
    name: str
    config: Mapping[str, Any]
    """Without secrets."""


@runtime_checkable
class Tracker(Protocol):
    """Takes the metrics of iterations. A class of your own with these methods is a tracker, too."""

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """Log the metrics of an iteration. An iteration may be logged again, with better numbers."""
        ...

    def close(self) -> None:
        """Send what is left, and close what was opened."""
        ...


TrackerSpecs = str | Tracker | Iterable[str | Tracker]
"""Trackers, each as `NAME` or `NAME:PLACE`, or as an object."""


class Trackio:
    """Logs to trackio; `place` is the project."""

    def __init__(self, place: str, run: RecordedRun) -> None:
        trackio = import_module("trackio")
        active = trackio.context_vars.current_run.get()
        self._is_own = active is None
        # In a context of its own: the run does not become the program's current run.
        self._run = active or contextvars.copy_context().run(
            trackio.init, place or _PROJECT, name=run.name, config=dict(run.config), resume="allow", embed=False
        )

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """Log the metrics of an iteration."""
        self._run.log(dict(metrics), step=step)

    def close(self) -> None:
        """Finish the run, if it is our own."""
        if self._is_own:
            self._run.finish()


class Wandb:
    """Logs to Weights & Biases; `place` is the project. The x-axis is `rollout/iteration`."""

    def __init__(self, place: str, run: RecordedRun) -> None:
        wandb = import_module("wandb")
        self._is_own = wandb.run is None
        self._run = wandb.run or wandb.init(
            project=place or os.environ.get("WANDB_PROJECT") or _PROJECT,
            id=run.id,
            name=run.name,
            config=dict(run.config),
            resume="allow",
            reinit="create_new",  # it does not become the program's current run
        )
        self._run.define_metric("rollout/iteration")
        self._run.define_metric("rollout/*", step_metric="rollout/iteration")
        self._row: int | None = None
        """The row of the program's run that has metrics."""
        self._held: list[dict[str, float]] = []
        """Metrics that wait for the next row of the program's run."""

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """Log the metrics of an iteration."""
        row = {**metrics, "rollout/iteration": step}
        if self._is_own:
            self._run.log(row)
        else:
            self._held.append(row)
            self._write_held(is_last=False)

    def close(self) -> None:
        """Finish the run, if it is our own."""
        if self._is_own:
            self._run.finish()
        else:
            self._write_held(is_last=True)

    def _write_held(self, *, is_last: bool) -> None:
        """Add metrics to rows of the program's run, one iteration to each.

        W&B drops what the program logs with a smaller step than that of the present row. So a new row is begun only if
        its number is not above that of the iteration, or if there will be no other occasion.
        """
        while self._held:
            if self._row == self._run.step:
                if not is_last and self._run.step >= self._held[0]["rollout/iteration"]:
                    return
                self._run.log({})  # begins a row
            self._run.log(self._held.pop(0), commit=False)
            self._row = self._run.step


class TensorBoard:
    """Writes event files to a folder inside of `place`."""

    def __init__(self, place: str, run: RecordedRun) -> None:
        self._event = import_module("tensorboard.compat.proto.event_pb2").Event
        self._summary = import_module("tensorboard.compat.proto.summary_pb2").Summary
        files = import_module("tensorboard.summary.writer.event_file_writer")
        self._writer = files.EventFileWriter(str(Path(place) / run.name))

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """Log the metrics of an iteration."""
        values = [self._summary.Value(tag=name, simple_value=value) for name, value in metrics.items()]
        self._writer.add_event(self._event(wall_time=time.time(), step=step, summary=self._summary(value=values)))
        self._writer.flush()

    def close(self) -> None:
        """Close the file."""
        self._writer.close()


class Mlflow:
    """Logs to MLflow; `place` is the tracking URI, if that is not the default."""

    def __init__(self, place: str, run: RecordedRun) -> None:
        mlflow = import_module("mlflow")
        self._entities = import_module("mlflow.entities")
        active = None if place else mlflow.active_run()
        self._client = mlflow.MlflowClient(tracking_uri=place or None)
        self._is_own = active is None
        self._run = self._open(run) if active is None else active.info.run_id

    def _open(self, run: RecordedRun) -> str:
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME") or _PROJECT
        experiment = self._client.get_experiment_by_name(name)
        place = self._client.create_experiment(name) if experiment is None else experiment.experiment_id
        found = self._client.search_runs([place], f"tags.`{_RUN_TAG}` = '{run.id}'", max_results=1)
        opened = found[0] if found else self._client.create_run(place, run_name=run.name, tags={_RUN_TAG: run.id})
        identifier: str = opened.info.run_id
        return identifier

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """Log the metrics of an iteration."""
        now = time.time_ns() // 1_000_000
        batch = [self._entities.Metric(name, value, now, step) for name, value in metrics.items()]
        self._client.log_batch(self._run, metrics=batch)

    def close(self) -> None:
        """Finish the run, if it is our own."""
        if self._is_own:
            self._client.set_terminated(self._run)


_TRACKERS: dict[str, Callable[[str, RecordedRun], Tracker]] = {
    "trackio": Trackio,
    "wandb": Wandb,
    "tensorboard": TensorBoard,
    "mlflow": Mlflow,
}
"""By the name of the package."""


def require_trackers(to: TrackerSpecs) -> list[str | Tracker]:
    """The trackers as a list, after a check that each is known, complete and installed."""
    specs: Iterable[Any] = to if isinstance(to, Iterable) and not isinstance(to, str | Tracker) else [to]
    checked: list[str | Tracker] = []
    for spec in specs:
        if not isinstance(spec, str | Tracker):
            raise InputError(f"Expected a tracker such as 'wandb' or 'tensorboard:DIR', got {describe(spec)}.")
        if isinstance(spec, str):
            name, _, place = spec.partition(":")
            if name not in _TRACKERS:
                raise UnknownNameError.for_name("tracker", name, _TRACKERS)
            if name == "tensorboard" and not place:
                raise InputError("Expected the folder for TensorBoard, as in tensorboard:DIR.")
            try:
                import_module(name)
            except ImportError as error:
                raise InputError(f"Logging to {name} needs its package ({error}): pip install {name}.") from error
        checked.append(spec)
    return checked


def open_trackers(to: TrackerSpecs, run: RecordedRun) -> list[tuple[str, Tracker]]:
    """Open trackers; each with its name."""
    opened: list[tuple[str, Tracker]] = []
    with contextlib.ExitStack() as stack:
        for spec in require_trackers(to):
            name = spec.partition(":")[0] if isinstance(spec, str) else type(spec).__name__
            tracker = _open(name, spec.partition(":")[2], run) if isinstance(spec, str) else spec
            stack.callback(tracker.close)
            opened.append((name, tracker))
        stack.pop_all()  # all are open, and stay open
    return opened


def _open(name: str, place: str, run: RecordedRun) -> Tracker:
    try:
        return _TRACKERS[name](place, run)
    except Exception as error:
        raise InputError(f"Cannot log to {name}: {type(error).__name__}: {redact_text(str(error))}") from error
