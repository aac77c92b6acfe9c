"""Tests of cog_triton.artifacts.gguf_tokenizer."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cog_triton.artifacts.gguf_model import TokenType
from cog_triton.artifacts.gguf_tokenizer import build_tokenizer
from cog_triton.errors import ArtifactCorrupt, UnsupportedModel
from tests import artifact_samples as samples

PIECES = {
    **{"th": -1.0, "▁th": -2.0, "in": -3.0, "he": -4.0, "▁the": -5.0, "the": -6.0, "ing": -7.0},
    **{"aa": -8.0, "aaaa": -9.0, "▁▁": -10.0, "세계": -11.0, "thing": -12.0, "▁thing": -13.0},
    **{letter: -100.0 - i for i, letter in enumerate("▁etaoinhrgs세계.")},
}


def pre_tokens(name: str, text: str) -> list[str]:
    """How a pre-tokenizer cuts a text, as the text of its parts."""
    tokenizer = build_tokenizer(samples.byte_level_model(pre_tokenizer=name))
    assert tokenizer.pre_tokenizer is not None
    parts = tokenizer.pre_tokenizer.pre_tokenize_str(text)
    return [text[start:end] for _, (start, end) in parts]


def score_driven_ids(text: str) -> list[int]:
    """What SentencePiece does: join the best-scored neighbours until none can be joined."""
    vocab = {token: i for i, token in enumerate(samples.sentencepiece_model(PIECES).tokens)}
    symbols = list("▁" + text.replace(" ", "▁")) if text else []
    while True:
        joins = [
            (-PIECES[left + right], at)
            for at, (left, right) in enumerate(pairwise(symbols))
            if left + right in PIECES
        ]
        if not joins:
            break
        _, at = min(joins)
        symbols[at : at + 2] = [symbols[at] + symbols[at + 1]]
    ids: list[int] = []
    for symbol in symbols:
        as_bytes = [vocab[f"<0x{byte:02X}>"] for byte in symbol.encode()]
        ids += [vocab[symbol]] if symbol in vocab else as_bytes
    return ids


@pytest.mark.parametrize("text", samples.TEXTS)
def test_byte_level_ids_are_those_of_the_original(text: str) -> None:
    """A tokenizer that went through GGUF metadata encodes and decodes as the one it came from."""
    built, original = build_tokenizer(samples.byte_level_model()), samples.trained_tokenizer()
    ids = original.encode(text).ids
    assert built.encode(text).ids == ids
    assert built.decode(ids) == original.decode(ids)
    assert built.decode(ids, skip_special_tokens=False) == text


def test_control_tokens_are_special_and_user_defined_ones_are_not() -> None:
    """Both kinds match as a whole; only control tokens vanish when decoding skips specials."""
    model = samples.byte_level_model()
    tokens = [*model.tokens, "[TOOL]"]
    kinds = [*model.token_types, TokenType.USER_DEFINED]
    built = build_tokenizer(samples.byte_level_model(tokens=tokens, token_types=kinds))
    ids = built.encode("a[TOOL]<|im_end|>").ids
    assert ids[1:] == [len(tokens) - 1, 2]
    assert built.decode(ids) == "a[TOOL]"


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("gpt-2", ["He", "'ll", " pay", " 12345", "!\n\n", " x"]),
        ("default", ["He", "'ll", " pay", " 12345", "!\n\n", " x"]),
        ("smollm", ["He", "'ll", " pay", " ", "1", "2", "3", "4", "5", "!\n\n", " x"]),
        ("llama-bpe", ["He", "'ll", " pay", " ", "123", "45", "!\n\n", " x"]),
        ("qwen2", ["He", "'ll", " pay", " ", "1", "2", "3", "4", "5", "!\n\n", " x"]),
    ],
)
def test_pre_tokenizers_cut_as_their_models_do(name: str, parts: list[str]) -> None:
    """Each known `tokenizer.ggml.pre` cuts digits, contractions and line ends in its own way."""
    text = "He'll pay 12345!\n\n x"
    if not name.startswith(("llama", "qwen")):  # GPT-2's expression keeps line ends apart
        parts = [piece for part in parts for piece in (["!", "\n\n"] if "!" in part else [part])]
    assert pre_tokens(name, text) == parts


def test_upper_case_contractions_depend_on_the_pre_tokenizer() -> None:
    """Llama 3 and Qwen 2 cut contractions in any case, GPT-2 in lower case only."""
    assert pre_tokens("llama-bpe", "HE'LL") == ["HE", "'LL"]
    assert pre_tokens("gpt-2", "HE'LL") == ["HE", "'", "LL"]


def test_qwen2_normalizes_to_composed_characters() -> None:
    """A letter with a combining accent and its composed form give the same ids with Qwen 2."""
    built = build_tokenizer(samples.byte_level_model(pre_tokenizer="qwen2"))
    assert built.encode("e\u0301").ids == built.encode("\u00e9").ids


def test_unknown_pre_tokenizer_is_refused_by_name() -> None:
    """A pre-tokenizer that is not known here stops the fetch instead of giving wrong ids."""
    with pytest.raises(UnsupportedModel, match="'tekken'"):
        build_tokenizer(samples.byte_level_model(pre_tokenizer="tekken"))


def test_unknown_tokenizer_is_refused_by_name() -> None:
    """A tokenizer family that is not known here stops the fetch."""
    with pytest.raises(UnsupportedModel, match="'bert'"):
        build_tokenizer(samples.byte_level_model(tokenizer_model="bert"))


@pytest.mark.parametrize(
    ("changes", "name"),
    [({"merges": ()}, "merges"), ({"tokenizer_model": "llama"}, "scores")],
)
def test_missing_parts_are_named(changes: dict[str, object], name: str) -> None:
    """A vocabulary without the merges or scores that its tokenizer needs is corrupt."""
    with pytest.raises(ArtifactCorrupt, match=name):
        build_tokenizer(samples.byte_level_model(**changes))


@pytest.mark.parametrize(
    ("changes", "starts_with_bos"),
    [
        ({"add_bos": True}, True),
        ({"add_bos": False}, False),
        ({"add_bos": None}, False),
        ({"add_bos": None, "pre_tokenizer": "llama-bpe"}, True),
        ({"add_bos": False, "pre_tokenizer": "llama-bpe"}, False),
        ({"add_bos": True, "bos_id": None}, False),
    ],
)
def test_bos_is_added_where_the_model_wants_it(
    changes: dict[str, object], starts_with_bos: bool
) -> None:
    """`add_bos_token` decides; without it the pre-tokenizer's family does."""
    built = build_tokenizer(samples.byte_level_model(**changes))
    assert (built.encode("the").ids[0] == 1) is starts_with_bos
    assert built.encode("the", add_special_tokens=False).ids[0] != 1


