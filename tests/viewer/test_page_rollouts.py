"""The page of rollouts: a table of any size that the server sorts, filters and searches."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, quote

import pytest

import rolltrace
from rolltrace.store.writer import RunWriter
from viewing import Viewer, viewing

pytest.importorskip("playwright")

from playwright.sync_api import expect

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page, Route


ITERATIONS, GROUPS, MEMBERS = 30, 5, 6
TOTAL = ITERATIONS * GROUPS * MEMBERS
HOSTILE = "<img src=x onerror=alert(1)>: \u202eevil"


def record(run: RunWriter, iteration: int, group: int, index: int, **about: object) -> None:
    """One rollout whose numbers follow from its position."""
    right = float((iteration + group + index) % 4 == 0)
    env = "chess" if group == 0 else "sums"
    fields = {"tags": ("hard", HOSTILE) if group == 1 else ("easy",), "policy": "small", **about}
    with run.rollout(
        env=env, task=f"t{group}", group=f"g{group}", index=index, iteration=iteration, **fields
    ) as rollout:
        rollout.step(
            "Play the xylophone." if (iteration, group, index) == (7, 2, 3) else f"What is {group} + {index}?",
            f"It is {group + index}.",
            right + index / 10,
            reward_data={"right": right, HOSTILE: index},
            metrics={"entropy": iteration / 10},
        )


@pytest.fixture(scope="module")
def listed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Viewer]:
    """A viewer over a run of some hundred rollouts, one of which failed and was retried."""
    folder = tmp_path_factory.mktemp("listed")
    with rolltrace.create_run(folder / "training") as run:
        for place in range(TOTAL):
            record(run, place // (GROUPS * MEMBERS), place // MEMBERS % GROUPS, place % MEMBERS)
        with (
            pytest.raises(TimeoutError),
            run.rollout(env="sums", task="t9", group="g9", index=0, iteration=0, attempt=0),
        ):
            raise TimeoutError("too slow")
        record(run, 0, 9, 0, attempt=1)
    with viewing(folder) as served:
        yield served


def show(page: "Page", viewer: Viewer, search: str = "", run: str = "training") -> None:
    """Opens the listing, and waits for its rows or for the message in their place."""
    page.context.request.get(viewer.entry)  # logs the browser in
    page.goto(f"{viewer.origin}/#/run/{quote(run, safe='')}/rollouts{search}")
    expect(page.locator("tbody a[data-row], .rollouts-scroll .state").first).to_be_visible()


def parameters(page: "Page") -> dict[str, list[str]]:
    """The listing's parameters in the address."""
    return parse_qs(page.url.partition("#")[2].partition("?")[2])


def total(page: "Page", text: str) -> None:
    """Asserts the number of rollouts that the page shows."""
    expect(page.locator(".rollouts-title")).to_contain_text(text)


def column(page: "Page", name: str) -> list[str]:
    """The values of a column in the drawn rows."""
    heads = page.locator("thead th").all_inner_texts()
    place = next(at for at, head in enumerate(heads) if name in head)
    return [text.strip() for text in page.locator(f"tbody tr.rollouts-row > :nth-child({place + 1})").all_inner_texts()]


def row(page: "Page", index: int) -> "Locator":
    """The link of a row, by its position from 0."""
    return page.locator(f'a[data-row="{index}"]')


def test_only_visible_rows_are_there_and_all_can_be_reached(listed: Viewer, page: "Page") -> None:
    """However many rollouts there are, only some rows are drawn, and scrolling reaches the last."""
    show(page, listed)
    total(page, f"{TOTAL + 1} rollouts")
    expect(page.locator("table")).to_have_attribute("aria-rowcount", str(TOTAL + 2))
    assert page.locator("tbody tr.rollouts-row").count() < 60
    page.locator(".rollouts-scroll").evaluate("element => element.scrollTo(0, element.scrollHeight)")
    expect(row(page, TOTAL)).to_be_in_viewport()
    assert page.locator("tbody tr.rollouts-row").count() < 60


def test_a_million_rows_can_be_scrolled(listed: Viewer, page: "Page") -> None:
    """If rows would be taller than browsers allow, scrolling is scaled, and first and last row can be reached."""
    count = 1_000_000

    def answer(route: object) -> None:
        offset = int(parse_qs(route.request.url)["offset"][0])  # type: ignore[attr-defined]
        places = range(offset, min(offset + 100, count))
        rows = [{"id": f"{place:032x}", "iteration": place, "group": "g", "status": "ok"} for place in places]
        route.fulfill(json={"total": count, "offset": offset, "rows": rows})  # type: ignore[attr-defined]

    page.route("**/api/rollouts?*", answer)
    show(page, listed, "?columns=iteration")
    assert page.locator(".rollouts-scroll").evaluate("element => element.scrollHeight") < 17_000_000
    page.keyboard.press("End")
    expect(row(page, count - 1)).to_be_focused()
    expect(row(page, count - 1)).to_be_in_viewport()
    page.keyboard.press("k")
    expect(row(page, count - 2)).to_be_focused()
    assert column(page, "Iteration")[-1] == "999,999"


