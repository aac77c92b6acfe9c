"""Responses of the `tensorrt_llm` slot: contract tensors from new token ids.

Shapes on the wire (batch dimension included): output_ids `[1, 1, n]`, sequence_length
`[1, 1]`, cum_log_probs `[1, 1]`, output_log_probs `[1, 1, n]`, counts `[1, 1]`.
The last data response carries the final flag, as in the C++ backend.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from cog_triton.errors import CogTritonError, TritonUnknownError
from cog_triton.runtimes.slot_request import SlotRequest


class Responder:
    """Answers one request through Triton's response sender.

    All calls must come from one thread: several senders at once make Triton's HTTP
    front end lose responses. Nothing may be called after `finish` or `fail`: asking a
    sender that has sent its final flag whether it is cancelled crashes tritonserver 2.51.
    """

    def __init__(self, backend: Any, sender: Any, request: SlotRequest | None = None) -> None:
        self._backend = backend
        self._sender = sender
        self._request = request
        self._cum_log_prob = 0.0
        self._num_sent = 0

    def is_cancelled(self) -> bool:
        """Whether the client has gone; costs about as much as a response."""
        return bool(self._sender.is_cancelled())

    def send(self, ids: Sequence[int], log_probs: Sequence[float], *, final: bool) -> None:
        """Send `ids` (new ones only when streaming, all of them otherwise)."""
        flags = self._backend.TRITONSERVER_RESPONSE_COMPLETE_FINAL if final else 0
        self._sender.send(self._response(ids, log_probs), flags=flags)

    def finish(self) -> None:
        """End the request without data: a cancelled one, or the answer to a stop request."""
        self._sender.send(flags=self._backend.TRITONSERVER_RESPONSE_COMPLETE_FINAL)

    def fail(self, error: Exception) -> None:
        """End the request with an error whose text starts with its code."""
        known = error if isinstance(error, CogTritonError) else TritonUnknownError(str(error))
        text = f"{known.code} {type(known).__name__}: {known.detail}"
        response = self._backend.InferenceResponse(
            output_tensors=[], error=self._backend.TritonError(text)
        )
        self._sender.send(response, flags=self._backend.TRITONSERVER_RESPONSE_COMPLETE_FINAL)

    def _response(self, ids: Sequence[int], log_probs: Sequence[float]) -> Any:
        request = self._request
        assert request is not None, "an answer with tokens needs its request"
        self._num_sent += len(ids)
        out: Sequence[int] = ids
        if not request.streaming and not request.exclude_input_in_output:
            out = [*request.input_ids.tolist(), *ids]
        tensors = [
            self._tensor("output_ids", [[out]], np.int32),
            self._tensor("sequence_length", [[len(out)]], np.int32),
        ]
        if request.return_num_output_tokens:
            tensors.append(self._tensor("num_output_tokens", [[self._num_sent]], np.int32))
        if request.return_num_input_tokens:
            num_input_tokens = [[len(request.input_ids)]]
            tensors.append(self._tensor("num_input_tokens", num_input_tokens, np.int32))
        if request.return_log_probs:
            self._cum_log_prob += float(sum(log_probs))
            tensors.append(self._tensor("cum_log_probs", [[self._cum_log_prob]], np.float32))
            tensors.append(self._tensor("output_log_probs", [[log_probs]], np.float32))
        return self._backend.InferenceResponse(tensors)

    def _tensor(self, name: str, value: object, dtype: type[np.generic]) -> Any:
        return self._backend.Tensor(name, np.array(value, dtype=dtype))
