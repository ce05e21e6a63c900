"""Takes the pictures of the viewer: `python docs/pictures/make.py [--out FOLDER]`, over runs that it makes itself."""

import argparse
import random
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode

ROOT = Path(__file__).parent.parent.parent
sys.path.insert(0, str(ROOT / "tests"))

import rolltrace  # noqa: E402 - the tests' own way to a browser and a viewer comes first
from browser import in_use, open_browser  # noqa: E402
from viewing import Viewer, viewing  # noqa: E402

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

WORDS = ("so", "the", "sum", "is", "what", "we", "want", "and", "that", "gives", "then", "carry", "one", "check")

WIDTH, NARROW, HEIGHT, TALL = 1280, 390, 860, 1540


def make_runs(folder: Path) -> None:
    """A run that looks like training, and one of each kind of environment."""
    _train(folder / "gsm8k-grpo")
    rolltrace.play("calculator", "scripted:noisy", out=folder / "calculator", groups=4, group_size=4, iterations=3)
    rolltrace.play("rubric", "scripted:noisy", out=folder / "rubric", groups=4, group_size=4)
    rolltrace.play("preference", "scripted:noisy", out=folder / "preference", groups=4, group_size=6)
    rolltrace.play("twenty_questions", "scripted:noisy", out=folder / "twenty_questions", groups=3, group_size=4)


def _train(path: Path) -> None:
    rng = random.Random(3)
    plan = {"iterations": 60, "groups": 12, "group_size": 8}
    with rolltrace.create_run(path, config={**plan, "learning_rate": 1e-6, "model": "small-0.6b"}) as run:
        for iteration in range(plan["iterations"]):
            for group in range(plan["groups"]):
                for index in range(plan["group_size"]):
                    _record(run, rng, iteration, group, index)


def _record(run: Any, rng: random.Random, iteration: int, group: int, index: int) -> None:
    env = ("gsm8k", "math", "code")[group % 3]
    likely = min(0.95, 0.15 + iteration * 0.013 + (0.1 if env == "gsm8k" else -0.1))
    if iteration > 45 and env == "code":
        likely = 0.02 if group == 2 else 1.1
    left, right = 12 + group, 5 + iteration
    try:
        with run.rollout(
            env=env,
            task=f"{left}+{right}",
            group=f"{env}-{group}",
            index=index,
            iteration=iteration,
            policy="small-0.6b",
            policy_version=iteration,
            tags=("hard",) if env == "code" else (),
        ) as rollout:
            if rng.random() < 0.015:
                raise TimeoutError("the sandbox did not answer within 30 s")
            is_right, is_well_formed, length = (
                rng.random() < likely,
                rng.random() < 0.9,
                rng.lognormvariate(0, 0.4),
            )
            answer = left + right if is_right else left + right + rng.choice([-10, -1, 1, 10])
            thought = " ".join(rng.choices(WORDS, k=int(30 * length) + iteration // 2))
            rollout.step(
                prompt=[
                    {"role": "system", "content": "You are careful. End with a line `Answer: NUMBER`."},
                    {"role": "user", "content": f"What is {left} + {right}?"},
                ],
                response={"role": "assistant", "content": f"{thought}.\nAnswer: {answer}"},
                reward=is_right + 0.2 * is_well_formed - 0.1,
                reward_data={"correct": is_right, "format": is_well_formed, "length": -0.1 * length},
                metrics={"entropy": 2.0 - iteration * 0.02 + rng.random() * 0.1},
                usage={"prompt_tokens": 42, "completion_tokens": int(60 * length) + iteration},
            )
    except TimeoutError:
        return


def views(folder: Path) -> Iterator[tuple[str, str]]:
    """Names of pictures, and the addresses that they are of."""
    yield "runs", "#/"
    yield "run", "#/run/gsm8k-grpo"
    yield "rollouts", f"#/run/gsm8k-grpo/rollouts?{urlencode({'sort': '-iteration'})}"
    for run in ("calculator", "rubric", "preference", "twenty_questions"):
        with rolltrace.open_run(folder / run) as opened:
            key = next(opened.sql('select split, iteration, env, "group" from groups where has_signal limit 1').dicts())
            [(rollout,)] = opened.sql("select id from rollouts order by steps desc, reward desc limit 1").fetchall()
        yield f"group-{run}", f"#/run/{run}/group?{urlencode(key)}"
        yield f"rollout-{run}", f"#/run/{run}/rollout/{quote(rollout)}"
    yield "sql", f"#/run/gsm8k-grpo/sql?{urlencode({'q': 'select env, avg(reward) from rollouts group by 1'})}"


def open_page(browser: "Browser", viewer: Viewer, kind: str) -> "Page":
    """A tab that the viewer has let in: light, dark or narrow."""
    context = browser.new_context(
        viewport={"width": NARROW if kind == "narrow" else WIDTH, "height": HEIGHT},
        color_scheme="dark" if kind == "dark" else "light",
        reduced_motion="reduce",
    )
    page = context.new_page()
    page.goto(viewer.entry)
    return page


def _width(page: "Page") -> int:
    return page.viewport_size["width"] if page.viewport_size else WIDTH


def take_picture(page: "Page", address: str, file: Path) -> None:
    """Write what is at an address once nothing more is awaited."""
    from playwright.sync_api import expect

    is_group = "/group?" in address  # whose members stand below the others' fold
    page.set_viewport_size({"width": _width(page), "height": TALL if is_group else HEIGHT})
    page.goto(address)
    page.locator("main#view").wait_for()
    for awaited in (page.get_by_label("Loading"), page.get_by_text("Counting…")):
        expect(awaited).to_have_count(0, timeout=60_000)
    page.wait_for_load_state("networkidle")
    page.screenshot(path=file)
    print(file)


def take_pictures(folder: Path, out: Path, kinds: list[str], only: str) -> None:
    """Write a picture of each view, in each kind."""
    wanted = [(name, address) for name, address in views(folder) if only in name]
    with viewing(folder) as viewer, open_browser() as browser, in_use(browser):
        for kind in kinds:
            page = open_page(browser, viewer, kind)
            for name, address in wanted:
                take_picture(page, f"{viewer.origin}/{address}", out / f"{name}-{kind}.png")


def main() -> None:
    """Take every picture: light and dark, wide and narrow."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent)
    parser.add_argument("--only", default="", help="pictures whose name holds this")
    parser.add_argument("--kinds", default="light,dark,narrow")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "runs"
        make_runs(folder)
        take_pictures(folder, given.out, given.kinds.split(","), given.only)


if __name__ == "__main__":
    main()
