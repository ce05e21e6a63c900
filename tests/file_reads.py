"""Which files this process opens, reads and has open, seen where it asks the operating system for them."""

import os
from collections import Counter
from pathlib import Path

import pytest


class FileReads:
    """Files that were opened with `os.open`, and bytes that were read with `os.pread`, since the last `clear`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._opened: list[Path] = []
        self._bytes: Counter[Path] = Counter()
        real_open, real_pread = os.open, os.pread

        def open_(path, *arguments, **options):
            self._opened.append(Path(os.path.realpath(path)))
            return real_open(path, *arguments, **options)

        def pread(descriptor, length, offset):
            data = real_pread(descriptor, length, offset)
            self._bytes[Path(f"/proc/self/fd/{descriptor}").readlink()] += len(data)
            return data

        monkeypatch.setattr(os, "open", open_)
        monkeypatch.setattr(os, "pread", pread)

    def clear(self) -> None:
        """Forget what was opened and read so far."""
        self._opened.clear()
        self._bytes.clear()

    def opened(self, folder: Path) -> list[Path]:
        """The files in a folder that were opened, in order, once for each time."""
        return [path for path in self._opened if path.is_relative_to(folder.resolve())]

    def bytes_read(self, folder: Path) -> int:
        """How many bytes of the files in a folder were read."""
        return sum(count for path, count in self._bytes.items() if path.is_relative_to(folder.resolve()))


def open_descriptors(folder: Path) -> list[int]:
    """The descriptors that this process has open for a file, or for files in a folder."""
    found = []
    for link in Path("/proc/self/fd").iterdir():
        try:
            if link.readlink().is_relative_to(folder.resolve()):
                found.append(int(link.name))
        except FileNotFoundError:  # the one that listed the folder
            continue
    return sorted(found)
