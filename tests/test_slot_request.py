"""Parsing the slot's tensors: what cannot be honoured is an error, never ignored."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cog_triton.errors import CogTritonError, PromptTooLong, UnsupportedInput, UserError
from cog_triton.runtimes.slot_request import SlotLimits, SlotRequest, parse
from cog_triton.runtimes.slot_tensors import UNSUPPORTED

CONTRACT = json.loads(
    (Path(__file__).parent / "data/contracts/tensorrt_llm_model.json").read_text()
)


LIMITS = SlotLimits("openvino", vocab_size=100, max_seq_len=64, max_beam_width=4)


def request(parameters: str = "", **tensors: Any) -> SlotRequest:
    arrays = {
        "input_ids": np.array([[5, 6, 7]], np.int32),
        "input_lengths": np.array([[3]], np.int32),
        "request_output_len": np.array([[10]], np.int32),
    }
    arrays.update(tensors)
    arrays = {name: array for name, array in arrays.items() if array is not None}
    (parsed,) = parse("id", arrays, parameters, LIMITS)
    return parsed


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
        ({"temperature": scalar(float("nan"))}, UserError, "temperature"),
        ({"runtime_top_p": scalar(1.5)}, UserError, "runtime_top_p"),
        ({"runtime_top_k": scalar(-1, np.int32)}, UserError, "runtime_top_k"),
        ({"stop_words_list": np.array([[[1, 2], [3, -1]]])}, UserError, "stop_words_list"),
        ({"bad_words_list": np.array([[[1, 2], [2, 1]]])}, UserError, "bad_words_list"),
        ({"bad_words_list": np.array([[[1, 100], [2, -1]]])}, UserError, "bad_words_list"),
        ({"beam_width": scalar(5, np.int32)}, UserError, "beam_width"),
        ({"beam_width": scalar(0, np.int32)}, UserError, "beam_width"),
        ({"beam_search_diversity_rate": scalar(0.5)}, UnsupportedInput, "diversity"),
        ({"return_context_logits": scalar(True, bool)}, UnsupportedInput, "return_context_logits"),
        ({"prompt_embedding_table": np.ones((1, 2, 3))}, UnsupportedInput, "prompt_embedding"),
        ({"decoder_input_ids": np.array([[1, 2]])}, UnsupportedInput, "decoder_input_ids"),
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
    """No input of the contract is ignored: it is parsed or refused."""
    read = {
        "input_ids", "input_lengths", "request_output_len", "streaming", "end_id", "pad_id",
        "exclude_input_in_output", "stop_words_list", "bad_words_list", "temperature",
        "runtime_top_k", "runtime_top_p", "repetition_penalty", "presence_penalty",
        "frequency_penalty", "min_tokens", "seed", "return_log_probs", "return_num_input_tokens",
        "return_num_output_tokens", "stop", "beam_width", "num_return_sequences", "len_penalty",
        "early_stopping", "return_perf_metrics",
    }  # fmt: skip
    without_effect_upstream = {"runtime_top_p_min"}
    read |= {"decoder_input_ids", "decoder_input_lengths"}
    names = {tensor["name"] for tensor in CONTRACT["input"]}
    assert names == read | without_effect_upstream | set(UNSUPPORTED)


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


def batch(**tensors: Any) -> list[SlotRequest]:
    arrays = {
        "input_ids": np.array([[5, 6, 7], [8, 9, 0]], np.int32),
        "input_lengths": np.array([[3], [2]], np.int32),
        "request_output_len": np.array([[10], [11]], np.int32),
        **tensors,
    }
    return parse("id", arrays, "", LIMITS)


def test_a_batch_is_a_request_for_each_prompt() -> None:
    """Each row has its own ids and values, and tells which one it is."""
    first, second = batch(seed=np.array([[1], [2]], np.uint64))
    assert (first.input_ids.tolist(), second.input_ids.tolist()) == ([5, 6, 7], [8, 9])
    assert (first.request_output_len, second.request_output_len) == (10, 11)
    assert (first.seed, second.seed) == (1, 2)
    assert (first.batch_index, second.batch_index) == (0, 1)


def test_a_tensor_that_lacks_rows_is_refused() -> None:
    """A batch of two with one value for a tensor is no broadcast, but an error."""
    with pytest.raises(UserError, match="each prompt"):
        batch(seed=np.array([[1]], np.uint64))


def test_several_answers_to_a_prompt_differ_in_their_seed() -> None:
    """num_return_sequences makes requests of their own, with consecutive seeds."""
    parsed = parse(
        "id",
        {
            "input_ids": np.array([[5]], np.int32),
            "input_lengths": np.array([[1]], np.int32),
            "request_output_len": np.array([[4]], np.int32),
            "num_return_sequences": np.array([[3]], np.int32),
            "seed": np.array([[2**64 - 1]], np.uint64),
        },
        "",
        LIMITS,
    )
    assert [single.sequence_index for single in parsed] == [0, 1, 2]
    assert [single.seed for single in parsed] == [2**64 - 1, 0, 1]


def test_older_names_come_as_parameters() -> None:
    """min_length and random_seed of older guides count where the newer tensors are absent."""
    older = '{"min_length": 3, "random_seed": 9}'
    assert (request(older).min_tokens, request(older).seed) == (3, 9)
    newer = request(older, min_tokens=scalar(1, np.int32), seed=scalar(2, np.uint64))
    assert (newer.min_tokens, newer.seed) == (1, 2)
    with pytest.raises(UserError, match="random_seed"):
        request('{"random_seed": -4}')
