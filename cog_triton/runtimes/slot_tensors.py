"""Reading the tensors and parameters of a request to the `tensorrt_llm` slot, one by one.

Names, types and shapes are those of the model `tensorrt_llm` of TensorRT-LLM's Triton
backend 1.1. Each function raises UserError or UnsupportedInput that names the tensor.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from cog_triton.errors import UnsupportedInput, UserError

Arrays = Mapping[str, npt.NDArray[Any]]

UNSUPPORTED: dict[str, object] = {
    "encoder_input_features": None,
    "encoder_output_lengths": None,
    "draft_input_ids": None,
    "draft_logits": None,
    "draft_acceptance_threshold": None,
    "embedding_bias": None,
    "beam_search_diversity_rate": 0.0,
    "runtime_top_p_decay": 1.0,
    "runtime_top_p_reset_ids": -1,
    "return_context_logits": False,
    "return_generation_logits": False,
    "prompt_embedding_table": None,
    "prompt_table_extra_ids": None,
    "prompt_vocab_size": None,
    "cross_attention_mask": None,
    "mrope_rotary_cos_sin": None,
    "mrope_position_deltas": None,
    "lora_task_id": None,
    "lora_weights": None,
    "lora_config": None,
    "context_phase_params": None,
    "skip_cross_attn_blocks": False,
    "retention_token_range_starts": None,
    "retention_token_range_ends": None,
    "retention_token_range_priorities": None,
    "retention_token_range_durations_ms": None,
    "retention_decode_priority": None,
    "retention_decode_duration_ms": None,
    "guided_decoding_guide_type": None,
    "guided_decoding_guide": None,
    "lookahead_window_size": None,
    "lookahead_ngram_size": None,
    "lookahead_verification_set_size": None,
}
"""Tensors of the contract that no Python runtime honours, with the value that asks for nothing.

`runtime_top_p_min` is not here: it has no effect in the C++ backend either. Nor are
`decoder_input_ids` and `decoder_input_lengths`: preprocessing sends one id that stands for none.
"""


def refuse_unsupported(arrays: Arrays, runtime: str) -> None:
    """Raise UnsupportedInput for a tensor that asks for what `runtime` cannot do."""
    if "decoder_input_ids" in arrays and arrays["decoder_input_ids"].size > 1:
        raise UnsupportedInput(f"decoder_input_ids is not supported by the {runtime} runtime.")
    for name, array in arrays.items():
        if name not in UNSUPPORTED:
            continue
        neutral = UNSUPPORTED[name]
        if neutral is None or any(value != neutral for value in array.flat):
            raise UnsupportedInput(f"{name} is not supported by the {runtime} runtime.")


def input_ids(arrays: Arrays, vocab_size: int) -> npt.NDArray[np.int64]:
    """The prompt of one row, `[n]`, cut to input_lengths; every id lies in the vocabulary."""
    if "input_ids" not in arrays or "input_lengths" not in arrays:
        raise UserError("input_ids and input_lengths are required.")
    ids = arrays["input_ids"]
    length = int(arrays["input_lengths"].flat[0])
    flat = ids.reshape(-1)
    if not 1 <= length <= flat.size:
        raise UserError(f"input_lengths is {length}, but input_ids holds {flat.size} ids.")
    flat = flat[:length].astype(np.int64)
    if int(flat.min()) < 0 or int(flat.max()) >= vocab_size:
        raise UserError(f"input_ids must lie between 0 and {vocab_size - 1}.")
    return flat


def integer(arrays: Arrays, name: str, default: int | None, *, minimum: int) -> int:
    """A scalar tensor; without a default it is required."""
    if name not in arrays:
        if default is None:
            raise UserError(f"{name} is required.")
        return default
    value = int(arrays[name].flat[0])
    if value < minimum:
        raise UserError(f"{name} is {value}, but must be {minimum} or more.")
    return value


def number(arrays: Arrays, name: str, default: float, low: float, high: float) -> float:
    """A finite scalar tensor from `low` to `high`."""
    value = float(arrays[name].flat[0]) if name in arrays else default
    if not math.isfinite(value) or not low <= value <= high:
        raise UserError(f"{name} is {value}, which is out of range.")
    return value


def flag(arrays: Arrays, name: str) -> bool:
    """A boolean tensor; absent is false."""
    return name in arrays and bool(arrays[name].flat[0])


def words(arrays: Arrays, name: str, vocab_size: int) -> tuple[tuple[int, ...], ...]:
    """The `[2, n]` layout: ids one after another, then end offsets padded with -1."""
    if name not in arrays:
        return ()
    rows = arrays[name].reshape(2, -1)
    ends = [int(end) for end in rows[1] if end >= 0]
    starts = [0, *ends[:-1]]
    words = tuple(
        tuple(int(token) for token in rows[0][start:end])
        for start, end in zip(starts, ends, strict=True)
    )
    if ends != sorted(ends) or (ends and ends[-1] > rows.shape[1]) or not all(words):
        raise UserError(f"{name} has end offsets that do not fit its ids.")
    if any(not 0 <= token < vocab_size for word in words for token in word):
        raise UserError(f"{name} holds ids outside the vocabulary of {vocab_size}.")
    return words


def min_tokens(arrays: Arrays, parameters: str) -> int:
    """The tensor, or the parameter of its older name (min_length, up to v0.19)."""
    older = int(parameter(parameters, "min_length", 0, 0, 2**31 - 1))
    return integer(arrays, "min_tokens", older, minimum=0)


def seed(arrays: Arrays, parameters: str) -> int | None:
    """The tensor, or the parameter of its older name (random_seed, up to v0.19)."""
    if "seed" in arrays:
        return int(arrays["seed"].flat[0])
    older = int(parameter(parameters, "random_seed", -1, 0, 2**63 - 1))
    return None if older < 0 else older


def parameter(parameters: str, name: str, default: float, low: float, high: float) -> float:
    """A request parameter: what has no tensor in the contract, or had one under an older name."""
    value = json.loads(parameters).get(name) if parameters else None
    if value is None:
        return default
    try:
        number = float("nan") if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        number = float("nan")
    if not low <= number <= high:
        raise UserError(f"{name} is {value}, but must be a number from {low:g} to {high:g}.")
    return number
