"""Running, complete, interrupted or died: every reader reports the same state."""

import json
from datetime import UTC, datetime, timedelta

import pytest
from click.testing import CliRunner
from msgspec.structs import replace

from answers import score, write
from rolltrace.check.check_run import check_run
from rolltrace.cli.app import cli
from rolltrace.errors import InputError
from rolltrace.jobs.play import play
from rolltrace.query.compact import compact
from rolltrace.query.run import open_run
from rolltrace.query.run_state import RunState, run_state
from rolltrace.store.create import create_run
from rolltrace.store.ledger import Ledger, decode_ledger, encode_ledger
from rolltrace.trace.failure import INTERRUPTED, Failure
from rolltrace.trace.stop_reasons import Layer, Status
from run_states import states
from segments import edit_run_info

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)


def session(start, end, *, closed=True, recorded=0, continues=None):
    """The last ledger of a session that lasted between these seconds before now."""
    begun = int((NOW - timedelta(seconds=start)).timestamp() * 1000)
    return Ledger(
        run="r", session=f"{begun:012x}{0:020x}", written_at=NOW - timedelta(seconds=end), closed=closed,
        recorded=recorded, continues=continues,
    )  # fmt: skip


CLOSED = session(900, 800)
DEAD = session(900, 31, closed=False)
ALIVE = session(900, 29, closed=False)


@pytest.mark.parametrize(
    ("ledgers", "planned", "finished", "state"),
    [
        ([], None, None, RunState.UNKNOWN),
        ([CLOSED], None, 0, RunState.COMPLETE),
        ([CLOSED], 1200, 64, RunState.INTERRUPTED),
        ([CLOSED], 1200, 1200, RunState.COMPLETE),
        ([replace(CLOSED, recorded=64)], 1200, None, RunState.INTERRUPTED),
        ([replace(CLOSED, recorded=1200)], 1200, None, RunState.COMPLETE),
        ([ALIVE], 1200, 64, RunState.RUNNING),
        ([DEAD], 1200, 64, RunState.DIED),
        ([DEAD], None, 64, RunState.DIED),
        ([CLOSED, DEAD, ALIVE], 1200, 64, RunState.RUNNING),
        ([CLOSED, DEAD], 1200, 1200, RunState.DIED),
        ([DEAD, session(20, 10)], 1200, 1200, RunState.COMPLETE),
        ([DEAD, session(20, 10)], 1200, 64, RunState.INTERRUPTED),
        ([DEAD, session(500, 10)], 1200, 64, RunState.DIED),
        ([DEAD, session(500, 10, continues=(DEAD.session,))], 1200, 1200, RunState.COMPLETE),
        ([session(900, -3600, closed=False)], None, 0, RunState.RUNNING),
        ([ALIVE, session(20, 10, continues=(ALIVE.session,))], 1200, 1200, RunState.COMPLETE),
        ([ALIVE, session(20, 10, continues=(ALIVE.session,))], 1200, 64, RunState.INTERRUPTED),
        ([ALIVE, session(20, 10, closed=False, continues=(ALIVE.session,))], 1200, 64, RunState.RUNNING),
        ([ALIVE, session(20, 10, continues=())], 1200, 1200, RunState.RUNNING),
    ],
)
def test_state_of_a_run(ledgers, planned, finished, state):
    """A running session makes a run running; a dead one that was not continued, died; otherwise the plan decides."""
    assert run_state(ledgers, planned, finished, NOW) is state


def test_run_that_was_stopped_early_is_interrupted(path):
    """A run with 64 of 1,200 planned rollouts is interrupted, for every reader."""
    with create_run(path, planned=1200) as writer:
        for index in range(64):
            write(writer, index=index)
    assert states(path) == "interrupted"
    shown = CliRunner().invoke(cli, ["summary", str(path)]).stdout
    assert "interrupted · 64 of 1,200 planned" in shown
    [result] = check_run(path, only=["interrupted_run"]).results
    assert [finding.data for finding in result.findings] == [{"planned": 1200, "finished": 64}]


def test_cancelled_and_retried_rollouts_do_not_count(path):
    """Lines of cancelled rollouts and of earlier attempts do not complete a plan."""
    with create_run(path, planned=2) as writer:
        write(writer)
        write(writer, index=1, status=Status.CANCELLED, reward=None)
        write(writer, index=2, attempt=0, status=Status.ERROR, reward=None)
    with open_run(path) as run:
        assert run.sql("select state, planned from runs").fetchall() == [("complete", 2)]
    with create_run(path.parent / "other", planned=3) as writer:
        write(writer)
        write(writer, index=1, status=Status.CANCELLED, reward=None)
        write(writer, index=2, attempt=0)
        write(writer, index=2, attempt=1)
    assert states(path.parent / "other") == "interrupted"


