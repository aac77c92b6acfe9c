"""The model's tokenizer, from the two files that every Hugging Face checkpoint carries."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import tokenizers

from cog_triton.errors import ArtifactCorrupt, TritonTokenizerError, UserError
from cog_triton.text.detokenizer import Detokenizer, detokenizers, token_of

_NAMED_TOKENS = ("bos_token", "eos_token", "unk_token", "pad_token")


class Tokenizer:
    """Text to ids and back, and what tokenizer_config.json says about prompts.

    `special_tokens` maps bos_token, eos_token, unk_token and pad_token to their text, as
    far as the model has them. `add_bos_token` None leaves the first token to the
    tokenizer's own post-processor; True and False override it, as transformers does.
    Safe to share between threads and streams.
    """

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        *,
        chat_template: str | None = None,
        special_tokens: Mapping[str, str] | None = None,
        add_bos_token: bool | None = None,
    ) -> None:
        # Limits of a training run can be stored in tokenizer.json; they would cut prompts.
        backend.no_truncation()
        backend.no_padding()
        self._backend = backend
        self._make_detokenizer = detokenizers(backend)
        self.chat_template = chat_template
        self.special_tokens = dict(special_tokens or {})
        self._bos_to_add: list[int] = []
        self._num_bos_to_drop = 0
        self._override_bos(add_bos_token)

    @classmethod
    def load(cls, model_dir: Path) -> Tokenizer:
        """The tokenizer of a model directory.

        Reads tokenizer.json and tokenizer_config.json; a chat_template.jinja beside them
        wins over the chat_template of the configuration. Raises ArtifactCorrupt naming the
        file that is missing or wrong, UnsupportedModel if its text cannot be streamed.
        """
        config = _read_config(model_dir / "tokenizer_config.json")
        path = model_dir / "tokenizer.json"
        try:
            backend = tokenizers.Tokenizer.from_str(_read_text(path))
        except ArtifactCorrupt:
            raise
        except Exception as err:  # the library raises plain Exception
            raise ArtifactCorrupt(f"{path} is not a tokenizer: {err}") from err
        return cls(
            backend,
            chat_template=_chat_template(model_dir, config),
            special_tokens=_named_tokens(config),
            add_bos_token=_optional_bool(config, "add_bos_token"),
        )

    @property
    def bos_token(self) -> str | None:
        """Text of the token that begins a sequence, if the model has one."""
        return self.special_tokens.get("bos_token")

    @property
    def eos_token(self) -> str | None:
        """Text of the token that ends a sequence, if the model has one."""
        return self.special_tokens.get("eos_token")

    @cached_property
    def vocab_size(self) -> int:
        """Number of tokens, added ones included; a model's output layer may be padded beyond."""
        return self._backend.get_vocab_size(with_added_tokens=True)

    def token_id(self, token: str) -> int | None:
        """Id of a token given by its text, None if there is no such token."""
        return self._backend.token_to_id(token)

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """Token ids of a text; special tokens written in it are taken as such.

        Raises UserError if the text is no Unicode text (a lone surrogate),
        TritonTokenizerError if the tokenizer fails.
        """
        try:
            ids: list[int] = self._backend.encode(text, add_special_tokens=add_special_tokens).ids
        except Exception as err:  # the library raises plain Exception, and TypeError for surrogates
            _check_unicode(text)
            raise TritonTokenizerError(f"the tokenizer failed on the prompt: {err}") from err
        return self._bos_to_add + ids[self._num_bos_to_drop :] if add_special_tokens else ids

    def count(self, text: str, *, add_special_tokens: bool) -> int:
        """Number of token ids that `encode` gives."""
        return len(self.encode(text, add_special_tokens=add_special_tokens))

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """Text of a whole sequence; TritonTokenizerError if an id is not of this tokenizer."""
        for token_id in ids:
            token_of(self._backend, token_id)
        try:
            return self._backend.decode(ids, skip_special_tokens=skip_special_tokens)
        except Exception as err:
            raise TritonTokenizerError(f"the tokenizer failed to decode: {err}") from err

    def detokenizer(self) -> Detokenizer:
        """A detokenizer for one stream."""
        return self._make_detokenizer()

    def _override_bos(self, add_bos_token: bool | None) -> None:
        """Note what `encode` has to change in what the post-processor does for the first token."""
        bos_id = None if self.bos_token is None else self.token_id(self.bos_token)
        if bos_id is None or add_bos_token is None:
            return
        added = self._backend.encode("", add_special_tokens=True).ids[:1] == [bos_id]
        if add_bos_token and not added:
            self._bos_to_add = [bos_id]
        elif added and not add_bos_token:
            self._num_bos_to_drop = 1


def _check_unicode(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as err:
        raise UserError(
            f"the text holds half of a surrogate pair ({text[err.start]!a} at character"
            f" {err.start}), which is no Unicode character"
        ) from err


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as err:
        raise ArtifactCorrupt(f"{path} cannot be read: {err}") from err


def _read_config(path: Path) -> dict[str, Any]:
    try:
        config = json.loads(_read_text(path))
    except ValueError as err:
        raise ArtifactCorrupt(f"{path} is not JSON: {err}") from err
    if not isinstance(config, dict):
        raise ArtifactCorrupt(f"{path} holds no JSON object")
    return config


def _chat_template(model_dir: Path, config: Mapping[str, Any]) -> str | None:
    """The template for chats: a file of its own, a string, or one of a list of named ones."""
    path = model_dir / "chat_template.jinja"
    if path.exists():
        return _read_text(path)
    value = config.get("chat_template")
    if value is None or isinstance(value, str):
        return value
    try:
        named = {str(entry["name"]): str(entry["template"]) for entry in value}
    except (TypeError, KeyError) as err:
        raise ArtifactCorrupt(
            "tokenizer_config.json: chat_template is neither a text nor a list of"
            ' {"name", "template"}'
        ) from err
    if len(named) == 1:
        return next(iter(named.values()))
    if named and "default" not in named:
        raise ArtifactCorrupt(
            f"tokenizer_config.json: of the chat templates {', '.join(named)} none is the default"
        )
    return named.get("default")


def _named_tokens(config: Mapping[str, Any]) -> dict[str, str]:
    """Text of the named tokens, each a string or an object with the string as content."""
    tokens = {}
    for name in _NAMED_TOKENS:
        value = config.get(name)
        if isinstance(value, Mapping):
            value = value.get("content")
        if isinstance(value, str):
            tokens[name] = value
        elif config.get(name) is not None:
            raise ArtifactCorrupt(f"tokenizer_config.json: {name} is no token")
    return tokens


def _optional_bool(config: Mapping[str, Any], name: str) -> bool | None:
    value = config.get(name)
    if value is None or isinstance(value, bool):
        return value
    raise ArtifactCorrupt(f"tokenizer_config.json: {name} is neither true nor false")
