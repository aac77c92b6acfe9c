"""Build a Hugging Face `tokenizers.Tokenizer` from the vocabulary of a GGUF file.

Two families, told apart by `tokenizer.ggml.model`: `gpt2` is byte-level BPE with a merge list,
`llama` is SentencePiece BPE with a score for each piece. What the metadata leaves out (defaults of
add_bos and add_space_prefix, which pre-tokenizer stands for which regular expression) follows
llama.cpp, the format's reference reader: `llama_vocab::impl::load` in src/llama-vocab.cpp.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    normalizers,
    pre_tokenizers,
    processors,
)
from tokenizers.models import BPE

from cog_triton.artifacts.gguf_model import GgufModel, TokenType
from cog_triton.errors import ArtifactCorrupt, UnsupportedModel

_SPACE = "\N{LOWER ONE EIGHTH BLOCK}"  # SentencePiece writes a space as U+2581

_WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+"
_REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


@dataclass(frozen=True)
class _PreTokenizer:
    """How one value of `tokenizer.ggml.pre` cuts text before the merges."""

    split: str | None = None  # a regular expression; None is GPT-2's own, built into ByteLevel
    individual_digits: bool = False
    nfc: bool = False
    ignore_merges: bool = False  # a word that is in the vocabulary is taken whole
    add_bos: bool = False  # when the file does not say


_GPT2 = _PreTokenizer()
_LLAMA3 = _PreTokenizer(rf"{_WORDS}|\p{{N}}{{1,3}}|{_REST}", ignore_merges=True, add_bos=True)
_PRE_TOKENIZERS = {
    "default": _GPT2,
    "gpt-2": _GPT2,
    "smollm": _PreTokenizer(individual_digits=True),
    "llama-bpe": _LLAMA3,
    "llama3": _LLAMA3,
    "qwen2": _PreTokenizer(rf"{_WORDS}|\p{{N}}|{_REST}", nfc=True),
}


def build_tokenizer(model: GgufModel) -> Tokenizer:
    """Tokenizer whose ids are the model's; `encode` adds a BOS only where the model wants one.

    Raises: UnsupportedModel naming the tokenizer or pre-tokenizer that is not known here;
    ArtifactCorrupt when scores or merges are missing.
    """
    if model.tokenizer_model == "gpt2":
        tokenizer, add_bos = _byte_level(model)
    elif model.tokenizer_model == "llama":
        tokenizer, add_bos = _sentencepiece(model)
    else:
        raise UnsupportedModel(
            f"the tokenizer {model.tokenizer_model!r} of the GGUF file is not one of gpt2, llama"
        )
    if model.add_bos is not None:
        add_bos = model.add_bos
    _add_tokens(tokenizer, model)
    bos = model.token(model.bos_id)
    if add_bos and bos is not None and model.bos_id is not None:
        tokenizer.post_processor = processors.TemplateProcessing(
            single=[bos, "$A"], pair=[bos, "$A", bos, "$B:1"], special_tokens=[(bos, model.bos_id)]
        )
    return tokenizer


def _byte_level(model: GgufModel) -> tuple[Tokenizer, bool]:
    rules = _PRE_TOKENIZERS.get(model.pre_tokenizer)
    if rules is None:
        raise UnsupportedModel(
            f"the pre-tokenizer {model.pre_tokenizer!r} of the GGUF file is not one of "
            + ", ".join(_PRE_TOKENIZERS)
        )
    if not model.merges:
        raise ArtifactCorrupt("the GGUF file has a gpt2 tokenizer but no tokenizer.ggml.merges")
    bpe = BPE(
        vocab={token: i for i, token in enumerate(model.tokens)},
        merges=[_pair(merge) for merge in model.merges],
        ignore_merges=rules.ignore_merges,
    )
    tokenizer = Tokenizer(bpe)
    if rules.nfc:
        tokenizer.normalizer = normalizers.NFC()
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=rules.split is None)
    steps: list[pre_tokenizers.PreTokenizer] = [byte_level]
    if rules.split is not None:
        steps.insert(0, pre_tokenizers.Split(Regex(rules.split), behavior="isolated"))
    if rules.individual_digits:
        steps.insert(0, pre_tokenizers.Digits(individual_digits=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer, rules.add_bos


def _pair(merge: str) -> tuple[str, str]:
    """A merge is written `left right`; a space inside a piece is written as U+0120."""
    left, _, right = merge.partition(" ")
    return left, right


def _sentencepiece(model: GgufModel) -> tuple[Tokenizer, bool]:
    if not model.scores:
        raise ArtifactCorrupt("the GGUF file has a llama tokenizer but no tokenizer.ggml.scores")
    vocab = {token: i for i, token in enumerate(model.tokens)}
    bpe = BPE(
        vocab=vocab,
        merges=list(_merges_from_scores(model, vocab)),
        unk_token=model.token(model.unk_id if model.unk_id is not None else 0),
        fuse_unk=True,
        byte_fallback=TokenType.BYTE in model.token_types,
    )
    tokenizer = Tokenizer(bpe)
    prefixed = model.add_space_prefix is not False
    spaces = normalizers.Replace(" ", _SPACE)
    tokenizer.normalizer = (
        normalizers.Sequence([normalizers.Prepend(_SPACE), spaces]) if prefixed else spaces
    )
    steps: list[decoders.Decoder] = [
        decoders.Replace(_SPACE, " "),
        decoders.ByteFallback(),
        decoders.Fuse(),
    ]
    if prefixed:
        steps.append(decoders.Strip(" ", 1, 0))
    tokenizer.decoder = decoders.Sequence(steps)
    return tokenizer, True


def _merges_from_scores(model: GgufModel, vocab: dict[str, int]) -> Iterator[tuple[str, str]]:
    """The merge list that makes rank-driven BPE join what score-driven BPE would join.

    SentencePiece joins the neighbours whose union has the highest score. So a piece's rank is its
    score's, and every way to split it into two other pieces is a merge of that rank.
    """
    mergeable = [t in (TokenType.NORMAL, TokenType.UNUSED) for t in model.token_types]
    order = sorted(
        (i for i, is_mergeable in enumerate(mergeable) if is_mergeable),
        key=lambda i: (-model.scores[i], i),
    )
    for i in order:
        piece = model.tokens[i]
        splits = [
            (vocab[piece[:cut]], vocab[piece[cut:]])
            for cut in range(1, len(piece))
            if piece[:cut] in vocab and piece[cut:] in vocab
        ]
        for left, right in sorted(splits):
            if mergeable[left] and mergeable[right]:
                yield model.tokens[left], model.tokens[right]


def _add_tokens(tokenizer: Tokenizer, model: GgufModel) -> None:
    """Make control and user-defined tokens match as a whole, before any other cut."""
    # GGUF does not record that Phi-3's special tokens swallow the white space behind them;
    # llama.cpp knows it by the model's name too (llama-vocab.cpp, "phi-3").
    swallowing = model.architecture == "phi3"
    plain = {model.token(model.bos_id), model.token(model.unk_id), "<|endoftext|>"}
    for token, kind in zip(model.tokens, model.token_types, strict=True):
        if kind in (TokenType.CONTROL, TokenType.UNKNOWN):
            rstrip = swallowing and token not in plain
            tokenizer.add_special_tokens(
                [AddedToken(token, special=True, normalized=False, rstrip=rstrip)]
            )
        elif kind == TokenType.USER_DEFINED:
            tokenizer.add_tokens([AddedToken(token, special=False, normalized=False)])
