"""A fixed number of requests under way at any time, until all have been answered."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from benchmarks.load.raw_answer import RawAnswer, post

CONFLICT = 409
RETRY_S = 0.01
TICK_S = 1.0
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Attempted:
    """One request's answer; `num_conflicts` is how often it was sent again after a 409.

    The time of the answer starts with the first attempt: waiting for a slot is part of it.
    """

    answer: RawAnswer
    num_conflicts: int


async def run(
    url: str,
    requests: Sequence[bytes],
    *,
    concurrency: int,
    timeout_s: float,
    on_progress: Progress = lambda _done, _total: None,
) -> list[Attempted]:
    """Send all requests, `concurrency` at a time; the answers as they ended.

    `on_progress(done, total)` is called once a second and at the end. Nothing is raised for a
    failed request: its answer says what happened.
    """
    waiting = iter(requests)
    done: list[Attempted] = []
    ticker = asyncio.create_task(_tick(done, len(requests), on_progress))
    try:
        workers = min(concurrency, len(requests))
        await asyncio.gather(*(_work(url, waiting, done, timeout_s) for _ in range(workers)))
    finally:
        ticker.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await ticker
    on_progress(len(done), len(requests))
    return done


async def _work(
    url: str, waiting: Iterator[bytes], done: list[Attempted], timeout_s: float
) -> None:
    for request in waiting:
        done.append(await _send(url, request, timeout_s))


async def _send(url: str, request: bytes, timeout_s: float) -> Attempted:
    """One request; Cog answers 409 while all slots are taken, and that is tried again."""
    started_at = time.perf_counter()
    num_conflicts = 0
    while True:
        answer = await post(url, request, timeout_s)
        waited_s = answer.ended_at - started_at
        if answer.status != CONFLICT or waited_s > timeout_s:
            answer.started_at = started_at
            return Attempted(answer, num_conflicts)
        num_conflicts += 1
        await asyncio.sleep(RETRY_S)


async def _tick(done: list[Attempted], total: int, on_progress: Progress) -> None:
    while True:
        await asyncio.sleep(TICK_S)
        on_progress(len(done), total)
