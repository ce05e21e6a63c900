"""Grading stored rollouts again: what is graded, what is written, what becomes the reward, and what moved."""

import asyncio
import math
import statistics
import threading

import pytest

import rolltrace
from rolltrace.check.check_run import check_run
from rolltrace.errors import InputError, UnknownNameError
from rolltrace.graders.grader import Grader, GroupGrade, GroupGrader
from rolltrace.graders.rubric_grader import Criterion, RubricGrader
from rolltrace.jobs import regrading
from rolltrace.jobs.regrade import regrade
from rolltrace.query.regrade_scope import RegradeScope
from rolltrace.query.run import open_run
from rolltrace.query.run_listing import list_runs
from rolltrace.store.create import create_run
from rolltrace.store.reader import RunReader
from rolltrace.store.writer import RunWriter
from rolltrace.testing.scripted import ScriptedReplies
from rolltrace.trace.score import Grade

ANSWERS = [["1/2", "0.5", "0.50", "3"], ["7", "7.0", "8", None], ["x", "y", "z", "w"]]
"""By group, the answers of its members. The references are 0.5, 7 and x."""
REFERENCES = ["0.5", "7", "x"]


def record(path, answers=ANSWERS, references=REFERENCES, trace=None, **fields):
    """A run of a loop of one's own, which rewarded numbers that are equal."""
    with create_run(path, trace=trace) as run:
        for group, (members, reference) in enumerate(zip(answers, references, strict=True)):
            for index, answer in enumerate(members):
                add(run, group, index, answer, reference, **fields)
    return path


def add(run, group, index, answer, reference, **fields):
    text = "I do not know." if answer is None else f"Answer: {answer}"
    numbers = [None if answer is None or not answer[0].isdigit() else eval(answer), eval(reference, {"x": None})]
    reward = float(numbers[0] is not None and numbers[0] == numbers[1])
    names = {"env": "sums", "task": f"t{group}", "group": str(group), "index": index, **fields}
    with run.rollout(**names, task_data={"answer": reference}) as rollout:
        rollout.step(prompt=[{"role": "user", "content": f"What is {group}?"}], response=text, reward=reward)
    return rollout.id


def values(path, name=None):
    """By group and index, the latest value of each rollout's scores of a name."""
    with open_run(path) as run:
        return {
            (int(rollout.group), rollout.index): [s.value for s in rollout.scores if s.name == name][-1:]
            for rollout in run.rollouts()
        }


def rewards(path):
    return [reward for (reward,) in open_run(path).sql('select reward from rollouts order by "group", "index"')]


def test_the_check_of_the_environment_moves_nothing(tmp_path):
    """With the check and the format penalty of the environment, every value is the reward that it gave."""
    rolltrace.play("arithmetic", "scripted:noisy", out=tmp_path / "run", groups=6, group_size=4, seed=3)
    summary = regrade(tmp_path / "run", "number")
    assert (summary.name, summary.graded, summary.report.compared) == ("regrade/number@1", 24, 24)
    assert (summary.report.moved, summary.report.order.reordered) == (0, 0)
    assert summary.report.pearson == pytest.approx(1.0)
    assert [finding for result in check_run(tmp_path / "run").with_findings for finding in result.findings] == []


def test_the_report_says_what_moved(tmp_path):
    """Exact comparison accepts other answers than comparison as numbers: each number of the report is known here."""
    path = record(tmp_path / "run")
    report = regrade(path, "exact").report
    assert rewards(path) == [1, 1, 1, 0, 1, 1, 0, 0, 0, 0, 0, 0]
    # New: [0, 1, 0, 0], [1, 0, 0, 0], [1, 0, 0, 0]
    assert (report.scores, report.failed, report.compared) == (12, 0, 12)
    assert (report.old_mean, report.new_mean) == (pytest.approx(5 / 12), pytest.approx(3 / 12))
    assert (report.moved, report.up, report.down) == (4, 1, 3)
    assert (report.flipped_up, report.flipped_down) == (1, 3)
    pearson = (2 / 12 - 5 / 12 * 3 / 12) / math.sqrt(5 / 12 * 7 / 12 * 3 / 12 * 9 / 12)
    assert (report.pearson, report.spearman) == (pytest.approx(pearson), pytest.approx(pearson))
    order = report.order
    assert (order.groups, order.reordered, order.best_changed) == (3, 0, 0)
    assert (order.signal_lost, order.signal_gained) == (0, 1)
    assert (order.pairs, order.pairs_reversed, order.pairs_tied) == (7, 0, 4)
    assert [(task.task, task.n, task.old, task.new) for task in report.tasks] == [
        ("t0", 4, 0.75, 0.25), ("t1", 4, 0.5, 0.25), ("t2", 4, 0.0, 0.25),
    ]  # fmt: skip
    assert {(one.group, one.index, one.old, one.new) for one in report.rollouts} == {
        ("0", 0, 1, 0), ("0", 2, 1, 0), ("1", 1, 1, 0), ("2", 0, 0, 1),
    }  # fmt: skip