def test_headings_sort_on_the_server_and_the_address_keeps_it(listed: Viewer, page: "Page") -> None:
    """A heading sorts ascending, descending and not at all; with Shift it adds a key; the address has it."""
    show(page, listed)
    reward = page.get_by_role("columnheader", name="Reward")
    reward.get_by_role("button", name="Reward", exact=True).click()
    expect(reward).to_have_attribute("aria-sort", "descending")
    expect(page.locator("tbody tr.rollouts-row").first).to_contain_text("1.500")
    page.get_by_role("button", name="Iteration", exact=True).click(modifiers=["Shift"])
    expect(page.get_by_role("columnheader", name="Iteration")).to_have_attribute("aria-sort", "ascending")
    assert parameters(page)["sort"] == ["-reward,iteration"]
    expect(row(page, 0)).to_be_visible()
    page.reload()
    expect(reward).to_have_attribute("aria-sort", "descending")
    expect(page.locator("tbody tr.rollouts-row").first).to_contain_text("1.500")
    places = [int(text) for text in column(page, "Iteration")[:6]]
    assert places == sorted(places)
    page.go_back()
    expect(page.get_by_role("columnheader", name="Iteration")).not_to_have_attribute("aria-sort", re.compile("."))
    reward.get_by_role("button", name="Reward", exact=True).click()
    expect(reward).to_have_attribute("aria-sort", "ascending")
    reward.get_by_role("button", name="Reward", exact=True).click()
    expect(reward).not_to_have_attribute("aria-sort", re.compile("."))


def test_each_column_filters_by_its_type_and_says_so_in_words(listed: Viewer, page: "Page") -> None:
    """Values have counts, numbers a range, tags with or without; each filter is a chip that can be removed."""
    show(page, listed)
    chips = page.get_by_role("list", name="Active filters")
    page.locator(".rollouts-toolbar").get_by_role("button", name="Env").click()
    page.get_by_role("button", name=re.compile("^chess")).click()
    total(page, f"{ITERATIONS * MEMBERS} of {TOTAL + 1} rollouts")
    expect(chips).to_contain_text("Env is chess")
    page.get_by_role("columnheader", name="Index").hover()
    page.get_by_role("button", name="Filter by index").click()
    page.get_by_label("At least").fill("2")
    page.get_by_label("At most").fill("3")
    page.keyboard.press("Enter")
    expect(chips).to_contain_text("Index from 2 to 3")
    total(page, f"{ITERATIONS * 2} of")
    page.get_by_role("button", name="Remove: Env is chess").click()
    total(page, f"{ITERATIONS * GROUPS * 2} of")
    page.keyboard.press("f")
    page.get_by_label("Find a column").fill("tags")
    page.keyboard.press("Enter")
    page.get_by_role("button", name="Leave out easy").click()
    expect(chips).to_contain_text("Tags without easy")
    total(page, f"{ITERATIONS * 2} of")
    page.get_by_role("button", name="Remove all", exact=True).click()
    total(page, f"{TOTAL + 1} rollouts")
    page.go_back()
    expect(chips).to_contain_text("Tags without easy")


def test_a_range_is_dragged_on_the_distribution_or_moved_by_keys(listed: Viewer, page: "Page") -> None:
    """Dragging over the histogram lists that range; keys move its ends; Back undoes it."""
    show(page, listed)
    box = page.locator(".range svg").bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] * 0.6, box["y"] + 20)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.8, box["y"] + 20, steps=4)
    page.mouse.move(box["x"] + box["width"] - 1, box["y"] + 20, steps=4)
    page.mouse.up()
    expect(page.get_by_role("list", name="Active filters")).to_contain_text("Reward at least 0.9")
    right = sum(place // 30 % 4 == (-(place // 6 % 5) - place % 6) % 4 for place in range(TOTAL))
    total(page, f"{right} of")  # the rollouts with 1 as a part of their reward; the rest have at most 0.5
    least = page.get_by_role("slider", name="Least reward")
    before = float(least.get_attribute("aria-valuenow") or "nan")
    least.press("ArrowLeft")
    expect(least).not_to_have_attribute("aria-valuenow", str(before))
    assert float(least.get_attribute("aria-valuenow") or "nan") < before
    least.press("Home")
    total(page, f"{TOTAL + 1} rollouts")
    page.get_by_role("combobox", name="Distribution of").select_option("metrics.entropy")
    expect(page.get_by_role("slider", name="Greatest metric · entropy")).to_be_visible()
    assert parameters(page)["measure"] == ["metrics.entropy"]


def test_text_search_and_an_empty_result(listed: Viewer, page: "Page") -> None:
    """Enter searches prompts and responses and shows the number of hits; without any, a button removes the search."""
    show(page, listed)
    page.keyboard.press("/")
    page.keyboard.type("XYLOPHONE")
    page.keyboard.press("Enter")
    total(page, f"1 of {TOTAL + 1} rollouts")
    assert column(page, "Iteration") == ["7"]
    page.get_by_role("searchbox").fill("no such text")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="No rollout matches")).to_be_visible()
    page.get_by_role("button", name="Remove all filters").click()
    total(page, f"{TOTAL + 1} rollouts")
    expect(page.get_by_role("searchbox")).to_have_value("")


