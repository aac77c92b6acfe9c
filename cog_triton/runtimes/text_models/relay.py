"""Answers of `tensorrt_llm_bls`: calls to `tensorrt_llm`, many at a time, and the way back.

Two facts about Triton 2.51 (tried): responses that several threads send at once get lost in
its HTTP front end, so one thread sends them all; and asking a sender whether it is cancelled
after its final flag crashes the server, so an ended answer is forgotten at once.
"""

from __future__ import annotations

import logging
import os
import queue
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from cog_triton.runtimes.text_models import replies
from cog_triton.runtimes.text_models.answer_text import AnswerText, Tensors
from cog_triton.runtimes.text_models.bls_request import InnerRequest
from cog_triton.runtimes.text_models.model_calls import ModelCalls

CANCELLATION_CHECK_PERIOD_S = 0.05


@dataclass(eq=False)
class _Answer:
    """One request of a client: its sender, and its calls that have not ended."""

    sender: Any
    calls: set[_Call] = field(default_factory=set)
    complete: bool = False


@dataclass(eq=False)
class _Call:
    answer: _Answer
    text: AnswerText
    request_id: str
    stopped_again: bool = False


@dataclass(frozen=True)
class _Event:
    """What a reading thread has seen: a response, or the end of the call."""

    call: _Call
    response: Any = None
    error: Exception | None = None


class Relay:
    """Owns the sending thread; `submit` and `reject` may be called from any thread.

    `backend` is triton_python_backend_utils, `model` the one to call. Decoupled, an answer
    is any number of responses and then an empty final one; else one response, the final one.
    """

    def __init__(self, backend: Any, model: str, *, decoupled: bool) -> None:
        self._backend = backend
        self._calls = ModelCalls(backend, model)
        self._decoupled = decoupled
        self._final = backend.TRITONSERVER_RESPONSE_COMPLETE_FINAL
        self._events: queue.SimpleQueue[_Event | Callable[[], None] | None] = queue.SimpleQueue()
        self._answers: list[_Answer] = []
        self._next_check = 0.0
        self._thread = threading.Thread(target=self._run, name="relay", daemon=True)
        self._thread.start()

    def submit(
        self, sender: Any, requests: Sequence[InnerRequest], texts: Sequence[AnswerText]
    ) -> None:
        """Call the model once for each of `requests` and answer through `sender`."""
        answer = _Answer(sender)
        calls = [_Call(answer, text, uuid.uuid4().hex) for text in texts]
        answer.calls.update(calls)
        self._events.put(lambda: self._answers.append(answer))
        for call, request in zip(calls, requests, strict=True):
            threading.Thread(target=self._read, args=(call, request), daemon=True).start()

    def reject(self, sender: Any, error: Exception) -> None:
        """Answer with an error, from the sending thread."""
        failure = replies.failure(self._backend, error)
        self._events.put(lambda: sender.send(failure, flags=self._final))

    def close(self, timeout_s: float) -> None:
        """End what runs, and the thread."""
        self._events.put(None)
        self._thread.join(timeout_s)

    def _read(self, call: _Call, request: InnerRequest) -> None:
        def on_response(response: Any) -> None:
            self._events.put(_Event(call, response))

        try:
            self._calls.read(request.tensors, request.parameters, call.request_id, on_response)
        except Exception as err:  # whatever the backend raises belongs to this call alone
            self._events.put(_Event(call, error=err))
        else:
            self._events.put(_Event(call))

    def _run(self) -> None:
        try:
            self._serve()
        except BaseException:
            # A model without its sender would take requests and never answer.
            logging.getLogger(__name__).exception("the relay's thread has died")
            os._exit(1)

    def _serve(self) -> None:
        while True:
            try:
                event = self._events.get(timeout=self._wait_s())
            except queue.Empty:
                pass
            else:
                if event is None:
                    break
                if isinstance(event, _Event):
                    self._handle(event)
                else:
                    event()
            if time.monotonic() >= self._next_check:
                self._look_for_cancelled()
        for answer in list(self._answers):
            self._end(answer)

    def _wait_s(self) -> float | None:
        idle_s = self._calls.drop_ended()
        return max(0.0, self._next_check - time.monotonic()) if self._answers else idle_s

    def _handle(self, event: _Event) -> None:
        call, answer = event.call, event.call.answer
        if call not in answer.calls:
            # Ended before: by a stop word, an error or the client. If it goes on all the
            # same, the stop request was faster than the call itself.
            if event.response is not None and not call.stopped_again:
                call.stopped_again = True
                self._calls.stop(call.request_id)
            return
        try:
            if event.error is not None:
                raise event.error
            if event.response is not None:
                self._receive(call, event.response)
            else:
                self._finish(call)
        except Exception as err:
            self._end(answer, replies.failure(self._backend, err))

    def _receive(self, call: _Call, response: Any) -> None:
        if response.has_error():
            failure = replies.text_failure(self._backend, response.error().message())
            self._end(call.answer, failure)
            return
        tensors = {one.name(): one.as_numpy() for one in response.output_tensors()}
        if not tensors:
            return  # an empty final response
        self._send(call.answer, call.text.feed(tensors))
        if call.text.stopped:
            self._calls.stop(call.request_id)
            self._finish(call)

    def _finish(self, call: _Call) -> None:
        self._send(call.answer, call.text.finish())
        call.answer.calls.discard(call)
        if not call.answer.calls:
            self._end(call.answer)

    def _send(self, answer: _Answer, responses: list[Tensors]) -> None:
        for tensors in responses:
            flags = 0 if self._decoupled else self._final
            answer.sender.send(replies.response(self._backend, tensors), flags=flags)
            answer.complete = not self._decoupled

    def _end(self, answer: _Answer, failure: Any = None) -> None:
        """Send the final flag, if it is not out yet, and stop the calls that still run."""
        for call in answer.calls:
            self._calls.stop(call.request_id)
        answer.calls.clear()
        if answer in self._answers:
            self._answers.remove(answer)
        if answer.complete:
            return
        answer.complete = True
        if failure is not None:
            answer.sender.send(failure, flags=self._final)
        elif self._decoupled:
            answer.sender.send(flags=self._final)
        else:
            cancelled = replies.text_failure(self._backend, "the request was cancelled")
            answer.sender.send(cancelled, flags=self._final)

    def _look_for_cancelled(self) -> None:
        self._next_check = time.monotonic() + CANCELLATION_CHECK_PERIOD_S
        for answer in list(self._answers):
            if answer.sender.is_cancelled():
                self._end(answer)
