"""The page of a rollout, in a real browser over a real viewer."""

import asyncio
import base64
import contextlib
import json
import random
import re
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import parse_qs, quote, urlencode, urlsplit

import msgspec
import pytest

import rolltrace
from rolltrace.envs.env import Env, Observation, StepResult
from rolltrace.policies.policy import Completion, to_completion
from rolltrace.rollout.runner import Runner
from rolltrace.testing.scripted import ScriptedReplies
from rolltrace.trace.message import Message, ToolCall
from rolltrace.trace.tokens import Tokens
from rolltrace.trace.transcript import TranscriptNote, transcript_events
from stage import Stage
from viewing import Viewer, viewing

pytest.importorskip("playwright")
from playwright.sync_api import expect

if TYPE_CHECKING:
    from playwright.sync_api import BrowserContext, Page, Route

HOSTILE = "<img src=x onerror='window.ran=1'><script>window.ran=1</script>\u202eturned\u202c\x00"
SYSTEM = {"role": "system", "content": "Be careful.\n" + "Rules matter. " * 200 + "Last rule."}
STEPS = 500
CUT_OFF = """
    [...document.querySelectorAll(".virtual-rows, .panel-body")]
        .filter((box) => box.scrollWidth > box.clientWidth).map((box) => box.className)
"""
"""The boxes that hide a part of what is in them at their right edge."""


class Recorded(NamedTuple):
    """A viewer over runs whose texts and numbers are known."""

    viewer: Viewer
    ids: dict[str, str]
    """Of the rollouts, by what they are called here."""


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Recorded]:
    """The viewer over the recorded runs."""
    folder = tmp_path_factory.mktemp("rollouts")
    ids: dict[str, str] = {}
    with rolltrace.create_run(folder / "talks", trace=rolltrace.Recording(tokens=True)) as run:
        ids["talk"] = _talk(run)
        ids["failed"] = _failed(run)
        ids["again"] = _plain(run, "flaky", attempt=1)
        for seat in range(2):
            ids[f"seat {seat}"] = _plain(run, "game", index=seat, episode=0, seat=seat, reward=1.0 - 2 * seat)
        ids["hostile"] = _hostile(run)
        ids["summed"] = _plain(run, "summed")
        run.score(ids["summed"], "reward", 0.5)
        run.score(ids["summed"], "reward", 1.0, data={"group_grade": 0.75, "unclamped_reward": 1.25}, producer="judge")
        run.score(ids["summed"], "kindness", 0.5)
        ids["replaced"] = _plain(run, "summed", index=1)
        run.score(ids["replaced"], "reward", 3.0, producer="audit")
        ids["grown"] = _grown(run)
    with rolltrace.create_run(folder / "unfinished") as run:
        ids["unfinished"] = _unfinished(run)
        ids["shortened"] = _shortened(run)
    with rolltrace.create_run(folder / "walked") as run:
        for index in range(5):
            ids[f"walked {index}"] = _plain(run, "walk", index=index, reward=index / 10)
    with rolltrace.create_run(folder / "long") as run:
        ids["long"] = _long(run)
        ids["wide"] = _wide(run)
    with rolltrace.create_run(folder / "numbers", trace="numbers") as run:
        ids["hashed"] = _plain(run, "secret")
    with viewing(folder) as viewer:
        yield Recorded(viewer, ids)


def _plain(run: Any, group: str, index: int = 0, reward: float = 0.5, **about: Any) -> str:
    with run.rollout(env="plain", task=group, group=group, index=index, **about) as rollout:
        rollout.step(prompt="What is 5 + 7?", response=f"It is 12, says {index}.", reward=reward)
    return str(rollout.id)


