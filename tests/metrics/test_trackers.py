"""What trackers have after a run is what the run has. Run with the packages themselves by `make test-integrations`."""

import importlib
import json
import math
import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest

import rolltrace
from rolltrace.metrics.trackers import RecordedRun, Wandb
from rolltrace.query.iteration_metrics import iteration_metrics

pytestmark = pytest.mark.filterwarnings("ignore")  # of the packages


@pytest.fixture(autouse=True)
def offline(tmp_path, monkeypatch):
    """Nothing reaches the network, and everything is written below a temporary folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    for name in [name for name in sys.modules if name.partition(".")[0] == "trackio"]:
        monkeypatch.setattr(sys.modules[name], "TRACKIO_DIR", tmp_path / "trackio", raising=False)
    monkeypatch.setenv("WANDB_MODE", "offline")
    for name in ("WANDB_SILENT", "HF_HUB_OFFLINE", "MLFLOW_DISABLE_TELEMETRY", "DO_NOT_TRACK"):
        monkeypatch.setenv(name, "true")
    yield
    if "wandb" in sys.modules:
        sys.modules["wandb"].teardown()  # it remembers folders


def read_tensorboard(folder):
    """By step, the latest value of each metric."""
    files = importlib.import_module("tensorboard.backend.event_processing.event_file_loader")
    steps = defaultdict(dict)
    for path in sorted(folder.glob("tb/*/events*")):
        for event in files.RawEventFileLoader(str(path)).Load():
            event = importlib.import_module("tensorboard.compat.proto.event_pb2").Event.FromString(event)
            for value in event.summary.value:
                steps[event.step][value.tag] = value.simple_value
    return steps


def mlflow_runs():
    client = importlib.import_module("mlflow").MlflowClient()
    return client.search_runs([one.experiment_id for one in client.search_experiments()])


def read_mlflow(folder):
    client = importlib.import_module("mlflow").MlflowClient()
    steps = defaultdict(dict)
    for run in mlflow_runs():
        for name in run.data.metrics:
            for metric in sorted(client.get_metric_history(run.info.run_id, name), key=lambda one: one.timestamp):
                steps[metric.step][name] = metric.value
    return steps


def read_trackio(folder):
    storage = importlib.import_module("trackio.sqlite_storage").SQLiteStorage
    steps = defaultdict(dict)
    for project in storage.get_projects():
        for run in storage.get_runs(project):
            for row in storage.get_logs(project, run):
                steps[row["step"]] |= {name: value for name, value in row.items() if "/" in name}
    return steps


def read_wandb(folder):
    steps = defaultdict(dict)
    for row in wandb_rows(folder):
        if "rollout/iteration" in row:
            steps[row.pop("rollout/iteration")] |= {name: value for name, value in row.items() if "/" in name}
    return steps


def wandb_rows(folder):
    """The rows of offline runs, each as one mapping."""
    sys.modules["wandb"].teardown()  # waits until the file is complete
    records = importlib.import_module("wandb.proto.wandb_internal_pb2")
    for path in sorted(folder.glob("wandb/offline-run*/*.wandb")):
        for data in leveldb_records(path.read_bytes()):
            record = records.Record.FromString(data)
            if record.HasField("history"):
                yield {one.key or "/".join(one.nested_key): json.loads(one.value_json) for one in record.history.item}


def leveldb_records(data, block=32768, skipped=7):
    """The records of a file in the format of LevelDB's logs, after a header of its own."""
    position, parts = skipped, []
    while position + 7 <= len(data):
        if block - position % block < 7:
            position += block - position % block
        length, kind = int.from_bytes(data[position + 4 : position + 6], "little"), data[position + 6]
        parts.append(data[position + 7 : position + 7 + length])
        position += 7 + length
        if kind in (1, 4):  # whole, or the last part
            yield b"".join(parts)
            parts = []


READERS = {
    "trackio": read_trackio, "wandb": read_wandb, "tensorboard:tb": read_tensorboard, "mlflow": read_mlflow,
}  # fmt: skip
TRACKERS = pytest.mark.parametrize("to", READERS)


def play(run, iteration, group="1", split="train"):
    """Record a group; returns the id of its last member."""
    for index in range(3):
        place = {"group": group, "index": index, "iteration": iteration, "split": split}
        with run.rollout(env="sums", task="1", **place) as r:
            parts = {"correct": index / 3, "é (odd) ../name": 1.0}
            r.step("17 + 25?", "42", index / 3, reward_data=parts, usage={"completion_tokens": index})
            if index == 2:
                r.end("gave up: 100%")
    return r.id


def recorded(path):
    """By iteration, the metrics of a finished run. Event files have 32 bits."""
    steps = defaultdict(dict)
    with rolltrace.open_run(path) as run:
        for (_, iteration), metrics in iteration_metrics(run).items():
            steps[iteration] |= metrics
    return {iteration: pytest.approx(metrics, rel=1e-6) for iteration, metrics in steps.items()}


@TRACKERS
def test_what_is_logged_is_what_is_recorded(tmp_path, to):
    """Every number of every iteration arrives, late scores and odd names included, and no key of the config's."""
    pytest.importorskip(to.partition(":")[0])
    with rolltrace.create_run(tmp_path / "run", config={"lr": 0.1, "api_key": "sk-abcdefghijklmnop"}) as run:
        metrics = rolltrace.log_metrics(run, to=to)
        for iteration in range(3):
            late = play(run, iteration)
            play(run, iteration, group="2")
        play(run, 2, split="test")
        run.score(late, "reward", 5.0)
    assert metrics.failed == 0
    found = READERS[to](tmp_path)
    assert found == recorded(tmp_path / "run")
    assert all(math.isfinite(value) for step in found.values() for value in step.values())
    assert len(found[2]) > 40
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert files
    assert not any(b"sk-abcdefghijklmnop" in path.read_bytes() for path in files)


