"""`trtllm-build` of TensorRT-LLM 1.1: its flags, and the command that compiles a checkpoint.

Tensor and pipeline parallelism are no flags of it: they come with the checkpoint. Flags, choices
and defaults: tensorrt_llm/commands/build.py and tensorrt_llm/plugin/plugin.py.
"""

from __future__ import annotations

from pathlib import Path

from cog_triton.build.flag import Flag, FlagTable, Kind, Value, lookup, render, table
from cog_triton.errors import SettingsError

_DTYPES = ("auto", "float16", "float32", "bfloat16", "int32")
_FP8 = ("fp8", "disable")
_LORA_MODULES = """
    attn_qkv attn_q attn_k attn_v attn_dense mlp_h_to_4h mlp_4h_to_h mlp_gate cross_attn_qkv
    cross_attn_q cross_attn_k cross_attn_v cross_attn_dense moe_h_to_4h moe_4h_to_h moe_gate
    moe_router mlp_router mlp_gate_up
"""
_DRAFT_MODES = ("draft_tokens_external", "lookahead_decoding", "medusa", "explicit_draft_tokens")
_LOG_LEVELS = ("internal_error", "error", "warning", "info", "verbose", "debug", "trace")


def _plugin(name: str, *choices: str) -> Flag:
    return Flag(name, Kind.TEXT, (*(choices or _DTYPES), "disable"))


def _enable(*names: str) -> list[Flag]:
    return [Flag(name, Kind.ENABLE, ("enable", "disable")) for name in names]


def _switches(*names: str) -> list[Flag]:
    return [Flag(name, Kind.SWITCH) for name in names]


FLAGS: FlagTable = table(
    [
        *map(Flag, ("checkpoint_dir", "model_config", "build_config", "output_dir")),
        *map(Flag, ("model_cls_file", "model_cls_name", "visualize_network")),
        Flag("max_batch_size", Kind.INT),
        Flag("max_input_len", Kind.INT),
        Flag("max_seq_len", Kind.INT, aliases=("max_decoder_seq_len",)),
        Flag("max_beam_width", Kind.INT),
        Flag("max_num_tokens", Kind.INT),
        Flag("opt_num_tokens", Kind.INT),
        Flag("max_encoder_input_len", Kind.INT),
        Flag("max_prompt_embedding_table_size", Kind.INT, aliases=("max_multimodal_len",)),
        Flag("kv_cache_type", Kind.TEXT, ("continuous", "paged", "disabled")),
        *map(Flag, ("paged_kv_cache", "input_timing_cache", "output_timing_cache")),
        Flag("profiling_verbosity", Kind.TEXT, ("layer_names_only", "detailed", "none")),
        *_switches("strip_plan", "weight_sparsity", "weight_streaming", "fast_build"),
        Flag("workers", Kind.INT),
        Flag("log_level", Kind.TEXT, _LOG_LEVELS),
        *_switches("enable_debug_output", "dry_run", "monitor_memory"),
        Flag("logits_dtype", Kind.TEXT, ("float16", "float32")),
        *_switches("gather_context_logits", "gather_generation_logits", "gather_all_token_logits"),
        Flag("lora_dir", Kind.LIST),
        Flag("lora_ckpt_source", Kind.TEXT, ("hf", "nemo")),
        Flag("lora_target_modules", Kind.LIST, tuple(_LORA_MODULES.split())),
        Flag("max_lora_rank", Kind.INT),
        Flag("speculative_decoding_mode", Kind.TEXT, (*_DRAFT_MODES, "eagle")),
        Flag("max_draft_len", Kind.INT),
        *map(_plugin, ("bert_attention_plugin", "gpt_attention_plugin", "nccl_plugin")),
        *map(_plugin, ("lora_plugin", "moe_plugin", "mamba_conv1d_plugin")),
        _plugin("fp8_rowwise_gemm_plugin"),
        _plugin("gemm_plugin", *_DTYPES, "fp8", "nvfp4"),
        _plugin("gemm_allreduce_plugin", "float16", "bfloat16"),
        Flag("gemm_swiglu_plugin", Kind.TEXT, _FP8),
        Flag("low_latency_gemm_plugin", Kind.TEXT, _FP8),
        Flag("low_latency_gemm_swiglu_plugin", Kind.TEXT, _FP8),
        *_enable("dora_plugin", "context_fmha", "bert_context_fmha_fp32_acc"),
        *_enable("remove_input_padding", "norm_quant_fusion", "reduce_fusion", "user_buffer"),
        Flag("tokens_per_block", Kind.INT),
        *_enable("use_paged_context_fmha", "use_fp8_context_fmha", "fuse_fp4_quant"),
        *_enable("multiple_profiles", "paged_state", "streamingllm", "use_fused_mlp"),
        *_enable("pp_reduce_scatter"),
    ]
)

# Flags that follow from other settings, and flags that this product's Triton models rule out.
FROM_SETTINGS = {
    "max_batch_size": "engine.max_batch_size",
    "max_input_len": "engine.max_input_len",
    "max_seq_len": "engine.max_seq_len",
    "max_beam_width": "engine.max_beam_width",
    "max_num_tokens": "engine.max_num_tokens",
    "workers": "build.workers",
    "checkpoint_dir": "model",
    "output_dir": "cache_dir",
}
_RULED_OUT = {
    "paged_kv_cache": "it is deprecated; use kv_cache_type, which is paged by default",
    "build_config": "it would make trtllm-build ignore the sizes of this settings file",
    "model_config": "the checkpoint has its own",
    "output_timing_cache": "the cache stays in the build's own directory",
    "dry_run": "it writes no engine",
    "streamingllm": "TensorRT-LLM 1.1 refuses to build with it",
}
_MUST_BE = {"kv_cache_type": "paged", "remove_input_padding": "enable"}


def check_flags(values: dict[str, Value]) -> dict[str, Value]:
    """The flags of `build.flags` under their plain names; SettingsError for what cannot be set."""
    checked: dict[str, Value] = {}
    for name, value in values.items():
        flag = lookup(FLAGS, name, "build.flags")
        if flag.name in FROM_SETTINGS:
            raise SettingsError(f"build.flags.{flag.name} is set by {FROM_SETTINGS[flag.name]}.")
        if flag.name in _RULED_OUT:
            raise SettingsError(f"build.flags.{flag.name}: {_RULED_OUT[flag.name]}.")
        written = flag.argv(value, "build.flags")
        needed = _MUST_BE.get(flag.name)
        if needed is not None and written[-1] != needed:
            raise SettingsError(
                f"build.flags.{flag.name} is {written[-1]}, in-flight batching needs {needed}."
            )
        if flag.name == "gpt_attention_plugin" and written[-1] == "disable":
            raise SettingsError(
                "build.flags.gpt_attention_plugin is disable, in-flight batching needs it."
            )
        checked[flag.name] = value
    return checked


def command(
    program: str, checkpoint_dir: Path, output_dir: Path, scratch: Path, values: dict[str, Value]
) -> list[str]:
    """The whole command line; the timing cache, by default in the working directory, is moved."""
    placed: dict[str, Value] = {
        "checkpoint_dir": str(checkpoint_dir),
        "output_dir": str(output_dir),
        "output_timing_cache": str(scratch / "model.cache"),
        **values,
    }
    return [program, *render(FLAGS, placed, "trtllm-build")]
