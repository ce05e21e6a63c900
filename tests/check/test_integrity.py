"""Each audit finds its fault, made by hand in the bytes of a real run; and nothing is found where nothing is wrong."""

import ast
import os
from collections.abc import Callable, Set
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from msgspec.structs import fields

from rolltrace.check.audit import Severity
from rolltrace.check.audit_registry import built_in_audits
from rolltrace.check.check_run import check_run
from rolltrace.store.compression import compress_segment
from rolltrace.store.create import create_run
from rolltrace.store.ledger import Ledger
from rolltrace.trace.codec import utc_now
from rolltrace.trace.field_types import Counts
from seeded_runs import found
from segments import edit_run_info

# Each fault is one function that is handed the run.


def lose_scores_folder(run):
    run.scores.unlink()
    (run.path / "scores").rmdir()


def flip_a_bit(run):
    data = bytearray(run.rollouts.read_bytes())
    data[data.index(b"1 + 1?")] ^= 1
    run.rollouts.write_bytes(data)


def garble_a_score(run):
    data = bytearray(run.scores.read_bytes())
    data[data.index(b"1.25")] ^= 1
    run.scores.write_bytes(data)


def write_no_record(run):
    run.forge(run.rollouts, 4, status="splendid")


def tear_the_end(run):
    run.rollouts.write_bytes(run.rollouts.read_bytes() + run.lines(run.rollouts)[0][:-40])


def cut_the_last_line(run):
    run.rollouts.write_bytes(run.rollouts.read_bytes()[:-5])


def write_a_newer_version(run):
    run.forge(run.rollouts, 4, v=99, brand_new=True)


def lose_the_first_file(run):
    run.rollouts.rename(run.rollouts.with_name(run.rollouts.name.replace("-000000", "-000002")))


def put_notes_beside(run):
    (run.path / "rollouts" / "notes.txt").write_text("mine")


def make_a_folder_of_a_name(run):
    (run.path / "rollouts" / "someone-000000.jsonl").mkdir()


def compress_beside(run):
    plain = run.rollouts.read_bytes()
    sealed = compress_segment(run.rollouts)
    sealed.with_name(sealed.name.removesuffix(".zst")).write_bytes(plain)


def leave_a_temporary_file(run):
    (run.path / "rollouts" / ".someone-000000.jsonl.zst.1").write_bytes(b"half")


def break_the_sum(run):
    run.forge(run.ledger, -1, dispatched=9)


def delete_lines(run):
    run.rollouts.write_bytes(b"".join(run.lines(run.rollouts)[:4]))


def hide_a_loss_behind_a_copy(run):
    lines = run.lines(run.rollouts)
    run.rollouts.write_bytes(b"".join([lines[0], lines[0], *lines[2:]]))


def hide_a_loss_behind_another_file(run):
    lines = run.lines(run.rollouts)
    copy = run.rollouts.with_name(run.rollouts.name.replace("-000000", "-000001"))
    run.rollouts.write_bytes(b"".join([lines[0], *lines[2:]]))
    copy.write_bytes(lines[0])


def delete_scores(run):
    run.scores.write_bytes(run.lines(run.scores)[0])


def delete_all_files_of_a_session(run):
    run.rollouts.unlink()
    run.scores.unlink()


def count_too_few(run):
    run.forge(run.ledger, -1, dispatched=4, recorded=4)


def drop_some(run):
    run.forge(run.ledger, -1, dispatched=8, dropped={"ENOSPC": 3})


def drop_scores(run):
    run.forge(run.ledger, -1, scores_dropped={"ENOSPC": 3})


def drop_blobs(run):
    run.forge(run.ledger, -1, blobs_dropped={"ENOSPC": 3})


def drop_texts(run):
    run.forge(run.ledger, -1, redaction_failed={"ValueError": 3})


def miss_a_sync(run):
    run.forge(run.ledger, -1, sync_failed={"EIO": 1})


def spoil_an_old_line_of_the_ledger(run):
    lines = run.lines(run.ledger)
    run.ledger.write_bytes(b"".join([b"garbage\n", *lines]))


def refuse_some(run):
    run.forge(run.ledger, -1, dispatched=6, unrecordable={"not one line": 1})


def now():
    """The moment at which a session that still runs last wrote its ledger."""
    return utc_now().isoformat()


def die_in_flight(run):
    run.forge(run.ledger, -1, dispatched=7, in_flight=2, closed=False, written_at=now())


