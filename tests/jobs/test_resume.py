"""Completing an interrupted run from Python: what is played again, what may be given, what is refused."""

import asyncio
import json

import msgspec
import pytest

import rolltrace
from rollout_table import table
from rolltrace.envs.registry import load_env
from rolltrace.errors import InputError
from rolltrace.jobs.open_policy import open_policy
from rolltrace.jobs.resume import open_resumption
from rolltrace.query.run_summary import summarize
from rolltrace.store.create import create_run
from rolltrace.store.reader import RunReader
from rolltrace.testing.noisy import NoisyPolicy
from rolltrace.trace.score import GroupKey
from segments import edit_run_info
from stage import NeverAnswers


def play_some(out, until, env="arithmetic", policy="scripted:noisy", **plan):
    """A run as a killed process leaves it: so many whole groups, and of the next all members but one."""
    names = []
    rolltrace.play(env, policy, out=out, on_group=lambda group: names.append(group.key), **plan)
    names.sort(key=lambda key: (key.iteration, key.group))
    whole, partial = names[:until], names[until]
    [segment] = out.glob("rollouts/*")
    kept = []
    for line in segment.read_bytes().splitlines(keepends=True):
        fields = json.loads(line)
        key = GroupKey(fields["split"], fields["iteration"], fields["env"], fields["group"])
        if key in whole or (key == partial and fields["index"] > 0):
            kept.append(line)
    segment.write_bytes(b"".join(kept))
    return [key.group for key in whole]


def test_only_unfinished_groups_are_played(tmp_path):
    """What is finished stays, the rest is played with the same seeds, and the new session says what it continues."""
    plan = {"groups": 4, "iterations": 2, "group_size": 3}
    rolltrace.play("arithmetic", "scripted:noisy", out=tmp_path / "whole", **plan)
    finished = play_some(tmp_path / "run", 3, **plan)
    before = {rollout.id for rollout in RunReader(tmp_path / "run").rollouts() if rollout.group in finished}
    played = []
    summary = rolltrace.play(resume=tmp_path / "run", on_group=lambda group: played.append(group.group))
    assert summary.groups == len(played) == 5
    assert not set(played) & set(finished)
    assert table(tmp_path / "run") == table(tmp_path / "whole")
    with rolltrace.open_run(tmp_path / "run") as run:
        assert before <= {rollout.id for rollout in run.rollouts()}
        first, second = sorted(run.ledgers())
        assert run.ledgers()[second].continues == (first,)


def test_a_complete_run_is_left_alone(tmp_path):
    """There is nothing to play, and no session is added."""
    rolltrace.play("arithmetic", "scripted:noisy", out=tmp_path / "run", groups=2)
    files = sorted(tmp_path.glob("run/rollouts/*"))
    summary = rolltrace.play(resume=tmp_path / "run")
    assert (summary.groups, summary.rollouts, summary.succeeded) == (0, 0, True)
    assert sorted(tmp_path.glob("run/rollouts/*")) == files
    assert len(RunReader(tmp_path / "run").ledgers()) == 1


async def test_play_async_resumes(tmp_path):
    """In a running loop, too."""
    await asyncio.to_thread(play_some, tmp_path / "run", 1, groups=3)
    summary = await rolltrace.play_async(resume=tmp_path / "run")
    assert summary.groups == 2


def test_names_are_the_same_where_tasks_repeat(tmp_path):
    """Groups that play one task several times in an iteration keep their names."""
    plan = {"env": "problems", "groups": 80, "group_size": 1}
    rolltrace.play("problems", "scripted:noisy", out=tmp_path / "whole", groups=80, group_size=1)
    play_some(tmp_path / "run", 60, **plan)
    rolltrace.play(resume=tmp_path / "run")
    assert any("~2" in row for row in table(tmp_path / "whole"))
    assert table(tmp_path / "run") == table(tmp_path / "whole")


class Broken(NoisyPolicy):
    """Fails for the first member of one group, at its first attempts or always; siblings may wait to be cancelled."""

    def __init__(self, group, attempts=99, siblings_wait=False):
        super().__init__()
        self.group, self.attempts, self.siblings_wait = group, attempts, siblings_wait

    async def complete(self, request):
        if request.identity.group == self.group and request.identity.attempt < self.attempts:
            if request.identity.index == 0:
                raise ConnectionError("refused")
            if self.siblings_wait:
                await asyncio.wait_for(asyncio.Event().wait(), 60)
        return await super().complete(request)


