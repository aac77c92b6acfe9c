"""Text to the tensors of `tensorrt_llm`: what the model `preprocessing` does.

Names, types and shapes: the model `preprocessing` of TensorRT-LLM's Triton backend 1.1.
An output that would say nothing is left out: an ensemble then gives the next model no such
input (ensemble_scheduler.cc of triton-inference-server/core, ConsumeResponse).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from cog_triton.errors import UnsupportedInput, UserError
from cog_triton.runtimes.text_models.text_tokenizer import TextTokenizer
from cog_triton.text.word_lists import to_word_list

Array: TypeAlias = npt.NDArray[Any]
Arrays: TypeAlias = Mapping[str, Array]

UNSUPPORTED = ("IMAGE_BYTES", "IMAGE_URL", "IMAGE_SIZES", "VIDEO_BYTES")


class Preprocessor:
    """Encodes requests of any batch size; safe to share between threads."""

    def __init__(self, text: TextTokenizer, *, add_special_tokens: bool = True) -> None:
        self._text = text
        self._add_special_tokens = add_special_tokens

    def run(self, arrays: Arrays) -> dict[str, Array]:
        """The outputs for the inputs `arrays` (batch dimension included), by contract name.

        Prompts of unequal length are padded on the right. Raises UserError and
        UnsupportedInput that name the input, TritonTokenizerError.
        """
        for name in UNSUPPORTED:
            if name in arrays:
                raise UnsupportedInput(f"{name}: this deployment has no vision encoder.")
        queries = _texts(arrays, "QUERY")
        batch = len(queries)
        pads = self._ids(arrays, "PAD_ID", batch, self._text.pad_id)
        prompts = [self._encode(row[0] if row else "", "QUERY") for row in queries]
        outputs: dict[str, Array] = {
            "INPUT_ID": _padded(prompts, pads),
            "REQUEST_INPUT_LEN": _lengths(prompts),
            "REQUEST_OUTPUT_LEN": arrays["REQUEST_OUTPUT_LEN"].reshape(batch, -1),
            "OUT_END_ID": self._ids(arrays, "END_ID", batch, self._text.end_id),
            "OUT_PAD_ID": pads,
        }
        self._add_word_lists(outputs, arrays, batch)
        self._add_rare(outputs, arrays, pads)
        return outputs

    def _add_word_lists(self, outputs: dict[str, Array], arrays: Arrays, batch: int) -> None:
        # The contract has one end id: the model's further ones go as stop words, unless the
        # client says itself what ends a sequence.
        ends = [] if "END_ID" in arrays else [[end] for end in self._text.end_ids[1:]]
        for source, name, always in (
            ("STOP_WORDS_DICT", "STOP_WORDS_IDS", ends),
            ("BAD_WORDS_DICT", "BAD_WORDS_IDS", []),
        ):
            rows = _texts(arrays, source) if source in arrays else [[]] * batch
            lists = [[*self._spellings(row), *always] for row in rows]
            if any(lists):
                outputs[name] = _word_lists(lists)

    def _add_rare(self, outputs: dict[str, Array], arrays: Arrays, pads: Array) -> None:
        if "DECODER_QUERY" in arrays:
            decoder = [
                self._encode("".join(row), "DECODER_QUERY")
                for row in _texts(arrays, "DECODER_QUERY")
            ]
            outputs["DECODER_INPUT_ID"] = _padded(decoder, pads)
            outputs["REQUEST_DECODER_INPUT_LEN"] = _lengths(decoder)
        if "EMBEDDING_BIAS_WORDS" in arrays:
            bias = self._embedding_bias(arrays)
            if bias.any():
                outputs["EMBEDDING_BIAS"] = bias
        if "PROMPT_TABLE_EXTRA_ID" in arrays:
            ids = outputs["INPUT_ID"]
            extra = arrays["PROMPT_TABLE_EXTRA_ID"].reshape(-1, 1)
            # Ids above the vocabulary stand for rows of the prompt table.
            in_table = ids >= self._text.tokenizer.vocab_size
            outputs["OUT_PROMPT_TABLE_EXTRA_IDS"] = np.where(in_table, extra, 0).astype(np.uint64)

    def _encode(self, text: str, name: str) -> list[int]:
        ids = self._text.tokenizer.encode(text, add_special_tokens=self._add_special_tokens)
        if not ids:
            raise UserError(f"{name} holds no token.")
        return ids

    def _spellings(self, words: list[str]) -> list[list[int]]:
        """Ids of each word as it can stand in a text: after a space, and after none.

        A word list matches ids, and tokenizers know a word by what stands before it. An
        empty word means none.
        """
        encode = self._text.tokenizer.encode
        line_feed = encode("\n", add_special_tokens=False)
        found: list[list[int]] = []
        for word in filter(None, words):
            spellings = [encode(word, add_special_tokens=False)]
            if not word[0].isspace():
                spellings.append(encode(f" {word}", add_special_tokens=False))
            # SentencePiece puts a space before a text: after a line feed there is none.
            inside = encode(f"\n{word}", add_special_tokens=False)
            if line_feed and inside[: len(line_feed)] == line_feed:
                spellings.append(inside[len(line_feed) :])
            found += [ids for ids in spellings if ids and ids not in found]
        return found

    def _embedding_bias(self, arrays: Arrays) -> Array:
        """A bias for each token of the vocabulary: the sum of the weights of its words."""
        words = _texts(arrays, "EMBEDDING_BIAS_WORDS")
        weights = arrays.get("EMBEDDING_BIAS_WEIGHTS", np.zeros((0, 0))).reshape(len(words), -1)
        bias = np.zeros((len(words), self._text.tokenizer.vocab_size), np.float32)
        for row, (texts, values) in enumerate(zip(words, weights, strict=True)):
            if len(texts) != len(values) and any(texts):
                raise UserError(
                    f"there are {len(texts)} EMBEDDING_BIAS_WORDS and {len(values)} weights."
                )
            for text, weight in zip(texts, values, strict=False):
                ids = self._text.tokenizer.encode(text, add_special_tokens=False)
                bias[row, ids] += weight
        return bias

    def _ids(self, arrays: Arrays, name: str, batch: int, default: int) -> Array:
        if name in arrays:
            return arrays[name].reshape(batch, 1).astype(np.int32)
        return np.full((batch, 1), default, np.int32)


def _texts(arrays: Arrays, name: str) -> list[list[str]]:
    """The texts of each batch entry; UserError if one is no UTF-8."""
    try:
        return [
            [item.decode() if isinstance(item, bytes) else str(item) for item in row.reshape(-1)]
            for row in arrays[name]
        ]
    except UnicodeDecodeError as err:
        raise UserError(f"{name} is not UTF-8: {err}") from err


def _padded(rows: list[list[int]], pads: Array) -> Array:
    length = max(map(len, rows))
    padded = np.repeat(pads, length, axis=1)
    for index, row in enumerate(rows):
        padded[index, : len(row)] = row
    return padded


def _lengths(rows: list[list[int]]) -> Array:
    return np.array([[len(row)] for row in rows], np.int32)


def _word_lists(rows: list[list[list[int]]]) -> Array:
    """`[batch, 2, n]`: ids of all words, padded with 0; their end offsets, padded with -1."""
    flat = [np.array(to_word_list(words), np.int32).reshape(2, -1) for words in rows]
    lists = np.zeros((len(rows), 2, max(one.shape[1] for one in flat)), np.int32)
    lists[:, 1] = -1
    for index, one in enumerate(flat):
        lists[index, :, : one.shape[1]] = one
    return lists
