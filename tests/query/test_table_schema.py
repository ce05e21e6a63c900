"""The tables agree with the records."""

import json
import math
from collections import defaultdict
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from statistics import fmean, pstdev
from tempfile import TemporaryDirectory

import msgspec
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from answers import score, write
from rollout_builders import header, outcome, same
from rolltrace.query import run_tables
from rolltrace.query.compact import compact
from rolltrace.query.run import open_run
from rolltrace.query.score_order import latest_rewards
from rolltrace.query.table_schema import STORED_COLUMNS
from rolltrace.store.create import create_run
from rolltrace.trace.call import Call
from rolltrace.trace.codec import add_checksum, decode_score, utc_now
from rolltrace.trace.failure import Failure
from rolltrace.trace.message import Message, ToolCall
from rolltrace.trace.rollout import Rollout, Step
from rolltrace.trace.score import GroupKey, Score
from rolltrace.trace.stop_reasons import Layer, Status, Termination
from rolltrace.trace.tokens import Usage

REWARDS = st.one_of(
    st.none(),
    st.floats(-2, 2).map(lambda value: value + 0.0),
    st.sampled_from([math.nan, math.inf, -math.inf, 0.0, 1.0]),
)
"""Without a zero that has a sign: SQL does not keep it."""
PLAYS = st.lists(
    st.fixed_dictionaries(
        {
            "session": st.integers(0, 2),
            "iteration": st.integers(0, 1),
            "group": st.sampled_from(["a", "b"]),
            "index": st.integers(0, 2),
            "attempt": st.integers(0, 2),
            "reward": REWARDS,
            "scores": st.lists(st.tuples(st.integers(0, 3), REWARDS), max_size=2),
        }
    ),
    max_size=14,
)


def play(path, plays):
    """Writes the plays, session by session."""
    moment = utc_now()
    for session in sorted({one["session"] for one in plays}):
        with create_run(path, join=path.exists()) as writer:
            for one in (one for one in plays if one["session"] == session):
                fields = {name: one[name] for name in ("iteration", "group", "index", "attempt", "reward")}
                rollout = write(writer, **fields)
                for seconds, value in one["scores"]:
                    score(writer, rollout, value, created_at=moment + timedelta(seconds=seconds))


def expected(run):
    """The reward and the flags of each rollout by id, computed from the records one by one."""
    [reader] = run._readers
    rollouts = list(reader.rollouts())
    late = latest_rewards((place, decode_score(line)) for place, line in reader.cursor("scores").read())
    rewards = {one.id: late.get(one.id, one.line_reward) for one in rollouts}
    place = {one.id: (one.iteration, one.group, one.index) for one in rollouts}
    last_session, last_attempt = defaultdict(str), defaultdict(int)
    for one in rollouts:
        last_session[place[one.id]] = max(last_session[place[one.id]], one.session)
        key = (place[one.id], one.session)
        last_attempt[key] = max(last_attempt[key], one.attempt)
    return {
        one.id: (
            rewards[one.id],
            one.session < last_session[place[one.id]],
            one.attempt < last_attempt[place[one.id], one.session],
        )
        for one in rollouts
    }


def expected_groups(run, facts):
    groups = defaultdict(list)
    for one in run._readers[0].rollouts():
        reward, superseded, retried = facts[one.id]
        if not superseded and not retried:
            groups[one.iteration, one.group].append((one.index, one.id, reward))
    return {key: sorted(members, key=lambda member: member[:2]) for key, members in groups.items()}


def check(run):
    facts = expected(run)
    rows = run.sql("select id, reward, superseded, retried from every_rollout").fetchall()
    assert len(rows) == len(facts)
    wrong = [(row, facts[row[0]]) for row in rows if not same(facts[row[0]], row[1:])]
    assert wrong == []
    kept = {id_ for id_, (_, superseded, _) in facts.items() if not superseded}
    assert {id_ for [id_] in run.sql("select id from rollouts").fetchall()} == kept
    assert {id_ for [id_] in run.sql("select rollout from steps").fetchall()} == kept
    assert {id_ for [id_] in run.sql("select rollout from messages").fetchall()} == kept
    assert {rollout.id for rollout in run.rollouts()} == kept
    groups = expected_groups(run, facts)
    found = run.sql('select iteration, "group", size, n, mean, std, has_signal, members from groups').fetchall()
    assert {row[:2] for row in found} == set(groups)
    for iteration, group, size, n, mean, std, has_signal, members in found:
        known = [reward for _, _, reward in groups[iteration, group] if reward is not None]
        assert (size, n) == (len(members), len(known))
        assert [(one["index"], one["id"]) for one in members] == [one[:2] for one in groups[iteration, group]]
        if known and all(map(math.isfinite, known)):
            assert (mean, std) == pytest.approx((fmean(known), pstdev(known)), abs=1e-9)
            assert has_signal == (len(known) > 1 and max(known) > min(known))
            advantages = [None if one["reward"] is None else one["reward"] - mean for one in members]
            assert [one["advantage"] for one in members] == pytest.approx(advantages)
        else:
            assert (mean, std) == (None, None) if not known else math.isnan(mean) and math.isnan(std)


