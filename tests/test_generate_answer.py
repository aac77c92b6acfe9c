"""What the client makes of the events of one answer: whole, ended, or with tokens missing."""

from __future__ import annotations

import json
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cog_triton.errors import TritonIncompleteStream
from cog_triton.generate_client import _Answer
from cog_triton.generate_request import GenerateRequest

REQUEST = GenerateRequest(input_ids=[5], max_tokens=6, end_ids=(1, 3), pad_id=1)


def event(ids: list[int], counted: int | None) -> bytes:
    tensors: dict[str, object] = {"output_ids": ids[0] if len(ids) == 1 else ids}
    if counted is not None:
        tensors["num_output_tokens"] = counted
    return json.dumps(tensors).encode()


def read(payloads: Iterable[bytes]) -> list[int]:
    """The ids of a whole answer that arrives event by event."""
    answer = _Answer(REQUEST)
    ids = [token for payload in payloads for token in answer.read([payload])]
    return ids + answer.finish()


@pytest.mark.parametrize(
    "payloads",
    [
        [event([7], 1), event([8], 3)],
        [event([7], 2)],
        [event([7], 1), event([8, 9], 4), event([1], 5)],
    ],
)
def test_a_lost_response_is_noticed(payloads: list[bytes]) -> None:
    """A running total that is ahead of what arrived, in the first response or later."""
    with pytest.raises(TritonIncompleteStream, match="tokens, but"):
        read(payloads)


def test_an_end_without_a_reason_is_incomplete() -> None:
    """Neither an end id, nor an empty last response, nor all tokens that were asked for."""
    with pytest.raises(TritonIncompleteStream, match="without an end token"):
        read([event([7], 1), event([8], 2)])


@pytest.mark.parametrize(
    ("payloads", "ids"),
    [
        ([event([7], 1), event([1], 2)], [7, 1]),
        ([event([7], 1), event([3], 1)], [7, 3]),
        ([event([7], 1), event([8], 1), event([], 0)], [7, 8, 1]),
        ([event([7, 8], 2), event([], 2)], [7, 8, 1]),
        ([event([7, 1], 2), event([], 2)], [7, 1]),
        ([event([7, 8, 9, 7, 8, 9], 6)], [7, 8, 9, 7, 8, 9]),
        ([event([7, 8, 9, 7, 8, 9], 6), event([], 6)], [7, 8, 9, 7, 8, 9]),
        ([event([], 0)], [1]),
    ],
)
def test_every_way_that_an_answer_ends(payloads: list[bytes], ids: list[int]) -> None:
    """An end id, a further one, an empty response (the end id was held back), or the length."""
    assert read(payloads) == ids


@given(st.lists(st.lists(st.integers(4, 9), min_size=1, max_size=2), min_size=2, max_size=3))
def test_losing_any_response_but_the_last_is_noticed(chunks: list[list[int]]) -> None:
    """With running totals no response can vanish: the next one tells."""
    totals = [sum(map(len, chunks[: index + 1])) for index in range(len(chunks))]
    payloads = [event(ids, total) for ids, total in zip(chunks, totals, strict=True)]
    for lost in range(len(payloads) - 1):
        with pytest.raises(TritonIncompleteStream):
            read(payloads[:lost] + payloads[lost + 1 :])
