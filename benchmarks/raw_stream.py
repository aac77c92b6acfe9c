"""A client that costs next to nothing: one raw connection a request, counting as bytes arrive.

The machine that serves is the machine that measures, so each microsecond of the client would
be taken from the server. Bodies are only searched for a marker; the last piece is kept.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

TAIL_BYTES = 4096
READ_BYTES = 1 << 16
CONFLICT = 409


@dataclass
class StreamTimes:
    """One answer: when it was asked for and when marked pieces arrived, in seconds."""

    started_at: float = 0.0
    arrivals: list[float] = field(default_factory=list)
    num_events: int = 0
    status: int = 0
    tail: bytes = b""

    @property
    def first_s(self) -> float:
        return self.arrivals[0] - self.started_at

    @property
    def last_s(self) -> float:
        return self.arrivals[-1] - self.started_at


async def run_all(
    host: str, port: int, path: str, bodies: Sequence[object], *, accept: str, marker: bytes
) -> list[StreamTimes]:
    """Send all requests at once; the times of each answer, in the order of `bodies`."""
    return await asyncio.gather(
        *(_run(host, port, path, body, accept=accept, marker=marker) for body in bodies)
    )


async def _run(
    host: str, port: int, path: str, body: object, *, accept: str, marker: bytes
) -> StreamTimes:
    started_at = time.perf_counter()
    while True:
        times = await _once(host, port, path, body, accept=accept, marker=marker)
        # coglet answers 409 to 1-3 % of simultaneous arrivals although slots are free.
        if times.status != CONFLICT:
            times.started_at = started_at
            return times


async def _once(
    host: str, port: int, path: str, body: object, *, accept: str, marker: bytes
) -> StreamTimes:
    times = StreamTimes()
    reader, writer = await asyncio.open_connection(host, port)
    try:
        payload = json.dumps(body).encode()
        head = (
            f"POST {path} HTTP/1.1\r\nHost: {host}\r\nAccept: {accept}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(payload)}\r\n"
            "Connection: close\r\n\r\n"
        )
        writer.write(head.encode() + payload)
        await _read(reader, times, marker)
    finally:
        writer.close()
    return times


async def _read(reader: asyncio.StreamReader, times: StreamTimes, marker: bytes) -> None:
    kept = b""
    while True:
        data = await reader.read(READ_BYTES)
        if not data:
            break
        if not times.status:
            times.status = int(data.split(b" ", 2)[1])
        window = kept + data
        found = window.count(marker)
        if found:
            times.arrivals.append(time.perf_counter())
            times.num_events += found
        # A marker cut in two is found with the next read, and none is counted twice.
        kept = window[len(window) - len(marker) + 1 :] if len(window) >= len(marker) else window
        times.tail = (times.tail + data)[-TAIL_BYTES:]
        if data.endswith(b"0\r\n\r\n"):
            break
