"""Installs a Chromium for the tests if there is none: the distribution's package if possible, else Playwright's."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator

from browser import chromium_path


def ways() -> Iterator[list[list[str]]]:
    """The commands that may install one, in order of preference."""
    rights = [] if os.geteuid() == 0 else ["sudo", "-n"]
    if shutil.which("apt-get") and (not rights or shutil.which("sudo")):
        apt = [*rights, "env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "-qq"]
        install = [*apt, "install", "--yes", "--no-install-recommends", "chromium"]
        yield [install]
        yield [[*apt, "update"], install]
        yield [[sys.executable, "-m", "playwright", "install", "--with-deps", "chromium"]]
    yield [[sys.executable, "-m", "playwright", "install", "chromium"]]


def main() -> int:
    """Installs a Chromium, quietly; prints the reason if that fails."""
    try:
        if chromium_path():
            return 0
    except RuntimeError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    failures = []
    for commands in ways():
        for command in commands:
            done = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                check=False,
            )
            if done.returncode != 0:
                failures.append(f"`{' '.join(command)}` ended with {done.returncode}:\n{done.stdout[-2000:]}")
                break
        chromium_path.cache_clear()
        if chromium_path():
            return 0
    told = ["The viewer is tested in Chromium, and none could be installed.", *failures]
    sys.stderr.write("\n\n".join([*told, "Install one by hand, or name it in ROLLTRACE_CHROMIUM.\n"]))
    return 1


if __name__ == "__main__":
    sys.exit(main())