def _talk(run: Any) -> str:
    """Tools, an image, reasoning, an unreadable answer, a replaced history, and late scores."""
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + base64.b64encode(_png()).decode()}}
    asked = {"role": "user", "content": [{"type": "text", "text": "Look 🎉 here:"}, picture]}
    calls = [
        {"id": "a", "type": "function", "function": {"name": "run_code", "arguments": '{"code":"one\\ntwo"}'}},
        {"id": "b", "type": "function", "function": {"name": "broken", "arguments": '{"code": '}},
    ]
    said = {"role": "assistant", "content": "", "reasoning_content": "I wonder. " * 200, "tool_calls": calls}
    answers = [
        {"role": "tool", "tool_call_id": "b", "content": "answer to b"},
        {"role": "tool", "tool_call_id": "a", "content": "answer to a"},
    ]
    tokens = Tokens(prompt=(1, 2), response=(10, 11, 12, 13), logprobs=(-0.01, -1.0, -3.2, -7.0))
    with run.rollout(env="talk", task="talk", group="talk", index=0, policy="model", policy_version=1) as rollout:
        rollout.step(
            prompt=[SYSTEM, asked], response=said, reward=0.5, reward_data={"progress": 0.125},
            env_state={"board": [1, 2], "torch": "lit", "key": 1}, usage={"prompt_tokens": 90, "completion_tokens": 7},
        )  # fmt: skip
        rollout.step(
            prompt=[SYSTEM, asked, said, *answers], response="Hm 🎉 <answer", reward=-0.25, policy_version=2,
            env_state={"board": [1, 3], "key": 1, "door": "open"}, parse_error="expected </answer>", tokens=tokens,
        )  # fmt: skip
        rollout.step(prompt=[SYSTEM, {"role": "user", "content": "In short: a gradient."}], response="Yes.", reward=0.0)
        rollout.grade(0.5, {"quality": 0.5})
    run.score(rollout.id, "reward", 1.0, data={"group_grade": 0.25}, producer="judge")
    return str(rollout.id)


def _grown(run: Any) -> str:
    """Twelve turns, each with the whole history as prompt."""
    said = [{"role": "user", "content": "begun"}]
    with run.rollout(env="talk", task="grown", group="grown", index=0) as rollout:
        for turn in range(12):
            answer = {"role": "assistant", "content": f"said {turn}"}
            rollout.step(prompt=list(said), response=answer, reward=0.0)
            said += [answer, {"role": "user", "content": f"asked {turn}"}]
    return str(rollout.id)


def _failed(run: Any) -> str:
    with contextlib.suppress(RuntimeError), run.rollout(env="plain", task="flaky", group="flaky", index=0) as rollout:
        rollout.step(prompt="Go.", response="I went.", reward=0.25)
        rollout.send(["Go."])
        raise RuntimeError("the sandbox died")
    return str(rollout.id)


def _shortened(run: Any) -> str:
    """A tool's answer that is shortened in the history later."""
    call = {"id": "a", "type": "function", "function": {"name": "read", "arguments": ""}}
    asked, said = {"role": "user", "content": "Read."}, {"role": "assistant", "content": "", "tool_calls": [call]}
    answer = {"role": "tool", "tool_call_id": "a", "content": "a long page"}
    with run.rollout(env="talk", task="shortened", group="shortened", index=0) as rollout:
        rollout.step(prompt=[asked], response=said, reward=0.0)
        rollout.step(prompt=[asked, said, answer], response="Hm.", reward=0.0)
        short = {**answer, "content": "a l…"}
        rollout.step(prompt=[asked, said, short, {"role": "user", "content": "Well?"}], response="Yes.", reward=0.0)
    return str(rollout.id)


def _unfinished(run: Any) -> str:
    """A tool call whose env raised."""
    call = ToolCall("open", '{"what": "the trapdoor"}', id="c1")
    answer = to_completion(Message("assistant", "", tool_calls=(call,)))

    async def play() -> str:
        runner = Runner(ScriptedReplies([answer]), sink=run)
        [group] = [group async for group in runner.play([Stage(lambda _: Falling())])]
        return str(group.members[0].id)

    return asyncio.run(play())


class Falling(Env):
    """Raises in its only turn."""

    async def initial_observation(self) -> Observation:
        return Observation([Message("user", "A door.")])

    async def step(self, completion: Completion) -> StepResult:
        raise KeyError("the floor")


