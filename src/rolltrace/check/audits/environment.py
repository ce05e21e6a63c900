"""Audits of environments: leaked answers, broken histories, tools, failures and tasks."""

import re
from collections.abc import Iterable, Iterator, Sequence, Set
from itertools import groupby, pairwise
from operator import itemgetter

from rolltrace.check.audit import AuditInput, Finding, Severity, Threshold, audit
from rolltrace.check.audit_tables import AuditTables, examples, scope_address
from rolltrace.check.rollout_tally import tallied
from rolltrace.check.settings import CheckSettings
from rolltrace.check.table_source import Row
from rolltrace.check.trends import counted_share_findings, share_findings
from rolltrace.query.table_schema import sql_literal
from rolltrace.trace.field_types import Range
from rolltrace.trace.message import Message
from rolltrace.trace.rollout import Rollout, Step, select_messages
from rolltrace.trace.stop_reasons import StopReason

_MAX_TASKS = 2_000
"""How many tasks of an env are read for their prompts, so that the time does not grow with the run."""
_PROMPTS_AT_ONCE = 500
_MAX_PROMPT_CHARS = 100_000
_LIMITS = (
    StopReason.MAX_TURNS, StopReason.MAX_TOOL_CALLS, StopReason.MAX_TOKENS, StopReason.MAX_TOTAL_TOKENS,
    StopReason.MAX_SAMPLED_TOKENS, StopReason.CONTEXT_OVERFLOW, StopReason.TIMEOUT,
)  # fmt: skip

# One rollout of each task, and its reference answer.
_TASKS = f"""
    select split, env, task, min(id) as id,
        any_value(coalesce(task_data ->> 'answer', task_data ->> 'reference', grade_extra ->> 'reference')) as answer
    from rollouts group by split, env, task
    qualify row_number() over (partition by split, env order by hash(task)) <= {_MAX_TASKS}
    order by split, env, hash(task)
"""
# The ids are literals, which lets the engine skip most files: a subquery makes it read the texts of the whole run.
_PROMPTS = """
    select m.rollout, left(string_agg(m.content, chr(10) order by m.position), {characters}) as prompt
    from messages m join steps s on s.rollout = m.rollout
    where m.rollout in ({ids}) and s.rollout in ({ids}) and s.step = 0 and m.position < s.prompt_messages
    group by m.rollout having not regexp_matches(prompt, '^hashed:\\d+:[0-9a-f]{{16}}')
"""


def _tasks(tables: AuditTables) -> list[Row]:
    """The tasks whose prompts were recorded, each with its first prompt and whether it repeats or leaks another."""
    chosen, prompts = list(tables.rows(_TASKS)), {}
    for start in range(0, len(chosen), _PROMPTS_AT_ONCE):
        ids = ", ".join(sql_literal(row["id"]) for row in chosen[start : start + _PROMPTS_AT_ONCE])
        for row in tables.rows(_PROMPTS.format(ids=ids, characters=_MAX_PROMPT_CHARS)):
            prompts[row["rollout"]] = row["prompt"]
    tasks = [row | {"prompt": prompts[row["id"]]} for row in chosen if row["id"] in prompts]
    trained = {_content(row) for row in tasks if row["split"] == "train" and row["answer"] is not None}
    names = {(row["env"], row["task"]) for row in tasks if row["split"] == "train"}
    seen: set[tuple[str, ...]] = set()
    for row in sorted(tasks, key=itemgetter("task")):
        content = _content(row)
        row["is_repeated"] = (row["split"], *content) in seen
        row["is_trained"] = (row["env"], row["task"]) in names or content in trained
        seen.add((row["split"], *content))
    return tasks


def _content(task: Row) -> tuple[str, ...]:
    return task["env"], task["prompt"], task["answer"]


@audit(
    Severity.WARNING,
    "The policy reads the answer instead of finding it, so its reward says nothing about what it can do.",
    "Look at the prompt of a rollout that is named. In multiple choice the answer is among the options: skip this"
    " audit there.",
    input=AuditInput.TABLES,
    threshold=Threshold(
        0.5,
        "The share of tasks whose prompt has their own answer, less the share that has another task's answer. "
        "Numbers and letters occur in prompts by chance, which the second share measures. With 20 tasks, the standard "
        "error of the difference is at most 0.16, so that 0.5 is more than three of them.",
        min_sample=20,
    ),
)
def answer_in_prompt(tables: AuditTables) -> Iterator[Finding]:
    """The prompt does not contain the reference answer."""
    known: dict[str, list[Row]] = {}
    for row in _tasks(tables):
        if row["answer"]:
            known.setdefault(scope_address(row), []).append(row)
    for address, rows in known.items():
        if not tables.is_enough(len(rows), "tasks"):
            continue
        leaked = [row["id"] for row in rows if _has_word(row["prompt"], row["answer"])]
        others = zip(rows, [*rows[1:], rows[0]], strict=True)
        by_chance = sum(_has_word(row["prompt"], other["answer"]) for row, other in others)
        share = (len(leaked) - by_chance) / len(rows)
        if share > tables.threshold:
            message = f"{len(leaked)} of {len(rows)} prompts contain their answer, {by_chance} that of another task"
            data = {"count": len(leaked), "by_chance": by_chance, "of": len(rows), "share": share}
            yield Finding(message, examples(sorted(leaked)), address, data=data)