def close_in_flight(run):
    run.forge(run.ledger, -1, dispatched=7, in_flight=2)


def never_close(run):
    run.forge(run.ledger, -1, closed=False, written_at=now())


def lose_the_ledger(run):
    run.ledger.unlink()
    for file in (run.rollouts, run.scores):
        os.utime(file, (1e9, 1e9))


def repeat_a_rollout(run):
    run.repeat(run.rollouts, 0)


def repeat_a_score(run):
    run.repeat(run.scores, 0)


def play_the_same_twice(run):
    run.repeat(run.rollouts, 0, id="another")


def fall_silent(run):
    run.forge(run.ledger, -1, closed=False, written_at="2026-01-01T00:00:00Z")


def plan_more(run):
    edit_run_info(run.path, planned=1_000)


def work_at_once(run):
    """The same place, in a later session that began before the other ended."""
    run.repeat(run.rollouts, 0, id="another", session="zz")


def share_the_attempts(run):
    """A retry that a later session played, when the other had long ended."""
    run.repeat(
        run.rollouts, 0, id="another", session="zz", attempt=1,
        started_at="2099-01-01T00:00:00Z", ended_at="2099-01-01T00:00:01Z",
    )  # fmt: skip


def name_another_run(run):
    run.forge(run.rollouts, 0, run="another")


def score_another_run(run):
    run.forge(run.scores, 1, run="another")


def keep_books_of_another_run(run):
    run.forge(run.ledger, -1, run="another")


def lose_the_first_attempt(run):
    run.remove(run.rollouts, 2)


def lose_a_member(run):
    run.remove(run.rollouts, 0)


def number_a_member_below_zero(run):
    run.repeat(run.rollouts, 0, id="another", index=-1)


def miscount_the_steps(run):
    run.forge(run.rollouts, 3, reward=2.0, reward_so_far=2.0)


def leave_out_the_grade(run):
    run.forge(run.rollouts, 0, reward=1.0, reward_so_far=1.0)


def reward_something_else(run):
    run.forge(run.rollouts, 3, reward=2.0)


def clamp_wrongly(run):
    run.forge(run.rollouts, 1, unclamped_reward=3.0)


def clamp_above_zero(run):
    run.forge(run.rollouts, 1, reward=0.5)


def clamp_nothing(run):
    run.forge(run.rollouts, 4, unclamped_reward=1.0)


def reward_a_failure(run):
    run.forge(run.rollouts, 2, reward=0.0)


def never_grade(run):
    run.remove(run.scores, 0)


def grade_without_adding_up(run):
    run.forge(run.scores, 0, value=9.0)


def grade_clamped_above_zero(run):
    run.forge(run.scores, 0, lambda score: score["data"].update(unclamped_reward=1.25))


def grade_on_another_sum(run):
    run.forge(run.scores, 0, lambda score: score["data"].update(reward_so_far=2.0), value=2.25)


def reward_nan(run):
    def change(rollout):
        rollout.update(reward="NaN", reward_so_far="NaN")
        rollout["steps"][0]["reward"] = "NaN"

    run.forge(run.rollouts, 3, change)


def env_reward_infinite(run):
    run.forge(run.rollouts, 3, lambda rollout: rollout["steps"][0].update(env_reward="-Infinity"))


def grade_nan(run):
    def change(rollout):
        rollout.update(reward="NaN", reward_so_far="NaN")
        rollout["grade"]["reward"] = "NaN"

    run.forge(run.rollouts, 0, change)


def number_behind_a_reward_nan(run):
    run.forge(run.rollouts, 3, lambda rollout: rollout["steps"][0]["reward_data"].update(correct="Infinity"))


def number_behind_a_grade_nan(run):
    run.forge(run.rollouts, 0, lambda rollout: rollout["grade"]["reward_data"].update(style="NaN"))


def score_nan(run):
    run.forge(run.scores, 1, value="NaN")


def score_a_stranger(run):
    run.forge(run.scores, 1, group=None, rollout="nobody")


def score_a_strange_group(run):
    run.forge(run.scores, 1, lambda score: score["group"].update(iteration=7))


def quote_a_stranger(run):
    call = {"role": "grader", "policy": "judge", "prompt": [{"role": "user", "content": ""}]}
    run.forge(
        run.scores,
        1,
        calls=[{**call, "quotes": [{"prompt_index": 0, "offset": 0, "rollout": "nobody", "message_index": 1}]}],
    )


