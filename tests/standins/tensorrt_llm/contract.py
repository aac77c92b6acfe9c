"""Names, types and defaults of tensorrt_llm 1.1. Written by ../generate.py: do not edit."""

# ruff: noqa: E501
# fmt: off

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field


class StrictModel(BaseModel):
    """A model that refuses unknown fields, as the argument models of the real package do."""

    model_config = ConfigDict(extra="forbid", strict=True)


BASE_LLM_ARGS: dict[str, Any] = {
    "model": Any,
    "tokenizer": Any,
    "tokenizer_mode": Literal["auto", "slow"],
    "skip_tokenizer_init": bool,
    "trust_remote_code": bool,
    "tensor_parallel_size": int,
    "dtype": str,
    "revision": str | None,
    "tokenizer_revision": str | None,
    "pipeline_parallel_size": int,
    "context_parallel_size": int,
    "gpus_per_node": int | None,
    "moe_cluster_parallel_size": int | None,
    "moe_tensor_parallel_size": int | None,
    "moe_expert_parallel_size": int | None,
    "enable_attention_dp": bool,
    "enable_lm_head_tp_in_adp": bool,
    "cp_config": dict[str, Any] | None,
    "load_format": Literal["auto", "dummy"],
    "fail_fast_on_attention_window_too_large": bool,
    "enable_lora": bool,
    "lora_config": Any,
    "kv_cache_config": Any,
    "enable_chunked_prefill": bool,
    "guided_decoding_backend": Literal["xgrammar", "llguidance"] | None,
    "batched_logits_processor": Any,
    "iter_stats_max_iterations": int | None,
    "request_stats_max_iterations": int | None,
    "peft_cache_config": Any,
    "scheduler_config": Any,
    "cache_transceiver_config": Any,
    "speculative_config": Any,
    "max_batch_size": int | None,
    "max_input_len": int | None,
    "max_seq_len": int | None,
    "max_beam_width": int | None,
    "max_num_tokens": int | None,
    "gather_generation_logits": bool,
    "num_postprocess_workers": int,
    "postprocess_tokenizer_dir": str | None,
    "reasoning_parser": str | None,
    "decoding_config": Any,
    "mpi_session": Any,
    "backend": str | None,
    "return_perf_metrics": bool,
    "_mpi_session": Any,
}


TORCH_LLM_ARGS: dict[str, Any] = {
    "build_config": Any,
    "garbage_collection_gen0_threshold": int,
    "cuda_graph_config": Any,
    "attention_dp_config": Any,
    "disable_overlap_scheduler": bool,
    "moe_config": Any,
    "attn_backend": str,
    "sampler_type": Literal["TRTLLMSampler", "TorchSampler", "auto"],
    "enable_iter_perf_stats": bool,
    "enable_iter_req_stats": bool,
    "print_iter_log": bool,
    "perf_metrics_max_requests": int,
    "batch_wait_timeout_ms": float,
    "batch_wait_timeout_iters": int,
    "batch_wait_max_tokens_ratio": Annotated[float, Field(ge=0, le=1)],
    "torch_compile_config": Any,
    "enable_autotuner": bool,
    "enable_layerwise_nvtx_marker": bool,
    "load_format": Any,
    "enable_min_latency": bool,
    "stream_interval": Annotated[int, Field(ge=1)],
    "force_dynamic_quantization": bool,
    "allreduce_strategy": Literal["AUTO", "NCCL", "UB", "MINLATENCY", "ONESHOT", "TWOSHOT", "LOWPRECISION", "MNNVL", "NCCL_SYMMETRIC"] | None,
    "checkpoint_loader": Any,
    "checkpoint_format": str | None,
    "kv_connector_config": Any,
    "mm_encoder_only": bool,
}


TRT_LLM_ARGS: dict[str, Any] = {
    "enable_tqdm": bool,
    "workspace": str | None,
    "enable_build_cache": Any,
    "extended_runtime_perf_knob_config": Any,
    "calib_config": Any,
    "quant_config": Any,
    "embedding_parallel_mode": Literal["NONE", "SHARDING_ALONG_VOCAB", "SHARDING_ALONG_HIDDEN"],
    "fast_build": bool,
    "build_config": Any,
    "enable_prompt_adapter": bool,
    "max_prompt_adapter_token": int,
    "batching_type": Literal["STATIC", "INFLIGHT"] | None,
    "normalize_log_probs": bool,
}


