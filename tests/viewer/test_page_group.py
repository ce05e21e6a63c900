"""The page of a group, in a real browser over a real viewer."""

import itertools
import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, quote, urlencode, urlsplit

import pytest

import rolltrace
from rolltrace.query.group_comparison import GroupComparison, compare_group
from rolltrace.trace.score import GroupKey
from viewing import Viewer, viewing

pytest.importorskip("playwright")
from playwright.sync_api import expect

if TYPE_CHECKING:
    from playwright.sync_api import BrowserContext, Locator, Page


SYSTEM = {"role": "system", "content": "You are careful."}
ASKED = {"role": "user", "content": "What is 5 + 7?"}
RIGHT = "Let me think. Five and seven make 12, I am sure."
WRONG = "Let me think. Five and seven make 13, I am sure."
HOSTILE = "<img src=x onerror='window.ran=1'><script>window.ran=1</script>\u202eturned\u202c\x00"


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs whose numbers and texts are known."""
    folder = tmp_path_factory.mktemp("groups")
    _sums(folder / "sums")
    _wide(folder / "wide")
    _game(folder / "game")
    _hostile(folder / "hostile")
    _large(folder / "large")
    _regraded(folder / "regraded")
    return folder


@pytest.fixture(scope="module")
def groups(recorded: Path) -> Iterator[Viewer]:
    """A viewer over them."""
    with viewing(recorded) as served:
        yield served


def _sums(path: Path) -> None:
    """A group with a right answer, two equally wrong ones and a failure; and one without a signal."""
    with rolltrace.create_run(path) as run:
        for index, (text, reward) in enumerate([(WRONG, 0.25), (RIGHT, 1.0), (None, 0.0), (WRONG, 0.25)]):
            _play(run, "sum", index, text, reward, reward_data={"correct": float(text == RIGHT), "form": 1.0})
        for index in range(2):
            _play(run, "sun", index, RIGHT, 1.0)
        for index, end in enumerate(("left", "right")):
            _play(run, "sunk", index, f"{'🎉' * 500} so it is: {end}", -index)
        rng = random.Random(6)
        for index in range(6):
            _play(run, "words", index, "".join(rng.choices("一二三四五", k=40)), -index)


def _play(run: Any, group: str, index: int, text: str | None, reward: float, **numbers: Any) -> None:
    """One member of a group; without a text it fails."""
    about = {"env": "sums", "task": group, "group": group, "index": index, "iteration": 3}
    try:
        with run.rollout(**about, task_data={"answer": 12}) as rollout:
            if text is None:
                raise TimeoutError("no answer within 30 s")
            rollout.step(prompt=[SYSTEM, ASKED], response=text, reward=reward, metrics={"calm": 0.5 + index}, **numbers)
    except TimeoutError:
        pass


def _regraded(path: Path) -> None:
    """A group that was regraded: one member falls, one rises, one stays, and the grader fails for one."""
    with rolltrace.create_run(path) as run:
        for index, reward in enumerate([1.0, 0.0, 0.5, 0.25]):
            _play(run, "sum", index, RIGHT, reward)

    def again(rollout: Any) -> float:
        return [0.25, 1.0, 0.5][rollout.index]

    rolltrace.regrade(path, again, as_reward=True)


def _wide(path: Path) -> None:
    """Sixty-four members with many long messages."""
    with rolltrace.create_run(path) as run:
        for index in range(64):
            with run.rollout(env="walk", task="t", group="t", index=index) as rollout:
                history: list[Any] = [SYSTEM, ASKED]
                for turn in range(30):
                    said = {"role": "assistant", "content": f"I go on. {'step ' * 200}{index if turn == 20 else ''}"}
                    rollout.step(prompt=list(history), response=said, reward=index / 100 if turn == 0 else 0.0)
                    history += [said, {"role": "user", "content": f"You are at {turn}."}]


def _large(path: Path) -> None:
    """Six hundred members, the first the best."""
    with rolltrace.create_run(path) as run:
        for index in range(600):
            with run.rollout(env="sums", task="t", group="t", index=index) as rollout:
                rollout.step(prompt=[ASKED], response=f"It is {index % 7}.", reward=-index)


def _game(path: Path) -> None:
    """Two plays of a game with two seats; seat 1 wins."""
    with rolltrace.create_run(path) as run:
        for index in range(4):
            episode, seat = divmod(index, 2)
            about = {"env": "game", "task": "t", "group": "t", "index": index, "episode": episode, "seat": seat}
            with run.rollout(**about) as rollout:
                rollout.step(prompt=[ASKED], response="I play.", reward=2.0 * seat - 1)


def _hostile(path: Path) -> None:
    """Injection in every name and text, and rewards that are not numbers."""
    with rolltrace.create_run(path) as run:
        for index, reward in enumerate([1.0, 0.5, float("nan"), float("inf"), 1e308]):
            about = {"env": HOSTILE, "task": HOSTILE, "group": HOSTILE, "policy": HOSTILE, "index": index}
            with run.rollout(**about, task_data={HOSTILE: HOSTILE}) as rollout:
                call = {"id": HOSTILE, "type": "function", "function": {"name": HOSTILE, "arguments": HOSTILE}}
                said = {"role": "assistant", "content": HOSTILE + "y" * 30_000 + str(index), "tool_calls": [call]}
                rollout.step(
                    prompt=[{"role": "user", "content": "x" * 1_000_000}],
                    response=said,
                    reward=reward,
                    reward_data={HOSTILE: index, "n" * 500: 1.0, "__proto__": 2.0},
                )


def _show(page: "Page", viewer: Viewer, run: str, key: tuple[int, str, str], **more: str) -> None:
    """Opens the page of a group: iteration, env and name."""
    iteration, env, group = key
    named = {"split": "train", "iteration": str(iteration), "env": env, "group": group, **more}
    if not page.url.startswith(viewer.origin):
        page.goto(viewer.entry)
    page.goto(f"{viewer.origin}/#/run/{quote(run, safe='')}/group?{urlencode(named)}")
    expect(page.get_by_role("heading", level=1)).to_contain_text(group[:8])


def _comparison(path: Path, key: tuple[int, str, str]) -> GroupComparison:
    run = rolltrace.open_run(path)
    try:
        return compare_group(run, GroupKey("train", *key))
    finally:
        run.close()


def _column(page: "Page", index: int) -> "Locator":
    return page.get_by_role("article", name=f"Member {index}", exact=True)


def _parameters(page: "Page") -> dict[str, list[str]]:
    return parse_qs(urlsplit(page.url).fragment.partition("?")[2])


def _sideways(page: "Page") -> int:
    return int(page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth"))


SUM = (3, "sums", "sum")


def test_members_are_side_by_side_in_the_order_of_their_rewards(page: "Page", groups: Viewer) -> None:
    """The prompt is there once, the best member is first, one without a reward last, each with its reward's terms."""
    _show(page, groups, "sums", SUM)
    expect(page.get_by_role("article", name=re.compile("^Member ")).get_by_role("heading", level=3)).to_have_text(
        ["#1", "#0", "#3", "#2"]
    )
    expect(page.get_by_text("What is 5 + 7?")).to_have_count(1)
    facts = page.locator("dl.group-facts")
    expect(facts).to_have_text(re.compile("Members4With a reward3Mean reward0.500Std0.354Failed#2 .*TimeoutError"))
    expect(_column(page, 1).locator("header")).to_have_text(re.compile(r"#1.*1.*adv \+0.500"))
    expect(_column(page, 0)).to_contain_text("0.250")
    expect(_column(page, 2)).to_contain_text("no answer within 30 s")
    expect(page.get_by_role("note")).to_have_count(0)
    page.get_by_text("Task data").click()
    expect(page.get_by_label("The task")).to_contain_text("answer: 12")


