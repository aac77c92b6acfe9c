"""A server that fails is noticed, replaced, and never waited for without end."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import time
from collections.abc import Callable
from contextlib import aclosing
from pathlib import Path

import httpx
import pytest

from cog_triton import deployment, model_repository, process_tree
from cog_triton.artifacts.model_directory import ModelDirectory
from cog_triton.child_session import session_members
from cog_triton.engine import plan_engine
from cog_triton.errors import (
    ModelRepositoryError,
    TritonDied,
    TritonGaveUp,
    TritonIncompleteStream,
    TritonRestarting,
    TritonTimeout,
)
from cog_triton.server import TritonServer
from tests.conftest import RunningCog, environment, load
from tests.supervised_samples import END_EARLY, EXIT, HANG, Supervised, request, supervised

# Far below the defaults, so that a test need not wait for them.
QUICK = {
    "SUPERVISION__PROBE_PERIOD_S": "0.1",
    "SUPERVISION__PROBE_TIMEOUT_S": "0.4",
    "CLIENT__TOKEN_TIMEOUT_S": "0.8",
}
HEALTHY_WITHIN_S = 5.0


async def consume(running: Supervised, order: int = 5, max_tokens: int = 8000) -> int:
    """The number of tokens of one whole stream."""
    num = 0
    async for ids in running.client.stream(request(order, max_tokens)):
        num += len(ids)
    return num


async def streams(running: Supervised, num: int = 3) -> list[asyncio.Task[int]]:
    """Endless streams, each of which has had its first token."""
    started = [asyncio.Event() for _ in range(num)]

    async def run(event: asyncio.Event) -> int:
        async with aclosing(running.client.stream(request())) as chunks:
            async for _ids in chunks:
                event.set()
        return 0

    tasks = [asyncio.create_task(run(event)) for event in started]
    await asyncio.wait_for(asyncio.gather(*(event.wait() for event in started)), 20)
    return tasks


def regions(server: TritonServer) -> list[Path]:
    """What a server has in shared memory."""
    return list(Path("/dev/shm").glob(f"*{server.server_id}*"))


def stub(running: Supervised) -> int:
    (pid,) = (pid for pid in session_members(running.server.pid) if pid != running.server.pid)
    return pid


def kill_server(running: Supervised) -> None:
    os.kill(running.server.pid, signal.SIGKILL)


def kill_stub(running: Supervised) -> None:
    os.kill(stub(running), signal.SIGKILL)


def stop_server(running: Supervised) -> None:
    os.kill(running.server.pid, signal.SIGSTOP)


def stop_stub(running: Supervised) -> None:
    os.kill(stub(running), signal.SIGSTOP)


@pytest.mark.parametrize(
    ("fault", "reason", "fails_within_s"),
    [
        (kill_server, r"The Triton server ended with signal SIGKILL", 1.0),
        (kill_stub, r"the Python stub of tensorrt_llm \(process \d+\) has ended", 1.0),
        (stop_server, r"(tritonserver \(process \d+\) is stopped|no answer .* within 0.4 s)", 2.0),
        (stop_stub, r"the Python stub of tensorrt_llm \(process \d+\) is stopped", 2.0),
    ],
)
async def test_a_failed_server_is_replaced(
    tmp_path: Path,
    model_directory: ModelDirectory,
    fault: Callable[[Supervised], None],
    reason: str,
    fails_within_s: float,
) -> None:
    """Running predictions fail at once with the reason and the log's last lines, the next one
    waits for the new server and succeeds, and nothing of the old one is left."""
    async with supervised(tmp_path, model_directory, **QUICK) as running:
        tasks = await streams(running)
        old = running.server
        at = time.monotonic()
        fault(running)
        results = await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 10)
        assert time.monotonic() - at < fails_within_s
        for result in results:
            assert isinstance(result, TritonDied), result
            assert re.search(rf"E2107 .*{reason}\.\nLast lines of .*triton\.log:\n", str(result))
        assert not running.supervisor.healthy
        assert await consume(running, max_tokens=50) == 50
        assert running.supervisor.healthy
        assert time.monotonic() - at < HEALTHY_WITHIN_S
        assert session_members(old.pid) == []
        assert not regions(old)
        assert len(running.servers) == 2
        assert any("It is started again" in line for line in running.said)


@pytest.mark.parametrize(
    ("order", "reason"),
    [
        (HANG, r"2 requests in flight and no token for 0\.[89]"),
        (EXIT, r"the Python stub of tensorrt_llm \(process \d+\) has ended"),
    ],
)
async def test_an_engine_that_hangs_or_ends_is_replaced(
    tmp_path: Path, model_directory: ModelDirectory, order: int, reason: str
) -> None:
    """Triton still says that it is ready, and every process may live: no token tells it."""
    async with supervised(tmp_path, model_directory, **QUICK) as running:
        tasks = await streams(running, 1)
        tasks.append(asyncio.create_task(consume(running, order)))
        results = await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 10)
        for result in results:
            with pytest.raises(TritonDied, match=reason):
                raise result  # type: ignore[misc]
        assert await consume(running, max_tokens=50) == 50


async def test_a_server_that_dies_idle_is_replaced(
    tmp_path: Path, model_directory: ModelDirectory
) -> None:
    """Nobody needs to ask for a prediction: the health check falls and rises by itself."""
    async with supervised(tmp_path, model_directory, **QUICK) as running:
        kill_stub(running)
        await running.until_healthy(False, 1)
        await running.until_healthy(True, HEALTHY_WITHIN_S)
        assert running.supervisor.failure is None
        kill_server(running)
        await running.until_healthy(False, 1)
        assert await consume(running, max_tokens=50) == 50
        assert len(running.servers) == 3


async def test_a_server_that_fails_too_often_is_given_up(
    tmp_path: Path, model_directory: ModelDirectory
) -> None:
    """The reason is kept, the health check stays false, and every prediction fails at once
    with it, those that waited for the restart too."""
    limits = {"SUPERVISION__MAX_RESTARTS": "2", "SUPERVISION__RESTART_BACKOFF_S": "0.1"}
    async with supervised(tmp_path, model_directory, **QUICK, **limits) as running:
        running.order("broken")
        kill_server(running)
        await running.until_healthy(False, 1)
        for _ in range(2):
            with pytest.raises(TritonGaveUp, match=r"E2109 .*E3008 .*(?s:.)*broken on purpose"):
                await asyncio.wait_for(consume(running), 20)
        assert len(running.servers) == 3
        assert running.said[-1].startswith("Triton is not restarted any more")
        assert not running.supervisor.healthy
        assert "broken on purpose" in str(running.supervisor.failure)
        assert not any(session_members(server.pid) for server in running.servers)


async def test_a_prediction_waits_for_a_restart_no_longer_than_it_may(
    tmp_path: Path, model_directory: ModelDirectory
) -> None:
    """Then it fails with a code of its own, and one that is cancelled leaves at once."""
    limits = {"SUPERVISION__RESTART_WAIT_S": "0.5"}
    async with supervised(tmp_path, model_directory, **QUICK, **limits) as running:
        running.order("slow")
        kill_server(running)
        await running.until_healthy(False, 1)
        at = time.monotonic()
        waiting = asyncio.create_task(consume(running))
        with pytest.raises(TritonRestarting, match=r"Not ready after 0\.5 s: .*SIGKILL"):
            await consume(running)
        assert 0.5 <= time.monotonic() - at < 2
        await asyncio.wait([waiting])
        leaving = asyncio.create_task(consume(running))
        await asyncio.sleep(0)
        leaving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await leaving
        assert isinstance(waiting.exception(), TritonRestarting)
    assert not any(session_members(server.pid) for server in running.servers)


async def test_deadlines_are_settings(tmp_path: Path, model_directory: ModelDirectory) -> None:
    """A request that gets nothing in time fails alone while the server may go on."""
    limits = {
        "CLIENT__TOKEN_TIMEOUT_S": "0.3",
        "CLIENT__FIRST_TOKEN_TIMEOUT_S": "0.6",
        "SUPERVISION__STALL_TIMEOUT_S": "60",
    }
    async with supervised(tmp_path, model_directory, **limits) as running:
        with pytest.raises(TritonTimeout, match=r"E2101 .*sent nothing for 0\.3 s"):
            await consume(running, HANG)
        with pytest.raises(TritonTimeout, match=r"E2101 .*sent nothing for 0\.6 s"):
            await consume(running)
        assert len(running.servers) == 1


async def test_a_stream_that_ends_early_is_an_error(
    tmp_path: Path, model_directory: ModelDirectory
) -> None:
    """Four tokens of fifty and no end token are not an answer; the server is not to blame."""
    async with supervised(tmp_path, model_directory, **QUICK) as running:
        with pytest.raises(TritonIncompleteStream, match=r"after 4 of at most 50"):
            await consume(running, END_EARLY, max_tokens=50)
        assert await consume(running, max_tokens=50) == 50
        assert len(running.servers) == 1


def test_a_restart_does_without_a_new_repository(
    tmp_path: Path, model_directory: ModelDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a full disk the server starts again on what is there; the first start is an error."""
    config = load(environment(tmp_path / "run"))
    planned = plan_engine(config, model_directory)
    deployment.start_server(config, planned).stop(0)

    def build(*_arguments: object, **_options: object) -> Path:
        raise ModelRepositoryError("No space left on device")

    monkeypatch.setattr(model_repository, "build", build)
    with pytest.raises(ModelRepositoryError, match="No space left"):
        deployment.start_server(config, planned)
    server = deployment.start_server(config, planned, again=True)
    try:
        assert server.is_running
    finally:
        server.stop(0)


