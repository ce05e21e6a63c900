"""Findings in a real browser: from the run's page to a rollout or group, and back."""

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from seeded_runs import SeededRun, play_clean
from viewing import Viewer, viewing

pytest.importorskip("playwright")
from playwright.sync_api import expect

if TYPE_CHECKING:
    from playwright.sync_api import Page


@pytest.fixture(scope="module")
def faulty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Viewer, str]]:
    """A viewer of a run with truncated responses in one env, and a wrong total in another."""
    folder = tmp_path_factory.mktemp("findings")
    clean = play_clean(folder / "clean", {"arithmetic": {}, "guess_number": {"high": 20}})
    run = SeededRun(clean, folder / "runs" / "faulty")

    def cut(record):
        for step in record["steps"]:
            step["termination"] = "length" if record["iteration"] else "eos"

    run.change(run.records(env="guess_number"), cut)
    [wrong] = run.change(run.records(env="arithmetic")[:1], lambda record: record.update(reward=7.0))
    with viewing(folder / "runs") as viewer:
        yield viewer, wrong


def test_findings_lead_to_what_they_are_about_and_back(page: "Page", faulty: tuple[Viewer, str]) -> None:
    """The run's page shows the audit with its chart and links; the rollout names the audit and links back."""
    viewer, wrong = faulty
    page.goto(viewer.entry)
    page.goto(f"{viewer.origin}/#/run/faulty")
    findings = page.get_by_role("region", name="Findings of the check")
    cut = findings.locator("li", has=page.get_by_role("heading", name="truncated_responses"))
    expect(cut).to_contain_text("Raise `max_tokens`")
    expect(cut.locator("svg.sparkline")).to_be_visible()
    expect(cut.get_by_role("link", name="listing")).to_have_attribute("href", re.compile("guess_number"))
    expect(cut.get_by_role("link", name=re.compile("Open rollout"))).to_have_count(5)
    findings.locator("li", has=page.get_by_role("heading", name="reward_total")).get_by_role(
        "link", name=f"Open rollout {wrong}"
    ).click()
    marks = page.get_by_role("list", name="Findings of the check")
    expect(marks).to_contain_text("reward is 7.0")
    marks.get_by_role("link", name="reward_total").click()
    expect(findings.locator("li[aria-current]")).to_contain_text("reward_total")


def test_the_group_and_the_listing_are_marked(page: "Page", faulty: tuple[Viewer, str]) -> None:
    """A finding about one member is a dot in the listing, and is on the page of its group."""
    viewer, _ = faulty
    page.goto(viewer.entry)
    page.goto(f"{viewer.origin}/#/run/faulty/rollouts?sort=-reward")
    expect(
        page.locator("tr", has=page.locator("a[data-row='0']")).get_by_role("img", name=re.compile("reward_total"))
    ).to_be_visible()
    expect(page.locator(".finding-dot")).to_have_count(1)
    page.locator("a[data-row='0']").click()
    page.get_by_role("link", name="Group").first.click()
    expect(page.get_by_role("region", name="The group")).to_contain_text("reward is 7.0")