def _hostile(run: Any) -> str:
    message = {"content": HOSTILE + "A" * 5_000, "name": "n" * 60}
    call = {"id": HOSTILE, "type": "function", "function": {"name": HOSTILE * 20, "arguments": HOSTILE}}
    about = {"env": HOSTILE, "task": HOSTILE, "policy": HOSTILE, "tags": (HOSTILE,), "task_data": {HOSTILE: HOSTILE}}
    with run.rollout(group="hostile", index=0, **about) as rollout:
        rollout.step(
            prompt=[{"role": "system", **message}, {"role": "user", **message}, {"role": HOSTILE, **message}],
            response={"role": "assistant", "content": HOSTILE, "reasoning_content": HOSTILE, "tool_calls": [call]},
            reward_data={HOSTILE: 1.0, "B" * 3_000: 2.0}, env_state={HOSTILE: {HOSTILE: HOSTILE}, "Z" * 900: "Z" * 900},
            extra={HOSTILE: HOSTILE}, metrics={HOSTILE: 1.0}, logs={HOSTILE: [HOSTILE]}, parse_error=HOSTILE,
            raw=HOSTILE, tools=[{"type": "function", "function": {"name": HOSTILE, "description": HOSTILE}}],
        )  # fmt: skip
    run.score(rollout.id, HOSTILE, 1.0, data={HOSTILE: HOSTILE}, producer=HOSTILE)
    return str(rollout.id)


def _long(run: Any) -> str:
    with run.rollout(env="long", task="long", group="long", index=0) as rollout:
        history = [{"role": "user", "content": "Begin."}]
        for turn in range(STEPS):
            said = {"role": "assistant", "content": f"This is turn {turn}. " * 10}
            rollout.step(prompt=list(history), response=said, reward=(turn % 3 - 1) / 100, env_state={"turn": turn})
            history += [said, {"role": "user", "content": f"Go on after {turn}."}]
    return str(rollout.id)


def _wide(run: Any) -> str:
    """A line of a million characters, and five million characters in lines."""
    said = "word " * 20 + "\n"
    with run.rollout(env="long", task="wide", group="wide", index=0) as rollout:
        rollout.step(
            prompt="x" * 500_000 + "needle" + "x" * 500_000, response=said * 50_000 + "the very end", reward=1.0
        )
    return str(rollout.id)