def _has_word(text: str, word: str) -> bool:
    return re.search(rf"(?<!\w){re.escape(word.strip())}(?!\w)", text) is not None


@audit(
    Severity.WARNING,
    "What the policy was shown at a step does not begin with what it was shown and said before, so it acts on a "
    "history that "
    "it never saw, and tokens of earlier turns may be trained on under another prompt.",
    "Return only new messages, or name the env in `replaces_history` of the settings if it shortens its history "
    "on purpose.",
    input=AuditInput.ROLLOUTS,
)
@tallied("the prompts of {count} of {of} rollouts do not continue those before")
def history_not_continued(rollout: Rollout, settings: CheckSettings) -> bool | None:
    """Each prompt continues the one before and the policy's answer to it."""
    if len(rollout.steps) < 2 or rollout.env in settings.replaces_history:
        return None
    return not all(continues(rollout, *pair) for pair in pairwise(rollout.steps))


def continues(rollout: Rollout, earlier: Step, later: Step) -> bool:
    """Whether a prompt begins with the one before and its answer; equal messages may be stored twice."""
    response = earlier.response
    if isinstance(response, int) and _begins_with(later.prompt, [*earlier.prompt, (response, response + 1)]):
        return True
    messages = rollout.messages
    expected = [
        *select_messages(messages, earlier.prompt),
        response if isinstance(response, Message) else messages[response],
    ]
    return list(select_messages(messages, later.prompt)[: len(expected)]) == expected


def _begins_with(ranges: Sequence[Range], start: Sequence[Range]) -> bool:
    """Whether the positions of some ranges begin with those of others; without expanding them, in most cases."""
    joined: list[Range] = []
    for first, last in start:
        joined[-1:] = [(joined[-1][0], last)] if joined and joined[-1][1] == first else [*joined[-1:], (first, last)]
    *whole, (first, last) = joined
    rest = ranges[len(whole) :]
    return [*ranges[: len(whole)]] == whole and bool(rest) and rest[0][0] == first and rest[0][1] >= last


@audit(
    Severity.ERROR,
    "A result of a tool answers no call that the policy made, so the conversation is one that no model was "
    "trained on, and "
    "servers refuse or misread it.",
    "Give each result the id of its call, and keep the message with the calls in the history.",
    input=AuditInput.ROLLOUTS,
)
@tallied("{count} of {of} rollouts with tools have a result without its call")
def tool_result_without_call(rollout: Rollout, _: CheckSettings) -> bool | None:
    """Each result of a tool answers a call."""
    if not any(message.role == "tool" for message in rollout.messages):
        return None
    asked: set[str | None] = set()
    for message in rollout.conversation:
        asked |= {call.id for call in message.tool_calls}
        if message.role == "tool" and not _may_answer(message.tool_call_id, asked):
            return True
    return False


def _may_answer(result: str | None, asked: Set[str | None]) -> bool:
    """Whether a result may be of one of these calls; calls and results without an id may be of any."""
    return bool(asked) and (result is None or result in asked or None in asked)


@audit(
    Severity.ERROR,
    "The policy called a tool and went on without the result, so it learns that calls have no effect.",
    "Append one result for each call, also for those that fail, before the policy's next turn.",
    input=AuditInput.ROLLOUTS,
)
@tallied("{count} of {of} rollouts with calls have one that was never answered")
def tool_call_without_result(rollout: Rollout, _: CheckSettings) -> bool | None:
    """Each call is answered before the policy's next turn."""
    if not any(message.tool_calls for message in rollout.messages):
        return None
    if not any(rollout.tools) and not any(message.role == "tool" for message in rollout.messages):
        return None  # the policy called a tool that it was not offered
    open_calls: set[str] = set()
    for message in rollout.conversation:
        if message.role == "assistant" and open_calls:
            return True
        if message.role == "tool" and message.tool_call_id is None:
            open_calls.clear()  # results without ids answer in order
        open_calls.discard(message.tool_call_id or "")
        open_calls |= {call.id for call in message.tool_calls if call.id is not None}
    return False


