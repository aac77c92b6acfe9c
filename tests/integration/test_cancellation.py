"""A prediction that is cancelled, at whatever moment, frees its slot and leaves nothing."""

from __future__ import annotations

import asyncio
import contextlib
import random
import statistics
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from typing import Any

import httpx

from cog_triton import cog_bridge, inputs
from cog_triton.deployment import model_limits
from cog_triton.engine import plan_engine
from cog_triton.generate_request import GenerateRequest
from cog_triton.prediction import Report, TextGenerator
from cog_triton.text.tokenizer import Tokenizer
from tests.cancel_storm import NUM_AT_ONCE, WAYS, Footprint, storm
from tests.conftest import Running, RunningCog, RunningTriton

FREE_WITHIN_S = 0.2
SETTLED_WITHIN_S = 5.0
NUM_CANCELS = 60
# Connections that are kept for the next request, and threads that start when first needed.
SLACK = 2 * NUM_AT_ONCE


async def until_active(running: Running, is_reached: Callable[[int], bool]) -> float:
    """Wait for a number of requests in the engine; the seconds that it took."""
    started_at = time.monotonic()
    while not is_reached(num := await running.num_active()):
        assert time.monotonic() - started_at < SETTLED_WITHIN_S, f"{num} requests are active"
        await asyncio.sleep(0.005)
    return time.monotonic() - started_at


def request(triton: RunningTriton) -> GenerateRequest:
    return GenerateRequest(
        [5, 6, 7], 900, triton.model.end_ids, triton.model.pad_id, min_tokens=900
    )


@asynccontextmanager
async def endless(triton: RunningTriton, num: int) -> AsyncIterator[list[asyncio.Task[None]]]:
    """Requests that would run for long, in the engine; cancelled at the end."""

    async def run() -> None:
        async with aclosing(triton.client.stream(request(triton))) as chunks:
            async for _ids in chunks:
                pass

    tasks = [asyncio.create_task(run()) for _ in range(num)]
    try:
        yield tasks
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def test_the_slot_is_free_within_200_ms(triton: RunningTriton) -> None:
    """From the cancel to an engine without requests, as Triton's metrics show it."""
    times_s = []
    for _ in range(5):
        async with endless(triton, 1):
            await until_active(triton, lambda num: num == 1)
        times_s.append(await until_active(triton, lambda num: num == 0))
    assert statistics.median(times_s) < FREE_WITHIN_S, times_s


async def test_a_request_that_waits_for_a_slot_is_cancelled(triton: RunningTriton) -> None:
    """More than the batch holds: the one that is behind goes, the others run on."""
    num_slots = triton.config.engine.max_batch_size
    async with endless(triton, num_slots):
        await until_active(triton, lambda num: num == num_slots)
        async with endless(triton, 1):
            await until_active(triton, lambda num: num == num_slots + 1)
        await until_active(triton, lambda num: num == num_slots)
    await until_active(triton, lambda num: num == 0)


async def test_no_task_is_left_of_predictions_that_were_left(triton: RunningTriton) -> None:
    """Random moments, from before the first token to the end, in the process of the predictor."""
    generator = TextGenerator(
        await asyncio.to_thread(Tokenizer.load, triton.model.path),
        triton.client,
        model_limits(plan_engine(triton.config, triton.model)),
        triton.config.prompt,
    )
    values = {"prompt": "Tell me a story.", "max_tokens": 20}
    rng = random.Random(1)
    before = asyncio.all_tasks()

    def pieces() -> AsyncGenerator[str, None]:
        return generator.stream(inputs.check(values), Report(), log=lambda _line: None)

    async def cancel_after(seconds: float) -> None:
        async def read() -> None:
            async with aclosing(pieces()) as stream:
                async for _piece in stream:
                    pass

        task = asyncio.create_task(read())
        await asyncio.sleep(seconds)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task

    async def leave_after(seconds: float) -> None:
        stream = await cog_bridge.stream(pieces())
        await asyncio.to_thread(next, stream, None)
        await asyncio.sleep(seconds)
        await asyncio.to_thread(stream.close)

    for way in (cancel_after, leave_after):
        await asyncio.gather(*(way(0.4 * rng.random()) for _ in range(NUM_AT_ONCE)))
    await until_active(triton, lambda num: num == 0)
    deadline = time.monotonic() + SETTLED_WITHIN_S
    while left := asyncio.all_tasks() - before:
        assert time.monotonic() < deadline, left
        await asyncio.sleep(0.01)


async def until_settled(cog: RunningCog, most: Footprint) -> Footprint:
    """What is held when it is no more than `most`, or after a while."""
    deadline = time.monotonic() + SETTLED_WITHIN_S
    while True:
        now = Footprint.of(cog.server.pid)
        grown = (
            now.num_files > most.num_files
            or now.num_threads > most.num_threads
            or now.num_regions > most.num_regions
        )
        if not grown or time.monotonic() >= deadline:
            return now
        await asyncio.sleep(0.1)


async def test_random_cancels_leave_nothing(cog: RunningCog) -> None:
    """Dropped connections, cancel calls, stop sequences and ends in between: no request stays
    in the engine, no file, thread or shared memory is lost, and the next prediction succeeds."""
    await storm(cog.url, 4 * len(WAYS), seed=0)
    await until_active(cog, lambda num: num == 0)
    before = Footprint.of(cog.server.pid)
    ways = await storm(cog.url, NUM_CANCELS, seed=1)
    assert set(ways) == set(WAYS)
    await until_active(cog, lambda num: num == 0)
    most = Footprint(
        before.num_processes,
        before.num_threads + SLACK,
        before.num_files + 2 * SLACK,
        before.num_regions,
    )
    after = await until_settled(cog, most)
    assert after.num_processes == before.num_processes
    assert after.num_threads <= most.num_threads
    assert after.num_files <= most.num_files
    assert after.num_regions <= most.num_regions
    async with httpx.AsyncClient(base_url=cog.url, timeout=60, trust_env=False) as http:
        body = {"input": {"prompt": "Hi", "max_tokens": 2}}
        answer: dict[str, Any] = (await http.post("/predictions", json=body)).json()
        assert answer["status"] == "succeeded"
        assert (await http.get("/health-check")).json()["status"] == "READY"