# A failure is reported unshrunk: shrinking would write and compact hundreds of runs.
PHASES = [Phase.explicit, Phase.reuse, Phase.generate]


@settings(max_examples=3, phases=PHASES)
@given(PLAYS, PLAYS, PLAYS)
def test_tables_agree_with_records(first, second, third):
    """Rewards, repeats and groups are those of the records: live, extended, compacted, and extended after that."""
    write_and_check(first, second, third)


@pytest.mark.slow
@settings(max_examples=60, phases=PHASES)
@given(PLAYS, PLAYS, PLAYS)
def test_tables_agree_with_records_in_many_runs(first, second, third):
    """The same property, over more runs."""
    write_and_check(first, second, third)


def write_and_check(first, second, third):
    with TemporaryDirectory() as folder:
        path = Path(folder) / "run"
        create_run(path).close()
        with open_run(path) as run:
            play(path, first)
            check(run)
            play(path, second)
            check(run)
            compact(path)
            with open_run(path) as again:
                check(again)
                play(path, third)
                check(again)
            check(run)


WITHOUT_COLUMN = {
    Rollout: {
        "v", "error", "grade", "messages", "tools", "sampling", "final", "pending_prompt", "pending_raw",
        "ended_before_first_turn",
    },
    Step: {"prompt", "tokens", "tools", "usage"},
}  # fmt: skip
"""The fields that no column of the same name shows; several columns show parts of some of them."""


def in_sql(value, kind):
    """A field as a column of this type shows it: a list of records as their number."""
    if value is None:
        return None
    if kind == "BIGINT":
        return len(value) if isinstance(value, tuple) else value
    if kind == "VARCHAR":
        return str(getattr(value, "value", value))
    if kind == "TIMESTAMP":
        return value.replace(tzinfo=None)
    if kind.startswith("MAP"):
        return {name: float(number) for name, number in value.items()}
    return plain(value)


def plain(value):
    """A value without frozen maps and tuples."""
    if isinstance(value, Mapping):
        return {name: plain(item) for name, item in value.items()}
    return [plain(item) for item in value] if isinstance(value, tuple | list) else value


def check_columns(row, record, columns, but=()):
    """Asserts that every field of the record is in the column of its name, except for the known ones."""
    names = set(record.__struct_fields__) - WITHOUT_COLUMN[type(record)]
    assert names <= set(row)
    for name in names - set(but):
        shown = json.loads(row[name]) if columns[name] == "JSON" and row[name] is not None else row[name]
        assert shown == in_sql(getattr(record, name), columns[name]), name


def test_every_field_has_its_column(path, opened):
    """The fields of a rollout, its steps and its messages are read back from their tables."""
    with create_run(path) as writer:
        id_ = write(
            writer, split="test", iteration=4, env="e", env_args={"a": [1, None]}, seed=7, task="k",
            task_data={"answer": "é\x00"}, group="g", index=2, episode=1, seat=0, policy="p", policy_version=12,
            tags=("x", "y"), metrics={"m": 1, "flag": True}, status=Status.ERROR, stop_reason="error", reward=None,
            reward_so_far=0.5, error=Failure(Layer.ENV, "ValueError", "no", "trace"),
            step={
                "reward_data": {"correct": True, "n": 3}, "env_state": {"board": [[1]]}, "extra": {"k": "v"},
                "metrics": {"z": 0.25}, "logs": {"l": "m"}, "termination": Termination.EOS, "parse_error": "why",
                "raw": "2 ", "policy_version": "v1", "usage": Usage(31, 9), "seconds": 0.5,
            },
        )  # fmt: skip
    run = opened(path)
    [row] = run.sql("select * from rollouts").dicts()
    record = run.get(id_)
    check_columns(row, record, STORED_COLUMNS["rollouts"])
    assert row["reward"] == record.reward
    assert (row["policy_version"], row["tags"], row["metrics"]) == ("12", ["x", "y"], {"m": 1.0, "flag": 1.0})
    assert json.loads(row["task_data"]) == {"answer": "é\x00"}
    assert row["seconds"] == pytest.approx(record.seconds)
    assert (row["error_layer"], row["error_type"], row["error_message"]) == ("env", "ValueError", "no")
    assert (row["steps"], row["prompt_tokens"], row["completion_tokens"], row["calls"]) == (1, 31, 9, 0)
    [step] = run.sql("select * from steps").dicts()
    check_columns(step, record.steps[0], STORED_COLUMNS["steps"], but=["response", "sampling"])  # these are places
    assert (step["rollout"], step["iteration"], step["step"], step["response"]) == (id_, 4, 0, "2")
    assert (step["reward_data"], step["env_state"]) == ({"correct": 1.0, "n": 3.0}, '{"board":[[1]]}')
    assert (step["prompt_tokens"], step["prompt_messages"]) == (31, 1)
    messages = run.sql("select position, step, role, content from messages order by position").fetchall()
    assert messages == [(0, None, "user", "1 + 1?"), (1, 0, "assistant", "2")]