def _png() -> bytes:
    """An image of four pixels."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    rows = b"".join(b"\0" + bytes([200, 30, 90] * 2) for _ in range(2))
    header = struct.pack(">IIBBBBB", 2, 2, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def look(page: "Page", viewer: Viewer, run: str, rollout: str, **parameters: Any) -> None:
    """Opens the page of a rollout as from a shared link."""
    search = urlencode(parameters, doseq=True)
    page.goto(f"{viewer.entry}#/run/{quote(run, safe='')}/rollout/{rollout}?{search}")
    expect(page.get_by_role("heading", name="Transcript")).to_be_visible()


def parameters(page: "Page") -> dict[str, list[str]]:
    """The parameters of the address."""
    return parse_qs(urlsplit(page.url.partition("#")[2]).query)


def transcript(page: "Page") -> str:
    """The visible part of the transcript, from top to bottom."""
    return page.get_by_role("region", name="Transcript").inner_text()


def in_order(text: str, *parts: str) -> None:
    """Asserts that the parts occur in the text in this order."""
    at = 0
    for part in parts:
        found = text.find(part, at)
        assert found >= 0, f"Expected {part!r} after {text[:at][-80:]!r}, got {text[at:]!r}"
        at = found + len(part)


def test_the_transcript_shows_each_message_once_in_order(page: "Page", recorded: Recorded) -> None:
    """The system prompt is folded, answers are with their calls whatever their order, and the reward adds up."""
    page.set_viewport_size({"width": 1280, "height": 3000})
    look(page, recorded.viewer, "talks", recorded.ids["talk"])
    rows = page.get_by_role("region", name="Transcript")
    expect(rows.get_by_text("In short: a gradient.")).to_be_visible()
    text = transcript(page)
    in_order(
        text, "system", "Be careful.", "Show 2,", "user", "Look 🎉 here:", "Step 0", "0.500", "Reasoning", "I wonder."
    )
    in_order(
        text,
        "run_code",
        "one\ntwo",
        "answer to a",
        "broken",
        "Not JSON",
        "answer to b",
        "Step 1",
        "−0.250",
        "version 2",
    )
    in_order(text, "<answer", "expected </answer>", "no longer all of the above", "In short", "Step 2", "Yes.", "End")
    in_order(text, "End", "steps 0.250 + grade 0.500 + group grade 0.250 = 1")
    assert "Last rule." not in text
    assert text.count("Look 🎉 here:") == 1
    image = rows.get_by_role("img", name="Image in the message")
    expect(image).to_have_js_property("naturalWidth", 2)
    rows.get_by_role("button", name=re.compile("Show 2,")).click()
    expect(rows.get_by_text("Last rule.")).to_be_visible()


def test_the_reward_is_the_sum_that_its_group_shows(page: "Page", recorded: Recorded) -> None:
    """Late scores, a grade and a clamp are the same terms on both pages, and the score that counts is marked."""
    sums = {"summed": "steps 0.500 + group grade 0.750 + clamp −0.250 = 1", "replaced": "score 3 = 3"}
    for name, words in sums.items():
        look(page, recorded.viewer, "talks", recorded.ids[name], tab="scores")
        expect(page.get_by_label("How it ended")).to_contain_text(words)
        counts = page.get_by_role("complementary", name="Details").locator("section", has_text="that counts")
        expect(counts.get_by_role("heading")).to_have_text("reward")
        expect(counts).to_contain_text("judge" if name == "summed" else "audit")
        page.keyboard.press("u")
        column = page.locator(f'[data-member="{recorded.ids[name]}"]')
        terms = column.get_by_role("table", name="What the reward is the sum of").get_by_role("row")
        expect(terms.first).to_be_visible()
        told = [[text.lstrip("+") for text in row.locator("th, td.number").all_text_contents()] for row in terms.all()]
        given = [f"{term} {value}" for term, value in told[:-1] if value != "–"]
        assert f"{' + '.join(given)} = {told[-1][1]}" == words


def test_prompts_that_leave_messages_out_have_a_remark(page: "Page", recorded: Recorded) -> None:
    """Each prompt that lacks a message of the one before it has a remark, as in the terminal."""
    record = rolltrace.open_run(recorded.viewer.folder / "talks").get(recorded.ids["grown"])
    rng = random.Random(4)
    prompts = [[(place, place + 1) for place in range(2 * turn + 1) if rng.random() < 0.9] for turn in range(12)]
    prompts[:4] = [[(0, 1)], [(0, 1), (2, 3)], [(1, 5)], [(0, 1), (2, 7)]]
    changed = [msgspec.structs.replace(step, prompt=tuple(prompts[step.step])) for step in record.steps]
    told = transcript_events(msgspec.structs.replace(record, steps=tuple(changed)))
    remarks = [event.text for event in told if isinstance(event, TranscriptNote)]
    assert [int(remark.split()[2]) for remark in remarks[:3]] == [1, 2, 3]
    assert len(remarks) < len(prompts)

    def with_prompts(route: "Route") -> None:
        answer = route.fetch()
        body = answer.json()
        for step, prompt in zip(body["rollout"]["steps"], prompts, strict=True):
            step["prompt"] = prompt
        route.fulfill(response=answer, json=body)

    page.route(f"**/api/rollout?*{recorded.ids['grown']}*", with_prompts)
    page.set_viewport_size({"width": 1280, "height": 6000})
    look(page, recorded.viewer, "talks", recorded.ids["grown"])
    expect(page.locator(".transcript-remark")).to_have_text(remarks)


def test_steps_are_walked_by_key_and_kept_in_the_address(page: "Page", recorded: Recorded) -> None:
    """The keys n and p, the time line's arrow keys and a link choose a step, which is in the address."""
    look(page, recorded.viewer, "talks", recorded.ids["talk"], step=1, tab="state")
    panel = page.get_by_role("complementary", name="Details")
    expect(panel.get_by_role("heading", name="State after step 1")).to_be_visible()
    changes = panel.get_by_role("table")
    expect(changes.get_by_role("row")).to_have_text(
        [
            re.compile("path.*before.*after"),
            re.compile("board.*1.*2.*3"),
            re.compile("removed.*torch.*lit"),
            re.compile("added.*door.*open"),
        ]
    )
    page.keyboard.press("n")
    expect(panel.get_by_role("heading", name="State after step 2")).to_be_visible()
    assert parameters(page)["step"] == ["2"]
    page.keyboard.press("p")
    page.keyboard.press("p")
    expect(panel.get_by_role("heading", name="State after step 0")).to_be_visible()
    timeline = page.get_by_role("slider", name="Steps of the rollout by their rewards")
    expect(timeline).to_have_attribute("aria-valuetext", "Step 0: reward +0.500, total 0.500")
    timeline.press("End")
    timeline.press("ArrowLeft")
    expect(timeline).to_have_attribute(
        "aria-valuetext", re.compile(r"Step 1: reward −0\.250, total 0\.250, parse error, version")
    )
    page.get_by_role("link", name="Step 2", exact=True).click()
    expect(panel.get_by_role("heading", name="State after step 2")).to_be_visible()
    page.go_back()
    expect(panel.get_by_role("heading", name="State after step 1")).to_be_visible()
    page.reload()
    expect(panel.get_by_role("heading", name="State after step 1")).to_be_visible()


