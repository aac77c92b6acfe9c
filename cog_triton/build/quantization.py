"""Quantisation: how each kind is asked for, from a conversion script and from the LLM API.

Scripts: convert_checkpoint.py of TensorRT-LLM 1.1, per family. The LLM API: `QuantConfig` with a
`QuantAlgo`, which calibrates with modelopt where the algorithm needs it; FP8 per tensor and AWQ
of unquantised weights go this way only.
"""

from __future__ import annotations

from cog_triton.build.convert import FLAGS
from cog_triton.build.families import Family
from cog_triton.build.flag import Value
from cog_triton.errors import UnsupportedModel
from cog_triton.settings import BuildSettings

QUANT_ALGOS = {
    "int8_weight_only": "W8A16",
    "int4_weight_only": "W4A16",
    "smoothquant": "W8A8_SQ_PER_CHANNEL_PER_TOKEN_PLUGIN",
    "fp8": "FP8",
    "fp8_rowwise": "FP8_PER_CHANNEL_PER_TOKEN",
    "int4_awq": "W4A16_AWQ",
}
KV_CACHE_QUANT_ALGOS = {"int8": "INT8", "fp8": "FP8"}


def convert_values(family: Family, build: BuildSettings) -> dict[str, Value] | None:
    """Flags of the family's script for the settings' quantisation, None if it has none for it."""
    values = _weights(build)
    if values is None:
        return None
    if build.kv_cache_quantization != "none":
        values[f"{build.kv_cache_quantization}_kv_cache"] = True
    flags = FLAGS[family.script]
    for name, value in values.items():
        known = flags.get(name)
        if known is None or (known.choices and value not in known.choices):
            return None
    return values


def quant_config(family: Family, build: BuildSettings) -> dict[str, Value]:
    """Fields of `QuantConfig`, {} for no quantisation.

    Raises: UnsupportedModel for what the family does not have.
    """
    if build.quantization == "smoothquant" and "smoothquant" not in FLAGS[family.script]:
        having = ", ".join(script for script, flags in FLAGS.items() if "smoothquant" in flags)
        raise UnsupportedModel(
            f"build.quantization smoothquant does not exist for {family.name}; it does for {having}"
        )
    fields: dict[str, Value] = {}
    if build.quantization != "none":
        fields["quant_algo"] = QUANT_ALGOS[build.quantization]
    if build.quantization == "smoothquant":
        fields["smoothquant_val"] = build.smoothquant_alpha
    if build.kv_cache_quantization != "none":
        fields["kv_cache_quant_algo"] = KV_CACHE_QUANT_ALGOS[build.kv_cache_quantization]
    return fields


def _weights(build: BuildSettings) -> dict[str, Value] | None:
    kind = build.quantization
    if kind == "none":
        return {}
    if kind in ("int8_weight_only", "int4_weight_only"):
        return {"use_weight_only": True, "weight_only_precision": kind.split("_", maxsplit=1)[0]}
    if kind == "smoothquant":
        return {"smoothquant": build.smoothquant_alpha, "per_channel": True, "per_token": True}
    if kind == "fp8_rowwise":
        return {"use_fp8_rowwise": True}
    if kind == "int4_awq" and build.quant_ckpt_path is not None:
        return {
            "use_weight_only": True,
            "weight_only_precision": "int4_awq",
            "quant_ckpt_path": str(build.quant_ckpt_path.absolute()),
        }
    return None