def score_nothing(run):
    run.forge(run.scores, 1, group=None)


def score_two_things(run):
    run.forge(run.scores, 1, rollout=run.records(run.rollouts)[0]["id"])


def score_null(run):
    run.forge(run.scores, 1, value=None)


def score_failed(run):
    failure = {"layer": "grader", "type": "ValueError", "message": "no", "traceback": ""}
    run.forge(run.scores, 1, value=None, error=failure)


def lose_a_blob(run):
    for blob in (run.path / "blobs").iterdir():
        blob.unlink()


def change_a_blob(run):
    for blob in (run.path / "blobs").iterdir():
        blob.write_bytes(b"another picture")


class Fault(NamedTuple):
    """One thing that is wrong, and who finds it."""

    make: Callable[[Any], object]
    audit: str
    about: tuple[int | str, ...] = ()
    """The rollouts that the audit names, by the numbers of their lines before, or by id."""
    also: Set[str] = frozenset()
    """Audits that find what follows from it."""


FAULTS = [
    Fault(lose_scores_folder, "missing_folders", also={"lost_lines", "reward_missing"}),
    Fault(flip_a_bit, "damaged", also={"lost_lines", "index_gaps"}),
    Fault(garble_a_score, "damaged", also={"lost_lines", "reward_missing"}),
    Fault(write_no_record, "damaged", also={"lost_lines", "unknown_rollout"}),
    Fault(tear_the_end, "truncated_files"),
    Fault(cut_the_last_line, "truncated_files", also={"lost_lines", "unknown_rollout"}),
    Fault(write_a_newer_version, "newer_version", also={"unknown_rollout"}),
    Fault(lose_the_first_file, "missing_segments"),
    Fault(put_notes_beside, "unexpected_files"),
    Fault(make_a_folder_of_a_name, "damaged"),
    Fault(compress_beside, "compressed_twice"),
    Fault(leave_a_temporary_file, "leftovers"),
    Fault(break_the_sum, "ledger_sums"),
    Fault(delete_lines, "lost_lines", also={"unknown_rollout"}),
    Fault(hide_a_loss_behind_a_copy, "lost_lines", also={"duplicate_id"}),
    Fault(hide_a_loss_behind_another_file, "lost_lines", also={"duplicate_id"}),
    Fault(delete_scores, "lost_lines"),
    Fault(delete_all_files_of_a_session, "lost_lines"),
    Fault(count_too_few, "uncounted_lines"),
    Fault(drop_some, "dropped"),
    Fault(drop_scores, "dropped"),
    Fault(drop_blobs, "dropped"),
    Fault(drop_texts, "dropped"),
    Fault(refuse_some, "dropped"),
    Fault(miss_a_sync, "dropped"),
    Fault(spoil_an_old_line_of_the_ledger, "damaged"),
    Fault(die_in_flight, "unfinished_rollouts", also={"open_sessions"}),
    Fault(close_in_flight, "unfinished_rollouts"),
    Fault(never_close, "open_sessions"),
    Fault(fall_silent, "dead_sessions"),
    Fault(plan_more, "interrupted_run"),
    Fault(lose_the_ledger, "missing_ledgers"),
    Fault(repeat_a_rollout, "duplicate_id", (0,), also={"lost_lines"}),
    Fault(repeat_a_score, "duplicate_id", (4,)),
    Fault(play_the_same_twice, "duplicate_identity", (0, "another")),
    Fault(work_at_once, "colliding_sessions", (0, "another")),
    Fault(share_the_attempts, "split_attempts", (0, "another")),
    Fault(name_another_run, "foreign_records", (0,)),
    Fault(score_another_run, "foreign_records"),
    Fault(keep_books_of_another_run, "foreign_records"),
    Fault(lose_the_first_attempt, "attempt_gaps", (3,)),
    Fault(lose_a_member, "index_gaps", (1,)),
    Fault(number_a_member_below_zero, "index_gaps", (0, 1, "another")),
    Fault(miscount_the_steps, "reward_parts", (3,)),
    Fault(leave_out_the_grade, "reward_parts", (0,)),
    Fault(reward_something_else, "reward_total", (3,)),
    Fault(clamp_wrongly, "reward_total", (1,)),
    Fault(clamp_above_zero, "reward_total", (1,)),
    Fault(clamp_nothing, "reward_total", (4,)),
    Fault(reward_a_failure, "reward_on_failed_rollout", (2,)),
    Fault(never_grade, "reward_missing", (4,)),
    Fault(grade_without_adding_up, "group_reward", (4,)),
    Fault(grade_clamped_above_zero, "group_reward", (4,)),
    Fault(grade_on_another_sum, "group_reward_base", (4,)),
    Fault(reward_nan, "non_finite_reward", (3,)),
    Fault(env_reward_infinite, "non_finite_reward", (3,)),
    Fault(grade_nan, "non_finite_reward", (0,)),
    Fault(number_behind_a_reward_nan, "non_finite_data", (3,)),
    Fault(number_behind_a_grade_nan, "non_finite_data", (0,)),
    Fault(score_nan, "non_finite_score"),
    Fault(score_a_stranger, "unknown_rollout", ("nobody",)),
    Fault(score_a_strange_group, "unknown_group"),
    Fault(quote_a_stranger, "unknown_quotes"),
    Fault(score_nothing, "score_without_target"),
    Fault(score_two_things, "score_without_target", (0,)),
    Fault(score_null, "failed_score"),
    Fault(score_failed, "failed_score"),
    Fault(lose_a_blob, "missing_blobs", (0,)),
    Fault(change_a_blob, "damaged_blobs", (0,)),
]