def test_an_order_that_is_reversed_is_counted(tmp_path):
    """Pairs, groups and best members whose order is the opposite are counted, and a constant has no correlation."""
    path = record(tmp_path / "run", ANSWERS[:1], REFERENCES[:1])
    order = regrade(path, lambda rollout: -rollout.reward, where="true").report.order
    assert (order.reordered, order.best_changed, order.pairs_reversed, order.signal_lost) == (1, 1, 3, 0)
    report = regrade(path, lambda rollout: 0.25).report
    assert (report.pearson, report.order.signal_lost, report.order.pairs_tied) == (None, 1, 3)


def test_equal_values_share_a_rank_and_the_last_digits_do_not_count(tmp_path):
    """Ranks of equal values are averaged, and sums of the same numbers in another order have not moved."""
    path = record(tmp_path / "run", ANSWERS[:1], REFERENCES[:1])
    report = regrade(path, lambda rollout: [3, 3, 1, 2][rollout.index]).report
    assert report.spearman == pytest.approx(statistics.correlation([3, 3, 3, 1], [3.5, 3.5, 1, 2]))
    order = regrade(path, lambda rollout: 0.3 if rollout.index else 0.1 + 0.2).report.order
    assert (order.pairs_tied, order.pairs_reversed, order.signal_lost) == (3, 0, 1)
    assert regrade(path, lambda rollout: rollout.reward + 1e-12).report.moved == 0


def test_rewards_change_only_when_asked_to(tmp_path):
    """Scores stand beside the reward; with `as_reward` the values become rewards, without grading again."""
    path = record(tmp_path / "run")
    before = rewards(path)
    assert regrade(path, "exact").rewards == 0
    assert rewards(path) == before
    adopted = regrade(path, "exact", as_reward=True)
    assert (adopted.graded, adopted.graded_before, adopted.rewards, adopted.mixed_groups) == (0, 12, 12, 0)
    assert rewards(path) == [0, 1, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0]
    assert adopted.report.old_mean == pytest.approx(5 / 12)  # what was before, not what is now
    assert regrade(path, "exact", as_reward=True).rewards == 0
    assert regrade(path, "number", as_reward=True).rewards == 12
    assert regrade(path, "exact", as_reward=True).rewards == 12  # another regrade gave the rewards meanwhile
    assert rewards(path) == [0, 1, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0]
    assert check_run(path).ok


def test_a_failed_grade_leaves_no_old_reward_among_new_ones(tmp_path):
    """Where the grader failed, the reward is null with the error, because old rewards have another scale."""
    path = record(tmp_path / "run", ANSWERS[:1], REFERENCES[:1])

    def grade(rollout):
        return {0: 5.0, 1: 6.0, 2: 7.0}[rollout.index]

    summary = regrade(path, grade, as_reward=True)
    assert (summary.graded, summary.failed, summary.rewards) == (4, 1, 4)
    assert rewards(path) == [5, 6, 7, None]
    with open_run(path) as run:
        [last] = run.rollouts(where='"index" = 3')
    assert (last.reward_score.error.type, last.reward_score.error.layer) == ("KeyError", "grader")


def test_a_grade_that_a_retry_gives_becomes_the_reward(tmp_path):
    """The reward without a value, which the failure had left, is replaced."""
    path, known = record(tmp_path / "run", ANSWERS[:1], REFERENCES[:1]), {0: 5.0, 1: 6.0, 2: 7.0}

    class Known(Grader):
        version = 1

        async def grade(self, rollout):
            return Grade(known[rollout.index])

    assert regrade(path, Known(), as_reward=True).failed == 1
    known[3] = 8.0
    summary = regrade(path, Known(), as_reward=True, retry_failed=True)
    assert (summary.graded, summary.rewards, rewards(path)) == (1, 1, [5, 6, 7, 8])