class KvCacheConfig(StrictModel):
    enable_block_reuse: bool = True
    max_tokens: int | None = None
    max_attention_window: list[Annotated[int, Field(gt=0)]] | None = None
    sink_token_length: int | None = None
    free_gpu_memory_fraction: float | None = None
    host_cache_size: int | None = None
    onboard_blocks: bool = True
    cross_kv_cache_fraction: float | None = None
    secondary_offload_min_priority: int | None = None
    event_buffer_max_size: int = 0
    attention_dp_events_gather_period_ms: int = 5
    enable_partial_reuse: bool = True
    copy_on_partial_reuse: bool = True
    use_uvm: bool = False
    max_gpu_total_bytes: Annotated[int, Field(ge=0)] = 0
    dtype: str = "auto"
    mamba_ssm_cache_dtype: Literal["auto", "float16", "bfloat16", "float32"] = "auto"
    tokens_per_block: int = 32


class SchedulerConfig(StrictModel):
    capacity_scheduler_policy: Any = None
    context_chunking_policy: Any = None
    dynamic_batch_config: Any = None


class PeftCacheConfig(StrictModel):
    num_host_module_layer: int = 0
    num_device_module_layer: int = 0
    optimal_adapter_size: int = 8
    max_adapter_size: int = 64
    num_put_workers: int = 1
    num_ensure_workers: int = 1
    num_copy_streams: int = 1
    max_pages_per_block_host: int = 24
    max_pages_per_block_device: int = 8
    device_cache_percent: float = 0.02
    host_cache_size: int = 1073741824
    lora_prefetch_dir: str | None = None


class LoraConfig(StrictModel):
    lora_dir: list[str] = Field(default_factory=list)
    lora_ckpt_source: Literal["hf", "nemo"] = "hf"
    max_lora_rank: int = 64
    lora_target_modules: list[str] = Field(default_factory=list)
    trtllm_modules_to_hf_modules: dict[str, Any] = Field(default_factory=dict)
    max_loras: int | None = None
    max_cpu_loras: int | None = None


@dataclass(kw_only=True)
class GuidedDecodingParams:
    json: Any = None
    regex: str | None = None
    grammar: str | None = None
    json_object: bool = False
    structural_tag: str | None = None


@dataclass(kw_only=True)
class SamplingParams:
    end_id: int | None = None
    pad_id: int | None = None
    max_tokens: int = 32
    bad: str | list[str] | None = None
    bad_token_ids: list[int] | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    include_stop_str_in_output: bool = False
    embedding_bias: Any = None
    logits_processor: Any = None
    apply_batched_logits_processor: bool = False
    n: int = 1
    best_of: int | None = None
    use_beam_search: bool = False
    top_k: int | None = None
    top_p: float | None = None
    top_p_min: float | None = None
    top_p_reset_ids: int | None = None
    top_p_decay: float | None = None
    seed: int | None = None
    temperature: float | None = None
    min_tokens: int | None = None
    beam_search_diversity_rate: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    length_penalty: float | None = None
    early_stopping: int | None = None
    no_repeat_ngram_size: int | None = None
    min_p: float | None = None
    beam_width_array: list[int] | None = None
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    return_context_logits: bool = False
    return_generation_logits: bool = False
    exclude_input_from_output: bool = True
    return_encoder_output: bool = False
    return_perf_metrics: bool = False
    additional_model_outputs: list[str] | None = None
    lookahead_config: Any = None
    guided_decoding: Any = None
    ignore_eos: bool = False
    detokenize: bool = True
    add_special_tokens: bool = True
    truncate_prompt_tokens: int | None = None
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True


@dataclass
class CompletionOutput:
    index: Any
    text: Any = ""
    token_ids: Any = field(default_factory=list)
    cumulative_logprob: Any = None
    logprobs: Any = None
    prompt_logprobs: Any = None
    finish_reason: Any = None
    stop_reason: Any = None
    generation_logits: Any = None
    disaggregated_params: Any = None
    request_perf_metrics: Any = None
    additional_context_outputs: Any = None
    additional_generation_outputs: Any = None