def test_an_sql_condition_filters_and_its_error_is_shown_under_it(listed: Viewer, page: "Page") -> None:
    """An expression narrows the listing; a refused one shows the server's message beside the field."""
    show(page, listed)
    page.get_by_role("button", name="SQL condition").click()
    page.get_by_label("SQL condition").last.fill("reward > and")
    page.keyboard.press("Enter")
    expect(page.locator(".rollouts-condition [role=alert]")).to_contain_text(
        re.compile("syntax|Expected", re.IGNORECASE)
    )
    page.get_by_label("SQL condition").last.fill('reward >= 1 and "index" = 5')
    page.keyboard.press("Enter")
    expect(page.get_by_role("list", name="Active filters")).to_contain_text('reward >= 1 and "index" = 5')
    expect(page.locator("tbody tr.rollouts-row").first).to_contain_text("1.500")
    assert set(column(page, "Index")) == {"5"}


def test_columns_are_chosen_with_reward_parts_and_kept_in_order(listed: Viewer, page: "Page") -> None:
    """Any column or measure can be shown and moved; a copied address shows the same."""
    show(page, listed, "?columns=iteration,index")
    page.keyboard.press("c")
    page.get_by_label("Find a column").fill("right")
    page.get_by_role("checkbox", name="Reward · right").check()
    page.get_by_role("button", name="Move reward · right to the left").click()
    page.keyboard.press("Escape")
    expect(page.get_by_role("columnheader", name="Reward · right")).to_be_visible()
    assert parameters(page)["columns"] == ["iteration,reward_data.right,index"]
    page.reload()
    expect(row(page, 0)).to_be_visible()
    assert page.locator("thead th bdi").all_inner_texts() == ["Iteration", "Reward · right", "Index"]
    assert set(column(page, "right")) == {"0", "1"}


def test_keys_select_and_open_a_row_and_back_returns_to_it(listed: Viewer, page: "Page") -> None:
    """Keys j and k move, Enter opens the rollout with the listing in its address, Back returns to the row."""
    show(page, listed, "?filter=env:is:sums&sort=-reward,iteration,group,index")
    for _ in range(4):
        page.keyboard.press("j")
    page.keyboard.press("k")
    expect(row(page, 2)).to_be_focused()
    opened = row(page, 2).get_attribute("title")
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile(f"/rollout/{opened}"))
    told = parameters(page)
    assert (told["filter"], told["sort"]) == (["env:is:sums"], ["-reward,iteration,group,index"])
    assert not {"row", "columns"} & set(told)
    page.go_back()
    expect(page.locator("tr[aria-current]")).to_contain_text("3")
    expect(row(page, 2)).to_have_attribute("title", str(opened))
    page.keyboard.press("Escape")
    expect(page.locator("tr[aria-current]")).to_have_count(0)
    page.keyboard.press("Escape")
    total(page, f"{TOTAL + 1} rollouts")
    group = page.locator("tbody tr.rollouts-row").first.get_by_role("link").last
    address = r"^#/run/training/group\?split=train&iteration=\d+&env=sums&group=g\d$"
    expect(group).to_have_attribute("href", re.compile(address))


def test_retried_attempts_are_listed_on_demand(listed: Viewer, page: "Page") -> None:
    """An attempt that was retried is listed only on demand."""
    show(page, listed, "?filter=group:is:g9")
    total(page, f"1 of {TOTAL + 1} rollouts")
    page.get_by_role("switch", name="Retried attempts").check()
    total(page, f"2 of {TOTAL + 2} rollouts")
    expect(page.locator("tbody")).to_contain_text("error")
    assert parameters(page)["retried"] == ["1"]