def test_a_condition_that_splits_groups_is_reported(tmp_path):
    """With a condition, some groups have old and new rewards: the summary says how many."""
    path = record(tmp_path / "run")
    summary = regrade(path, "exact", where='"index" < 2 and "group" <> \'2\'', as_reward=True)
    assert (summary.matched, summary.graded, summary.rewards, summary.mixed_groups) == (4, 4, 4, 2)
    rest = regrade(path, "exact", as_reward=True)
    assert (rest.graded, rest.graded_before, rest.rewards, rest.mixed_groups) == (8, 4, 8, 0)


def test_what_cannot_be_graded_is_skipped_and_counted(tmp_path):
    """Failed, unanswered, retried, superseded and hashed rollouts, and those without a reference, get no score."""
    path = tmp_path / "run"
    with create_run(path) as run:
        add(run, 0, 0, "1", "1")
        with pytest.raises(KeyError), run.rollout(env="sums", task="t", group="0", index=1):
            raise KeyError("broken")
        with run.rollout(env="sums", task="t", group="0", index=2):
            pass  # no step
        add(run, 0, 3, "1", "1", attempt=0)
        add(run, 0, 3, "1", "1", attempt=1)
        with run.rollout(env="sums", task="t", group="0", index=4) as unreferenced:
            unreferenced.step(prompt="q", response="Answer: 1", reward=1.0)
    with create_run(path, join=True, continues=(), trace="numbers") as run:
        add(run, 1, 0, "1", "1")
    old = RunReader(path).ledgers().keys()
    with create_run(path, join=True, continues=old) as run:
        add(run, 0, 0, "2", "1")  # supersedes the first one
    summary = regrade(path, "number")
    assert (summary.matched, summary.graded, summary.failed) == (7, 2, 0)
    assert summary.skipped == {
        "it failed or was cancelled": 1,
        "it was retried": 1,
        "it has no response": 1,
        "it has no reference answer (reference or answer or ground_truth or target or gold in task_data)": 1,
        "only the hash of its text is recorded": 1,
    }
    graded = open_run(path).sql(
        'select r."group", r."index", attempt, value from scores join rollouts r on r.id = rollout order by all'
    )
    assert graded.fetchall() == [("0", 0, 0, 0.0), ("0", 3, 1, 1.0)]
    again = regrade(path, lambda rollout: 1.0)  # a function needs no reference
    assert (again.graded, again.skipped["only the hash of its text is recorded"]) == (3, 1)


def change_meanwhile(monkeypatch, path, change):
    """Change the lines of a run after the tables were made, which name the place of each."""
    [segment] = (path / "rollouts").iterdir()
    counts = RegradeScope.counts

    def count_and_change(scope):
        found = counts(scope)
        segment.write_bytes(b"".join(change(segment.read_bytes().splitlines(keepends=True))))
        return found

    monkeypatch.setattr(RegradeScope, "counts", count_and_change)


def test_lines_that_are_in_another_place_meanwhile_are_found_by_id(tmp_path, monkeypatch):
    """A line of the same length at the place of a rollout is not taken for it."""
    path = record(tmp_path / "run", ANSWERS[:1], REFERENCES[:1])
    change_meanwhile(monkeypatch, path, lambda lines: [lines[1], lines[0], *lines[2:]])
    name = regrade(path, "exact").name
    monkeypatch.undo()
    assert values(path, name) == {(0, 0): [0.0], (0, 1): [1.0], (0, 2): [0.0], (0, 3): [0.0]}


@pytest.mark.parametrize("grader", ["exact", lambda rollout: 1.0], ids=["check", "function"])
def test_a_line_that_is_damaged_meanwhile_is_not_graded(tmp_path, grader, monkeypatch):
    """Also if its bytes still are a rollout: the checksum says that it is not the recorded one."""
    path = record(tmp_path / "run", ANSWERS[:1], REFERENCES[:1])
    change_meanwhile(monkeypatch, path, lambda lines: [line.replace(b"Answer: 3", b"Answer: 4") for line in lines])
    summary = regrade(path, grader)
    assert (summary.graded, summary.skipped) == (3, {"its line cannot be read": 1})


