"""An engine's `config.json`, read with a default for every key that older releases lack.

Names and layout: TensorRT-LLM 1.1, `EngineConfig` in tensorrt_llm/builder.py and `Mapping` in
tensorrt_llm/mapping.py.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cog_triton.errors import ArtifactCorrupt

# Passed to `Mapping(**…)` one by one when the file is loaded: a key outside this set fails there.
_MAPPING = """
    world_size gpus_per_node cp_size tp_size pp_size moe_tp_size moe_cluster_size moe_ep_size
    attn_tp_size attn_cp_size cp_config enable_attention_dp enable_lm_head_tp_in_adp
"""
MAPPING_KEYS = frozenset(_MAPPING.split())


@dataclass(frozen=True)
class EngineConfig:
    """What the checks and the runtime need of an engine; lengths and sizes in tokens.

    `max_input_len`, `max_num_tokens` and the like are None where the file does not say.
    """

    version: str
    architecture: str
    dtype: str
    logits_dtype: str
    quant_algo: str | None
    kv_cache_quant_algo: str | None
    tp_size: int
    pp_size: int
    cp_size: int
    world_size: int
    unknown_mapping_keys: tuple[str, ...]
    max_input_len: int | None
    max_seq_len: int | None
    max_batch_size: int | None
    max_beam_width: int
    max_num_tokens: int | None
    kv_cache_type: str
    gather_context_logits: bool
    gpt_attention_plugin: str | None
    remove_input_padding: bool
    use_paged_context_fmha: bool
    tokens_per_block: int
    rank_files: tuple[int, ...]

    @property
    def can_share_kv_blocks(self) -> bool:
        """Whether KV cache reuse and chunked context are possible; both need the same."""
        return self.use_paged_context_fmha and self.kv_cache_type == "PAGED"

    @staticmethod
    def read(directory: Path) -> EngineConfig:
        """From an engine directory.

        Raises: ArtifactCorrupt for a file that is not an engine's, or of a release before 0.8.
        """
        path = directory / "config.json"
        try:
            config = json.loads(path.read_bytes())
        except (OSError, ValueError) as err:
            raise ArtifactCorrupt(f"{path} cannot be read ({err})") from err
        if not isinstance(config, dict):
            raise ArtifactCorrupt(f"{path} is not a JSON object")
        if "builder_config" in config:
            raise ArtifactCorrupt(
                f"{path} has builder_config: the layout of TensorRT-LLM 0.7 and before, which no "
                "later release loads; build the engine again from its checkpoint"
            )
        for key in ("pretrained_config", "build_config"):
            if not isinstance(config.get(key), dict):
                raise ArtifactCorrupt(f"{path} has no {key}, so it is not an engine's config")
        try:
            return _parse(config, _rank_files(directory))
        except (TypeError, ValueError, AttributeError) as err:
            raise ArtifactCorrupt(f"{path} cannot be understood ({err})") from err


def _parse(config: dict[str, Any], rank_files: tuple[int, ...]) -> EngineConfig:
    model, build = config["pretrained_config"], config["build_config"]
    mapping = model.get("mapping") or {}
    plugins = build.get("plugin_config") or {}
    quantization = model.get("quantization") or {}
    tp_size, pp_size = int(mapping.get("tp_size", 1)), int(mapping.get("pp_size", 1))
    cp_size = int(mapping.get("cp_size", 1))
    return EngineConfig(
        version=str(config.get("version", "unknown")),
        architecture=str(model.get("architecture", "")),
        dtype=str(model.get("dtype", "float16")),
        logits_dtype=str(model.get("logits_dtype") or "float32"),
        quant_algo=quantization.get("quant_algo"),
        kv_cache_quant_algo=quantization.get("kv_cache_quant_algo"),
        tp_size=tp_size,
        pp_size=pp_size,
        cp_size=cp_size,
        world_size=int(mapping.get("world_size", tp_size * pp_size * cp_size)),
        unknown_mapping_keys=tuple(sorted(set(mapping) - MAPPING_KEYS)),
        max_input_len=_int(build, "max_input_len"),
        max_seq_len=_int(build, "max_seq_len"),
        max_batch_size=_int(build, "max_batch_size"),
        max_beam_width=_int(build, "max_beam_width") or 1,
        max_num_tokens=_int(build, "max_num_tokens"),
        kv_cache_type=_kv_cache_type(build, plugins),
        gather_context_logits=bool(build.get("gather_context_logits", False)),
        gpt_attention_plugin=plugins.get("gpt_attention_plugin"),
        remove_input_padding=bool(plugins.get("remove_input_padding", False)),
        use_paged_context_fmha=bool(plugins.get("use_paged_context_fmha", False)),
        tokens_per_block=_int(plugins, "tokens_per_block") or 32,
        rank_files=rank_files,
    )


def _kv_cache_type(build: dict[str, Any], plugins: dict[str, Any]) -> str:
    """PAGED, CONTINUOUS or DISABLED; before 0.13 only the plugin option said it."""
    if build.get("kv_cache_type"):
        return str(build["kv_cache_type"]).rsplit(".", 1)[-1].upper()
    return "CONTINUOUS" if plugins.get("paged_kv_cache") is False else "PAGED"


def _int(section: dict[str, Any], key: str) -> int | None:
    value = section.get(key)
    return None if value is None else int(value)


def _rank_files(directory: Path) -> tuple[int, ...]:
    """Ranks of the `rank<N>.engine` files that lie there, in order."""
    names = (re.fullmatch(r"rank([0-9]+)\.engine", path.name) for path in directory.iterdir())
    return tuple(sorted(int(match[1]) for match in names if match))
