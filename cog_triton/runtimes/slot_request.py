"""The requests to the `tensorrt_llm` slot, parsed from the tensors of one Triton request.

Names, types and shapes are those of the model `tensorrt_llm` of TensorRT-LLM's
Triton backend 1.1. A tensor that the runtime cannot honour is an error, unless
it carries the value that asks for nothing.
"""

from __future__ import annotations

import math
import secrets
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from cog_triton.errors import PromptTooLong, UnsupportedInput, UserError
from cog_triton.runtimes import slot_tensors as tensors
from cog_triton.runtimes.slot_tensors import Arrays


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
    tensors.refuse_unsupported(arrays, limits.runtime)
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
        requests += _sequences(request, tensors.integer(row, "num_return_sequences", 1, minimum=1))
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
    input_ids = tensors.input_ids(arrays, vocab_size)
    output_len = tensors.integer(arrays, "request_output_len", None, minimum=1)
    if len(input_ids) + output_len > limits.max_seq_len:
        raise PromptTooLong(
            f"{len(input_ids)} prompt tokens and request_output_len {output_len} "
            f"exceed max_seq_len {limits.max_seq_len}."
        )
    top_p = tensors.number(arrays, "runtime_top_p", 0.0, 0.0, 1.0)
    end_id = tensors.integer(arrays, "end_id", -1, minimum=-1)
    pad_id = tensors.integer(arrays, "pad_id", -1, minimum=-(2**31))
    return SlotRequest(
        request_id=request_id,
        input_ids=input_ids,
        request_output_len=output_len,
        streaming=tensors.flag(arrays, "streaming"),
        exclude_input_in_output=tensors.flag(arrays, "exclude_input_in_output"),
        end_id=None if end_id < 0 else end_id,
        pad_id=None if pad_id < 0 else pad_id,
        stop_words=tensors.words(arrays, "stop_words_list", vocab_size),
        bad_words=tensors.words(arrays, "bad_words_list", vocab_size),
        temperature=tensors.number(arrays, "temperature", 1.0, 0.0, math.inf),
        top_k=tensors.integer(arrays, "runtime_top_k", 0, minimum=0),
        top_p=top_p,
        min_p=tensors.parameter(parameters, "min_p", 0.0, 0.0, 0.999),
        repetition_penalty=tensors.number(arrays, "repetition_penalty", 1.0, 1e-6, math.inf),
        presence_penalty=tensors.number(arrays, "presence_penalty", 0.0, -math.inf, math.inf),
        frequency_penalty=tensors.number(arrays, "frequency_penalty", 0.0, -math.inf, math.inf),
        min_tokens=tensors.min_tokens(arrays, parameters),
        seed=tensors.seed(arrays, parameters),
        return_log_probs=tensors.flag(arrays, "return_log_probs"),
        return_num_input_tokens=tensors.flag(arrays, "return_num_input_tokens"),
        return_num_output_tokens=tensors.flag(arrays, "return_num_output_tokens"),
        return_perf_metrics=tensors.flag(arrays, "return_perf_metrics"),
        beam_width=_beam_width(arrays, limits),
        len_penalty=tensors.number(arrays, "len_penalty", 1.0, -math.inf, math.inf),
        early_stopping=tensors.flag(arrays, "early_stopping"),
    )


def _beam_width(arrays: Arrays, limits: SlotLimits) -> int:
    width = tensors.integer(arrays, "beam_width", 1, minimum=1)
    if width > 1 and limits.runtime != "openvino":
        raise UnsupportedInput(f"beam_width is not supported by the {limits.runtime} runtime.")
    if width > limits.max_beam_width:
        raise UserError(
            f"beam_width is {width}, but engine.max_beam_width is {limits.max_beam_width}."
        )
    return width