def test_scores_are_flushed_while_they_are_written(tmp_path, monkeypatch):
    """So that a grader that is faster than the disk does not fill the writer's queue, whose scores would be dropped."""
    flushed, flush = [], RunWriter.flush
    monkeypatch.setattr(regrading, "_FLUSH_EVERY", 3)
    monkeypatch.setattr(RunWriter, "flush", lambda writer: flushed.append(writer) or flush(writer))
    assert regrade(record(tmp_path / "run"), lambda rollout: 1.0, as_reward=True).rewards == 12
    assert len(flushed) >= 8


class Spread(GroupGrader):
    """Grades by the order of the indexes, and remembers the groups that it got."""

    version = 3

    def __init__(self, size=4):
        self.size = size
        self.got = []

    async def grade_group(self, rollouts):
        self.got.append([rollout.index for rollout in rollouts])
        grades = {rollout.id: Grade(float(rollout.index)) for rollout in rollouts if rollout.index != 2}
        return GroupGrade(grades, {"size": len(rollouts)})


def test_graders_of_groups_get_whole_groups(tmp_path):
    """Whatever the condition says, every member is graded; a member without a grade has a failed score."""
    path = record(tmp_path / "run")
    grader = Spread()
    summary = regrade(path, grader, where='"group" = \'1\' and "index" = 3')
    assert grader.got == [[0, 1, 2, 3]]
    assert (summary.matched, summary.in_scope, summary.graded, summary.failed) == (1, 4, 4, 1)
    name = summary.name
    assert name == f"regrade/{__name__}:Spread@3"
    assert [value for key, value in values(path, name).items() if key[0] == 1] == [[0.0], [1.0], [None], [3.0]]
    [about_group] = open_run(path).scores(where='"group" is not null')
    assert (about_group.name, about_group.value, about_group.data["reward_data"]) == (
        name,
        pytest.approx(4 / 3),
        {"size": 4},
    )
    assert regrade(path, Spread(), where="\"group\" = '1'").graded == 0
    assert regrade(path, grader).graded == 8


def test_graders_of_groups_see_failed_members_and_the_last_attempt_of_each(tmp_path):
    """As in a play; neither a failed member nor a retried attempt makes the rewards of the group mixed."""
    path, grader = tmp_path / "run", Spread()
    with create_run(path) as run:
        add(run, 0, 0, "1", "1")
        with pytest.raises(KeyError), run.rollout(env="sums", task="t0", group="0", index=1):
            raise KeyError("broken")
        for attempt in range(2):
            add(run, 0, 3, "1", "1", attempt=attempt)
    summary = regrade(path, grader, as_reward=True)
    assert grader.got == [[0, 1, 3]]
    assert (summary.graded, summary.rewards, summary.mixed_groups) == (2, 2, 0)


def test_a_group_that_grew_is_graded_again_as_a_whole(tmp_path):
    """A group may be graded while its last member is still played: the same call grades all members later."""
    path = tmp_path / "run"
    grader = Spread()
    with create_run(path) as run:
        for index in (0, 1):
            add(run, 0, index, "1", "1")
        run.flush()
        assert regrade(path, grader).graded == 2
        assert regrade(path, "number").graded == 2
        add(run, 0, 3, "1", "1")
        run.flush()
        assert regrade(path, "number").graded == 1
        summary = regrade(path, grader)
    assert (grader.got, summary.graded, summary.graded_before) == ([[0, 1], [0, 1, 3]], 3, 0)
    assert (summary.report.scores, summary.report.new_mean) == (3, pytest.approx(4 / 3))


def test_judges_are_asked_and_their_calls_recorded(tmp_path):
    """A rubric asks the policy of its role; the calls are in the scores, and quote the text of the rollout."""
    path = tmp_path / "run"
    long = "word " * 400
    with create_run(path) as run, run.rollout(env="talk", task="t", group="g", index=0) as rollout:
        rollout.step(prompt="Say hello.", response=f"Hello! {long}", reward=0.0)
    grader = RubricGrader([Criterion("Is kind.", name="kind"), Criterion("Is short.", name="short")])
    judge = ScriptedReplies("Well. My code is 1234.\nScore: 0.5", name="judge")
    summary = regrade(path, grader, roles={"grader": judge}, redact=rolltrace.redact_pattern(r"\d{4}"))
    with open_run(path) as run:
        [score] = run.scores()
        assert score.value == pytest.approx(0.5 - 0.1)  # no termination is recorded
        assert [(call.role, call.about) for call in score.calls] == [("grader", "kind"), ("grader", "short")]
        assert long.strip() in score.calls[0].prompt[1].content
        assert run.sql("select count(*) from calls where score is not null").fetchone() == (2,)
        assert "1234" not in score.calls[0].reply.content
    [line] = (path / "scores").glob("*.jsonl")
    assert line.read_text().count("word word") == 0
    assert summary.name.startswith("regrade/rolltrace.graders.rubric_grader:RubricGrader@")
    other = regrade(path, grader, roles={"grader": ScriptedReplies("Score: 1", name="other judge")})
    assert (other.graded, other.name == summary.name) == (1, False)


