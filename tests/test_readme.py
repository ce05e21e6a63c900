"""The code of the README and of the guides is run."""

import re
import shlex
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

pytestmark = pytest.mark.core

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


def blocks(language):
    """The README's code blocks in one language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)


def test_the_python_runs(tmp_path):
    """The first example records one rollout; the second plays four and reads them back."""
    code = "\n".join(blocks("python"))
    ran = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert ran.stderr == ""
    assert ran.stdout.splitlines() == [
        "[(4, 1.0)]",
        "hello [1.0, 1.0, 1.0, 1.0]",
        *["Say hello. Hello! {'polite': True} completed"] * 4,
    ]


def test_the_first_environment_conforms(tmp_path):
    """`check_env` finds no violation in the README's first environment, from Python and from the shell."""
    (tmp_path / "first.py").write_text(blocks("python")[1])
    check = "import first, rolltrace; print(rolltrace.check_env(first.EchoGroup()))"
    shown = rolltrace_python(tmp_path, "-c", check)
    assert shown.splitlines()[-1] == "[]"
    (tmp_path / "runs" / "echo").rename(tmp_path / "runs" / "echo-1")
    assert rolltrace_python(tmp_path, "-m", "rolltrace", "check-env", "first:EchoGroup").startswith("✓ first:EchoGroup")


def rolltrace_python(folder, *words):
    """The output of a Python program in a folder."""
    command = [sys.executable, "-X", "utf8", *words]
    return subprocess.run(command, cwd=folder, capture_output=True, encoding="utf-8", check=True).stdout


def test_the_commands_run(tmp_path):
    """Each `rolltrace` command of the README succeeds, in order, in one directory."""
    commands = re.findall(r"^\$ (rolltrace .*)$", "\n".join(blocks("console")), re.MULTILINE)
    assert len(commands) >= 4
    for command in commands:
        words = [sys.executable, "-m", *shlex.split(command)]
        ran = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert ran.returncode == 0, (command, ran.stderr)
        assert ran.stdout or " -o " in command  # a command that writes a file prints no data
    [transcript] = blocks("text")  # of the last command
    shown = ran.stdout.splitlines()
    assert [line for line in transcript.splitlines() if line not in shown] == ["  …"]


def test_the_guide_to_the_runner_runs(tmp_path):
    """The guide's blocks are one program, which plays eight groups."""
    guide = (ROOT / "docs" / "guides" / "play-and-record.md").read_text()
    code = "\n".join(re.findall(r"^```python\n(.*?)^```$", guide, re.MULTILINE | re.DOTALL))
    ran = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    assert len(ran.stdout.splitlines()) == 8
    assert all(line.endswith("None") for line in ran.stdout.splitlines())


def test_the_commands_of_the_guide_to_the_runner_run(tmp_path):
    """A run is played, and a resume finds it complete."""
    guide = (ROOT / "docs" / "guides" / "play-and-record.md").read_text()
    commands = re.findall(r"^\$ (rolltrace .*)$", guide, re.MULTILINE)
    assert len(commands) >= 2
    for command in commands:
        words = [sys.executable, "-m", *shlex.split(command)]
        ran = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert ran.returncode == 0, (command, ran.stderr)
    assert "Nothing to do" in ran.stderr


def test_the_guide_to_scale_runs(tmp_path):
    """The commands, and the first program, play in workers; programs whose packages are installed read the run."""
    guide = (ROOT / "docs" / "guides" / "scale.md").read_text()
    play, *read = re.findall(r"^```python\n(.*?)^```$", guide, re.MULTILINE | re.DOTALL)
    (tmp_path / "play.py").write_text(play)
    imports = [re.findall(r"^import (\w+)", code, re.MULTILINE) for code in read]
    installed = [code for code, names in zip(read, imports, strict=True) if all(map(find_spec, names))]
    assert len(installed) >= 1
    (tmp_path / "read.py").write_text("\n".join(installed))
    commands = [["-m", *shlex.split(line)] for line in re.findall(r"^\$ (rolltrace .*)$", guide, re.MULTILINE)]
    for words in (*commands, ["play.py"], ["read.py"]):
        ran = subprocess.run([sys.executable, *words], cwd=tmp_path, capture_output=True, text=True, check=False)
        assert ran.returncode == 0, ran.stderr
    assert {path.name for path in (tmp_path / "runs").iterdir()} == {"two", "from-python"}


def test_the_guide_to_regrading_runs(tmp_path):
    """Its commands and then its program grade the run that its first command plays."""
    guide = (ROOT / "docs" / "guides" / "regrade.md").read_text()
    (tmp_path / "program.py").write_text(
        "\n".join(re.findall(r"^```python\n(.*?)^```$", guide, re.MULTILINE | re.DOTALL))
    )
    commands = [["-m", *shlex.split(line)] for line in re.findall(r"^\$ (rolltrace .*)$", guide, re.MULTILINE)]
    for words in (*commands, ["program.py"]):
        ran = subprocess.run([sys.executable, *words], cwd=tmp_path, capture_output=True, text=True, check=False)
        assert ran.returncode == 0, ran.stderr
    assert ran.stdout.splitlines() == ["32 0 0.0", "regrade/exact@1 32 32"]


def test_the_guide_to_recording_runs(tmp_path):
    """The guide's blocks are one program, which records rollouts of its own loop and reads them back."""
    guide = (ROOT / "docs" / "guides" / "record-your-loop.md").read_text()
    code = "\n".join(re.findall(r"^```python\n(.*?)^```$", guide, re.MULTILINE | re.DOTALL))
    ran = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    hidden = '{"to": "[hidden]", "key": "[hidden]"}'
    assert ran.stdout.splitlines() == ["5 recorded, {} dropped", hidden, "41?", "(4, 6, 0.85)"]
    recorded = "".join(path.read_text() for path in tmp_path.glob("runs/private/*/*.jsonl"))
    assert "Ann." in recorded
    assert "Hello" in recorded
    assert "ann@example.org" not in recorded
    assert "sk-1234" not in recorded


@pytest.mark.skipif(not (ROOT / "src").exists(), reason="the tree is the checkout's")
def test_the_tree_is_the_tree():
    """The annotated tree names every package and root module, and no others."""
    tree = (ROOT / "CONTRIBUTING.md").read_text().partition("src/rolltrace/\n")[2].partition("docs/ ")[0]
    named = set(re.findall(r"^  (\S+)", tree, re.MULTILINE))
    folder = ROOT / "src" / "rolltrace"
    rooms = {f"{path.name}/" for path in folder.iterdir() if path.is_dir() and path.name != "__pycache__"}
    modules = {path.name for path in folder.glob("*.py") if not path.name.startswith("__")}
    assert named == rooms | modules - {"version.py"}


def test_the_two_commands_are_targets():
    """`make demo` and `make test` exist, and continuous integration calls the latter."""
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"^\$ make (\w+)", "\n".join(blocks("console")), re.MULTILINE):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE)
    assert "make test" in (ROOT / ".ci" / "run").read_text()
