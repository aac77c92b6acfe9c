"""What fills the `tensorrt_llm` template for the C++ backend: the `tensorrt` runtime.

Every variable of the template (TensorRT-LLM 1.1) can be set under `tensorrt:` in the settings,
except those that follow from other settings. What is left out there and has no default here
is left out of the config, so that the backend's own default holds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from cog_triton.errors import ModelRepositoryError, SettingsError
from cog_triton.template import nearest
from cog_triton.template_values import check
from cog_triton.template_variables import TENSORRT_LLM

SECTION = "tensorrt"

DEFAULTS: Mapping[str, object] = {
    "batching_strategy": "inflight_fused_batching",
    "max_queue_delay_microseconds": 0,
    "max_queue_size": 0,
    "encoder_input_features_data_type": "TYPE_FP16",
    "logits_datatype": "TYPE_FP32",
    "prompt_embedding_table_data_type": "TYPE_FP16",
    # The backend's own defaults, written out because people look for them here.
    "batch_scheduler_policy": "guaranteed_no_evict",
    "kv_cache_free_gpu_mem_fraction": 0.9,
    # The backend's default gives the prompt back with an answer that is not streamed.
    "exclude_input_in_output": True,
    # As the Python runtimes of this project; the backend's default is 100.
    "cancellation_check_period_ms": 50,
}

SET_ELSEWHERE: Mapping[str, str] = {
    "triton_backend": "the setting runtime",
    "triton_max_batch_size": "the setting engine.max_batch_size",
    "decoupled_mode": "the runtime: streaming needs it on",
    "engine_dir": "the setting model",
    "max_beam_width": "the setting engine.max_beam_width",
}
"""Variables that cannot be set under `tensorrt:`, and what they follow from."""

NEED_ALL: tuple[tuple[str, tuple[str, ...]], ...] = (
    (
        "decoding_mode=lookahead",
        ("lookahead_window_size", "lookahead_ngram_size", "lookahead_verification_set_size"),
    ),
    ("guided_decoding_backend", ("xgrammar_tokenizer_info_path",)),
)
"""A variable (or a value of it), and those that the backend then cannot do without."""

_KNOWN = {variable.name: variable for variable in TENSORRT_LLM}


@dataclass(frozen=True)
class TensorRTConfig:
    """What the settings and the engine decide; None leaves a value to `DEFAULTS`.

    `logits_datatype` is TYPE_FP32 or TYPE_FP16 and must be the engine's own, or every
    response with logits fails.
    """

    engine_dir: Path
    max_batch_size: int
    max_beam_width: int = 1
    enable_kv_cache_reuse: bool = True
    kv_cache_free_gpu_mem_fraction: float | None = None
    max_tokens_in_paged_kv_cache: int | None = None
    logits_datatype: str | None = None


def template_values(
    config: TensorRTConfig, overrides: Mapping[str, object] | None = None
) -> dict[str, object]:
    """Values of the template variables of the model `tensorrt_llm`, by contract name.

    `overrides` is the settings' section `tensorrt`. Raises SettingsError that names the key
    for a variable that does not exist, is set elsewhere, has a value of the wrong kind or
    out of range, or lacks another one that it needs.
    """
    given = dict(overrides or {})
    _check_names(given)
    planned = {
        "triton_backend": "tensorrtllm",
        "triton_max_batch_size": config.max_batch_size,
        "decoupled_mode": True,
        "engine_dir": config.engine_dir,
        "max_beam_width": config.max_beam_width,
        "enable_kv_cache_reuse": config.enable_kv_cache_reuse,
        "kv_cache_free_gpu_mem_fraction": config.kv_cache_free_gpu_mem_fraction,
        "max_tokens_in_paged_kv_cache": config.max_tokens_in_paged_kv_cache,
        "logits_datatype": config.logits_datatype,
    }
    chosen = {name: value for name, value in planned.items() if value is not None}
    values = {**DEFAULTS, **chosen, **given}
    _check_values(values)
    _check_needs(values)
    return values


def _check_names(given: Mapping[str, object]) -> None:
    for name in given:
        if name in SET_ELSEWHERE:
            raise SettingsError(f"{SECTION}.{name} follows from {SET_ELSEWHERE[name]}.")
        if name not in _KNOWN:
            hint = nearest(name, _KNOWN.keys() - SET_ELSEWHERE.keys())
            raise SettingsError(f"{SECTION}.{name} is not a known key{hint}.")


def _check_values(values: Mapping[str, object]) -> None:
    for name, value in values.items():
        try:
            check(_KNOWN[name], value, source=SECTION)
        except ModelRepositoryError as err:
            raise SettingsError(err.detail) from err


def _check_needs(values: Mapping[str, object]) -> None:
    for condition, needed in NEED_ALL:
        name, _, value = condition.partition("=")
        if name not in values or (value and values[name] != value):
            continue
        missing = [other for other in needed if values.get(other) in (None, "")]
        if missing:
            raise SettingsError(f"{SECTION}.{condition} needs {', '.join(missing)} as well.")
