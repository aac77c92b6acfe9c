"""Small tokenizers built in code, one for each way that language models turn ids into text."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from tokenizers import (
    AddedToken,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

CORPUS = [
    "The quick brown fox jumps over the lazy dog. It's 3.14, isn't it?",
    "    indented code:\n\tdef main() -> None:\r\n        return {'a': [1, 2]}  # done\n\n",
    "안녕하세요, 세계! 오늘 날씨가 좋네요.",
    "你好，世界。今天天气很好。日本語のテキストです。",
    "Zoë naïve cafe\u0301 Å A\u030a ñ n\u0303",
    "👋🌍 🎉🎊 👩‍👩‍👧‍👦 🇰🇷 👍🏽 x😀y",
    "สวัสดีชาวโลก नमस्ते दुनिया",
    " leading and trailing ",
    "a literal \ufffd and \x00 and \u2581 inside",
]
CHATML = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
_LLAMA2_PIECES = [
    *["▁▁", "▁▁▁▁", "▁the", "he", "qu", "▁qu", "ick", "▁is", "fox", "世界", "안녕", "세계"],
    *["ing", "▁a", "nd", "▁and", "▁lead", "lead", "▁trail", "na", "ï", "ve", "é", "e"],
]


def byte_level() -> Tokenizer:
    """Byte-level BPE as in GPT-2, Llama 3 and Qwen, trained on the corpus."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(
        CORPUS,
        trainers.BpeTrainer(
            vocab_size=400,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            special_tokens=["<|begin|>", "<|end|>", "<|im_start|>", "<|im_end|>"],
            show_progress=False,
        ),
    )
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<|begin|> $A", special_tokens=[("<|begin|>", 0)]
    )
    # Added but not special: shown; the last two hold characters outside the byte alphabet.
    tokenizer.add_tokens(["<think>", AddedToken("tool call", normalized=False), "é é", "도구"])
    return tokenizer


def llama2() -> Tokenizer:
    """SentencePiece BPE with byte fallback and a dummy prefix space, as in Llama 2 and Phi-3."""
    tokenizer = _sentencepiece()
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    tokenizer.decoder = decoders.Sequence([*_llama_steps(), decoders.Strip(" ", 1, 0)])
    return tokenizer


def gemma() -> Tokenizer:
    """The same without the prefix space, so that leading spaces stay."""
    tokenizer = _sentencepiece()
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.decoder = decoders.Sequence(_llama_steps())
    return tokenizer


def metaspace() -> Tokenizer:
    """Metaspace on both sides, as in T5: all spaces of the first token are dropped."""
    tokenizer = _sentencepiece()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    return tokenizer


def fallback_metaspace() -> Tokenizer:
    """Byte fallback in front of Metaspace, with no Fuse: a run can be the first piece."""
    tokenizer = metaspace()
    tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace()])
    return tokenizer


def words() -> Tokenizer:
    """Whole words and no decoder: the library joins them with spaces."""
    vocab = {"[UNK]": 0, "hello": 1, "world": 2, "<0x41>": 3, "": 4, "안녕": 5}
    tokenizer = Tokenizer(models.WordLevel(vocab, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.add_special_tokens(["[UNK]"])
    return tokenizer


def word_piece() -> Tokenizer:
    """WordPiece with its clean-up of the spaces before punctuation."""
    vocab = {"[UNK]": 0, "do": 1, "##ing": 2, "n't": 3, ".": 4, "안녕": 5}
    tokenizer = Tokenizer(models.WordPiece(vocab, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.add_special_tokens(["[UNK]"])
    return tokenizer


ALL: dict[str, Callable[[], Tokenizer]] = {
    make.__name__: cache(make)
    for make in (
        *(byte_level, llama2, gemma, metaspace, fallback_metaspace),
        *(words, word_piece),
    )
}


def save_model(model_dir: Path, backend: Tokenizer, config: dict[str, Any] | None = None) -> Path:
    """Write a tokenizer as a model directory holds it, and return the directory."""
    model_dir.mkdir(parents=True, exist_ok=True)
    backend.save(str(model_dir / "tokenizer.json"))
    (model_dir / "tokenizer_config.json").write_text(json.dumps(config or {}), encoding="utf-8")
    return model_dir


def _llama_steps() -> list[decoders.Decoder]:
    return [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]


def _sentencepiece() -> Tokenizer:
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    characters = sorted(set("▁abcdefghijklmnop" + "".join(_LLAMA2_PIECES)))
    merges: list[tuple[str, str]] = []
    for piece in _LLAMA2_PIECES:  # each longer piece is reached by joining one character at a time
        merges += [(piece[:end], piece[end]) for end in range(1, len(piece))]
    tokens += characters + ["".join(merge) for merge in dict.fromkeys(merges)]
    vocab = {token: token_id for token_id, token in enumerate(dict.fromkeys(tokens))}
    tokenizer = Tokenizer(
        models.BPE(
            vocab=vocab,
            merges=list(dict.fromkeys(merges)),
            unk_token="<unk>",
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 1)]
    )
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    tokenizer.add_tokens(["<think>", "tool ▁call"])
    return tokenizer