@TRACKERS
def test_a_resumed_run_continues_its_line(tmp_path, to):
    """A second session of the run logs to the same place, and not to a new run."""
    pytest.importorskip(to.partition(":")[0])
    for iteration in range(2):
        with rolltrace.create_run(tmp_path / "run", join=iteration > 0, continues=()) as run:
            rolltrace.log_metrics(run, to=to)
            play(run, iteration)
    assert READERS[to](tmp_path) == recorded(tmp_path / "run")
    if to == "mlflow":
        [run] = mlflow_runs()
        assert run.info.status == "FINISHED"
    elif to == "trackio":
        assert len(importlib.import_module("trackio.sqlite_storage").SQLiteStorage.get_runs("rolltrace")) == 1
    elif to == "wandb":
        assert len({path.name.split("-")[-1] for path in tmp_path.glob("wandb/offline-run*")}) == 1
    else:
        assert len(list(tmp_path.glob("tb/*"))) == 1


def test_wandb_loses_no_row_of_the_program(tmp_path):
    """Metrics join the rows of a program that states its own steps, at its pace or late; its run stays open."""
    wandb = pytest.importorskip("wandb")
    own = wandb.init(project="mine")
    tracker = Wandb("", RecordedRun("id", "name", {}))
    for iteration in range(4):
        tracker.log({"rollout/a": iteration}, iteration)
        own.log({"loss": iteration}, step=iteration)
    for iteration in range(4, 7):
        own.log({"loss": iteration}, step=iteration)
    for iteration in range(4, 7):
        tracker.log({"rollout/a": iteration}, iteration)
    own.log({"loss": 7}, step=7)
    tracker.log({"rollout/a": 7}, 7)
    own.log({"loss": 8}, step=8)
    tracker.close()
    assert wandb.run is own
    own.finish()
    assert read_wandb(tmp_path) == {iteration: {"rollout/a": iteration} for iteration in range(8)}
    assert [row["loss"] for row in wandb_rows(tmp_path) if "loss" in row] == list(range(9))


def test_wandb_needs_no_rows_of_the_program(tmp_path):
    """In a run to which the program logs nothing, metrics are rows of their own, as they come."""
    wandb = pytest.importorskip("wandb")
    own = wandb.init(project="mine")
    tracker = Wandb("", RecordedRun("id", "name", {}))
    for iteration in range(3):
        tracker.log({"rollout/a": iteration}, iteration)
        assert own.step == iteration
    tracker.close()
    own.finish()
    assert read_wandb(tmp_path) == {iteration: {"rollout/a": iteration} for iteration in range(3)}


def test_a_run_of_our_own_is_not_the_programs_current_one(tmp_path):
    """A program that starts its own run later gets its own."""
    wandb, trackio, mlflow = map(pytest.importorskip, ("wandb", "trackio", "mlflow"))
    with rolltrace.create_run(tmp_path / "run") as run:
        rolltrace.log_metrics(run, to=["wandb", "trackio", "mlflow"])
        assert wandb.run is None
        assert trackio.context_vars.current_run.get() is None
        assert mlflow.active_run() is None
        play(run, 0)
    assert read_wandb(tmp_path) == read_trackio(tmp_path) == read_mlflow(tmp_path) == recorded(tmp_path / "run")


@pytest.mark.parametrize("to", ["trackio", "mlflow"])
def test_the_run_of_the_program_is_used_and_left_open(tmp_path, to):
    """The metrics are in the program's run, beside its own, and it stays open."""
    package = pytest.importorskip(to)
    own = package.init(project="mine", embed=False) if to == "trackio" else package.start_run()
    with rolltrace.create_run(tmp_path / "run") as run:
        rolltrace.log_metrics(run, to=to)
        play(run, 0)
    if to == "trackio":
        own.log({"my/loss": 0.5}, step=1)
        own.finish()
        assert len(importlib.import_module("trackio.sqlite_storage").SQLiteStorage.get_projects()) == 1
    else:
        assert package.active_run().info.status == "RUNNING"
        package.log_metric("my/loss", 0.5, step=1)
        package.end_run()
        assert len(mlflow_runs()) == 1
    assert READERS[to](tmp_path) == {**recorded(tmp_path / "run"), 1: {"my/loss": 0.5}}


def test_the_guide_runs(tmp_path):
    """The guide's commands run, and its blocks are one program."""
    for package in ("wandb", "tensorboard"):
        pytest.importorskip(package)
    guide = (Path(__file__).parents[2] / "docs" / "guides" / "live-metrics.md").read_text()
    [command] = re.findall(r"^\$ rolltrace (.*)$", guide, re.MULTILINE)
    words = [sys.executable, "-m", "rolltrace", *command.split()]
    subprocess.run(words, capture_output=True, check=True)
    assert read_tensorboard(tmp_path) == recorded(tmp_path / "runs" / "sums")
    assert read_wandb(tmp_path) == recorded(tmp_path / "runs" / "sums")
    code = "\n".join(re.findall(r"^```python\n(.*?)^```$", guide, re.MULTILINE | re.DOTALL))
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.splitlines() == ["0 failures", "0 0.0 1.0", "1 0.25 0.0", "2 0.5 0.0", "done"]
