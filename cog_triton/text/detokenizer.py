"""Token ids of one stream to text, as they arrive.

The contract is one line: for any cut of the ids, the texts of `feed` and the text of
`finish` joined are what decoding all ids at once gives, special tokens skipped.

`tokenizers.decoders.DecodeStream` (tokenizers 0.23.3) does not meet it, as tried:
- a byte-fallback run that is valid UTF-8 up to some token and broken after it
  (`<0xC3> <0xA9> <0xFF>`) raises "Invalid prefix encountered", and the stream is lost;
- while the text ends in U+FFFD, or only special tokens come, its window grows and is
  decoded again at each step: 300 µs a token after 2,000 of them, 1,300 µs after 8,000;
- what it holds back at the end of the stream cannot be asked for.

So there are two machines, chosen by the decoder in tokenizer.json. Both keep a table
from id to what the id adds to a running text, filled by the library on first use and
shared by all streams; a token then costs one dictionary lookup at any length.
"""

from __future__ import annotations

import codecs
import json
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any

import tokenizers

from cog_triton.errors import ArtifactCorrupt, TritonTokenizerError, UnsupportedModel

_BYTE_TOKEN = re.compile(r"<0x[0-9A-Fa-f]{2}>")
# Decoder steps that treat each token by itself (or only the first one differently).
_PER_TOKEN = frozenset({"Replace", "Metaspace", "WordPiece", "Strip", "ByteFallback"})


class Detokenizer(ABC):
    """Text of one stream of ids; made by `Tokenizer.detokenizer()`, used once."""

    @abstractmethod
    def feed(self, ids: Sequence[int]) -> str:
        """The text that has become final with these ids; may be empty.

        Raises TritonTokenizerError for an id that the tokenizer does not know; the
        state is then what it was before the call.
        """

    @abstractmethod
    def finish(self) -> str:
        """What was held back: an unfinished character comes out as U+FFFD."""


class ByteLevelDetokenizer(Detokenizer):
    """For byte-level BPE (GPT-2, Llama 3, Qwen): each id is bytes, the text is their UTF-8."""

    def __init__(self, table: ByteTable) -> None:
        self._table = table
        # Replaces broken bytes as Rust's from_utf8_lossy does (one U+FFFD for each
        # maximal part) and holds at most three bytes.
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def feed(self, ids: Sequence[int]) -> str:
        return self._decoder.decode(b"".join(map(self._table.__getitem__, ids)))

    def finish(self) -> str:
        return self._decoder.decode(b"", final=True)


class PieceDetokenizer(Detokenizer):
    """For SentencePiece style vocabularies (Llama 2, Phi-3, Gemma): each id is a piece of text.

    Two things are not known from an id alone. The first visible text of a stream may
    lose its leading space, so ids are held until decoding them shows something. And a
    run of byte-fallback tokens is text only if the whole run is valid UTF-8, otherwise
    one U+FFFD a byte, so a run is held until a token of another kind ends it.
    """

    def __init__(self, table: PieceTable) -> None:
        self._table = table
        self._run: list[int] = []
        self._head: list[int] = []
        self._started = False

    def feed(self, ids: Sequence[int]) -> str:
        pieces = [self._table[token_id] for token_id in ids]  # fails before the state changes
        final: list[str] = []
        for token_id, piece in zip(ids, pieces, strict=True):
            if piece is _Kind.BYTE:
                self._run.append(token_id)
            elif piece is not _Kind.SPECIAL:  # a special token does not even end a run
                if self._run:
                    final.append(self._end_run())
                final.append(piece if self._started else self._start([token_id]))
        return "".join(final)

    def finish(self) -> str:
        return self._end_run() if self._run else ""

    def _end_run(self) -> str:
        run, self._run = self._run, []
        return self._table.continued(run) if self._started else self._start(run)

    def _start(self, ids: list[int]) -> str:
        """Text of the stream so far; once it is not empty, later text depends on no position."""
        self._head += ids
        text = self._table.decode(self._head)
        self._started = bool(text)
        return text


class ByteTable(dict[int, bytes]):
    """Id to the bytes it stands for; empty for special tokens. Filled on demand."""

    def __init__(self, backend: tokenizers.Tokenizer) -> None:
        super().__init__()
        self._backend = backend
        self._special = _special_tokens(backend)
        self._byte_of = _byte_level_alphabet()

    def __missing__(self, token_id: int) -> bytes:
        token = token_of(self._backend, token_id)
        if token in self._special:
            value = b""
        else:
            try:
                value = bytes(map(self._byte_of.__getitem__, token))
            except KeyError:  # an added token with characters outside the alphabet is plain text
                value = token.encode()
        self[token_id] = value
        return value


class _Kind(Enum):
    BYTE = "one byte of a byte-fallback run"
    SPECIAL = "skipped"


