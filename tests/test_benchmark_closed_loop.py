"""Load on a small server of our own, on loopback."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from benchmarks.load import closed_loop
from benchmarks.load.events import BadAnswer, read_events
from benchmarks.load.raw_answer import post, request_bytes
from tests.answer_samples import event_stream, plain
from tests.conftest import free_ports

BODY = {"a": 1}
CONFLICT = plain({"detail": "no slot"}, "409 Conflict")


class Server:
    """Answers the n-th request with the n-th script (the last one for all others)."""

    def __init__(self, scripts: list[list[bytes] | None]) -> None:
        self.scripts = scripts
        self.bodies: list[bytes] = []
        self.most_at_once = 0
        self._num_open = 0

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._num_open += 1
        self.most_at_once = max(self.most_at_once, self._num_open)
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length:")[2].split()[0])
        self.bodies.append(await reader.readexactly(length))
        script = self.scripts[min(len(self.bodies), len(self.scripts)) - 1]
        if script is None:  # silent until the client gives up
            await reader.read()
        for piece in script or []:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(0.002)
        self._num_open -= 1
        writer.close()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[str]:
        server = await asyncio.start_server(self.answer, "127.0.0.1", 0)
        try:
            yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        finally:
            server.close()


def request(url: str) -> bytes:
    return request_bytes(url, "/path", BODY, accept="*/*")


async def test_nobody_listens() -> None:
    """A refused connection is an answer with an error, not an exception."""
    url = f"http://127.0.0.1:{free_ports(1)[0]}"
    answer = await post(url, request(url), timeout_s=5)
    assert answer.status == 0
    with pytest.raises(BadAnswer, match="connection failed"):
        read_events(answer)


async def test_a_server_that_says_nothing() -> None:
    """After the deadline the request counts as failed, with the time that it took."""
    async with Server([None]).running() as url:
        answer = await post(url, request(url), timeout_s=0.1)
    assert answer.ended_at - answer.started_at >= 0.1
    with pytest.raises(BadAnswer, match=r"no whole answer within 0\.1 s"):
        read_events(answer)


async def test_conflicts_are_sent_again_until_the_deadline() -> None:
    """A server without a free slot ends as a failed request, with all its conflicts counted."""
    async with Server([CONFLICT]).running() as url:
        found = await closed_loop.run(url, [request(url)], concurrency=1, timeout_s=0.1)
    assert found[0].num_conflicts > 1
    with pytest.raises(BadAnswer, match="HTTP 409: no slot"):
        read_events(found[0].answer)


async def test_a_conflict_is_sent_again() -> None:
    """The same body goes again, and waiting for a slot counts as latency."""
    server = Server([CONFLICT, CONFLICT, event_stream([{"output_ids": 5}])])
    async with server.running() as url:
        found = await closed_loop.run(url, [request(url)], concurrency=1, timeout_s=5)
    assert (found[0].num_conflicts, len(server.bodies)) == (2, 3)
    assert server.bodies == [b'{"a": 1}'] * 3
    assert [event.content for event in read_events(found[0].answer)] == [{"output_ids": 5}]
    answer = found[0].answer
    assert answer.ended_at - answer.started_at >= 2 * closed_loop.RETRY_S


@pytest.mark.parametrize(("concurrency", "expected"), [(1, 1), (3, 3), (20, 8)])
async def test_as_many_at_once_as_asked_for(concurrency: int, expected: int) -> None:
    """Never more than the concurrency, and all of it is used."""
    server = Server([event_stream([{"output_ids": 5}] * 4)])
    done: list[tuple[int, int]] = []
    async with server.running() as url:
        found = await closed_loop.run(
            url,
            [request(url)] * 8,
            concurrency=concurrency,
            timeout_s=5,
            on_progress=lambda *counts: done.append(counts),
        )
    assert len(found) == len(server.bodies) == 8
    assert server.most_at_once == expected
    assert done[-1] == (8, 8)
