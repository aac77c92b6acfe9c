"""Requests and answers of the servers that the benchmark knows."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.load.events import BadAnswer, Event
from benchmarks.load.targets import TRITON_MODELS, Ask, Cog, Prompt, Target, total, triton

PROMPT = Prompt((5, 6, 7), "a b c")
STREAM = Ask(max_tokens=4)
WHOLE = Ask(max_tokens=4, stream=False, early_end=True)
IDS = triton("tensorrt_llm", [2, 3], 2)
TEXT = triton("ensemble", [2, 3], 2)


def events(*contents: dict[str, Any]) -> list[Event]:
    return [Event(float(at), content) for at, content in enumerate(contents, start=1)]


@pytest.mark.parametrize(
    ("target", "contents", "message"),
    [
        (Cog(), [], "ended as nothing"),
        (Cog(), [{"status": "processing"}], "ended as processing"),
        (Cog(), [{"status": "canceled"}], "ended as canceled"),
        (Cog(), [{"status": "succeeded", "metrics": {}}], "output_token_count"),
        (IDS, [{"output_ids": 1}, {"text": "x"}], "no output_ids"),
        (TEXT, [{"text_output": "x"}], "no num_output_tokens"),
        (TEXT, [], "no num_output_tokens"),
    ],
)
def test_an_answer_without_its_tokens_is_bad(
    target: Target, contents: list[dict[str, Any]], message: str
) -> None:
    """An answer that does not say how many tokens it has is an error, not zero tokens."""
    with pytest.raises(BadAnswer, match=message):
        target.read(events(*contents), STREAM)


def test_an_answer_of_cog() -> None:
    """The pieces give the times, the finished prediction the count of tokens."""
    last = {"status": "succeeded", "metrics": {"output_token_count": 9}}
    found = events({"status": "processing"}, {"chunk": "a"}, {"chunk": "b"}, last)
    assert Cog().read(found, STREAM).num_tokens == 9
    assert list(Cog().read(found, STREAM).arrivals) == [2.0, 3.0]
    assert list(Cog().read(events(last), WHOLE).arrivals) == []


def test_an_answer_of_ids() -> None:
    """A number is one id and a list any number; events without ids are no arrivals."""
    found = events({"output_ids": 8}, {"output_ids": [8, 9]}, {"output_ids": []})
    tokens = IDS.read(found, STREAM)
    assert (tokens.num_tokens, list(tokens.arrivals)) == (3, [1.0, 2.0])
    assert list(IDS.read(events({"output_ids": [8, 9]}), WHOLE).arrivals) == []


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        ([4], 4),
        ([1, 2, 3, 4], 4),
        ([1, 2, 4, 8], 8),
        ([1, 2, 3, 3], 3),
        ([1, 1, 1, 1], 4),
        ([1, 1, 1, 0], 3),
        ([1, 1], 2),
    ],
)
def test_both_ways_of_counting(counts: list[int], expected: int) -> None:
    """Counts of all tokens so far, and counts of each response, come to the same total."""
    assert total(counts) == expected


@pytest.mark.parametrize("model", TRITON_MODELS)
def test_what_is_asked_of_triton(model: str) -> None:
    """The stream is asked for by path and by flag; the least tokens hold unless it may end."""
    target = triton(model, [2, 3], 2)
    flag = "streaming" if model == "tensorrt_llm" else "stream"
    body = target.body(PROMPT, STREAM, seed=1)
    assert target.path(STREAM) == f"/v2/models/{model}/generate_stream"
    assert (body[flag], body["min_tokens"], body["seed"]) == (True, 4, 1)
    assert body["exclude_input_in_output"] is True
    whole = target.body(PROMPT, WHOLE, seed=1)
    assert target.path(WHOLE) == f"/v2/models/{model}/generate"
    assert whole[flag] is False
    assert not whole.get("min_tokens")


def test_what_is_asked_of_cog() -> None:
    """The prompt goes without a chat template, and a stream is asked for in the header."""
    body = Cog().body(PROMPT, STREAM, seed=1)["input"]
    assert (body["prompt"], body["prompt_template"]) == ("a b c", "{prompt}")
    assert (body["max_tokens"], body["min_tokens"]) == (4, 4)
    assert Cog().accept(STREAM) == "text/event-stream"
    assert Cog().accept(WHOLE) == "application/json"
