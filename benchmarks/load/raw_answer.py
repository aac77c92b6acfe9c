"""One request on a connection of its own: the bytes of the answer and when each piece came.

The machine that measures is often the machine that serves, so nothing is parsed while requests
run: bytes are kept with their times and read afterwards. A connection is used once, because a
reused one adds up to 40 ms to a stream's first event where the server does not set TCP_NODELAY
(coglet), and because both servers then end the answer with the end of the connection.
"""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass, field
from urllib.parse import urlsplit

READ_BYTES = 1 << 16


@dataclass
class RawAnswer:
    """What came back; times in seconds on time.perf_counter's clock. `error` is "" if it ended."""

    started_at: float
    ended_at: float = 0.0
    pieces: list[tuple[float, bytes]] = field(default_factory=list)
    error: str = ""

    @property
    def status(self) -> int:
        """The HTTP status, or 0 if no status line came."""
        line = self.pieces[0][1][:32].split(b" ", 2) if self.pieces else []
        return int(line[1]) if len(line) > 2 and line[1].isdigit() else 0


def request_bytes(url: str, path: str, body: object, *, accept: str) -> bytes:
    """A whole POST of a JSON body."""
    payload = json.dumps(body).encode()
    head = (
        f"POST {path} HTTP/1.1\r\nHost: {urlsplit(url).netloc}\r\nAccept: {accept}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(payload)}\r\n"
        "Connection: close\r\n\r\n"
    )
    return head.encode() + payload


async def post(url: str, request: bytes, timeout_s: float) -> RawAnswer:
    """Send the request and read until the server closes; failures are in the answer's `error`."""
    answer = RawAnswer(time.perf_counter())
    try:
        await asyncio.wait_for(_exchange(url, request, answer), timeout_s)
    except asyncio.TimeoutError:
        answer.error = f"no whole answer within {timeout_s:g} s"
    except OSError as err:
        answer.error = f"connection failed: {err.strerror or err or type(err).__name__}"
    answer.ended_at = time.perf_counter()
    return answer


async def _exchange(url: str, request: bytes, answer: RawAnswer) -> None:
    parts = urlsplit(url)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port or 80)
    try:
        writer.write(request)
        while data := await reader.read(READ_BYTES):
            answer.pieces.append((time.perf_counter(), data))
    finally:
        writer.close()