def test_the_first_difference_is_marked_where_it_is(page: "Page", groups: Viewer) -> None:
    """What a member shares with the one before it is dimmed, up to the first character that differs."""
    _show(page, groups, "sums", SUM)
    same = RIGHT[: RIGHT.index("2, I")]
    expect(_column(page, 0).locator(".long-text .group-soft")).to_have_text(same)
    mark = _column(page, 0).locator("[data-mark]")
    expect(mark).to_have_text("From here it differs from #1:")
    assert mark.evaluate("mark => mark.nextSibling.textContent") == "3, I am sure."
    expect(_column(page, 3)).to_contain_text("says the same as #0")
    expect(_column(page, 3).locator("[data-mark]")).to_have_count(0)
    expect(_column(page, 0).locator(".group-differs th")).to_have_text(["correct"])
    page.get_by_role("button", name="Where it differs from #1").click()
    expect(mark).to_be_focused()


def test_characters_are_counted_whole(page: "Page", groups: Viewer) -> None:
    """Characters that a browser counts as two, before a difference, are not split."""
    _show(page, groups, "sums", (3, "sums", "sunk"))
    column = _column(page, 1)
    soft, mark = column.locator(".long-text .group-soft"), column.locator("[data-mark]")
    assert mark.evaluate("mark => mark.nextSibling.textContent") == "right"
    assert set(soft.text_content() or "") == set("🎉 so it is: ")
    more = column.get_by_role("button", name="characters the same")
    more.click()
    expect(more).to_have_count(0)
    assert soft.text_content() == f"{'🎉' * 500} so it is: "