@pytest.fixture
def growing(page: "Page", tmp_path: Path) -> Iterator[Callable[[], None]]:
    """Shows a run of 240 rollouts from row 120 on; the function adds 30, which are listed first."""
    with rolltrace.create_run(tmp_path / "growing") as run:
        for place in range(240):
            record(run, place // 30, place // 6 % 5, place % 6)
        run.flush()

        def grow() -> None:
            for place in range(30):
                record(run, 8, place // 6, place % 6)
            run.flush()

        with viewing(tmp_path) as served:
            show(page, served, run="growing")
            total(page, "240 rollouts")
            yield grow


def scroll(page: "Page", rows: int) -> None:
    """Scrolls the listing by some rows."""
    page.locator(".rollouts-scroll").evaluate("(element, rows) => element.scrollBy(0, 34 * rows)", rows)


def revisions_of(page: "Page") -> str:
    """The server's current revisions of the runs."""
    return page.context.request.get(f"{page.url.split('#')[0]}api/revisions").text()


def top_of(row: "Locator") -> float:
    """The distance of a row from the top of the window."""
    return float(row.evaluate("element => element.getBoundingClientRect().top"))


def test_visible_rows_stay_while_the_run_grows(page: "Page", growing: Callable[[], None]) -> None:
    """New rows appear without a reload; visible rows stay in place."""
    with page.expect_response(re.compile("api/neighbours")):
        scroll(page, 120)
    expect(row(page, 125)).to_be_in_viewport()
    looked_at, top = row(page, 125).get_attribute("title"), top_of(row(page, 125))
    growing()
    total(page, "270 rollouts")
    moved = page.locator(f'a[data-row="155"][title="{looked_at}"]')
    expect(moved).to_be_in_viewport()
    assert abs(top_of(moved) - top) < 2


class HeldRequests:
    """Holds requests of the page until `release`."""

    def __init__(self, page: "Page", question: str) -> None:
        self._routes: list[Route] | None = []
        page.route(f"**/api/{question}*", self._handle)

    def _handle(self, route: "Route") -> None:
        if self._routes is None:
            route.continue_()
        else:
            self._routes.append(route)

    def release(self) -> None:
        routes, self._routes = self._routes or [], None
        for route in routes:
            route.continue_()


def test_rows_stay_if_one_scrolls_while_the_run_grows(page: "Page", growing: Callable[[], None]) -> None:
    """If a row's position is answered before the rows themselves, the listing is moved once, not twice."""
    positions, revisions = HeldRequests(page, "neighbours"), HeldRequests(page, "revisions")
    with page.expect_request(re.compile("api/neighbours")):
        scroll(page, 120)
    expect(row(page, 125)).to_be_in_viewport()
    looked_at, top = row(page, 125).get_attribute("title"), top_of(row(page, 125))
    before = revisions_of(page)
    growing()
    while revisions_of(page) == before:
        page.wait_for_timeout(20)
    scroll(page, 1)
    positions.release()
    expect(row(page, 155)).to_be_in_viewport()
    with page.expect_response(re.compile("api/rollouts")):
        revisions.release()
    total(page, "270 rollouts")
    moved = page.locator(f'a[data-row="155"][title="{looked_at}"]')
    expect(moved).to_be_in_viewport()
    assert abs(top_of(moved) - (top - 34)) < 2


def test_hostile_names_are_text_and_can_be_filtered_by(listed: Viewer, page: "Page") -> None:
    """Names with markup, colons and bidirectional marks are shown as text, and can be filtered by."""
    name = f"reward_data.{HOSTILE}"
    spelt = quote(name.replace(":", "%3A"))
    show(page, listed, f"?columns={spelt},tags&filter={spelt}:min:5&measure={quote(name)}")
    total(page, f"{ITERATIONS * GROUPS} of")
    expect(page.get_by_role("list", name="Active filters")).to_contain_text("<img src=x onerror=alert(1)>")
    expect(page.get_by_role("list", name="Active filters")).to_contain_text("U+202E")
    expect(page.locator(".range svg")).to_be_visible()
    expect(page.locator("thead")).to_contain_text("U+202E")
    assert page.locator("#view img").count() == 0


def test_a_narrow_screen_scrolls_the_table_and_not_the_page(listed: Viewer, page: "Page") -> None:
    """At 390 pixels the page is as wide as the screen, and the menus stay within it."""
    page.set_viewport_size({"width": 390, "height": 844})
    show(page, listed, "?filter=env:is:sums&where=reward%20is%20not%20null")
    expect(row(page, 0)).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    page.get_by_role("button", name="Columns").click()
    box = page.get_by_role("dialog", name="Choose columns").bounding_box()
    assert box is not None
    assert box["x"] >= 0
    assert box["x"] + box["width"] <= 390
