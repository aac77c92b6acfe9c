"""The generate client against a loopback server that fails in every way Triton can fail."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager

import pytest

from cog_triton.errors import (
    CogTritonError,
    PromptTooLong,
    TritonIncompleteStream,
    TritonMalformedEvent,
    TritonMalformedJSON,
    TritonTimeout,
    TritonUnavailable,
    TritonUnknownError,
    UnsupportedInput,
)
from cog_triton.generate_client import GenerateClient
from cog_triton.generate_request import GenerateRequest, Sampling
from cog_triton.settings import ClientSettings

END_ID = 2
REQUEST = GenerateRequest(input_ids=[5, 6], max_tokens=4, end_ids=[END_ID], pad_id=0)
Answer = Callable[[asyncio.StreamWriter], "asyncio.Future[None] | None"]


class FakeTriton:
    """Answers each request with the given bytes, a piece at a time; may break off or stall."""

    def __init__(self, *pieces: bytes | float, finish: bool = True) -> None:
        self.pieces = pieces
        self.finish = finish
        self.bodies: list[dict[str, object]] = []
        self.disconnected = asyncio.Event()

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length:")[2].split()[0])
        self.bodies.append(json.loads(await reader.readexactly(length)))
        try:
            for piece in self.pieces:
                if isinstance(piece, float):
                    await asyncio.wait_for(reader.read(1), piece)
                    self.disconnected.set()
                    return
                writer.write(piece)
                await writer.drain()
        except asyncio.TimeoutError:
            pass
        finally:
            if self.finish:
                writer.write(b"0\r\n\r\n")
            writer.close()


@asynccontextmanager
async def serving(fake: FakeTriton, **timeouts: float) -> AsyncIterator[GenerateClient]:
    server = await asyncio.start_server(fake, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    client = GenerateClient(f"http://127.0.0.1:{port}", ClientSettings(**timeouts))
    try:
        yield client
    finally:
        await client.aclose()
        server.close()


def head(status: str = "200 OK", kind: str = "text/event-stream") -> bytes:
    return (
        f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nTransfer-Encoding: chunked\r\n\r\n"
    ).encode()


def chunk(data: bytes) -> bytes:
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


def event(**fields: object) -> bytes:
    return chunk(b"data: " + json.dumps(fields).encode() + b"\n\n")


async def collect(client: GenerateClient, request: GenerateRequest = REQUEST) -> list[int]:
    return [token async for ids in client.stream(request) for token in ids]


@pytest.mark.parametrize(
    ("pieces", "error", "words"),
    [
        (
            [head("400 Bad Request", "application/json"), chunk(b'{"error":"no such model"}')],
            TritonUnknownError,
            "HTTP 400: no such model",
        ),
        (
            [head("400 Bad Request"), event(error="E1105 UnsupportedInput: beam_width is not.")],
            UnsupportedInput,
            "beam_width is not.",
        ),
        ([head("500 Oops", "text/plain"), chunk(b"boom")], TritonUnknownError, "HTTP 500: boom"),
        ([head(), event(error="E1002 PromptTooLong: too long.")], PromptTooLong, "too long"),
        ([head(), event(error="the model has died")], TritonUnknownError, "the model has died"),
        ([head(), event(error="E1105 SystemExit: x")], TritonUnknownError, "SystemExit"),
        ([head(), chunk(b"data: {nonsense\n\n")], TritonMalformedJSON, "nonsense"),
        ([head(), chunk(b"data: [1]\n\n")], TritonMalformedEvent, "object"),
        ([head(), event(sequence_length=1)], TritonMalformedEvent, "output_ids"),
        ([head(), event(output_ids="7")], TritonMalformedEvent, "output_ids"),
        ([head(), event(output_ids=[1, "2"])], TritonMalformedEvent, "output_ids"),
        ([head()], TritonIncompleteStream, "after 0 of at most 4"),
        ([head(), event(output_ids=[7, 8])], TritonIncompleteStream, "after 2 of at most 4"),
        (
            [
                head(),
                event(output_ids=7, num_output_tokens=1),
                event(output_ids=9, num_output_tokens=3),
            ],
            TritonIncompleteStream,
            "has sent 3 tokens, but 2 arrived",
        ),
    ],
)
async def test_failures(pieces: list[bytes], error: type[CogTritonError], words: str) -> None:
    """Each way to fail ends with its own error, before and inside the stream."""
    async with serving(FakeTriton(*pieces)) as client:
        with pytest.raises(error) as caught:
            await collect(client)
    assert type(caught.value) is error
    assert words in str(caught.value)


async def test_a_broken_connection_is_an_error() -> None:
    """A server that dies in the middle of a stream is never an end of the answer."""
    fake = FakeTriton(head(), event(output_ids=[7, END_ID]), finish=False)
    async with serving(fake) as client:
        with pytest.raises(TritonUnavailable, match="closed the connection"):
            await collect(client)


async def test_nobody_listens() -> None:
    """A refused connection is told apart from a failed request."""
    client = GenerateClient("http://127.0.0.1:1", ClientSettings())
    with pytest.raises(TritonUnavailable, match="accept"):
        await collect(client)
    await client.aclose()


async def test_no_first_token_in_time() -> None:
    """The deadline of the first token is the one of the settings."""
    async with serving(FakeTriton(30.0), first_token_timeout_s=0.1, token_timeout_s=20) as client:
        with pytest.raises(TritonTimeout, match=r"0\.1 s"):
            await collect(client)


async def test_a_stall_between_tokens() -> None:
    """After the first token the shorter deadline between tokens holds."""
    fake = FakeTriton(head(), event(output_ids=7), 30.0)
    async with serving(fake, first_token_timeout_s=20, token_timeout_s=0.1) as client:
        with pytest.raises(TritonTimeout, match=r"0\.1 s"):
            await asyncio.wait_for(collect(client), 10)


async def test_closing_the_stream_closes_the_connection() -> None:
    """Leaving the stream early is how Triton learns of it."""
    fake = FakeTriton(head(), event(output_ids=7), 10.0)
    async with serving(fake) as client:
        async with aclosing(client.stream(REQUEST)) as chunks:
            async for ids in chunks:
                assert ids == [7]
                break
        await asyncio.wait_for(fake.disconnected.wait(), 5)


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
async def test_cuts_do_not_matter(size: int) -> None:
    """Scalars, lists and empty lists of ids arrive whole, however the bytes are cut."""
    events = b"".join(
        [
            b'data: {"output_ids":7,"num_output_tokens":1}\r\n\r\n',
            b'data: {"output_ids":[],"num_output_tokens":1}\n\n',
            b'data: {"output_ids":[8,9],"num_output_tokens":3}\n\n',
            b'data: {"output_ids":2,"num_output_tokens":4}\n\n',
        ]
    )
    pieces = [chunk(events[start : start + size]) for start in range(0, len(events), size)]
    async with serving(FakeTriton(head(), *pieces)) as client:
        assert await collect(client) == [7, 8, 9, 2]


async def test_the_body_has_contract_names_only() -> None:
    """Greedy decoding is top_k 1, further end ids are stop words, and unset values stay away."""
    fake = FakeTriton(head(), event(output_ids=[END_ID]))
    request = GenerateRequest([5], 4, [END_ID, 9, 8], 0, sampling=Sampling(temperature=0.0, seed=0))
    async with serving(fake) as client:
        await collect(client, request)
    assert fake.bodies == [
        {
            "input_ids": [5],
            "input_lengths": 1,
            "request_output_len": 4,
            "streaming": True,
            "end_id": END_ID,
            "pad_id": 0,
            "return_num_output_tokens": True,
            "runtime_top_k": 1,
            "seed": 0,
            "stop_words_list": [9, 8, 1, 2],
        }
    ]
