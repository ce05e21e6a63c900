"""Builds the viewer's page once for each state of its sources, and keeps it; as a script, gives this tree its page."""

import atexit
import hashlib
import os
import shutil
import sys
import tempfile
from pathlib import Path

from npm import NodeMissingError, Npm, find_npm

WEB = Path(__file__).resolve().parent
TREE_PAGE = WEB.parent / "src" / "rolltrace" / "viewer" / "page"
"""Where the package looks for its page; git does not keep it, a source distribution has it."""

RECEIPT = "built-from.txt"
"""Lies beside the built files: the key of their sources, then the hash and name of each."""

_LEFT_OUT = {"node_modules", "dist", "coverage", "__pycache__"}
_MOST_KEPT = 10
"""So many built pages stay in the cache, those used last."""
_MOST_LINES = 40
"""So much of what npm said is told where it fails: its end."""
_REGISTRY = (
    "The packages come from the registry that your npm configuration names: can it be reached? "
    "(`npm config get registry` shows it.)"
)
_ADVICE = {
    "view vite": _REGISTRY,
    "install": _REGISTRY,
    "run build": "The sources of the page are in web/; `make web-check` says more about them.",
}


class PageError(Exception):
    """The page could not be built."""


def sources(web: Path = WEB) -> list[Path]:
    """Every file that the page is made of, in a fixed order; neither what npm and the build write nor hidden files."""
    found: list[Path] = []
    for folder, folders, files in os.walk(web):
        folders[:] = [name for name in folders if name not in _LEFT_OUT and not name.startswith(".")]
        found += [Path(folder, name) for name in files if name == ".npmrc" or not name.startswith(".")]
    return sorted(found, key=lambda path: path.relative_to(web).as_posix())


def sources_key(web: Path = WEB) -> str:
    """A name for the state of the sources: equal where their names and contents are."""
    whole = hashlib.sha256()
    for path in sources(web):
        whole.update(_line(path, web).encode())
    return whole.hexdigest()[:32]


def is_built(page: Path, key: str) -> bool:
    """Whether these are the files that were built from the sources of this key: all of them, no other, unchanged."""
    try:
        return (page / "index.html").is_file() and (page / RECEIPT).read_text() == _receipt(page, key)
    except (OSError, ValueError):
        return False


def find_page() -> Path | None:
    """The built page of the present sources: of this tree or of the cache."""
    key = sources_key()
    for page in (TREE_PAGE, cache_folder() / key):
        if is_built(page, key):
            return page
    return None


def make_page() -> Path:
    """The built page of the present sources; built where there is none yet."""
    page = find_page() or _build()
    if page.parent == cache_folder():
        os.utime(page)
    return page


def put_page() -> None:
    """Give this tree the page of its present sources."""
    page = make_page()
    if page != TREE_PAGE:
        _place(page, TREE_PAGE)


def cache_folder() -> Path:
    """Where built pages are kept, each under its key."""
    home = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(home) if Path(home).is_absolute() else Path.home() / ".cache") / "rolltrace" / "web"


def _build() -> Path:
    """Install the packages and build, in a copy of the sources; then put the result into the cache."""
    npm = find_npm()
    with tempfile.TemporaryDirectory(prefix="rolltrace-web-") as scratch:
        copy, built = Path(scratch, "web"), Path(scratch, "page")
        for path in sources():
            target = copy / path.relative_to(WEB)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target)
        key = sources_key(copy)  # of what is built: the tree may change meanwhile
        # Without a registry `npm install` would try each package for a minute before it says so.
        _run(
            npm,
            "view vite",
            ["--fetch-retries=1", "--fetch-retry-mintimeout=1000", "--fetch-timeout=60000"],
            copy,
            built,
        )
        _run(npm, "install", ["--include=dev", "--ignore-scripts", "--no-package-lock"], copy, built)
        _run(npm, "run build", [], copy, built)
        if not (built / "index.html").is_file():
            raise PageError(
                "Building the viewer's page failed: `npm run build` wrote no index.html to ROLLTRACE_WEB_OUT."
            )
        (built / RECEIPT).write_text(_receipt(built, key))
        return _keep(built, key)


def _run(npm: Npm, command: str, options: list[str], folder: Path, built: Path) -> None:
    environment = {"ROLLTRACE_WEB_OUT": str(built), "NO_COLOR": "1", "FORCE_COLOR": "0"}
    done = npm.run([*command.split(), *options, "--loglevel=error"], folder, environment)
    if done.returncode != 0:
        said = "\n".join(done.stdout.splitlines()[-_MOST_LINES:])
        raise PageError(
            f"Building the viewer's page failed: `npm {command}` ended with {done.returncode} and said\n\n{said}\n\n"
            f"{_ADVICE[command]}"
        )


def _receipt(page: Path, key: str) -> str:
    files = sorted(path for path in page.rglob("*") if path.is_file() and path != page / RECEIPT)
    return f"{key}\n" + "".join(_line(path, page) for path in files)


def _line(path: Path, base: Path) -> str:
    return f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.relative_to(base).as_posix()}\n"


def _keep(built: Path, key: str) -> Path:
    """Put a built page into the cache; where nothing can be written there, keep it until this process ends."""
    kept = cache_folder() / key
    try:
        kept.parent.mkdir(parents=True, exist_ok=True)
        _place(built, kept)
        _prune(kept.parent)
    except OSError:
        kept = Path(tempfile.mkdtemp(prefix="rolltrace-page-"), "page")
        atexit.register(shutil.rmtree, kept.parent, ignore_errors=True)
        shutil.copytree(built, kept)
    return kept


def _place(page: Path, target: Path) -> None:
    """Copy a built page to its place, where it appears whole; what else was there goes."""
    key = (page / RECEIPT).read_text().split("\n", 1)[0]
    new = Path(tempfile.mkdtemp(prefix=".page-", dir=target.parent))
    try:
        shutil.copytree(page, new / "page")
        if target.exists() and not is_built(target, key):
            target.rename(new / "old")
        (new / "page").rename(target)
    except OSError:
        if not is_built(target, key):  # else another process put the same there meanwhile
            raise
    finally:
        shutil.rmtree(new, ignore_errors=True)


def _prune(folder: Path) -> None:
    """Forget the pages that were not used for longest."""
    for page in sorted(folder.iterdir(), key=lambda path: path.stat().st_mtime, reverse=True)[_MOST_KEPT:]:
        shutil.rmtree(page, ignore_errors=True)


if __name__ == "__main__":
    try:
        put_page()
    except (PageError, NodeMissingError) as error:
        sys.exit(str(error))