def test_previous_and_next_stay_within_the_listing(page: "Page", recorded: Recorded) -> None:
    """The keys j and k follow the listing in its order; u leads up to the group, l back to the listing."""
    listing = {"filter": "reward:min:0.2", "sort": "-reward"}
    look(page, recorded.viewer, "walked", recorded.ids["walked 4"], **listing, tab="about")
    walk = page.get_by_role("navigation", name="Other rollouts")
    expect(walk).to_contain_text("1 of 3")
    expect(walk.get_by_role("link", name="Previous rollout")).to_be_disabled()
    page.keyboard.press("j")
    expect(walk).to_contain_text("2 of 3")
    expect(page.get_by_role("region", name="Transcript")).to_contain_text("says 3.")
    page.keyboard.press("ArrowRight")
    expect(walk).to_contain_text("3 of 3")
    assert recorded.ids["walked 2"] in page.url
    page.keyboard.press("k")
    expect(walk).to_contain_text("2 of 3")
    walk.get_by_role("link", name="Previous rollout").click()
    expect(walk).to_contain_text("1 of 3")
    assert parameters(page) == {"filter": ["reward:min:0.2"], "sort": ["-reward"], "tab": ["about"]}
    page.go_back()
    expect(walk).to_contain_text("2 of 3")
    page.keyboard.press("l")
    page.wait_for_url(re.compile("/rollouts"))
    assert parameters(page) == {"filter": ["reward:min:0.2"], "sort": ["-reward"]}
    page.go_back()
    expect(walk).to_contain_text("2 of 3")
    page.keyboard.press("u")
    page.wait_for_url(re.compile("/group"))


def test_exact_prompt_and_raw_record(page: "Page", context: "BrowserContext", recorded: Recorded) -> None:
    """Any step's prompt is shown as it was sent, and r shows the record, which can be copied whole."""
    context.grant_permissions(["clipboard-read", "clipboard-write"])
    look(page, recorded.viewer, "talks", recorded.ids["talk"], step=2, tab="prompt")
    panel = page.get_by_role("complementary", name="Details")
    expect(panel).to_contain_text("2 messages (messages 0, 5 of the record)")
    panel.get_by_role("button", name="Copy the prompt as JSON").click()
    expect(panel.get_by_role("button", name="Copied")).to_be_visible()
    copied = json.loads(page.evaluate("navigator.clipboard.readText()"))
    assert [message["content"] for message in copied] == [SYSTEM["content"], "In short: a gradient."]
    page.keyboard.press("r")
    expect(panel.get_by_role("region", name="The record as JSON")).to_contain_text(f'"id":"{recorded.ids["talk"]}"')
    with page.expect_download() as download:
        panel.get_by_role("button", name="Download").click()
    record = json.loads(Path(download.value.path()).read_text())
    assert record["id"] == recorded.ids["talk"]
    assert [step["reward"] for step in record["steps"]] == [0.5, -0.25, 0]