def test_messages_keep_calls_and_reasoning(path, opened):
    """Tool calls and reasoning of a message are in its row."""
    with create_run(path) as writer:
        rollout_builder = writer.begin(header(run=writer.run, session=writer.session))
        rollout_builder.extend([Message("user", "?")])
        rollout_builder.mark_prompt_sent()
        rollout_builder.step(
            Message("assistant", "", tool_calls=(ToolCall("f", "{}", "1"),), reasoning="hm"), reward=0.0
        )
        rollout_builder.extend([Message("tool", "3", tool_call_id="1", name="f")])
        writer.end(rollout_builder, outcome())
    rows = opened(path).sql(
        "select reasoning, tool_calls ->> '$[0].name', tool_call_id, name from messages order by position"
    )
    assert rows.fetchall() == [(None, None, None, None), ("hm", "f", None, None), (None, None, "1", "f")]


def test_rate_is_over_all_rollouts(path, opened):
    """The rate of a stop reason is a fraction of all rollouts."""
    with create_run(path) as writer:
        for index in range(8):
            write(writer, index=index, stop_reason="parse_error" if index < 2 else "completed", reward=None)
    share = opened(path).sql("select avg((stop_reason = 'parse_error')::int) from rollouts").fetchone()
    assert share == (0.25,)


def test_numbers_that_are_not_finite_stay_numbers(path, opened):
    """NaN and infinities are numbers in every column and map."""
    with create_run(path) as writer:
        write(writer, reward=math.nan, reward_so_far=-math.inf, metrics={"a": math.inf, "b": math.nan})
    row = opened(path).sql("select reward, reward_so_far, metrics['a'], metrics['b'] from rollouts").fetchone()
    assert same(row, (math.nan, -math.inf, math.inf, math.nan))


def test_integers_of_any_size(path, opened):
    """An integer beyond 64 bits is null in a column and a float in a map, and affects nothing else."""
    with create_run(path) as writer:
        id_ = write(writer, seed=2**70, metrics={"big": 2**200, "huge": 2**5000}, env_args={"n": 2**90})
        write(writer, index=1, seed=-(2**63), metrics={"big": -5})
    run = opened(path)
    rows = run.sql("select seed, metrics['big'], metrics['huge'], env_args ->> 'n' from rollouts order by \"index\"")
    assert rows.fetchall() == [(None, 2.0**200, math.inf, str(2**90)), (-(2**63), -5.0, None, None)]
    assert run.get(id_).seed == 2**70


def test_iteration_past_64_bits(path, opened, monkeypatch):
    """An iteration beyond 64 bits in a foreign line is null, and the part is stored."""
    with create_run(path) as writer:
        write(writer, iteration=7)
    [segment] = (path / "rollouts").iterdir()
    line = segment.read_bytes().replace(b'"iteration":7', b'"iteration":%d' % 2**70)
    segment.write_bytes(add_checksum(line.rpartition(b',"crc":"')[0] + b"}"))
    monkeypatch.setattr(run_tables, "MIN_CACHED_BYTES", 1)
    assert opened(path).sql("select iteration from rollouts").fetchall() == [(None,)]
    assert list((path / "cache").glob("part-rollouts-*"))


def test_key_may_appear_late(path, opened):
    """A key that only a late record has is a column entry, and null before."""
    with create_run(path) as writer:
        for index in range(300):
            write(writer, index=index, metrics={"early": 1.0} if index < 299 else {"late": 2.0})
    query = "select count(metrics['late']), sum(metrics['late']), count(metrics['early']) from rollouts"
    assert opened(path).sql(query).fetchone() == (1, 2.0, 299)


