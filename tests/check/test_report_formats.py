"""Reports for other tools, baselines, and following a run."""

import io
import json
import os
import shutil

import pytest
from click.testing import CliRunner
from rich.console import Console

from rolltrace.check.audit import AuditInput, Finding, Severity, audit
from rolltrace.check.audit_tables import scope_address
from rolltrace.check.baseline import load_baseline, write_baseline
from rolltrace.check.check_run import check_run
from rolltrace.check.report_formats import github_annotations, to_sarif
from rolltrace.check.watch import watch_run
from rolltrace.cli.app import cli
from rolltrace.cli.screen.audit_report import show_changes
from rolltrace.errors import InputError, RunNotFoundError
from rolltrace.store.create import create_run

HOSTILE = "100 %\n::error::owned\r\x1b[2J"


@audit(Severity.ERROR, "Rewards of zero teach nothing.", "Look at the grader.", input=AuditInput.TABLES)
def zero_rewards(tables):
    """No reward is zero."""
    for row in tables.rows("select *, iteration from rollouts where reward = 0 order by id"):
        yield Finding(f"reward is 0 {HOSTILE}", (row["id"],), scope_address(row), data={"reward": row["reward"]})


@audit(Severity.WARNING, "Few rollouts.", "Play more.", input=AuditInput.TABLES)
def few(tables):
    """There are many rollouts."""
    for row in tables.rows("select split, env, count(*) as n from rollouts group by all having n < 2"):
        yield Finding(f"{row['n']} rollouts", address=scope_address(row))


def play(run, iteration, *rewards):
    ids = []
    for index, reward in enumerate(rewards):
        rollout = run.rollout(env="sums", task="t", group="a", index=index, iteration=iteration)
        rollout.step([{"role": "user", "content": "1 + 1?"}], "2", reward=reward)
        rollout.end()
        ids.append(rollout.id)
    run.flush()
    return ids


@pytest.fixture
def zeros(tmp_path):
    """A run in which the second of three rollouts has no reward; its path, and that rollout."""
    with create_run(tmp_path / "run") as run:
        [_, second, _] = play(run, 0, 1.0, 0.0, 1.0)
    return run.path, second


def test_sarif_has_rules_results_and_locations(zeros):
    """What code-scanning tools need: one rule for each audit, and a result that names the rollout."""
    path, rollout = zeros
    report = check_run(path, only=["zero_rewards", "damaged"], add=[zero_rewards])
    log = json.loads(to_sarif([report], viewer="http://127.0.0.1:1/#/run/a"))
    [run] = log["runs"]
    assert log["version"] == "2.1.0"
    assert [rule["id"] for rule in run["tool"]["driver"]["rules"]] == ["damaged", "zero_rewards"]
    [result] = run["results"]
    assert (result["ruleId"], result["ruleIndex"], result["level"]) == ("zero_rewards", 1, "error")
    assert result["message"]["text"] == f"reward is 0 {HOSTILE}"
    [location] = result["locations"]
    assert location["logicalLocations"][0]["fullyQualifiedName"] == "train/sums/0/a"
    assert location["logicalLocations"][1]["name"] == rollout
    assert result["hostedViewerUri"] == f"http://127.0.0.1:1/#/run/a/rollout/{rollout}"
    assert result["properties"]["data"] == {"reward": 0.0}
    assert run["invocations"] == [{"executionSuccessful": True, "toolExecutionNotifications": []}]
    again = json.loads(to_sarif([report]))["runs"][0]["results"][0]
    assert again["partialFingerprints"] == result["partialFingerprints"]


def test_sarif_names_the_line_of_a_damaged_file(run):
    """A finding about bytes is a physical location."""
    run.forge(run.rollouts, 1, reward_so_far=7.0)
    [log_run] = json.loads(to_sarif([check_run(run.path, only=["reward_parts"])]))["runs"]
    physical = log_run["results"][0]["locations"][0]["physicalLocation"]
    assert physical["artifactLocation"]["uri"].startswith("rollouts/")
    assert physical["region"] == {"byteOffset": len(run.lines(run.rollouts)[0])}


def test_sarif_tells_of_an_audit_that_failed(zeros):
    """A tool that reads it does not take that for a clean run."""

    @audit(Severity.INFO, "Breaks.")
    def breaks(run):
        raise RuntimeError("no")

    [log_run] = json.loads(to_sarif([check_run(zeros[0], only=["breaks"], add=[breaks])]))["runs"]
    assert log_run["invocations"][0]["executionSuccessful"] is False
    assert "RuntimeError: no" in log_run["invocations"][0]["toolExecutionNotifications"][0]["message"]["text"]


