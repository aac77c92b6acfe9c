"""What an answer says: its HTTP framing taken off, its events with the time of each."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import h11

from benchmarks.load.raw_answer import RawAnswer
from cog_triton.sse import SSEDecoder

OK = 200


class BadAnswer(Exception):
    """The answer is an error, or no answer at all; the text is for the user."""


@dataclass(frozen=True)
class Event:
    """One JSON object and when its last byte came, in seconds on the clock of the answer."""

    at: float
    content: dict[str, Any]


def read_events(answer: RawAnswer) -> list[Event]:
    """The events of a stream, or the whole of a plain JSON answer as the only one.

    Raises BadAnswer for an error status, an error event (Triton sends errors that arise during
    inference inside a stream of status 200), broken framing, and what is no JSON object.
    """
    if answer.error:
        raise BadAnswer(answer.error)
    if not answer.pieces:
        raise BadAnswer("the connection closed before the answer")
    response, pieces = _unframe(answer)
    kind = dict(response.headers).get(b"content-type", b"")
    if kind.startswith(b"text/event-stream"):
        decoder = SSEDecoder()
        found = [(at, data) for at, piece in pieces for data in decoder.feed(piece)]
    else:
        found = [(answer.ended_at, b"".join(piece for _at, piece in pieces))]
    if response.status_code != OK:
        text = found[0][1] if found else b"".join(piece for _at, piece in pieces)
        raise BadAnswer(f"HTTP {response.status_code}: {_short(text)}")
    events = [Event(at, _object(data)) for at, data in found]
    for event in events:
        if event.content.get("error"):
            raise BadAnswer(str(event.content["error"]))
    return events


def _unframe(answer: RawAnswer) -> tuple[h11.Response, list[tuple[float, bytes]]]:
    """The status and headers, and the pieces of the body with their times."""
    connection = h11.Connection(h11.CLIENT)
    connection.send(h11.Request(method="POST", target="/", headers=[("Host", "-")]))
    connection.send(h11.EndOfMessage())
    response = None
    pieces = []
    try:
        for at, data in [*answer.pieces, (answer.ended_at, b"")]:
            connection.receive_data(data)
            event = connection.next_event()
            while event is not h11.NEED_DATA:
                if isinstance(event, h11.Response):
                    response = event
                elif isinstance(event, h11.Data):
                    pieces.append((at, bytes(event.data)))
                elif isinstance(event, h11.EndOfMessage) and response is not None:
                    return response, pieces
                event = connection.next_event()
    except h11.RemoteProtocolError as err:
        raise BadAnswer(f"the connection closed in the middle of the answer: {err}") from err
    raise BadAnswer("the connection closed before the answer")


def _object(data: bytes) -> dict[str, Any]:
    try:
        content = json.loads(data)
    except ValueError as err:
        raise BadAnswer(f"no JSON: {_short(data)}") from err
    if not isinstance(content, dict):
        raise BadAnswer(f"no JSON object: {_short(data)}")
    return content


def _short(data: bytes) -> str:
    """The text of an error body: its `error` or `detail` if it has one, else its beginning."""
    try:
        content = json.loads(data)
        return str(content.get("error") or content["detail"])
    except (ValueError, KeyError, AttributeError):
        return data[:200].decode("utf-8", "replace").strip()
