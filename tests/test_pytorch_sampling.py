"""From a request to the arguments of SamplingParams, held against the contract."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cog_triton.errors import UnsupportedInput
from cog_triton.runtimes.sampling_params import sampling_arguments
from cog_triton.runtimes.slot_request import SlotRequest
from cog_triton.runtimes.stop_words import StopWordWatch

CONTRACT: dict[str, Any] = json.loads(
    (Path(__file__).parent / "data/contracts/llm_api.json").read_text()
)
FIELDS = {field["name"] for field in CONTRACT["SamplingParams"]["fields"]}
SAMPLED = {"temperature": 0.7, "top_k": 40, "top_p": 0.9}
ALWAYS = {"max_tokens": 8, "detokenize": False, "include_stop_str_in_output": True}


def arguments(**changes: Any) -> dict[str, object]:
    values: dict[str, Any] = {"end_id": 2, **changes}
    return sampling_arguments(SlotRequest("", np.array([5, 6]), 8, **values))


def test_a_bad_word_of_several_tokens_is_refused() -> None:
    """The API takes single ids, and text, which it would need a tokenizer for."""
    with pytest.raises(UnsupportedInput, match="word of several tokens; the pytorch runtime"):
        arguments(bad_words=((7,), (8, 9)))


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, {"end_id": 2, "top_k": 1}),
        ({"end_id": None}, {"end_id": -1, "ignore_eos": True, "top_k": 1}),
        ({"pad_id": 0}, {"end_id": 2, "pad_id": 0, "top_k": 1}),
        ({"temperature": 0.0, "top_p": 0.9}, {"end_id": 2, "top_k": 1}),
        ({"top_k": 1, "top_p": 0.9}, {"end_id": 2, "top_k": 1}),
        (SAMPLED, {"end_id": 2, **SAMPLED}),
        ({**SAMPLED, "top_k": 0}, {"end_id": 2, **SAMPLED, "top_k": 0}),
        ({**SAMPLED, "top_p": 0.0}, {"end_id": 2, **SAMPLED, "top_p": 1.0}),
        ({**SAMPLED, "seed": 0}, {"end_id": 2, **SAMPLED, "seed": 0}),
        ({**SAMPLED, "min_p": 0.1}, {"end_id": 2, **SAMPLED, "min_p": 0.1}),
        (
            {"min_p": 0.1},
            {"end_id": 2, "temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.1},
        ),
        ({"min_tokens": 3}, {"end_id": 2, "top_k": 1, "min_tokens": 3}),
        ({"repetition_penalty": 1.1}, {"end_id": 2, "top_k": 1, "repetition_penalty": 1.1}),
        ({"presence_penalty": -0.5}, {"end_id": 2, "top_k": 1, "presence_penalty": -0.5}),
        ({"frequency_penalty": 0.5}, {"end_id": 2, "top_k": 1, "frequency_penalty": 0.5}),
        ({"return_log_probs": True}, {"end_id": 2, "top_k": 1, "logprobs": 1}),
        ({"bad_words": ((7,), (8,))}, {"end_id": 2, "top_k": 1, "bad_token_ids": [7, 8]}),
        ({"stop_words": ((7,), (8, 9))}, {"end_id": 2, "top_k": 1, "stop_token_ids": [7]}),
    ],
)
def test_one_by_one(changes: dict[str, Any], expected: dict[str, object]) -> None:
    """Each value of a request becomes one argument; one that asks for nothing becomes none."""
    assert arguments(**changes) == {**ALWAYS, **expected}


def test_everything_emitted_is_in_the_contract() -> None:
    """The full request names nothing that SamplingParams 1.1 does not have."""
    emitted = arguments(
        **SAMPLED,
        pad_id=0,
        seed=1,
        min_p=0.1,
        min_tokens=2,
        repetition_penalty=1.1,
        presence_penalty=0.1,
        frequency_penalty=0.1,
        return_log_probs=True,
        bad_words=((7,),),
        stop_words=((8,),),
    )
    covered = emitted.keys() | arguments(end_id=None).keys()
    assert covered <= FIELDS
    assert sorted(covered) == [
        *("bad_token_ids", "detokenize", "end_id", "frequency_penalty", "ignore_eos"),
        *("include_stop_str_in_output", "logprobs", "max_tokens", "min_p", "min_tokens"),
        *("pad_id", "presence_penalty", "repetition_penalty", "seed", "stop_token_ids"),
        *("temperature", "top_k", "top_p"),
    ]
    for name in covered:
        assert f"{name}x" not in FIELDS


def first_stop(ids: list[int], words: list[list[int]]) -> int | None:
    """The plain way: the shortest beginning that ends with a word."""
    for end in range(1, len(ids) + 1):
        if any(ids[:end][-len(word) :] == word for word in words):
            return end
    return None


@given(
    ids=st.lists(st.integers(0, 2), max_size=30),
    words=st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=4), max_size=3),
    cuts=st.lists(st.integers(0, 30)),
)
def test_how_a_stream_is_cut_never_moves_the_stop(
    ids: list[int], words: list[list[int]], cuts: list[int]
) -> None:
    """The stop word is found at the same place, however the ids arrive."""
    watch = StopWordWatch(words)
    edges = [0, *sorted(min(cut, len(ids)) for cut in cuts), len(ids)]
    found = None
    for start, end in itertools.pairwise(edges):
        keep = watch.feed(ids[start:end])
        if keep is not None:
            found = start + keep
            break
    assert found == first_stop(ids, words)
