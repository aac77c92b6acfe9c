"""In-flight batching: one thread admits requests, steps the engine and sends tokens.

The thread that steps is the thread that sends: an engine's step holds the
interpreter lock, so a second thread would starve, and Triton loses responses that
several threads send at once. Requests and rejections are handed over in a deque.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from cog_triton.runtimes.responses import Beam, Responder
from cog_triton.runtimes.slot_request import SlotRequest

GATHER_S = 0.0015
"""An idle engine waits this long for company before its first step: requests of one burst
arrive some 100 µs apart, and one prefill for all is cheaper than a step each."""


class Sequence(Protocol):
    """One request inside an engine."""

    def read(self) -> tuple[list[int], list[float], bool]:
        """Token ids and log probs since the last read, and whether these were the last."""

    def beams(self) -> list[Beam]:
        """All beams once the sequence has finished, the best first; empty without beam search."""

    def cancel(self) -> None:
        """Free the slot and its KV cache."""


class SteppingEngine(Protocol):
    """An engine that runs one iteration for all its sequences at a time."""

    def add(self, request: SlotRequest) -> Sequence: ...

    def step(self) -> None: ...


@dataclass(eq=False)
class _Stream:
    request: SlotRequest
    responder: Responder
    sequence: Sequence
    ordinal: int
    ids: list[int] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)
    started: bool = False
    scheduled: bool = False


@dataclass(frozen=True)
class _Arrival:
    responder: Responder
    request: SlotRequest | None = None
    stop_id: str | None = None
    error: Exception | None = None


def tokens_a_response(num_active: int) -> int:
    """How many tokens of a stream leave together: one while the sender keeps up easily."""
    return 1 if num_active <= 8 else 4


class InFlightLoop:
    """Owns the engine's thread; its methods may be called from any thread.

    `on_iteration` gets the number of running requests after each step; `on_death` is called
    if the thread ends by an error that no request caused, and should end the process.
    """

    def __init__(
        self,
        engine: SteppingEngine,
        *,
        cancellation_check_period_s: float,
        on_iteration: Callable[[int], None],
        on_death: Callable[[], None],
    ) -> None:
        self._engine = engine
        self._period_s = cancellation_check_period_s
        self._on_iteration = on_iteration
        self._on_death = on_death
        self._arrivals: deque[_Arrival] = deque()
        self._wake = threading.Event()
        self._closing = False
        self._streams: deque[_Stream] = deque()
        self._num_admitted = 0
        self._num_steps = 0
        self._is_settled = True
        self._checks_due = 0.0
        self._checked_at = time.monotonic()
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._thread.start()

    def submit(self, request: SlotRequest, responder: Responder) -> None:
        self._hand_over(_Arrival(responder, request=request))

    def reject(self, responder: Responder, error: Exception) -> None:
        """Answer with an error, from the sending thread."""
        self._hand_over(_Arrival(responder, error=error))

    def stop_request(self, request_id: str, responder: Responder) -> None:
        """End the running request of this id; both get a final response."""
        self._hand_over(_Arrival(responder, stop_id=request_id))

    def close(self, timeout_s: float) -> None:
        """Cancel what runs and end the thread."""
        self._closing = True
        self._wake.set()
        self._thread.join(timeout_s)

    def _hand_over(self, arrival: _Arrival) -> None:
        self._arrivals.append(arrival)
        self._wake.set()

    def _run(self) -> None:
        try:
            self._serve()
        except BaseException:
            # A slot without its thread would take requests and never answer.
            logging.getLogger(__name__).exception("the engine's thread has died")
            self._on_death()
            raise

    def _serve(self) -> None:
        while not self._closing:
            if not self._streams:
                self._settle()
                self._on_iteration(0)
                self._wait_for_arrivals()
            self._admit()
            if self._streams:
                self._iterate()
        for stream in list(self._streams):
            self._cancel(stream)
        self._settle()

    def _settle(self) -> None:
        """An engine frees what has ended in its next step: make one before falling idle."""
        if not self._is_settled:
            self._is_settled = True
            try:
                self._engine.step()
            except Exception as err:  # nobody waits for this step
                logging.getLogger(__name__).warning("the step after a cancel failed: %s", err)

    def _wait_for_arrivals(self) -> None:
        self._wake.wait()
        if not self._closing:
            time.sleep(GATHER_S)
        self._checked_at = time.monotonic()

    def _admit(self) -> None:
        self._wake.clear()
        while self._arrivals:
            arrival = self._arrivals.popleft()
            if arrival.error is not None:
                arrival.responder.fail(arrival.error)
            elif arrival.stop_id is not None:
                self._stop(arrival.stop_id, arrival.responder)
            elif arrival.request is not None:
                self._add(arrival.request, arrival.responder)

    def _add(self, request: SlotRequest, responder: Responder) -> None:
        try:
            sequence = self._engine.add(request)
        except Exception as err:  # whatever the engine raises belongs to this request alone
            responder.fail(err)
            return
        self._num_admitted += 1
        self._streams.append(_Stream(request, responder, sequence, self._num_admitted))

    def _stop(self, request_id: str, responder: Responder) -> None:
        for stream in list(self._streams):
            if stream.request.request_id == request_id:
                stream.sequence.cancel()
                stream.responder.send(stream.ids, stream.log_probs, final=True)
                self._streams.remove(stream)
        responder.finish()

    def _iterate(self) -> None:
        for stream in self._streams:
            if not stream.scheduled:
                stream.scheduled = True
                stream.responder.scheduled()
        try:
            self._engine.step()
        except Exception as err:  # the step is shared: every running request ends with its error
            self._fail_all(err)
            return
        group = tokens_a_response(len(self._streams))
        self._num_steps += 1
        self._is_settled = False
        for stream in list(self._streams):
            self._deliver(stream, group)
        self._on_iteration(len(self._streams))
        self._look_for_cancelled()

    def _deliver(self, stream: _Stream, group: int) -> None:
        ids, log_probs, finished = stream.sequence.read()
        stream.ids += ids
        stream.log_probs += log_probs
        if finished:
            self._streams.remove(stream)
            if stream.request.beam_width > 1:
                stream.responder.send_beams(stream.sequence.beams())
            else:
                stream.responder.send(stream.ids, stream.log_probs, final=True)
            return
        # Streams admitted together take turns, so that responses do not leave in bursts.
        # Who does not ask for the count of tokens may take each response for one token.
        grouped = stream.request.return_num_output_tokens
        turn = not grouped or (self._num_steps + stream.ordinal) % group == 0
        if stream.ids and stream.request.streaming and (turn or not stream.started):
            stream.started = True
            stream.responder.send(stream.ids, stream.log_probs, final=False)
            stream.ids, stream.log_probs = [], []

    def _look_for_cancelled(self) -> None:
        """Ask as many streams as are due, so that each is asked once a period."""
        now = time.monotonic()
        elapsed_s, self._checked_at = now - self._checked_at, now
        self._checks_due += len(self._streams) * min(elapsed_s / self._period_s, 1.0)
        num_checks = min(int(self._checks_due), len(self._streams))
        self._checks_due -= int(self._checks_due)
        for _ in range(num_checks):
            stream = self._streams[0]
            self._streams.rotate(-1)
            if stream.responder.is_cancelled():
                self._cancel(stream)

    def _cancel(self, stream: _Stream) -> None:
        self._streams.remove(stream)
        stream.sequence.cancel()
        stream.responder.finish()

    def _fail_all(self, error: Exception) -> None:
        while self._streams:
            stream = self._streams.popleft()
            stream.sequence.cancel()
            stream.responder.fail(error)
