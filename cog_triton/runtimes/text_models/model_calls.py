"""Decoupled calls from one model to another through Triton's Python backend.

Facts about Triton 2.51 (tried):
- `exec(decoupled=True)` and its iterator block and let go of the interpreter lock, so a
  thread for each call reads it; `async_exec` runs on asyncio's few executor threads.
- An iterator cannot be cancelled, and waits for the end when it is dropped: the call is ended
  by a stop request with its id, as the contract of tensorrt_llm has it.
- The backend holds an iterator too. After the last response a thread of its own lets go of it,
  and if nobody else holds it by then, that thread frees its numpy arrays without the
  interpreter lock and corrupts Python's memory (pb_stub.cc, SendCleanupId; seen as a segfault
  after some thousand calls, and in a debugger in every third call). So ended iterators are kept
  for a while, and dropped by a Python thread.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

KEEP_S = 2.0
Tensors: TypeAlias = Mapping[str, npt.NDArray[Any]]
Parameters: TypeAlias = Mapping[str, "str | int | bool"]

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


class ModelCalls:
    """Calls to one model that speaks tensorrt_llm's contract; safe to share between threads."""

    def __init__(self, backend: Any, model: str) -> None:
        self._backend = backend
        self._model = model
        self._ended: deque[tuple[float, Any]] = deque()

    def read(
        self,
        tensors: Tensors,
        parameters: Parameters,
        request_id: str,
        on_response: Callable[[Any], None],
    ) -> None:
        """Call the model and hand over each response; returns after the last one.

        Raises whatever the backend raises.
        """
        names = " ".join(_OUTPUTS[name] for name in _OUTPUTS if name in tensors)
        request = self._backend.InferenceRequest(
            model_name=self._model,
            request_id=request_id,
            requested_output_names=names.split(),
            inputs=[self._backend.Tensor(name, array) for name, array in tensors.items()],
            parameters=dict(parameters),
        )
        responses: Iterator[Any] = request.exec(decoupled=True)
        try:
            for response in responses:
                on_response(response)
        finally:
            self._ended.append((time.monotonic() + KEEP_S, responses))

    def stop(self, request_id: str) -> None:
        """Ask the model to end a call, and return at once; its reader then sees the end."""
        threading.Thread(target=self._request_stop, args=(request_id,), daemon=True).start()

    def drop_ended(self) -> float | None:
        """Free what is kept no longer; seconds until it is worth calling again, if ever."""
        while self._ended and self._ended[0][0] <= time.monotonic():
            self._ended.popleft()
        return KEEP_S if self._ended else None

    def _request_stop(self, request_id: str) -> None:
        nothing = np.array([[0]], np.int32)
        tensors = {
            "input_ids": nothing,
            "input_lengths": nothing,
            "request_output_len": nothing,
            "stop": np.array([[True]]),
        }
        try:
            self.read(tensors, {}, request_id, lambda _response: None)
        except Exception as err:  # the call then runs to its end, and nobody waits for it
            logging.getLogger(__name__).warning("a call could not be stopped: %s", err)
