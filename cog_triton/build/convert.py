"""`convert_checkpoint.py` of TensorRT-LLM 1.1: its flags for each family, and the command.

One script for each family, below examples/models/core; it sets data type, parallelism and
quantisation, which trtllm-build then finds in the converted checkpoint.
"""

from __future__ import annotations

from pathlib import Path

from cog_triton.build.flag import Flag, FlagTable, Kind, Value, lookup, render, table
from cog_triton.errors import SettingsError

_COMMON = (
    Flag("model_dir"),
    Flag("output_dir"),
    Flag("tp_size", Kind.INT),
    Flag("pp_size", Kind.INT),
    Flag("dtype", Kind.TEXT, ("auto", "float16", "bfloat16", "float32")),
    Flag("use_weight_only", Kind.SWITCH),
    Flag("workers", Kind.INT),
)
_MOE = (Flag("moe_tp_size", Kind.INT), Flag("moe_ep_size", Kind.INT))
# The aliases are short ones, with one dash.
_CALIBRATED = (
    Flag("calib_dataset"),
    Flag("smoothquant", Kind.FLOAT, aliases=("sq",)),
    Flag("per_channel", Kind.SWITCH),
    Flag("per_token", Kind.SWITCH),
    Flag("int8_kv_cache", Kind.SWITCH),
)
_EMBEDDING = (
    Flag("load_model_on_cpu", Kind.SWITCH),
    Flag("use_parallel_embedding", Kind.SWITCH),
    Flag("embedding_sharding_dim", Kind.INT, ("0", "1")),
)
_GROUPS = (
    Flag("cp_size", Kind.INT),
    Flag("disable_weight_only_quant_plugin", Kind.SWITCH),
    Flag("per_group", Kind.SWITCH),
    Flag("group_size", Kind.INT),
)


def _precision(*more: str) -> Flag:
    return Flag("weight_only_precision", Kind.TEXT, ("int8", "int4", *more))


def _flags(kind: Kind, *names: str) -> list[Flag]:
    return [Flag(name, kind) for name in names]


_LLAMA = table(
    [
        *_COMMON,
        *_MOE,
        *_CALIBRATED,
        *_EMBEDDING,
        *_GROUPS,
        _precision("int8_gptq", "int4_gptq", "int4_awq"),
        *_flags(Kind.TEXT, "meta_ckpt_dir", "quant_ckpt_path", "hidden_act", "log_level"),
        *_flags(Kind.INT, "vocab_size", "n_positions", "n_layer", "n_head", "n_kv_head", "n_embd"),
        *_flags(Kind.INT, "inter_size", "multiple_of", "calib_size", "calib_max_seq_length"),
        *_flags(Kind.INT, "moe_num_experts", "moe_top_k", "moe_renorm_mode"),
        *_flags(Kind.FLOAT, "ffn_dim_multiplier", "rms_norm_eps", "rotary_base"),
        *_flags(Kind.SWITCH, "use_qserve", "fp8_kv_cache", "use_fp8", "use_nvfp4"),
        *_flags(Kind.SWITCH, "use_fp8_rowwise", "use_meta_fp8_rowwise_recipe", "load_by_shard"),
        *_flags(Kind.SWITCH, "save_config_only", "remove_duplicated_kv_heads"),
    ]
)
_PHI = table([*_COMMON, *_MOE, _precision()])
_GPT = table(
    [
        *_COMMON,
        *_CALIBRATED,
        *_EMBEDDING,
        _precision(),
        *_flags(Kind.TEXT, "nemo_ckpt_path", "dataset_cache_dir", "log_level"),
        Flag(
            "gpt_variant",
            Kind.TEXT,
            ("gpt2", "santacoder", "starcoder", "starcoder2", "persimmon", "kosmos-2", "nemotron"),
        ),
        Flag("nemo_rename_key", Kind.LIST),
    ]
)
_QWEN = table(
    [*_COMMON, *_MOE, *_CALIBRATED, *_EMBEDDING, *_GROUPS, _precision("int4_gptq", "int8_gptq")]
)

# By the directory of the script; Mistral and Mixtral go through Llama's.
FLAGS: dict[str, FlagTable] = {"llama": _LLAMA, "phi": _PHI, "gpt": _GPT, "qwen": _QWEN}

FROM_SETTINGS = {
    "model_dir": "model",
    "output_dir": "cache_dir",
    "tp_size": "engine.tensor_parallel_size",
    "pp_size": "engine.pipeline_parallel_size",
    "dtype": "engine.dtype",
    "workers": "build.workers",
    "use_weight_only": "build.quantization",
    "weight_only_precision": "build.quantization",
    "smoothquant": "build.quantization and build.smoothquant_alpha",
    "use_fp8": "build.quantization",
    "use_fp8_rowwise": "build.quantization",
    "int8_kv_cache": "build.kv_cache_quantization",
    "fp8_kv_cache": "build.kv_cache_quantization",
    "quant_ckpt_path": "build.quant_ckpt_path",
}
_RULED_OUT = {
    "save_config_only": "it writes no weights",
    "cp_size": "the Triton models have no context parallelism",
}


def check_flags(script: str, values: dict[str, Value]) -> dict[str, Value]:
    """The flags of `build.convert_flags` under their plain names.

    Raises SettingsError for what the script does not know and for what another setting sets.
    """
    checked: dict[str, Value] = {}
    for name, value in values.items():
        flag = lookup(FLAGS[script], name, f"build.convert_flags ({script})")
        if flag.name in FROM_SETTINGS:
            raise SettingsError(
                f"build.convert_flags.{flag.name} is set by {FROM_SETTINGS[flag.name]}."
            )
        if flag.name in _RULED_OUT:
            raise SettingsError(f"build.convert_flags.{flag.name}: {_RULED_OUT[flag.name]}.")
        flag.argv(value, "build.convert_flags")
        checked[flag.name] = value
    return checked


def script_path(examples_dir: Path, script: str) -> Path:
    """Where the family's script lies since TensorRT-LLM 0.19."""
    return examples_dir.absolute() / "models" / "core" / script / "convert_checkpoint.py"


def command(
    python: str,
    path: Path,
    script: str,
    model_dir: Path,
    output_dir: Path,
    values: dict[str, Value],
) -> list[str]:
    """The whole command line."""
    placed: dict[str, Value] = {"model_dir": str(model_dir), "output_dir": str(output_dir)}
    arguments = render(FLAGS[script], {**placed, **values}, f"convert_checkpoint.py ({script})")
    return [python, str(path), *arguments]
