"""What a GGUF file says about itself: architecture, vocabulary, special tokens, chat template.

Key names and value types: the GGUF specification (ggml repository, docs/gguf.md) and
`gguf.constants.Keys` of the gguf package.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Any

from cog_triton.errors import ArtifactCorrupt

MAGIC = b"GGUF"


class TokenType(IntEnum):
    """Kinds of vocabulary entries, `tokenizer.ggml.token_type` (docs/gguf.md)."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


@dataclass(frozen=True)
class GgufModel:
    """Metadata of one model; `tokens`, `token_types` and `scores` are indexed by token id."""

    architecture: str
    context_length: int
    tokenizer_model: str
    pre_tokenizer: str
    tokens: Sequence[str]
    token_types: Sequence[int]
    merges: Sequence[str] = ()
    scores: Sequence[float] = ()
    bos_id: int | None = None
    eos_id: int | None = None
    eot_id: int | None = None
    eom_id: int | None = None
    unk_id: int | None = None
    pad_id: int | None = None
    add_bos: bool | None = None
    add_space_prefix: bool | None = None
    chat_template: str | None = None

    def token(self, token_id: int | None) -> str | None:
        """Text of a token id, None for None."""
        return None if token_id is None else self.tokens[token_id]


def has_gguf_magic(path: Path) -> bool:
    """Whether the file begins like a GGUF file."""
    with path.open("rb") as file:
        return file.read(len(MAGIC)) == MAGIC


def read_gguf_model(path: Path) -> GgufModel:
    """Read the metadata of a GGUF file; tensors are not touched.

    Takes about 25 microseconds a vocabulary string (2 s for 49 thousand tokens and as many
    merges): it belongs to the fetch step, not to a start.

    Raises: ArtifactCorrupt when the file is no complete GGUF, or lacks what a tokenizer needs.
    """
    fields = _Fields(path)
    architecture = fields.need("general.architecture", str)
    tokens: list[str] = fields.need("tokenizer.ggml.tokens", list)
    model = GgufModel(
        architecture=architecture,
        context_length=fields.need(f"{architecture}.context_length", int),
        tokenizer_model=fields.need("tokenizer.ggml.model", str),
        pre_tokenizer=fields.get("tokenizer.ggml.pre", str) or "default",
        tokens=tokens,
        token_types=fields.get("tokenizer.ggml.token_type", list)
        or [TokenType.NORMAL] * len(tokens),
        merges=fields.get("tokenizer.ggml.merges", list) or (),
        scores=fields.get("tokenizer.ggml.scores", list) or (),
        bos_id=fields.get("tokenizer.ggml.bos_token_id", int),
        eos_id=fields.get("tokenizer.ggml.eos_token_id", int),
        eot_id=fields.get("tokenizer.ggml.eot_token_id", int),
        eom_id=fields.get("tokenizer.ggml.eom_token_id", int),
        unk_id=fields.get("tokenizer.ggml.unknown_token_id", int),
        pad_id=fields.get("tokenizer.ggml.padding_token_id", int),
        add_bos=fields.get("tokenizer.ggml.add_bos_token", bool),
        add_space_prefix=fields.get("tokenizer.ggml.add_space_prefix", bool),
        chat_template=fields.get("tokenizer.chat_template", str),
    )
    _check(model, path)
    return model


class _Fields:
    """Typed access to the key/value section of one file."""

    def __init__(self, path: Path) -> None:
        import gguf  # 0.2 s with numpy; not wanted on every start

        self.path = path
        try:
            # The reader maps the file and looks at the tensor table only, not at tensor data.
            self._fields = gguf.GGUFReader(path, "r").fields
        except (OSError, ValueError, KeyError, IndexError, OverflowError) as err:
            raise ArtifactCorrupt(f"{path} is not a complete GGUF file ({err})") from err

    def get(self, key: str, expected: type) -> Any:
        field = self._fields.get(key)
        if field is None:
            return None
        try:
            value = field.contents()
        except UnicodeDecodeError as err:
            raise ArtifactCorrupt(f"{self.path}: {key} is not valid UTF-8 ({err})") from err
        if not isinstance(value, expected):
            raise ArtifactCorrupt(f"{self.path}: {key} is {type(value).__name__}")
        return value

    def need(self, key: str, expected: type) -> Any:
        value = self.get(key, expected)
        if value is None:
            raise ArtifactCorrupt(f"{self.path} has no {key}")
        return value


def _check(model: GgufModel, path: Path) -> None:
    """Refuse vocabularies that no tokenizer could be built from without guessing."""
    count = len(model.tokens)
    if len(model.token_types) != count:
        raise ArtifactCorrupt(f"{path}: {len(model.token_types)} token types for {count} tokens")
    if model.scores and len(model.scores) != count:
        raise ArtifactCorrupt(f"{path}: {len(model.scores)} scores for {count} tokens")
    if len(set(model.tokens)) != count:
        raise ArtifactCorrupt(f"{path}: the vocabulary holds a token twice")
    for name in ("bos_id", "eos_id", "eot_id", "eom_id", "unk_id", "pad_id"):
        token_id = getattr(model, name)
        if token_id is not None and not 0 <= token_id < count:
            raise ArtifactCorrupt(f"{path}: {name} {token_id} is outside the {count} tokens")
