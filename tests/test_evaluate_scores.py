"""Scores of the quality check."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.quality.scores import ROUGE, match_tokens, rouge

IDS = st.lists(st.integers(0, 3), max_size=12)


@pytest.mark.parametrize(
    ("expected", "said", "num_common", "num_tokens", "exact"),
    [
        ([1, 2, 3], [4, 2, 3], 0, 3, False),
        ([1, 2, 3], [], 0, 3, False),
        ([1, 2, 3], [1, 2], 2, 3, False),
        ([1, 2], [1, 2, 3, 4], 2, 4, False),
        ([1, 2, 3, 4], [1, 2, 4, 4], 2, 4, False),
        ([1, 2, 3], [1, 2, 3], 3, 3, True),
    ],
)
def test_tokens_until_the_answers_part(
    expected: list[int], said: list[int], num_common: int, num_tokens: int, exact: bool
) -> None:
    """What is equal after the first difference does not count; a shorter answer is not exact."""
    found = match_tokens(expected, said)
    assert (found.num_common, found.num_tokens, found.exact) == (num_common, num_tokens, exact)
    assert found.share == pytest.approx(100 * num_common / num_tokens)


def test_two_empty_answers_are_equal() -> None:
    """Nothing expected and nothing said agree wholly."""
    assert (match_tokens([], []).share, match_tokens([], []).exact) == (100.0, True)


@given(IDS, IDS, IDS)
def test_a_match_is_the_common_beginning(common: list[int], one: list[int], two: list[int]) -> None:
    """It is at least what both begin with, the same both ways, and whole only if all is equal."""
    found = match_tokens(common + one, common + two)
    assert found == match_tokens(common + two, common + one)
    assert found.num_common >= len(common)
    assert found.exact == (one == two)
    assert (common + one)[: found.num_common] == (common + two)[: found.num_common]


def test_rouge_of_known_texts() -> None:
    """No word in common is 0, the same text 100, and half of the words 50 for single words."""
    score = rouge()
    assert score("one two", "three four") == dict.fromkeys(ROUGE, 0.0)
    assert score("the cat sat", "the cat sat") == pytest.approx(dict.fromkeys(ROUGE, 100.0))
    half = score("red green blue white", "red green black grey")
    assert half == pytest.approx({"rouge1": 50.0, "rouge2": 100 / 3, "rougeL": 50.0})
    assert score("", "words")["rouge1"] == 0.0
