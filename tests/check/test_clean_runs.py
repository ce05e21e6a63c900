"""No audit finds an error in runs that have nothing wrong."""

from rolltrace.check.audit import Severity
from rolltrace.check.check_run import check_run
from rolltrace.envs.registry import BUILT_IN
from seeded_runs import SeededRun, assert_clean, play_clean


def test_a_run_of_the_real_runner_is_clean(seeded: SeededRun):
    """Answers, tools, guesses, a rubric and preferences, in three iterations."""
    assert_clean(seeded.check())


def test_no_built_in_env_has_an_error(tmp_path):
    """Warnings may be right: `docs/checks.md` explains them."""
    run = play_clean(tmp_path / "run", {name: {} for name in sorted(BUILT_IN)}, iterations=4, groups=16)
    report = check_run(run)
    assert not report.fails(Severity.ERROR)
    warned = {result.audit for result in report.with_findings if result.severity is Severity.WARNING}
    assert warned <= {
        "constant_reward", "groups_without_signal", "same_task_twice", "small_effective_batch", "tasks_never_solved",
    }  # fmt: skip