@pytest.mark.parametrize("strategy", [rolltrace.FailFast(), rolltrace.KeepViable()])
@pytest.mark.parametrize("retries", [0, 2])
def test_a_failure_is_a_result(tmp_path, strategy, retries):
    """A group that failed is finished, with the siblings that fail-fast cancelled and the retries that were made."""
    is_fail_fast = strategy == rolltrace.FailFast()
    policy = Broken("difficulty1-seed0-1", siblings_wait=is_fail_fast)
    plan = {"groups": 3, "strategy": strategy, "retries": retries}
    finished = play_some(tmp_path / "run", 2, policy=policy, **plan)
    assert policy.group in finished
    cancelled = [rollout for rollout in RunReader(tmp_path / "run").rollouts() if rollout.status == "cancelled"]
    assert len(cancelled) == (3 if is_fail_fast else 0)
    played = []
    rolltrace.play(resume=tmp_path / "run", policy=policy, on_group=lambda group: played.append(group.group))
    assert len(played) == 1
    assert played[0] not in finished
    assert rolltrace.play(resume=tmp_path / "run", policy=policy).groups == 0
    assert summarize(tmp_path / "run").state == "complete"
    whole = rolltrace.play("arithmetic", policy, out=tmp_path / "whole", **plan)
    assert whole.groups == 3
    assert summarize(tmp_path / "whole").state == "complete"


def test_cancelled_siblings_of_a_failure_are_not_finished(tmp_path):
    """Without fail-fast a failure aborts no siblings: those that were cancelled are left to play, and readers agree."""
    policy = Broken("difficulty1-seed0-1")
    rolltrace.play("arithmetic", policy, out=tmp_path / "run", groups=3)
    [segment] = tmp_path.glob("run/rollouts/*")
    lines = [json.loads(line) for line in segment.read_bytes().splitlines()]
    for line in lines:
        if line["group"] == policy.group and line["index"] == 1:
            line.update(status="cancelled", stop_reason="cancelled")
    segment.write_bytes(b"".join(msgspec.json.encode(line) + b"\n" for line in lines))
    assert summarize(tmp_path / "run").state == "interrupted"
    assert open_resumption(tmp_path / "run").groups_left == 1


def test_an_episode_that_was_to_be_retried_is_not_finished(tmp_path):
    """A failed attempt with retries left is what a killed process leaves; the group is played again from attempt 0."""
    policy = Broken("difficulty1-seed0-1", attempts=1)
    rolltrace.play("arithmetic", policy, out=tmp_path / "whole", groups=2, retries=1)
    rolltrace.play("arithmetic", policy, out=tmp_path / "run", groups=2, retries=1)
    [segment] = tmp_path.glob("run/rollouts/*")
    kept = [line for line in segment.read_bytes().splitlines(keepends=True) if json.loads(line)["attempt"] == 0]
    segment.write_bytes(b"".join(kept))
    assert rolltrace.play(resume=tmp_path / "run", policy=policy).groups == 1
    assert table(tmp_path / "run") == table(tmp_path / "whole")


def test_leftover_attempts_are_superseded(tmp_path):
    """What an old session left is superseded, also where the new one needs fewer attempts."""
    flaky, sound = Broken("difficulty1-seed0-1", attempts=1), Broken("none")
    rolltrace.play("arithmetic", flaky, out=tmp_path / "run", groups=2, retries=1)
    [segment] = tmp_path.glob("run/rollouts/*")
    lines = segment.read_bytes().splitlines(keepends=True)
    segment.write_bytes(b"".join(lines[:-1]))  # a member of the last group is lost
    rolltrace.play(resume=tmp_path / "run", policy=sound)
    with rolltrace.open_run(tmp_path / "run") as run:
        assert run.sql("select count(*), max(attempt) from rollouts").fetchone() == (8, 0)


class Judges(NoisyPolicy):
    """Compares only when it may."""

    may_grade = True

    async def complete(self, request):
        if request.role == "grader" and not self.may_grade:
            raise ConnectionError("no judge")
        return await super().complete(request)


