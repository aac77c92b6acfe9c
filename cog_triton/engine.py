"""The engine stage: which runtime serves the model, why, and within which limits."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Literal

from cog_triton.artifacts.model_directory import ModelDirectory
from cog_triton.errors import RuntimeUnavailable, SettingsError, UnsupportedModel
from cog_triton.runtimes.config import RuntimeConfig
from cog_triton.settings import EngineSettings, Settings

RuntimeName = Literal["openvino"]
GIB = 1 << 30


@dataclass(frozen=True)
class RuntimeChoice:
    """A runtime and the reason it was taken, as `plan` prints it."""

    name: RuntimeName
    reason: str


@dataclass(frozen=True)
class Engine:
    """A model directory, the runtime that opens it, and the limits it runs in."""

    model: ModelDirectory
    runtime: RuntimeChoice
    max_seq_len: int
    config: RuntimeConfig


def choose_runtime(settings: Settings) -> RuntimeChoice:
    """The runtime for these settings; raises RuntimeUnavailable for one that is not there."""
    if settings.runtime == "openvino":
        return RuntimeChoice("openvino", "the settings ask for it")
    if settings.runtime == "auto":
        return RuntimeChoice("openvino", "auto: the runtime that needs no GPU")
    raise RuntimeUnavailable(
        f"runtime {settings.runtime} needs TensorRT-LLM, which this release does not drive yet; "
        "runtimes that it has: openvino."
    )


def plan_engine(settings: Settings, model: ModelDirectory) -> Engine:
    """The engine for a fetched model; raises UnsupportedModel or SettingsError."""
    runtime = choose_runtime(settings)
    if model.format not in ("gguf", "openvino_ir"):
        raise UnsupportedModel(
            f"{model.path} is a {model.format}; the openvino runtime opens GGUF and OpenVINO IR."
        )
    limits = settings.engine
    max_seq_len = limits.max_seq_len or model.max_position_embeddings
    if max_seq_len > model.max_position_embeddings:
        raise SettingsError(
            f"engine.max_seq_len is {max_seq_len}, but the model's context is "
            f"{model.max_position_embeddings} tokens."
        )
    config = RuntimeConfig(
        runtime=runtime.name,
        weights=str(model.weights),
        vocab_size=model.vocab_size,
        max_batch_size=limits.max_batch_size,
        max_seq_len=max_seq_len,
        max_num_tokens=limits.max_num_tokens,
        kv_cache_bytes=kv_cache_bytes(limits),
        enable_kv_cache_reuse=limits.enable_kv_cache_reuse,
        num_threads=limits.num_threads,
    )
    return Engine(model, runtime, max_seq_len, config)


def kv_cache_bytes(limits: EngineSettings) -> int:
    """The set size, or an eighth of the machine's memory, 1 to 16 GiB, in whole GiB.

    OpenVINO GenAI takes whole GiB and fills them as they are needed.
    """
    if limits.kv_cache_bytes is not None:
        return limits.kv_cache_bytes
    memory_bytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return min(16, max(1, memory_bytes // 8 // GIB)) * GIB


def template_values(engine: Engine) -> dict[str, object]:
    """Values of the template variables of the model `tensorrt_llm`, by contract name."""
    config = engine.config
    return {
        "triton_backend": "python",
        "triton_max_batch_size": config.max_batch_size,
        "decoupled_mode": True,
        "batching_strategy": "inflight_fused_batching",
        "engine_dir": engine.model.path,
        "tokenizer_dir": engine.model.path,
        "max_queue_delay_microseconds": 0,
        "max_queue_size": 0,
        "encoder_input_features_data_type": "TYPE_FP16",
        "logits_datatype": "TYPE_FP32",
        "prompt_embedding_table_data_type": "TYPE_FP16",
        "max_beam_width": 1,
        "enable_kv_cache_reuse": config.enable_kv_cache_reuse,
        "cancellation_check_period_ms": config.cancellation_check_period_ms,
    }