def test_a_rubric_takes_the_criteria_of_the_task(tmp_path):
    """The built-in rubric grades by `criteria` of `task_data`, or by those of a file; other rollouts are skipped."""
    rolltrace.play("rubric", "scripted:noisy", out=tmp_path / "run", groups=2, group_size=2)
    summary = regrade(tmp_path / "run", "rubric", policy="scripted:noisy")
    assert (summary.graded, summary.failed, summary.skipped) == (4, 0, {})
    path = record(tmp_path / "other", ANSWERS[:1], REFERENCES[:1])
    skipped = regrade(path, "rubric", policy="scripted:noisy")
    assert (skipped.graded, skipped.succeeded) == (0, False)
    assert skipped.skipped == {"its task has no criteria: pass criteria=FILE": 4}
    (tmp_path / "criteria.jsonl").write_text('{"text": "Is kind."}\n')
    args = {"criteria": str(tmp_path / "criteria.jsonl")}
    graded = regrade(path, "rubric", args=args, policy="scripted:noisy")
    assert graded.graded == 4
    (tmp_path / "criteria.jsonl").write_text('{"text": "Is short."}\n')
    assert regrade(path, "rubric", args=args, policy="scripted:noisy").name != graded.name


def test_graders_that_raise_or_take_too_long_are_failed_scores(tmp_path):
    """Each leaves a score without a value, with the error; the others are graded. They can be tried again."""
    path = record(tmp_path / "run", ANSWERS[:1], REFERENCES[:1])
    stuck, hangs = threading.Event(), [True]

    class Fragile(Grader):
        version = "1"

        async def grade(self, rollout):
            if rollout.index == 0:
                raise ZeroDivisionError("by nothing")
            if rollout.index == 1 and hangs:
                await asyncio.Event().wait()
            if rollout.index == 3 and hangs:
                raise TimeoutError("the judge did not answer")
            return "great" if rollout.index == 2 and hangs else Grade(1.0)

    def blocks(rollout):
        return stuck.wait() if rollout.index == 1 else 1.0

    summary = regrade(path, Fragile(), seconds=0.2)
    assert (summary.graded, summary.failed, summary.report.failed, summary.report.compared) == (4, 4, 4, 0)
    assert sorted(summary.report.errors) == [
        "GraderError: Expected "
        + summary.name.partition("/")[2].partition("@")[0]
        + ".grade to return a Grade, got str: 'great': return Grade(reward=…).",
        "TimeoutError: no grade within 0.2 s",
        "TimeoutError: the judge did not answer",
        "ZeroDivisionError: by nothing",
    ]
    assert regrade(path, Fragile(), seconds=0.2).graded == 0
    hangs.clear()
    again = regrade(path, Fragile(), retry_failed=True)
    assert (again.graded, again.failed, again.report.scores, again.report.failed) == (4, 1, 4, 1)
    blocks.version = 1
    blocked = regrade(path, blocks, seconds=0.2)  # a thread cannot be stopped, but it is not waited for
    assert (blocked.graded, blocked.failed) == (4, 1)
    stuck.set()


@pytest.mark.parametrize("batch", [3, 2000])
def test_batches_in_processes_grade_like_the_grader_itself(tmp_path, monkeypatch, batch):
    """Answer checks read only what they need of a line, in processes if there is much; the grades are the same."""
    monkeypatch.setattr(regrading, "_BATCH", batch)
    path = record(tmp_path / "run")
    regrade(path, "number", args={"format_coef": 0.5})
    regrade(path, lambda answer, reference: float(answer == reference))
    with open_run(path) as run:
        grader = rolltrace.AnswerGrader(check="number", format_coef=0.5)
        for rollout in run.rollouts():
            first, second = rollout.scores
            grade = asyncio.run(grader.grade(rollout))
            assert (first.value, first.data["reward_data"], first.data["extra"]) == (
                grade.reward, grade.reward_data, grade.extra,
            )  # fmt: skip
            assert first.data["old_reward"] == rollout.reward
            assert second.value == float(grade.extra["answer"] == grade.extra["reference"])


