"""Tests of cog_triton.artifacts.gguf_directory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from cog_triton.artifacts.gguf_directory import (
    WEIGHTS_NAME,
    find_end_ids,
    wanted_programs,
    write_derived_files,
)
from cog_triton.artifacts.gguf_model import GgufModel, TokenType
from cog_triton.artifacts.model_directory import ModelDirectory
from cog_triton.artifacts.options import FetchOptions
from cog_triton.artifacts.progress import silent
from cog_triton.artifacts.published import Workspace
from cog_triton.errors import ArtifactCorrupt
from tests import artifact_samples as samples


def derive(directory: Path, model: GgufModel) -> dict[str, Any]:
    """Write the files of a GGUF into a directory and return the JSON ones by name."""
    samples.write_gguf(directory / WEIGHTS_NAME, model)
    work = Workspace(directory, directory, None, lambda _: pytest.fail("no space is asked for"))
    write_derived_files(work, FetchOptions(silent))
    return {path.stem: json.loads(path.read_text()) for path in directory.glob("*.json")}


def test_the_files_of_a_model(tmp_path: Path) -> None:
    """Limits, ids, special tokens and chat template stand where Hugging Face's libraries look."""
    files = derive(tmp_path, samples.byte_level_model())
    vocab_size = len(samples.byte_level_model().tokens)
    assert files["config"] == {
        "model_type": "llama",
        "max_position_embeddings": 128,
        "vocab_size": vocab_size,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 2,
    }
    assert files["generation_config"] == {
        "bos_token_id": 1,
        "eos_token_id": [2, 0],
        "pad_token_id": 2,
    }
    assert files["tokenizer_config"] == {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": 128,
        "clean_up_tokenization_spaces": False,
        "bos_token": "<|im_start|>",
        "eos_token": "<|im_end|>",
        "pad_token": "<|im_end|>",
        "unk_token": "<|endoftext|>",
        "chat_template": samples.CHAT_TEMPLATE,
    }
    tokenizer = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    for text in samples.TEXTS:
        assert tokenizer.encode(text).ids == samples.trained_tokenizer().encode(text).ids


def test_the_result_is_a_model_directory(tmp_path: Path) -> None:
    """What is written is what the next stage reads."""
    derive(tmp_path, samples.byte_level_model())
    model = ModelDirectory.read(tmp_path)
    assert model.weights == tmp_path / WEIGHTS_NAME
    assert (model.end_ids, model.pad_id, model.max_position_embeddings) == ((2, 0), 2, 128)


def test_a_model_that_says_little(tmp_path: Path) -> None:
    """Without BOS, padding and chat template the files leave them out; padding is the end."""
    model = samples.byte_level_model(bos_id=None, pad_id=None, unk_id=None, chat_template=None)
    files = derive(tmp_path, model)
    assert set(files["generation_config"]) == {"eos_token_id", "pad_token_id"}
    assert files["tokenizer_config"]["pad_token"] == "<|im_end|>"
    assert not {"bos_token", "unk_token", "chat_template"} & set(files["tokenizer_config"])


def test_end_ids_are_the_named_ones_then_the_well_known_ones() -> None:
    """EOS comes first, then end of turn and of message, then known control tokens, each once."""
    control, normal = TokenType.CONTROL, TokenType.NORMAL
    model = samples.byte_level_model(
        tokens=["<|end|>", "a", "<|im_end|>", "</s>", "<|eot_id|>", "b"],
        token_types=[control, normal, control, normal, control, normal],
        eos_id=4,
        eot_id=2,
        eom_id=1,
        pad_id=None,
    )
    assert find_end_ids(model) == (4, 2, 1, 0)


def test_a_model_without_any_end_is_corrupt(tmp_path: Path) -> None:
    """A GGUF that names no end token and has no known one cannot be served."""
    model = samples.byte_level_model(
        eos_id=None,
        pad_id=None,
        token_types=[TokenType.NORMAL] * len(samples.byte_level_model().tokens),
    )
    with pytest.raises(ArtifactCorrupt, match="eos_token_id"):
        derive(tmp_path, model)


def test_programs_are_wanted_where_they_are_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files for OpenVINO are written if the caller asks and OpenVINO GenAI is there."""
    assert wanted_programs(FetchOptions(silent)) == {}
    assert set(wanted_programs(FetchOptions(silent, "openvino"))) == {"openvino-genai"}
    monkeypatch.setattr("cog_triton.artifacts.openvino_ir.PACKAGE", "no-such-package")
    assert wanted_programs(FetchOptions(silent, "openvino")) == {}
