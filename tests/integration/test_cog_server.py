"""The whole way through the real Cog server: streaming, concurrency, cancel, errors."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from cog_triton.sse import SSEDecoder
from tests.conftest import MAX_SEQ_LEN, RunningCog

FREE_WITHIN_S = 3.0
Json = dict[str, Any]


@pytest.fixture
async def http(cog: RunningCog) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=cog.url, timeout=60, trust_env=False) as client:
        yield client


async def predict(http: httpx.AsyncClient, **inputs: object) -> Json:
    """A JSON prediction; the 409 of simultaneous arrivals is tried again, as clients do."""
    while True:
        response = await http.post("/predictions", json={"input": inputs})
        if response.status_code != httpx.codes.CONFLICT:
            return dict(response.json())


async def events(
    http: httpx.AsyncClient, **inputs: object
) -> AsyncGenerator[tuple[float, Json], None]:
    """The events of a streamed prediction with the time of each."""
    headers = {"Accept": "text/event-stream"}
    while True:
        decoder = SSEDecoder()
        async with http.stream(
            "POST", "/predictions", json={"input": inputs}, headers=headers
        ) as response:
            if response.status_code == httpx.codes.CONFLICT:
                continue
            assert response.status_code == httpx.codes.OK
            async for chunk in response.aiter_raw():
                for payload in decoder.feed(chunk):
                    yield time.monotonic(), json.loads(payload)
        return


async def until_active(cog: RunningCog, expected: int) -> None:
    deadline = time.monotonic() + FREE_WITHIN_S
    while await cog.num_active() != expected:
        assert time.monotonic() < deadline, "the engine's slot is not freed"
        await asyncio.sleep(0.02)


async def until_running(cog: RunningCog) -> None:
    deadline = time.monotonic() + FREE_WITHIN_S
    while await cog.num_active() == 0:
        assert time.monotonic() < deadline, "the request never started"
        await asyncio.sleep(0.01)


@asynccontextmanager
async def webhook(received: asyncio.Queue[Json]) -> AsyncIterator[str]:
    """A loopback server that puts each JSON body it gets into the queue."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length:")[2].split()[0])
        received.put_nowait(json.loads(await reader.readexactly(length)))
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
    finally:
        server.close()


@pytest.mark.parametrize(
    ("inputs", "code"),
    [
        ({}, "E1001"),
        ({"prompt": "   "}, "E1001"),
        ({"prompt": "word " * 2 * MAX_SEQ_LEN}, "E1002"),
        ({"prompt": "x", "prompt_template": "no placeholder"}, "E1003"),
        ({"prompt": "x", "prompt_template": "{prompt} {other}"}, "E1004"),
        ({"prompt": "x", "min_tokens": 3, "min_new_tokens": 3}, "E1101"),
        ({"prompt": "x", "min_tokens": -1}, "E1101"),
        ({"prompt": "x", "max_tokens": -1}, "E1102"),
        ({"prompt": "x", "temperature": -1}, "E1103"),
        ({"prompt": "x", "seed": -1}, "E1103"),
        ({"messages": [{"role": "alien", "content": "x"}]}, "E1104"),
        ({"messages": [{"content": "x"}]}, "E1104"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "E1105"),
        ({"prompt": "x", "stop_sequences": '["a", 1]'}, "E1000"),
        ({"prompt": "\u0004", "prompt_template": "{prompt}"}, "E1001"),
    ],
)
async def test_bad_input_ends_with_its_code(
    http: httpx.AsyncClient, inputs: Json, code: str
) -> None:
    """The error shows the code and what to do, no traceback, and the next prediction is fine."""
    failed = await predict(http, **inputs)
    assert failed["status"] == "failed"
    assert f"{code} " in failed["error"]
    assert "Traceback" not in json.dumps(failed)
    assert (await predict(http, prompt="Hi", max_tokens=2))["status"] == "succeeded"