def test_the_answer_of_the_policy_is_not_taken_for_the_reference(tmp_path):
    """`answer` among the data of a step is what the policy said; the reference is named `reference` there."""
    with create_run(tmp_path / "run") as run, run.rollout(env="e", task="t", group="g", index=0) as rollout:
        rollout.step(prompt="q", response="Answer: 5", reward=0.0, extra={"answer": "5"})
    summary = regrade(tmp_path / "run", "exact")
    assert summary.graded == 0
    named = regrade(tmp_path / "run", "exact", args={"reference": "answer"})
    assert (named.graded, named.report.new_mean) == (1, 1.0)
    assert named.name.startswith("regrade/exact@1-")


def test_names_and_versions(tmp_path, monkeypatch):
    """A version is declared, or a hash of the source and the settings; arguments and policies are part of it."""
    monkeypatch.syspath_prepend(str(tmp_path))
    path = record(tmp_path / "run", ANSWERS[:1], REFERENCES[:1])
    source = """
from dataclasses import dataclass
from rolltrace import Grade, Grader
def half(rollout): return 0.5
@dataclass
class Constant(Grader):
    value: float = 1.0
    async def grade(self, rollout): return Grade(self.value)
class Declared(Constant):
    version = "v7"
def make(value: float = 2.0): return Constant(value)
nothing = 3
def strange(a, b, c): return 0
"""
    (tmp_path / "own_graders.py").write_text(source)

    def name(spec, **arguments):
        return regrade(path, spec, **arguments).name

    first = name("own_graders:half")
    assert first.startswith("regrade/own_graders:half@")
    assert name("own_graders:half") == first
    assert name("own_graders:Declared") == "regrade/own_graders:Declared@v7"
    assert name("own_graders:Declared", args={"value": "3"}).startswith("regrade/own_graders:Declared@v7-")
    names = {name("own_graders:make", args={"value": value}) for value in ("1", "2", "2")}
    assert len(names) == 2
    functions = [constant(value) for value in (1.0, 2.0, 2.0)]
    assert len({name(function) for function in functions}) == 2
    (tmp_path / "own_graders.py").write_text(source + "# changed\n")
    assert name("own_graders:half") != first
    for spec, expected in (
        ("own_graders:nothing", "got int: 3"),
        ("own_graders:strange", "a function of an answer and a reference"),
        ("own_graders:hlaf", "Did you mean 'half'"),
        ("numbr", "Known: auto, exact, math, number, preference, rubric"),
        ("preference", "--policy grader=SPEC"),
    ):
        with pytest.raises(InputError, match=expected):
            regrade(path, spec)
    with pytest.raises(InputError, match="give it an attribute `version`"):
        regrade(path, ThreadLocalGrader())
    with pytest.raises(UnknownNameError, match="Did you mean 'extract'"):
        regrade(path, "exact", args={"extrct": "boxed"})


def constant(value):
    """A function that gives a value that it holds."""
    return lambda rollout: value


class ThreadLocalGrader(Grader):
    """Has settings that cannot be described."""

    def __init__(self):
        self.lock = threading.Lock()

    async def grade(self, rollout):
        return Grade(1.0)


def test_a_condition_must_match(tmp_path):
    """Nothing is written if no rollout matches, or if the condition is wrong."""
    path = record(tmp_path / "run")
    with pytest.raises(InputError, match="got none of 12"):
        regrade(path, "exact", where="reward > 5")
    with pytest.raises(InputError, match="Expected an SQL expression"):
        regrade(path, "exact", where="reward > 5; drop table rollouts")
    record(tmp_path / "run2")
    with pytest.raises(InputError, match="name one of them"):
        regrade(tmp_path, "exact")
    assert list((path / "scores").iterdir()) == []


