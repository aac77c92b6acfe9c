"""Tests of cog_triton.text.detokenizer."""

from __future__ import annotations

import tracemalloc
from collections.abc import Sequence
from functools import cache
from itertools import accumulate, pairwise
from typing import Any

import pytest
import tokenizers
from hypothesis import example, given, settings
from hypothesis import strategies as st

from cog_triton.errors import ArtifactCorrupt, TritonTokenizerError, UnsupportedModel
from cog_triton.text.detokenizer import Detokenizer, detokenizers
from tests import text_samples

EVERY = pytest.mark.parametrize("name", list(text_samples.ALL))
FALLBACK = pytest.mark.parametrize("name", ["llama2", "gemma", "fallback_metaspace"])
# Picks by fraction of the vocabulary, so that one strategy serves all tokenizers.
PICKS = st.lists(st.floats(0, 1, exclude_max=True), max_size=24)
# Characters whose UTF-8 holds each first byte and each continuation byte there is.
EVERY_BYTE = "".join(
    map(chr, [*range(0x800), *range(0x800, 0xD800, 0x800), *range(0xE000, 0x110000, 0x1000)])
)
CUTS = st.lists(st.integers(0, 5), min_size=1, max_size=24)


def stream(detokenizer: Detokenizer, ids: Sequence[int], sizes: Sequence[int]) -> str:
    """Text of ids fed in reads of the given sizes, the rest one by one."""
    ends = list(accumulate(sizes, initial=0))
    reads = [ids[start:end] for start, end in pairwise(ends)]
    reads += [[token_id] for token_id in ids[ends[-1] :]]
    return "".join([*map(detokenizer.feed, reads), detokenizer.finish()])


def byte_ids(backend: tokenizers.Tokenizer, data: bytes) -> list[int]:
    """Ids of the byte-fallback tokens of some bytes."""
    ids = [backend.token_to_id(f"<0x{byte:02X}>") for byte in data]
    assert None not in ids
    return [token_id for token_id in ids if token_id is not None]


@cache
def byte_level_ids(backend: tokenizers.Tokenizer) -> dict[int, int]:
    """Byte to id of its single-byte token, by the library's own pre-tokenizer."""
    alphabet = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    id_of = {byte: backend.token_to_id(chr(byte)) for byte in range(0xC0, 0x100)}
    for char in EVERY_BYTE:
        data = char.encode()
        symbols = alphabet.pre_tokenize_str(char)[0][0]
        id_of |= {
            byte: backend.token_to_id(symbol) for byte, symbol in zip(data, symbols, strict=True)
        }
    found = {byte: token_id for byte, token_id in id_of.items() if token_id is not None}
    assert len(found) == 256
    return found


class CountingBackend:
    """The real tokenizer, counting the ids that it is asked to decode."""

    def __init__(self, backend: tokenizers.Tokenizer) -> None:
        self._backend = backend
        self.num_decoded = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        self.num_decoded += len(ids)
        return self._backend.decode(ids, skip_special_tokens=skip_special_tokens)


@EVERY
@pytest.mark.parametrize("wrong", [-1, 10**6, 2**40, "1", None])
def test_an_unknown_id_is_an_error_and_changes_nothing(name: str, wrong: Any) -> None:
    """An id outside the vocabulary raises, and the ids of the same read can be fed again."""
    backend = text_samples.ALL[name]()
    ids = backend.encode("hello 世界 안녕 doing").ids
    detokenizer = detokenizers(backend)()
    text = detokenizer.feed(ids[:2])
    with pytest.raises(TritonTokenizerError):
        detokenizer.feed([*ids[2:], wrong])
    assert text + detokenizer.feed(ids[2:]) + detokenizer.finish() == backend.decode(ids)


