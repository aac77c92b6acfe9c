"""The processes of a Triton server, looked at one by one.

tritonserver 2.51 does not notice the death of a Python stub: after SIGKILL to the stub of
`tensorrt_llm`, and also while the stub is stopped, /v2/health/ready and the model's own ready
endpoint answered 200 for as long as it was tried, running streams stood still, and each new
request ended with "Stub process 'tensorrt_llm_0_0' is not healthy". Linux tells it: proc(5).
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from cog_triton.child_session import session_members

_PROGRAMS = {"tritonserver", "triton_python_backend_stub"}
_DEAD = "ZX"
_STOPPED = "T"


@dataclass(frozen=True)
class _Process:
    pid: int
    start_time: str
    name: str


@dataclass(frozen=True)
class Missing:
    """A process that is gone or does not run."""

    pid: int
    ended: bool
    reason: str


class SessionWatch:
    """Takes down which servers and stubs a session has now; `failure` says if one is missing.

    Reads a few files for each look and may be called often.
    """

    def __init__(self, session: int, *, stopped_timeout_s: float) -> None:
        self._stopped_timeout_s = stopped_timeout_s
        self._stopped_since: dict[int, float] = {}
        self._processes: list[_Process] = []
        for pid in session_members(session):
            name = _name(pid)
            state = _state(pid)
            if state is not None and (name is not None or pid == session):
                self._processes.append(_Process(pid, state[1], name or "the Triton server"))

    @property
    def pids(self) -> list[int]:
        return [process.pid for process in self._processes]

    def failure(self, now_s: float) -> Missing | None:
        """The process without which the server cannot work, or None."""
        for process in self._processes:
            who = f"{process.name} (process {process.pid})"
            state = _state(process.pid)
            if state is None or state[0] in _DEAD or state[1] != process.start_time:
                return Missing(process.pid, True, f"{who} has ended")
            if state[0] != _STOPPED:
                self._stopped_since.pop(process.pid, None)
                continue
            since_s = self._stopped_since.setdefault(process.pid, now_s)
            if now_s - since_s >= self._stopped_timeout_s:
                return Missing(process.pid, False, f"{who} is stopped")
        return None


def _state(pid: int) -> tuple[str, str] | None:
    """State letter and start time of a process, None if there is none."""
    try:
        # `pid (name) state ppid …`; the name may hold anything. The start time is field 22.
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return None
    return fields[0].decode(), fields[19].decode()


def _name(pid: int) -> str | None:
    """What a server or stub is called in a message, None for any other program."""
    try:
        program = os.path.basename(os.readlink(f"/proc/{pid}/exe")).removesuffix(" (deleted)")
        arguments = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return None
    if program not in _PROGRAMS:
        return None
    if program == "tritonserver":
        return program
    # `triton_python_backend_stub <repository>/<model>/<version>/model.py …`
    parts = Path(os.fsdecode(arguments[1] if len(arguments) > 1 else b"")).parts
    return f"the Python stub of {parts[-3]}" if len(parts) >= 3 else "a Python stub"