def test_a_run_with_nothing_wrong(run):
    """Retries, clamped rewards, late grades and pictures are nothing to complain of."""
    report = check_run(run.path)
    assert report.ok
    assert report.with_findings == []
    assert (report.rollouts, report.scores, report.sessions) == (5, 2, 1)
    assert report.files == 4
    assert {result.audit for result in report.results} == {audit.name for audit in built_in_audits()}


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.make.__name__)
def test_a_fault_is_found(run, fault):
    """The audit of this fault finds it and names its rollouts; others find only what follows from it."""
    ids = [record["id"] for record in run.records(run.rollouts)]
    fault.make(run)
    report = check_run(run.path)
    names = found(report)
    assert names.keys() == {fault.audit, *fault.also}
    assert names[fault.audit] == {ids[one] if isinstance(one, int) else one for one in fault.about}
    severities = {audit.name: audit.severity for audit in built_in_audits()}
    assert report.ok == all(severities[name] is Severity.INFO for name in names)


def test_a_session_that_has_just_begun_has_no_ledger_yet(run):
    """The first ledger comes within a second, and until then nobody misses it, or members that still play."""
    run.remove(run.rollouts, 0)
    run.ledger.unlink()
    assert check_run(run.path).with_findings == []


def never_begin(rollout):
    """As after a first prompt that did not fit, when all there is is the charge for that."""
    rollout.update(steps=[], reward=-0.1, reward_so_far=-0.1, stop_reason="context_overflow", stopped_by="runner")


def test_the_charge_for_a_first_prompt_that_did_not_fit_is_in_no_step(run):
    """It is the one reward without a part; any other is a mistake."""
    run.forge(run.rollouts, 3, never_begin)
    assert check_run(run.path).with_findings == []
    run.forge(run.rollouts, 3, stop_reason="timeout")
    assert [result.audit for result in check_run(run.path).with_findings] == ["reward_parts"]


@pytest.mark.parametrize("error", [4e-7, -4e-7])
def test_rounding_is_no_mistake(run, error):
    """A loop that adds in 32 bits is off by less than what is worth a word."""
    run.forge(run.rollouts, 3, reward=1.0 + error, reward_so_far=1.0 - error)
    assert check_run(run.path).with_findings == []
    run.forge(run.rollouts, 3, reward=1.0 + 10 * error, reward_so_far=1.0 - 10 * error)
    assert {result.audit for result in check_run(run.path).with_findings} == {"reward_parts", "reward_total"}


def test_a_score_is_told_with_what_it_is_about(run):
    """A score of a group is found by the group, one of a rollout by the rollout, and both by their bytes."""
    lines = run.lines(run.scores)
    score_a_strange_group(run)
    [finding] = check_run(run.path, only=["unknown_group"]).with_findings[0].findings
    assert (finding.rollouts, finding.address) == ((), "train/sums/7/a")
    assert finding.offset == len(lines[0])
    score_a_stranger(run)
    [finding] = check_run(run.path, only=["unknown_rollout"]).with_findings[0].findings
    assert (finding.rollouts, finding.address, finding.data["name"]) == (("nobody",), None, "spread")


