"""A Cog server on `predict.py` as a child process, for `make predict`, tests and benchmarks."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx

from cog_triton import errors, ports, process_tree
from cog_triton.errors import DeploymentError
from cog_triton.settings import child_environment

PROJECT = Path(__file__).parent.parent
POLL_S = 0.02


class CogServer:
    """`python -m cog.server.http` in a session of its own; `stop` leaves no process behind.

    Raises PortInUse if another program listens on the port.
    """

    def __init__(
        self,
        port: int,
        *,
        concurrency: int,
        environment: dict[str, str] | None = None,
        on_log: Callable[[str], None] | None = None,
    ) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self._on_log = on_log or (lambda _line: None)
        ports.check_free({"the Cog server's port": ("127.0.0.1", port)})
        process_tree.adopt_orphans()
        env = child_environment()
        # coglet starts its worker as `python`, whichever comes first on PATH.
        env["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{env.get('PATH', os.defpath)}"
        env |= {
            "COG_PREDICT_TYPE_STUB": "predict.py:Predictor",
            "PORT": str(port),
            "COG_MAX_CONCURRENCY": str(concurrency),
            # coglet warns at each start that `predict` has a newer name.
            "PYTHONWARNINGS": "ignore::DeprecationWarning",
        }
        env.setdefault("COG_LOG_LEVEL", "warn")
        self._process = subprocess.Popen(
            [sys.executable, "-m", "cog.server.http", "--host", "127.0.0.1"],
            cwd=PROJECT,
            env=env | (environment or {}),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self._drain = threading.Thread(target=self._read_log, daemon=True)
        self._drain.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def wait(self) -> int:
        """Block until the server ends by itself; its exit status."""
        return self._process.wait()

    def wait_ready(self, timeout_s: float) -> None:
        """Return when predictions are accepted; raises DeploymentError with the setup's log."""
        deadline = time.monotonic() + timeout_s
        with httpx.Client(base_url=self.url, trust_env=False) as http:
            while time.monotonic() < deadline:
                if self._process.poll() is not None:
                    raise DeploymentError(f"The Cog server ended with {self._process.returncode}.")
                health = _health(http)
                if health.get("status") == "READY":
                    return
                if health.get("status") in ("SETUP_FAILED", "DEFUNCT"):
                    raise _setup_failure(health)
                time.sleep(POLL_S)
        raise DeploymentError(f"The Cog server was not ready after {timeout_s:g} s.")

    def stop(self, grace_s: float = 10.0) -> None:
        """SIGTERM, wait for every process below it, SIGKILL to what is left. Safe to call twice."""
        family = process_tree.descendants(self._process.pid)
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(grace_s)
        process_tree.wait_gone(family, grace_s)
        for pid in process_tree.living(family):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        process_tree.reap(family, grace_s)
        self._drain.join(timeout=grace_s)

    def kill(self) -> list[int]:
        """SIGKILL to the parent process alone; the process ids of all that it had started."""
        family = process_tree.descendants(self._process.pid)
        self._process.kill()
        self._process.wait()
        return family

    def _read_log(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as stream:
            for line in stream:
                self._on_log(line.decode("utf-8", "replace").rstrip("\n"))


def setup_line(line: str) -> str | None:
    """What setup printed, out of a line of coglet's JSON log; None for any other line."""
    try:
        entry = json.loads(line)
        if entry["target"] != "coglet::setup":
            return None
        return str(entry["fields"]["message"])
    except (ValueError, KeyError, TypeError):
        return None


def _health(http: httpx.Client) -> dict[str, Any]:
    try:
        content = http.get("/health-check").json()
    except (httpx.HTTPError, json.JSONDecodeError):
        return {}
    return content if isinstance(content, dict) else {}


def _setup_failure(health: dict[str, Any]) -> DeploymentError:
    """The error that ended the setup, out of the log in which coglet wraps it."""
    log = str((health.get("setup") or {}).get("logs") or health)
    found = re.search(r"\b(E3\d{3}) (\w+): (.*)", log, re.DOTALL)
    kind = getattr(errors, found[2], None) if found else None
    if found and isinstance(kind, type) and issubclass(kind, DeploymentError):
        return kind(found[3].strip().removesuffix(kind.remedy).strip())
    return DeploymentError(log)
