"""The page of SQL: a statement, its rows, and the available tables."""

import csv
import io
import json
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, quote

import pytest

import rolltrace
from viewing import Viewer, viewing

pytest.importorskip("playwright")

from playwright.sync_api import expect

if TYPE_CHECKING:
    from playwright.sync_api import BrowserContext, Page


HOSTILE = '<img src=x onerror=alert(1)> "quoted", and\n' + "long " * 4000


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Viewer]:
    """A viewer over a small run whose text is hostile."""
    folder = tmp_path_factory.mktemp("asked")
    with rolltrace.create_run(folder / "small") as run:
        for index in range(3):
            with run.rollout(env="sums", task="t", group="g", index=index, tags=("hard",)) as rollout:
                rollout.step("2 + 2?", HOSTILE, index / 10, reward_data={"right": index})
    with viewing(folder) as served:
        yield served


def show(page: "Page", viewer: Viewer, sql: str | None = None) -> None:
    """Opens the page, with a statement in its address if given."""
    page.context.request.get(viewer.entry)  # logs the browser in
    page.goto(f"{viewer.origin}/#/run/small/sql{'' if sql is None else f'?q={quote(sql)}'}")
    expect(page.get_by_label("SQL statement")).to_be_visible()


def test_a_statement_is_run_by_key_and_its_address_runs_it_again(asked: Viewer, page: "Page") -> None:
    """Ctrl+Enter runs the statement; rows have types, ids link to rollouts, and the address shows the same."""
    show(page, asked)
    expect(page.get_by_role("heading", name="No statement was run yet")).to_be_visible()
    statement = 'select id, reward, "index" from rollouts order by 3'
    page.get_by_label("SQL statement").fill(statement)
    page.keyboard.press("Control+Enter")
    rows = page.locator(".sql-table tbody tr")
    expect(rows).to_have_count(3)
    expect(page.get_by_role("columnheader", name="reward")).to_contain_text("DOUBLE")
    expect(page.get_by_role("status")).to_contain_text("3 rows")
    assert parse_qs(page.url.partition("?")[2])["q"] == [statement]
    page.reload()
    expect(rows.nth(2)).to_contain_text("0.2")
    name = rows.first.get_by_role("link").inner_text()
    rows.first.get_by_role("link").click()
    expect(page).to_have_url(re.compile(f"/rollout/{name}$"))
    page.go_back()
    expect(page.get_by_label("SQL statement")).to_have_value(statement)


def test_a_refused_statement_shows_the_servers_message(asked: Viewer, page: "Page") -> None:
    """An invalid statement, or one that is not a SELECT, shows the reason, and the page still works."""
    show(page, asked, "select nothing_of_this_name from rollouts")
    expect(page.get_by_role("alert")).to_contain_text("nothing_of_this_name")
    page.get_by_label("SQL statement").fill("drop table rollouts")
    page.get_by_role("button", name="Run", exact=True).click()
    expect(page.get_by_role("alert")).to_contain_text("SELECT")
    page.get_by_role("button", name="Examples").click()
    page.get_by_role("button", name="Why rollouts stopped").click()
    expect(page.locator(".sql-table")).to_contain_text("completed")


def test_long_values_are_folded_text_that_opens_whole(asked: Viewer, page: "Page") -> None:
    """A long cell shows its beginning, and all of it in a sheet."""
    show(page, asked, "select response, 'short' as brief from steps limit 1")
    cell = page.get_by_role("button", name=re.compile("<img src=x"))
    expect(cell).to_be_visible()
    assert len(cell.inner_text()) < 200
    cell.click()
    sheet = page.get_by_role("dialog", name="The whole value")
    expect(sheet).to_contain_text("long long long")
    sheet.get_by_role("button", name="Show more of the value").click()
    assert sheet.locator(".long-text").inner_text().count("long") == 4000
    assert page.locator("#view img, dialog img").count() == 0


def test_many_rows_are_windowed_and_more_can_be_loaded(asked: Viewer, page: "Page") -> None:
    """Only visible rows are drawn; the page says that there are more, and can load them."""
    show(page, asked, "select range as n, null as none from range(30000)")
    expect(page.get_by_role("status")).to_contain_text("1,000 rows")
    expect(page.get_by_role("status")).to_contain_text("there are more")
    assert page.locator(".sql-table tbody tr").count() < 60
    page.get_by_role("button", name="More rows").click()
    expect(page.get_by_role("status")).to_contain_text("10,000 rows")
    page.locator(".sql-scroll").evaluate("element => element.scrollTo(0, element.scrollHeight)")
    expect(page.get_by_role("cell", name="9999", exact=True)).to_be_in_viewport()
    expect(page.get_by_role("button", name="More rows")).to_have_count(0)


def test_rows_are_copied_as_csv_and_json(asked: Viewer, context: "BrowserContext", page: "Page") -> None:
    """The copied text holds exactly the returned values."""
    context.grant_permissions(["clipboard-read", "clipboard-write"])
    show(
        page,
        asked,
        'select "index", response, reward_data, null as none from steps join rollouts on id = rollout order by 1',
    )
    page.get_by_role("button", name="Copy the rows as CSV").click()
    expect(page.get_by_role("button", name="Copied")).to_be_visible()
    rows = list(csv.reader(io.StringIO(page.evaluate("navigator.clipboard.readText()"), newline="")))
    assert rows[0] == ["index", "response", "reward_data", "none"]
    assert rows[2][:2] == ["1", HOSTILE]
    assert (json.loads(rows[2][2]), rows[2][3]) == ({"right": 1.0}, "")
    page.get_by_role("button", name="Copy the rows as JSON").click()
    expect(page.get_by_role("button", name="Copied")).to_have_count(2)
    copied = json.loads(page.evaluate("navigator.clipboard.readText()"))
    assert copied[2] == {"index": 2, "response": HOSTILE, "reward_data": {"right": 2.0}, "none": None}


def test_names_of_columns_are_made_visible(asked: Viewer, page: "Page") -> None:
    """A bidirectional mark in a name is shown as a symbol, in the heading and over a whole value; joiners are kept."""
    show(page, asked, f"select '{'x' * 50}' as \"a\u202eb\u200dc\"")
    expect(page.get_by_role("columnheader").nth(1)).to_contain_text("aU+202Eb\u200dc")
    page.get_by_role("button", name="x" * 50).click()
    expect(page.get_by_role("dialog").get_by_role("heading")).to_have_text("aU+202Eb\u200dc")


def test_the_reference_lists_columns_and_writes_their_names(asked: Viewer, page: "Page") -> None:
    """A table unfolds to its columns; a click inserts a name at the cursor, quoted if SQL needs that."""
    show(page, asked)
    page.get_by_label("SQL statement").fill("select  from rollouts")
    page.get_by_label("SQL statement").evaluate("element => element.setSelectionRange(7, 7)")
    page.get_by_text("one row for each rollout").click()
    page.get_by_role("button", name="group", exact=True).click()
    expect(page.get_by_label("SQL statement")).to_have_value('select "group" from rollouts')
    expect(page.get_by_label("SQL statement")).to_be_focused()
    page.keyboard.type(", env")
    page.keyboard.press("Control+Enter")
    expect(page.locator(".sql-table tbody tr").first).to_contain_text("sums")


def test_a_narrow_screen_scrolls_the_rows_and_not_the_page(asked: Viewer, page: "Page") -> None:
    """At 390 pixels the page is as wide as the screen."""
    page.set_viewport_size({"width": 390, "height": 844})
    show(page, asked, "select * from rollouts")
    expect(page.locator(".sql-table tbody tr").first).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth") == 390
