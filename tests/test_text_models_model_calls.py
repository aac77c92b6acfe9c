"""Calls to a model: what is kept alive after their end, and for how long.

How the calls work is tested against the real server, in tests/integration/test_bls.py. That
an iterator freed too early corrupts memory shows there only once in some thousand calls.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from cog_triton.runtimes.text_models import model_calls
from cog_triton.runtimes.text_models.model_calls import ModelCalls


class Responses:
    """Stands for the backend's iterator; breaks after the first response if told so."""

    def __init__(self, breaks: bool) -> None:
        self._breaks = breaks

    def __iter__(self) -> Iterator[int]:
        yield 1
        if self._breaks:
            raise RuntimeError("broken")
        yield 2


def backend(made: list[Any], breaks: bool = False) -> Any:
    """As much of triton_python_backend_utils as a call needs."""

    def execute(decoupled: bool) -> Responses:
        assert decoupled
        responses = Responses(breaks)
        made.append(weakref.ref(responses))
        return responses

    def request(**values: Any) -> Any:
        made.append(values)
        return SimpleNamespace(exec=execute)

    return SimpleNamespace(InferenceRequest=request, Tensor=lambda name, _array: name)


@pytest.mark.parametrize("breaks", [True, False])
def test_an_ended_iterator_is_kept_for_a_while(
    monkeypatch: pytest.MonkeyPatch, breaks: bool
) -> None:
    """Until the backend's own thread has surely let go of it; then it goes, broken or not."""
    made: list[Any] = []
    calls = ModelCalls(backend(made, breaks), "llm")
    seen: list[Any] = []
    try:
        calls.read({}, {}, "1", seen.append)
    except RuntimeError:
        assert breaks
    assert seen == ([1] if breaks else [1, 2])
    assert made[1]() is not None
    assert calls.drop_ended() == model_calls.KEEP_S
    assert made[1]() is not None
    clock = time.monotonic() + model_calls.KEEP_S
    monkeypatch.setattr(model_calls, "time", SimpleNamespace(monotonic=lambda: clock))
    assert calls.drop_ended() is None
    assert made[1]() is None


def test_the_outputs_named_are_those_that_the_request_asks_for() -> None:
    """A request that names outputs has to name output_ids and sequence_length."""
    made: list[Any] = []
    asked = {"input_ids": np.zeros((1, 1)), "return_log_probs": np.array([[True]])}
    ModelCalls(backend(made), "llm").read(asked, {"min_p": "0.1"}, "7", lambda _response: None)
    assert made[0] == {
        "model_name": "llm",
        "request_id": "7",
        "requested_output_names": [
            *("output_ids", "sequence_length", "sequence_index"),
            *("cum_log_probs", "output_log_probs"),
        ],
        "inputs": ["input_ids", "return_log_probs"],
        "parameters": {"min_p": "0.1"},
    }
