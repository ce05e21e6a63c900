"""`rolltrace report`: the contents of the file, and what is refused."""

import base64
import gzip
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import rolltrace
from rolltrace.errors import InputError
from rolltrace.query.evenly_spaced import evenly_spaced
from rolltrace.viewer.report_writer import write_report

ROOT = Path(__file__).parent.parent.parent


def _report(*words: str, folder: Path, expected: int = 0) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "rolltrace", "report", *words]
    ran = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert ran.returncode == expected, ran.stderr
    return ran


class _Parts(NamedTuple):
    """The data of a report."""

    head: dict[str, Any]
    packs: list[dict[str, Any]]
    table: dict[str, list[Any]]
    statistics: list[Any]


def _parts(file: Path) -> _Parts:
    text = file.read_text()
    [head] = re.findall(r'<script type="application/json" id="report">(.*?)</script>', text)
    found = re.findall(r'<script type="text/plain" id="([^"]+)">(.*?)</script>', text)
    blocks = {name: json.loads(gzip.decompress(base64.b64decode(block))) for name, block in found}
    table, statistics = blocks.pop("table"), blocks.pop("statistics")
    return _Parts(json.loads(head), list(blocks.values()), table, statistics)


def test_a_condition_takes_whole_groups(runs: Path, tmp_path: Path) -> None:
    """A report holds every member of the groups with a rollout that meets the condition, and marks that one."""
    file = tmp_path / "wrong.html"
    run = runs / "arithmetic"
    write_report(run, file, where="reward <= 0")
    with rolltrace.open_run(run) as opened:
        groups = opened.sql('select iteration, "group" from rollouts group by all having min(reward) <= 0').fetchall()
        ids = opened.sql('select id from rollouts where (iteration, "group") in (select iteration, "group" from '
                         "rollouts where reward <= 0)").fetchall()  # fmt: skip
        wrong = {row[0] for row in opened.sql("select id from rollouts where reward <= 0")}
    head, packs, table, _ = _parts(file)
    assert {(key[1], key[3]) for key in map(json.loads, head["groups"])} == set(groups)
    assert {id_ for pack in packs for id_ in pack["rollouts"]} == {row[0] for row in ids} == set(head["rollouts"])
    marked = zip(table["id"], table["selected"], strict=True)
    assert {id_ for id_, is_selected in marked if is_selected} == wrong
    assert "reward <= 0" in head["selection"]["text"]


def test_groups_are_spread_over_the_whole_run(runs: Path, tmp_path: Path) -> None:
    """`groups` selects that many, from the first iteration to the last."""
    file = tmp_path / "some.html"
    write_report(runs / "arithmetic", file, groups=3)
    head, _, table, statistics = _parts(file)
    assert sorted(json.loads(key)[1] for key in head["groups"]) == [0, 2, 4]
    assert head["answers"]["run"]["groups"] == 3
    assert head["answers"]["run"]["rollouts"] == len(table["id"]) == 12
    assert len(statistics) == len(head["statistics"]) > 0


def test_evenly() -> None:
    """The first and the last are always selected."""
    for count in range(1, 30):
        for most in range(1, 35):
            taken = evenly_spaced(range(count), most)
            assert len(set(taken)) == len(taken) == min(count, most)
            assert taken[0] == 0
            assert most == 1 or taken[-1] == count - 1


def test_text_is_stored_once(tmp_path: Path) -> None:
    """Prompts and responses are in the rollouts; the groups refer to them."""
    with rolltrace.create_run(tmp_path / "run") as run:
        for index in range(3):
            with run.rollout(env="e", task="t", group="g", index=index) as rollout:
                rollout.step(
                    prompt=[{"role": "user", "content": "the shared question"}],
                    response=f"answer-{index}",
                    reward=index,
                )
    file = tmp_path / "report.html"
    write_report(tmp_path / "run", file)
    text = json.dumps(_parts(file).packs)
    assert text.count("the shared question") == 3  # each rollout's own record
    assert [text.count(f"answer-{index}") for index in range(3)] == [1, 1, 1]


def test_it_contains_no_path(runs: Path, tmp_path: Path) -> None:
    """A report may be mailed, so it does not contain the path of the run."""
    for options in ({}, {"as_json": True}):
        file = tmp_path / "report"
        write_report(runs / "rubric", file, **options)
        held = file.read_text() if options else file.read_text() + json.dumps(_parts(file))
        assert str(runs) not in held
        assert str(tmp_path) not in held