def test_scores_of_unknown_rollouts_and_of_groups(path, opened):
    """A score is in its table whatever it is about, and changes no other reward."""
    with create_run(path) as writer:
        write(writer, reward=0.5)
        score(writer, "nobody", 9.0)
        score(writer, None, None, group=GroupKey("train", 0, "sums", "g"), error=Failure(Layer.GRADER, "E", "m"))
        score(writer, None, 3.0, name="note", data={"a": math.nan})
    run = opened(path)
    assert run.sql("select reward from rollouts").fetchall() == [(0.5,)]
    rows = run.sql('select rollout, "group", name, value, error_layer from scores order by created_at').fetchall()
    assert rows[0] == ("nobody", None, "reward", 9.0, None)
    assert rows[1] == (None, "g", "reward", None, "grader")


def test_null_score_removes_a_reward(path, opened):
    """The latest score counts also if it is null; an older one that is written late does not."""
    moment = utc_now()
    with create_run(path) as writer:
        one, two = write(writer, reward=0.5), write(writer, index=1, reward=0.5)
        score(writer, one, 1.0, created_at=moment)
        score(writer, one, None, created_at=moment + timedelta(seconds=1))
        score(writer, two, 2.0, created_at=moment + timedelta(seconds=5))
    compact(path)
    with create_run(path, join=True) as writer:
        score(writer, two, 1.0, created_at=moment)
    rows = opened(path).sql('select reward, line_reward from rollouts order by "index"').fetchall()
    assert rows == [(None, 0.5), (2.0, 0.5)]


def test_a_later_line_wins_though_the_clock_was_set_back(path, opened):
    """Of one session's scores the last line counts, in Python and SQL, before and after compaction."""
    noon = utc_now()
    with create_run(path) as writer, opened(path) as run:
        rollout = write(writer, reward=None)
        for hours, value in ((0, 1.0), (-1, 2.0), (-2, 3.0)):
            score(writer, rollout, value, created_at=noon + timedelta(hours=hours))
            writer.flush()
            assert run.get(rollout).reward == value
            assert run.sql("select reward from rollouts").fetchall() == [(value,)]
            compact(path)
        with create_run(path, join=True) as other:
            score(other, rollout, 4.0, created_at=noon - timedelta(hours=1))
        assert run.get(rollout).reward == 3.0  # another session's, and earlier than the first one's scores
        assert run.sql("select reward from rollouts").fetchall() == [(3.0,)]


def test_durations_are_never_negative(path, opened):
    """A rollout that ended before it began, by a clock that was set back, took 0 seconds, and a note says why."""
    began = utc_now() + timedelta(hours=1)
    with create_run(path) as writer:
        rollout_builder = writer.begin(header(run=writer.run, session=writer.session, started_at=began))
        rollout_builder.extend([Message("user", "?")])
        rollout_builder.mark_prompt_sent()
        rollout_builder.step(Message("assistant", "4"), reward=0.0, seconds=-2.5)
        writer.end(rollout_builder, outcome(ended_at=began - timedelta(minutes=1)))
    run = opened(path)
    [rollout] = run.rollouts()
    assert (rollout.seconds, rollout.steps[0].seconds, rollout.ended_at < rollout.started_at) == (0.0, 0.0, True)
    assert [note.path for note in rollout.notes] == ["steps[0].seconds", "ended_at"]
    assert "clock was set back" in rollout.notes[1].message
    assert run.sql("select seconds from rollouts union all select seconds from steps").fetchall() == [(0.0,), (0.0,)]


def test_ledger_and_runs(path, opened):
    """`ledger` has the last line of each session; `runs` has the contents of `run.json`."""
    with create_run(path, config={"lr": 0.1}) as writer:
        write(writer)
    with create_run(path, join=True) as second:
        write(second, index=1)
        write(second, index=2)
    run = opened(path)
    rows = run.sql(
        "select session, dispatched, recorded, lost, closed, is_balanced from ledger order by session"
    ).fetchall()
    assert rows == [(writer.session, 1, 1, 0, True, True), (second.session, 2, 2, 0, True, True)]
    assert run.sql("select id, (config ->> 'lr')::double, path from runs").fetchall() == [(writer.run, 0.1, str(path))]


def test_line_that_is_no_record_is_a_problem(path, opened):
    """A valid line that is no rollout is in no table and is reported; the others are there."""
    with create_run(path) as writer:
        write(writer)
        write(writer, index=1)
    [segment] = (path / "rollouts").iterdir()
    with segment.open("ab") as file:
        file.write(add_checksum(b'{"v":2,"id":"x","run":3}'))
    run = opened(path)
    assert run.sql("select count(*) from rollouts").fetchone() == (2,)
    assert any("run" in problem.message for problem in run.problems)


