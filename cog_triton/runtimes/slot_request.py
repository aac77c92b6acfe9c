"""The requests to the `tensorrt_llm` slot, parsed from the tensors of one Triton request.

Names, types and shapes are those of the model `tensorrt_llm` of TensorRT-LLM's
Triton backend 1.1. A tensor that the runtime cannot honour is an error, unless
it carries the value that asks for nothing.
"""

from __future__ import annotations

import json
import math
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from cog_triton.errors import PromptTooLong, UnsupportedInput, UserError

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


@dataclass(frozen=True)
class SlotRequest:
    """Token ids in, sampling parameters, and what the answer must carry.

    `batch_index` is set where one Triton request holds several prompts, `sequence_index`
    where it asks for several answers to a prompt.
    """

    request_id: str
    input_ids: npt.NDArray[np.int64]
    request_output_len: int
    streaming: bool = False
    exclude_input_in_output: bool = False
    end_id: int | None = None
    pad_id: int | None = None
    stop_words: tuple[tuple[int, ...], ...] = ()
    bad_words: tuple[tuple[int, ...], ...] = ()
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 0.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    min_tokens: int = 0
    seed: int | None = None
    return_log_probs: bool = False
    return_num_input_tokens: bool = False
    return_num_output_tokens: bool = False
    return_perf_metrics: bool = False
    arrival_time_ns: int = 0
    beam_width: int = 1
    len_penalty: float = 1.0
    early_stopping: bool = False
    batch_index: int | None = None
    sequence_index: int | None = None

    @property
    def greedy(self) -> bool:
        """TensorRT-LLM's rule: top_k 1, no top_k and no top_p at all, or temperature 0."""
        no_sampling = self.top_k == 0 and self.top_p == 0.0 and self.min_p == 0.0
        return self.top_k == 1 or self.temperature == 0.0 or no_sampling


def is_stop(arrays: Arrays) -> bool:
    """Whether the request asks to end the one that runs under the same id."""
    return "stop" in arrays and bool(arrays["stop"].any())


@dataclass(frozen=True)
class SlotLimits:
    """What the engine allows; `runtime` is the name to give where something is unsupported."""

    runtime: str
    vocab_size: int
    max_seq_len: int
    max_beam_width: int = 1


def parse(
    request_id: str,
    arrays: Arrays,
    parameters: str,
    limits: SlotLimits,
    *,
    arrival_time_ns: int = 0,
) -> list[SlotRequest]:
    """One request for each prompt of the batch and each answer asked for, in that order.

    `arrays` have the batch dimension first. Raises UnsupportedInput, PromptTooLong or
    UserError, each naming the tensor.
    """
    _refuse_unsupported(arrays, limits.runtime)
    batch_size = len(arrays["input_ids"]) if "input_ids" in arrays else 1
    requests: list[SlotRequest] = []
    for index in range(batch_size):
        row = {name: array[index : index + 1] for name, array in arrays.items()}
        if any(not array.size for array in row.values()):
            raise UserError("every tensor of a request must have a value for each prompt.")
        request = _parse_row(request_id, row, parameters, limits)
        request = replace(
            request,
            arrival_time_ns=arrival_time_ns,
            batch_index=index if batch_size > 1 else None,
        )
        requests += _sequences(request, _integer(row, "num_return_sequences", 1, minimum=1))
    return requests


def _sequences(request: SlotRequest, num: int) -> list[SlotRequest]:
    """`num` answers to one prompt: each samples with a seed of its own."""
    if num == 1:
        return [request]
    if request.beam_width > 1:
        raise UnsupportedInput("num_return_sequences with beam_width over 1 is not supported.")
    first_seed = request.seed if request.seed is not None else secrets.randbits(32)
    return [
        replace(request, seed=(first_seed + index) % 2**64, sequence_index=index)
        for index in range(num)
    ]