@audit(
    Severity.WARNING,
    "Many calls of tools fail, so the policy is rewarded for coping with errors rather than for using the tools.",
    "Look at the errors in a rollout that is named: a schema that the prompt does not explain, or a tool that is "
    "broken.",
    input=AuditInput.TABLES,
    threshold=Threshold(
        0.3,
        "A policy that learns makes mistakes; more than three in ten point to the tool.",
        min_sample=50,
        usual_share=0.15,
    ),
)
def tool_errors(tables: AuditTables) -> Iterator[Finding]:
    """Calls of tools succeed."""
    source = """
        select split, env, iteration, rollout as id,
            unnest(range(metrics['tool_calls']::bigint)) < metrics['tool_errors'] as wrong
        from steps where metrics['tool_calls'] between 1 and 1000
    """
    yield from share_findings(tables, source, "failed", "calls of tools")


@audit(
    Severity.WARNING,
    "Rollouts that fail in the environment are missing from their groups, so the batch is smaller and biased to "
    "tasks that "
    "work.",
    "Look at the errors: `select error_layer, error_type, error_message, count(*) from rollouts group by all`.",
    input=AuditInput.TABLES,
    threshold=Threshold(0.05, "One in twenty is more than a flaky sandbox explains.", min_sample=50, usual_share=0.01),
)
def env_failures(tables: AuditTables) -> Iterator[Finding]:
    """Rollouts do not fail in the env, its tools or its grader."""
    source = """
        select split, env, iteration, id, status = 'error' and error_layer in ('env', 'tool', 'grader') as wrong
        from attempts
    """
    yield from share_findings(tables, source, "failed in the env, a tool or the grader", "rollouts")


@audit(
    Severity.WARNING,
    "Episodes that end only at a limit are never judged as finished: the policy does not know how to end them, or"
    " cannot.",
    "Tell the policy in the prompt how an episode ends, raise the limit, or fix the env's own end.",
    input=AuditInput.TABLES,
    threshold=Threshold(
        0.8, "Many long episodes are normal; four in five mean that the usual way out is a limit.", 50, usual_share=0.6
    ),
)
def only_limits_end_episodes(tables: AuditTables) -> Iterator[Finding]:
    """Episodes end otherwise than at a limit."""
    limits = ", ".join(f"'{reason}'" for reason in _LIMITS)
    source = f"""
        select split, env, iteration, id, stop_reason in ({limits}) as wrong from rollouts where status = 'ok'
    """
    yield from share_findings(tables, source, "ended at a limit", "episodes")


@audit(
    Severity.WARNING,
    "The same task under two names counts twice: it is trained on more often, and statistics by task are split.",
    "Remove duplicates from the dataset, or derive the name from the content.",
    input=AuditInput.TABLES,
    threshold=Threshold(
        0.1, "Generated tasks repeat by chance; one in ten is more than that in a useful dataset.", 20, usual_share=0.02
    ),
)
def same_task_twice(tables: AuditTables) -> Iterator[Finding]:
    """No two tasks of an env have the same prompt and answer."""
    tasks = (row for row in _tasks(tables) if row["answer"] is not None)
    yield from _task_findings(tables, tasks, "is_repeated", "repeat another under another name")


def _task_findings(tables: AuditTables, tasks: Iterable[Row], wrong: str, what: str) -> Iterator[Finding]:
    """A finding for each env in which the share of wrong tasks is above the threshold."""
    envs: dict[tuple[str, str], list[Row]] = {}
    for (split, env), rows in groupby(tasks, itemgetter("split", "env")):
        are_wrong = {row["id"]: row[wrong] for row in rows}
        ids = sorted(rollout for rollout, is_wrong in are_wrong.items() if is_wrong)
        envs[split, env] = [{"iteration": None, "n": len(are_wrong), "count": len(ids), "ids": ids}]
    yield from counted_share_findings(tables, envs, what, "tasks")


@audit(
    Severity.WARNING,
    "A task of the evaluation is also trained on, so the evaluation measures memory.",
    "Split the dataset by content before it is shuffled, and remove the tasks that are named from one side.",
    input=AuditInput.TABLES,
    threshold=Threshold(
        0.02, "In a dataset that was split, no task is on both sides; generated tasks repeat by chance."
    ),
)
def evaluation_task_in_training(tables: AuditTables) -> Iterator[Finding]:
    """No task of an evaluation is a task of the training."""
    tasks = (row for row in _tasks(tables) if row["split"] != "train")
    yield from _task_findings(tables, tasks, "is_trained", "are trained on")