def test_a_missing_score_is_not_a_result_but_a_failed_one_is(tmp_path):
    """A group whose grader failed is finished; one whose scores are not on disk is played again."""
    policy = Judges()
    policy.may_grade = False
    rolltrace.play("preference", policy, out=tmp_path / "failed", groups=2)
    assert rolltrace.play(resume=tmp_path / "failed", policy=policy).groups == 0
    rolltrace.play("preference", "scripted:noisy", out=tmp_path / "lost", groups=2)
    rolltrace.play("preference", "scripted:noisy", out=tmp_path / "whole", groups=2)
    [segment] = tmp_path.glob("lost/scores/*")
    lines = segment.read_bytes().splitlines(keepends=True)
    segment.write_bytes(b"".join(lines[:-1]))
    assert rolltrace.play(resume=tmp_path / "lost").groups == 1
    assert len(table(tmp_path / "lost")) == len(table(tmp_path / "whole")) == 8
    assert rolltrace.play(resume=tmp_path / "lost").groups == 0


async def test_a_group_that_was_cancelled_while_it_was_graded_is_not_finished(tmp_path):
    """Its members ended and have a reward score that says that nothing graded them."""
    grader = NeverAnswers()
    play = rolltrace.play_async("preference", "scripted:noisy", out=tmp_path / "run", roles={"grader": grader})
    task = asyncio.create_task(play)
    await grader.asked.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    roles = {"grader": "scripted:noisy"}
    assert (await rolltrace.play_async(resume=tmp_path / "run", roles=roles)).groups == 1
    await rolltrace.play_async("preference", "scripted:noisy", out=tmp_path / "whole")
    for name in ("run", "whole"):
        with rolltrace.open_run(tmp_path / name) as run:
            assert run.sql("select count(*), count(reward) from rollouts").fetchone() == (4, 4)
            assert run.sql("select count(*), count(error_type) from calls").fetchone() == (12, 0)


# What may be given


def test_policies_and_concurrency_may_be_given(tmp_path):
    """The rest of the run is played by them; the run's own are the default."""
    play_some(tmp_path / "run", 1, groups=2)
    rolltrace.play(resume=tmp_path / "run", policy="scripted:noisy,correct=1,name=better", concurrency=3)
    with rolltrace.open_run(tmp_path / "run") as run:
        found = run.sql("select policy, count(*) from rollouts group by 1 order by 1").fetchall()
    assert found == [("better", 4), ("scripted:noisy", 4)]


def test_recording_is_as_it_was(tmp_path, monkeypatch):
    """Level, fraction and tokens come from the run, not from the environment's variables."""
    play_some(tmp_path / "run", 1, groups=2, trace="numbers")
    monkeypatch.setenv("ROLLTRACE_TRACE", "full")
    rolltrace.play(resume=tmp_path / "run")
    contents = {message.content for rollout in RunReader(tmp_path / "run").rollouts() for message in rollout.messages}
    assert contents == {""} or not any("Answer" in content for content in contents)


def test_a_run_that_was_redacted_is_redacted(tmp_path):
    """The function must be given again, and nothing else of the recording may be."""

    def hide(value):
        return value

    play_some(tmp_path / "run", 1, groups=2, trace=rolltrace.Recording(redact=hide))
    with pytest.raises(InputError, match="with a redaction function"):
        rolltrace.play(resume=tmp_path / "run")
    with pytest.raises(InputError, match="only redact"):
        rolltrace.play(resume=tmp_path / "run", trace=rolltrace.Recording(redact=hide, level="numbers"))
    assert rolltrace.play(resume=tmp_path / "run", trace=rolltrace.Recording(redact=hide)).groups == 1


def test_a_run_that_was_not_redacted_takes_no_redaction(tmp_path):
    """The groups of one run are recorded alike."""
    play_some(tmp_path / "run", 1, groups=2)
    with pytest.raises(InputError, match=r"without a redaction function: leave trace= out\.$"):
        rolltrace.play(resume=tmp_path / "run", trace=rolltrace.Recording(redact=lambda value: value))


def test_objects_are_given_again(tmp_path):
    """An env or policy that was a Python object cannot be loaded by its name."""
    play_some(tmp_path / "run", 1, env=load_env("arithmetic"), policy=open_policy("scripted:noisy"), groups=2)
    with pytest.raises(InputError, match=r"policy 'scripted:noisy' of .* was a Python object"):
        rolltrace.play(resume=tmp_path / "run")
    with pytest.raises(InputError, match=r"environment arithmetic of .* was a Python object"):
        rolltrace.play(resume=tmp_path / "run", policy="scripted:noisy")
    with pytest.raises(InputError, match="which is arithmetic, got calculator"):
        rolltrace.play(load_env("calculator"), "scripted:noisy", resume=tmp_path / "run")
    assert rolltrace.play(load_env("arithmetic"), "scripted:noisy", resume=tmp_path / "run").groups == 1


