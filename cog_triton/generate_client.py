"""The client of Triton's generate endpoint: token ids in, chunks of new token ids out.

Everything that has arrived is handled as one piece. Closing the stream early closes
the connection, which is how Triton learns that the request is cancelled.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from http import HTTPStatus
from typing import Any

import aiohttp

from cog_triton import errors
from cog_triton.errors import (
    TritonIncompleteStream,
    TritonMalformedEvent,
    TritonMalformedJSON,
    TritonTimeout,
    TritonUnavailable,
    TritonUnknownError,
)
from cog_triton.generate_request import GenerateRequest
from cog_triton.settings import ClientSettings
from cog_triton.sse import SSEDecoder

_CODED = re.compile(r"\b(E[123]\d{3}) (\w+): (.*)", re.DOTALL)


class GenerateClient:
    """One pool of connections to one Triton server; close it with `aclose`.

    To be made on the event loop that uses it.
    """

    def __init__(self, base_url: str, timeouts: ClientSettings) -> None:
        self._timeouts = timeouts
        self._url = f"{base_url}/v2/models/tensorrt_llm/generate_stream"
        self._http = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0),
            timeout=aiohttp.ClientTimeout(
                sock_connect=timeouts.connect_timeout_s, sock_read=timeouts.first_token_timeout_s
            ),
            auto_decompress=False,
        )

    async def aclose(self) -> None:
        await self._http.close()

    async def stream(self, request: GenerateRequest) -> AsyncGenerator[list[int], None]:
        """Yield the new token ids of each read, until the answer is complete.

        Raises UserError subclasses that the slot reports, TritonUnavailable, TritonTimeout,
        TritonMalformedJSON, TritonMalformedEvent, and TritonIncompleteStream when the stream
        ends or skips before its last token.
        """
        decoder = SSEDecoder()
        answer = _Answer(request)
        async with self._open(request) as response:
            with _translated(self._timeouts.token_timeout_s):
                async for chunk in response.content.iter_any():
                    ids = answer.read(decoder.feed(chunk))
                    if ids:
                        yield ids
        if last := answer.finish():
            yield last

    @asynccontextmanager
    async def _open(self, request: GenerateRequest) -> AsyncIterator[aiohttp.ClientResponse]:
        """The response with its headers, which Triton sends together with the first token."""
        first_s = self._timeouts.first_token_timeout_s
        with _translated(first_s):
            response = await self._http.post(self._url, json=request.payload())
        try:
            if response.status != HTTPStatus.OK:
                with _translated(first_s):
                    raise _error_from(await response.read(), response.status)
            connection = response.connection
            if connection is not None and connection.protocol is not None:
                connection.protocol.read_timeout = self._timeouts.token_timeout_s
                connection.protocol.start_timeout()  # the one that runs is the first token's
            yield response
        finally:
            # An answer that has not ended is cancelled by closing its connection.
            if response.content.at_eof():
                response.release()
            else:
                response.close()


class _Answer:
    """What has arrived of one answer; knows when ids are missing and when it is whole.

    TensorRT-LLM's own sampler keeps the end id to itself, and its last response is empty; that
    id is put back here, so that an answer ends in the same way on every runtime.
    """

    def __init__(self, request: GenerateRequest) -> None:
        self._end_id = request.end_ids[0]
        self._end_ids = frozenset(request.end_ids)
        self._max_tokens = request.max_tokens
        self._num_tokens = 0
        self._ended = False
        self._last_empty = False

    def read(self, payloads: list[bytes]) -> list[int]:
        """The ids of the events, checked against the count that each event carries."""
        new: list[int] = []
        for payload in payloads:
            event = _decode(payload)
            ids = _ids(event)
            new += ids
            self._num_tokens += len(ids)
            counted = event.get("num_output_tokens")
            # The C++ backend counts the tokens of one response, the Python runtimes all so far.
            if isinstance(counted, int) and counted not in (self._num_tokens, len(ids)):
                raise TritonIncompleteStream(
                    f"The engine has sent {counted} tokens, but {self._num_tokens} arrived."
                )
            self._last_empty = not ids
            if ids:
                self._ended = ids[-1] in self._end_ids
        return new

    def finish(self) -> list[int]:
        """The end id that the engine kept to itself, if it did; raises if the answer is not whole.

        Raises TritonIncompleteStream.
        """
        if self._ended or self._num_tokens >= self._max_tokens:
            return []
        if self._last_empty:
            return [self._end_id]
        raise TritonIncompleteStream(
            f"The stream ended after {self._num_tokens} of at most {self._max_tokens} tokens "
            "without an end token."
        )


def _decode(payload: bytes) -> dict[str, Any]:
    try:
        event = json.loads(payload)
    except ValueError as err:
        raise TritonMalformedJSON(f"not JSON: {payload[:200]!r}") from err
    if not isinstance(event, dict):
        raise TritonMalformedEvent(f"not an object: {payload[:200]!r}")
    if "error" in event:
        raise _error_with_text(str(event["error"]))
    return event


def _ids(event: dict[str, Any]) -> list[int]:
    """Triton turns a tensor of one element into a number, and of none into an empty list."""
    ids = event.get("output_ids")
    if isinstance(ids, int):
        return [ids]
    if isinstance(ids, list) and all(isinstance(token, int) for token in ids):
        return ids
    raise TritonMalformedEvent(f"output_ids is missing or no list of ids: {str(event)[:200]}")


def _error_from(body: bytes, status: int) -> errors.CogTritonError:
    """Triton answers JSON for a request it cannot parse, one event for one the model refuses."""
    payloads = SSEDecoder().feed(body) or [body]
    try:
        text = str(json.loads(payloads[0])["error"])
    except (ValueError, KeyError, TypeError):
        text = body[:500].decode("utf-8", "replace")
    return _error_with_text(text, status)


def _error_with_text(text: str, status: int | None = None) -> errors.CogTritonError:
    """The error that a runtime has put its code into, or an unknown one with Triton's text."""
    match = _CODED.search(text)
    if match:
        cls = getattr(errors, match[2], None)
        if isinstance(cls, type) and issubclass(cls, errors.CogTritonError):
            return cls(match[3])
    prefix = f"HTTP {status}: " if status else ""
    return TritonUnknownError(prefix + text)


@contextmanager
def _translated(deadline_s: float) -> Iterator[None]:
    """Turns aiohttp's errors into ours, where they arise."""
    try:
        yield
    except aiohttp.SocketTimeoutError as err:
        raise TritonTimeout(f"Triton sent nothing for {deadline_s:g} s.") from err
    except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as err:
        raise TritonUnavailable("Triton does not accept connections.") from err
    except (aiohttp.ClientError, OSError) as err:
        raise TritonUnavailable(
            f"Triton closed the connection: {err or type(err).__name__}."
        ) from err
