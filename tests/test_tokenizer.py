"""Tests of cog_triton.text.tokenizer."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

from cog_triton.errors import (
    ArtifactCorrupt,
    TritonTokenizerError,
    UnsupportedModel,
    UserError,
)
from cog_triton.text.tokenizer import Tokenizer
from tests import text_samples

LLAMA_TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}


def write(path: Path, text: str | bytes) -> None:
    path.write_bytes(text if isinstance(text, bytes) else text.encode())


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json"])
@pytest.mark.parametrize(
    "damage",
    [
        Path.unlink,
        lambda path: write(path, ""),
        lambda path: write(path, "{"),
        lambda path: write(path, "[]"),
        lambda path: write(path, b"\xff\xfe{}"),
        lambda path: write(path, path.read_text()[:-2]),
    ],
)
def test_a_missing_or_broken_file_is_named(
    tmp_path: Path, name: str, damage: Callable[[Path], None]
) -> None:
    """A file that is missing, cut or of another kind is reported with its name."""
    text_samples.save_model(tmp_path, text_samples.llama2())
    damage(tmp_path / name)
    with pytest.raises(ArtifactCorrupt, match=name):
        Tokenizer.load(tmp_path)


@pytest.mark.parametrize(
    "config",
    [
        {"chat_template": 5},
        {"chat_template": ["text"]},
        {"chat_template": [{"name": "default"}]},
        {"chat_template": [{"name": n, "template": "t"} for n in ("rag", "tool_use")]},
        {"bos_token": 1},
        {"eos_token": {"text": "</s>"}},
        {"add_bos_token": "yes"},
    ],
)
def test_a_configuration_of_another_shape_names_the_key(
    tmp_path: Path, config: dict[str, Any]
) -> None:
    """A value that cannot be what the key means is reported with the key."""
    text_samples.save_model(tmp_path, text_samples.llama2(), config)
    with pytest.raises(ArtifactCorrupt, match="template" if "chat" in str(config) else "token"):
        Tokenizer.load(tmp_path)


def test_a_decoder_that_cannot_stream_fails_at_load(tmp_path: Path) -> None:
    """A model whose text cannot be streamed is refused before it serves."""
    backend = text_samples.llama2()
    backend.decoder = tokenizers.decoders.CTC()
    with pytest.raises(UnsupportedModel, match="CTC"):
        Tokenizer.load(text_samples.save_model(tmp_path, backend))


@pytest.mark.parametrize("name", list(text_samples.ALL))
@pytest.mark.parametrize("text", ["half \ud83d", "\udc00", "a" * 50 + "\ud800" + "b"])
def test_half_a_surrogate_pair_is_the_callers_error(name: str, text: str) -> None:
    """Text that is no Unicode text is refused as input, with the place of the character."""
    position = next(i for i, char in enumerate(text) if char >= "\ud800")
    with pytest.raises(UserError, match=f"character {position}") as caught:
        Tokenizer(text_samples.ALL[name]()).encode(text, add_special_tokens=True)
    assert caught.value.code == "E1000"


def test_a_failing_model_is_a_tokenizer_error() -> None:
    """An error of the library at encoding is reported as the tokenizer's."""
    backend = text_samples.words()
    backend.model = tokenizers.models.WordLevel({"a": 0, "hello": 1}, unk_token="[NONE]")
    with pytest.raises(TritonTokenizerError, match="prompt"):
        Tokenizer(backend).encode("unheard of", add_special_tokens=False)


@pytest.mark.parametrize("wrong", [-1, 10**6, 2**40])
def test_decoding_an_unknown_id_is_an_error(wrong: int) -> None:
    """An id of another vocabulary is an error, not a gap in the text."""
    with pytest.raises(TritonTokenizerError):
        Tokenizer(text_samples.llama2()).decode([300, wrong])


def test_a_model_directory_gives_everything(tmp_path: Path) -> None:
    """Special tokens in either form, the chat template and the vocabulary come from the files."""
    config = {
        "bos_token": {"content": "<s>", "special": True},
        "eos_token": "</s>",
        "pad_token": None,
        "chat_template": text_samples.CHATML,
    }
    tokenizer = Tokenizer.load(text_samples.save_model(tmp_path, text_samples.llama2(), config))
    assert tokenizer.bos_token == "<s>"
    assert tokenizer.eos_token == "</s>"
    assert tokenizer.special_tokens == LLAMA_TOKENS
    assert tokenizer.chat_template == text_samples.CHATML
    assert tokenizer.vocab_size == text_samples.llama2().get_vocab_size()
    assert tokenizer.token_id("</s>") == 2
    assert tokenizer.token_id("no such token") is None


