"""The arguments of TensorRT-LLM's `LLM` class (PyTorch backend, 1.1), and which ones exist.

The class refuses what it does not know, but only on a GPU, minutes after the start; here a
wrong name is found by the plan. Names and defaults: `BaseLlmArgs`, `TorchLlmArgs` and
`KvCacheConfig` of tensorrt_llm 1.1 (llmapi/llm_args.py).
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping

from cog_triton.errors import SettingsError
from cog_triton.runtimes.config import RuntimeConfig

KV_CACHE = "kv_cache_config"

SAMPLER = "TRTLLMSampler"
"""`auto` takes TorchSampler, which at 1.1 knows temperature, top_k and top_p and silently ignores
penalties, seed, min_p, min_tokens and bad words (TensorRT-LLM issue 9442, pull request 16485)."""

_OPEN = """
    tokenizer tokenizer_mode trust_remote_code dtype gpus_per_node context_parallel_size
    moe_cluster_parallel_size moe_tensor_parallel_size moe_expert_parallel_size
    enable_attention_dp enable_lm_head_tp_in_adp cp_config load_format
    fail_fast_on_attention_window_too_large enable_lora lora_config kv_cache_config
    enable_chunked_prefill guided_decoding_backend iter_stats_max_iterations
    request_stats_max_iterations peft_cache_config scheduler_config cache_transceiver_config
    speculative_config max_input_len max_beam_width garbage_collection_gen0_threshold
    cuda_graph_config attention_dp_config disable_overlap_scheduler moe_config attn_backend
    sampler_type enable_iter_perf_stats enable_iter_req_stats print_iter_log
    perf_metrics_max_requests batch_wait_timeout_ms batch_wait_timeout_iters
    batch_wait_max_tokens_ratio torch_compile_config enable_autotuner enable_layerwise_nvtx_marker
    enable_min_latency stream_interval force_dynamic_quantization allreduce_strategy
    checkpoint_format kv_connector_config return_perf_metrics
"""
OPEN_ARGUMENTS = frozenset(_OPEN.split())
"""Arguments that a deployment may set by name. Not here: what the settings have keys for
(model, sizes, parallelism), what takes a Python object, and what does not fit this runtime."""

_KV_CACHE = """
    enable_block_reuse max_tokens max_attention_window sink_token_length free_gpu_memory_fraction
    host_cache_size onboard_blocks cross_kv_cache_fraction secondary_offload_min_priority
    event_buffer_max_size attention_dp_events_gather_period_ms enable_partial_reuse
    copy_on_partial_reuse use_uvm max_gpu_total_bytes dtype mamba_ssm_cache_dtype tokens_per_block
"""
KV_CACHE_ARGUMENTS = frozenset(_KV_CACHE.split())


def check(arguments: Mapping[str, object]) -> None:
    """Raise SettingsError for an argument of a deployment that the API does not know or allow."""
    _check_names(arguments, OPEN_ARGUMENTS, "pytorch")
    kv_cache = arguments.get(KV_CACHE, {})
    if not isinstance(kv_cache, Mapping):
        raise SettingsError(f"pytorch.{KV_CACHE} must hold keys and values, got {kv_cache!r}.")
    _check_names(kv_cache, KV_CACHE_ARGUMENTS, f"pytorch.{KV_CACHE}")


def constructor_arguments(config: RuntimeConfig) -> dict[str, object]:
    """Keyword arguments for `tensorrt_llm.LLM`; `kv_cache_config` holds those of KvCacheConfig.

    Raises SettingsError for unknown names in `config.llm_arguments`.
    """
    check(config.llm_arguments)
    given = dict(config.llm_arguments)
    kv_cache = {**_kv_cache(config), **given.pop(KV_CACHE, {})}
    # Guided decoding builds its grammars from the tokenizer; nothing else here needs it.
    needs_tokenizer = given.get("guided_decoding_backend") is not None
    return {
        "model": config.weights,
        "skip_tokenizer_init": not needs_tokenizer,
        "dtype": config.dtype,
        "tensor_parallel_size": config.tensor_parallel_size,
        "pipeline_parallel_size": config.pipeline_parallel_size,
        "max_batch_size": config.max_batch_size,
        "max_seq_len": config.max_seq_len,
        "max_num_tokens": config.max_num_tokens,
        # Without it a prompt longer than one step may hold is refused.
        "enable_chunked_prefill": config.max_num_tokens < config.max_seq_len,
        "sampler_type": SAMPLER,
        **given,
        KV_CACHE: kv_cache,
    }


def _kv_cache(config: RuntimeConfig) -> dict[str, object]:
    kv_cache: dict[str, object] = {"enable_block_reuse": config.enable_kv_cache_reuse}
    if config.kv_cache_free_gpu_mem_fraction is not None:
        kv_cache["free_gpu_memory_fraction"] = config.kv_cache_free_gpu_mem_fraction
    if config.max_tokens_in_paged_kv_cache is not None:
        kv_cache["max_tokens"] = config.max_tokens_in_paged_kv_cache
    if config.kv_cache_bytes:
        kv_cache["max_gpu_total_bytes"] = config.kv_cache_bytes
    return kv_cache


def _check_names(given: Iterable[str], known: frozenset[str], where: str) -> None:
    for name in given:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f" (nearest: {near[0]})" if near else ""
            raise SettingsError(f"{where}.{name} is not an argument that can be set{hint}.")
