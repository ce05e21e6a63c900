"""The faults that other recorders had: how each is injected here, and what must catch it.

Nothing of the package is imported here: `fault_study` changes its modules before they are imported.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import fault_seeds

if TYPE_CHECKING:
    from seeded_runs import SeededRun

PAGE_SCRIPT = "viewer/page/assets/page.js"

_FINITE = "        return nonfinite_text(value)\n    return value\n"
_ENDS = "            self._settings.sink.end(self.rollout_builder, self._finished.outcome)"
_FAILS = "            failure = error.failure\n"
_TIMED_OUT = """            if isinstance(error.cause, TimeoutError):
                return RolloutEnd("timeout", by_limit=True)
"""
_MEDIUM = "    medium = _MEDIA[kind]\n"
_CANCELS = "                        task.cancel()\n                return"
_CLOSED = '            return "closed"\n        if self._is_full'
_READS = '            return self._placeholder(f"{type(error).__name__} while reading {describe(value)}")'


@dataclass(frozen=True)
class Fault:
    """One fault, injected in one way."""

    name: str
    fault: str
    """What went wrong elsewhere."""
    injected: str
    """How it is injected, in words."""
    tests: tuple[str, ...] = ()
    """Tests that fail then."""
    changes: tuple[tuple[str, str, str], ...] = ()
    """Files of the package, with a text in each and its replacement."""
    audit: str = ""
    """The audit that finds the fault in records."""
    seed: "Callable[[SeededRun], Sequence[str]] | None" = None
    """Injects the fault into the records of a clean run; the rollouts that must be found."""
    code: str = ""
    """Code of a user that the type checker refuses."""

    @property
    def caught_by(self) -> str:
        """What catches it, in Markdown."""
        if self.audit:
            return f"audit `{self.audit}`"
        return "<br>".join(f"`{test.removeprefix('tests/')}`" for test in self.tests) or "type checker"


def _in_records(fault: str, seed: "Callable[[SeededRun], Sequence[str]]", audit: str) -> Fault:
    holds = str(seed.__doc__).removesuffix(".")
    return Fault(seed.__name__, fault, f"records: {holds[0].lower()}{holds[1:]}", audit=audit, seed=seed)


_ALIAS = "Prompts aliased to a history that the env then changed"
_HAPPY = "A trace only on the happy path"
_FORMAT = '`f"{x:.3f}"` in data'
_ONE_HOT = "Averages of one-hot keys that are always 1.0"
_NAN = "Bare NaN in JSON"
_POSITION = "Group index as list position after a filter"
_RESUME = "Summaries overwritten on resume"
_CALLS = "Tool calls missing from the HTML"
_BURST = "Traces lost in a burst"
_TABLE = "A table cut at 10,000 rows without a word"
_NULL = "NaN written as null"

FAULTS = [
    Fault(
        "aliased_prompts",
        _ALIAS,
        "the prompt of a step is the conversation's own list of ranges",
        tests=("tests/trace/test_transcript.py::test_replaced_history_is_remarked_once",),
        changes=(("trace/message_table.py", "return tuple(self._ranges)", "return self._ranges"),),
    ),
    Fault(
        "aliased_messages",
        _ALIAS,
        "the env's message is compared with itself to see whether it has changed",
        tests=("tests/trace/test_conversion_cache.py::test_an_edit_in_place_is_seen",),
        changes=(
            ("trace/conversion_cache.py", "_Seen(quick, fast_copy(original), None)", "_Seen(quick, original, None)"),
        ),
    ),
    _in_records(_ALIAS, fault_seeds.prompts_of_the_end, "history_not_continued"),
    Fault(
        "happy_path_only",
        _HAPPY,
        "a rollout that fails writes no line",
        tests=("tests/rollout/test_ways_out.py::test_policy_raises[append]",),
        changes=(("rollout/episode.py", _ENDS, f"            if stop.error is None:\n    {_ENDS}"),),
    ),
    _in_records(_HAPPY, fault_seeds.failures_lost, "lost_lines"),
    Fault(
        "formatted_numbers",
        _FORMAT,
        "numbers are written with three digits",
        tests=("tests/rollout/test_numbers_on_disk.py::test_numbers_of_an_env",),
        changes=(
            (
                "trace/json_numbers.py",
                _FINITE,
                _FINITE.replace(
                    "    return value\n", '    return float(f"{value:.3f}") if type(value) is float else value\n'
                ),
            ),
        ),
    ),
    _in_records(_FORMAT, fault_seeds.formatted_terms, "reward_as_text"),
    _in_records(_FORMAT, fault_seeds.formatted_rewards, "damaged"),
    Fault(
        "formatted_result",
        _FORMAT,
        'an env returns `StepResult(f"{0.3:.3f}", done=True)`',
        code='from rolltrace.envs.env import StepResult\nStepResult(f"{0.3:.3f}", done=True)\n',
    ),
    Fault(
        "truth_of_a_grade",
        "`bool(0.3)`",
        "the reward after a group's grade is whether it is not zero",
        tests=("tests/rollout/test_numbers_on_disk.py::test_fractions_of_a_grade_stay_fractions",),
        changes=(
            (
                "rollout/group_runner.py",
                "member.reward_so_far + grade.reward",
                "bool(member.reward_so_far + grade.reward)",
            ),
        ),
    ),
    Fault(
        "one_hot_metrics",
        _ONE_HOT,
        "the fraction of a stop reason is a mean over the rollouts that have it",
        tests=("tests/query/test_iteration_metrics.py::test_the_numbers_are_those_of_sql",),
        changes=(("query/iteration_metrics.py", 'row["n"] / rollouts', 'row["mean"]'),),
    ),
    _in_records(_ONE_HOT, fault_seeds.one_hot_terms, "dead_reward_term"),
    Fault(
        "bare_nan",
        _NAN,
        "a number that is not finite is written as `NaN`, without quotes",
        tests=("tests/trace/test_json_numbers.py::test_rewards_come_back[nan]",),
        changes=(
            (
                "trace/json_numbers.py",
                _FINITE,
                _FINITE.replace("nonfinite_text(value)", '__import__("msgspec").Raw(nonfinite_text(value).encode())'),
            ),
        ),
    ),
    _in_records(_NAN, fault_seeds.bare_nan_in_records, "damaged"),
    Fault(
        "position_after_filter",
        _POSITION,
        "grades go to members at the list positions of those that are ok",
        tests=("tests/rollout/test_groups.py::test_rewards_align_with_members[GradedStage]",),
        changes=(
            (
                "rollout/group_runner.py",
                "_MemberGrade(member, group_grade.grades, grader) for member in pending",
                "_MemberGrade(members[place], group_grade.grades, grader) for place in range(len(pending))",
            ),
        ),
    ),
    _in_records(_POSITION, fault_seeds.advantages_after_a_filter, "advantage_mismatch"),
    Fault(
        "completion_order",
        "Retries appended in completion order",
        "members that were retried are behind the others",
        tests=("tests/rollout/test_groups.py::test_a_member_that_was_retried_keeps_its_place",),
        changes=(
            (
                "rollout/group_runner.py",
                "members = [self._members[index] for index in sorted(self._members)]",
                "members = sorted(self._members.values(), key=lambda member: member.attempt)",
            ),
        ),
    ),
    Fault(
        "siblings_run_on",
        "Fail-fast that leaves siblings running through clean-up",
        "fail-fast neither cancels the other members nor waits for them",
        tests=("tests/rollout/test_groups.py::test_fail_fast_cancels_awaits_and_records_before_clean_up",),
        changes=(
            ("rollout/group_runner.py", _CANCELS, _CANCELS.replace("task.cancel()", "pass")),
            (
                "rollout/group_runner.py",
                "for exception in await _gather_exceptions(tasks):",
                "for exception in [] if isinstance(self._strategy, FailFast) else await _gather_exceptions(tasks):",
            ),
        ),
    ),
    Fault(
        "grader_timeout",
        "A grader's time-out taken for the rollout's",
        "a `TimeoutError` of the grader ends the rollout as its own time-out",
        tests=("tests/rollout/test_ways_out.py::test_the_rollouts_grader_fails[reward1-append]",),
        changes=(
            (
                "rollout/episode.py",
                _FAILS,
                f"{_TIMED_OUT}{_FAILS}",
            ),
        ),
    ),
    Fault(
        "audio_raises",
        "An audio part that makes the trace raise, and so kills the rollout",
        "the conversion of an audio part raises, and nothing catches it",
        tests=("tests/trace/test_convert.py::test_chat_dicts_come_back_as_they_were[audio]",),
        changes=(
            (
                "trace/content_parts.py",
                _MEDIUM,
                f'{_MEDIUM}    if medium == "audio":\n        raise NotImplementedError\n',
            ),
            (
                "trace/convert.py",
                "    except Exception as error:  # noqa: BLE001 - a mapping",
                "    except () as error:  #",
            ),
        ),
    ),
    Fault(
        "overwritten_run",
        _RESUME,
        "a new run replaces the one at its path",
        tests=("tests/store/test_create.py::test_existing_run_is_refused_and_untouched",),
        changes=(
            ("store/create.py", "if RUN_FILE in names:", "if False:"),
            ("store/create.py", "if any(not name.startswith(_UNFINISHED) for name in names):", "if False:"),
            (
                "store/create.py",
                "publish_file(unfinished, path, overwrite=False)",
                "publish_file(unfinished, path, overwrite=True)",
            ),
        ),
    ),
    Fault(
        "one_session",
        _RESUME,
        "a session that resumes a run has the id, and so the files, of the one before",
        tests=("tests/store/test_create.py::test_join_is_a_new_session_of_the_same_run",),
        changes=(("store/writer.py", "self.session = new_id()", "self.session = self.run"),),
    ),
    _in_records(_RESUME, fault_seeds.overwritten_records, "lost_lines"),
    Fault(
        "calls_not_shown",
        _CALLS,
        "the page does not read `tool_calls`",
        tests=("tests/viewer/test_page_rollout.py::test_the_transcript_shows_each_message_once_in_order",),
        changes=((PAGE_SCRIPT, ".tool_calls", ".no_tool_calls"),),
    ),
    _in_records(_CALLS, fault_seeds.calls_not_recorded, "tool_result_without_call"),
    Fault(
        "unescaped_text",
        "Unescaped exception text",
        "the page sets the HTML of elements where it should set their text",
        tests=("tests/viewer/test_hostile_content.py::test_in_the_viewer",),
        changes=((PAGE_SCRIPT, ".textContent=", ".innerHTML="),),
    ),
    Fault(
        "fragmented_ranges",
        "References to messages so fragmented that they outweigh the text",
        "each message of a prompt is a range of its own",
        tests=("tests/trace/test_message_table.py::test_a_sliding_window_is_two_ranges",),
        changes=(("trace/message_table.py", "if ranges and ranges[-1][1] == first:", "if False:"),),
    ),
    Fault(
        "silent_queue",
        "A full queue that drops records while `flush` answers True",
        "rejected lines are not counted, and `flush` always answers True",
        tests=(
            "tests/store/test_losses.py::test_event_loop_is_never_blocked",
            "tests/store/test_faults.py::test_each_thread_learns_of_a_loss",
        ),
        changes=(
            ("store/writer.py", "self._disk_writer.drop(line, reason)", "pass"),
            ("store/writer.py", "return losses == before", "return True"),
        ),
    ),
    Fault(
        "burst_loss",
        _BURST,
        "the queue ignores lines while more than 32 wait",
        tests=("tests/store/test_recorder.py::test_from_many_threads",),
        changes=(
            (
                "store/write_queue.py",
                _CLOSED,
                _CLOSED.replace(
                    "        if", "        if len(self._waiting) > 32:\n            return None\n        if"
                ),
            ),
        ),
    ),
    _in_records(_BURST, fault_seeds.burst_loss_in_records, "lost_lines"),
    Fault(
        "cut_result",
        _TABLE,
        "`fetchall` ends after 10,000 rows",
        tests=("tests/query/test_run.py::test_no_row_is_left_out",),
        changes=(("query/result.py", "return list(self)", "return list(islice(self, 10_000))"),),
    ),
    Fault(
        "cut_answer",
        _TABLE,
        "`rolltrace query` does not say that there are more rows",
        tests=("tests/cli/test_query.py::test_limit_is_reported",),
        changes=(("cli/query.py", "if len(rows) > limit:", "if False:"),),
    ),
    Fault(
        "unserialisable",
        "One value that cannot be serialised dropping the whole trace",
        "a value that JSON cannot hold raises",
        tests=(
            "tests/trace/test_freeform.py::test_hostile_values_become_placeholders_with_a_note[env_state-raising repr]",
        ),
        changes=(
            (
                "trace/freeform.py",
                '        self._note(f"replaced by a placeholder: {what}")\n',
                "        raise TypeError\n",
            ),
            ("trace/freeform.py", _READS, "            raise"),
        ),
    ),
    Fault(
        "float32_null",
        "numpy float32 written as null",
        "numbers of other libraries become null",
        tests=("tests/trace/test_json_numbers.py::test_numpy_scalars_come_back_as_python_numbers",),
        changes=(("trace/freeform.py", "return self.plain(number)", "return None"),),
    ),
    Fault(
        "float32_text",
        'numpy float32 written as the text "0.5"',
        "numbers of other libraries become their text",
        tests=("tests/trace/test_json_numbers.py::test_numpy_scalars_come_back_as_python_numbers",),
        changes=(("trace/freeform.py", "return self.plain(number)", "return str(value)"),),
    ),
    Fault(
        "lone_surrogate",
        "One lone surrogate failing the whole log",
        "text that is not valid UTF-8 is left as it is, so that encoding it fails",
        tests=("tests/trace/test_freeform.py::test_surrogates",),
        changes=(("trace/freeform.py", "    if is_valid_utf8(text):\n        return text\n", "    return text\n"),),
    ),
    Fault(
        "nan_null",
        _NULL,
        "a number that is not finite is written as null",
        tests=("tests/trace/test_json_numbers.py::test_rewards_come_back[nan]",),
        changes=(("trace/json_numbers.py", _FINITE, _FINITE.replace("nonfinite_text(value)", "None")),),
    ),
    _in_records(_NULL, fault_seeds.null_rewards, "reward_missing"),
    Fault(
        "dicts_by_reference",
        "Metadata dicts kept by reference and recorded as they were later",
        "a step holds the caller's dict of numbers",
        tests=("tests/trace/test_rollout_builder.py::test_later_changes_do_not_change_the_line",),
        changes=(("trace/step_table.py", "return value.copy()", "return value"),),
    ),
]