@pytest.mark.parametrize(
    "decoder",
    [
        tokenizers.decoders.CTC(),
        tokenizers.decoders.BPEDecoder(),
        tokenizers.decoders.Sequence(
            [tokenizers.decoders.Fuse(), tokenizers.decoders.Replace("a b", "c")]
        ),
        tokenizers.decoders.Sequence(
            [tokenizers.decoders.Fuse(), tokenizers.decoders.Strip(" ", 1, 1)]
        ),
        tokenizers.decoders.Sequence(
            [tokenizers.decoders.Fuse(), tokenizers.decoders.ByteFallback()]
        ),
        tokenizers.decoders.Sequence([tokenizers.decoders.CTC(), tokenizers.decoders.Fuse()]),
    ],
)
def test_a_decoder_that_looks_ahead_is_refused(decoder: tokenizers.decoders.Decoder) -> None:
    """A decoder whose text depends on later tokens is refused by name, not streamed wrongly."""
    backend = text_samples.llama2()
    backend.decoder = decoder
    with pytest.raises(UnsupportedModel, match=r"Fuse|CTC|BPEDecoder"):
        detokenizers(backend)


def test_a_vocabulary_without_text_is_refused() -> None:
    """A tokenizer of which nothing can be shown is reported as a broken artifact."""
    backend = tokenizers.Tokenizer(tokenizers.models.WordLevel({"<s>": 0}, unk_token="<s>"))
    backend.add_special_tokens(["<s>"])
    with pytest.raises(ArtifactCorrupt, match=r"tokenizer\.json"):
        detokenizers(backend)


@EVERY
@settings(max_examples=80, deadline=None)
@given(picks=PICKS, sizes=CUTS)
def test_any_ids_cut_anywhere_give_the_text_of_one_decode(
    name: str, picks: list[float], sizes: list[int]
) -> None:
    """Any ids, broken bytes and special tokens among them, stream to what one decode gives."""
    backend = text_samples.ALL[name]()
    num_tokens = backend.get_vocab_size()
    ids = [int(pick * num_tokens) for pick in picks]
    assert stream(detokenizers(backend)(), ids, sizes) == backend.decode(ids)


@EVERY
@settings(max_examples=30, deadline=None)
@given(text=st.one_of(st.sampled_from(text_samples.CORPUS), st.text(max_size=20)), sizes=CUTS)
def test_any_text_cut_anywhere_comes_back(name: str, text: str, sizes: list[int]) -> None:
    """The ids of real text stream to what one decode gives, however they are cut."""
    backend = text_samples.ALL[name]()
    ids = backend.encode(text).ids
    assert stream(detokenizers(backend)(), ids, sizes) == backend.decode(ids)


@settings(max_examples=150, deadline=None)
@given(data=st.binary(max_size=16), sizes=CUTS)
@example(data=EVERY_BYTE.encode(), sizes=[0])
@example(data=b"\xed\xa0\x80\xf4\x90\x80\x80\xc0\x80", sizes=[0])
@example(data="😀".encode()[:3], sizes=[0])
@example(data="\ufeff".encode(), sizes=[0])
def test_byte_level_replaces_broken_bytes_as_the_library_does(
    data: bytes, sizes: list[int]
) -> None:
    """Bytes of byte-level tokens that are no UTF-8 give the library's own U+FFFD, however cut."""
    backend = text_samples.ALL["byte_level"]()
    id_of = byte_level_ids(backend)
    ids = [id_of[byte] for byte in data]
    assert stream(detokenizers(backend)(), ids, sizes) == backend.decode(ids)


@FALLBACK
@settings(max_examples=60, deadline=None)
@given(
    runs=st.lists(
        st.tuples(
            st.one_of(st.binary(max_size=6), st.text(max_size=2).map(str.encode)),
            st.sampled_from(["▁", "▁the", "</s>", "<s>", "世界"]),
        ),
        max_size=6,
    ),
    sizes=CUTS,
)
def test_byte_fallback_runs_are_judged_whole(
    name: str, runs: list[tuple[bytes, str]], sizes: list[int]
) -> None:
    """Runs of byte tokens, valid and not, between text and special tokens match one decode."""
    backend = text_samples.ALL[name]()
    ids: list[int] = []
    for data, token in runs:
        following = backend.token_to_id(token)
        assert following is not None
        ids += [*byte_ids(backend, data), following]
    assert stream(detokenizers(backend)(), ids, sizes) == backend.decode(ids)


