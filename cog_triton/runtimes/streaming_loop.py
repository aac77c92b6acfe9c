"""One thread for an engine that runs by itself and hands its tokens out asynchronously.

The counterpart of `in_flight` for an engine that is not stepped from here (TensorRT-LLM's LLM
API: its ranks are processes of their own). One asyncio loop reads all answers, sends all
responses and looks for cancelled requests, because Triton loses responses that several threads
send at once. Being one thread, it also cannot ask a sender that has sent its final flag.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from cog_triton.runtimes.in_flight import tokens_a_response
from cog_triton.runtimes.responses import Responder
from cog_triton.runtimes.slot_request import SlotRequest

NUM_SLICES = 8
"""The streams are asked for cancellation in this many portions a period, not all at once."""


class EngineGone(Exception):
    """The engine takes no request any more; its text is the reason."""


class AsyncSequence(Protocol):
    """One request inside an engine."""

    async def read(self) -> tuple[list[int], list[float], bool]:
        """Wait for token ids and log probs after those of the last read; True with the last."""

    def abort(self) -> None:
        """Free the slot and its KV cache; may be called before the last read only."""


class AsyncEngine(Protocol):
    """An engine with requests of its own; both methods are called on the loop's thread."""

    def generate(self, request: SlotRequest) -> AsyncSequence:
        """Queue the request. Raises EngineGone if no request can be served any more."""

    def close(self) -> None:
        """Free everything; called once, at the end."""


@dataclass(eq=False)
class _Stream:
    request: SlotRequest
    responder: Responder
    sequence: AsyncSequence
    ordinal: int
    task: asyncio.Task[None] | None = None
    num_reads: int = 0
    ids: list[int] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)
    started: bool = False


class StreamingLoop:
    """Owns the engine's thread; its methods may be called from any thread.

    `on_iteration` gets the number of running requests when it changes; `on_death` is called if
    the thread ends by an error that no request caused, and should end the process.
    """

    def __init__(
        self,
        engine: AsyncEngine,
        *,
        cancellation_check_period_s: float,
        on_iteration: Callable[[int], None],
        on_death: Callable[[], None],
    ) -> None:
        self._engine = engine
        self._period_s = cancellation_check_period_s
        self._on_iteration = on_iteration
        self._on_death = on_death
        self._streams: deque[_Stream] = deque()
        self._num_admitted = 0
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._thread.start()
        self._started.wait()

    def submit(self, request: SlotRequest, responder: Responder) -> None:
        self._hand_over(lambda: self._add(request, responder))

    def reject(self, responder: Responder, error: Exception) -> None:
        """Answer with an error, from the sending thread."""
        self._hand_over(lambda: responder.fail(error))

    def stop_request(self, request_id: str, responder: Responder) -> None:
        """End the running request of this id; both get a final response."""
        self._hand_over(lambda: self._stop(request_id, responder))

    def close(self, timeout_s: float) -> None:
        """Cancel what runs, close the engine and end the thread."""
        with contextlib.suppress(RuntimeError):  # the loop has ended already
            self._loop.call_soon_threadsafe(self._end, None)
        self._thread.join(timeout_s)

    def _hand_over(self, action: Callable[[], None]) -> None:
        self._loop.call_soon_threadsafe(self._guarded, action)

    def _guarded(self, action: Callable[[], None]) -> None:
        try:
            action()
        except Exception as err:  # what no request caused ends the loop
            self._end(err)

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException:
            # A slot without its thread would take requests and never answer.
            logging.getLogger(__name__).exception("the engine's thread has died")
            self._on_death()
            raise

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._ended: asyncio.Future[None] = self._loop.create_future()
        self._occupied = asyncio.Event()
        watch = self._loop.create_task(self._watch())
        watch.add_done_callback(self._look_at)
        self._started.set()
        try:
            await self._ended
        finally:
            watch.cancel()
        for stream in list(self._streams):
            self._cancel(stream)
        self._engine.close()

    def _end(self, error: BaseException | None) -> None:
        if self._ended.done():
            return
        if error is None:
            self._ended.set_result(None)
        else:
            self._ended.set_exception(error)

    def _look_at(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._end(error)

    def _add(self, request: SlotRequest, responder: Responder) -> None:
        try:
            sequence = self._engine.generate(request)
        except EngineGone as err:
            responder.fail(err)
            raise
        except Exception as err:  # whatever else the engine raises belongs to this request alone
            responder.fail(err)
            return
        self._num_admitted += 1
        stream = _Stream(request, responder, sequence, self._num_admitted)
        self._streams.append(stream)
        stream.task = self._loop.create_task(self._consume(stream))
        stream.task.add_done_callback(self._look_at)
        self._occupied.set()
        self._on_iteration(len(self._streams))

    async def _consume(self, stream: _Stream) -> None:
        finished = False
        while not finished:
            try:
                ids, log_probs, finished = await stream.sequence.read()
            except Exception as err:  # the engine's word on this request
                self._remove(stream)
                stream.responder.fail(err)
                return
            self._deliver(stream, ids, log_probs, finished)

    def _deliver(
        self, stream: _Stream, ids: list[int], log_probs: list[float], finished: bool
    ) -> None:
        stream.ids += ids
        stream.log_probs += log_probs
        stream.num_reads += 1
        if finished:
            self._remove(stream)
            stream.responder.send(stream.ids, stream.log_probs, final=True)
            return
        # Streams admitted together take turns, so that responses do not leave in bursts.
        group = tokens_a_response(len(self._streams))
        turn = (stream.num_reads + stream.ordinal) % group == 0
        if stream.ids and stream.request.streaming and (turn or not stream.started):
            stream.started = True
            stream.responder.send(stream.ids, stream.log_probs, final=False)
            stream.ids, stream.log_probs = [], []

    def _stop(self, request_id: str, responder: Responder) -> None:
        for stream in list(self._streams):
            if stream.request.request_id == request_id:
                self._abort(stream)
                stream.responder.send(stream.ids, stream.log_probs, final=True)
        responder.finish()

    async def _watch(self) -> None:
        """Ask each stream once a period whether its client has gone."""
        due = 0.0
        while True:
            await self._occupied.wait()
            await asyncio.sleep(self._period_s / NUM_SLICES)
            self._on_iteration(len(self._streams))
            due += len(self._streams) / NUM_SLICES
            while due >= 1 and self._streams:
                due -= 1
                stream = self._streams[0]
                self._streams.rotate(-1)
                if stream.responder.is_cancelled():
                    self._cancel(stream)

    def _cancel(self, stream: _Stream) -> None:
        self._abort(stream)
        stream.responder.finish()

    def _abort(self, stream: _Stream) -> None:
        self._remove(stream)
        if stream.task is not None:
            stream.task.cancel()
        stream.sequence.abort()

    def _remove(self, stream: _Stream) -> None:
        self._streams.remove(stream)
        if not self._streams:
            self._occupied.clear()
        self._on_iteration(len(self._streams))
