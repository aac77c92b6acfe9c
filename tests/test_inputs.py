"""Checking the inputs of a prediction: each wrong one ends with its own code."""

from __future__ import annotations

from typing import Any

import pytest

from cog_triton.errors import CogTritonError
from cog_triton.inputs import check


@pytest.mark.parametrize(
    ("values", "code"),
    [
        ({"prompt": ""}, "E1001"),
        ({"prompt": " \n"}, "E1001"),
        ({"prompt": "", "messages": []}, "E1001"),
        ({"prompt": "a", "messages": [{"role": "user", "content": "b"}]}, "E1104"),
        ({"min_tokens": -1}, "E1101"),
        ({"min_tokens": 2, "min_new_tokens": 2}, "E1101"),
        ({"min_tokens": 11, "max_tokens": 10}, "E1101"),
        ({"max_tokens": 0}, "E1102"),
        ({"max_tokens": -5}, "E1102"),
        ({"max_tokens": 10, "max_new_tokens": 20}, "E1102"),
        ({"max_new_tokens": 0}, "E1102"),
        ({"max_tokens": 2**40}, "E1102"),
        ({"temperature": -0.1}, "E1103"),
        ({"temperature": 5.1}, "E1103"),
        ({"temperature": float("nan")}, "E1103"),
        ({"temperature": float("inf")}, "E1103"),
        ({"top_p": 1.01}, "E1103"),
        ({"top_k": -2}, "E1103"),
        ({"min_p": 1.0}, "E1103"),
        ({"repetition_penalty": 0.0}, "E1103"),
        ({"presence_penalty": 2.5}, "E1103"),
        ({"frequency_penalty": -2.5}, "E1103"),
        ({"length_penalty": 99.0}, "E1103"),
        ({"seed": -1}, "E1103"),
        ({"seed": 2**64}, "E1103"),
        ({"stop_sequences": '["a", 1]'}, "E1000"),
    ],
)
def test_wrong_input(values: dict[str, Any], code: str) -> None:
    """The error carries the code of the input that is wrong, and says what to do."""
    with pytest.raises(CogTritonError) as caught:
        check({"prompt": "hello", **values})
    assert str(caught.value).startswith(code)
    assert caught.value.remedy


def test_defaults() -> None:
    """What is left out takes the documented default."""
    inputs = check({"prompt": "hello"})
    assert (inputs.max_tokens, inputs.min_tokens) == (512, 0)
    assert (inputs.sampling.temperature, inputs.sampling.top_p) == (0.7, 0.95)
    assert inputs.sampling.top_k == 0


def test_the_older_names() -> None:
    """max_new_tokens and min_new_tokens stand in for the newer names."""
    inputs = check({"prompt": "a", "max_tokens": 512, "max_new_tokens": 20, "min_new_tokens": 3})
    assert (inputs.max_tokens, inputs.min_tokens) == (20, 3)


def test_seed_zero_is_kept_and_a_missing_one_is_drawn() -> None:
    """0 is a seed; two predictions without one differ."""
    assert check({"prompt": "a", "seed": 0}).sampling.seed == 0
    seeds = {check({"prompt": "a"}).sampling.seed for _ in range(4)}
    assert len(seeds) > 1


def test_top_k_minus_one_is_off() -> None:
    """-1 means off in some servers; here it does too."""
    assert check({"prompt": "a", "top_k": -1}).sampling.top_k == 0


def test_sequences_with_commas_come_as_json() -> None:
    """Comma-separated text and a JSON list are both read."""
    inputs = check({"prompt": "a", "stop_sequences": "x,y", "bad_words": '["a, b"]'})
    assert list(inputs.stop_sequences) == ["x", "y"]
    assert list(inputs.bad_words) == ["a, b"]
