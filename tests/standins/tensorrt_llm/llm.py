"""`LLM` and `RequestOutput`: the arguments are refused, the tokens come, as in the real ones.

The model directory may hold `standin.json`: `num_gpus` (default 8), `token_interval_s`, `fail`
(an error at the start) and `record` (a file that gets a JSON line for each call).
"""

from __future__ import annotations

import itertools
import json
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any, get_type_hints

from pydantic import TypeAdapter, ValidationError

from .contract import (
    BASE_LLM_ARGS,
    TORCH_LLM_ARGS,
    TRT_LLM_ARGS,
    KvCacheConfig,
    SamplingParams,
)
from .toy_engine import RequestError, ToyEngine, ToyRequest

KNOWN = {**BASE_LLM_ARGS, **TORCH_LLM_ARGS}


class LLM:
    """The PyTorch backend's class; `llm.record(...)` is the stand-in's own."""

    def __init__(
        self,
        model: Any,
        tokenizer: Any = None,
        tokenizer_mode: str = "auto",
        skip_tokenizer_init: bool = False,
        trust_remote_code: bool = False,
        tensor_parallel_size: int = 1,
        dtype: str = "auto",
        revision: str | None = None,
        tokenizer_revision: str | None = None,
        **kwargs: Any,
    ) -> None:
        named = {
            "tokenizer": tokenizer,
            "tokenizer_mode": tokenizer_mode,
            "skip_tokenizer_init": skip_tokenizer_init,
            "trust_remote_code": trust_remote_code,
            "tensor_parallel_size": tensor_parallel_size,
            "dtype": dtype,
            "revision": revision,
            "tokenizer_revision": tokenizer_revision,
        }
        check_arguments({**named, **kwargs})
        self._arguments = {**named, **kwargs}
        self._has_tokenizer = not skip_tokenizer_init
        config = _read_json(Path(model) / "config.json")
        _check_is_checkpoint(Path(model), config)
        self._standin = _read_json(Path(model) / "standin.json", optional=True)
        self._check_gpus()
        if "fail" in self._standin:
            raise RuntimeError(self._standin["fail"])
        self._ids = itertools.count(1)
        self._engine: ToyEngine | None = ToyEngine(
            config["vocab_size"],
            kwargs.get("max_batch_size") or 2048,
            float(self._standin.get("token_interval_s", 0.001)),
        )
        self.record("LLM", model=str(model), **self._arguments)

    def generate_async(
        self,
        inputs: Any,
        sampling_params: SamplingParams | None = None,
        lora_request: Any = None,
        prompt_adapter_request: Any = None,
        streaming: bool = False,
        kv_cache_retention_config: Any = None,
        disaggregated_params: Any = None,
        _postproc_params: Any = None,
        scheduling_params: Any = None,
        cache_salt: str | None = None,
    ) -> RequestOutput:
        if self._engine is None:
            raise RuntimeError("LLM is shutting down")
        if lora_request or prompt_adapter_request or kv_cache_retention_config:
            raise ValueError("the stand-in has no adapters and no retention")
        if disaggregated_params or _postproc_params or scheduling_params or cache_salt:
            raise ValueError("the stand-in serves plain requests only")
        params = sampling_params or SamplingParams()
        if not isinstance(params, SamplingParams):
            raise TypeError(f"sampling_params must be SamplingParams, got {type(params)}")
        check_sampling(params)
        if params.end_id is None and not self._has_tokenizer:
            raise ValueError("tokenizer is required to reset end_id if it is None")
        self._check_prompt(inputs)
        self.record("generate_async", inputs=inputs, streaming=streaming, **vars(params))
        request = ToyRequest(next(self._ids), list(inputs), params, streaming)
        return RequestOutput(self, self._engine, request)

    def shutdown(self) -> None:
        if self._engine is not None:
            self._engine.close()
            self._engine = None
            self.record("shutdown")

    def record(self, call: str, **arguments: Any) -> None:
        """Adds a line to the record file, if the model directory asks for one."""
        if path := self._standin.get("record"):
            line = json.dumps({"call": call, "arguments": arguments}, default=_plain)
            with open(path, "a", encoding="utf-8") as file:
                file.write(line + "\n")

    def _check_gpus(self) -> None:
        ranks = 1
        for name in ("tensor_parallel_size", "pipeline_parallel_size", "context_parallel_size"):
            ranks *= self._arguments.get(name) or 1
        num_gpus = self._standin.get("num_gpus", 8)
        if ranks > num_gpus:
            raise RuntimeError(f"TP*PP is {ranks}, but this node has {num_gpus} visible GPUs")

    def _check_prompt(self, inputs: Any) -> None:
        if not isinstance(inputs, list) or not all(type(token) is int for token in inputs):
            raise TypeError("without a tokenizer a prompt is a list of int")
        limit = self._arguments.get("max_num_tokens")
        if limit and len(inputs) > limit and not self._arguments.get("enable_chunked_prefill"):
            raise ValueError(f"the prompt's {len(inputs)} tokens exceed max_num_tokens {limit}")


