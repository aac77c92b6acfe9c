"""Progress of a long step: what a step reports, and the lines that a person reads."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import TextIO

Progress = Callable[[str, int, "int | None"], None]
"""`progress(step, done_bytes, total_bytes)`; total_bytes is None for a step of unknown length.

Called as often as the step likes, from one thread; the last call of a step has done == total.
"""


def silent(step: str, done_bytes: int, total_bytes: int | None) -> None:
    """A `Progress` that says nothing."""
    del step, done_bytes, total_bytes


class ProgressLines:
    """A `Progress` that prints whole lines, at most two a second, so that logs stay readable."""

    def __init__(
        self,
        out: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
        interval_s: float = 0.5,
    ) -> None:
        self._out = out
        self._clock = clock
        self._interval_s = interval_s
        self._step = ""
        self._started_s = 0.0
        self._printed_s = 0.0
        self._is_finished = False

    def __call__(self, step: str, done_bytes: int, total_bytes: int | None) -> None:
        now = self._clock()
        is_new = step != self._step
        if is_new:
            self._step, self._started_s, self._printed_s = step, now, now
            self._is_finished = False
        if total_bytes is None:
            if is_new:
                self._print(f"{step} …")
            return
        is_last = done_bytes >= total_bytes
        is_due = now - self._printed_s >= self._interval_s
        if self._is_finished or not (is_last or is_due):
            return
        self._is_finished, self._printed_s = is_last, now
        self._print(_line(step, done_bytes, total_bytes, now - self._started_s))

    def _print(self, line: str) -> None:
        # Looked up late: a test or a server may have replaced sys.stderr since.
        print(line, file=self._out or sys.stderr, flush=True)


def _line(step: str, done_bytes: int, total_bytes: int, elapsed_s: float) -> str:
    """For example `download: 46.4 of 92.9 MB, 12.3 MB/s, 4 s left`."""
    text = f"{step}: {done_bytes / 1e6:.1f} of {total_bytes / 1e6:.1f} MB"
    if elapsed_s <= 0 or done_bytes <= 0:
        return text
    bytes_per_s = done_bytes / elapsed_s
    text += f", {bytes_per_s / 1e6:.1f} MB/s"
    if done_bytes >= total_bytes:
        return f"{text}, took {elapsed_s:.1f} s"
    return f"{text}, {(total_bytes - done_bytes) / bytes_per_s:.0f} s left"