def test_unreadable_free_form_costs_its_row(path, opened):
    """A line with free-form text that is not UTF-8 costs only itself, and is reported and not counted."""
    with create_run(path) as writer:
        for index in range(4):
            write(writer, index=index, env_args={"k": "MARK"} if index in (0, 2) else {})
    [segment] = (path / "rollouts").iterdir()
    lines = segment.read_bytes().splitlines(keepends=True)
    for index in (0, 2):
        lines[index] = add_checksum(lines[index].replace(b"MARK", b"\xff\xfe").rpartition(b',"crc":"')[0] + b"}")
    segment.write_bytes(b"".join(lines))
    run = opened(path)
    assert run.sql('select "index" from rollouts order by 1').fetchall() == [(1,), (3,)]
    offsets = [0, len(lines[0]) + len(lines[1])]
    assert [problem.offset for problem in run.problems] == offsets
    assert [problem.message for problem in run.problems if "Expected a record" not in problem.message] == []


def test_calls_have_their_rows(path, opened):
    """A model call that is not the policy's turn is a row, with prompt, reply and cost."""
    with create_run(path) as writer:
        rollout_builder = writer.begin(header(run=writer.run, session=writer.session, iteration=3))
        rollout_builder.extend([Message("user", "?")])
        rollout_builder.mark_prompt_sent()
        rollout_builder.step(Message("assistant", "4"), reward=0.0)
        asked = (Message("user", "is 4 right?"),)
        failure = Failure(Layer.GRADER, "ValueError", "no", "trace")
        reply = Message("assistant", "yes")
        call = Call("grader", "judge", asked, reply, 0, 12, "yes ", None, Usage(5, 1), 0.5, termination=Termination.EOS)
        rollout_builder.calls.append(call)
        rollout_builder.calls.append(Call("opponent", "other", asked, error=failure))
        writer.end(rollout_builder, outcome())
    run = opened(path)
    first, second = run.sql("select * from calls order by position").dicts()
    assert [message["content"] for message in json.loads(first.pop("prompt"))] == ["is 4 right?"]
    assert first == {
        "rollout": "rollout", "run": writer.run, "split": "train", "iteration": 3, "env": "arithmetic", "group": "1",
        "score": None, "position": 0, "continues_call": None, "about": None, "step": 0, "role": "grader",
        "policy": "judge", "policy_version": "12", "reply": "yes", "termination": "eos", "raw": "yes ",
        "prompt_tokens": 5, "completion_tokens": 1, "seconds": 0.5, "error_layer": None, "error_type": None,
        "error_message": None,
    }  # fmt: skip
    assert (second["role"], second["step"], second["reply"], second["seconds"]) == ("opponent", None, None, None)
    assert (second["error_layer"], second["error_type"], second["error_message"]) == ("grader", "ValueError", "no")
    compact(path)
    assert run.sql("select role, count(*) from calls group by 1 order by 1").fetchall() == [
        ("grader", 1),
        ("opponent", 1),
    ]


def test_calls_of_scores_have_their_rows(path, opened):
    """A call of a group's grader is a row too, with its score."""
    key = GroupKey("train", 2, "arithmetic", "1")
    asked = (Message("user", "A or B?"),)
    calls = (
        Call("grader", "judge", asked, Message("assistant", "A")),
        Call("grader", "judge", asked, continues_call=0),
    )
    with create_run(path) as writer:
        writer.begin(header(run=writer.run, session=writer.session))
        late = Score(
            id="s", run=writer.run, group=key, name="group_grade", value=0.5, created_at=utc_now(), calls=calls
        )
        writer.write_score(late)
        writer.score("rollout", "advantage", 1.0, data={"calls": 3})
    run = opened(path)
    columns = 'rollout, score, split, iteration, env, "group", position, continues_call, role, policy, reply'
    expected = [
        (None, "s", "train", 2, "arithmetic", "1", 0, None, "grader", "judge", "A"),
        (None, "s", "train", 2, "arithmetic", "1", 1, 0, "grader", "judge", None),
    ]
    for _ in range(2):
        assert run.sql(f"select {columns} from calls order by position").fetchall() == expected
        compact(path)


def test_calls_have_every_field_of_the_record():
    """A field that is added to a call gets its column, or is listed here."""
    renamed = {"usage", "error", "quotes"}  # quotes are put back into the prompt
    assert {field.name for field in msgspec.structs.fields(Call)} - renamed <= set(STORED_COLUMNS["calls"])
