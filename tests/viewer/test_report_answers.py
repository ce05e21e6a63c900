"""A report answers like the server about the same run: stored statistics, and rows under any filter."""

import math
import random
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest

import rolltrace
from rolltrace.viewer.report_writer import write_report
from viewing import Viewer, viewing


@pytest.fixture(scope="module")
def odd_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with everything: splits, envs, numeric groups, tags, NaN, nulls, retries, odd names."""
    path = tmp_path_factory.mktemp("odd") / "odd"
    rng = random.Random(5)
    with rolltrace.create_run(path, config={"iterations": 9}) as run:
        for number in range(80):
            fields: dict[str, Any] = {
                "env": rng.choice(["math", "code", "ünï/code"]),
                "group": rng.choice(["2", "10", "b", "a:is:b"]),
                "split": rng.choice(["train", "train", "test"]),
                "iteration": rng.choice([0, 1, 2, 7]),
                "index": number,
                "tags": tuple(rng.sample(["hard", "easy", "a,b"], rng.randrange(3))),
                "policy": rng.choice(["p", "q"]),
            }
            try:
                with run.rollout(task=fields["group"], **fields) as rollout:
                    if rng.random() < 0.1:
                        raise TimeoutError("the sandbox is gone")
                    reward = rng.choice([0.0, 1.0, 0.25, -0.1, 1e9, rng.random(), float("nan"), float("inf")])
                    rollout.step(
                        prompt=[{"role": "user", "content": f"Frage {number % 7} <b>"}],
                        response={"role": "assistant", "content": rng.choice(["Yes", "NO", "perhaps " * 50])},
                        reward=reward,
                        reward_data={"right": rng.random(), "a:min:b": rng.randrange(3), "%2C,": 1},
                        metrics={"entropy": rng.random()} if number % 2 else {},
                    )
            except TimeoutError:
                continue
            if rng.random() < 0.2:
                run.score(rollout.id, "reward", rng.choice([None, 0.5, 2.0]))
    return path


@pytest.fixture(scope="module")
def huge_run(odd_run: Path) -> Path:
    """A run in the same folder whose rewards overflow when they are summed."""
    with rolltrace.create_run(odd_run.with_name("huge")) as run:
        for index, (env, reward) in enumerate([("same", 1e308)] * 3 + [("apart", 1e308)] * 2 + [("apart", 0.0)]):
            with run.rollout(env=env, task="t", group="g", index=index) as rollout:
                rollout.step(prompt=[{"role": "user", "content": "?"}], response="!", reward=reward)
    return odd_run.with_name("huge")


@pytest.fixture(scope="module")
def served(odd_run: Path, huge_run: Path) -> Iterator[Viewer]:
    """A viewer over both runs."""
    with viewing(odd_run.parent) as viewer:
        yield viewer


@pytest.fixture(scope="module")
def odd_report(odd_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report on all groups of the odd run."""
    file = tmp_path_factory.mktemp("report") / "odd.html"
    write_report(odd_run, file, groups=1_000)
    return file


@pytest.fixture
def asking(page: Any, served: Viewer, odd_report: Path) -> Any:
    """Makes one request to the server and to the report, and returns both answers."""
    return _asking(page, served, odd_report)


def _asking(page: Any, served: Viewer, file: Path) -> Any:
    report = page.context.new_page()
    report.goto(file.as_uri())
    page.goto(served.entry)
    return lambda question, parameters: tuple(_ask(tab, question, parameters) for tab in (page, report))


def _ask(tab: Any, question: str, parameters: dict[str, Any]) -> Any:
    script = "([question, parameters]) => rolltrace.ask(question, parameters).catch(error => ({ refused: error.type }))"
    return tab.evaluate(script, [question, parameters])


@pytest.mark.parametrize("count", [30, pytest.param(300, marks=pytest.mark.slow)])
def test_rows_are_filtered_and_sorted_alike(asking: Any, count: int) -> None:
    """Rows and neighbours are the same, under random filters, searches and orders from a fixed seed."""
    rng = random.Random(11)
    run = {"run": "odd"}
    columns = [column["name"] for column in asking("run", run)[0]["columns"]]
    ids = [row["id"] for row in asking("rollouts", {**run, "limit": 1000})[0]["rows"]]
    for _ in range(count):
        question, parameters = _drawn(rng, columns, ids)
        expected, given = asking(question, run | parameters)
        assert _is_same(given, expected), (question, parameters, given, expected)


def test_every_chart_that_the_page_offers_is_in_the_report(asking: Any) -> None:
    """Each split, environment and measure has the statistics that the server computes."""
    run = {"run": "odd"}
    overview, _ = asking("run", run)
    splits, envs = ([[], *([f"{name}:is:{one['value']}"] for one in overview[f"{name}s"])] for name in ("split", "env"))
    assert (len(splits), len(envs)) == (3, 4)
    measures = [one["name"] for one in overview["measures"]]
    drawn = [([], [], measure) for measure in measures] + list(product(splits, envs, ["reward", "metrics.entropy"]))
    for split, env, measure in drawn:
        selection = {**run, "filter": [*split, *env]}
        measured = {**selection, "measure": measure}
        for question, parameters in (
            ("outcomes", selection),
            ("series", measured),
            ("series", {**run, "measure": "steps", "filter": [*split, *env, "steps:min:1"]}),
            ("histogram", {**measured, "bins": 24}),
            ("iteration_histograms", {**measured, "bins": 24}),
        ):
            expected, given = asking(question, parameters)
            assert _is_same(given, expected), (question, parameters, given, expected)
    assert asking("series", {**run, "filter": ["env:is:none"]})[1] == {"refused": "NotInReport"}


