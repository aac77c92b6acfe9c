"""Calls from one text model to `tensorrt_llm`, many at a time, and their answers' way back.

Facts about Triton 2.51's Python backend (tried):
- `exec(decoupled=True)` and its iterator block and let go of the interpreter lock, so a
  thread for each call reads it; `async_exec` runs on asyncio's few executor threads.
- An iterator cannot be cancelled, and waits for the end when it is dropped: the call is ended
  by a stop request with its id, as the contract of tensorrt_llm has it.
- Responses that several threads send at once get lost in Triton's HTTP front end, so one
  thread sends them all; and asking a sender whether it is cancelled after its final flag
  crashes the server, so an ended answer is forgotten at once.
"""

from __future__ import annotations

import logging
import os
import queue
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from cog_triton.runtimes.text_models import replies
from cog_triton.runtimes.text_models.answer_text import AnswerText, Array, Tensors
from cog_triton.runtimes.text_models.bls_request import InnerRequest

CANCELLATION_CHECK_PERIOD_S = 0.05

# Outputs of tensorrt_llm, by the input that asks for them.
_OUTPUTS = {
    "input_ids": "output_ids sequence_length sequence_index",
    "return_log_probs": "cum_log_probs output_log_probs",
    "return_context_logits": "context_logits",
    "return_generation_logits": "generation_logits",
    "return_num_input_tokens": "num_input_tokens",
    "return_num_output_tokens": "num_output_tokens",
    "return_perf_metrics": (
        "kv_cache_alloc_new_blocks kv_cache_reused_blocks kv_cache_alloc_total_blocks "
        "arrival_time_ns first_scheduled_time_ns first_token_time_ns last_token_time_ns "
        "acceptance_rate total_accepted_draft_tokens total_draft_tokens"
    ),
}


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
        self._model = model
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
        try:
            for response in self._exec(request.tensors, call.request_id, request.parameters):
                self._events.put(_Event(call, response))
        except Exception as err:  # whatever the backend raises belongs to this call alone
            self._events.put(_Event(call, error=err))
        else:
            self._events.put(_Event(call))

    def _exec(
        self,
        tensors: Mapping[str, Array],
        request_id: str,
        parameters: Mapping[str, str | int | bool],
    ) -> Iterator[Any]:
        names = " ".join(_OUTPUTS[name] for name in _OUTPUTS if name in tensors)
        request = self._backend.InferenceRequest(
            model_name=self._model,
            request_id=request_id,
            requested_output_names=names.split(),
            inputs=[self._backend.Tensor(name, array) for name, array in tensors.items()],
            parameters=dict(parameters),
        )
        responses: Iterator[Any] = request.exec(decoupled=True)
        return responses

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
                self._look_for_cancelled()
                continue
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
        if not self._answers:
            return None
        return max(0.0, self._next_check - time.monotonic())

    def _handle(self, event: _Event) -> None:
        call, answer = event.call, event.call.answer
        if call not in answer.calls:
            # Ended before: by a stop word, an error or the client. If it goes on all the
            # same, the stop request was faster than the call itself.
            if event.response is not None and not call.stopped_again:
                call.stopped_again = True
                self._stop(call)
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
            self._stop(call)
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
            self._stop(call)
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

    def _stop(self, call: _Call) -> None:
        """Ask the model to end a call; its reading thread then sees the end."""
        threading.Thread(target=self._request_stop, args=(call.request_id,), daemon=True).start()

    def _request_stop(self, request_id: str) -> None:
        nothing = np.array([[0]], np.int32)
        tensors = {
            "input_ids": nothing,
            "input_lengths": nothing,
            "request_output_len": nothing,
            "stop": np.array([[True]]),
        }
        try:
            for _response in self._exec(tensors, request_id, {}):
                pass
        except Exception as err:  # the call then runs to its end, and nobody waits for it
            logging.getLogger(__name__).warning("a call could not be stopped: %s", err)