async def test_a_body_that_is_no_utf8(http: httpx.AsyncClient) -> None:
    """coglet refuses it before it reaches us; the server goes on."""
    body = b'{"input": {"prompt": "\xff\xfe"}}'
    refused = await http.post(
        "/predictions", content=body, headers={"Content-Type": "application/json"}
    )
    assert refused.status_code == httpx.codes.BAD_REQUEST
    assert (await predict(http, prompt="Hi", max_tokens=2))["status"] == "succeeded"


async def test_wrong_types_are_refused_by_the_schema(http: httpx.AsyncClient) -> None:
    """The schema is loaded: a text where a number belongs is a 422 that names the input."""
    refused = await http.post("/predictions", json={"input": {"prompt": "x", "max_tokens": "many"}})
    assert refused.status_code == httpx.codes.UNPROCESSABLE_ENTITY
    assert "max_tokens" in refused.text


async def test_text_streams_while_it_is_generated(http: httpx.AsyncClient) -> None:
    """Pieces arrive over the time of the generation, and together they are the output."""
    seen = [
        pair async for pair in events(http, prompt="Tell me a story.", max_tokens=60, min_tokens=60)
    ]
    pieces = [(at, event["chunk"]) for at, event in seen if "chunk" in event]
    final = seen[-1][1]
    assert final["status"] == "succeeded"
    assert len(pieces) >= 20
    assert "".join(final["output"]) == "".join(text for _at, text in pieces)
    span_s = seen[-1][0] - pieces[0][0]
    assert pieces[len(pieces) // 2][0] - pieces[0][0] > span_s / 5


async def test_metrics(http: httpx.AsyncClient) -> None:
    """Token counts, times and the finish reason are part of every prediction."""
    answer = await predict(http, prompt="Tell me a story.", max_tokens=12, min_tokens=12)
    metrics = answer["metrics"]
    assert metrics["output_token_count"] == 12
    assert metrics["input_token_count"] > 5
    assert 0 < metrics["time_to_first_token"] < answer["metrics"]["predict_time"]
    assert metrics["tokens_per_second"] > 0
    assert metrics["finish_reason"] == "length"


async def test_the_same_seed_gives_the_same_text(http: httpx.AsyncClient) -> None:
    """A seed repeats a prediction, 0 too; the seed that was drawn is in the log."""
    inputs = {"prompt": "Tell me a story.", "max_tokens": 24, "temperature": 1.0}
    first, second = [await predict(http, **inputs, seed=0) for _ in range(2)]
    assert first["output"] == second["output"]
    drawn = await predict(http, **inputs)
    seed = int(drawn["logs"].partition("seed: ")[2].split()[0])
    assert (await predict(http, **inputs, seed=seed))["output"] == drawn["output"]


async def test_a_stop_sequence_ends_the_answer(cog: RunningCog, http: httpx.AsyncClient) -> None:
    """The text ends before the sequence, and the engine does not go on behind it."""
    inputs = {"prompt": "Tell me a story.", "max_tokens": 60, "temperature": 0, "min_tokens": 60}
    whole = "".join((await predict(http, **inputs))["output"])
    stop = whole[40:46]
    cut = await predict(http, **inputs, stop_sequences=json.dumps([stop]))
    assert "".join(cut["output"]) == whole[: whole.index(stop)]
    assert cut["metrics"]["finish_reason"] == "stop"
    assert cut["metrics"]["output_token_count"] < 60
    await until_active(cog, 0)


async def test_bad_words_do_not_occur(http: httpx.AsyncClient) -> None:
    """The words are banned in every spelling of tokens."""
    answer = await predict(
        http, prompt="Tell me a story.", max_tokens=40, bad_words="the,a", temperature=1.0, seed=1
    )
    text = "".join(answer["output"])
    assert text
    assert "the" not in text
    assert "a" not in text


async def test_max_tokens_is_cut_to_the_context(http: httpx.AsyncClient) -> None:
    """The log says so, and the prediction uses the room that is there."""
    answer = await predict(http, prompt="one two " * 450, max_tokens=512, temperature=0)
    assert answer["status"] == "succeeded"
    assert "max_tokens cut from 512 to" in answer["logs"]
    metrics = answer["metrics"]
    assert metrics["input_token_count"] + metrics["output_token_count"] <= MAX_SEQ_LEN


async def test_messages_and_system_prompt(http: httpx.AsyncClient) -> None:
    """A conversation renders through the chat template; a system prompt changes the prompt."""
    plain = await predict(http, prompt="Hi", max_tokens=2, temperature=0)
    talk = await predict(
        http,
        messages=[
            {"role": "user", "content": "Hi"},
            {"role": "assistant", "content": "Hello!"},
            {"role": "user", "content": "Who are you?"},
        ],
        max_tokens=2,
    )
    told = await predict(
        http, prompt="Hi", system_prompt="Answer in one word, always, please.", max_tokens=2
    )
    counts = [answer["metrics"]["input_token_count"] for answer in (plain, talk, told)]
    assert talk["status"] == told["status"] == "succeeded"
    assert len(set(counts)) == 3


async def test_a_prompt_template_replaces_the_chat_template(http: httpx.AsyncClient) -> None:
    """Only what the template says is sent to the model."""
    answer = await predict(http, prompt="Hi", prompt_template="{prompt}", max_tokens=2)
    assert answer["metrics"]["input_token_count"] == 1


async def test_sixteen_predictions_stream_interleaved(http: httpx.AsyncClient) -> None:
    """16 at once all stream, and their pieces come in turns and not one after the other."""
    order: list[int] = []
    finals: list[str] = []

    async def run(name: int) -> None:
        async for _at, event in events(http, prompt=f"Story {name}", max_tokens=48, min_tokens=48):
            if "chunk" in event:
                order.append(name)
            elif "output" in event:
                finals.append(event["status"])

    await asyncio.gather(*(run(name) for name in range(16)))
    assert finals == ["succeeded"] * 16
    first_end = min(len(order) - 1 - order[::-1].index(name) for name in range(16))
    assert len(set(order[: first_end + 1])) == 16


async def test_a_dropped_connection_frees_the_slot(
    cog: RunningCog, http: httpx.AsyncClient
) -> None:
    """Who leaves the stream does not keep the engine busy."""
    stream = events(http, prompt="Tell me a story.", max_tokens=900, min_tokens=900)
    async for _at, event in stream:
        if "chunk" in event:
            break
    await until_running(cog)
    await stream.aclose()
    await until_active(cog, 0)


async def test_a_cancel_call_frees_the_slot(cog: RunningCog, http: httpx.AsyncClient) -> None:
    """POST …/cancel ends the request in the engine and the prediction as canceled."""
    received: asyncio.Queue[Json] = asyncio.Queue()
    async with webhook(received) as url:
        accepted = await http.put(
            "/predictions/to-be-canceled",
            json={
                "input": {"prompt": "Tell me a story.", "max_tokens": 900, "min_tokens": 900},
                "webhook": url,
                "webhook_events_filter": ["completed"],
            },
            headers={"Prefer": "respond-async"},
        )
        assert accepted.status_code == httpx.codes.ACCEPTED
        await until_running(cog)
        cancelled = await http.post("/predictions/to-be-canceled/cancel")
        assert cancelled.status_code == httpx.codes.OK
        await until_active(cog, 0)
        assert (await asyncio.wait_for(received.get(), 10))["status"] == "canceled"


async def test_an_asynchronous_prediction_reports_by_webhook(http: httpx.AsyncClient) -> None:
    """`Prefer: respond-async` answers at once; the webhook gets the whole answer."""
    received: asyncio.Queue[Json] = asyncio.Queue()
    async with webhook(received) as url:
        body = {"input": {"prompt": "Hi", "max_tokens": 4}, "webhook": url}
        accepted = await http.post("/predictions", json=body, headers={"Prefer": "respond-async"})
        assert accepted.status_code == httpx.codes.ACCEPTED
        while (report := await asyncio.wait_for(received.get(), 20))["status"] != "succeeded":
            pass
    assert report["metrics"]["output_token_count"] > 0
    assert "".join(report["output"])
