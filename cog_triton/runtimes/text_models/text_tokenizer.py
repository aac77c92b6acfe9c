"""The tokenizer of the text models, with the ids that end and pad a sequence."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tokenizers

from cog_triton.errors import ArtifactCorrupt
from cog_triton.text.tokenizer import Tokenizer

NO_ID = -1


@dataclass(frozen=True)
class TextTokenizer:
    """`end_ids` has the main one first; it is empty for a tokenizer that names none."""

    tokenizer: Tokenizer
    end_ids: tuple[int, ...]
    pad_id: int

    @property
    def end_id(self) -> int:
        """The main end id, -1 (TensorRT-LLM's "none") for a tokenizer that names none."""
        return self.end_ids[0] if self.end_ids else NO_ID


def load(tokenizer_dir: Path, *, skip_special_tokens: bool = True) -> TextTokenizer:
    """The tokenizer of a directory as Hugging Face models come in.

    End and pad ids are those of generation_config.json, else of config.json, else the
    tokenizer's own. With `skip_special_tokens` False special tokens come out as text.
    Raises ArtifactCorrupt, UnsupportedModel.
    """
    tokenizer = Tokenizer.load(tokenizer_dir)
    if not skip_special_tokens:
        backend = load_backend(tokenizer_dir, skip_special_tokens=False)
        tokenizer = Tokenizer(backend, special_tokens=tokenizer.special_tokens)
    end_ids = _ids(tokenizer_dir, "eos_token_id") or _named(tokenizer, "eos_token")
    pad_ids = _ids(tokenizer_dir, "pad_token_id") or _named(tokenizer, "pad_token")
    return TextTokenizer(tokenizer, end_ids, (*pad_ids, *end_ids, 0)[0])


def load_backend(tokenizer_dir: Path, *, skip_special_tokens: bool = True) -> tokenizers.Tokenizer:
    """The library's tokenizer of a directory that `load` has read without complaint."""
    text = (tokenizer_dir / "tokenizer.json").read_text(encoding="utf-8")
    if skip_special_tokens:
        return tokenizers.Tokenizer.from_str(text)
    content: dict[str, Any] = json.loads(text)
    for token in content.get("added_tokens", []):
        token["special"] = False  # found in a text as before, but shown when decoded
    return tokenizers.Tokenizer.from_str(json.dumps(content))


def _ids(tokenizer_dir: Path, key: str) -> tuple[int, ...]:
    for name in ("generation_config.json", "config.json"):
        path = tokenizer_dir / name
        if not path.is_file():
            continue
        try:
            value = json.loads(path.read_bytes()).get(key)
        except (OSError, ValueError, AttributeError) as err:
            raise ArtifactCorrupt(f"{path} cannot be read: {err}") from err
        values = value if isinstance(value, list) else [value]
        ids = tuple(one for one in values if type(one) is int and one >= 0)
        if ids and len(ids) == len(values):
            return ids
    return ()


def _named(tokenizer: Tokenizer, name: str) -> tuple[int, ...]:
    token = tokenizer.special_tokens.get(name)
    token_id = None if token is None else tokenizer.token_id(token)
    return () if token_id is None else (token_id,)
