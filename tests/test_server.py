"""The Triton server as a subprocess, with the real tritonserver and a tiny model."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from cog_triton.child_session import session_members
from cog_triton.errors import (
    DeploymentError,
    PortInUse,
    ServerDied,
    ServerStartTimeout,
    SettingsError,
)
from cog_triton.ports import check_free
from cog_triton.server import TritonServer
from cog_triton.server_log import ServerLog
from tests.triton_samples import free_ports, running, start, triton_settings, write_tiny_repository

ROOT = Path(__file__).parents[1]
SHARED_MEMORY = Path("/dev/shm")
READY_S = 30


def regions(server_id: str) -> list[Path]:
    """What a server has in shared memory."""
    return list(SHARED_MEMORY.glob(f"*{server_id}*"))


def has_ended(pid: int) -> bool:
    """Whether a process is gone, or dead and not yet reaped."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return True
    return stat.rpartition(")")[2].split()[0] == "Z"


async def until(condition: object, timeout_s: float) -> float:
    """Waits until a function is true; the time at which it was."""
    deadline = time.monotonic() + timeout_s
    assert callable(condition)
    while not condition():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.005)
    return time.monotonic()


# What fails


@pytest.mark.parametrize("name", ["http_port", "grpc_port", "metrics_port"])
def test_a_taken_port_is_found_before_anything_starts(tmp_path: Path, name: str) -> None:
    """The error names the port and the setting; nothing is written."""
    triton = triton_settings()
    port = getattr(triton, name)
    with (
        socket.create_server(("127.0.0.1", port)),
        pytest.raises(PortInUse, match=rf"Port {port} on 127\.0\.0\.1 \(triton\.{name}\)"),
    ):
        start(tmp_path, tmp_path, triton)
    assert not (tmp_path / "run").exists()


def test_one_port_for_two_settings_is_an_error() -> None:
    """It would be taken by ourselves."""
    (port,) = free_ports(1)
    address = ("127.0.0.1", port)
    with pytest.raises(PortInUse, match=r"\(b\)"):
        check_free({"a": address, "b": address})
    check_free({"a": address})


@pytest.mark.parametrize("host", ["192.0.2.1", "no such host"])
def test_a_host_that_is_not_this_machine_is_a_wrong_setting(host: str) -> None:
    """Another port would not help."""
    with pytest.raises(SettingsError, match=r"triton\.http_port: "):
        check_free({"triton.http_port": (host, 8000)})


def test_a_run_directory_that_cannot_be_used_is_an_error(tmp_path: Path) -> None:
    """It is named."""
    (tmp_path / "run").write_text("")
    with pytest.raises(DeploymentError, match=r"cannot be started: .*/run'"):
        start(tmp_path, tmp_path)


async def test_a_model_that_does_not_load_is_reported_at_once_with_its_reason(
    tmp_path: Path,
) -> None:
    """The error comes within a second of the death, and begins with why."""
    with running(tmp_path, initialize='raise RuntimeError("no weights at /nowhere")') as server:
        death = asyncio.create_task(until(lambda: has_ended(server.pid), READY_S))
        with pytest.raises(ServerDied) as caught:
            await server.wait_ready(READY_S)
        assert time.monotonic() - await death < 1
        assert server.poll() == 1
        assert not server.is_running
    lines = str(caught.value).splitlines()
    assert lines[0] == "E3008 ServerDied: The Triton server ended with exit status 1."
    assert "failed to load 'tiny' version 1: Internal: RuntimeError: no weights" in lines[1]
    assert regions(server.server_id) == []


async def test_a_launcher_that_fails_is_reported_with_its_message(tmp_path: Path) -> None:
    """What the launcher prints before there is a server is a reason too."""
    program = tmp_path / "tritonserver"
    program.write_bytes(b"\x7fELF")
    program.chmod(0o700)
    triton = triton_settings(tritonserver=str(program))
    message = r"E3005 RuntimeUnavailable: .*cannot be run"
    with running(tmp_path, triton=triton) as server, pytest.raises(ServerDied, match=message):
        await server.wait_ready(READY_S)