def test_tokens_are_coloured_by_their_probability(page: "Page", recorded: Recorded) -> None:
    """If each token's text is known it is shown, else its id; the least likely are listed first."""
    look(page, recorded.viewer, "talks", recorded.ids["talk"], step=1, tab="tokens")
    panel = page.get_by_role("complementary", name="Details")
    tokens = panel.get_by_role("group", name=re.compile("Tokens"))
    expect(tokens.locator("[data-token]")).to_have_text(["10", "11", "12", "13"])
    expect(tokens.locator(".surprise-5")).to_have_text("13")
    expect(panel).to_contain_text("mean log-probability −2.803, perplexity 16.49")
    expect(panel.get_by_role("listitem").first).to_contain_text("0.091 %, log-probability −7, no. 3, id 13")
    tokens.focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    expect(panel.get_by_role("status")).to_contain_text("36.8 %, log-probability −1, no. 1, id 11")

    def with_char_lengths(route: "Route") -> None:
        answer = route.fetch()
        body = answer.json()
        body["rollout"]["steps"][1]["tokens"]["char_lengths"] = [3, 1, 0, 8]
        route.fulfill(response=answer, json=body)

    page.route("**/api/rollout?*", with_char_lengths)
    page.reload()
    expect(tokens.locator("[data-token]")).to_have_text(["Hm ", "🎉", "∅", " <answer"])


def test_calls_of_others_are_shown_with_their_step(page: "Page", viewer: Viewer) -> None:
    """An answerer's calls are listed, those of the chosen step visible, each unfolded by a click."""
    [rollout] = rolltrace.open_run(viewer.folder / "twenty_questions").rollouts(where="steps > 2", limit=1)
    call = next(call for call in rollout.calls if call.step)
    look(page, viewer, "twenty_questions", rollout.id, step=call.step)
    page.get_by_role("region", name="Transcript").get_by_role("link", name="1 answerer call").first.click()
    panel = page.get_by_role("complementary", name="Details")
    first = panel.get_by_role("button", name=re.compile(f"answerer.*step {call.step}\\b"))
    expect(first).to_be_visible()
    first.click()
    expect(panel.get_by_role("article").filter(has_text=f"step {call.step} ")).to_contain_text(
        call.prompt[0].content[:40]
    )


def test_a_failure_is_shown_where_it_happened(page: "Page", recorded: Recorded) -> None:
    """The error comes after what was sent last, its traceback folded, with links to other attempts."""
    look(page, recorded.viewer, "talks", recorded.ids["failed"], retried=1)
    in_order(transcript(page), "I went.", "no step followed", "RuntimeError", "the sandbox died", "Traceback", "End")
    banner = page.get_by_role("banner").or_(page.locator("header.rollout-header"))
    expect(banner.last).to_contain_text("so far 0.250")
    expect(banner.last).to_contain_text("tried again")
    traceback = page.get_by_text(re.compile("in _failed"))
    expect(traceback).to_be_hidden()
    page.get_by_text("Traceback", exact=True).click()
    expect(traceback).to_be_visible()
    page.get_by_role("navigation", name="Attempts").get_by_role("link", name=re.compile("Attempt 1")).click()
    expect(page.get_by_role("region", name="Transcript")).to_contain_text("says 0.")
    assert recorded.ids["again"] in page.url


def test_a_turn_that_the_env_did_not_finish_is_marked(page: "Page", recorded: Recorded) -> None:
    """The whole answer is a step, whose header and details say how the environment failed."""
    look(page, recorded.viewer, "unfinished", recorded.ids["unfinished"], step=0)
    in_order(transcript(page), "A door.", "Step 0", "env raised", "open", "the trapdoor", "KeyError", "the floor")
    assert "no step followed" not in transcript(page)
    details = page.get_by_role("complementary", name="Details")
    expect(details).to_contain_text("The environment failed on this turn and gave no reward")
    expect(details).not_to_contain_text("was not asked")


