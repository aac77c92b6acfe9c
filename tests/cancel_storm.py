"""Many predictions that end at random moments, and a count of what they leave behind.

The tests run a short storm. A long one on a server of its own, with the counts before and after:

    .venv/bin/python -m tests.cancel_storm --num 1000
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from cog_triton import process_tree
from cog_triton.cog_server import CogServer

NUM_AT_ONCE = 6
MAX_TOKENS = 200
LONGEST_S = 0.8
PROMPT = "Tell me a story."


@dataclass(frozen=True)
class Footprint:
    """What a server and the processes below it hold; regions are those of shared memory."""

    num_processes: int
    num_threads: int
    num_files: int
    num_regions: int

    @classmethod
    def of(cls, parent: int) -> Footprint:
        pids = [parent, *process_tree.descendants(parent)]
        return cls(
            num_processes=len(pids),
            num_threads=sum(_count(f"/proc/{pid}/task") for pid in pids),
            num_files=sum(_count(f"/proc/{pid}/fd") for pid in pids),
            num_regions=len({region for pid in pids for region in _regions(pid)}),
        )


def _regions(pid: int) -> set[str]:
    maps = Path(f"/proc/{pid}/maps").read_text(encoding="utf-8", errors="replace")
    return {line.split(maxsplit=5)[-1] for line in maps.splitlines() if " /dev/shm/" in line}


def _count(directory: str) -> int:
    return len(list(Path(directory).iterdir()))


async def storm(url: str, num: int, *, seed: int) -> Counter[str]:
    """Runs `num` predictions, NUM_AT_ONCE at a time; how often each way to end was taken."""
    rng = random.Random(seed)
    ways = [rng.choice(list(WAYS)) for _ in range(num)]
    limit = asyncio.Semaphore(NUM_AT_ONCE)
    # Most are cancelled early, some before the request has reached the engine.
    moments = [LONGEST_S * rng.random() ** 2 for _ in range(num)]

    async with httpx.AsyncClient(base_url=url, timeout=60, trust_env=False) as http:

        async def run(number: int) -> None:
            async with limit:
                await WAYS[ways[number]](http, f"storm-{seed}-{number}", moments[number])

        await asyncio.gather(*(run(number) for number in range(num)))
    return Counter(ways)


async def _drop(http: httpx.AsyncClient, _name: str, after_s: float) -> None:
    """The client of a stream goes away."""

    async def read() -> None:
        headers = {"Accept": "text/event-stream"}
        body = {"input": _inputs()}
        async with http.stream("POST", "/predictions", json=body, headers=headers) as response:
            async for _chunk in response.aiter_raw():
                pass

    task = asyncio.create_task(read())
    await asyncio.sleep(after_s)
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


async def _call(http: httpx.AsyncClient, name: str, after_s: float) -> None:
    """The cancel call for a prediction that runs by itself."""
    body = {"input": _inputs()}
    headers = {"Prefer": "respond-async"}
    while True:
        answer = await http.put(f"/predictions/{name}", json=body, headers=headers)
        if answer.status_code != httpx.codes.CONFLICT:
            break
        await asyncio.sleep(0.01)
    assert answer.status_code == httpx.codes.ACCEPTED, answer.text
    await asyncio.sleep(after_s)
    await http.post(f"/predictions/{name}/cancel")


async def _stop(http: httpx.AsyncClient, _name: str, _after_s: float) -> None:
    """A stop sequence ends the answer in the middle."""
    await _whole(http, stop_sequences=json.dumps([" the"]))


async def _last_token(http: httpx.AsyncClient, name: str, after_s: float) -> None:
    """A short answer, cancelled about when it ends by itself."""
    task = asyncio.create_task(_whole(http, max_tokens=3, min_tokens=3))
    await asyncio.sleep(after_s / 4)
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    del name


async def _whole(http: httpx.AsyncClient, **inputs: object) -> None:
    answer: dict[str, Any] = {}
    while not answer:
        response = await http.post("/predictions", json={"input": _inputs(**inputs)})
        if response.status_code != httpx.codes.CONFLICT:
            answer = response.json()
    assert answer["status"] == "succeeded", answer


def _inputs(**inputs: object) -> dict[str, object]:
    return {"prompt": PROMPT, "max_tokens": MAX_TOKENS, "min_tokens": 100, **inputs}


WAYS = {"drop": _drop, "call": _call, "stop": _stop, "last token": _last_token}


def main() -> int:
    from tests.conftest import READY_TIMEOUT_S, environment, free_ports

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--num", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        environ = environment(Path(directory) / "run")
        server = CogServer(free_ports(1)[0], concurrency=24, environment=environ)
        try:
            server.wait_ready(READY_TIMEOUT_S)
            asyncio.run(storm(server.url, 60, seed=0))
            before = Footprint.of(server.pid)
            ways = asyncio.run(storm(server.url, options.num, seed=options.seed))
            print(f"ways    {dict(ways)}\nbefore  {before}\nafter   {Footprint.of(server.pid)}")
        finally:
            server.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
