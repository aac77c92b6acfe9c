"""One server from ready to failed: what says that it failed, and how it is buried.

Four things say it: a process of it is gone or stopped, it does not answer that it is ready,
nobody gets a token although requests are in flight, or an answer says so.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from cog_triton.generate_client import GenerateClient
from cog_triton.progress_watchdog import ProgressWatchdog
from cog_triton.server import TritonServer
from cog_triton.session_watch import SessionWatch
from cog_triton.settings import Settings

LOOK_PERIOD_S = 0.1
NUM_LOG_LINES = 5
NUM_FAILED_PROBES = 2
"""One may fail because this process itself was late; each has the whole deadline."""


@dataclass(frozen=True)
class Failure:
    """Why a server is given up; `by_itself` if its first process ended before it was killed."""

    reason: str
    by_itself: bool = False


class Generation:
    """One server from its start to its failure, and what goes to it."""

    def __init__(self, server: TritonServer, config: Settings) -> None:
        loop = asyncio.get_running_loop()
        limits = config.supervision
        self.server = server
        self.client = GenerateClient(server.http_url, config.client)
        self.processes = SessionWatch(server.pid, stopped_timeout_s=limits.probe_timeout_s)
        self.progress = ProgressWatchdog(
            stall_timeout_s=limits.stall_timeout_s or config.client.token_timeout_s,
            first_token_timeout_s=config.client.first_token_timeout_s,
        )
        self.broken: asyncio.Future[Failure] = loop.create_future()
        """Set as soon as the failure is known."""
        self.ended: asyncio.Future[str] = loop.create_future()
        """Set when no process is left: the reason with the last lines of the log."""

    @property
    def works(self) -> bool:
        """Whether nothing is known against it; costs nothing."""
        return not self.broken.done() and self.server.is_running

    def report(self, failure: Failure) -> None:
        """Say that this server cannot work any more; the first report counts."""
        if not self.broken.done():
            self.broken.set_result(failure)

    def check_progress(self, now_s: float) -> None:
        """Report the server if it is stalled."""
        silent_s = self.progress.stalled_for_s(now_s)
        if silent_s is not None:
            num = self.progress.num_in_flight
            self.report(Failure(f"{num} requests in flight and no token for {silent_s:.1f} s"))


async def until_failed(current: Generation, config: Settings) -> Failure:
    """Returns when the server has failed, with the first thing that says so."""
    looking = [_look(current), _probe(current, config)]
    tasks = [asyncio.ensure_future(look) for look in looking]
    try:
        await asyncio.wait([current.broken, *tasks], return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
    if current.broken.done():
        return current.broken.result()
    for result in results:
        if isinstance(result, Failure):
            return result
        if isinstance(result, Exception):
            raise result
    raise AssertionError("a look at the server ended without a result")


async def _look(current: Generation) -> Failure:
    """Looks at the processes and at the progress of the requests."""
    loop = asyncio.get_running_loop()
    while not current.broken.done():
        found = current.processes.failure(loop.time())
        if found is not None:
            is_first = found.pid == current.server.pid
            return Failure(found.reason, by_itself=found.ended and is_first)
        if not current.server.is_running:
            return Failure("the Triton server ended", by_itself=True)
        current.check_progress(loop.time())
        await asyncio.sleep(LOOK_PERIOD_S)
    return current.broken.result()


async def _probe(current: Generation, config: Settings) -> Failure:
    """Asks the server whether it is ready; tokens that arrive meanwhile are an answer too."""
    loop = asyncio.get_running_loop()
    limits = config.supervision
    num_failed = 0
    while num_failed < NUM_FAILED_PROBES:
        await asyncio.sleep(limits.probe_period_s)
        asked_at = loop.time()
        answered = await current.server.is_ready(limits.probe_timeout_s)
        alive = answered or current.progress.last_progress_s > asked_at
        num_failed = 0 if alive else num_failed + 1
    return Failure(f"no answer that it is ready within {limits.probe_timeout_s:g} s")


async def bury(current: Generation, failure: Failure) -> str:
    """Kills what is left of the server; the reason and the last lines of its log."""
    await asyncio.to_thread(current.server.stop, 0)
    reason = current.server.ending() if failure.by_itself else failure.reason
    detail = f"{reason}.\n{current.server.log_summary(NUM_LOG_LINES)}\n"
    current.ended.set_result(detail)
    await current.client.aclose()
    return detail
