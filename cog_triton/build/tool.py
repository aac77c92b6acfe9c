"""Run one program of a build: output line by line while it runs, an end with its parent."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path

from cog_triton.errors import EngineBuildFailed, RuntimeUnavailable
from cog_triton.runtimes.mpi_environment import leave_job
from cog_triton.settings import child_environment

_PROGRAM = Path(__file__).with_name("with_parent.py")
_KEPT_LINES = 15

Log = Callable[[str], None]


def run(command: Sequence[str], *, cwd: Path, log: Log, name: str) -> None:
    """Run it to its end in `cwd`; `log` gets each line as it is printed.

    Its process group is killed when this ends early (an exception, Ctrl-C), and the program when
    this process is killed.

    Raises: RuntimeUnavailable when there is no such program; EngineBuildFailed with the exit
    status and the last lines when it fails.
    """
    if shutil.which(command[0]) is None:
        raise RuntimeUnavailable(f"{name}: there is no program {command[0]}")
    environment = {**child_environment(), "PYTHONUNBUFFERED": "1"}
    leave_job(environment)
    last: deque[str] = deque(maxlen=_KEPT_LINES)
    with subprocess.Popen(
        [sys.executable, str(_PROGRAM), str(os.getpid()), *command],
        cwd=cwd,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        text=True,  # with it a progress bar's carriage returns end lines too
        encoding="utf-8",
        errors="replace",
    ) as process:
        try:
            assert process.stdout is not None
            for line in process.stdout:
                text = line.rstrip()
                if text:
                    last.append(text)
                    log(f"{name}: {text}")
            status = process.wait()
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    if status != 0:
        ended = f"was killed by signal {-status}" if status < 0 else f"ended with status {status}"
        said = "\n  ".join(last) or "it printed nothing"
        raise EngineBuildFailed(f"{name} {ended}. Its last lines:\n  {said}\n")