def test_a_regrade_is_shown_as_old_against_new(page: "Page", groups: Viewer) -> None:
    """The page of a group has old and new rewards and ranks of all members; that of a rollout has its own."""
    _show(page, groups, "regraded", SUM)
    card = page.get_by_role("region", name=re.compile("^Old against new: .*again@"))
    expect(card.locator("header")).to_contain_text("2 members of 4 moved")
    expect(card.locator("header")).to_contain_text("the rewards now")
    rows = [
        ["#1", "0", "1", "+1", "4 → 1", ""],
        ["#2", "0.500", "0.500", "=", "2", ""],
        ["#0", "1", "0.250", "−0.750", "1 → 3", ""],
        ["#3", "0.250", "failed", "–", "3 → –", ""],
    ]
    expect(card.locator("tbody tr")).to_have_count(4)
    for row, cells in enumerate(rows):
        expect(card.locator("tbody tr").nth(row).locator("th, td")).to_have_text(cells)
    card.get_by_role("link", name="#0").click()
    expect(_column(page, 0)).to_have_attribute("aria-current", "true")
    _column(page, 0).get_by_role("link", name="#0").click()
    expect(page.locator("dl.rollout-facts")).to_contain_text(re.compile(r"Regraded1 → 0.250 −0.750"))
    page.get_by_role("link", name="Scores 2").click()
    expect(page.get_by_label("Old against new")).to_contain_text("1 → 0.250 −0.750")


def test_a_group_without_a_signal_says_why(page: "Page", groups: Viewer) -> None:
    """The reason is shown as a note; a key leads to the group before."""
    _show(page, groups, "sums", (3, "sums", "sun"))
    expect(page.get_by_role("note")).to_have_text("No signalBoth rewards are 1.0: every advantage is 0.")
    page.keyboard.press("[")
    expect(page.get_by_role("heading", level=1)).to_have_text("sum carries a signal")
    page.keyboard.press("]")
    expect(page.get_by_role("note")).to_be_visible()


def test_keys_move_through_members_and_the_address_says_where(page: "Page", groups: Viewer) -> None:
    """Member, layout and comparison are in the address, which shows the same in another tab."""
    _show(page, groups, "sums", SUM)
    expect(_column(page, 1)).to_have_attribute("aria-current", "true")
    page.keyboard.press("j")
    page.keyboard.press("j")
    expect(_column(page, 0)).to_have_attribute("aria-current", "true")
    page.keyboard.press("k")
    expect(_column(page, 1)).to_have_attribute("aria-current", "true")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("v")
    chosen = page.get_by_role("row").filter(has=page.get_by_role("rowheader", name="#0"))
    expect(chosen).to_have_attribute("aria-current", "true")
    other = page.context.new_page()
    other.goto(page.url)
    expect(other.locator("tr[aria-current] th")).to_have_text("#0")
    expect(other.get_by_role("row")).to_have_count(6)
    expect(other.get_by_role("columnheader", name="calm")).to_be_visible()
    expect(other.locator("tr[aria-current] td")).to_contain_text(["0.250", "−0.250"])
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile(r"#/run/sums/rollout/[0-9a-f]+"))
    page.go_back()
    expect(chosen).to_have_attribute("aria-current", "true")