def test_annotations_are_one_line_each_whatever_the_text(zeros):
    """A line feed in a message would start a command of its own."""
    path, _ = zeros
    [line] = github_annotations(check_run(path, only=["zero_rewards"], add=[zero_rewards]))
    assert line.startswith("::error title=rolltrace check%3A zero_rewards::reward is 0 100 %25%0A::error::owned␍␛[2J")
    assert line.isprintable()
    assert "Look at the grader." in line


def test_a_baseline_accepts_what_is_known_and_nothing_else(zeros, tmp_path):
    """Accepted findings are counted apart; a new one is found."""
    path, _ = zeros
    file = tmp_path / "baseline.json"
    report = check_run(path, add=[zero_rewards], only=["zero_rewards"])
    assert write_baseline(file, [report]) == load_baseline(file)
    [result] = check_run(path, add=[zero_rewards], only=["zero_rewards"], baseline=file).results
    assert (result.count, result.accepted) == (0, 1)
    with create_run(path, join=True) as run:
        [new] = play(run, 1, 0.0)
    [result] = check_run(path, add=[zero_rewards], only=["zero_rewards"], baseline=file).results
    assert (result.accepted, [one.rollouts for one in result.findings]) == (1, [(new,)])


@pytest.mark.parametrize("text", ["", "[]", '{"version": 2}', '{"accepted": {"a": 1}}', '{"oops": 1}'])
def test_a_wrong_baseline_is_refused(tmp_path, text):
    """It is not taken for an empty one."""
    file = tmp_path / "baseline.json"
    file.write_text(text)
    with pytest.raises(InputError, match=r"baseline\.json|version"):
        load_baseline(file)


class Script:
    """Does the next thing each time the watch waits, and then stops it."""

    def __init__(self, *actions):
        self.actions = list(actions)

    def is_set(self):
        return not self.actions

    def wait(self, timeout=None):
        if not self.actions:
            return True
        self.actions.pop(0)()
        return False


def test_watching_tells_what_is_new_and_what_is_resolved(tmp_path):
    """Findings of an earlier iteration stay; one about the env goes away when the newest iteration is fine."""
    with create_run(tmp_path / "run") as run:
        script = Script(
            lambda: play(run, 0, 1.0),
            lambda: None,
            lambda: play(run, 1, 0.0, 1.0),
            lambda: play(run, 2, 1.0, 1.0),
            lambda: play(run, 3, 1.0),
        )
        choice = {"only": ["zero_rewards", "few"], "add": [zero_rewards, few]}
        seen = [
            (
                changes.report.iteration,
                [result.audit for result, _ in changes.new],
                [result.audit for result, _ in changes.resolved],
            )
            for changes in watch_run(run.path, script, **choice)
        ]
    assert seen == [
        (None, [], []),
        (0, ["few"], []),
        (1, ["zero_rewards"], ["few"]),
        (3, ["few"], []),
    ]


def test_watching_an_audit_with_more_findings_than_it_reports(tmp_path):
    """A finding that is no longer among the reported ones is not resolved, because it may be one of the others."""
    names = ["b"]

    @audit(Severity.ERROR, "Names teach nothing.", "Remove them.", input=AuditInput.TABLES)
    def named(_tables):
        """There are no names."""
        yield from (Finding(f"there is {name}", (), "train/env", name) for name in names)

    with create_run(tmp_path / "run") as run:
        play(run, 0, 1.0)
        script = Script(lambda: names.insert(0, "a"), names.clear)
        changes = list(watch_run(run.path, script, only=["named"], add=[named], max_findings=1))
    assert [([one.key for _, one in change.new], len(change.resolved)) for change in changes] == [
        (["train/env|b"], 0),
        (["train/env|a"], 0),
        ([], 2),
    ]


def test_watching_an_audit_that_fails_for_a_while(tmp_path):
    """That is told, and resolves nothing."""
    is_broken = [False]

    @audit(Severity.ERROR, "Rewards of zero teach nothing.", "Look at the grader.", input=AuditInput.TABLES)
    def fragile(tables):
        """No reward is zero."""
        if is_broken[0]:
            raise RuntimeError("cannot look")
        yield from few.function(tables)

    with create_run(tmp_path / "run") as run:
        play(run, 0, 1.0)
        breaks = [lambda value=value: is_broken.__setitem__(0, value) for value in (True, True, False)]
        changes = list(watch_run(run.path, Script(*breaks), only=["fragile"], add=[fragile]))
    assert [(len(one.new), len(one.resolved), one.report.results[0].error) for one in changes] == [
        (1, 0, None),
        (0, 0, "RuntimeError: cannot look"),
        (0, 0, None),
    ]
    console = Console(width=100, record=True, file=io.StringIO())
    show_changes(console, changes[1])
    assert console.export_text() == "! fragile  the audit itself failed: RuntimeError: cannot look\n"


