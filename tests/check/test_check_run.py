"""How audits are run: once over the records, each on its own, with findings that are bounded and can be looked up."""

import json
import math
import sys

import pytest

from rolltrace.check.audit import AuditInput, Finding, Severity, audit
from rolltrace.check.audit_registry import built_in_audits, select_audits
from rolltrace.check.audit_report import encode_report
from rolltrace.check.check_run import check_run
from rolltrace.errors import InputError, RunNotFoundError, UnknownNameError
from rolltrace.store.compression import compress_segment
from rolltrace.store.create import create_run
from rolltrace.trace.codec import utc_now
from rolltrace.trace.rollout import Header
from rolltrace.trace.rollout_builder import RolloutBuilder


class UnprintableError(Exception):
    """An error whose text raises."""

    def __str__(self):
        raise RuntimeError("no text")


OWN = """
from rolltrace.check.audit import AuditInput, Finding, Severity, audit

@audit(Severity.WARNING, "Answers must be short.", input=AuditInput.ROLLOUTS)
def long_answers(rollout):
    if len(rollout.messages) > 1:
        yield Finding("too long")
"""


def found(report):
    return {result.audit: result for result in report.with_findings}


def test_an_audit_of_ones_own_is_a_function(run):
    """A function over rollouts yields messages; which rollout each is about is filled in."""

    @audit(Severity.WARNING, "Two is not the answer.", input=AuditInput.ROLLOUTS)
    def says_two(rollout):
        if rollout.group == "c":
            yield Finding("it says 2", data={"answer": 2})

    report = check_run(run.path, add=[says_two])
    [finding] = found(report)["says_two"].findings
    record = run.records(run.rollouts)[4]
    assert (finding.rollouts, finding.address, finding.session) == (
        (record["id"],),
        "train/sums/0/c/0",
        record["session"],
    )
    assert finding.file == f"rollouts/{record['session']}-000000"
    assert finding.offset == sum(map(len, run.lines(run.rollouts)[:4]))
    assert not report.ok


def test_an_audit_may_remember(run):
    """A class is made afresh for each run, sees every rollout, and says at the end what it knows."""

    @audit(Severity.INFO, "Counts.", input=AuditInput.ROLLOUTS)
    class Counts:
        def __init__(self):
            self.seen = 0

        def __call__(self, rollout):
            self.seen += 1
            return ()

        def end(self):
            yield Finding(f"{self.seen} rollouts")

    for _ in range(2):
        [finding] = found(check_run(run.path, only=["Counts"], add=[Counts]))["Counts"].findings
        assert finding.message == "5 rollouts"


def test_an_audit_may_ask_about_the_lines(run):
    """An audit over the run can ask SQL about every line that was read, and its place."""

    @audit(Severity.INFO, "Counts.")
    def per_group(run):
        question = 'select "group", count(*) as n, min("offset") as first from rollouts group by 1 order by 1'
        for row in run.rows(question):
            yield Finding(f"{row['group']}: {row['n']}", offset=row["first"])

    findings = found(check_run(run.path, add=[per_group]))["per_group"].findings
    assert [finding.message for finding in findings] == ["a: 2", "b: 2", "c: 1"]
    assert findings[2].offset == sum(map(len, run.lines(run.rollouts)[:4]))


def test_an_audit_may_ask_the_tables(run):
    """An audit over the run can ask the same SQL as everybody."""

    @audit(Severity.INFO, "Counts.")
    def failures(run):
        for status, count in run.tables.sql("select status, count(*) from every_rollout group by 1 order by 1"):
            yield Finding(f"{status}: {count}")

    findings = found(check_run(run.path, add=[failures]))["failures"].findings
    assert [finding.message for finding in findings] == ["error: 1", "ok: 4"]


@pytest.mark.parametrize("over", AuditInput)
def test_an_audit_that_raises_is_a_finding(run, over):
    """What an audit raises is told in its result, fails the check, and stops no other audit."""

    @audit(Severity.INFO, "Broken.", input=over)
    def broken(what):
        yield Finding("one")
        raise ZeroDivisionError("by zero")

    run.forge(run.ledger, -1, dispatched=9)
    report = check_run(run.path, add=[broken])
    assert found(report).keys() == {"broken", "ledger_sums"}
    assert "ZeroDivisionError: by zero" in found(report)["broken"].error
    assert found(report)["broken"].count == 1
    assert not report.ok


