"""Tests of cog_triton.text.word_lists."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cog_triton.errors import UserError
from cog_triton.text.word_lists import from_word_list, parse_sequences, to_word_list

IDS = st.integers(0, 2**31 - 1)
WORDS = st.lists(st.lists(IDS, min_size=1, max_size=5), max_size=6)


@pytest.mark.parametrize(
    "value", ['["a", "b"', '["a", 1]', '["a", ["b"]]', '["a"], "b"', '[ "a\n" ]', '["INST]', "[]a"]
)
def test_a_broken_json_list_says_what_to_write(value: str) -> None:
    """A text that begins like a JSON list of strings and is none is the caller's error."""
    with pytest.raises(UserError, match=r'\["first", "second"\]') as caught:
        parse_sequences(value)
    assert caught.value.code == "E1000"


@pytest.mark.parametrize(
    ("value", "sequences"),
    [
        ("", []),
        ("<end>", ["<end>"]),
        ("<end>,<stop>", ["<end>", "<stop>"]),
        (",a,,b,", ["a", "b"]),
        ("a, b", ["a", " b"]),
        ("\n\n,User:", ["\n\n", "User:"]),
        (r"\n,a", [r"\n", "a"]),
        ("[INST],[/INST]", ["[INST]", "[/INST]"]),
        ("[", ["["]),
        ("[1, 2]", ["[1", " 2]"]),
        ('"a","b"', ['"a"', '"b"']),
        ("[]", []),
        ('["a, b", "", "c"]', ["a, b", "c"]),
        (' [ "\\n\\n" ] ', ["\n\n"]),
        ('["\\u00e9", "世界"]', ["é", "世界"]),
    ],
)
def test_sequences_are_comma_separated_or_json(value: str, sequences: list[str]) -> None:
    """Both forms give the sequences as written, without the empty ones."""
    assert parse_sequences(value) == sequences


@settings(max_examples=100, deadline=None)
@given(st.lists(st.text(min_size=1), min_size=1))
def test_any_sequences_can_be_written_as_json(sequences: list[str]) -> None:
    """The JSON form can carry every sequence."""
    assert parse_sequences(json.dumps(sequences)) == sequences


@pytest.mark.parametrize("words", [[[1], []], [[1, -1]], [[]]])
def test_words_without_tokens_are_refused(words: list[list[int]]) -> None:
    """A word without tokens, or a negative id, has no place in the layout."""
    with pytest.raises(ValueError, match="token id"):
        to_word_list(words)


@pytest.mark.parametrize(
    "values",
    [
        [1],
        [1, 2, 3],
        [[1, 2]],
        [[1, 2], [2]],
        [[1], [1], [1]],
        [[1, 2], [2, 1]],
        [[1, 2], [1, 1]],
        [[1, 2], [3, -1]],
        [[1, 2], [0, 2]],
        [[1, 2], [-1, 2]],
        [[1, 2], [2, -2]],
        [[-1, 2], [2, -1]],
        [[1.5, 2], [2, -1]],
        ["1", "2"],
        [None, 1],
    ],
)
def test_a_tensor_of_another_layout_is_refused(values: Any) -> None:
    """Rows of unequal length, offsets out of order or out of range and non-integers are errors."""
    with pytest.raises(ValueError, match="word list"):
        from_word_list(values)


def test_the_layout_is_the_backends() -> None:
    """Row 0 holds the ids one after another, row 1 the end offsets padded with -1."""
    assert to_word_list([[5, 6, 7], [8], [9, 10]]) == [5, 6, 7, 8, 9, 10, 3, 4, 6, -1, -1, -1]
    assert to_word_list([]) == []


def test_padding_of_a_batch_is_no_word() -> None:
    """Ids after the last offset are padding, and an entry of padding only has no words."""
    assert from_word_list([[5, 6, 0, 0], [2, -1, -1, -1]]) == [[5, 6]]
    assert from_word_list([0, -1]) == []
    assert from_word_list([[], []]) == []


@settings(max_examples=100, deadline=None)
@given(words=WORDS)
def test_words_come_back_from_both_forms(words: list[list[int]]) -> None:
    """The flat form and the two rows give the same words again."""
    flat = to_word_list(words)
    half = len(flat) // 2
    assert from_word_list(flat) == words
    assert from_word_list([flat[:half], flat[half:]]) == words


@settings(max_examples=100, deadline=None)
@given(values=st.lists(st.integers(-2, 6), max_size=12))
def test_what_is_accepted_has_a_meaning(values: list[int]) -> None:
    """Any numbers are either refused or read as words that write the same offsets again."""
    try:
        words = from_word_list(values)
    except ValueError:
        return
    half = len(values) // 2
    ends = [end for end in values[half:] if end != -1]
    again = to_word_list(words)
    assert again[: len(again) // 2] == values[: sum(map(len, words))]
    assert [end for end in again[len(again) // 2 :] if end != -1] == ends
