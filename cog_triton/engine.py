"""The engine stage: which runtime serves the model, why, and within which limits."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field

from cog_triton import tensorrt_config
from cog_triton.artifacts.model_directory import ModelDirectory
from cog_triton.engine_check import CheckedEngine, check_engine, smallest_kv_cache_tokens
from cog_triton.errors import SettingsError, UnsupportedModel
from cog_triton.gpu_inventory import GIB
from cog_triton.machine import Machine, look
from cog_triton.runtime_choice import RuntimeChoice, RuntimeName, choose_runtime
from cog_triton.runtimes import llm_api_arguments
from cog_triton.runtimes.config import RuntimeConfig
from cog_triton.settings import EngineSettings, Settings

MAX_NUM_TOKENS: dict[RuntimeName, int] = {"openvino": 512, "pytorch": 8192, "tensorrt": 8192}
TOKENS_PER_BLOCK = 32  # KvCacheConfig's and trtllm-build's default


@dataclass(frozen=True)
class Engine:
    """A model directory, the runtime that opens it, and the limits it runs in.

    max_seq_len     prompt plus output, in tokens
    max_input_len   prompt alone, in tokens
    world_size      GPU ranks; what launch_triton_server.py takes for the tensorrt runtime
    compiled        what is known of a compiled engine, None for other runtimes
    triton_values   template variables that the settings set themselves, for a compiled engine
    """

    model: ModelDirectory
    runtime: RuntimeChoice
    max_seq_len: int
    config: RuntimeConfig
    max_input_len: int
    world_size: int = 1
    compiled: CheckedEngine | None = None
    triton_values: Mapping[str, object] = field(default_factory=dict)


def plan_engine(
    settings: Settings, model: ModelDirectory, machine: Machine | None = None
) -> Engine:
    """The engine for a fetched (or built) model.

    Raises: UnsupportedModel, RuntimeUnavailable, EngineIncompatible or SettingsError.
    """
    machine = look(settings) if machine is None else machine
    runtime = choose_runtime(settings, machine, model)
    assert runtime is not None  # only a model that is not fetched leaves it open
    if runtime.name == "tensorrt":
        return _compiled_engine(settings, model, runtime, machine)
    max_seq_len = checked_max_seq_len(settings.engine, model)
    config = _runtime_config(settings, model, runtime, max_seq_len)
    if runtime.name == "pytorch":
        llm_api_arguments.check(config.llm_arguments)
    max_input_len = min(settings.engine.max_input_len or max_seq_len, max_seq_len)
    world_size = config.tensor_parallel_size * config.pipeline_parallel_size
    return Engine(model, runtime, max_seq_len, config, max_input_len, world_size)


def checked_max_seq_len(limits: EngineSettings, model: ModelDirectory) -> int:
    """The set length, or the model's context; raises SettingsError where the two cannot be."""
    max_seq_len = limits.max_seq_len or model.max_position_embeddings
    if max_seq_len > model.max_position_embeddings:
        raise SettingsError(
            f"engine.max_seq_len is {max_seq_len}, but the model's context is "
            f"{model.max_position_embeddings} tokens."
        )
    check_kv_cache_bound(limits, max_seq_len)
    return max_seq_len


def check_kv_cache_bound(limits: EngineSettings, max_seq_len: int) -> None:
    """Raises SettingsError if the KV cache could not hold one whole sequence."""
    needed = smallest_kv_cache_tokens(max_seq_len, limits.max_beam_width, TOKENS_PER_BLOCK)
    bound = limits.max_tokens_in_paged_kv_cache
    if bound is not None and bound < needed:
        raise SettingsError(
            f"engine.max_tokens_in_paged_kv_cache is {bound}, but one sequence of "
            f"{max_seq_len} tokens needs {needed}; leave it out, then memory decides."
        )


def _compiled_engine(
    settings: Settings, model: ModelDirectory, runtime: RuntimeChoice, machine: Machine
) -> Engine:
    if model.format != "engine":
        raise UnsupportedModel(f"no engine was built of {model.path} yet (a {model.format}).")
    compiled = check_engine(model.path, settings.engine, machine, settings.tensorrt)
    built = compiled.config
    max_seq_len = compiled.max_seq_len or model.max_position_embeddings
    config = _runtime_config(settings, model, runtime, max_seq_len, compiled)
    max_input_len = min(compiled.max_input_len or max_seq_len, max_seq_len)
    if not built.can_share_kv_blocks:  # a prompt then has to fit into one step
        max_input_len = min(max_input_len, config.max_num_tokens)
    return Engine(
        model,
        runtime,
        max_seq_len,
        config,
        max_input_len,
        built.world_size,
        compiled,
        _triton_values(settings, compiled),
    )