def test_an_audit_that_cannot_be_made_or_ended_is_a_finding(run):
    """Nor does it matter where an audit raises."""

    @audit(Severity.INFO, "Broken.", input=AuditInput.SCORES)
    class Unmade:
        def __init__(self):
            raise OSError("no")

    @audit(Severity.INFO, "Broken.", input=AuditInput.SCORES)
    class Unended:
        def __call__(self, score):
            return ()

        def end(self):
            return 1 / 0

    errors = {result.audit: result.error for result in check_run(run.path, add=[Unmade, Unended]).with_findings}
    assert errors == {"Unmade": "OSError: no", "Unended": "ZeroDivisionError: division by zero"}


@pytest.mark.parametrize("kind", [SystemExit, UnprintableError])
def test_an_audit_may_raise_anything(run, kind):
    """An audit does not end the check with exit code 0, nor with an error that cannot be printed."""

    @audit(Severity.INFO, "Broken.", input=AuditInput.ROLLOUTS)
    def broken(rollout):
        raise kind

    [result] = check_run(run.path, only=["broken"], add=[broken]).results
    assert kind.__name__ in result.error


@pytest.mark.parametrize("wrong", [5, "text", Finding(5), Finding("text", rollouts=(1,)), Finding("text", file=3)])
def test_what_is_no_finding_is_the_audits_error(run, wrong):
    """Every format of a report relies on the types of a finding."""

    @audit(Severity.INFO, "Broken.")
    def broken(run):
        yield wrong

    [result] = check_run(run.path, only=["broken"], add=[broken]).results
    assert result.error is not None
    assert result.count == 0


def test_findings_are_counted_and_bounded(run):
    """A report holds the first findings of each audit, and says how many there are."""

    @audit(Severity.INFO, "Many.")
    def many(run):
        yield from (Finding(str(number)) for number in range(1000))

    result = found(check_run(run.path, add=[many], max_findings=3))["many"]
    assert result.count == 1000
    assert [finding.message for finding in result.findings] == ["0", "1", "2"]


def test_info_fails_nothing(run):
    """What is only worth knowing leaves the run ok."""

    @audit(Severity.INFO, "Nice.")
    def nice(run):
        yield Finding("nice")

    report = check_run(run.path, add=[nice])
    assert report.ok
    assert report.count(Severity.INFO) == 1


def test_progress_is_told(run):
    """Whoever asks is told how many rollouts were seen of how many."""
    told = []
    check_run(run.path, on_progress=lambda seen, expected: told.append((seen, expected)))
    assert told == [(1, 5)]


def test_audits_are_chosen_by_name(run):
    """`only` and `skip` take names; one that is none is refused with the nearest."""
    assert [result.audit for result in check_run(run.path, only=["damaged", "dropped"]).results] == [
        "damaged",
        "dropped",
    ]
    left = {result.audit for result in check_run(run.path, skip=["damaged"]).results}
    assert left == {one.name for one in built_in_audits()} - {"damaged"}
    for choice in ({"only": ["damagd"]}, {"skip": ["damagd"]}):
        with pytest.raises(UnknownNameError, match="Did you mean 'damaged'"):
            select_audits(**choice)


def test_names_are_unique():
    """An audit of one's own does not hide another of its name."""
    with pytest.raises(InputError, match="another 'damaged'"):
        select_audits(add=[built_in_audits()[1]])


def test_an_audit_explains_itself():
    """An audit without an explanation is not finished, and each built-in says what to make of it."""
    with pytest.raises(InputError, match="explanation"):
        audit(Severity.INFO, "")(lambda run: ())
    for one in built_in_audits():
        assert one.why.endswith("."), one.name
        assert one.fix.endswith("."), one.name
        assert one.function.__doc__, one.name


@pytest.fixture
def package(tmp_path, monkeypatch):
    """Installs a package of one module and entry points."""

    def install(name, code, points=""):
        place = tmp_path / "packages"
        info = place / f"{name}-1.0.dist-info"
        info.mkdir(parents=True)
        (place / f"{name}.py").write_text(code)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[rolltrace.checks]\n{points}")
        monkeypatch.syspath_prepend(str(place))
        monkeypatch.delitem(sys.modules, name, raising=False)

    return install


def test_an_audit_is_named_by_module(run, package):
    """Any importable audit can be added by its name."""
    package("check_own", OWN)
    report = check_run(run.path, add=["check_own:long_answers"])
    assert found(report)["long_answers"].count == 5
    with pytest.raises(InputError, match="to be an audit"):
        select_audits(add=["check_own:AuditInput"])


