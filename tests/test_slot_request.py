"""Parsing the slot's tensors: what cannot be honoured is an error, never ignored."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cog_triton.errors import CogTritonError, PromptTooLong, UnsupportedInput, UserError
from cog_triton.runtimes.slot_request import UNSUPPORTED, SlotRequest, parse

CONTRACT = json.loads(
    (Path(__file__).parent / "data/contracts/tensorrt_llm_model.json").read_text()
)


def request(parameters: str = "", **tensors: Any) -> SlotRequest:
    arrays = {
        "input_ids": np.array([[5, 6, 7]], np.int32),
        "input_lengths": np.array([[3]], np.int32),
        "request_output_len": np.array([[10]], np.int32),
    }
    arrays.update(tensors)
    arrays = {name: array for name, array in arrays.items() if array is not None}
    return parse("id", arrays, parameters, vocab_size=100, max_seq_len=64)


def scalar(value: float | bool, dtype: Any = np.float32) -> np.ndarray[Any, Any]:
    return np.array([[value]], dtype)


@pytest.mark.parametrize(
    ("tensors", "error", "word"),
    [
        ({"input_ids": None}, UserError, "input_ids"),
        ({"request_output_len": None}, UserError, "request_output_len"),
        ({"request_output_len": scalar(0, np.int32)}, UserError, "request_output_len"),
        ({"request_output_len": scalar(62, np.int32)}, PromptTooLong, "max_seq_len"),
        ({"input_lengths": scalar(4, np.int32)}, UserError, "input_lengths"),
        ({"input_ids": np.array([[5, 6, 100]], np.int32)}, UserError, "input_ids"),
        ({"input_ids": np.array([[5, 6, -1]], np.int32)}, UserError, "input_ids"),
        ({"input_ids": np.array([[5], [6]], np.int32)}, UnsupportedInput, "batch"),
        ({"temperature": scalar(float("nan"))}, UserError, "temperature"),
        ({"runtime_top_p": scalar(1.5)}, UserError, "runtime_top_p"),
        ({"runtime_top_k": scalar(-1, np.int32)}, UserError, "runtime_top_k"),
        ({"stop_words_list": np.array([[[1, 2], [3, -1]]])}, UserError, "stop_words_list"),
        ({"bad_words_list": np.array([[[1, 2], [2, 1]]])}, UserError, "bad_words_list"),
        ({"bad_words_list": np.array([[[1, 100], [2, -1]]])}, UserError, "bad_words_list"),
        ({"beam_width": scalar(2, np.int32)}, UnsupportedInput, "beam_width"),
        ({"return_context_logits": scalar(True, bool)}, UnsupportedInput, "return_context_logits"),
        ({"prompt_embedding_table": np.ones((1, 2, 3))}, UnsupportedInput, "prompt_embedding"),
    ],
)
def test_refused(tensors: dict[str, Any], error: type[CogTritonError], word: str) -> None:
    """Each wrong or unsupported tensor is refused by name with its own kind of error."""
    with pytest.raises(error, match=word):
        request(**tensors)


@pytest.mark.parametrize("parameters", ['{"min_p": -0.1}', '{"min_p": 1}', '{"min_p": "x"}'])
def test_min_p_out_of_range(parameters: str) -> None:
    """min_p travels as a request parameter and is checked like a tensor."""
    with pytest.raises(UserError, match="min_p"):
        request(parameters)


def test_every_input_of_the_contract_is_either_read_or_refused() -> None:
    """No input of the contract is ignored: it is parsed, refused, or acts on beams alone."""
    read = {
        "input_ids", "input_lengths", "request_output_len", "streaming", "end_id", "pad_id",
        "exclude_input_in_output", "stop_words_list", "bad_words_list", "temperature",
        "runtime_top_k", "runtime_top_p", "repetition_penalty", "presence_penalty",
        "frequency_penalty", "min_tokens", "seed", "return_log_probs", "return_num_input_tokens",
        "return_num_output_tokens", "stop",
    }  # fmt: skip
    beams_alone = {"len_penalty", "early_stopping", "beam_search_diversity_rate"}
    without_effect_upstream = {"runtime_top_p_min"}
    names = {tensor["name"] for tensor in CONTRACT["input"]}
    assert names == read | beams_alone | without_effect_upstream | set(UNSUPPORTED)


def test_a_neutral_value_of_an_unsupported_tensor_is_accepted() -> None:
    """NVIDIA's clients always send beam_width 1 and false flags: those ask for nothing."""
    parsed = request(
        beam_width=scalar(1, np.int32),
        num_return_sequences=scalar(1, np.int32),
        return_context_logits=scalar(False, bool),
    )
    assert parsed.request_output_len == 10


def test_seed_zero_is_a_seed() -> None:
    """0 is a value like any other; only a missing seed is none."""
    assert request(seed=scalar(0, np.uint64)).seed == 0
    assert request().seed is None


def test_word_lists_in_the_two_row_layout() -> None:
    """Row 0 holds the ids, row 1 the end offsets, padded with -1."""
    parsed = request(stop_words_list=np.array([[[1, 2, 3], [1, 3, -1]]], np.int32))
    assert parsed.stop_words == ((1,), (2, 3))


@pytest.mark.parametrize(
    ("tensors", "greedy"),
    [
        ({}, True),
        ({"runtime_top_k": scalar(1, np.int32), "runtime_top_p": scalar(0.9)}, True),
        ({"temperature": scalar(0.0), "runtime_top_p": scalar(0.9)}, True),
        ({"runtime_top_p": scalar(0.9)}, False),
        ({"runtime_top_k": scalar(5, np.int32)}, False),
    ],
)
def test_when_sampling_is_greedy(tensors: dict[str, Any], greedy: bool) -> None:
    """As in TensorRT-LLM: greedy unless top_k over 1 or top_p is given."""
    assert request(**tensors).greedy is greedy
