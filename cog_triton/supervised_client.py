"""The generate client on whatever server runs at the time; knows why a stream broke."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator
from contextlib import aclosing

from cog_triton.errors import (
    TritonDied,
    TritonError,
    TritonIncompleteStream,
    TritonTimeout,
    TritonUnavailable,
    TritonUnknownError,
)
from cog_triton.generate_request import GenerateRequest
from cog_triton.generation import Failure, Generation
from cog_triton.supervisor import Supervisor

KNOWN_WITHIN_S = 0.5
"""A broken connection is seen before the death of the server that broke it."""
ENDED_WITHIN_S = 5.0

# Triton 2.51's Python backend, for each request to a stub that has died or is stopped.
_STUB_BROKEN = re.compile(r"Stub process .* is not healthy")


class SupervisedClient:
    """Streams like GenerateClient.stream; a stream never outlives the server that it began on."""

    def __init__(self, supervisor: Supervisor) -> None:
        self._supervisor = supervisor

    async def stream(self, request: GenerateRequest) -> AsyncGenerator[list[int], None]:
        """Yield the new token ids of each read.

        Raises what GenerateClient.stream raises, TritonDied with the reason when the server
        failed meanwhile, and TritonRestarting or TritonGaveUp when there is no server.
        """
        current = await self._supervisor.generation()
        try:
            async with aclosing(_counted(current, request)) as chunks:
                async for ids in chunks:
                    yield ids
        except TritonError as err:
            death = await _death(current, err)
            if death is None:
                raise
            raise death from err


async def _counted(
    current: Generation, request: GenerateRequest
) -> AsyncGenerator[list[int], None]:
    """The stream of one server, seen by its watchdog."""
    loop = asyncio.get_running_loop()
    progress = current.progress
    passage = progress.begin(loop.time())
    try:
        async with aclosing(current.client.stream(request)) as chunks:
            async for ids in chunks:
                progress.token(passage, loop.time())
                yield ids
    except TritonTimeout:
        # The watchdog's own look may come later, when nothing is in flight any more.
        current.check_progress(loop.time())
        raise
    finally:
        progress.end(passage)


async def _death(current: Generation, err: TritonError) -> TritonDied | None:
    """The death of the server, if that is why a stream ended with `err`."""
    if isinstance(err, TritonUnknownError) and _STUB_BROKEN.search(err.detail):
        current.report(Failure(err.detail))
    elif isinstance(err, (TritonUnavailable, TritonIncompleteStream)):
        await asyncio.wait([current.broken], timeout=KNOWN_WITHIN_S)
    if not current.broken.done():
        return None
    await asyncio.wait([current.ended], timeout=ENDED_WITHIN_S)
    return TritonDied(
        current.ended.result() if current.ended.done() else current.broken.result().reason
    )