def test_the_tree_has_every_record(runs: Path, tmp_path: Path) -> None:
    """`--json` is one tree: each group, each of its rollouts, each record as it is in the run."""
    ran = _report(str(runs / "preference"), "--json", folder=tmp_path)
    tree = json.loads(ran.stdout)
    told = {branch["rollout"]["id"]: branch for group in tree["groups"] for branch in group["rollouts"]}
    with rolltrace.open_run(runs / "preference") as run:
        rewards = dict(run.sql("select id, reward from rollouts").fetchall())
        records = {rollout.id: rollout for rollout in run.rollouts()}
    assert told.keys() == rewards.keys()
    for id_, branch in told.items():
        assert branch["reward"] == rewards[id_]
        assert [message["content"] for message in branch["rollout"]["messages"]] == [
            message.content for message in records[id_].messages
        ]
        assert any(score["name"] == "reward" for score in branch["scores"])
    for group in tree["groups"]:
        assert group["matrix"] is not None
        assert [member["reward"] for member in group["members"]] == sorted(
            (member["reward"] for member in group["members"]), reverse=True
        )
    assert ran.stderr == "A report on all 8 rollouts of the run.\n"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--where", "reward >"], "rollouts"),
        (["--where", "1; drop table rollouts"], "Expected an SQL expression"),
        (["--where", "reward > 1e9"], "found none for which that is true"),
        (["--groups", "0"], "0"),
        (["-o", "."], "got a directory"),
        ([], "--out"),
    ],
)
def test_what_is_refused(runs: Path, tmp_path: Path, words: list[str], told: str) -> None:
    """Wrong usage ends with 2, says what was expected, and leaves no file."""
    out = [] if "-o" in words or not words else ["-o", "report.html"]
    ran = _report(str(runs / "arithmetic"), *out, *words, folder=tmp_path, expected=2)
    assert told in ran.stderr
    assert list(tmp_path.iterdir()) == []


def test_nothing_but_files_outside_of_runs_is_replaced(runs: Path, tmp_path: Path) -> None:
    """A pipe and the files of a run are not replaced; through a link, its target is written."""
    run = tmp_path / "run"
    shutil.copytree(runs / "rubric", run)
    pipe, link = tmp_path / "pipe", tmp_path / "link.html"
    os.mkfifo(pipe)
    link.symlink_to(tmp_path / "target.html")
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    for place in (pipe, run / "run.json", run / "rollouts" / "zz-000000.jsonl", run / "new.html"):
        with pytest.raises(InputError, match="Expected"):
            write_report(run, place)
    with pytest.raises(InputError, match="make it first"):
        write_report(run, tmp_path / "missing" / "report.html")
    assert pipe.is_fifo()
    assert {path: path.read_bytes() for path in run.rglob("*") if path in before} == before
    assert not (run / "new.html").exists()
    write_report(run, link)
    assert link.is_symlink()
    assert (tmp_path / "target.html").read_text().startswith("<!doctype html>")


def test_a_file_stays_until_the_new_one_is_there(runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A failure leaves the previous file, and nothing beside it."""
    file = tmp_path / "report.html"
    file.write_text("the old one")
    monkeypatch.setattr("rolltrace.viewer.report_writer.report_html", lambda *_: _broken())
    with pytest.raises(InputError):
        write_report(runs / "rubric", file)
    assert file.read_text() == "the old one"
    assert list(tmp_path.iterdir()) == [file]


def _broken() -> Any:
    yield b"half"
    raise InputError("on the way")


def test_it_opens_without_a_network(page: Any, runs: Path, tmp_path: Path) -> None:
    """The file alone shows the run, its rollouts, a group and a rollout, and makes no request."""
    file = tmp_path / "report.html"
    write_report(runs / "arithmetic", file, where="reward <= 0")
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.context.set_offline(True)
    page.goto(file.as_uri())
    page.get_by_role("heading", name="arithmetic").wait_for()
    assert page.get_by_role("link", name="SQL").count() == 0
    page.get_by_role("link", name="Show these").click()
    page.get_by_text("selected: yes", exact=False).first.wait_for()
    page.locator("a[data-row='0']").click()
    page.get_by_role("heading", name="Transcript").wait_for()
    page.get_by_text("Answer:").first.wait_for()
    page.keyboard.press("u")
    page.get_by_role("heading", name="Shared prompt").wait_for()
    assert [address for address in asked if not address.startswith("file:")] == []


def test_the_commands_of_the_guide_work(tmp_path: Path) -> None:
    """Every command of the guide that ends does what the guide says."""
    guide = (ROOT / "docs" / "guides" / "look-at-runs.md").read_text()
    rolltrace.play("arithmetic", "scripted:noisy", out=tmp_path / "runs" / "first", groups=4, group_size=4)
    commands = re.findall(r"^\$ rolltrace report (.*)$", guide, re.MULTILINE)
    assert len(commands) == 3
    for command in commands:
        _report(*shlex.split(command), folder=tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"runs", "first.html", "failures.html", "tree.json"}
    [code] = re.findall(r"```python\n(.*?)```", guide, re.DOTALL)
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True)