def test_a_dot_leads_to_its_member(page: "Page", groups: Viewer) -> None:
    """Each reward's dot links to its member's column; members without a reward are apart."""
    _show(page, groups, "wide", (0, "walk", "t"))
    expect(_column(page, 2)).to_have_count(0)
    page.get_by_role("link", name="#2: reward 0.020", exact=False).click()
    expect(_column(page, 2)).to_be_in_viewport()
    expect(_column(page, 2)).to_have_attribute("aria-current", "true")
    assert "member" in _parameters(page)


def test_two_members_are_compared_word_by_word(page: "Page", groups: Viewer, recorded: Path) -> None:
    """The words that differ are marked in both, and both texts are whole."""
    best, second, *_ = _comparison(recorded / "sums", SUM).members
    _show(page, groups, "sums", SUM, compare=f"{best.id},{second.id}")
    panes = page.locator(".group-pane")
    expect(panes).to_have_text([RIGHT, WRONG])
    expect(panes.locator("mark")).to_have_text(["12", "13"])
    page.get_by_role("button", name="Swap the two members").click()
    expect(panes.locator("mark")).to_have_text(["13", "12"])
    assert _parameters(page)["compare"] == [f"{second.id},{best.id}"]
    page.keyboard.press("d")
    expect(_column(page, 1)).to_be_visible()


def test_as_many_words_as_can_be_are_found_in_common(page: "Page", groups: Viewer, recorded: Path) -> None:
    """Unmarked words are equal in both texts, and no longer common sequence exists."""
    key = (3, "sums", "words")
    members = _comparison(recorded / "sums", key).members
    assert len(members) > 1
    for one, other in itertools.pairwise(members):
        _show(page, groups, "sums", key, compare=f"{one.id},{other.id}")
        texts = [member.messages[-1].message.content for member in (one, other)]
        panes = page.locator(".group-pane")
        expect(panes).to_have_text(texts)
        common = ["".join(panes.nth(place).locator(".group-soft").all_text_contents()) for place in (0, 1)]
        assert common[0] == common[1]
        assert len(common[0]) == _longest_common(*texts)


def _longest_common(one: str, other: str) -> int:
    """The length of the longest common subsequence, by the textbook algorithm."""
    row = [0] * (len(other) + 1)
    for letter in one:
        before, row = row, [0]
        for place, against in enumerate(other):
            row.append(before[place] + 1 if letter == against else max(before[place + 1], row[-1]))
    return row[-1]


def test_only_visible_members_of_a_large_group_are_drawn(page: "Page", groups: Viewer) -> None:
    """Of sixty-four members with long conversations few columns are drawn, and equal parts are folded."""
    _show(page, groups, "wide", (0, "walk", "t"))
    columns = page.get_by_role("article", name=re.compile("^Member "))
    expect(_column(page, 63)).to_be_visible()
    assert columns.count() < 10
    expect(_column(page, 62)).to_contain_text("40 messages the same as #63")
    page.get_by_role("region", name="Members side by side").evaluate("region => region.scrollTo(1e6, 0)")
    expect(_column(page, 0)).to_be_in_viewport()
    expect(_column(page, 63)).to_have_count(0)
    assert columns.count() < 10
    _column(page, 0).get_by_text("40 messages the same as #1").click()
    expect(_column(page, 0).locator(".message")).to_have_count(12)


def test_a_rubric_is_a_grid_with_the_graders_text(page: "Page", viewer: Viewer) -> None:
    """Each cell is the recorded number; focus shows the grader's text, and a row unfolds all of it."""
    key = _a_group(viewer.folder / "rubric")
    rubric = _comparison(viewer.folder / "rubric", key).rubric
    assert rubric is not None
    _show(page, viewer, "rubric", key)
    told = page.locator(".group-cell").all_text_contents()
    assert [float(text) for text in told] == [round(cell.value or 0, 2) for row in rubric.cells for cell in row]
    page.locator(".group-cell button").nth(1).focus()
    words = rubric.cells[0][1].words
    assert words
    expect(page.locator(".group-pointed")).to_contain_text(words[:40])
    page.get_by_role("button", expanded=False).filter(has_text=rubric.criteria[0].name).first.click()
    expect(page.locator(".group-words dd")).to_have_count(len(rubric.ids))
    assert _parameters(page)["criterion"] == [rubric.criteria[0].name]