def test_scores_are_recorded_whatever_the_environment_says(tmp_path, monkeypatch):
    """A setting that keeps runs from being recorded would lose the scores, so it does not apply here."""
    path = record(tmp_path / "run")
    monkeypatch.setenv("ROLLTRACE_TRACE", "off")
    assert regrade(path, "exact").report.scores == 12


def test_a_regrade_changes_neither_the_state_of_a_run_nor_its_sessions(tmp_path):
    """The session of a regrade supersedes nothing, and a run that died still counts as died."""
    rolltrace.play("arithmetic", "scripted:noisy", out=tmp_path / "run", groups=2, group_size=2)
    before = open_run(tmp_path / "run").sql("select * from every_rollout order by id").fetchall()
    regrade(tmp_path / "run", "exact")
    assert open_run(tmp_path / "run").sql("select * from every_rollout order by id").fetchall() == before
    [run] = list_runs(tmp_path).runs
    assert run.state == "complete"


class Waiting(Grader):
    """A grader that waits until it is told to end."""

    version = 1

    def __init__(self):
        self.started, self.ends = asyncio.Event(), asyncio.Event()

    async def grade(self, rollout):
        self.started.set()
        await self.ends.wait()
        return Grade(1.0)


def test_two_regrades_with_the_same_grader_do_not_run_at_once(tmp_path):
    """The second would do everything a second time."""
    path = record(tmp_path / "run")

    async def main():
        waiting = Waiting()
        first = asyncio.create_task(rolltrace.regrade_async(path, waiting))
        await waiting.started.wait()
        with pytest.raises(InputError, match="one is running"):
            await asyncio.wait_for(rolltrace.regrade_async(path, Waiting()), 60)
        waiting.ends.set()
        assert (await first).graded == 12

    asyncio.run(main())


def test_two_regrades_do_not_make_rewards_at_once(tmp_path):
    """Some rollouts of a group would get the values of one, and some those of the other."""
    path = record(tmp_path / "run")

    async def main():
        waiting = Waiting()
        first = asyncio.create_task(rolltrace.regrade_async(path, waiting, as_reward=True))
        await waiting.started.wait()
        with pytest.raises(InputError, match="as reward, but one is running"):
            await rolltrace.regrade_async(path, "exact", as_reward=True)
        assert (await rolltrace.regrade_async(path, "exact")).graded == 12
        waiting.ends.set()
        assert (await first).rewards == 12

    asyncio.run(main())


def test_the_mean_of_huge_grades_of_a_group_is_finite(tmp_path):
    """Their sum is not."""
    path = record(tmp_path / "run", ANSWERS[:1], REFERENCES[:1])

    class Huge(GroupGrader):
        version = 1

        async def grade_group(self, rollouts):
            return GroupGrade({rollout.id: Grade(1e308) for rollout in rollouts}, reward_data={"judged": 1.0})

    summary = regrade(path, Huge())
    with open_run(path) as run:
        sql = f"select value from scores where name = '{summary.name}' and rollout is null"
        assert run.sql(sql).fetchall() == [(1e308,)]


def test_members_without_a_grade_have_the_same_error(tmp_path):
    """The report counts errors by their text."""
    path = record(tmp_path / "run")

    class Lazy(GroupGrader):
        version = 1

        async def grade_group(self, rollouts):
            return {rollouts[0].id: 1.0}

    assert sorted(regrade(path, Lazy()).report.errors.values()) == [3, 9]


def test_damaged_lines_are_reported(tmp_path):
    """A grader of groups gets groups without those members, and the caller learns it."""
    path = record(tmp_path / "run")
    [file] = (path / "rollouts").iterdir()
    file.write_bytes(file.read_bytes().replace(b"What is 0?", b"What is 1?", 1))
    summary = regrade(path, "exact")
    assert summary.graded == 11
    assert len(summary.read_errors) == 1


def test_a_session_that_was_killed_while_it_made_rewards_is_continued(tmp_path):
    """No later session would continue it otherwise, and the run would keep a dead session."""
    path = record(tmp_path / "run")
    summary = regrade(path, "exact")
    [(rollout,)] = open_run(path).sql("select id from rollouts limit 1").fetchall()
    killed = create_run(path, join=True)
    killed.score(rollout, "reward", 1.0, data={"regrade": summary.name})
    killed.flush()
    regrade(path, "exact", as_reward=True)
    with open_run(path) as run:
        assert [killed.session] in [list(ledger.continues or ()) for ledger in run.ledgers().values()]
    killed.close()