def test_a_base_model_has_no_template_and_no_tokens(tmp_path: Path) -> None:
    """What the configuration leaves out is None."""
    tokenizer = Tokenizer.load(text_samples.save_model(tmp_path, text_samples.llama2()))
    assert tokenizer.chat_template is None
    assert tokenizer.bos_token is None
    assert tokenizer.eos_token is None


def test_the_template_file_wins_over_the_configuration(tmp_path: Path) -> None:
    """A chat_template.jinja beside the configuration is the template."""
    text_samples.save_model(tmp_path, text_samples.llama2(), {"chat_template": "old"})
    (tmp_path / "chat_template.jinja").write_text("new", encoding="utf-8")
    assert Tokenizer.load(tmp_path).chat_template == "new"


@pytest.mark.parametrize(
    ("names", "chosen"), [(["tool_use", "default"], "default"), (["rag"], "rag"), ([], None)]
)
def test_of_named_templates_the_default_is_taken(
    tmp_path: Path, names: list[str], chosen: str | None
) -> None:
    """A list of named templates gives the default one, or the only one."""
    config = {"chat_template": [{"name": name, "template": name} for name in names]}
    model_dir = text_samples.save_model(tmp_path, text_samples.llama2(), config)
    assert Tokenizer.load(model_dir).chat_template == chosen


def test_limits_stored_in_the_file_do_not_cut_prompts(tmp_path: Path) -> None:
    """Truncation and padding left over from training have no effect."""
    backend = text_samples.llama2()
    backend.enable_truncation(4)
    backend.enable_padding(length=4)
    tokenizer = Tokenizer.load(text_samples.save_model(tmp_path, backend))
    assert tokenizer.count("the " * 20, add_special_tokens=False) > 20
    assert tokenizer.count("", add_special_tokens=False) == 0


@pytest.mark.parametrize(
    ("add_bos_token", "post_processor", "num_bos"),
    [
        (None, True, 1),
        (None, False, 0),
        (True, True, 1),
        (True, False, 1),
        (False, True, 0),
        (False, False, 0),
    ],
)
def test_add_bos_token_decides_over_the_post_processor(
    tmp_path: Path, add_bos_token: bool | None, post_processor: bool, num_bos: int
) -> None:
    """The flag adds or removes the first token; without it the tokenizer's own rule stands."""
    backend = text_samples.llama2()
    if not post_processor:
        spec = json.loads(backend.to_str())
        backend = tokenizers.Tokenizer.from_str(json.dumps(spec | {"post_processor": None}))
    config = {**LLAMA_TOKENS, "add_bos_token": add_bos_token}
    tokenizer = Tokenizer.load(text_samples.save_model(tmp_path, backend, config))
    plain = tokenizer.encode("the fox", add_special_tokens=False)
    assert tokenizer.encode("the fox", add_special_tokens=True) == [1] * num_bos + plain


@pytest.mark.parametrize("name", ["llama2", "gemma"])
def test_a_bos_token_that_the_text_holds_stays(name: str) -> None:
    """A first token written in the prompt is kept although the model adds none itself."""
    tokenizer = Tokenizer(
        text_samples.ALL[name](), special_tokens=LLAMA_TOKENS, add_bos_token=False
    )
    plain = tokenizer.encode("<s>the", add_special_tokens=False)
    assert plain.count(1) == 1
    assert tokenizer.encode("<s>the", add_special_tokens=True) == plain


def test_special_tokens_are_skipped_or_shown() -> None:
    """Decoding leaves special tokens out unless asked for them."""
    tokenizer = Tokenizer(text_samples.llama2())
    ids = tokenizer.encode("the fox</s>", add_special_tokens=True)
    assert tokenizer.decode(ids) == "the fox"
    assert tokenizer.decode(ids, skip_special_tokens=False) == "<s> the fox</s>"


@settings(max_examples=60, deadline=None)
@given(text=st.one_of(st.sampled_from(text_samples.CORPUS), st.text()))
def test_byte_level_text_comes_back(text: str) -> None:
    """Byte-level tokens hold any text, and a detokenizer fed at once agrees."""
    tokenizer = Tokenizer(text_samples.ALL["byte_level"]())
    ids = tokenizer.encode(text, add_special_tokens=False)
    detokenizer = tokenizer.detokenizer()
    assert tokenizer.decode(ids) == detokenizer.feed(ids) + detokenizer.finish()
    assert tokenizer.decode(ids) == text
    assert tokenizer.count(text, add_special_tokens=False) == len(ids)
