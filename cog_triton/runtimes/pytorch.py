"""The `pytorch` runtime: TensorRT-LLM's LLM API on a Hugging Face checkpoint, token ids to ids.

Facts about the API (tensorrt_llm 1.1, from its sources and the reference in llmapi): without a
tokenizer `end_id` must be given; `generate_async` must be called where an event loop runs, and
`streaming` be passed by name; `token_ids` and `logprobs` of an output grow with each iteration;
the C++ sampler leaves the end id out of them, so that an answer may end with no new id.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any

from cog_triton.errors import TritonUnknownError
from cog_triton.runtimes.config import RuntimeConfig
from cog_triton.runtimes.llm_api_arguments import KV_CACHE, constructor_arguments
from cog_triton.runtimes.mpi_environment import leave_job
from cog_triton.runtimes.sampling_params import sampling_arguments
from cog_triton.runtimes.slot_request import SlotRequest
from cog_triton.runtimes.stop_words import StopWordWatch
from cog_triton.runtimes.streaming_loop import EngineGone


class PyTorchEngine:
    """An `AsyncEngine`; the constructor loads the model, which can take minutes.

    `environ` is this process's environment: the variables of an MPI job that it was started
    in are removed from it, as the engine starts ranks of its own. Raises SettingsError for
    arguments that do not exist, and whatever the API raises if the model cannot be loaded.
    """

    def __init__(self, config: RuntimeConfig, environ: MutableMapping[str, str]) -> None:
        arguments = constructor_arguments(config)
        leave_job(environ)
        # After that, and not above: MPI reads its variables when it is imported.
        import tensorrt_llm
        from tensorrt_llm.llmapi import KvCacheConfig

        self._sampling_params = tensorrt_llm.SamplingParams
        kv_cache: Any = arguments.pop(KV_CACHE)
        self._llm = tensorrt_llm.LLM(**arguments, kv_cache_config=KvCacheConfig(**kv_cache))

    def generate(self, request: SlotRequest) -> PyTorchSequence:
        """Queue the request; raises UnsupportedInput, TritonUnknownError or EngineGone."""
        arguments = sampling_arguments(request)
        words = [word for word in request.stop_words if len(word) > 1]
        try:
            output = self._llm.generate_async(
                request.input_ids.tolist(),
                self._sampling_params(**arguments),
                streaming=request.streaming or bool(words),
            )
        except RuntimeError as err:
            # Errors of one request are of a subclass; this one says that the LLM shuts down.
            if type(err) is RuntimeError:
                raise EngineGone(f"TensorRT-LLM takes no requests any more: {err}") from err
            raise TritonUnknownError(f"TensorRT-LLM failed: {err}") from err
        except ValueError as err:
            raise TritonUnknownError(f"TensorRT-LLM refuses the request: {err}") from err
        return PyTorchSequence(output, StopWordWatch(words), request.return_log_probs)

    def close(self) -> None:
        self._llm.shutdown()


class PyTorchSequence:
    """One request in the engine: an `AsyncSequence` over a RequestOutput."""

    def __init__(self, output: Any, stop_words: StopWordWatch, with_log_probs: bool) -> None:
        self._output = output
        self._stop_words = stop_words
        self._with_log_probs = with_log_probs
        self._num_read = 0

    async def read(self) -> tuple[list[int], list[float], bool]:
        try:
            await anext(self._output)
        except StopAsyncIteration:
            return [], [], True
        completion = self._output.outputs[0]
        finished = bool(self._output.finished)
        ids = list(completion.token_ids[self._num_read :])
        keep = self._stop_words.feed(ids)
        if keep is not None:
            if not finished:
                self.abort()
            ids, finished = ids[:keep], True
        log_probs = self._log_probs(completion, ids)
        self._num_read += len(ids)
        return ids, log_probs, finished

    def abort(self) -> None:
        self._output.abort()

    def _log_probs(self, completion: Any, ids: list[int]) -> list[float]:
        """Of each id its own: the API gives numbers, or by position a dict of id to Logprob."""
        if not self._with_log_probs:
            return []
        entries = completion.logprobs[self._num_read : self._num_read + len(ids)]
        return [_log_prob(entry, token) for entry, token in zip(entries, ids, strict=True)]


def _log_prob(entry: Any, token: int) -> float:
    value: Any = entry[token] if isinstance(entry, dict) else entry
    number: float = value.logprob if hasattr(value, "logprob") else value
    return float(number)