async def test_through_cog_a_killed_server_is_an_error_and_then_as_before(cog: RunningCog) -> None:
    """The running prediction fails with the code, the health check falls and rises, and a
    prediction that comes meanwhile is answered by the new server."""
    body = {"input": {"prompt": "Tell me a story.", "max_tokens": 900, "min_tokens": 900}}
    async with httpx.AsyncClient(base_url=cog.url, timeout=60, trust_env=False) as http:
        endless = asyncio.create_task(http.post("/predictions", json=body))
        while await cog.num_active() == 0:
            assert not endless.done()
            await asyncio.sleep(0.01)
        (server,) = (pid for pid in process_tree.descendants(cog.server.pid) if is_triton(pid))
        os.kill(server, signal.SIGKILL)
        failed = (await endless).json()
        assert failed["status"] == "failed"
        assert "E2107 TritonDied: The Triton server ended with signal SIGKILL" in failed["error"]
        health = (await http.get("/health-check")).json()
        assert health["status"] == "UNHEALTHY"
        short = {"input": {"prompt": "Hi", "max_tokens": 2}}
        answer = (await http.post("/predictions", json=short)).json()
        assert answer["status"] == "succeeded", answer
        assert (await http.get("/health-check")).json()["status"] == "READY"


def is_triton(pid: int) -> bool:
    return Path(f"/proc/{pid}/comm").read_text().strip() == "tritonserver"
