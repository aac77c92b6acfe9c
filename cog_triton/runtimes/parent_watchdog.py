"""A model process that dies with its tritonserver.

tritonserver kills its Python stubs when it ends by itself, but not when it is killed:
3 stubs of 8 were left behind after SIGKILL under load. PR_SET_PDEATHSIG cannot be used,
as it fires when the forking *thread* ends, and Triton's loading threads come and go.
"""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

POLL_S = 0.25


def watch(parent_pid: int | None = None) -> None:
    """Start a daemon thread that ends this process soon after its parent has gone."""
    parent = os.getppid() if parent_pid is None else parent_pid
    threading.Thread(target=_wait_for_orphanhood, args=(parent,), daemon=True).start()


def _wait_for_orphanhood(parent_pid: int) -> None:
    while os.getppid() == parent_pid:
        time.sleep(POLL_S)
    remove_shared_memory()
    os._exit(1)


def remove_shared_memory(pid: int | str = "self") -> list[str]:
    """Unlink the /dev/shm files that a process has mapped; the paths that were removed."""
    removed = []
    maps = Path(f"/proc/{pid}/maps").read_text(encoding="utf-8", errors="replace")
    paths = {line.split(maxsplit=5)[-1] for line in maps.splitlines() if " /dev/shm/" in line}
    for path in sorted(paths):
        if os.path.exists(path):
            os.unlink(path)
            removed.append(path)
    return removed