@pytest.mark.parametrize("field", [{"groups": 9}, {"seed": 1}, {"split": "test"}, {"out": "elsewhere"}])
def test_the_plan_is_not_given_again(tmp_path, field):
    """A run is completed as it was planned."""
    play_some(tmp_path / "run", 1, groups=2)
    with pytest.raises(InputError, match=f"Expected no {next(iter(field))} with resume="):
        rolltrace.play(resume=tmp_path / "run", **field)


def test_arguments_are_those_of_the_run(tmp_path):
    """They decide the tasks; only secrets, which the run does not hold, are given again."""
    play_some(tmp_path / "run", 1, groups=2, args={"difficulty": 2})
    with pytest.raises(InputError, match="got difficulty"):
        rolltrace.play(resume=tmp_path / "run", args={"difficulty": 3})
    assert rolltrace.play(resume=tmp_path / "run").groups == 1


class Dataset:
    """Rows in an object, as a `datasets.Dataset` has them."""

    def __init__(self, rows):
        self.rows = list(rows)

    def __iter__(self):
        return iter(self.rows)

    def __len__(self):
        return len(self.rows)


def test_data_that_was_an_object_is_given_again(tmp_path):
    """The run holds what it was, not what is in it; with the same data, the run is completed."""
    data = Dataset({"question": f"{n} + 1?", "answer": n + 1} for n in range(4))
    play_some(tmp_path / "run", 1, env="problems", groups=2, args={"data": data, "examples": 1})
    config = json.loads((tmp_path / "run/run.json").read_text())["config"]
    assert config["args"] == {"data": f"{__name__}.Dataset of 4", "examples": 1}
    with pytest.raises(InputError, match=r"arguments data of .* were Python objects: .*args=\{\"data\": …\}"):
        rolltrace.play(resume=tmp_path / "run")
    with pytest.raises(InputError, match="got examples"):
        rolltrace.play(resume=tmp_path / "run", args={"data": data, "examples": 2})
    assert rolltrace.play(resume=tmp_path / "run", args={"data": data}).groups == 1


def test_long_lists_are_given_again(tmp_path):
    """A dataset in a list is not copied into run.json, unless it is small."""
    rows = [{"question": f"{n} + 1?", "answer": n + 1} for n in range(2000)]
    play_some(tmp_path / "short", 1, env="problems", groups=2, args={"data": rows[:4]})
    assert rolltrace.play(resume=tmp_path / "short").groups == 1
    play_some(tmp_path / "run", 1, env="problems", groups=2, args={"data": rows})
    assert (tmp_path / "run/run.json").stat().st_size < 10_000
    config = json.loads((tmp_path / "run/run.json").read_text())["config"]
    assert (config["args"], config["objects"]) == ({"data": "list of 2000"}, ["args.data"])
    with pytest.raises(InputError, match=r"arguments data of .* were Python objects: .*args=\{\"data\": …\}"):
        rolltrace.play(resume=tmp_path / "run")
    assert rolltrace.play(resume=tmp_path / "run", args={"data": rows}).groups == 1


# What is refused


def test_other_tasks_are_refused(tmp_path):
    """An environment whose data changed would mix two runs; nothing is played."""
    data = tmp_path / "data.jsonl"
    data.write_text("".join(f'{{"id": "a{number}", "question": "1+1?", "answer": "2"}}\n' for number in range(4)))
    play_some(tmp_path / "run", 2, env="problems", groups=4, args={"data": str(data)})
    data.write_text("".join(f'{{"id": "b{number}", "question": "1+1?", "answer": "2"}}\n' for number in range(4)))
    with pytest.raises(InputError, match="its tasks, data or code have changed"):
        rolltrace.play(resume=tmp_path / "run")
    assert len(RunReader(tmp_path / "run").ledgers()) == 1


def test_runs_of_other_programs_are_refused(tmp_path):
    """A loop of its own has no plan that could be completed."""
    with (
        create_run(tmp_path / "run", config={"groups": 3}) as run,
        run.rollout(env="mine", task="1", group="1", index=0),
    ):
        pass
    with pytest.raises(InputError, match="Expected a run that `rolltrace run` or"):
        rolltrace.play(resume=tmp_path / "run")


