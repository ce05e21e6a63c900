"""The page inside a report, in a real browser: what it shows and offers without a server."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import rolltrace
from rolltrace.viewer import report_statistics
from rolltrace.viewer.report_writer import write_report
from viewing import Viewer, viewing

pytest.importorskip("playwright")
from playwright.sync_api import expect

if TYPE_CHECKING:
    from playwright.sync_api import Page

UNFILTERED = "of this report, unfiltered"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of four iterations with two environments, and an evaluation of one iteration."""
    path = tmp_path_factory.mktemp("reported") / "training"
    with rolltrace.create_run(path) as run:
        for split, iteration, env, index in [
            *(
                ("train", iteration, env, index)
                for iteration in range(4)
                for env in ("sums", "words")
                for index in "01"
            ),
            *(("test", 3, env, index) for env in ("sums", "words") for index in "01"),
        ]:
            with run.rollout(
                env=env, task="t", group="g", index=int(index), iteration=iteration, split=split, tags=(f"tag-{index}",)
            ) as rollout:
                rollout.step(
                    prompt=[{"role": "user", "content": f"The question of {env}"}],
                    response=f"answer {iteration}",
                    reward=(iteration + int(index)) / 10 + (5 if env == "words" else 0),
                    reward_data={"right": iteration},
                    metrics={"entropy": 0.5 + iteration},
                )
    return path


@pytest.fixture(scope="module")
def report(run: Path) -> Path:
    """A report on the whole run."""
    file = run.parent.parent / "training.html"
    write_report(run, file)
    return file


@pytest.fixture(scope="module")
def served(run: Path) -> Iterator[Viewer]:
    """A viewer over the run."""
    with viewing(run.parent) as viewer:
        yield viewer


@pytest.mark.parametrize(
    "search",
    [
        "",
        "?iteration=2",
        "?split=*&env=words&measure=reward_data.right&table=measure",
        "?env=sums&measure=metrics.entropy&iteration=1&table=stops&table=signal&table=length",
        "?split=test",
        "?split=test&env=words&measure=seconds",
    ],
)
def test_the_charts_are_those_of_the_server(page: "Page", served: Viewer, report: Path, search: str) -> None:
    """Any split, environment, measure and iteration shows the same text and marks in a report as in the viewer."""
    page.goto(served.entry)
    shown = []
    for base in (served.origin + "/", report.as_uri()):
        page.goto(f"{base}#/run/training{search}")
        expect(page.locator(".key-number").nth(4)).not_to_contain_text("–")
        charts = page.locator(".run-charts, .run-environments, .run-measures")
        expect(charts.locator("svg a").first).to_be_attached()
        expect(page.get_by_label("Loading")).to_have_count(0)
        texts = [page.locator(".key-numbers").inner_text(), *charts.all_inner_texts()]
        marks = charts.locator("a").evaluate_all("all => all.map(link => [link.hash, link.ariaLabel])")
        shown.append((texts, marks))
    assert shown[0] == shown[1]


def test_a_report_with_all_charts_has_no_note_about_them(page: "Page", report: Path, tmp_path: Path) -> None:
    """A report with one split or several has no note about missing charts if none is missing."""
    with rolltrace.create_run(tmp_path / "flat") as run:
        for env in ("sums", "words"):
            with run.rollout(env=env, task="t", group="g", index=0) as rollout:
                rollout.step(prompt=[{"role": "user", "content": "?"}], response="!", reward=1.0)
    write_report(tmp_path / "flat", tmp_path / "flat.html")
    for file in (tmp_path / "flat.html", report):
        page.goto(file.as_uri())
        expect(page.locator("label", has_text="Environment").locator("option")).to_have_count(3)
        assert page.locator("option:disabled").count() == 0
        expect(page.get_by_text("This report has")).to_have_count(0)


def test_selections_are_made_as_in_the_viewer(page: "Page", report: Path) -> None:
    """Menus choose measure, split and environment; a click chooses an iteration, and a bar leads to its rollouts."""
    page.goto(report.as_uri())
    page.get_by_label("Measure", exact=True).select_option("right")
    expect(page.get_by_role("heading", name="Right over iterations")).to_be_visible()
    page.get_by_label("Environment").select_option("words (10)")
    page.locator(".measure svg a").nth(1).click()
    expect(page.get_by_role("heading", name="Iteration 1")).to_be_visible()
    page.get_by_role("link", name="The iteration after").click()
    expect(page.get_by_role("heading", name="Iteration 2")).to_be_visible()
    expect(page.locator(".histogram")).to_contain_text("2 values")
    page.locator(".histogram svg a").first.click()
    expect(page.get_by_role("status").first).to_have_text("2 of 20 rollouts")
    page.go_back()
    page.get_by_label("Split").select_option("test (4)")
    expect(page.get_by_role("heading", name="Right by environment")).to_be_visible()


