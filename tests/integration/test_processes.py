"""Nothing of a deployment outlives it, and several live beside each other."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

from cog_triton import process_tree
from cog_triton.cog_server import PROJECT, CogServer
from cog_triton.errors import DeploymentError, PortInUse
from cog_triton.settings import child_environment
from tests.conftest import READY_TIMEOUT_S, RunningCog, environment, free_ports

GONE_WITHIN_S = 5.0


def start(tmp_path: Path, **overrides: str) -> CogServer:
    environ = environment(tmp_path) | overrides
    return CogServer(free_ports(1)[0], concurrency=4, environment=environ)


def shared_memory() -> set[str]:
    return {path.name for path in Path("/dev/shm").iterdir() if "cog-triton" in path.name}


def test_wrong_settings_end_the_setup_with_their_code(tmp_path: Path) -> None:
    """The setup fails at once, with the code and the nearest known key, and stops cleanly."""
    server = start(tmp_path, COG_TRITON_ENGINE__MAX_BATCH="4")
    try:
        with pytest.raises(DeploymentError, match=r"E3001.*engine\.max_batch_size"):
            server.wait_ready(READY_TIMEOUT_S)
    finally:
        server.stop()


def test_a_taken_port_is_named(tmp_path: Path) -> None:
    """The error names port and setting before Triton starts."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        server = start(tmp_path, COG_TRITON_TRITON__GRPC_PORT=str(port))
        try:
            with pytest.raises(DeploymentError, match=rf"E3007.*{port}.*triton\.grpc_port"):
                server.wait_ready(READY_TIMEOUT_S)
        finally:
            server.stop()


def test_a_taken_cog_port_is_named(cog: RunningCog) -> None:
    """The Cog server's own port is checked too."""
    with pytest.raises(PortInUse, match="Cog server"):
        CogServer(int(cog.url.rpartition(":")[2]), concurrency=1)


@pytest.mark.parametrize("how", ["kill", "stop"])
def test_a_second_instance_ends_without_a_trace(cog: RunningCog, tmp_path: Path, how: str) -> None:
    """Beside the running server a second one starts, serves, and is gone within 5 s when its
    parent is killed or stopped: no process, no shared memory; the first one goes on."""
    before = shared_memory()
    server = start(tmp_path)
    try:
        server.wait_ready(READY_TIMEOUT_S)
        body = {"input": {"prompt": "Hi", "max_tokens": 2}}
        for url in (server.url, cog.url):
            answer = httpx.post(f"{url}/predictions", json=body, timeout=60, trust_env=False)
            assert answer.json()["status"] == "succeeded"
        if how == "kill":
            family = server.kill()
        else:
            family = process_tree.descendants(server.pid)
            server.stop()
        assert len(family) >= 3, "worker, tritonserver and its stub"
        assert process_tree.wait_gone(family, GONE_WITHIN_S)
    finally:
        server.stop()
    deadline = time.monotonic() + GONE_WITHIN_S
    while shared_memory() - before and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not shared_memory() - before
    answer = httpx.post(f"{cog.url}/predictions", json=body, timeout=60, trust_env=False)
    assert answer.json()["status"] == "succeeded"


def test_make_predict_leaves_nothing_behind_when_interrupted(tmp_path: Path) -> None:
    """Ctrl-C in the middle of the answer ends the command and everything that it started."""
    process_tree.adopt_orphans()
    command = [sys.executable, "scripts/run_prediction.py", "--prompt", "Tell me a story."]
    child = subprocess.Popen(
        [*command, "-i", "max_tokens=900", "-i", "min_tokens=900"],
        cwd=PROJECT,
        env=child_environment() | environment(tmp_path),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert child.stdout is not None
    assert child.stderr is not None
    with child.stdout, child.stderr:
        assert child.stdout.read(10)
        family = process_tree.descendants(child.pid)
        child.send_signal(signal.SIGINT)
        assert child.wait(30) == 130
        assert b"Traceback" not in child.stderr.read()
    assert len(family) >= 4
    assert process_tree.wait_gone(family, GONE_WITHIN_S)


def test_the_prediction_command_streams_and_reports(tmp_path: Path) -> None:
    """The command prints the answer on stdout and one line of metrics on stderr."""
    done = subprocess.run(
        [sys.executable, "scripts/run_prediction.py", "--prompt", "Hi", "-i", "max_tokens=5"],
        cwd=PROJECT,
        env=child_environment() | environment(tmp_path),
        capture_output=True,
        text=True,
        timeout=READY_TIMEOUT_S,
        check=True,
    )
    assert done.stdout.strip()
    metrics = done.stderr.strip().splitlines()[-1]
    for label in ("input tokens", "output tokens: 5", "first token", "tokens per second"):
        assert label in metrics