def test_special_tokens_of_phi3_swallow_the_space_behind_them() -> None:
    """Phi-3's own tokenizer drops white space behind <|im_end|>-like tokens but not behind BOS."""
    built = build_tokenizer(samples.byte_level_model(architecture="phi3"))
    assert built.encode("<|im_end|>\nthe").ids == built.encode("<|im_end|>the").ids
    assert built.encode("<|im_start|>\nthe").ids != built.encode("<|im_start|>the").ids


@given(st.text(alphabet="thaeings 세계.é\n", max_size=40))
@example("aaaaaaaaa")
@example("the thing  in the")
def test_sentencepiece_ids_are_those_of_the_score_driven_algorithm(text: str) -> None:
    """Merges derived from scores join exactly what the scores would join, bytes for the rest."""
    built = build_tokenizer(samples.sentencepiece_model(PIECES))
    ids = built.encode(text, add_special_tokens=False).ids
    assert ids == score_driven_ids(text)
    assert built.decode(ids) == text


def test_sentencepiece_adds_bos_and_matches_control_tokens() -> None:
    """A Llama tokenizer starts with BOS unless told otherwise and never splits `</s>`."""
    built = build_tokenizer(samples.sentencepiece_model(PIECES))
    ids = built.encode("the</s>").ids
    assert (ids[0], ids[-1]) == (1, 2)
    without = build_tokenizer(samples.sentencepiece_model(PIECES, add_bos=False))
    assert without.encode("the</s>").ids == ids[1:]


def test_sentencepiece_without_space_prefix_keeps_the_first_space() -> None:
    """With add_space_prefix off no space is invented, and one that is there survives."""
    built = build_tokenizer(samples.sentencepiece_model(PIECES, add_space_prefix=False))
    assert built.encode("the", add_special_tokens=False).tokens == ["the"]
    ids = built.encode(" the", add_special_tokens=False).ids
    assert built.decode(ids) == " the"


def test_byte_tokens_are_never_spelled_out() -> None:
    """The text `<0x41>` is six characters, not the byte token of that name."""
    pieces = {**PIECES, **{c: -200.0 - i for i, c in enumerate("<>x041")}, "<0x41": -20.0}
    built = build_tokenizer(samples.sentencepiece_model(pieces))
    ids = built.encode("<0x41>", add_special_tokens=False).ids
    assert built.decode(ids) == "<0x41>"