def test_runs_without_records_are_refused(tmp_path):
    """Where nothing was recorded, nothing says what is finished."""
    rolltrace.play("arithmetic", "scripted:noisy", out=tmp_path / "run", trace="off")
    with pytest.raises(InputError, match="--trace off"):
        rolltrace.play(resume=tmp_path / "run")


def test_a_run_that_may_still_be_played_is_refused(tmp_path):
    """A session that is not closed and wrote less than 30 s ago is resumed by force only."""
    play_some(tmp_path / "run", 1, groups=2)
    with create_run(tmp_path / "run", join=True) as alive:
        with alive.rollout(env="other", task="1", group="1", index=0, split="test"):
            pass
        alive.flush()
        with pytest.raises(InputError, match="may still be running"):
            rolltrace.play(resume=tmp_path / "run")
        assert rolltrace.play(resume=tmp_path / "run", force=True).groups == 1


def test_of_two_resumes_at_once_one_is_refused(tmp_path):
    """A session that began after the run was read plays the same groups, whether it is still open or not."""
    play_some(tmp_path / "run", 1, groups=2)
    late = open_resumption(tmp_path / "run")
    with create_run(tmp_path / "run", join=True, continues=late.sessions) as other:
        other.flush()
        with pytest.raises(InputError, match=f"session {other.session} of .* began"):
            rolltrace.play(resume=late)
    with pytest.raises(InputError, match=f"session {other.session} of .* began"):
        rolltrace.play(resume=late)
    assert len(RunReader(tmp_path / "run").ledgers()) == 2
    assert rolltrace.play(resume=tmp_path / "run").groups == 1


@pytest.mark.parametrize("is_first", [True, False])
def test_of_two_resumes_that_join_at_once_the_later_one_stops(tmp_path, monkeypatch, is_first):
    """Neither saw the other before it joined; the one with the larger id plays nothing."""
    play_some(tmp_path / "run", 1, groups=2)
    others = []

    def join_both(path, **options):
        opened = [create_run(path, **options) for _ in range(2)]
        opened.sort(key=lambda writer: writer.session, reverse=not is_first)
        opened[1].flush()
        others.append(opened[1])
        return opened[0]

    monkeypatch.setattr("rolltrace.jobs.play.create_run", join_both)
    if is_first:
        assert rolltrace.play(resume=tmp_path / "run").groups == 1
    else:
        with pytest.raises(InputError, match=r"session .* of .* began"):
            rolltrace.play(resume=tmp_path / "run")
    others[0].close()
    with rolltrace.open_run(tmp_path / "run") as run:
        assert all(ledger.closed for ledger in run.ledgers().values())
    monkeypatch.undo()
    assert rolltrace.play(resume=tmp_path / "run").groups == (0 if is_first else 1)
    with rolltrace.open_run(tmp_path / "run") as run:
        assert run.sql("select count(*), count(*) filter (collides) from rollouts").fetchone() == (8, 0)


def test_changed_code_is_told(tmp_path, caplog):
    """Another revision of the working directory is a warning, not an error."""
    play_some(tmp_path / "run", 1, groups=2)
    edit_run_info(tmp_path / "run", code_revision="0" * 40)
    assert "from revision 0000" in open_resumption(tmp_path / "run").warnings[0]
    assert rolltrace.play(resume=tmp_path / "run").groups == 1
    assert "The code has changed" in caplog.text


def test_something_to_play_is_needed(tmp_path):
    """Either an env, a policy and a place, or a run to resume."""
    with pytest.raises(InputError, match="Expected env, policy and out="):
        rolltrace.play("arithmetic", out=tmp_path / "run")
    with pytest.raises(InputError, match="force only with resume="):
        rolltrace.play("arithmetic", "scripted:noisy", out=tmp_path / "run", force=True)


class NoBuilder(rolltrace.Tasks):
    """Cannot make any task."""

    env = "none"

    def builder(self, number, *, episodes, seed):
        raise LookupError("no such level")


def test_a_refused_play_leaves_nothing_behind(tmp_path):
    """Where the first task cannot be made, the corrected command can use the same place."""
    with pytest.raises(rolltrace.EnvError, match="no such level"):
        rolltrace.play(NoBuilder(), "scripted:noisy", out=tmp_path / "run")
    assert not (tmp_path / "run").exists()
    assert rolltrace.play("arithmetic", "scripted:noisy", out=tmp_path / "run").succeeded