def test_preferences_are_read_without_colour(page: "Page", viewer: Viewer) -> None:
    """Each cell says win, loss, tie or nothing as recorded, and the matrix is antisymmetric."""
    key = _a_group(viewer.folder / "preference")
    matrix = _comparison(viewer.folder / "preference", key).matrix
    assert matrix is not None
    _show(page, viewer, "preference", key)
    told = page.locator(".group-verdict > [aria-hidden]").all_text_contents()
    others = [value for row, values in enumerate(matrix.cells) for column, value in enumerate(values) if row != column]
    letters = ["·" if value is None else "W" if value > 0 else "L" if value < 0 else "=" for value in others]
    assert [text[0] for text in told] == letters
    nets = [float(text.replace("−", "-")) for text in page.locator(".group-preferences td strong").all_text_contents()]
    assert sum(nets) == pytest.approx(0, abs=0.01)
    ids = [one.id for one in _comparison(viewer.folder / "preference", key).members]
    assert [one for one in matrix.ids if one is not None] == ids


def test_a_game_is_shown_by_play_and_seat(page: "Page", groups: Viewer) -> None:
    """A table shows the member at each seat of each play, and links to its column."""
    _show(page, groups, "game", (0, "game", "t"))
    plays = page.get_by_label("Members by play and seat")
    expect(plays.get_by_role("row")).to_contain_text(["PlaySeat 0Seat 1", "0#0−1", "1#2−1"])
    plays.get_by_role("link", name="#2").click()
    expect(_column(page, 2)).to_have_attribute("aria-current", "true")


def test_a_narrow_screen_shows_one_member_at_a_time(context: "BrowserContext", page: "Page", groups: Viewer) -> None:
    """At 390 pixels a list chooses the member, and the page never scrolls sideways."""
    page.set_viewport_size({"width": 390, "height": 844})
    _show(page, groups, "sums", SUM)
    expect(page.get_by_role("article", name=re.compile("^Member "))).to_have_count(1)
    page.get_by_role("combobox", name="Member").select_option(label="3 of 4: #3, 0.250")
    expect(_column(page, 3)).to_be_visible()
    page.get_by_role("link", name="Better member").click()
    expect(_column(page, 0)).to_be_visible()
    assert _sideways(page) == 0
    page.get_by_role("link", name="Compare two").click()
    expect(page.locator(".group-pane")).to_have_count(2)
    assert _sideways(page) == 0


def test_hostile_content_is_only_text(page: "Page", groups: Viewer) -> None:
    """Markup in every name and text is shown as text, bidirectional marks are made visible, and the layout holds."""
    _show(page, groups, "hostile", (0, HOSTILE, HOSTILE))
    expect(_column(page, 0)).to_contain_text("<script>window.ran=1</script>")
    expect(page.get_by_role("heading", level=1)).to_contain_text("U+202E")
    expect(page.get_by_role("note")).to_contain_text("not finite")
    expect(page.get_by_role("heading", level=1)).to_contain_text("no signal")
    assert page.locator("#view img, #view script").count() == 0
    for width in (1280, 390):
        page.set_viewport_size({"width": width, "height": 900})
        for key in ("v", "v", "d", "d"):
            page.keyboard.press(key)
            expect(page.get_by_label("Members", exact=True)).to_be_visible()
            assert _sideways(page) == 0
    assert page.evaluate("window.ran") is None


