"""Stop and bad words: the predictor's text inputs, and TensorRT-LLM's `[2, n]` layout."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from itertools import accumulate
from operator import index
from typing import cast

from cog_triton.errors import UserError

_PADDING = -1
# A plain "[INST]" is a stop sequence people use; only a list of strings looks like this.
_LOOKS_LIKE_JSON = re.compile(r"\[\s*[\"\]]")


def parse_sequences(value: str) -> list[str]:
    """Sequences of a `stop_sequences` or `bad_words` input; empty ones are dropped.

    Comma-separated (spaces belong to the sequence, a backslash is a backslash), or a
    JSON list of strings for sequences that hold a comma or need an escape such as "\\n".
    Raises UserError for a text that begins like a JSON list of strings and is none.
    """
    if not _LOOKS_LIKE_JSON.match(value.strip()):
        return [item for item in value.split(",") if item]
    try:
        items = json.loads(value)
    except ValueError as err:
        raise UserError(
            f"the sequences begin like a JSON list but are not valid JSON ({err});"
            ' write ["first", "second"], or a comma-separated text'
        ) from err
    if not all(isinstance(item, str) for item in items):
        raise UserError('a JSON list of sequences may hold only strings: ["first", "second"]')
    return [item for item in items if item]


def to_word_list(words: Sequence[Sequence[int]]) -> list[int]:
    """The `[2, n]` tensor of `stop_words_list` and `bad_words_list` as 2·n values in row order.

    Row 0 holds the token ids of all words one after another, row 1 the end offset of each
    word, padded with -1. No words give an empty list: leave the tensor out then.
    Raises ValueError for a word without tokens or a negative id.
    """
    ids = [token_id for word in words for token_id in word]
    if not all(words) or any(token_id < 0 for token_id in ids):
        raise ValueError("a word needs at least one token id, and ids are not negative")
    ends = list(accumulate(map(len, words)))
    return [*ids, *ends, *[_PADDING] * (len(ids) - len(ends))]


def from_word_list(values: Sequence[int] | Sequence[Sequence[int]]) -> list[list[int]]:
    """Words of a `[2, n]` tensor, given as two rows or as 2·n values in row order.

    What row 0 holds after the last word is padding (clients of TensorRT-LLM pad the
    shorter entries of a batch so). Raises ValueError if it is no such tensor.
    """
    ids, ends = _rows(values)
    num_words = ends.index(_PADDING) if _PADDING in ends else len(ends)
    if any(end != _PADDING for end in ends[num_words:]):
        raise ValueError("word list: an offset follows the padding of row 1")
    starts = [0, *ends[:num_words]]
    words = []
    for start, end in zip(starts, ends[:num_words], strict=False):
        if not start < end <= len(ids):
            raise ValueError(f"word list: offset {end} does not lie in ({start}, {len(ids)}]")
        words.append(ids[start:end])
    if any(token_id < 0 for word in words for token_id in word):
        raise ValueError("word list: a word holds a negative token id")
    return words


def _rows(values: Sequence[int] | Sequence[Sequence[int]]) -> tuple[list[int], list[int]]:
    try:
        if len(values) and hasattr(values[0], "__len__"):
            rows = [list(map(index, row)) for row in cast(Sequence[Sequence[int]], values)]
        else:
            flat = list(map(index, cast(Sequence[int], values)))
            half = (len(flat) + 1) // 2
            rows = [flat[:half], flat[half:]]
    except TypeError as err:
        raise ValueError(f"word list: {err}") from err
    if len(rows) != 2 or len(rows[0]) != len(rows[1]):
        raise ValueError(f"word list: {[len(row) for row in rows]} values, not two equal rows")
    return rows[0], rows[1]