@pytest.mark.parametrize("name", [field.name for field in fields(Ledger) if field.type == Counts])
def test_whatever_a_ledger_counts_by_reason_is_told(run, name):
    """A new kind of loss is not forgotten by the audit of losses."""
    run.forge(run.ledger, -1, **{name: {"EIO": 7}})
    [result] = check_run(run.path, only=["dropped"]).with_findings
    assert [finding.message for finding in result.findings] == [f"7 {name.replace('_', ' ')}: EIO"]


def colliding(path):
    """What the audit of colliding sessions finds."""
    [result] = check_run(path, only=["colliding_sessions"]).results
    return result.findings


def test_workers_that_play_the_same_are_told(tmp_path, record):
    """Two writers that are open at once and give the same indices collide: both are named."""
    with create_run(tmp_path / "run") as one, create_run(tmp_path / "run", join=True) as other:
        for writer in (one, other):
            record(writer, "a", 0)
            record(writer, "a", 1)
        record(one, "b", 0)
    found = colliding(tmp_path / "run")
    assert [finding.address for finding in found] == ["train/sums/0/a/0", "train/sums/0/a/1"]
    assert found[0].data == {"rollouts": 2, "sessions": sorted((one.session, other.session))}
    assert "all 2 count" in found[0].message


def test_sessions_that_wrote_only_late_overlap_by_their_ledgers(tmp_path, record):
    """A writer that is kept open while another plays the same is told of, though no two rollouts ran at once."""
    with create_run(tmp_path / "run") as one:
        record(one, "a", 0)
        one.flush()
        with create_run(tmp_path / "run", join=True) as other:
            record(other, "a", 0)
    assert len(colliding(tmp_path / "run")) == 1


def test_resume_that_is_stated_is_no_collision(tmp_path, record):
    """A session that continues one that is still open supersedes it."""
    with create_run(tmp_path / "run") as one:
        record(one, "a", 0)
        with create_run(tmp_path / "run", join=True, continues=[one.session]) as other:
            record(other, "a", 0)
    assert colliding(tmp_path / "run") == ()


def test_a_restart_is_no_overlap(tmp_path, record):
    """Sessions one after the other may repeat each other, retries included."""
    for join in (False, True, True):
        with create_run(tmp_path / "run", join=join) as writer:
            for index in range(3):
                record(writer, "a", index)
            record(writer, "a", 1, attempt=1)
    assert check_run(tmp_path / "run").with_findings == []


def test_what_was_played_anew_needs_no_reward(tmp_path, record):
    """A seat whose episode was retried, or that a restart repeated, waits for no grade; the last play does."""
    with create_run(tmp_path / "run") as writer:
        record(writer, "a", 0, reward=None)
        last = record(writer, "a", 0, attempt=1, reward=None)
    [result] = check_run(tmp_path / "run").with_findings
    assert (result.audit, [finding.rollouts for finding in result.findings]) == ("reward_missing", [(last,)])
    with create_run(tmp_path / "run", join=True) as writer:
        record(writer, "a", 0)
    assert check_run(tmp_path / "run").with_findings == []


def test_a_rollout_that_was_ended_after_a_fork_is_not_unfinished(tmp_path):
    """Its line is in the files of the process that ended it, and the files are right."""
    run = create_run(tmp_path / "run")
    with run.rollout(env="sums", task="t", group="a", index=1) as recorder:
        recorder.grade(1.0)
    ended, lost = (run.rollout(env="sums", task="t", group="a", index=index) for index in (0, 2))
    child = os.fork()
    if child == 0:
        ended.grade(1.0)
        ended.end()
        run.close()
        os._exit(0)
    os.waitpid(child, 0)
    run.close()
    assert run.ledger.in_flight == 2
    [result] = check_run(tmp_path / "run").with_findings
    assert (result.audit, result.findings[0].data) == ("unfinished_rollouts", {"in_flight": 1})
    del lost


def test_every_audit_has_a_fault():
    """An audit that was never seen to find its rollouts in a run with one fault is not finished."""
    tried = {fault.audit for fault in FAULTS}
    for file in Path(__file__).parent.glob("test_audits_*.py"):
        for test in ast.parse(file.read_text()).body:
            for node in ast.walk(test):
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "assert_seeded":
                    # The name of the audit, or of a parameter of the test.
                    given = node.args[1] if isinstance(node.args[1], ast.Constant) else test
                    tried |= {one.value for one in ast.walk(given) if isinstance(one, ast.Constant)}
    assert {audit.name for audit in built_in_audits()} <= tried