def test_watching_ends_with_the_run(tmp_path):
    """A run that is deleted, or in whose place there is another, is not taken for one without news."""
    path = tmp_path / "run"
    create_run(path).close()
    with pytest.raises(RunNotFoundError):
        list(watch_run(path, Script(lambda: shutil.rmtree(path))))
    create_run(path).close()

    def replace():
        shutil.rmtree(path)
        create_run(path).close()

    with pytest.raises(InputError, match="replaced it"):
        list(watch_run(path, Script(replace)))


def test_a_baseline_tells_scores_of_a_rollout_apart(zeros, tmp_path):
    """A failed score that is accepted does not hide that the reward has failed, too."""
    path, rollout = zeros
    with create_run(path, join=True) as run:
        run.score(rollout, "quality", None)
    baseline = write_baseline(tmp_path / "baseline.json", [check_run(path, only=["failed_score"])])
    with create_run(path, join=True) as run:
        run.score(rollout, "reward", None)
    [result] = check_run(path, only=["failed_score"], baseline=baseline).results
    assert (result.accepted, [finding.data["name"] for finding in result.findings]) == (1, ["reward"])


def test_a_baseline_grows(zeros, tmp_path):
    """Accepting new findings besides known ones keeps the known ones."""
    path, _ = zeros
    files = [tmp_path / "first.json", tmp_path / "second.json"]
    runner = CliRunner()
    words = ["check", str(path), "--only", "open_sessions", "--only", "lost_lines"]
    with create_run(path, join=True) as run:
        run.flush()
        assert runner.invoke(cli, [*words, "--write-baseline", str(files[0])]).exit_code == 0
        (next((path / "rollouts").iterdir())).write_bytes(b"")
        options = ["--baseline", str(files[0]), "--write-baseline", str(files[1])]
        assert runner.invoke(cli, [*words, *options]).exit_code == 0
    assert list(load_baseline(files[0]).accepted) == ["open_sessions"]
    assert list(load_baseline(files[1]).accepted) == ["lost_lines", "open_sessions"]


def test_names_of_files_may_be_any_bytes(zeros, tmp_path):
    """A name that is no UTF-8 is in every format, and can be accepted."""
    path, _ = zeros
    (path / "rollouts" / os.fsdecode(b"\xff\x1b")).write_text("")
    report = check_run(path, only=["unexpected_files"])
    [result] = json.loads(to_sarif([report]))["runs"][0]["results"]
    assert result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] == "rollouts/%5Cudcff%1B"
    [line] = github_annotations(report)
    assert line.isprintable()
    baseline = write_baseline(tmp_path / "baseline.json", [report])
    assert check_run(path, only=["unexpected_files"], baseline=baseline).results[0].accepted == 1


def test_the_command_writes_each_format(zeros, tmp_path):
    """Text, JSON, SARIF and annotations, with the exit code of the severity that was asked for."""
    path, rollout = str(zeros[0]), zeros[1]
    with_zero = tmp_path / "zeros.json"
    runner = CliRunner()

    def run(*args, code=0):
        result = runner.invoke(cli, ["check", path, "--only", "integrity", *args])
        assert result.exit_code == code, result.output
        return result

    (zeros[0] / "rollouts" / "odd.txt").write_text("x")
    assert "unexpected_files" in run().output  # a warning
    run("--fail-on", "warning", code=1)
    run("--fail-on", "never")
    assert json.loads(run("--format", "sarif").stdout)["runs"][0]["results"][0]["ruleId"] == "unexpected_files"
    assert run("--format", "github").stdout.startswith("::warning title=rolltrace check%3A unexpected_files::")
    assert json.loads(run("--json").stdout)["ok"] is False
    run("--write-baseline", str(with_zero), "--fail-on", "warning")
    assert "1 accepted" in run("--baseline", str(with_zero), "--fail-on", "warning").output
    run("--iteration", "first", code=2)
    run("--watch", "--format", "sarif", code=2)
    assert "iteration 0" in runner.invoke(cli, ["check", path, "--iteration", "latest"]).output
    assert rollout not in run("--viewer", "http://127.0.0.1:1/#/run/a").output