def test_the_table_has_the_statistics_of_all_rollouts(asking: Any) -> None:
    """The histogram of each measure and the values of each column are stored; filters do not change the latter."""
    run = {"run": "odd"}
    overview, _ = asking("run", run)
    for measure in overview["measures"]:
        expected, given = asking("histogram", {**run, "measure": measure["name"], "bins": 64})
        assert _is_same(given, expected), (measure, given, expected)
    for column in overview["columns"]:
        if column["type"] in ("text", "tags"):
            expected, given = asking("facets", {**run, "columns": column["name"]})
            assert given == expected
    columns = {"columns": "env,split,stop_reason,status,tags,policy"}
    unfiltered, _ = asking("facets", run | columns)
    assert asking("facets", {**run, **columns, "filter": ["env:is:math"]})[1] == unfiltered


def test_rewards_that_overflow_have_the_same_answer(page: Any, served: Viewer, huge_run: Path, tmp_path: Path) -> None:
    """If a mean or std overflows, both answer with the same word."""
    write_report(huge_run, tmp_path / "report.html", groups=1_000)
    asking = _asking(page, served, tmp_path / "report.html")
    expected, given = asking("environments", {"run": "huge", "measure": "reward"})
    assert _is_same(given, expected), (given, expected)
    told = [(one["env"], one["mean"], one["std"], one["median"]) for one in given["environments"]]
    assert told == [("apart", "Infinity", "Infinity", 1e308), ("same", "Infinity", 0, 1e308)]
    expected, given = asking("series", {"run": "huge", "measure": "reward"})
    assert _is_same(given, expected), (given, expected)


def test_records_and_groups_are_the_same(asking: Any) -> None:
    """Every rollout and every group of a report equals the server's answer."""
    run = {"run": "odd"}
    key = ("split", "iteration", "env", "group")
    rows = asking("rollouts", {**run, "limit": 1000, "columns": ",".join(key)})[0]["rows"]
    for row in rows:
        expected, given = asking("rollout", {**run, "id": row["id"]})
        assert given == expected
    for group in {tuple(row[name] for name in key) for row in rows}:
        expected, given = asking("group", run | dict(zip(key, group, strict=True)))
        assert given == expected


def _drawn(rng: random.Random, columns: list[str], ids: list[str]) -> tuple[str, dict[str, Any]]:
    selection = {
        "filter": [_filter(rng, columns) for _ in range(rng.choice([0, 1, 1, 2]))],
        "search": rng.choice(["", "", "", "NO", "frage 3"]),
        "retried": rng.choice([False, True]),
    }
    sort = {"sort": ",".join(rng.choice(["", "-"]) + rng.choice(SORTED) for _ in range(rng.randrange(3)))}
    return rng.choice(
        [
            (
                "rollouts",
                {
                    **selection,
                    **sort,
                    "limit": 50,
                    "offset": rng.choice([0, 20]),
                    "columns": ",".join(map(_encoded, columns)),
                },
            ),
            ("neighbours", {**selection, **sort, "id": rng.choice(ids)}),
        ]
    )


SORTED = [
    "reward",
    "env",
    "group",
    "index",
    "iteration",
    "started_at",
    "tags",
    "status",
    "metrics.entropy",
    "advantage",
]


def _filter(rng: random.Random, columns: list[str]) -> str:
    return rng.choice(
        [
            f"env:is:{rng.choice(['math', 'ünï/code', 'none'])}",
            f"reward:min:{rng.choice([0, 0.25, -1])}",
            f"reward:below:{rng.choice([0.25, 1])}",
            f"reward:is:{rng.choice(['NaN', '0.25', 'Infinity'])}",
            f"tags:has:{rng.choice(['hard', 'a,b'])}",
            "tags:not:easy",
            f"{_encoded(rng.choice(columns))}:{rng.choice(['null', 'notnull'])}:",
            "group:is:a:is:b",
            "reward_data.a%3Amin%3Ab:min:1",
            "status:not:ok",
            "error_message:has:SANDBOX",
            "started_at:min:2020-01-01T00:00:00Z",
            "retried:is:false",
            "iteration:max:1",
        ]
    )


def _encoded(name: str) -> str:
    return name.replace("%", "%25").replace(",", "%2C").replace(":", "%3A")


def _is_same(given: Any, expected: Any) -> bool:
    """Whether two answers are equal, sums up to rounding."""
    if isinstance(given, int | float) and isinstance(expected, int | float):
        return math.isclose(given, expected, rel_tol=1e-9, abs_tol=1e-6)
    if isinstance(given, dict) and isinstance(expected, dict):
        return given.keys() == expected.keys() and all(_is_same(given[name], expected[name]) for name in given)
    if isinstance(given, list) and isinstance(expected, list):
        return len(given) == len(expected) and all(map(_is_same, given, expected))
    return bool(given == expected)