class RequestOutput:
    """What `generate_async` returns: the same object after each step, with more in it."""

    def __init__(self, llm: LLM, engine: ToyEngine, request: ToyRequest) -> None:
        self._llm = llm
        self._engine = engine
        self._request = request
        engine.add(request)

    @property
    def request_id(self) -> int:
        return self._request.request_id

    @property
    def prompt(self) -> str | None:
        return None

    @property
    def prompt_token_ids(self) -> list[int]:
        return self._request.prompt

    @property
    def outputs(self) -> list[Any]:
        return [self._request.output]

    @property
    def context_logits(self) -> None:
        return None

    @property
    def finished(self) -> bool:
        return self._request.finished

    def abort(self) -> None:
        self._llm.record("abort", request_id=self.request_id)
        self._engine.abort(self._request)

    def aborted(self) -> bool:
        return self._request.aborted

    async def aresult(self) -> RequestOutput:
        async for _ in self:
            pass
        return self

    def __aiter__(self) -> AsyncIterator[RequestOutput]:
        return self

    async def __anext__(self) -> RequestOutput:
        if self.finished:
            raise StopAsyncIteration
        await self._request.step()
        return self


def check_arguments(arguments: Mapping[str, Any]) -> None:
    """Refuses what the contract does not know, as the real class does, and wrong types."""
    for name, value in arguments.items():
        if name not in KNOWN:
            if name in TRT_LLM_ARGS:
                raise ValueError(f"{name} is for tensorrt_llm._tensorrt_engine.LLM only")
            raise ValueError(f"LLM got an invalid argument: {name}")
        if value is None:
            continue
        if name == "kv_cache_config" and isinstance(value, dict):
            KvCacheConfig(**value)
        try:
            TypeAdapter(KNOWN[name]).validate_python(value, strict=True)
        except ValidationError as err:
            raise ValueError(f"{name} is {value!r}: {err}") from err


def check_sampling(params: SamplingParams) -> None:
    """The types of the fields, and the rules of the C++ sampler."""
    hints = get_type_hints(SamplingParams)
    for name, value in vars(params).items():
        try:
            TypeAdapter(hints[name]).validate_python(value, strict=True)
        except ValidationError as err:
            raise RequestError(f"{name} is {value!r}: {err}") from err
    if params.top_p is not None and not 0 < params.top_p <= 1:
        raise RequestError("top_p must be over 0 and at most 1")
    if params.temperature is not None and params.temperature <= 0:
        raise RequestError("temperature must be over 0")
    if params.stop is not None or params.bad is not None:
        raise RequestError("text to stop at or to avoid was not processed by a tokenizer")


def _check_is_checkpoint(path: Path, config: Mapping[str, Any]) -> None:
    if "pretrained_config" in config:
        raise ValueError(f"{path} is a TensorRT engine; use tensorrt_llm._tensorrt_engine.LLM")
    if not any(path.glob("*.safetensors")):
        raise FileNotFoundError(f"{path} holds no *.safetensors")


def _read_json(path: Path, *, optional: bool = False) -> Any:
    if optional and not path.exists():
        return {}
    return json.loads(path.read_text(encoding="utf-8"))


def _plain(value: Any) -> Any:
    return value.model_dump() if hasattr(value, "model_dump") else repr(value)
