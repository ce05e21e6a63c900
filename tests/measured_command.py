"""Runs a command with a limit of time and memory, and says what it took."""

import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple


class Measured(NamedTuple):
    """What a command took and said."""

    seconds: float
    megabytes: int
    """The largest resident size."""
    code: int
    """The exit code; negative if a signal ended it."""
    out: str
    err: str


def resident_megabytes(process: int) -> int:
    """The largest resident size of a process so far; 0 if it has ended. Unlike `ru_maxrss`, without its parent's."""
    try:
        lines = Path(f"/proc/{process}/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) >> 10 for line in lines if line.startswith("VmHWM")), 0)


def measure(words: Sequence[str | Path], max_seconds: float, max_megabytes: int) -> Measured:
    """Run a command; it is killed when it takes more than this."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        started, megabytes = time.monotonic(), 0
        process = subprocess.Popen(list(map(str, words)), stdout=out, stderr=err, stdin=subprocess.DEVNULL)
        while True:
            megabytes = max(megabytes, resident_megabytes(process.pid))
            seconds = time.monotonic() - started
            if process.poll() is not None:
                break
            if seconds > max_seconds or megabytes > max_megabytes:
                process.kill()
            time.sleep(0.02)
        texts = []
        for file in (out, err):
            file.seek(0)
            texts.append(file.read(1 << 20).decode(errors="replace"))
        return Measured(seconds, megabytes, process.returncode, *texts)
