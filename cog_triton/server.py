"""The Triton server as a subprocess: started, waited for, watched, and ended.

It never outlives this process, however this one ends, and leaves nothing
behind: no process of its session, no shared memory.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from cog_triton import ports
from cog_triton.child_session import ChildSession
from cog_triton.errors import DeploymentError, ServerDied, ServerStartTimeout
from cog_triton.server_log import ServerLog
from cog_triton.settings import TritonSettings
from cog_triton.triton_installation import PROJECT_ROOT, Installation

LAUNCHER = PROJECT_ROOT / "scripts" / "launch_triton_server.py"
LOG_NAME = "triton.log"
_SHARED_MEMORY = Path("/dev/shm")
_POLL_S = 0.02
_PROBE_TIMEOUT_S = 1.0
_CLOSED_GROUPS = "model-repository,shared-memory,trace,logging"
_WILDCARDS = {"0.0.0.0": "127.0.0.1", "::": "::1"}


class TritonServer:
    """One running server; make it with `start`.

    Everything but `wait_ready` may be called from any thread. `server_id` is the name
    that it answers with at /v2.
    """

    def __init__(
        self, triton: TritonSettings, child: ChildSession, log: ServerLog, server_id: str
    ) -> None:
        self._host = _WILDCARDS.get(triton.host, triton.host)
        self._http_port = triton.http_port
        self.server_id = server_id
        self._child = child
        self._log = log

    @classmethod
    def start(
        cls,
        triton: TritonSettings,
        installation: Installation,
        model_repository: Path,
        run_dir: Path,
        *,
        world_size: int = 1,
        extra_arguments: Sequence[str] = (),
    ) -> TritonServer:
        """Starts the launcher for a model repository and returns at once.

        `run_dir` (made 0700) gets triton.log; `extra_arguments` go to each rank's
        tritonserver. Raises PortInUse that names port and setting, SettingsError for a host
        that cannot be bound, and DeploymentError if the run directory cannot be used.
        """
        ports.check_free(
            {
                "triton.http_port": (triton.host, triton.http_port),
                "triton.grpc_port": (triton.host, triton.grpc_port),
                "triton.metrics_port": (triton.host, triton.metrics_port),
            }
        )
        server_id = f"cog-triton-{secrets.token_hex(8)}"
        command = _launcher_command(triton, installation, model_repository, world_size)
        command += ["--", *_server_arguments(triton, server_id), *extra_arguments]
        try:
            run_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
            log = ServerLog(run_dir / LOG_NAME)
            child = ChildSession(command, log, after_death=lambda: _remove_shared_memory(server_id))
        except OSError as err:
            raise DeploymentError(f"The Triton server cannot be started: {err}") from err
        return cls(triton, child, log, server_id)

    @property
    def http_url(self) -> str:
        """Where to reach its HTTP endpoint from this machine, without a slash at the end."""
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"http://{host}:{self._http_port}"

    @property
    def pid(self) -> int:
        """The process id of tritonserver (of mpirun with several ranks)."""
        return self._child.pid

    @property
    def is_running(self) -> bool:
        """Whether the server or anything of its session may still live."""
        return self._child.poll() is None

    def poll(self) -> int | None:
        """None while it runs, else its exit status, negative for a signal."""
        return self._child.poll()

    def tail(self) -> list[str]:
        """The last lines that the server printed, at most 200."""
        return self._log.tail()

    def death(self) -> ServerDied | None:
        """None while it runs, else the error to raise: exit status, reason, last lines."""
        if self.poll() is None:
            return None
        return ServerDied(f"{self.ending()}.\n{self._log.summary()}\n")

    def ending(self) -> str:
        """How it ended: exit status or signal, for a message."""
        status = self.poll()
        if status is None:
            return "The Triton server runs"
        how = f"exit status {status}"
        if status < 0:
            with contextlib.suppress(ValueError):
                how = f"signal {signal.Signals(-status).name}"
        return f"The Triton server ended with {how}"

    def log_summary(self, num_lines: int) -> str:
        """For an error message: what looks like a reason in its log, and the last lines."""
        return self._log.summary(num_lines)

    async def wait_ready(self, timeout_s: float) -> None:
        """Returns when every model is loaded and this server answers on its HTTP port.

        Raises ServerDied as soon as the process ends, and ServerStartTimeout; then the
        server still runs, and `stop` is the caller's to call.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            if (death := self.death()) is not None:
                raise death
            if await self.is_ready(_PROBE_TIMEOUT_S):
                return
            if time.monotonic() >= deadline:
                raise ServerStartTimeout(
                    f"Not ready after {timeout_s:g} s.\n{self._log.summary()}\n"
                )
            await asyncio.sleep(_POLL_S)

    def stop(self, grace_s: float) -> None:
        """Ends the server and waits until nothing of it is left; may be called again.

        SIGTERM first, to the server alone (it ends its Python stubs in order; a signal to
        them too would disturb that), then, after `grace_s`, SIGKILL to the whole session.
        Triton needs about 3 s when idle. Blocks: call it from a thread in async code.
        """
        if grace_s > 0:
            self._child.send_signal(signal.SIGTERM)
            if self._child.wait(grace_s):
                return
        self._child.kill()
        self._child.wait()

    async def is_ready(self, timeout_s: float) -> bool:
        """Whether it answers in time that every model is loaded.

        And it is this server: another one may have taken the port meanwhile.
        """
        try:
            return await asyncio.wait_for(self._says_ready(), timeout_s)
        except (OSError, ValueError, asyncio.TimeoutError):
            return False
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            return False

    async def _says_ready(self) -> bool:
        if await self._get("/v2/health/ready") is None:
            return False
        metadata = json.loads(await self._get("/v2") or b"{}")
        return isinstance(metadata, dict) and metadata.get("name") == self.server_id

    async def _get(self, path: str) -> bytes | None:
        """The body of a GET with status 200, None for any other status."""
        reader, writer = await asyncio.open_connection(self._host, self._http_port)
        try:
            host = self.http_url.removeprefix("http://")
            writer.write(f"GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
            head = await reader.readuntil(b"\r\n\r\n")
            if not head.startswith(b"HTTP/1.1 200 "):
                return None
            fields = dict(line.lower().split(b":", 1) for line in head.splitlines()[1:] if line)
            return await reader.readexactly(int(fields.get(b"content-length", b"0")))
        finally:
            writer.close()


def _launcher_command(
    triton: TritonSettings, installation: Installation, model_repository: Path, world_size: int
) -> list[str]:
    command = [sys.executable, str(LAUNCHER), f"--parent-pid={os.getpid()}", "--force"]
    command += [f"--world_size={world_size}", f"--model_repo={model_repository}"]
    command += [f"--http_port={triton.http_port}", f"--grpc_port={triton.grpc_port}"]
    command += [f"--metrics_port={triton.metrics_port}", f"--tritonserver={installation.server}"]
    if installation.backend_directory is not None:
        command.append(f"--scratch={installation.backend_directory.parent}")
    return command


def _server_arguments(triton: TritonSettings, server_id: str) -> list[str]:
    """Addresses, closed endpoints, and the id as the server's name and its memory's prefix.

    A repeated backend setting overrides the launcher's `prefix0_`; with a prefix of its own
    what a killed server leaves in /dev/shm can be told from everybody else's.
    """
    addresses = [f"--{kind}-address={triton.host}" for kind in ("http", "grpc", "metrics")]
    shared_memory = f"--backend-config=python,shm-region-prefix-name={server_id}_"
    return [*addresses, *_closed_endpoints(), f"--id={server_id}", shared_memory]


def _closed_endpoints() -> list[str]:
    """Switches off what writes files, maps memory or changes models at a client's word.

    A restricted group answers only to a header with the given value: a new random one for
    each server, which nobody is told (`tritonserver --help`, 2.51). Trace and logging let
    a client name a file to write.
    """
    rule = f"{_CLOSED_GROUPS}:{secrets.token_hex(8)}={secrets.token_hex(32)}"
    return [f"--http-restricted-api={rule}", f"--grpc-restricted-protocol={rule}"]


def _remove_shared_memory(server_id: str) -> None:
    for region in _SHARED_MEMORY.glob(f"{server_id}_*"):
        region.unlink(missing_ok=True)