def _runtime_config(
    settings: Settings,
    model: ModelDirectory,
    runtime: RuntimeChoice,
    max_seq_len: int,
    compiled: CheckedEngine | None = None,
) -> RuntimeConfig:
    limits, is_cpu = settings.engine, runtime.name == "openvino"
    max_num_tokens = compiled.max_num_tokens if compiled else limits.max_num_tokens
    reuse = compiled.enable_kv_cache_reuse if compiled else limits.enable_kv_cache_reuse
    if is_cpu and "enable_kv_cache_reuse" not in limits.model_fields_set:
        # With OpenVINO GenAI 2026.4's prefix cache 7 of 60 prompts were answered differently
        # the second time, seed and all, at any precision; without it none was.
        reuse = False
    return RuntimeConfig(
        runtime=runtime.name,
        weights=str(model.weights),
        vocab_size=model.vocab_size,
        max_batch_size=compiled.max_batch_size if compiled else limits.max_batch_size,
        max_seq_len=max_seq_len,
        max_num_tokens=max_num_tokens or MAX_NUM_TOKENS[runtime.name],
        max_beam_width=limits.max_beam_width if is_cpu else 1,
        kv_cache_bytes=kv_cache_bytes(limits) if is_cpu else limits.kv_cache_bytes or 0,
        enable_kv_cache_reuse=reuse,
        num_threads=limits.num_threads,
        tensor_parallel_size=_size(limits.tensor_parallel_size, is_cpu, compiled, "tp_size"),
        pipeline_parallel_size=_size(limits.pipeline_parallel_size, is_cpu, compiled, "pp_size"),
        dtype=compiled.config.dtype if compiled else limits.dtype,
        kv_cache_free_gpu_mem_fraction=limits.kv_cache_free_gpu_mem_fraction,
        max_tokens_in_paged_kv_cache=limits.max_tokens_in_paged_kv_cache,
        llm_arguments=dict(settings.pytorch) if runtime.name == "pytorch" else {},
    )


def _size(wanted: int | None, is_cpu: bool, compiled: CheckedEngine | None, name: str) -> int:
    if compiled:
        return int(getattr(compiled.config, name))
    return 1 if is_cpu else wanted or 1


def kv_cache_bytes(limits: EngineSettings) -> int:
    """On CPUs: the set size, or an eighth of the memory, 1 to 16 GiB, in whole GiB.

    OpenVINO GenAI takes whole GiB and fills them as they are needed.
    """
    if limits.kv_cache_bytes is not None:
        return limits.kv_cache_bytes
    memory_bytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return min(16, max(1, memory_bytes // 8 // GIB)) * GIB


def template_values(engine: Engine) -> dict[str, object]:
    """Values of the template variables of the model `tensorrt_llm`, by contract name."""
    config, compiled = engine.config, engine.compiled
    if compiled is not None:
        return tensorrt_config.template_values(
            tensorrt_config.TensorRTConfig(
                engine_dir=engine.model.path,
                max_batch_size=config.max_batch_size,
                max_beam_width=compiled.config.max_beam_width,
                enable_kv_cache_reuse=config.enable_kv_cache_reuse,
                kv_cache_free_gpu_mem_fraction=config.kv_cache_free_gpu_mem_fraction,
                max_tokens_in_paged_kv_cache=config.max_tokens_in_paged_kv_cache,
                logits_datatype=compiled.logits_datatype,
            ),
            engine.triton_values,
        )
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
        "max_beam_width": config.max_beam_width,
        "enable_kv_cache_reuse": config.enable_kv_cache_reuse,
        "cancellation_check_period_ms": config.cancellation_check_period_ms,
    }


def _triton_values(settings: Settings, compiled: CheckedEngine) -> dict[str, object]:
    """The settings' section `tensorrt`; long prompts are cut into steps where they have to be.

    Without chunked context a prompt of more than max_num_tokens is refused.
    """
    built = compiled.config
    values: dict[str, object] = dict(settings.tensorrt)
    is_longer = (built.max_input_len or 0) > (built.max_num_tokens or 0) > 0
    if is_longer and built.can_share_kv_blocks:
        values.setdefault("enable_chunked_context", True)
    return values
