"""What is checked, and how strictly: settings, thresholds, families and single iterations."""

import pytest

from rolltrace.check.audit import AuditInput, Finding, Severity, Threshold, audit
from rolltrace.check.audit_registry import built_in_audits, select_audits
from rolltrace.check.audit_tables import scope_address
from rolltrace.check.check_run import IterationChecker, check_run
from rolltrace.check.settings import CheckSettings, load_settings
from rolltrace.errors import InputError, UnknownNameError
from rolltrace.store.create import create_run


@audit(
    Severity.WARNING, "Rewards are high.", "Lower them.", input=AuditInput.TABLES,
    threshold=Threshold(0.5, "As an example.", min_sample=3),
)  # fmt: skip
def high_rewards(tables):
    """Rewards are low."""
    question = (
        "with them as (from rollouts where reward is not null) select split, env, count(*) as n, avg(reward) as mean"
    )
    for row in tables.rows(f"{question}, list(id order by id) as ids from them group by all"):
        if tables.is_enough(row["n"]) and row["mean"] > tables.threshold:
            yield Finding(f"the mean is {row['mean']}", tuple(row["ids"]), scope_address(row), data={"n": row["n"]})


def outcome(report):
    [result] = report.results
    return result


def run_check(run, **settings):
    return outcome(check_run(run, only=["high_rewards"], add=[high_rewards], settings=CheckSettings(**settings)))


def test_an_audit_of_tables_sees_the_rollouts_that_count(sound_run):
    """Retried attempts are left out, late rewards are in."""
    result = run_check(sound_run)
    [finding] = result.findings
    assert finding.data == {"n": 4}  # five, of which one was retried
    assert finding.address == "train/sums"
    assert result.note is None


def test_thresholds_and_samples_come_from_a_file(sound_run, tmp_path):
    """A higher threshold finds nothing; a larger sample says that there is too little data."""
    file = tmp_path / "check.toml"
    for text, count, note in (
        ("threshold = 2", 0, None),
        ("min_sample = 5", 0, "too little data: 4 rollouts, at least 5 needed"),
        ("threshold = 0.9\nmin_sample = 4", 1, None),
    ):
        file.write_text(f"[audits.high_rewards]\n{text}\n")
        result = outcome(check_run(sound_run, only=["high_rewards"], add=[high_rewards], settings=file))
        assert (result.count, result.note) == (count, note)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[audits.damaged]\nthreshold = 1", "has no threshold"),
        ("[audits.damged]\nthreshold = 1", "Did you mean 'damaged'"),
        ("skip = ['damged']", "Did you mean 'damaged'"),
        ("treshold = 1", "unknown field `treshold`"),
        ("fail_on = 'fatal'", "fatal"),
        ("reward_range = {sums = [1, 0]}", "from low to high"),
        ("[audits.truncated_responses]\nthreshold = nan", "finite threshold"),
        ("[audits.truncated_responses]\nmin_sample = -1", ">= 0"),
        ("only = [", "check.toml"),
        ("\x00", "check.toml"),
    ],
)
def test_wrong_settings_are_refused(tmp_path, text, message):
    """A setting that has no effect would be a check that passes for the wrong reason."""
    file = tmp_path / "check.toml"
    file.write_text(text)
    with pytest.raises(InputError, match=message):
        select_audits(settings=load_settings(file))


def test_a_file_that_is_missing_is_an_error(tmp_path):
    """It is not taken for one without settings."""
    with pytest.raises(InputError, match=r"none\.toml"):
        check_run(tmp_path, settings=tmp_path / "none.toml")


def test_families_are_chosen_like_audits():
    """A family stands for all of its audits, on both sides."""
    names = {one.name for one in select_audits(only=["reward"])}
    assert "reward_parts" in names
    assert "damaged" not in names
    assert {one.name for one in select_audits(only=["reward"], skip=["reward_parts"])} == names - {"reward_parts"}
    assert not {one.name for one in select_audits(skip=["reward"])} & names
    with pytest.raises(UnknownNameError):
        select_audits(only=["rewardd"])


def test_only_audits_of_tables_have_thresholds():
    """The others are not called with one."""
    with pytest.raises(InputError, match="no threshold"):
        audit(Severity.WARNING, "Why.", threshold=Threshold(1, ""), input=AuditInput.ROLLOUTS)(lambda rollout: ())


def test_one_iteration_is_checked_by_itself(tmp_path):
    """Each check sees the iteration as it is recorded by then, and nothing of the others."""

    @audit(Severity.INFO, "Counts.", input=AuditInput.ROLLOUTS)
    def each(rollout):
        yield Finding("here")

    def play(run, iteration, reward):
        rollout = run.rollout(env="sums", task="t", group="a", index=0, iteration=iteration)
        rollout.step([{"role": "user", "content": "1 + 1?"}], "2", reward=reward)
        rollout.end()
        run.flush()
        return rollout.id

    settings = CheckSettings(audits={})
    with create_run(tmp_path / "run") as run:
        first = play(run, 0, 1.0)
        with IterationChecker(
            run.path, only=["high_rewards", "each"], add=[high_rewards, each], settings=settings
        ) as checker:
            report = checker.check()
            assert (report.iteration, report.rollouts) == (0, 1)
            second = play(run, 1, 0.0)
            reports = {number: checker.check(number) for number in (None, 0, 7)}
    assert (reports[None].iteration, reports[7].rollouts) == (1, 0)
    for number, rollout in ((None, second), (0, first)):
        notes, counts = reports[number].results
        assert notes.note == "too little data: 1 rollouts, at least 3 needed"
        assert [one.rollouts for one in counts.findings] == [(rollout,)]


def test_failing_depends_on_the_severity(sound_run):
    """A warning fails a check only if asked to."""
    report = check_run(sound_run, only=["high_rewards"], add=[high_rewards])
    assert report.fails(Severity.WARNING)
    assert report.fails(Severity.INFO)
    assert not report.fails(Severity.ERROR)


def test_thresholds_are_seldom_passed_by_chance():
    """At the smallest sample, a share that need not be reported is beyond the threshold in less than 1 of 50 checks."""
    chances = {one.name: one.threshold.chance for one in built_in_audits() if one.threshold is not None}
    known = {name: chance for name, chance in chances.items() if chance is not None}
    assert len(known) >= 20
    assert not {name: chance for name, chance in known.items() if not 0 < chance < 0.02}
    assert Threshold(0.4, "", min_sample=2, usual_share=0.5).chance == 0.75  # one or two of two
