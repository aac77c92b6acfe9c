"""A child process in a session of its own, watched from start to end by one thread.

The thread that starts the child also waits for it, ends whatever the child
leaves behind in its session, and only then reaps it. That settles three things:

* PR_SET_PDEATHSIG (set by the launcher) fires when the *thread* that forked the
  child ends, not the process. This thread lives exactly as long as the child,
  whatever thread asked for the start.
* Triton's Python stubs look whether their server exists with kill(pid, 0), which
  also succeeds for a dead one that nobody has reaped: they would stay for ever.
* Until it is reaped the child's process and session ids cannot be used again, so
  a signal to them cannot hit a stranger.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import IO

from cog_triton.server_log import ServerLog

_SWEEP_TIMEOUT_S = 2.0
_DRAIN_TIMEOUT_S = 1.0


class ChildSession:
    """A running command; its output goes to `log`, `after_death` is called once at the end.

    Raises OSError if the command cannot be started.
    """

    def __init__(
        self, command: Sequence[str], log: ServerLog, after_death: Callable[[], None]
    ) -> None:
        self._log = log
        self._after_death = after_death
        self._ended = threading.Event()
        self._signal_lock = threading.Lock()
        self._returncode: int | None = None
        started: Future[int] = Future()
        threading.Thread(
            target=self._run, args=(command, started), name="triton-watch", daemon=True
        ).start()
        self.pid = started.result()

    def poll(self) -> int | None:
        """Like Popen's: None while it lives or its session is cleared, else its exit status."""
        return self._returncode if self._ended.is_set() else None

    def send_signal(self, number: int) -> None:
        """Signals the first process; nothing happens if it has ended."""
        with self._signal_lock:
            if self._returncode is None:
                os.kill(self.pid, number)

    def kill(self) -> None:
        """Kills every process of the session."""
        with self._signal_lock:
            if self._returncode is None:
                _kill_session(self.pid)

    def wait(self, timeout_s: float | None = None) -> bool:
        """Waits until everything has ended and been cleared; False if time ran out."""
        return self._ended.wait(timeout_s)

    def _run(self, command: Sequence[str], started: Future[int]) -> None:
        try:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as err:
            self._log.close()
            started.set_exception(err)
            return
        assert process.stdout is not None
        drain = threading.Thread(
            target=self._drain, args=(process.stdout,), name="triton-log", daemon=True
        )
        drain.start()
        started.set_result(process.pid)
        try:
            os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
            self._clear_session(process.pid)
            drain.join(_DRAIN_TIMEOUT_S)
        finally:
            with self._signal_lock:
                self._returncode = process.wait()
            with contextlib.suppress(OSError):
                self._after_death()
            self._ended.set()

    def _drain(self, output: IO[bytes]) -> None:
        with output:
            while data := os.read(output.fileno(), 1 << 16):
                self._log.feed(data)
        self._log.close()

    def _clear_session(self, session: int) -> None:
        deadline = time.monotonic() + _SWEEP_TIMEOUT_S
        while _kill_session(session) and time.monotonic() < deadline:
            time.sleep(0.005)


def session_members(session: int) -> list[int]:
    """The living processes of a session, by process id; zombies do not count.

    A session, not a process group: mpirun gives each rank a group of its own.
    """
    members = []
    for directory in Path("/proc").iterdir():
        if not directory.name.isdigit():
            continue
        with contextlib.suppress(OSError):
            # `pid (name) state ppid pgrp session …`; the name may hold anything.
            fields = (directory / "stat").read_bytes().rpartition(b")")[2].split()
            if int(fields[3]) == session and fields[0] not in (b"Z", b"X"):
                members.append(int(directory.name))
    return members


def _kill_session(session: int) -> int:
    """Sends SIGKILL to all that live in a session; the number of them."""
    members = session_members(session)
    for pid in members:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return len(members)