async def test_a_server_that_is_not_ready_in_time_can_be_stopped(tmp_path: Path) -> None:
    """A model that takes too long: the error gives the last lines, the server still runs."""
    with running(
        tmp_path, initialize="import time; print('slow', flush=True); time.sleep(60)"
    ) as server:
        await until(lambda: "slow" in server.tail(), READY_S)
        with pytest.raises(ServerStartTimeout, match=r"(?s)Not ready after 0.05 s.*slow"):
            await server.wait_ready(0.05)
        assert server.is_running
        server.stop(0)
        assert session_members(server.pid) == []
        assert regions(server.server_id) == []


async def test_another_server_on_the_port_is_not_taken_for_this_one(tmp_path: Path) -> None:
    """A port can be taken between the check and the start; who answers there is looked at."""
    triton = triton_settings()
    answer = b'HTTP/1.1 200 OK\r\nContent-Length: 16\r\n\r\n{"name": "none"}'
    num_asked = 0

    async def stranger(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal num_asked
        num_asked += 1
        writer.write(answer)
        await writer.drain()
        writer.close()

    with running(tmp_path, initialize="import time; time.sleep(0.5)", triton=triton) as server:
        port = await asyncio.start_server(stranger, "127.0.0.1", triton.http_port)
        async with port:
            with pytest.raises(ServerDied, match="failed to start HTTP service"):
                await server.wait_ready(READY_S)
    assert num_asked > 1


async def test_a_server_that_is_killed_leaves_nothing(tmp_path: Path) -> None:
    """Its stub and its shared memory go with it, without anybody calling stop."""
    with running(tmp_path) as server:
        await server.wait_ready(READY_S)
        assert len(session_members(server.pid)) == 2
        assert len(regions(server.server_id)) == 1
        os.kill(server.pid, signal.SIGKILL)
        await until(lambda: not server.is_running, 5)
        assert server.poll() == -signal.SIGKILL
        assert "ended with signal SIGKILL" in str(server.death())
        assert session_members(server.pid) == []
        assert regions(server.server_id) == []


# What works


async def test_a_server_starts_and_stops_and_leaves_nothing(tmp_path: Path) -> None:
    """Asked to, it ends in order; stopping it again changes nothing; its log stays."""
    with running(tmp_path) as server:
        await server.wait_ready(READY_S)
        assert server.is_running
        assert server.poll() is None
        assert server.death() is None
        assert len(regions(server.server_id)) == 1
        await asyncio.to_thread(server.stop, 20)
        assert server.poll() == 0
        assert session_members(server.pid) == []
        assert regions(server.server_id) == []
        server.stop(20)
        assert server.poll() == 0
    log = tmp_path / "run" / "triton.log"
    assert "successfully unloaded 'tiny' version 1" in log.read_text()
    assert log.stat().st_mode & 0o777 == 0o600
    assert log.parent.stat().st_mode & 0o777 == 0o700
    assert any("successfully unloaded 'tiny'" in line for line in server.tail())


async def test_two_servers_run_at_once_on_their_own_ports(tmp_path: Path) -> None:
    """Stopping one leaves the other alone."""
    with running(tmp_path / "a") as first, running(tmp_path / "b") as second:
        await asyncio.gather(first.wait_ready(READY_S), second.wait_ready(READY_S))
        first.stop(0)
        assert second.is_running
        await second.wait_ready(5)
        assert len(regions(second.server_id)) == 1


async def test_a_model_that_prints_a_lot_does_not_stand_still(tmp_path: Path) -> None:
    """5 MB go to the file; in memory only the end stays."""
    with running(tmp_path, initialize="print(('x' * 99 + '\\\\n') * 50_000, flush=True)") as server:
        await server.wait_ready(READY_S)
        assert len(server.tail()) <= 200
        assert (tmp_path / "run" / "triton.log").stat().st_size > 5_000_000


async def test_a_server_lives_on_when_the_thread_that_started_it_ends(tmp_path: Path) -> None:
    """The kernel's parent-death signal goes by thread, so a thread of its own forks it."""
    servers: list[TritonServer] = []
    repository = write_tiny_repository(tmp_path / "repository")

    thread = threading.Thread(target=lambda: servers.append(start(tmp_path, repository)))
    thread.start()
    thread.join()
    try:
        await servers[0].wait_ready(READY_S)
    finally:
        servers[0].stop(0)


def kill_a_parent(directory: Path) -> tuple[int, str]:
    """Has a process start a server and kills that process; the server's pid and id."""
    write_tiny_repository(directory / "repository")
    program = (
        "import asyncio, pathlib, sys\n"
        "from tests.triton_samples import start\n"
        "base = pathlib.Path(sys.argv[1])\n"
        "server = start(base, base / 'repository')\n"
        "asyncio.run(server.wait_ready(30))\n"
        "print(server.pid, server.server_id, flush=True)\n"
        "sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, str(directory)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        text=True,
    ) as parent:
        assert parent.stdout is not None
        try:
            pid, server_id = parent.stdout.readline().split()
            assert not has_ended(int(pid))
        finally:
            parent.kill()
    return int(pid), server_id


async def test_no_server_survives_the_death_of_its_parent(tmp_path: Path) -> None:
    """The process that started it is killed, and the server is soon dead."""
    pid, server_id = kill_a_parent(tmp_path)
    try:
        await until(lambda: has_ended(pid), 5)
    finally:
        # The stub of this tiny model ends by itself only when init has reaped its server.
        for member in session_members(pid):
            os.kill(member, signal.SIGKILL)
        for region in regions(server_id):
            region.unlink(missing_ok=True)


# The log


def test_the_log_keeps_its_end_and_the_reasons(tmp_path: Path) -> None:
    """Lines may come in any pieces; reasons come first, once, however much follows them."""
    reason = "E1120 14:48:42.961580 10747 model_lifecycle.cc:642] \"failed to load 'a': x\\ny\""
    text = f"{reason}\n{reason}\n" + "".join(f"line {i}\n" for i in range(300)) + "no end"
    log = ServerLog(tmp_path / "triton.log")
    for position in range(0, len(text), 7):
        log.feed(text[position : position + 7].encode())
    log.close()
    assert log.tail() == [*(f"line {i}" for i in range(101, 300)), "no end"]
    lines = log.summary(num_lines=2).splitlines()
    assert lines[:2] == reason.split("\\n")
    assert lines[2:] == [f"Last lines of {log.path}:", "line 299", "no end"]
    assert (tmp_path / "triton.log").read_text() == text


def test_the_log_is_bounded_in_memory_and_on_disk(tmp_path: Path) -> None:
    """A line without end is cut; a file that is full starts again, one older is kept."""
    log = ServerLog(tmp_path / "triton.log", max_file_bytes=100_000)
    for _ in range(100):
        log.feed(b"x" * 10_000)
    log.close()
    assert [len(line) for line in log.tail()] == [2000]
    sizes = {path.name: path.stat().st_size for path in tmp_path.iterdir()}
    assert sizes == {"triton.log": 100_000, "triton.log.1": 100_000}


def test_a_full_disk_ends_the_file_and_not_the_server(tmp_path: Path) -> None:
    """The output goes on being read."""
    log = ServerLog(tmp_path / "triton.log")
    assert log._file is not None
    log._file.close()
    log._file = open("/dev/full", "wb", buffering=0)  # noqa: SIM115
    log.feed(b"one\n")
    log.feed(b"two\n")
    assert log.tail() == [
        "(triton.log ends here: [Errno 28] No space left on device)",
        "one",
        "two",
    ]
    log.close()