def test_a_group_that_grows_is_shown_as_it_is_now(page: "Page", groups: Viewer, recorded: Path) -> None:
    """A member that is recorded meanwhile appears without a reload; the selection stays."""
    with rolltrace.create_run(recorded / "live") as run:
        for index in range(2):
            _play(run, "sum", index, WRONG, 0.25)
        run.flush()
        _show(page, groups, "live", SUM)
        page.keyboard.press("j")
        page.keyboard.press("j")
        expect(_column(page, 1)).to_have_attribute("aria-current", "true")
        _play(run, "sum", 2, RIGHT, 1.0)
        run.flush()
        headings = page.get_by_role("article", name=re.compile("^Member ")).get_by_role("heading", level=3)
        expect(headings).to_have_text(["#2", "#0", "#1"])
        expect(_column(page, 1)).to_have_attribute("aria-current", "true")


def test_an_unknown_group_is_reported(page: "Page", groups: Viewer) -> None:
    """The address of an unknown group shows the server's message."""
    page.goto(groups.entry)
    page.goto(f"{groups.origin}/#/run/sums/group?split=train&iteration=3&env=sums&group=nobody")
    expect(page.get_by_role("alert")).to_contain_text("Not found")
    page.goto(f"{groups.origin}/#/run/sums/group")
    expect(page.get_by_role("heading", name="Which group?")).to_be_visible()


def _a_group(path: Path) -> tuple[int, str, str]:
    run = rolltrace.open_run(path)
    try:
        found = run.sql('select iteration, env, "group" from groups order by all limit 1').fetchone()
        assert found is not None
        return found[0], found[1], found[2]
    finally:
        run.close()


def test_a_group_without_a_name_has_an_address(page: Any, tmp_path: Path) -> None:
    """A group's name may be empty, and its address works."""
    with rolltrace.create_run(tmp_path / "run") as run:
        for index in range(2):
            _play(run, "", index, RIGHT, index)
    with viewing(tmp_path) as served:
        page.goto(served.entry)
        rows = page.evaluate("rolltrace.ask('rollouts', { run: 'run' }).then(answer => answer.rows)")
        page.goto(f"{served.origin}/#/run/run/rollout/{rows[0]['id']}")
        page.get_by_role("heading", name="Transcript").wait_for()
        page.keyboard.press("u")
        expect(page.get_by_role("heading", name="Shared prompt")).to_be_visible()
        expect(page.locator("[data-member]")).to_have_count(2)


def test_a_large_group_is_shown_in_windows(page: "Page", groups: Viewer) -> None:
    """All members can be reached, some at a time, by links, by keys, and by the dots of their rewards."""
    _show(page, groups, "large", (0, "sums", "t"))
    expect(page.get_by_text("1 to 256 of 600 rollouts")).to_be_visible()
    page.get_by_role("link", name="Worse members").click()
    expect(_column(page, 256)).to_contain_text("differs from #255")
    page.get_by_role("link", name="Worse members").click()
    expect(page.get_by_text("513 to 600 of 600 rollouts")).to_be_visible()
    expect(page.get_by_role("link", name="Worse members")).to_have_count(0)
    page.keyboard.press("j")
    page.keyboard.press("k")
    expect(page.get_by_text("257 to 512 of 600 rollouts")).to_be_visible()
    dots = page.get_by_role("group", name="Rewards of the members").get_by_role("link")
    assert dots.count() <= 401
    dots.nth(399).focus()
    page.keyboard.press("Enter")
    expect(page.locator("[data-member][aria-current]")).to_be_visible()
    assert int(_parameters(page)["offset"][0]) > 0


def test_members_are_compared_with_the_best(page: "Page", groups: Viewer) -> None:
    """Differences are from the member before, or from a chosen one, also from another window."""
    _show(page, groups, "large", (0, "sums", "t"), offset="256")
    expect(_column(page, 256)).to_contain_text("differs from #255")
    choice = page.get_by_role("group", name="What members are compared with")
    choice.get_by_role("link", name="the best").click()
    expect(_column(page, 257)).to_contain_text("differs from #0")
    expect(_column(page, 259)).to_contain_text("says the same as #0")
    page.keyboard.press("j")
    page.keyboard.press("j")
    choice.get_by_role("link", name="#257").click()
    expect(_column(page, 256)).to_contain_text("differs from #257")
    choice.get_by_role("link", name="the one before").click()
    expect(_column(page, 258)).to_contain_text("differs from #257")
    expect(_column(page, 257)).to_contain_text("differs from #256")