def _parse_row(request_id: str, arrays: Arrays, parameters: str, limits: SlotLimits) -> SlotRequest:
    vocab_size = limits.vocab_size
    input_ids = _input_ids(arrays, vocab_size)
    output_len = _integer(arrays, "request_output_len", None, minimum=1)
    if len(input_ids) + output_len > limits.max_seq_len:
        raise PromptTooLong(
            f"{len(input_ids)} prompt tokens and request_output_len {output_len} "
            f"exceed max_seq_len {limits.max_seq_len}."
        )
    top_p = _number(arrays, "runtime_top_p", 0.0, 0.0, 1.0)
    end_id = _integer(arrays, "end_id", -1, minimum=-1)
    pad_id = _integer(arrays, "pad_id", -1, minimum=-(2**31))
    return SlotRequest(
        request_id=request_id,
        input_ids=input_ids,
        request_output_len=output_len,
        streaming=_flag(arrays, "streaming"),
        exclude_input_in_output=_flag(arrays, "exclude_input_in_output"),
        end_id=None if end_id < 0 else end_id,
        pad_id=None if pad_id < 0 else pad_id,
        stop_words=_words(arrays, "stop_words_list", vocab_size),
        bad_words=_words(arrays, "bad_words_list", vocab_size),
        temperature=_number(arrays, "temperature", 1.0, 0.0, math.inf),
        top_k=_integer(arrays, "runtime_top_k", 0, minimum=0),
        top_p=top_p,
        min_p=_parameter(parameters, "min_p", 0.0, 0.0, 0.999),
        repetition_penalty=_number(arrays, "repetition_penalty", 1.0, 1e-6, math.inf),
        presence_penalty=_number(arrays, "presence_penalty", 0.0, -math.inf, math.inf),
        frequency_penalty=_number(arrays, "frequency_penalty", 0.0, -math.inf, math.inf),
        min_tokens=_min_tokens(arrays, parameters),
        seed=_seed(arrays, parameters),
        return_log_probs=_flag(arrays, "return_log_probs"),
        return_num_input_tokens=_flag(arrays, "return_num_input_tokens"),
        return_num_output_tokens=_flag(arrays, "return_num_output_tokens"),
        return_perf_metrics=_flag(arrays, "return_perf_metrics"),
        beam_width=_beam_width(arrays, limits),
        len_penalty=_number(arrays, "len_penalty", 1.0, -math.inf, math.inf),
        early_stopping=_flag(arrays, "early_stopping"),
    )


def _beam_width(arrays: Arrays, limits: SlotLimits) -> int:
    width = _integer(arrays, "beam_width", 1, minimum=1)
    if width > 1 and limits.runtime != "openvino":
        raise UnsupportedInput(f"beam_width is not supported by the {limits.runtime} runtime.")
    if width > limits.max_beam_width:
        raise UserError(
            f"beam_width is {width}, but engine.max_beam_width is {limits.max_beam_width}."
        )
    return width


def _refuse_unsupported(arrays: Arrays, runtime: str) -> None:
    if "decoder_input_ids" in arrays and arrays["decoder_input_ids"].size > 1:
        raise UnsupportedInput(f"decoder_input_ids is not supported by the {runtime} runtime.")
    for name, array in arrays.items():
        if name not in UNSUPPORTED:
            continue
        neutral = UNSUPPORTED[name]
        if neutral is None or any(value != neutral for value in array.flat):
            raise UnsupportedInput(f"{name} is not supported by the {runtime} runtime.")


def _input_ids(arrays: Arrays, vocab_size: int) -> npt.NDArray[np.int64]:
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


def _integer(arrays: Arrays, name: str, default: int | None, *, minimum: int) -> int:
    if name not in arrays:
        if default is None:
            raise UserError(f"{name} is required.")
        return default
    value = int(arrays[name].flat[0])
    if value < minimum:
        raise UserError(f"{name} is {value}, but must be {minimum} or more.")
    return value


def _number(arrays: Arrays, name: str, default: float, low: float, high: float) -> float:
    value = float(arrays[name].flat[0]) if name in arrays else default
    if not math.isfinite(value) or not low <= value <= high:
        raise UserError(f"{name} is {value}, which is out of range.")
    return value


def _flag(arrays: Arrays, name: str) -> bool:
    return name in arrays and bool(arrays[name].flat[0])


def _words(arrays: Arrays, name: str, vocab_size: int) -> tuple[tuple[int, ...], ...]:
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


def _min_tokens(arrays: Arrays, parameters: str) -> int:
    """The tensor, or the parameter of its older name (min_length, up to v0.19)."""
    older = int(_parameter(parameters, "min_length", 0, 0, 2**31 - 1))
    return _integer(arrays, "min_tokens", older, minimum=0)


def _seed(arrays: Arrays, parameters: str) -> int | None:
    """The tensor, or the parameter of its older name (random_seed, up to v0.19)."""
    if "seed" in arrays:
        return int(arrays["seed"].flat[0])
    older = int(_parameter(parameters, "random_seed", -1, 0, 2**63 - 1))
    return None if older < 0 else older


def _parameter(parameters: str, name: str, default: float, low: float, high: float) -> float:
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
