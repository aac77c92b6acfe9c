"""Responses of the `tensorrt_llm` slot: contract tensors from new token ids.

Shapes on the wire (batch dimension included): output_ids `[1, beams, n]`, sequence_length
`[1, beams]`, cum_log_probs `[1, beams]`, output_log_probs `[1, beams, n]`, counts, indexes
and times `[1, 1]`. The last data response of the last answer carries the final flag, as in
the C++ backend.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from cog_triton.errors import CogTritonError, TritonUnknownError
from cog_triton.runtimes.slot_request import SlotRequest

PADDING = -1
Number = TypeVar("Number", int, float)


@dataclass(frozen=True)
class Beam:
    """One finished beam: its token ids and the log probability of each."""

    ids: list[int]
    log_probs: list[float]


class Answers:
    """Counts the answers that one Triton request still waits for: the last one ends it."""

    def __init__(self, num_pending: int = 1) -> None:
        self._num_pending = num_pending

    def is_last(self) -> bool:
        """Take one answer off; whether none is left."""
        self._num_pending -= 1
        return self._num_pending <= 0


class Responder:
    """Gives one answer to a Triton request through its response sender.

    All calls must come from one thread: several senders at once make Triton's HTTP
    front end lose responses. Nothing may be called after `finish` or `fail`: asking a
    sender that has sent its final flag whether it is cancelled crashes tritonserver 2.51.
    """

    def __init__(
        self,
        backend: Any,
        sender: Any,
        request: SlotRequest | None = None,
        answers: Answers | None = None,
    ) -> None:
        self._backend = backend
        self._sender = sender
        self._request = request
        self._answers = answers or Answers()
        self._cum_log_prob = 0.0
        self._num_sent = 0
        self._first_scheduled_time_ns = 0
        self._first_token_time_ns = 0

    def is_cancelled(self) -> bool:
        """Whether the client has gone; costs about as much as a response."""
        return bool(self._sender.is_cancelled())

    def scheduled(self) -> None:
        """The request is part of a step for the first time."""
        self._first_scheduled_time_ns = time.monotonic_ns()

    def send(self, ids: Sequence[int], log_probs: Sequence[float], *, final: bool) -> None:
        """Send `ids` (new ones only when streaming, all of them otherwise)."""
        if ids and not self._first_token_time_ns:
            self._first_token_time_ns = time.monotonic_ns()
        self._num_sent += len(ids)
        self._cum_log_prob += float(sum(log_probs))
        self._send([ids], [log_probs], [self._cum_log_prob], final=final)

    def send_beams(self, beams: Sequence[Beam]) -> None:
        """Send all beams, the best one first, and end the answer."""
        self._num_sent = sum(len(beam.ids) for beam in beams)
        self._first_token_time_ns = time.monotonic_ns()
        self._send(
            [beam.ids for beam in beams],
            [beam.log_probs for beam in beams],
            [float(sum(beam.log_probs)) for beam in beams],
            final=True,
        )

    def finish(self) -> None:
        """End the answer without data: a cancelled one, or the answer to a stop request."""
        if self._answers.is_last():
            self._sender.send(flags=self._final_flag)

    def fail(self, error: Exception) -> None:
        """End the answer with an error whose text starts with its code."""
        known = error if isinstance(error, CogTritonError) else TritonUnknownError(str(error))
        text = f"{known.code} {type(known).__name__}: {known.detail}"
        response = self._backend.InferenceResponse(
            output_tensors=[], error=self._backend.TritonError(text)
        )
        self._sender.send(response, flags=self._final_flag if self._answers.is_last() else 0)

    @property
    def _final_flag(self) -> int:
        return int(self._backend.TRITONSERVER_RESPONSE_COMPLETE_FINAL)

    def _send(
        self,
        beams: Sequence[Sequence[int]],
        log_probs: Sequence[Sequence[float]],
        cum_log_probs: Sequence[float],
        *,
        final: bool,
    ) -> None:
        request = self._request
        assert request is not None, "an answer with tokens needs its request"
        if not request.streaming and not request.exclude_input_in_output:
            prompt = request.input_ids.tolist()
            beams = [[*prompt, *ids] for ids in beams]
        lengths = [len(ids) for ids in beams]
        tensors = [
            self._tensor("output_ids", [padded(beams, PADDING)], np.int32),
            self._tensor("sequence_length", [lengths], np.int32),
        ]
        if request.return_log_probs:
            tensors.append(self._tensor("cum_log_probs", [cum_log_probs], np.float32))
            tensors.append(self._tensor("output_log_probs", [padded(log_probs, 0.0)], np.float32))
        tensors += [self._tensor(name, [[value]], np.int32) for name, value in self._counts()]
        if final and request.return_perf_metrics:
            tensors += [self._tensor(name, [[value]], np.int64) for name, value in self._times()]
        flags = self._final_flag if final and self._answers.is_last() else 0
        self._sender.send(self._backend.InferenceResponse(tensors), flags=flags)

    def _counts(self) -> Iterator[tuple[str, int]]:
        request = self._request
        assert request is not None
        if request.return_num_output_tokens:
            yield "num_output_tokens", self._num_sent
        if request.return_num_input_tokens:
            yield "num_input_tokens", len(request.input_ids)
        if request.batch_index is not None:
            yield "batch_index", request.batch_index
        if request.sequence_index is not None:
            yield "sequence_index", request.sequence_index

    def _times(self) -> Iterator[tuple[str, int]]:
        """Of Linux's monotonic clock, as the C++ backend's are of its steady clock."""
        request = self._request
        assert request is not None
        yield "arrival_time_ns", request.arrival_time_ns
        yield "first_scheduled_time_ns", self._first_scheduled_time_ns or request.arrival_time_ns
        yield "first_token_time_ns", self._first_token_time_ns
        yield "last_token_time_ns", time.monotonic_ns()

    def _tensor(self, name: str, value: object, dtype: type[np.generic]) -> Any:
        return self._backend.Tensor(name, np.array(value, dtype=dtype))


def padded(rows: Sequence[Sequence[Number]], padding: Number) -> list[list[Number]]:
    """Rows of one length; shorter beams are padded, and sequence_length tells the true length."""
    width = max(map(len, rows))
    return [list(row) + [padding] * (width - len(row)) for row in rows]
