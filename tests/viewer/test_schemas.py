"""The server's answers agree with the records, under any filter, order and page."""

import itertools
import json
import math
import statistics
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from answers import score, write
from examples import examples
from rolltrace.errors import InputError
from rolltrace.query.list_numbers import sparkline
from rolltrace.store.create import create_run
from rolltrace.trace.failure import Failure
from rolltrace.trace.stop_reasons import Layer, Status
from rolltrace.viewer import rollout_table as listing
from rolltrace.viewer.api import Api, RequestParameters
from rolltrace.viewer.open_runs import OpenRuns

NAN, INF = math.nan, math.inf
REWARDS = [1.0, 0.0, 0.25, None, NAN, 1.0, -INF, 0.5, 0.0, 3.0, None, 0.25, INF, 0.0, 0.0]
ENVS = ["sums", "it's", "ünï code"]
STEPS = [0, 1, 2, 3]


def rows() -> list[dict[str, Any]]:
    """The rows that are written, one for each rollout: the reference for the answers."""
    made = []
    for number in range(60):
        reward = REWARDS[number % len(REWARDS)]
        failed = reward is None and number % 2 == 1
        made.append(
            {
                "env": ENVS[number % 3],
                "iteration": number // 12,
                "group": str(number % 12 // 4),
                "index": number % 4,
                "task": f"t{number % 7}",
                "tags": [("hard",), (), ("a,b", "hard"), ("ümlaut:is:x",)][number % 4],
                "reward": reward,
                "steps": STEPS[number % 4],
                "correct": float(number % 5),
                "length": None if number % 3 else number / 10,
                "status": "error" if failed else "ok",
                "stop_reason": ["completed", "max_turns", "error"][2 if failed else number % 2],
                "error_type": "ValueError" if failed else None,
            }
        )
    return made


ROWS = rows()


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A run of these rollouts, with the API's `ask` function."""
    folder = tmp_path_factory.mktemp("answers")
    with create_run(folder / "run", planned=60) as writer:
        for row in ROWS:
            failure = Failure(Layer.ENV, "ValueError", "it broke") if row["error_type"] else None
            row["id"] = write(
                writer,
                env=row["env"], iteration=row["iteration"], group=row["group"], index=row["index"], task=row["task"],
                tags=row["tags"], status=Status(row["status"]), stop_reason=row["stop_reason"], error=failure,
                reward=None if row["reward"] == 3.0 else row["reward"], steps=row["steps"],
                step={"reward_data": {"correct": row["correct"]}, "metrics": {"entropy": row["correct"] / 2}},
                metrics={} if row["length"] is None else {"length": row["length"]},
            )  # fmt: skip
            if row["reward"] == 3.0:  # scored late
                score(writer, row["id"], 3.0)
    library = OpenRuns(folder)
    questions = Api(library)

    def ask(question: str, **parameters: Any) -> Any:
        pairs = [
            (name, str(one))
            for name, value in {"run": "run", **parameters}.items()
            for one in (value if isinstance(value, list) else [value])
        ]
        return json.loads(questions.handlers[question](RequestParameters(pairs)))

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(listing, "WINDOW", 25)  # so that listings have several windows
        yield ask
    library.close()


def advantage(row: dict[str, Any]) -> float | None:
    """The reward less the mean of its group's rewards."""
    key = ("iteration", "env", "group")
    known = [one["reward"] for one in ROWS if all(one[name] == row[name] for name in key) and one["reward"] is not None]
    if row["reward"] is None:
        return None
    return row["reward"] - (statistics.fmean(known) if all(map(math.isfinite, known)) else NAN)


def value(row: dict[str, Any], column: str) -> Any:
    """A row's value in a column."""
    steps = row["steps"]
    return {
        "advantage": lambda: advantage(row),
        "reward_data.correct": lambda: row["correct"] * steps if steps else None,
        "metrics.length": lambda: row["length"],
        "metrics.entropy": lambda: row["correct"] / 2 if steps else None,
    }.get(column, lambda: row[column])()


def number_holds(found: float | None, operation: str, wanted: float) -> bool:
    """Whether a filter on numbers holds: NaN equals itself, and is neither above nor below anything."""
    if operation in ("is", "not"):
        same = found is not None and (found == wanted or (math.isnan(found) and math.isnan(wanted)))
        return same == (operation == "is")
    if found is None or math.isnan(found):
        return False
    return {"min": found >= wanted, "max": found <= wanted, "below": found < wanted}[operation]


def holds(row: dict[str, Any], one: tuple[str, str, Any]) -> bool:
    """Whether a filter holds, in plain Python."""
    column, operation, wanted = one
    found = value(row, column)
    if operation in ("null", "notnull"):
        return (found is None) == (operation == "null")
    if column == "tags":
        return (wanted in found) == (operation != "not")
    if isinstance(wanted, int | float):
        return number_holds(found, operation, wanted)
    if operation in ("is", "not"):
        return (found == wanted) == (operation == "is")
    if found is None:
        return False
    if operation == "has":
        return wanted.lower() in found.lower()
    return {"min": found >= wanted, "max": found <= wanted, "below": found < wanted}[operation]


NUMBERS = st.sampled_from([-INF, -1, 0, 0.25, 0.5, 1, 2, 3, 4.0, 1e300, INF])
COLUMNS = [
    "reward",
    "advantage",
    "iteration",
    "index",
    "steps",
    "reward_data.correct",
    "metrics.length",
    "metrics.entropy",
]
TEXTS = ["env", "task", "group", "stop_reason", "status", "error_type"]
FILTERS = st.one_of(
    st.tuples(st.sampled_from(COLUMNS), st.sampled_from(["is", "not", "min", "max", "below"]), NUMBERS),
    st.tuples(st.sampled_from(["reward", "advantage"]), st.sampled_from(["is", "not"]), st.just(NAN)),
    st.tuples(
        st.sampled_from(TEXTS), st.sampled_from(["is", "not", "has", "min", "max", "below"]),
        st.sampled_from([*ENVS, "", "S", "'", "t3", "1", "completed", "ERROR", "%", "_", "::", "x:is:y"]),
    ),
    st.tuples(
        st.just("tags"), st.sampled_from(["is", "not", "has"]), st.sampled_from(["hard", "a,b", "ümlaut:is:x", ""])
    ),
    st.tuples(st.sampled_from([*COLUMNS, *TEXTS]), st.sampled_from(["null", "notnull"]), st.just("")),
)  # fmt: skip


@settings(max_examples=examples(60))
@given(filters=st.lists(FILTERS, max_size=4))
def test_filters_keep_what_fulfils_all_of_them(played: Any, filters: list[tuple[str, str, Any]]):
    """A filtered listing has the rollouts that a plain filter over the records keeps."""
    asked = [f"{column}:{operation}:{wanted}" for column, operation, wanted in filters]
    found = played("rollouts", filter=asked, limit=1000, columns="env")
    expected = {row["id"] for row in ROWS if all(holds(row, one) for one in filters)}
    assert {row["id"] for row in found["rows"]} == expected
    assert found["total"] == len(found["rows"]) == len(expected)


NUMBERS_TRIED = (-INF, 0, 0.25, 1, 3, INF, NAN)
TEXTS_TRIED = ("sums", "it's", "ValueError", "S", "")


@pytest.mark.parametrize("operation", ["is", "not", "min", "max", "below"])
def test_every_operation_on_numbers(played: Any, operation: str):
    """A missing number is neither above nor below any, and neither is NaN."""
    for column in ("reward", "advantage", "iteration", "reward_data.correct", "metrics.length"):
        for wanted in NUMBERS_TRIED if operation in ("is", "not") else NUMBERS_TRIED[:-1]:
            found = played("rollouts", filter=f"{column}:{operation}:{wanted}", limit=1000)["rows"]
            expected = {row["id"] for row in ROWS if holds(row, (column, operation, wanted))}
            assert {row["id"] for row in found} == expected, (column, wanted)


@pytest.mark.parametrize("operation", ["is", "not", "has", "min", "max", "below"])
def test_every_operation_on_texts(played: Any, operation: str):
    """A missing text differs from every text, contains none, and has no order."""
    for column, wanted in itertools.product(("env", "error_type"), TEXTS_TRIED):
        found = played("rollouts", filter=f"{column}:{operation}:{wanted}", limit=1000)["rows"]
        expected = {row["id"] for row in ROWS if holds(row, (column, operation, wanted))}
        assert {row["id"] for row in found} == expected, (column, wanted)


def before(column: str, descending: bool, one: dict[str, Any], other: dict[str, Any]) -> int:
    """The order of two rows by a column: missing values last, NaN just before them, in both directions."""
    a, b = value(one, column), value(other, column)
    ranks = [2 if found is None else 1 if isinstance(found, float) and math.isnan(found) else 0 for found in (a, b)]
    if ranks != [0, 0] or a == b:
        return ranks[0] - ranks[1]
    return (1 if a > b else -1) * (-1 if descending else 1)


@settings(max_examples=examples(40))
@given(
    keys=st.lists(
        st.tuples(st.sampled_from([*COLUMNS, "task"]), st.booleans()), max_size=3, unique_by=lambda key: key[0]
    ),
    size=st.integers(1, 70),
)  # fmt: skip
def test_pages_cover_each_row_once_in_order(played: Any, keys: list[tuple[str, bool]], size: int):
    """Pages cover each row once, in any order and of any size, and neighbours are those of the listing."""
    sort = ",".join(f"{'-' if descending else ''}{column}" for column, descending in keys)
    by_id = {row["id"]: row for row in ROWS}
    ids: list[str] = []
    while page := played("rollouts", sort=sort, offset=len(ids), limit=size)["rows"]:
        ids += [row["id"] for row in page]
    assert sorted(ids) == sorted(by_id)
    for one, other in itertools.pairwise(ids):
        compared = (before(column, descending, by_id[one], by_id[other]) for column, descending in keys)
        assert next((order for order in compared if order), -1) < 0
    place = size % len(ids)
    near = played("neighbours", sort=sort, id=ids[place])
    assert (near["position"], near["total"]) == (place, 60)
    assert near["previous"] == (ids[place - 1] if place else None)
    assert near["next"] == (ids[place + 1] if place + 1 < len(ids) else None)


def test_cells_are_what_the_rollout_has(played: Any):
    """Every cell equals the record; numbers that are not finite are text."""
    shown = ["reward", "advantage", "tags", "reward_data.correct", "metrics.length", "error_type", "metrics", "retried"]
    found = {row["id"]: row for row in played("rollouts", columns=",".join(shown), limit=1000)["rows"]}
    for row in ROWS:
        cells = found[row["id"]]
        for column in ("reward", "advantage", "reward_data.correct", "metrics.length"):
            assert told(cells[column]) == pytest.approx(value(row, column), nan_ok=True)
        assert cells["tags"] == list(row["tags"])
        assert cells["error_type"] == row["error_type"]
        assert json.loads(cells["metrics"]) == ({} if row["length"] is None else {"length": row["length"]})
        assert cells["retried"] is False


def told(number: Any) -> Any:
    """A number as it is in JSON."""
    return {"NaN": NAN, "Infinity": INF, "-Infinity": -INF}.get(number, number) if isinstance(number, str) else number


def test_search_is_literal_and_ignores_case(tmp_path: Path):
    """Prompts and responses are searched, also those that no later prompt holds; pattern characters are literal."""
    from rolltrace import create_run as record

    texts = {
        "a": ("What is 1 + 1?", "TWO (2)"),
        "b": ("Why.", "100% sure"),
        "c": ("İ ẞ 日本", "x\ny\tz\\n"),
        "d": ("", "1x1"),
    }
    with record(tmp_path / "run") as run:
        for name, (prompt, response) in texts.items():
            with run.rollout(env="e", task="t", group=name, index=0) as rollout:
                said = {"role": "assistant", "content": response}
                rollout.step(prompt=[{"role": "user", "content": prompt}], response=said, reward=1.0)
        with run.rollout(env="e", task="t", group="e", index=0) as rollout:
            for text in ("forgotten", "kept"):  # the second prompt does not hold the first answer
                said = {"role": "assistant", "content": text}
                rollout.step(prompt=[{"role": "user", "content": f"?{text[0]}"}], response=said, reward=1.0)
    library = OpenRuns(tmp_path)
    try:
        ask = Api(library).handlers["rollouts"]
        for wanted, found in {
            "two": "a", "(2)": "a", "1 + 1": "a", "1.1": "", "wHY.": "b", "0%": "b", "日本": "c", "x\ny\tz": "c",
            "\\n": "c",
            "": "abcde", "forGOTTEN": "e", ".*": "", "x": "cd", "'": "", "[": "", "\x00": "", "'; select 1 --": "",
        }.items():  # fmt: skip
            given = json.loads(
                ask(RequestParameters([("run", "run"), ("search", wanted), ("columns", "group"), ("sort", "group")]))
            )
            assert "".join(row["group"] for row in given["rows"]) == found, wanted
    finally:
        library.close()


def test_an_overview_has_the_written_numbers(played: Any):
    """Counts, rewards, errors, ledger and plan equal hand-computed ones."""
    run = played("run")
    finite = [row["reward"] for row in ROWS if row["reward"] is not None and math.isfinite(row["reward"])]
    assert (run["rollouts"], run["planned"], run["groups"], run["state"]) == (60, 60, 45, "complete")
    assert {one["value"]: one["n"] for one in run["envs"]} == dict.fromkeys(ENVS, 20)
    assert run["statuses"] == counts("status")
    assert run["stop_reasons"] == counts("stop_reason")
    assert {one["value"]: one["n"] for one in run["tags"]} == {"hard": 30, "a,b": 15, "ümlaut:is:x": 15}
    failed = sum(row["status"] == "error" for row in ROWS)
    assert run["errors"] == [{"layer": "env", "type": "ValueError", "n": failed, "example": "it broke"}]
    assert run["rewards"]["n"] == len(finite)
    assert run["rewards"]["missing"] == sum(row["reward"] is None for row in ROWS)
    assert run["rewards"]["non_finite"] == 60 - len(finite) - run["rewards"]["missing"]
    assert run["rewards"]["mean"] == pytest.approx(statistics.fmean(finite))
    assert run["rewards"]["std"] == pytest.approx(statistics.pstdev(finite))
    assert run["iterations"] == {"first": 0, "last": 4, "count": 5}
    assert run["steps"] == sum(row["steps"] for row in ROWS)
    assert (run["ledger"]["dispatched"], run["ledger"]["recorded"], run["ledger"]["is_balanced"]) == (60, 60, True)
    names = {one["name"] for one in run["measures"]}
    assert {"reward", "advantage", "reward_data.correct", "metrics.length", "metrics.entropy"} <= names
    assert {one["name"] for one in run["columns"]} >= {*names, "group_signal", "tags", "started_at"}


def counts(column: str) -> list[dict[str, Any]]:
    """How many rows have each value, the most frequent first."""
    found = Counter(row[column] for row in ROWS)
    return [{"value": name, "n": n} for name, n in sorted(found.items(), key=lambda item: (-item[1], item[0]))]


def test_series_and_outcomes_are_those_of_each_iteration(played: Any):
    """Every bin agrees with the rollouts of its iterations; a filter narrows them."""
    for measure in ("reward", "advantage", "reward_data.correct"):
        for place, one in enumerate(played("series", measure=measure)["bins"]):
            some = [value(row, measure) for row in ROWS if row["iteration"] == place]
            finite = sorted(number for number in some if number is not None and math.isfinite(number))
            assert (one["first"], one["last"], one["rollouts"], one["n"]) == (place, place, 12, len(finite))
            assert one["missing"] == some.count(None)
            assert one["mean"] == pytest.approx(statistics.fmean(finite))
            assert one["median"] == pytest.approx(statistics.median(finite))
            assert (one["min"], one["max"]) == pytest.approx((finite[0], finite[-1]))
            assert finite[0] <= one["q05"] <= one["q25"] <= one["median"] <= one["q75"] <= one["q95"] <= finite[-1]
    for place, one in enumerate(played("outcomes")["bins"]):
        some = [row for row in ROWS if row["iteration"] == place]
        assert one["stop_reasons"] == dict(Counter(row["stop_reason"] for row in some))
        assert one["statuses"] == dict(Counter(row["status"] for row in some))
        assert sum(one["errors"].values()) == sum(row["error_type"] is not None for row in some)
        assert one["groups"] == len({(row["env"], row["group"]) for row in some})
    narrowed = played("series", measure="reward", filter=["env:is:it's", "iteration:max:1"])["bins"]
    assert [one["rollouts"] for one in narrowed] == [4, 4]
    assert played("series", measure="reward", filter="env:is:nothing")["bins"] == []


def test_histograms_hold_every_finite_value(played: Any):
    """Bins are adjacent, hold all values, and count what they leave out; environments share their edges."""
    finite = [row["reward"] for row in ROWS if row["reward"] is not None and math.isfinite(row["reward"])]
    found = played("histogram", measure="reward", bins=6)
    assert found["n"] == sum(one["n"] for one in found["bins"]) == len(finite)
    assert len(found["bins"]) <= 6
    last = found["bins"][-1]["high"]
    for one in found["bins"]:
        inside = [x for x in finite if one["low"] <= x < one["high"] or x == one["high"] == last]
        assert one["n"] == len(inside)
    environments = played("environments", measure="reward", bins=6)["environments"]
    assert {one["env"] for one in environments} == set(ENVS)
    edges = {tuple((each["low"], each["high"]) for each in one["bins"]) for one in environments}
    assert len(edges) == 1
    assert sum(each["n"] for one in environments for each in one["bins"]) == len(finite)
    assert [one["rollouts"] for one in environments] == [20, 20, 20]


@pytest.mark.parametrize("measure", ["reward", "advantage", "steps", "reward_data.correct", "metrics.none"])
def test_histograms_of_iterations_are_those_of_their_rollouts(played: Any, measure: str):
    """Each iteration has the histogram that a filter on it gives, with its own edges."""
    found = played("iteration_histograms", measure=measure, bins=7)
    assert found["measure"] == measure
    assert len(found["iterations"]) > 1
    for one in found["iterations"]:
        ends = [f"iteration:min:{one.pop('first')}", f"iteration:max:{one.pop('last')}"]
        alone = played("histogram", measure=measure, bins=7, filter=ends)
        assert one == {name: number for name, number in alone.items() if name != "measure"}


def test_facets_leave_out_filters_on_their_own_column(played: Any):
    """A facet ignores filters on its own column, so that another value can be chosen; other filters count."""
    asked = ["env:is:sums", "stop_reason:is:completed"]
    facets = played("facets", filter=asked, columns="env,stop_reason,tags,reward,error_type")["facets"]
    expected = Counter(row["env"] for row in ROWS if row["stop_reason"] == "completed")
    assert {one["value"]: one["n"] for one in facets["env"]} == dict(expected)
    both = [row for row in ROWS if row["env"] == "sums" and row["stop_reason"] == "completed"]
    assert {one["value"]: one["n"] for one in facets["tags"]} == dict(
        Counter(tag for row in both for tag in row["tags"])
    )
    assert facets["error_type"] == []


def test_invalid_requests_are_refused(played: Any):
    """Unknown columns, wrong operations or types, and numbers out of range are refused."""
    for wrong in (
        {"filter": "nothing:is:1"}, {"filter": "reward:like:1"}, {"filter": "reward"}, {"filter": "reward:min:many"},
        {"filter": "reward:has:1"}, {"filter": "tags:min:a"}, {"filter": "started_at:min:yesterday"},
        {"filter": "retried:is:perhaps"}, {"filter": "retried:min:true"}, {"sort": "nothing"}, {"columns": "nothing"},
        {"sort": "reward,env,task,group,index,steps"}, {"offset": -1}, {"limit": 1001}, {"limit": "many"},
        {"offset": 2**64},
        {"columns": ",".join(f"metrics.{number}" for number in range(101))}, {"run": ["run", "run"]},
        {"sort": "reward) --"}, {"filter": "reward) or (1:is:1"},
    ):  # fmt: skip
        with pytest.raises(InputError):
            played("rollouts", **wrong)
    for question, wrong in (
        ("series", "env"),
        ("histogram", "tags"),
        ("series", "nothing"),
        ("environments", "metrics"),
    ):
        with pytest.raises(InputError):
            played(question, measure=wrong)
    with pytest.raises(InputError):
        played("histogram", bins=0)
    assert played("rollouts", filter="reward_data.'); select 1 --:min:0")["total"] == 0


def test_a_rollout_is_shown_in_its_group(played: Any):
    """The answer has the whole record, its current reward and advantage, and its group as on the group's page."""
    for row in (next(row for row in ROWS if row["reward"] == wanted) for wanted in (3.0, 0.25, None)):
        found = played("rollout", id=row["id"])
        assert found["rollout"]["id"] == row["id"]
        assert len(found["rollout"]["steps"]) == row["steps"]
        assert told(found["reward"]) == row["reward"]
        assert told(found["advantage"]) == pytest.approx(advantage(row), nan_ok=True)
        assert [score["value"] for score in found["scores"]] == ([3.0] if row["reward"] == 3.0 else [])
        key = {name: row[name] for name in ("iteration", "env", "group")}
        group = played("group", split="train", **key)["group"]
        assert {one["id"] for one in group["members"]} == {one["id"] for one in found["group"]["members"]}
        assert (group["n"], group["size"], group["mean"]) == tuple(
            found["group"][name] for name in ("n", "size", "mean")
        )
        assert found["attempts"][0]["id"] == row["id"]
        assert found["seats"] == []


def test_groups_are_walked_in_order(played: Any):
    """Next and previous visit every group once."""
    key: Any = {"split": "train", "iteration": 0, "env": "it's", "group": "0"}
    seen = []
    while key is not None:
        seen.append(tuple(key.values()))
        given = played("group", **key)
        assert given["previous"] == (None if len(seen) < 2 else dict(zip(key, seen[-2], strict=True)))
        key = given["next"]
    assert len(seen) == len(set(seen)) == 45
    assert seen == sorted(seen)


@given(st.lists(st.tuples(st.integers(-5, 10**6), st.integers(1, 5), st.floats(-1, 1)), unique_by=lambda one: one[0]))
def test_a_sparkline_is_short_and_within_its_rewards(curve: list[tuple[int, int, float]]):
    """There are at most sixty points, each a mean of some rewards, or null if there were none."""
    points = sparkline(curve)
    assert len(points) <= 60
    known = [point for point in points if point is not None]
    assert bool(known) == bool(curve)
    means = [mean for _, _, mean in curve]
    assert all(min(means) - 1e-9 <= point <= max(means) + 1e-9 for point in known)


@pytest.mark.slow
def test_a_long_listing_is_in_order(tmp_path: Path):
    """Pages and neighbours agree with a sort in Python, also if DuckDB sorts with several threads."""
    count = 300_000
    with create_run(tmp_path / "run") as writer:
        rewards = {}
        for number in range(count):
            with writer.rollout(env="sums", task="t", group=str(number // 8), index=number % 8) as recorder:
                rewards[recorder.id] = number * 7919 % 1009 / 1009
                recorder.step("1 + 1?", "2", rewards[recorder.id])
    places = {rollout: number for number, rollout in enumerate(rewards)}
    expected = sorted(rewards, key=lambda rollout: (rewards[rollout], places[rollout]))
    library = OpenRuns(tmp_path)
    api = Api(library)

    def ask(question: str, **parameters: Any) -> Any:
        pairs = [("run", "run"), ("sort", "reward"), *((name, str(value)) for name, value in parameters.items())]
        return json.loads(api.handlers[question](RequestParameters(pairs)))

    for offset in (0, 1_990, 2_000, count // 2, count - 100):
        page = ask("rollouts", offset=offset, limit=100)
        assert [row["id"] for row in page["rows"]] == expected[offset : offset + 100]
        assert page["total"] == count
        near = ask("neighbours", id=expected[offset + 1])
        assert (near["position"], near["previous"], near["next"]) == (
            offset + 1,
            expected[offset],
            expected[offset + 2],
        )
    library.close()
