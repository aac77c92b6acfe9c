"""Text of one step of a stream, for who cannot know the steps before it.

An ensemble hands postprocessing the tokens of one response at a time, with nothing that
says which request they belong to or what came earlier. Three facts decide what is done:
- tensorrt_llm sends one token a response while it streams, and an answer that is not
  streamed has several: so one token is a step, and several are a whole text;
- a step stands inside a text: it keeps the space before its word, which decoding it alone
  drops with SentencePiece vocabularies;
- a character cut in pieces cannot be put together here. Its first piece becomes U+FFFD and
  the others nothing, so that each such character is seen to be missing once.
"""

from __future__ import annotations

import re
from pathlib import Path

import tokenizers

from cog_triton.runtimes.text_models.text_tokenizer import load, load_backend
from cog_triton.text.detokenizer import (
    ByteLevelDetokenizer,
    ByteTable,
    PieceTable,
    token_of,
)
from cog_triton.text.tokenizer import Tokenizer

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_MAX_CONTINUATIONS = 3


class StepDecoder:
    """Decodes whole sequences exactly and single tokens as a step; safe to share."""

    def __init__(self, tokenizer: Tokenizer, backend: tokenizers.Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._backend = backend
        self._bytes: ByteTable | None = None
        self._pieces: PieceTable | None = None
        if isinstance(tokenizer.detokenizer(), ByteLevelDetokenizer):
            self._bytes = ByteTable(backend)
        else:
            self._pieces = PieceTable(backend)

    @classmethod
    def load(cls, tokenizer_dir: Path, *, skip_special_tokens: bool = True) -> StepDecoder:
        """For the tokenizer of a directory; raises ArtifactCorrupt, UnsupportedModel."""
        text = load(tokenizer_dir, skip_special_tokens=skip_special_tokens)
        backend = load_backend(tokenizer_dir, skip_special_tokens=skip_special_tokens)
        return cls(text.tokenizer, backend)

    def decode(self, ids: list[int]) -> str:
        """The text of `ids`; raises TritonTokenizerError for an unknown id."""
        return self._step(ids[0]) if len(ids) == 1 else self._tokenizer.decode(ids)

    def _step(self, token_id: int) -> str:
        if self._bytes is not None:
            return _whole_characters(self._bytes[token_id])
        assert self._pieces is not None
        byte = _BYTE_TOKEN.fullmatch(token_of(self._backend, token_id))
        if byte and self._tokenizer.decode([token_id]) != byte.group():
            return _whole_characters(bytes.fromhex(byte.group(1)))
        return self._pieces.continued([token_id])


def _whole_characters(data: bytes) -> str:
    """The characters that begin in `data`, U+FFFD for one that goes on after it."""
    start = 0
    while start < min(len(data), _MAX_CONTINUATIONS) and data[start] & 0xC0 == 0x80:
        start += 1
    return data[start:].decode("utf-8", "replace")
