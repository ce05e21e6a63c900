"""What the guide to checking shows works, and its list of audits is whole."""

import re
import runpy
import shutil
from pathlib import Path

from rolltrace.check.settings import load_settings

DOCS = Path(__file__).parents[2] / "docs"
GUIDE = DOCS / "guides" / "check-run.md"


def test_the_code_of_the_guide_runs(sound_run, tmp_path, monkeypatch, capsys):
    """Each block of Python continues the one before, on a run of that name."""
    shutil.copytree(sound_run, tmp_path / "runs" / "gsm8k")
    monkeypatch.chdir(tmp_path)
    names = {}
    for block in re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.DOTALL):
        exec(block, names)
    assert capsys.readouterr().out == "True\n"
    assert names["report"].ok
    assert [result.audit for result in names["report"].results[-2:]] == ["no_digit", "no_signal"]
    assert all(result.error is None for result in names["report"].results)


def test_the_catalogue_is_what_the_audits_say_of_themselves():
    """`make docs` writes it; it was not forgotten."""
    writer = runpy.run_path(str(DOCS / "check_catalogue.py"))
    page = (DOCS / "checks.md").read_text()
    assert page == writer["page_with_catalogue"](page), "run `make docs`"


def test_the_settings_of_the_page_can_be_loaded(tmp_path):
    """The file that is shown is one."""
    [example] = re.findall(r"```toml\n(.*?)```", (DOCS / "checks.md").read_text(), re.DOTALL)
    path = tmp_path / "check.toml"
    path.write_text(example)
    settings = load_settings(path)
    assert (settings.range_of("gsm8k"), settings.range_of("other")) == ((0.0, 1.0), None)
    assert settings.audits["truncated_responses"].threshold == 0.3
