"""HTTP answers as bytes, as the servers send them, for the tests of the benchmark."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.load.closed_loop import Attempted
from benchmarks.load.raw_answer import RawAnswer

Json = Mapping[str, Any]


def event_stream(events: Sequence[Json], status: str = "200 OK") -> list[bytes]:
    """The head and then a chunk for each event, and the end; a piece each."""
    head = f"HTTP/1.1 {status}\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n"
    chunks = [f"data: {json.dumps(event)}\n\n".encode() for event in events]
    framed = [f"{len(chunk):x}\r\n".encode() + chunk + b"\r\n" for chunk in chunks]
    return [head.encode() + b"\r\n", *framed, b"0\r\n\r\n"]


def plain(content: Json | str, status: str = "200 OK") -> list[bytes]:
    """An answer with its length, in one piece."""
    body = content if isinstance(content, str) else json.dumps(content)
    kind = "text/plain" if isinstance(content, str) else "application/json"
    head = f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n"
    return [(head + body).encode()]


def answer(pieces: Sequence[bytes], *, started_at: float = 0.0, step_s: float = 1.0) -> RawAnswer:
    """The pieces, `step_s` apart from `started_at` on."""
    timed = [(started_at + step_s * at, piece) for at, piece in enumerate(pieces, start=1)]
    return RawAnswer(started_at, timed[-1][0] if timed else started_at, timed)


def attempted(pieces: Sequence[bytes], *, num_conflicts: int = 0, **times: float) -> Attempted:
    return Attempted(answer(pieces, **times), num_conflicts)