@pytest.mark.parametrize(("name", "end"), [("byte_level", "\ufffd"), ("llama2", "\ufffd" * 3)])
def test_an_unfinished_character_comes_with_finish(name: str, end: str) -> None:
    """Three bytes of an emoji are held, and come out as the replacement one decode gives."""
    backend = text_samples.ALL[name]()
    ids = backend.encode("😀", add_special_tokens=False).ids[-4:-1]
    detokenizer = detokenizers(backend)()
    assert detokenizer.feed(ids) == ""
    assert detokenizer.finish() == end
    assert backend.decode(ids) == end
    assert detokenizer.finish() == ""


@pytest.mark.parametrize("name", ["byte_level", "llama2", "gemma"])
def test_text_comes_as_early_as_it_can(name: str) -> None:
    """Each id of plain text gives its text at once, the first one included."""
    backend = text_samples.ALL[name]()
    ids = backend.encode("the quick fox", add_special_tokens=False).ids
    detokenizer = detokenizers(backend)()
    texts = [detokenizer.feed([token_id]) for token_id in ids]
    assert all(texts)
    assert "".join(texts) == "the quick fox"


@pytest.mark.parametrize(
    ("name", "tokens", "texts"),
    [
        ("llama2", ["▁", "▁the", "▁the"], ["", " the", " the"]),
        ("llama2", ["▁the", "▁the"], ["the", " the"]),
        ("llama2", ["<s>", "▁▁▁▁", "e"], ["", "   ", "e"]),
        ("llama2", ["<0x20>", "▁the"], ["", " the"]),
        ("gemma", ["▁the", "▁the"], [" the", " the"]),
        ("metaspace", ["▁▁", "▁the"], ["", " the"]),
    ],
)
def test_only_the_first_text_loses_its_leading_space(
    name: str, tokens: list[str], texts: list[str]
) -> None:
    """What the decoder strips is stripped once, at the first visible text of the stream."""
    backend = text_samples.ALL[name]()
    ids = [backend.token_to_id(token) for token in tokens]
    detokenizer = detokenizers(backend)()
    assert [detokenizer.feed([token_id]) for token_id in ids if token_id is not None] == texts


@EVERY
def test_streams_share_the_table_and_nothing_else(name: str) -> None:
    """Two streams fed in turns give the text that each gives alone."""
    backend = text_samples.ALL[name]()
    make = detokenizers(backend)
    first, second = make(), make()
    ids = backend.encode("hello 😀 世界 안녕 doing").ids
    texts = ["", ""]
    for token_id in ids:
        texts[0] += first.feed([token_id])
        texts[1] += second.feed([token_id])
    assert texts[0] + first.finish() == texts[1] + second.finish() == backend.decode(ids)


@pytest.mark.parametrize(
    ("token", "most_decoded"), [("▁the", 20), ("</s>", 20), ("<0xFF>", 21_020)]
)
def test_the_work_and_the_memory_of_a_stream_do_not_grow(token: str, most_decoded: int) -> None:
    """Of 20,000 ids a token is decoded once ever, a byte once, and none are kept."""
    backend = CountingBackend(text_samples.llama2())
    make: Any = detokenizers
    detokenizer = make(backend)()
    token_id, other = backend.token_to_id(token), backend.token_to_id("▁the")
    tracemalloc.start()
    try:
        for _ in range(1000):
            detokenizer.feed([token_id] * 18 + [other, token_id])
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert backend.num_decoded <= most_decoded
    assert kept < 20_000
