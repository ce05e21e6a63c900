"""The page of one run, in a real browser; every mark is followed to its rollouts."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, urlencode
from urllib.request import Request, urlopen

import msgspec
import pytest

import rolltrace
from answers import write
from rolltrace.store.writer import RunWriter
from rolltrace.trace.stop_reasons import Status
from viewing import Viewer, viewing

pytest.importorskip("playwright")
from playwright.sync_api import expect

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page


ITERATIONS = 6
SIZE = 4
HOSTILE = "<img src=x onerror=alert(1)>\u202e"


def add(run: RunWriter, iteration: int, split: str = "train") -> None:
    """Records an iteration: three groups in two environments, one without a signal and one that fails in part."""
    for number, env in enumerate(("sums", "sums", "words")):
        for index in range(SIZE):
            try:
                with run.rollout(
                    env=env, task=f"t{number}", group=f"g{number}", index=index, iteration=iteration, split=split,
                    policy="small", tags=("easy",),
                ) as rollout:  # fmt: skip
                    if number == 2 and index == 0 and iteration % 2:
                        raise TimeoutError(HOSTILE)
                    reward = 0.0 if number == 0 else (iteration + index) / 10
                    rollout.step(
                        prompt=[{"role": "user", "content": "?"}], response="!", reward=reward,
                        reward_data={"right": reward, HOSTILE: 1.0},
                        usage={"prompt_tokens": 3, "completion_tokens": 10 * (iteration + 1)},
                    )  # fmt: skip
                    if index == 3:
                        rollout.end(stop_reason="max_turns")
            except TimeoutError:
                pass


@pytest.fixture(scope="module")
def training(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Viewer]:
    """A viewer over a run of six iterations with two environments and an evaluation, and over a damaged one."""
    folder = tmp_path_factory.mktemp("training")
    with rolltrace.create_run(folder / "training", config={"model": "small", "nested": {"rate": [1e-6]}}) as run:
        for iteration in range(ITERATIONS):
            add(run, iteration)
        add(run, 0, split="test")
    with rolltrace.create_run(folder / "damaged") as run:
        add(run, 0)
    (segment,) = (folder / "damaged" / "rollouts").iterdir()
    lines = segment.read_bytes().splitlines(keepends=True)
    segment.write_bytes(b"".join([lines[0], b"{" + lines[1][1:].replace(b"t", b"\xff"), *lines[2:]]))
    with viewing(folder) as viewer:
        yield viewer


def enter(page: "Page", viewer: Viewer, address: str) -> None:
    """Opens the viewer at an address."""
    page.goto(viewer.entry)
    page.goto(f"{viewer.origin}/{address}")


def ask(viewer: Viewer, question: str, parameters: list[tuple[str, str]]) -> Any:
    """An API answer of the server, without the page."""
    request = Request(f"{viewer.origin}/api/{question}?{urlencode(parameters)}")
    request.add_header("Authorization", f"Bearer {viewer.token}")
    with urlopen(request, timeout=60) as response:
        return msgspec.json.decode(response.read())


def rollouts_behind(viewer: Viewer, run: str, href: str | None) -> list[dict[str, Any]]:
    """The rollouts that an address of the page lists."""
    path, _, search = (href or "").partition("?")
    assert path == f"#/run/{run}/rollouts"
    columns = ("columns", "iteration,env,split,reward,stop_reason,group,group_signal,reward_data.right")
    return ask(viewer, "rollouts", [("run", run), *parse_qsl(search), columns, ("limit", "200")])["rows"]


def marks_of(page: "Page", card: str) -> "list[Locator]":
    """The marks of a chart, which are links."""
    expect(page.locator(f".{card} svg a").first).to_be_attached()
    return page.locator(f".{card} svg a").all()


def test_key_numbers_and_problems_come_first(page: "Page", training: Viewer) -> None:
    """The key numbers are those of the chosen split; problems come first, with links."""
    enter(page, training, "#/run/training")
    key_numbers = page.locator(".key-number")
    expect(key_numbers.nth(0)).to_contain_text("Mean reward")
    # Of the first and of the last iteration: eight rewards of (i + index) / 10, four of 0, at the last one missing.
    expect(key_numbers.nth(0)).to_contain_text(f"from {2 * (0.0 + 0.1 + 0.2 + 0.3) / 12:.3f}")
    expect(key_numbers.nth(0)).to_contain_text(f"{(2 * (0.5 + 0.6 + 0.7 + 0.8) - 0.5) / 11:.3f}")
    expect(key_numbers.nth(1)).to_contain_text("6 of 18 groups")
    expect(key_numbers.nth(2)).to_contain_text("3 of 72 rollouts")
    expect(key_numbers.nth(3)).to_contain_text("18 of 72 rollouts")
    expect(key_numbers.nth(4)).to_contain_text("from 10 to 60")
    failed = page.locator(".health").get_by_role("link", name="3.6 % of rollouts failed")
    assert len(rollouts_behind(training, "training", failed.get_attribute("href"))) == 3
    assert (
        len(rollouts_behind(training, "training", key_numbers.nth(3).get_by_role("link").get_attribute("href"))) == 18
    )


def test_an_iteration_is_chosen_by_a_click_and_its_bars_lead_to_their_rollouts(page: "Page", training: Viewer) -> None:
    """The histogram of an iteration is in the address, and each of its bars links to exactly what it counts."""
    enter(page, training, "#/run/training")
    marks_of(page, "measure")[2].click()
    expect(page).to_have_url(re.compile(r"#/run/training\?iteration=2$"))
    expect(page.get_by_role("heading", name="Iteration 2")).to_be_visible()
    expect(page.locator(".histogram")).to_contain_text("12 values")
    seen: list[str] = []
    for bar in marks_of(page, "histogram"):
        rows = rollouts_behind(training, "training", bar.get_attribute("href"))
        assert f" {len(rows)} rollout" in (bar.get_attribute("aria-label") or "")
        assert {(row["iteration"], row["split"]) for row in rows} == {(2, "train")}
        seen += [row["id"] for row in rows]
    assert len(seen) == len(set(seen)) == 12
    page.get_by_role("link", name="Show all iterations").click()
    expect(page.locator(".histogram")).to_contain_text("69 values")
    page.go_back()
    expect(page.get_by_role("heading", name="Iteration 2")).to_be_visible()


def test_each_piece_of_the_stacks_leads_to_exactly_its_rollouts(page: "Page", training: Viewer) -> None:
    """Stop reasons are fractions of all rollouts, groups without signal of all groups; each piece is a link to them."""
    enter(page, training, "#/run/training")
    counted = 0
    for piece in marks_of(page, "stops"):
        label = piece.get_attribute("aria-label") or ""
        told = re.fullmatch(r"Iteration (\d), (\w+): (\d+) rollouts?", label)
        assert told is not None, label
        rows = rollouts_behind(training, "training", piece.get_attribute("href"))
        assert {(row["iteration"], row["stop_reason"]) for row in rows} == {(int(told[1]), told[2])}
        assert len(rows) == int(told[3])
        counted += len(rows)
    assert counted == ITERATIONS * 3 * SIZE
    for piece in marks_of(page, "signal"):
        told = re.fullmatch(
            r"Iteration (\d), (no signal|signal): (\d) groups?", piece.get_attribute("aria-label") or ""
        )
        assert told is not None
        rows = rollouts_behind(training, "training", piece.get_attribute("href"))
        assert {row["group"] for row in rows} == ({"g0"} if told[2] == "no signal" else {"g1", "g2"})
        assert len({(row["iteration"], row["group"]) for row in rows}) == int(told[3])
    marks_of(page, "stops")[0].click()
    expect(page).to_have_url(re.compile(r"/rollouts\?.*stop_reason"))


def test_pointing_at_an_iteration_shows_it_in_all_charts(page: "Page", training: Viewer) -> None:
    """Pointing at an iteration shows it in the readouts of all charts; the arrow keys move, and Enter chooses."""
    enter(page, training, "#/run/training")
    marks_of(page, "measure")[3].hover()
    for card in ("measure", "stops", "signal", "length"):
        expect(page.locator(f".{card} .chart-readout")).to_contain_text("Iteration 3")
    expect(page.locator(".measure .chart-readout")).to_contain_text("missing 1")
    slider = page.get_by_role("slider", name="Reward over iterations")
    slider.focus()
    page.keyboard.press("Home")
    page.keyboard.press("ArrowRight")
    expect(slider).to_have_attribute("aria-valuetext", re.compile(r"^Iteration 1: 11 values, .*, 1 missing$"))
    expect(page.locator(".length .chart-readout")).to_contain_text("median 20")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="Iteration 1")).to_be_visible()
    page.locator("h1").click()
    page.keyboard.press("ArrowRight")
    expect(page).to_have_url(re.compile(r"iteration=2$"))


def test_measure_environment_split_and_table_are_in_the_address(page: "Page", training: Viewer) -> None:
    """Any measure, environment and split can be shown, also as a table; the address reproduces it."""
    enter(page, training, "#/run/training")
    page.get_by_label("Measure", exact=True).select_option("right")
    expect(page.get_by_role("heading", name="Right over iterations")).to_be_visible()
    page.get_by_label("Environment").select_option("words (28)")
    expect(page.locator(".measure .chart-readout")).to_contain_text("n 3")
    page.get_by_role("link", name="Numbers of measure as a table").click()
    table = page.get_by_role("table", name="Right over iterations")
    expect(table.get_by_role("row")).to_have_count(ITERATIONS + 1)
    address = page.url
    assert "measure=reward_data.right" in address
    assert "env=words" in address
    page.goto("about:blank")
    page.goto(address)
    expect(table.get_by_role("row").nth(2)).to_contain_text("0.300")  # the median of 0.2, 0.3 and 0.4
    page.get_by_label("Split").select_option("test (12)")
    expect(page.get_by_role("heading", name="Right by environment")).to_be_visible()


def test_one_iteration_is_shown_by_environment(page: "Page", viewer: Viewer, training: Viewer) -> None:
    """A run of one iteration has a distribution for each environment, whose marks are links, and no empty axis."""
    enter(page, training, "#/run/training?split=test")
    words = page.get_by_role("region", name="Environment words")
    expect(words).to_contain_text("4 rollouts")
    bars = words.locator("svg a").all()
    rows = [row for bar in bars for row in rollouts_behind(training, "training", bar.get_attribute("href"))]
    assert {(row["env"], row["split"]) for row in rows} == {("words", "test")}
    assert len(rows) == 4
    limited = words.get_by_role("link", name="max_turns 25 %")
    assert len(rollouts_behind(training, "training", limited.get_attribute("href"))) == 1
    expect(page.get_by_role("slider")).to_have_count(0)
    enter(page, viewer, "#/run/rubric")
    expect(page.get_by_role("region", name="Environment rubric").locator("svg a").first).to_be_attached()
    expect(page.get_by_role("heading", name="Other measures")).to_be_visible()


def test_errors_ledger_findings_and_config_are_shown(page: "Page", training: Viewer) -> None:
    """Kinds of errors link to their rollouts, the ledger is a sum, and findings are listed."""
    enter(page, training, "#/run/training")
    errors = page.get_by_role("region", name="Errors")
    expect(errors).to_contain_text("TimeoutError")
    expect(errors.locator(".long-text")).to_contain_text("<img src=x onerror=alert(1)>")
    expect(errors.get_by_title("U+202E, an invisible character")).to_be_visible()
    assert len(rollouts_behind(training, "training", errors.get_by_role("link", name="3").get_attribute("href"))) == 3
    ledger = page.get_by_role("region", name="Ledger")
    expect(ledger).to_contain_text("adds up")
    expect(ledger.locator("dd").first).to_have_text("84")
    findings = page.get_by_role("region", name="Findings of the check")
    expect(findings.get_by_text("audits", exact=False).first).to_be_visible()
    findings.get_by_role("button", name="Check again").click()
    expect(findings.get_by_role("button", name="Check again")).to_be_visible()
    page.get_by_text("Configuration").click()
    expect(page.locator(".run-config")).to_contain_text('"rate"')


def test_damage_comes_first(page: "Page", training: Viewer) -> None:
    """Unreadable places are named with their file; the rest is shown, and the check finds the same."""
    enter(page, training, "#/run/damaged")
    problems = page.get_by_role("region", name="1 part of this run could not be read")
    expect(problems).to_contain_text("rollouts/")
    expect(page.locator(".health")).to_contain_text("1 problem in the files")
    expect(page.locator(".environment").first).to_be_visible()
    findings = page.get_by_role("region", name="Findings of the check")
    expect(findings.get_by_role("heading", name="damaged")).to_be_visible()
    page.locator(".health").get_by_role("button", name=re.compile("found an error")).click()
    expect(findings).to_be_focused()


def test_every_page_says_that_a_run_is_damaged(page: "Page", training: Viewer) -> None:
    """A damaged run has a banner on the pages of its rollouts and groups, and a badge in the list of runs."""
    enter(page, training, "#/run/damaged/rollouts")
    banner = page.get_by_role("region", name="1 part of this run could not be read")
    expect(banner).to_be_visible()
    page.locator("a[data-row='0']").click()
    expect(page.get_by_role("heading", name="Transcript")).to_be_visible()
    expect(banner).to_be_visible()
    page.get_by_role("link", name="Group").first.click()
    expect(banner).to_be_visible()
    banner.get_by_text("could not be read").click()
    expect(banner.get_by_text("rollouts/")).to_be_visible()
    enter(page, training, "#/")
    expect(page.locator("tr", has_text="damaged").locator(".runs-state")).to_contain_text("damaged")


def test_a_check_that_did_not_run_says_why(page: "Page", training: Viewer) -> None:
    """If an answer has a message instead of findings, it is shown; a report has no button."""
    told = "A run of this size is not checked for a report."
    answer = {"state": "absent", "stale": False, "audits": 0, "found": [], "message": told}
    page.route("**/api/findings*", lambda route: route.fulfill(json=answer))
    enter(page, training, "#/run/training")
    findings = page.get_by_role("region", name="Findings of the check")
    expect(findings).to_contain_text(told)
    expect(findings).not_to_contain_text("checked when you ask")


def test_huge_rewards_and_odd_words_are_drawn(page: "Page", tmp_path: Path) -> None:
    """Means that overflow do not break the charts, and an unreadable answer is not counted as a limit."""
    with rolltrace.create_run(tmp_path / "huge", config={"mo\u202edel": "a\u200bb"}) as run:
        for index in range(12):
            with run.rollout(env="sums", task="t", group="g", index=index, iteration=index // 4) as rollout:
                rollout.step(prompt=[{"role": "user", "content": "?"}], response="!", reward=1e308 if index < 8 else 1)
                rollout.end(stop_reason=("completed", "parse_error", "max_turns", "timeout")[index % 4])
    with viewing(tmp_path) as viewer:
        enter(page, viewer, "#/run/huge")
        expect(page.locator(".measure svg a")).to_have_count(3)
        limits = page.locator(".key-number").nth(3)
        expect(limits).to_contain_text("6 of 12 rollouts")
        rows = rollouts_behind(viewer, "huge", limits.get_by_role("link").get_attribute("href"))
        assert sorted(row["stop_reason"] for row in rows) == ["max_turns"] * 3 + ["timeout"] * 3
        drawn = page.locator(".measure svg path").evaluate_all("all => all.map(path => path.getAttribute('d')).join()")
        assert not re.search("NaN|Infinity", drawn)
        expect(page.locator(".run-config-glance")).to_have_text("mo\ufffddel a\ufffdb")


def test_an_interrupted_run_says_what_is_finished(page: "Page", tmp_path: Path) -> None:
    """Cancelled rollouts are recorded but not finished, and a game counts as one episode."""
    with rolltrace.create_run(tmp_path / "games", planned=3) as run:
        for index in range(6):
            status = Status.CANCELLED if index > 3 else Status.OK
            write(run, index=index, episode=index // 2, seat=index % 2, status=status, stop_reason="cancelled")
    with viewing(tmp_path) as viewer:
        enter(page, viewer, "#/run/games")
        expect(page.locator(".health")).to_contain_text("interrupted with 2 of 3 episodes")
        expect(page.locator(".key-number-note", has_text="planned")).to_have_text("2 of 3 episodes planned")


def test_the_run_grows_without_a_reload(page: "Page", tmp_path: Path) -> None:
    """New iterations are drawn; the first of them makes charts of distributions."""
    with viewing(tmp_path) as viewer, rolltrace.create_run(tmp_path / "growing") as run:
        run.flush()
        enter(page, viewer, "#/run/growing")
        expect(page.get_by_role("heading", name="No rollouts yet")).to_be_visible()
        page.evaluate("() => { window.same = true; }")
        add(run, 0)
        run.flush()
        expect(page.get_by_role("region", name="Environment words")).to_be_visible()
        for iteration in (1, 2):
            add(run, iteration)
            run.flush()
        expect(page.locator(".measure svg a")).to_have_count(3)
        expect(page.locator(".key-number").nth(5)).to_contain_text("36")
        assert page.evaluate("() => window.same") is True


def test_the_run_fits_a_narrow_screen(page: "Page", training: Viewer) -> None:
    """At 390 pixels the charts are one below the other, and nothing is wider than the screen."""
    page.set_viewport_size({"width": 390, "height": 800})
    enter(page, training, "#/run/training?table=stops&measure=reward_data." + HOSTILE)
    expect(page.locator(".measure svg a").first).to_be_attached()
    boxes = [page.locator(f".{name}").bounding_box() for name in ("chart-card.measure", "histogram", "stops", "length")]
    assert [box["x"] for box in boxes if box] == [12] * 4
    assert all(box["width"] <= 390 - 24 for box in boxes if box)
    assert page.evaluate("() => document.documentElement.scrollWidth") <= 390
    assert page.locator("main img").count() == 0
