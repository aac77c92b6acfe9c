"""Every way to end a deployment while it answers: the answer ends clearly and nothing is left."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from cog_triton import process_tree
from cog_triton.cog_server import CogServer
from tests.conftest import READY_TIMEOUT_S, environment, free_ports

GONE_WITHIN_S = 5.0
Json = dict[str, Any]


@contextmanager
def serving(directory: Path) -> Iterator[CogServer]:
    environ = environment(directory / "run")
    server = CogServer(free_ports(1)[0], concurrency=4, environment=environ)
    try:
        server.wait_ready(READY_TIMEOUT_S)
        yield server
    finally:
        server.stop()


def stream(server: CogServer, max_tokens: int) -> Future[Json]:
    """A streamed prediction that has begun; its last event, or the error of the connection."""
    began = threading.Event()
    last: Future[Json] = Future()

    def read() -> None:
        body = {"input": {"prompt": "Hi", "max_tokens": max_tokens, "min_tokens": max_tokens}}
        headers = {"Accept": "text/event-stream"}
        try:
            with httpx.stream(
                *("POST", f"{server.url}/predictions"),
                json=body,
                headers=headers,
                timeout=60,
                trust_env=False,
            ) as response:
                event: Json = {}
                for line in response.iter_lines():
                    if line.startswith("data: "):
                        event = json.loads(line[6:])
                        if "chunk" in event:
                            began.set()
            last.set_result(event)
        except httpx.TransportError as err:
            last.set_exception(err)
        finally:
            began.set()

    threading.Thread(target=read, daemon=True).start()
    assert began.wait(30)
    return last


def regions(family: list[int]) -> set[str]:
    """The shared memory of the processes of a server."""
    found = set()
    for pid in family:
        maps = Path(f"/proc/{pid}/maps").read_text(encoding="utf-8", errors="replace")
        found |= {line.split(maxsplit=5)[-1] for line in maps.splitlines() if " /dev/shm/" in line}
    return found


def check_nothing_left(family: list[int], shared: set[str]) -> None:
    assert process_tree.wait_gone(family, GONE_WITHIN_S)
    deadline = time.monotonic() + GONE_WITHIN_S
    while left := [path for path in shared if os.path.exists(path)]:
        assert time.monotonic() < deadline, left
        time.sleep(0.02)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_running_predictions_get_their_end(tmp_path: Path, number: signal.Signals) -> None:
    """Asked to end, Cog lets running predictions finish, takes no new ones, and then all goes."""
    with serving(tmp_path) as server:
        family = process_tree.descendants(server.pid)
        shared = regions(family)
        assert shared
        last = stream(server, 60)
        os.kill(server.pid, number)
        answer = last.result(60)
        assert answer["status"] == "succeeded"
        assert answer["metrics"]["output_token_count"] == 60
        check_nothing_left([server.pid, *family], shared)


def kill_worker(server: CogServer) -> None:
    """The process that runs predict.py: Cog's own child, the first below it."""
    os.kill(process_tree.descendants(server.pid)[0], signal.SIGKILL)


def kill_parent(server: CogServer) -> None:
    server.kill()


@pytest.mark.parametrize("kill", [kill_worker, kill_parent])
def test_killed_processes_take_the_rest_with_them(
    tmp_path: Path, kill: Callable[[CogServer], None]
) -> None:
    """Without any chance to clean up: a clear error for who waits, and nothing is left."""
    with serving(tmp_path) as server:
        family = process_tree.descendants(server.pid)
        shared = regions(family)
        last = stream(server, 900)
        kill(server)
        if kill is kill_worker:
            assert last.result(GONE_WITHIN_S)["error"] == "Worker crashed"
            health = httpx.get(f"{server.url}/health-check", trust_env=False).json()
            assert health["status"] != "READY"
        else:
            assert isinstance(last.exception(GONE_WITHIN_S), httpx.TransportError)
        check_nothing_left(family, shared)
