"""One fault of an environment at a time: what finds it, and which rollouts it names."""

import pytest

import rolltrace
from rolltrace.check.audit import MAX_EXAMPLES
from rolltrace.check.check_run import IterationChecker, check_run
from rolltrace.check.settings import AuditSettings, CheckSettings
from seeded_runs import SeededRun, assert_seeded, found, passes, play_clean, response_of


def first(ids):
    return sorted(ids)[:MAX_EXAMPLES]


def first_of_tasks(seeded: SeededRun) -> dict[str, str]:
    """By task, its first rollout, which stands for it in findings about tasks."""
    firsts: dict[str, str] = {}
    for one in seeded.records(env="arithmetic"):
        firsts[one["task"]] = min(one["id"], firsts.get(one["task"], one["id"]))
    return firsts


def test_answer_in_prompt(seeded: SeededRun):
    """The reference is in the prompt of every task of one env."""

    def leak(record):
        record["messages"][0]["content"] += f"\n(The answer is {record['task_data']['answer']}.)"

    seeded.change(seeded.records(env="arithmetic"), leak)
    finding = assert_seeded(seeded, "answer_in_prompt", first(first_of_tasks(seeded).values()))
    assert (finding.address, finding.data["of"]) == ("train/arithmetic", 24)


def test_answers_that_are_in_every_prompt_are_chance(seeded: SeededRun):
    """As the letters of multiple choice: another task's answer is in the prompt as often."""
    seeded.change(seeded.records(env="arithmetic"), lambda record: record["task_data"].update(answer="Answer"))
    assert passes(seeded, "answer_in_prompt") is None


def test_few_tasks_are_too_few(seeded: SeededRun):
    """It says so instead of judging."""
    note = passes(seeded, "answer_in_prompt", min_sample=500)
    assert note == "too little data: 24 tasks, at least 500 needed"


def test_history_not_continued(seeded: SeededRun):
    """The first message of a later prompt was edited, as by an env that changes its list in place."""
    [broken, *_] = [one for one in seeded.records(env="guess_number") if len(one["steps"]) > 1]

    def edit(record):
        record["messages"].append({**record["messages"][0], "content": "Guess a number from 1 to 99."})
        [[_, last]] = record["steps"][1]["prompt"]
        end = len(record["messages"])
        record["steps"][1]["prompt"] = [[end - 1, end], [1, last]]

    [changed] = seeded.change([broken], edit)
    assert_seeded(seeded, "history_not_continued", [changed])
    declared = CheckSettings(replaces_history=("guess_number",))
    assert found(seeded.check(declared, only=["history_not_continued"])) == {}


def test_a_message_that_is_stored_twice_continues(seeded: SeededRun):
    """Equal messages are the same history, wherever they are stored."""
    [one, *_] = [one for one in seeded.records(env="guess_number") if len(one["steps"]) > 1]

    def repeat(record):
        record["messages"].append(record["messages"][0])
        [[_, last]] = record["steps"][1]["prompt"]
        end = len(record["messages"])
        record["steps"][1]["prompt"] = [[end - 1, end], [1, last]]

    seeded.change([one], repeat)
    assert found(seeded.check(only=["history_not_continued"])) == {}


def test_tool_result_without_call(seeded: SeededRun):
    """The id of a result is not that of the call, so the call has no result either."""
    [record, *_] = seeded.records(env="calculator")

    def rename(record):
        next(one for one in record["messages"] if one["role"] == "tool")["tool_call_id"] = "call_9"

    changed = seeded.change([record], rename)
    assert_seeded(seeded, "tool_result_without_call", changed, also=["tool_call_without_result"])


def test_calls_without_ids_are_answered_by_any_result(seeded: SeededRun):
    """Some chat formats have no ids; a harness may still give one to the result."""
    [record, *_] = seeded.records(env="calculator")

    def unname(record):
        for message in record["messages"]:
            for call in message.get("tool_calls", ()):
                call.pop("id", None)

    seeded.change([record], unname)
    assert found(seeded.check(only=["environment"])) == {}


def test_tool_call_without_result(seeded: SeededRun):
    """The result is gone; a user's message stands in its place."""
    [record, *_] = seeded.records(env="calculator")

    def remove(record):
        tool = next(one for one in record["messages"] if one["role"] == "tool")
        tool.update(role="user", tool_call_id=None, name=None)

    changed = seeded.change([record], remove)
    assert_seeded(seeded, "tool_call_without_result", changed)


