"""The bridge to coglet, and the only place that knows how coglet works inside.

What was found by reading and trying coglet 0.22 and 0.23 (crates/coglet-python):

- An async generator is collected whole before anything is sent. A coroutine that RETURNS a
  synchronous generator streams: coglet submits the coroutine to its event loop with
  `asyncio.run_coroutine_threadsafe`, waits for the result in the slot's thread, and iterates
  the generator there.
- A cancel (the cancel call, or a dropped connection) calls `cancel()` on the
  `concurrent.futures.Future` of that submission. While the generator runs the future is done,
  and cancelling a done future does nothing. The future is found through the done-callback that
  asyncio chains onto the task, which closes over it; an instance attribute `cancel` then stands
  in for the method.
- A generator that raises `cog.CancelationException` ends the prediction as canceled.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import queue
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import aclosing
from typing import Any

from cog import CancelationException


class _End:
    """Closes the queue: the producer has ended, with this error or without one."""

    def __init__(self, error: BaseException | None) -> None:
        self.error = error


async def stream(pieces: AsyncGenerator[str, None]) -> Generator[str, None, None]:
    """Run `pieces` on the event loop and return the generator that coglet iterates.

    To be called from inside the coroutine that coglet has submitted. One yield hands over
    everything that has arrived since the last one. Errors of `pieces` are raised by the
    generator; a cancel closes `pieces` and raises CancelationException.
    """
    arrived: queue.SimpleQueue[str | _End] = queue.SimpleQueue()
    loop = asyncio.get_running_loop()
    producer = loop.create_task(_produce(pieces, arrived))

    def cancel() -> bool:
        loop.call_soon_threadsafe(producer.cancel)
        return True

    _redirect_cancel(cancel)
    return _consume(arrived, cancel)


async def _produce(
    pieces: AsyncGenerator[str, None], arrived: queue.SimpleQueue[str | _End]
) -> None:
    try:
        async with aclosing(pieces):
            async for piece in pieces:
                arrived.put(piece)
    except BaseException as err:
        arrived.put(_End(err))
        if not isinstance(err, Exception):
            raise
    else:
        arrived.put(_End(None))


def _consume(
    arrived: queue.SimpleQueue[str | _End], cancel: Callable[[], bool]
) -> Generator[str, None, None]:
    """Runs in the slot's thread; waiting in the queue leaves the interpreter lock free."""
    end: _End | None = None
    try:
        while end is None:
            texts: list[str] = []
            item: str | _End = arrived.get()
            while True:
                if isinstance(item, _End):
                    end = item
                    break
                texts.append(item)
                try:
                    item = arrived.get_nowait()
                except queue.Empty:
                    break
            if texts:
                yield "".join(texts)
    finally:
        if end is None:
            cancel()
    if isinstance(end.error, asyncio.CancelledError):
        raise CancelationException("the prediction was canceled")
    if end.error is not None:
        raise end.error


def _redirect_cancel(cancel: Callable[[], bool]) -> None:
    """Make coglet's cancel of the submitted future reach the producing task."""
    future = _submitted_future()
    if future is None:
        return
    original = future.cancel

    def cancel_both() -> bool:
        return original() or cancel()

    future.cancel = cancel_both  # type: ignore[method-assign]


def _submitted_future() -> concurrent.futures.Future[Any] | None:
    """The future that coglet holds: in the closure of the callback chained to this task."""
    callbacks = getattr(asyncio.current_task(), "_callbacks", None) or ()
    for callback, _context in callbacks:
        for cell in getattr(callback, "__closure__", None) or ():
            if isinstance(cell.cell_contents, concurrent.futures.Future):
                return cell.cell_contents
    return None