def test_rows_are_filtered_by_menus_and_sorted(page: "Page", report: Path) -> None:
    """Menus, the histogram's range, the text search and a column's order list the right rows."""
    page.goto(f"{report.as_uri()}#/run/training/rollouts")
    counted = page.get_by_role("status").first
    expect(counted).to_have_text("20 rollouts")
    page.locator(".rollouts-facet", has_text="Env").click()
    page.get_by_role("button", name="words 10").click()
    expect(counted).to_have_text("10 of 20 rollouts")
    page.get_by_label("Search prompts and responses").fill("ANSWER 3")
    page.keyboard.press("Enter")
    expect(counted).to_have_text("4 of 20 rollouts")
    page.get_by_role("button", name="Remove all").click()
    page.get_by_role("slider", name="Least reward").press("ArrowRight")
    expect(counted).to_have_text(re.compile(r"^1\d of 20 rollouts$"))
    page.get_by_role("button", name="Remove all").click()
    page.get_by_role("button", name="Reward", exact=True).click()
    expect(page.get_by_role("columnheader", name="Reward")).to_have_attribute("aria-sort", "descending")
    page.locator(".rollouts-facet", has_text="Split").click()
    page.get_by_role("button", name="test 4").click()
    expect(page.locator("tbody tr.rollouts-row")).to_have_text(
        [re.compile(text) for text in ("5.400", "5.300", "0.400", "0.300")]
    )
    page.locator("a[data-row='0']").click()
    page.get_by_role("heading", name="Transcript").wait_for()
    page.keyboard.press("j")
    expect(page.get_by_text("2 of 4")).to_be_visible()


def test_numbers_that_ignore_the_filters_say_so(page: "Page", report: Path) -> None:
    """A report cannot compute statistics: under a filter it shows those of all its rollouts, and says so."""
    page.goto(f"{report.as_uri()}#/run/training/rollouts?filter=reward:min:5")
    expect(page.locator("a[data-row='9']")).to_be_attached()
    distribution = page.get_by_role("region", name="Distribution of reward")
    bars = distribution.locator("svg rect").count()
    assert bars > 0
    expect(page.get_by_text(UNFILTERED)).to_have_count(0)  # its own range is marked in the histogram
    page.goto(f"{report.as_uri()}#/run/training/rollouts?filter=env:is:sums")
    expect(distribution).to_contain_text(f"All rollouts {UNFILTERED}")
    page.locator(".rollouts-facet", has_text="Tags").click()
    expect(page.get_by_role("button", name="tag-0 10")).to_be_visible()
    expect(page.get_by_text(f"Counts of all rollouts {UNFILTERED}")).to_be_visible()


def test_choices_without_charts_are_disabled(
    page: "Page", run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beyond a report's size limits, choices are disabled, measures are left out, and the page says so."""
    monkeypatch.setattr(report_statistics, "_MAX_CHARTS", 6)
    monkeypatch.setattr(report_statistics, "_MAX_MEASURES", 3)
    write_report(run, tmp_path / "small.html")
    page.goto((tmp_path / "small.html").as_uri())
    expect(page.get_by_text("This report has no charts for the choices in grey.")).to_be_visible()
    expect(page.get_by_text("This report has charts of 3 of 8 measures.")).to_be_visible()
    expect(page.get_by_label("Measure", exact=True).locator("option")).to_have_text(["reward", "advantage", "steps"])
    assert page.get_by_label("Split").locator("option:disabled").all_inner_texts() == ["All splits"]
    assert page.get_by_label("Environment").locator("option:disabled").all_inner_texts() == ["sums (10)", "words (10)"]
    page.goto(f"{(tmp_path / 'small.html').as_uri()}#/run/training?env=words")
    expect(
        page.get_by_text("This report does not have these numbers: open the run with `rolltrace view`.")
    ).to_be_visible()
    page.goto(f"{(tmp_path / 'small.html').as_uri()}#/run/training/rollouts")
    expect(page.get_by_role("region", name="Distribution").locator("option")).to_have_text(
        ["Reward", "Advantage", "Steps"]
    )