def test_a_call_of_a_tool_that_was_not_offered_is_no_fault_of_the_run(tmp_path):
    """An env without tools has no results to give, whatever the policy writes."""
    policy = "scripted:fault,kind=unknown_tool"
    rolltrace.play("guess_number", policy, out=tmp_path / "run", groups=1, group_size=2)
    with rolltrace.open_run(tmp_path / "run") as run:
        assert all(any(message.tool_calls for message in one.messages) for one in run.rollouts())
    assert found(check_run(tmp_path / "run", only=["tool_call_without_result"])) == {}


def test_tool_errors(seeded: SeededRun):
    """Half of the calls fail."""
    records = [one for one in seeded.records(env="calculator") if one["steps"][0]["metrics"].get("tool_calls")]
    chosen = seeded.change(records[::2], lambda record: record["steps"][0]["metrics"].update(tool_errors=1))
    assert_seeded(seeded, "tool_errors", first(chosen))
    assert passes(seeded, "tool_errors", threshold=0.6) is None


def test_env_failures(seeded: SeededRun):
    """One in ten fails in the env."""
    error = {"layer": "env", "type": "OSError", "message": "gone"}

    def fail(record):
        record.update(status="error", stop_reason="error", stopped_by="runner", error=error, reward=None)

    chosen = seeded.change(seeded.records(env="arithmetic")[::10], fail)
    assert_seeded(seeded, "env_failures", chosen)


def test_only_limits_end_episodes(seeded: SeededRun):
    """Every episode of one env ends at the limit of turns."""
    records = seeded.records(env="guess_number")
    seeded.change(records, lambda record: record.update(stop_reason="max_turns", stopped_by="runner"))
    assert_seeded(seeded, "only_limits_end_episodes", first(one["id"] for one in records))


def test_same_task_twice(seeded: SeededRun):
    """Half of the tasks have another's prompt and answer under a name of their own."""
    records = seeded.records(env="arithmetic")
    tasks = sorted({one["task"] for one in records})
    copy_of = dict(zip(tasks[1::2], tasks[::2], strict=True))
    contents = {one["task"]: (one["messages"][0]["content"], one["task_data"]) for one in records}

    def copy(record):
        prompt, data = contents[copy_of[record["task"]]]
        record["messages"][0]["content"] = prompt
        record["task_data"] = data

    seeded.change([one for one in records if one["task"] in copy_of], copy)
    now = {one["task"]: one["messages"][0]["content"] for one in seeded.records(env="arithmetic")}
    repeats = [task for number, task in enumerate(tasks) if now[task] in [now[other] for other in tasks[:number]]]
    firsts = first_of_tasks(seeded)
    finding = assert_seeded(seeded, "same_task_twice", first(firsts[task] for task in repeats))
    assert (finding.data["count"], finding.data["of"]) == (len(repeats), 24)


@pytest.mark.parametrize("by_name", [True, False])
def test_evaluation_task_in_training(seeded: SeededRun, by_name: bool):
    """A group of the training is in the evaluation, too: under the same name, or under another."""
    records = seeded.records(env="arithmetic")
    last = [one for one in records if one["iteration"] == 2]
    group = [one for one in last if one["group"] == last[0]["group"]]
    trained = next(one for one in records if one["iteration"] == 0)

    def move(record):
        record.update(split="heldout", task_data=trained["task_data"])
        record["messages"][0]["content"] = trained["messages"][0]["content"]
        if by_name:
            record.update(task=trained["task"])
            record["messages"][0]["content"] += " "

    changed = seeded.change(group, move)
    assert_seeded(seeded, "evaluation_task_in_training", [min(changed)])


def test_one_iteration_alone_is_judged(seeded: SeededRun):
    """A fault of an earlier iteration is not found in the newest."""
    old = [one for one in seeded.records(env="guess_number") if one["iteration"] == 0]
    seeded.change(old, lambda record: record.update(stop_reason="max_turns", stopped_by="runner"))
    settings = CheckSettings(audits={"only_limits_end_episodes": AuditSettings(min_sample=10)})
    with IterationChecker(seeded.path, settings=settings, only=["environment"]) as checker:
        assert found(checker.check()) == {}
        assert found(checker.check(0)).keys() == {"only_limits_end_episodes"}


def test_hostile_text_is_text(tmp_path):
    """Quotes, wildcards and control characters in names, answers and responses break no audit."""
    odd = "'); drop table rollouts; -- %\x00\u202e\U0001f600\\d+("
    run = SeededRun(play_clean(tmp_path / "clean", {"arithmetic": {}, "calculator": {}}), tmp_path / "run")

    def spoil(record):
        record.update(env=f"env {odd}", task=f"{record['task']} {odd}")
        record["task_data"]["answer"] = odd
        record["messages"][0]["content"] = odd
        response_of(record)["content"] = odd

    run.change(lambda record: True, spoil)
    assert found(run.check(only=["environment", "sampling"])).keys() <= {"answer_in_prompt", "same_task_twice"}
