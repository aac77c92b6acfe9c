"""Tiny real artifacts built in code: GGUF models; and processes that use the package."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from cog_triton.artifacts.gguf_model import GgufModel, TokenType

ROOT = Path(__file__).resolve().parent.parent
CHAT_TEMPLATE = "{% for m in messages %}<|im_start|>{{ m['content'] }}<|im_end|>{% endfor %}"
CONTROL_TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
CORPUS = [
    "The quick brown fox jumps over the lazy dog, isn't it? We'll see; they're 3.14 and 2024.",
    "    def main() -> None:\r\n\treturn {'a': [1, 22, 333, 4444]}  # done\n\n",
    "안녕하세요, 세계! 你好，世界。 日本語のテキスト 👋🌍 Zoë naïve cafe\u0301",
]
TEXTS = [
    *CORPUS,
    *[
        "",
        " ",
        "   ",
        "\n\n",
        " \n \t x",
        "a",
        "the",
        " the ",
        "the the",
        "\x00\x7f",
        "\u00a0\u3000",
    ],
    *["x²+½ ٣٤ Ⅷ", "don't DON'T 's", "<|im_start|>user\nthe<|im_end|>\n", "<|im_end", "e\u0301"],
    "12345678 a1b22",
]


@cache
def trained_tokenizer() -> Tokenizer:
    """A byte-level BPE with SmolLM's pre-tokenizer, trained on the corpus by its library."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=[AddedToken(t, special=True, normalized=False) for t in CONTROL_TOKENS],
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS * 3, trainer)
    return tokenizer


def byte_level_model(**changes: Any) -> GgufModel:
    """The metadata of a GGUF that holds `trained_tokenizer`."""
    bpe = json.loads(trained_tokenizer().to_str())["model"]
    tokens = sorted(bpe["vocab"], key=bpe["vocab"].get)
    fields: dict[str, Any] = {
        "architecture": "llama",
        "context_length": 128,
        "tokenizer_model": "gpt2",
        "pre_tokenizer": "smollm",
        "tokens": tokens,
        "token_types": [
            TokenType.CONTROL if token in CONTROL_TOKENS else TokenType.NORMAL for token in tokens
        ],
        "merges": [" ".join(merge) for merge in bpe["merges"]],
        "bos_id": 1,
        "eos_id": 2,
        "unk_id": 0,
        "pad_id": 2,
        "add_bos": False,
        "chat_template": CHAT_TEMPLATE,
    }
    return GgufModel(**{**fields, **changes})


def sentencepiece_model(pieces: dict[str, float], **changes: Any) -> GgufModel:
    """The metadata of a Llama-2-like GGUF: unknown, BOS, EOS, all bytes, then scored pieces."""
    specials = {"<unk>": TokenType.UNKNOWN, "<s>": TokenType.CONTROL, "</s>": TokenType.CONTROL}
    byte_tokens = [f"<0x{byte:02X}>" for byte in range(256)]
    fields: dict[str, Any] = {
        "architecture": "llama",
        "context_length": 128,
        "tokenizer_model": "llama",
        "pre_tokenizer": "default",
        "tokens": [*specials, *byte_tokens, *pieces],
        "token_types": [
            *specials.values(),
            *[TokenType.BYTE] * 256,
            *[TokenType.NORMAL] * len(pieces),
        ],
        "scores": [*[0.0] * 259, *pieces.values()],
        "bos_id": 1,
        "eos_id": 2,
        "unk_id": 0,
    }
    return GgufModel(**{**fields, **changes})


def write_gguf(path: Path, model: GgufModel | None = None, *, with_weights: bool = False) -> Path:
    """Write a GGUF; with weights it is a one-layer Llama that really runs.

    That Llama counts: after token t it is certain of token t + 1.
    """
    model = model or byte_level_model()
    writer = gguf.GGUFWriter(path, model.architecture)
    writer.add_context_length(model.context_length)
    writer.add_tokenizer_model(model.tokenizer_model)
    writer.add_tokenizer_pre(model.pre_tokenizer)
    writer.add_token_list(model.tokens)
    writer.add_token_types(model.token_types)
    if model.merges:
        writer.add_token_merges(model.merges)
    if model.scores:
        writer.add_token_scores(model.scores)
    optional: dict[Callable[[Any], None], Any] = {
        writer.add_bos_token_id: model.bos_id,
        writer.add_eos_token_id: model.eos_id,
        writer.add_eot_token_id: model.eot_id,
        writer.add_eom_token_id: model.eom_id,
        writer.add_unk_token_id: model.unk_id,
        writer.add_pad_token_id: model.pad_id,
        writer.add_add_bos_token: model.add_bos,
        writer.add_add_space_prefix: model.add_space_prefix,
        writer.add_chat_template: model.chat_template,
    }
    for add, value in optional.items():
        if value is not None:
            add(value)
    if with_weights:
        _add_weights(writer, len(model.tokens))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add_weights(writer: gguf.GGUFWriter, vocab_size: int) -> None:
    width, hidden, num_heads = 64, 128, 2
    writer.add_embedding_length(width)
    writer.add_block_count(1)
    writer.add_feed_forward_length(hidden)
    writer.add_head_count(num_heads)
    writer.add_head_count_kv(num_heads)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    writer.add_rope_dimension_count(width // num_heads)
    writer.add_vocab_size(vocab_size)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_F16)
    random = np.random.default_rng(0)
    embedding = random.standard_normal((vocab_size, width))
    weights = {"token_embd": embedding, "output": np.roll(embedding, 1, axis=0)}
    shapes = {f"attn_{part}": (width, width) for part in ("q", "k", "v", "output")}
    shapes |= {"ffn_gate": (hidden, width), "ffn_up": (hidden, width), "ffn_down": (width, hidden)}
    for name, shape in shapes.items():
        weights[f"blk.0.{name}"] = random.standard_normal(shape) * 0.02
    for name, values in weights.items():
        writer.add_tensor(f"{name}.weight", values.astype(np.float16))
    for name in ("output_norm", "blk.0.attn_norm", "blk.0.ffn_norm"):
        writer.add_tensor(f"{name}.weight", np.ones(width, np.float32))


def counted(text: str, max_tokens: int) -> list[int]:
    """What the model of `write_gguf(…, with_weights=True)` answers to a text, greedily.

    It counts on from the last token of the text, and from the last token of all to token 0, which
    ends the answer.
    """
    tokenizer = trained_tokenizer()
    vocab_size = tokenizer.get_vocab_size()
    first = tokenizer.encode(text).ids[-1] + 1
    ids = [*range(first, vocab_size), 0]
    return ids[:max_tokens]


def start_python(program: str, *arguments: str) -> subprocess.Popen[str]:
    """A Python process that can import the package."""
    return subprocess.Popen(
        [sys.executable, "-c", program, *arguments],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def children_of(pid: int) -> set[int]:
    """Ids of the processes that a process has started and that have not ended."""
    found = set()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            # proc(5): "pid (name) state ppid …"; the name may hold anything, even parentheses.
            state, parent = stat.read_text().rpartition(")")[2].split()[:2]
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(parent) == pid and state != "Z":
            found.add(int(stat.parent.name))
    return found