def test_an_edited_tool_result_names_its_call(page: "Page", recorded: Recorded) -> None:
    """A result that was rewritten in the history is shown by itself, with the call that it answers."""
    look(page, recorded.viewer, "unfinished", recorded.ids["shortened"])
    in_order(transcript(page), "a long page", "Hm.", "answers call 1", "a l…", "Yes.")


def test_seats_of_a_game_are_linked(page: "Page", recorded: Recorded) -> None:
    """Each seat's page leads to the others', with their rewards."""
    look(page, recorded.viewer, "talks", recorded.ids["seat 0"])
    seats = page.get_by_role("navigation", name="Seats").get_by_role("link")
    expect(seats).to_have_text(["seat 0 1", "seat 1 −1"])
    seats.nth(1).click()
    expect(seats.nth(1)).to_have_attribute("aria-current", "page")
    assert recorded.ids["seat 1"] in page.url


def test_only_visible_parts_are_drawn(page: "Page", recorded: Recorded) -> None:
    """Of 500 turns or five million characters only a screenful is drawn, wherever one scrolls, folded or not."""
    look(page, recorded.viewer, "long", recorded.ids["long"], step=400)
    rows = page.get_by_role("region", name="Transcript")
    expect(rows.get_by_role("link", name="Step 400", exact=True)).to_be_in_viewport()
    page.keyboard.press("n")
    expect(rows.get_by_role("link", name="Step 401", exact=True)).to_be_in_viewport()
    page.keyboard.press("e")
    expect(rows.get_by_role("heading", name="End")).to_be_in_viewport()
    assert rows.locator("[data-index]").count() < 60
    look(page, recorded.viewer, "long", recorded.ids["wide"])
    page.keyboard.press("O")
    page.keyboard.press("e")
    expect(rows.get_by_text("the very end")).to_be_in_viewport()
    assert len(transcript(page)) < 100_000
    page.keyboard.press("O")
    page.keyboard.press("/")
    page.keyboard.type("NEEDLE")
    expect(rows.locator("mark")).to_have_text("needle")
    expect(rows.locator("mark")).to_be_in_viewport()
    assert parameters(page)["find"] == ["NEEDLE"]
    assert len(transcript(page)) < 100_000


@pytest.mark.parametrize("width", [1280, 390])
def test_hostile_text_does_nothing(page: "Page", recorded: Recorded, width: int) -> None:
    """Recorded text is shown as text, on every tab, and the page is no wider than the screen."""
    page.set_viewport_size({"width": width, "height": 800})
    look(page, recorded.viewer, "talks", recorded.ids["hostile"])
    page.keyboard.press("O")
    for tab in ("State", "Prompt", "Scores 1", "Rollout", "Raw", "Step"):
        page.get_by_role("complementary", name="Details").get_by_role("link", name=tab, exact=True).click()
        expect(page.get_by_role("complementary", name="Details").get_by_text("<script>").first).to_be_attached()
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert page.evaluate(CUT_OFF) == []
    expect(page.get_by_text("U+202E").first).to_be_visible()
    assert page.evaluate("window.ran") is None
    assert page.locator("main script, main img").count() == 0


def test_hashed_text_is_shown_as_such(page: "Page", recorded: Recorded) -> None:
    """A run of numbers only shows the length of each text."""
    look(page, recorded.viewer, "numbers", recorded.ids["hashed"])
    expect(page.get_by_role("region", name="Transcript")).to_contain_text("14 characters hashed")
    assert "hashed:" not in transcript(page)


def test_details_are_below_the_transcript_on_a_narrow_screen(page: "Page", recorded: Recorded) -> None:
    """At 390 pixels everything is in one column, and nothing is wider than the screen."""
    page.set_viewport_size({"width": 390, "height": 800})
    look(page, recorded.viewer, "talks", recorded.ids["talk"], step=1)
    rows = page.get_by_role("region", name="Transcript").bounding_box()
    panel = page.get_by_role("complementary", name="Details").bounding_box()
    assert rows is not None
    assert panel is not None
    assert panel["y"] >= rows["y"] + rows["height"]
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