class PieceTable(dict[int, "str | _Kind"]):
    """Id to the text it adds inside a running text, or the kind that adds none by itself.

    The text comes from the library: what decoding an anchor token and the id gives
    beyond the anchor's own text.
    """

    def __init__(self, backend: tokenizers.Tokenizer) -> None:
        super().__init__()
        self._backend = backend
        self._special = _special_tokens(backend)
        self._anchor, self._anchor_len = self._find_anchor()

    def __missing__(self, token_id: int) -> str | _Kind:
        value: str | _Kind
        kind = self._kind(token_of(self._backend, token_id))
        value = self.continued([token_id]) if kind is None else kind
        self[token_id] = value
        return value

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ids as the library gives it."""
        try:
            return self._backend.decode(ids, skip_special_tokens=True)
        except Exception as err:
            raise TritonTokenizerError(f"the tokenizer failed to decode: {err}") from err

    def continued(self, ids: list[int]) -> str:
        """Text of ids that follow other text."""
        return self.decode([self._anchor, *ids])[self._anchor_len :]

    def _kind(self, token: str) -> _Kind | None:
        if token in self._special:
            return _Kind.SPECIAL
        # Without byte fallback such a token is text; held with its neighbours it still is.
        return _Kind.BYTE if _BYTE_TOKEN.fullmatch(token) else None

    def _find_anchor(self) -> tuple[int, int]:
        """First id that shows as text on its own, and the length of that text."""
        for token_id in range(self._backend.get_vocab_size(with_added_tokens=True)):
            token = self._backend.id_to_token(token_id)
            if token is not None and self._kind(token) is None:
                text = self.decode([token_id])
                if text:
                    return token_id, len(text)
        raise ArtifactCorrupt("tokenizer.json: no token of the vocabulary is visible text")


def detokenizers(backend: tokenizers.Tokenizer) -> Callable[[], Detokenizer]:
    """A maker of detokenizers, one for each stream, that share one table.

    Raises UnsupportedModel if the decoder of the tokenizer is of no kind that can be
    followed token by token, ArtifactCorrupt if no token is visible.
    """
    steps = _decoder_steps(backend)
    kinds = [str(step.get("type")) for step in steps]
    if kinds == ["ByteLevel"]:
        byte_table = ByteTable(backend)
        return lambda: ByteLevelDetokenizer(byte_table)
    if not _is_piecewise(steps, kinds):
        raise UnsupportedModel(
            f"tokenizer.json: text cannot be streamed out of the decoder {' + '.join(kinds)}"
        )
    piece_table = PieceTable(backend)
    return lambda: PieceDetokenizer(piece_table)


def token_of(backend: tokenizers.Tokenizer, token_id: int) -> str:
    """The token with this id; TritonTokenizerError if there is none."""
    try:
        token = backend.id_to_token(token_id)
    except (OverflowError, TypeError) as err:  # negative, above 32 bits, not an integer
        raise TritonTokenizerError(f"{token_id!r} is not a token id") from err
    if token is None:
        raise TritonTokenizerError(f"the tokenizer has no token with id {token_id}")
    return token


def _special_tokens(backend: tokenizers.Tokenizer) -> frozenset[str]:
    added = backend.get_added_tokens_decoder().values()
    return frozenset(token.content for token in added if token.special)


def _decoder_steps(backend: tokenizers.Tokenizer) -> list[dict[str, Any]]:
    """The decoder as a flat list of its JSON steps; empty if the tokenizer has none."""
    if backend.decoder is None:
        return []  # the library then joins tokens with spaces
    pending = [json.loads(backend.decoder.__getstate__())]
    steps: list[dict[str, Any]] = []
    while pending:
        step = pending.pop(0)
        if step.get("type") == "Sequence":
            pending = [*step["decoders"], *pending]
        else:
            steps.append(step)
    return steps


def _is_piecewise(steps: list[dict[str, Any]], kinds: list[str]) -> bool:
    """True if text in the middle of a stream depends on its own token (or byte run) only.

    After Fuse the text is one token, so only a strip at its start stays local.
    """
    if "Fuse" not in kinds:
        return _PER_TOKEN.issuperset(kinds)
    fuse = kinds.index("Fuse")
    after = steps[fuse + 1 :]
    return _PER_TOKEN.issuperset(kinds[:fuse]) and all(
        step.get("type") == "Strip" and step.get("stop") == 0 for step in after
    )


def _byte_level_alphabet() -> dict[str, int]:
    """Character to byte of the byte-level alphabet: printable Latin-1 as itself, the rest from 256.

    Source: the ByteLevel pre-tokenizer of `tokenizers` (GPT-2's table).
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {
        chr(256 + rank): byte for rank, byte in enumerate(others)
    }
