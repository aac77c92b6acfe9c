"""The processes below one process, as Linux shows them in /proc.

coglet ends without waiting for its worker, so what the worker has started becomes an orphan.
A process that adopts orphans can wait for them and leave nothing behind, not even zombies.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import time
from collections.abc import Iterable
from pathlib import Path

PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h
POLL_S = 0.02


def adopt_orphans() -> None:
    """From now on orphans below this process become its children (prctl(2))."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def descendants(pid: int) -> list[int]:
    """The process ids below `pid`, itself not included."""
    parents = {child: parent for child, (parent, _state) in _processes().items()}
    found: list[int] = []
    pending = [pid]
    while pending:
        current = pending.pop()
        children = [child for child, parent in parents.items() if parent == current]
        found += children
        pending += children
    return found


def living(pids: Iterable[int]) -> list[int]:
    """Those of `pids` that exist and are no zombies."""
    processes = _processes()
    return [pid for pid in pids if pid in processes and processes[pid][1] not in "ZX"]


def wait_gone(pids: Iterable[int], timeout_s: float) -> bool:
    """Wait until none of `pids` lives; False if the time ran out."""
    wanted = list(pids)
    deadline = time.monotonic() + timeout_s
    while living(wanted):
        if time.monotonic() >= deadline:
            return False
        time.sleep(POLL_S)
    return True


def reap(pids: Iterable[int], timeout_s: float) -> bool:
    """Take the exit status of `pids` as they become children of this process and end.

    An orphan is adopted only when its own parent has been, so it may take a moment.
    False if some of them are still in the process table when the time runs out.
    """
    wanted = set(pids)
    deadline = time.monotonic() + timeout_s
    while wanted := wanted & _processes().keys():
        for pid in wanted:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
        if time.monotonic() >= deadline:
            return False
        time.sleep(POLL_S)
    return True


def _processes() -> dict[int, tuple[int, str]]:
    """Parent and state by process id."""
    processes = {}
    for directory in Path("/proc").iterdir():
        if not directory.name.isdigit():
            continue
        with contextlib.suppress(OSError):
            # `pid (name) state ppid …`; the name may hold anything.
            fields = (directory / "stat").read_text("utf-8", "replace").rpartition(")")[2].split()
            processes[int(directory.name)] = (int(fields[1]), fields[0])
    return processes