def test_packages_add_audits(run, package):
    """An audit that a package adds is run like a built-in."""
    package("check_added", OWN, "mine = check_added:long_answers\n")
    assert found(check_run(run.path))["long_answers"].count == 5


@pytest.mark.parametrize("code", ["1 / 0", OWN.replace("long_answers", "damaged")])
def test_a_broken_package_is_a_finding(run, package, code):
    """An audit that cannot be imported, or takes a name that is taken, is told of, and stops no other."""
    package("check_broken", code, "mine = check_broken:damaged\n")
    report = check_run(run.path)
    [result] = report.with_findings
    assert result.error is not None
    assert len(report.results) == len(built_in_audits()) + 1


def test_a_sealed_run_is_checked_alike(run):
    """Sealing changes nothing for an audit, and one that was interrupted is worth knowing."""
    plain = run.rollouts
    data = plain.read_bytes()
    compress_segment(plain)
    report = check_run(run.path)
    assert report.with_findings == []
    assert report.rollouts == 5
    plain.write_bytes(data)
    report = check_run(run.path)
    assert [result.audit for result in report.with_findings] == ["compressed_twice"]
    assert report.ok


def test_damage_in_a_sealed_file_is_found(run):
    """A flipped bit of compressed bytes is damage, and costs at most its file."""
    sealed = compress_segment(run.rollouts)
    data = bytearray(sealed.read_bytes())
    data[len(data) // 3] ^= 1
    sealed.write_bytes(data)
    assert {"damaged", "lost_lines"} <= found(check_run(run.path)).keys()


def test_a_run_that_is_being_written_is_no_fault(tmp_path):
    """While a writer is at work, members that still play, and grades that are to come, are not missed."""
    with create_run(tmp_path / "live") as writer:
        rollout_builder: RolloutBuilder = writer.begin(
            Header(
                id="one", run=writer.run, session=writer.session, env="e", task="t", group="g", index=1,
                started_at=utc_now(),
            )
        )  # fmt: skip
        writer.flush()
        assert found(check_run(tmp_path / "live")).keys() == {"unfinished_rollouts", "open_sessions"}
        outcome = {
            "ended_at": utc_now(), "status": "ok", "stop_reason": "completed", "stopped_by": "env", "error": None,
            "reward": None, "reward_so_far": 0.0, "unclamped_reward": None,
        }  # fmt: skip
        writer.end(rollout_builder, outcome)
        writer.flush()
        report = check_run(tmp_path / "live")
        assert found(report).keys() == {"open_sessions"}
        assert report.ok
    assert found(check_run(tmp_path / "live")).keys() == {"index_gaps", "reward_missing"}


def test_numbers_of_any_size_are_compared(run):
    """Integers that no database holds are no reason for an audit to fail."""
    run.forge(run.rollouts, 4, iteration=2**80)
    report = check_run(run.path)
    assert report.with_findings == []
    run.repeat(run.rollouts, 4, id="another")
    assert "duplicate_identity" in found(check_run(run.path))


def test_a_report_is_strict_json(run):
    """A program can read a report, NaN in its evidence and all."""

    @audit(Severity.INFO, "Odd.")
    def odd(run):
        yield Finding("odd", data={"value": math.nan, "text": "\x1b[2J", "bytes": b"1"})

    def refuse(constant):
        raise AssertionError(constant)

    run.forge(run.rollouts, 3, reward="NaN")
    told = json.loads(encode_report(check_run(run.path, add=[odd])), parse_constant=refuse)
    assert told.keys() == {
        "path", "run", "iteration", "rollouts", "scores", "sessions", "files", "bytes", "seconds", "results", "ok",
    }  # fmt: skip
    assert told["ok"] is False
    assert len(told["results"]) == len(built_in_audits()) + 1
    assert told["results"][0].keys() == {
        "audit", "family", "severity", "why", "fix", "count", "findings", "accepted", "note", "error",
    }  # fmt: skip
    [finding] = told["results"][-1]["findings"]
    assert finding.keys() == {
        "message", "rollouts", "address", "subject", "session", "file", "offset", "data",
    }  # fmt: skip
    assert finding["data"]["value"] == {"$float": "NaN"}


def test_a_place_without_a_run_is_refused(tmp_path):
    """There is nothing to check where there is no run."""
    with pytest.raises(RunNotFoundError):
        check_run(tmp_path)
