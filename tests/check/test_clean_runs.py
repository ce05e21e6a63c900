"""No audit finds an error in runs that have nothing wrong, and the documentation explains the warnings."""

from rolltrace.envs.registry import BUILT_IN
from seeded_runs import play_clean
from unexplained_findings import assert_explained

SCRIPTED = {
    "constant_reward", "groups_without_signal", "same_task_twice", "small_effective_batch", "tasks_never_solved",
}  # fmt: skip


def test_the_built_in_envs(tmp_path):
    """Played by a script, with enough rollouts for most audits."""
    run = play_clean(tmp_path / "run", {name: {} for name in sorted(BUILT_IN)}, iterations=4, groups=16)
    assert_explained(run, SCRIPTED)