def test_run_that_was_played_to_its_end_is_complete(path):
    """`play` records its plan; a run with all of it is complete, and one without is interrupted."""
    play("arithmetic", "scripted:noisy", out=path, groups=2, group_size=2)
    assert states(path) == "complete"
    assert json.loads((path / "run.json").read_text())["planned"] == 4
    edit_run_info(path, planned=600)
    assert states(path) == "interrupted"


def test_no_plan_is_read_from_the_config(path):
    """The config of a user's own loop is not a plan, even if it has the names of `play`'s options."""
    with create_run(path, config={"iterations": 1000, "groups": 8, "group_size": 4}) as writer:
        write(writer)
    assert states(path) == "complete"
    with open_run(path) as run:
        assert run.sql("select planned from runs").fetchall() == [(None,)]


def test_games_are_counted_in_episodes(path):
    """A game of two seats is one episode of the plan."""
    with create_run(path, planned=2) as writer:
        for index in range(4):
            write(writer, index=index, episode=index // 2, seat=index % 2)
    assert states(path) == "complete"


def test_an_aborted_episode_is_finished(path):
    """An episode that was aborted because a seat failed is finished, whichever seat that was."""
    with create_run(path, planned=1) as writer:
        write(writer, index=0, episode=0, seat=0, status=Status.CANCELLED, stop_reason="episode_aborted", reward=None)
        write(writer, index=1, episode=0, seat=1, status=Status.ERROR, stop_reason="error", reward=None)
    assert states(path) == "complete"


INTERRUPTED_GRADING = Failure(Layer.RUNNER, INTERRUPTED, "the group was not graded because of CancelledError")
FAILED_GRADING = Failure(Layer.GRADER, "ValueError", "no verdict")


@pytest.mark.parametrize(
    ("errors", "state"),
    [
        ([], "complete"),
        ([FAILED_GRADING], "complete"),
        ([INTERRUPTED_GRADING], "interrupted"),
        ([INTERRUPTED_GRADING, FAILED_GRADING], "complete"),
    ],
)
def test_an_episode_whose_grading_was_interrupted_is_not_finished(path, errors, state):
    """A null reward is a result if a user's loop recorded it or grading failed, but not if grading was interrupted."""
    with create_run(path, planned=2) as writer:
        write(writer)
        rollout = write(writer, index=1, reward=None)
        for error in errors:
            score(writer, rollout, None, error=error)
    assert states(path) == state
    compact(path)
    assert states(path) == state
    with create_run(path, join=True) as later:
        score(later, rollout, 1.0)
    assert states(path) == "complete"


def append(path, ledger):
    """Appends a line to a session's ledger."""
    with (path / "ledger" / f"{ledger.session}.jsonl").open("ab") as file:
        file.write(encode_ledger(ledger))


def last(path):
    """The last line of the run's only ledger."""
    [file] = (path / "ledger").iterdir()
    return decode_ledger(file.read_bytes().splitlines(keepends=True)[-1])


def test_session_that_falls_silent_died(path):
    """An open session is running; half a minute after its last line it has died, and `check` fails."""
    with create_run(path, planned=2) as writer:
        write(writer)
        writer.flush()
        assert states(path) == "running"
        assert check_run(path, only=["dead_sessions"]).ok
    closed = last(path)
    append(path, replace(closed, closed=False, written_at=closed.written_at - timedelta(seconds=31)))
    assert states(path) == "died"
    assert not check_run(path, only=["dead_sessions"]).ok
    with create_run(path, join=True, continues=[writer.session]) as second:
        write(second, index=1)
    assert states(path) == "complete"
    assert check_run(path, only=["dead_sessions", "interrupted_run"]).ok


@pytest.mark.parametrize("planned", [0, -1, 1.5, True, "many"])
def test_plan_is_a_number_of_rollouts(path, planned):
    """A plan that is no number of rollouts is refused, and no run is created."""
    with pytest.raises(InputError, match="Expected planned= to be a number of rollouts"):
        create_run(path, planned=planned)
    assert not path.exists()
