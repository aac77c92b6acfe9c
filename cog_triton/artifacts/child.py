"""Start one job of `child_jobs.py` in a process of its own and watch it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

_PROGRAM = Path(__file__).with_name("child_jobs.py")
_TICK_S = 0.2


@contextmanager
def started(job: str, *arguments: str, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """The running job; its output goes to `log`. It is killed if the block ends before it does."""
    command = [sys.executable, str(_PROGRAM), str(os.getpid()), job, *arguments]
    with log.open("wb") as out:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT
        )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


def wait(process: subprocess.Popen[bytes], on_tick: Callable[[], None] = lambda: None) -> int:
    """Exit code (negative: the signal that ended it); calls `on_tick` five times a second."""
    while True:
        try:
            return process.wait(timeout=_TICK_S)
        except subprocess.TimeoutExpired:
            on_tick()


def last_lines(log: Path, count: int = 4) -> str:
    """The end of a job's output on one line, for an error message."""
    text = log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return " | ".join(lines[-count:]) or "it printed nothing"
