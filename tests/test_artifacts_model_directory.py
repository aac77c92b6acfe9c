"""Tests of cog_triton.artifacts.model_directory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cog_triton.artifacts.manifest import Manifest, Recipe
from cog_triton.artifacts.model_directory import ModelDirectory
from cog_triton.artifacts.openvino_ir import IR_FILES
from cog_triton.errors import ArtifactCorrupt

CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "max_position_embeddings": 4096,
    "vocab_size": 32000,
    "eos_token_id": 2,
}


def fill(directory: Path, config: dict[str, Any] | None = None, *names: str) -> Path:
    """A model directory of a configuration, a tokenizer, and further files."""
    directory.mkdir(exist_ok=True)
    (directory / "config.json").write_text(json.dumps(CONFIG if config is None else config))
    for name in ("tokenizer.json", *names):
        (directory / name).write_text("GGUF" if name.endswith(".gguf") else "{}")
    return directory


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """A Hugging Face checkpoint of one file."""
    return fill(tmp_path / "model", None, "model.safetensors")


def test_a_checkpoint_is_read(checkpoint: Path) -> None:
    """The values that the rest of the product needs come out of the configuration."""
    assert ModelDirectory.read(checkpoint) == ModelDirectory(
        path=checkpoint,
        format="checkpoint",
        weights=checkpoint,
        max_position_embeddings=4096,
        vocab_size=32000,
        end_ids=(2,),
        pad_id=2,
        model_type="llama",
    )


def test_a_gguf_is_opened_by_its_file(tmp_path: Path) -> None:
    """The runtime opens a GGUF by the file, whatever its name."""
    model = ModelDirectory.read(fill(tmp_path, None, "Some-Q4.gguf"))
    assert (model.format, model.weights) == ("gguf", tmp_path / "Some-Q4.gguf")


def test_openvino_ir_is_preferred_to_the_gguf(tmp_path: Path) -> None:
    """Beside the GGUF it was made from, the IR is what the runtime opens, by its directory."""
    model = ModelDirectory.read(fill(tmp_path, None, "model.gguf", *IR_FILES))
    assert (model.format, model.weights) == ("openvino_ir", tmp_path)


def test_an_engine_is_recognised(tmp_path: Path) -> None:
    """TensorRT-LLM keeps the model's values under pretrained_config."""
    config = {
        "version": "1.1.0",
        "pretrained_config": {
            "architecture": "LlamaForCausalLM",
            "vocab_size": 32000,
            "max_position_embeddings": 4096,
        },
        "build_config": {"max_batch_size": 8},
    }
    fill(tmp_path, config, "rank0.engine")
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [7, 8]}')
    model = ModelDirectory.read(tmp_path)
    assert (model.format, model.weights, model.end_ids) == ("engine", tmp_path, (7, 8))
    assert (model.model_type, model.vocab_size) == ("LlamaForCausalLM", 32000)


def test_a_multimodal_checkpoint_has_its_text_model(tmp_path: Path) -> None:
    """Values under text_config are those of the language model."""
    config = {"model_type": "outer", "text_config": CONFIG}
    model = ModelDirectory.read(fill(tmp_path, config, "model.safetensors"))
    assert (model.model_type, model.max_position_embeddings) == ("llama", 4096)


@pytest.mark.parametrize(
    ("generation", "config", "end_ids", "pad_id"),
    [
        ({"eos_token_id": [5, 6], "pad_token_id": 9}, {"eos_token_id": 2}, (5, 6), 9),
        ({"eos_token_id": 5}, {"eos_token_id": 2, "pad_token_id": 1}, (5,), 1),
        ({}, {"eos_token_id": [2, 3]}, (2, 3), 2),
        ({"eos_token_id": None, "pad_token_id": None}, {"eos_token_id": 2}, (2,), 2),
        ({"eos_token_id": 0, "pad_token_id": -1}, {"eos_token_id": 2}, (0,), 0),
    ],
)
def test_end_and_pad_ids(
    checkpoint: Path,
    generation: dict[str, Any],
    config: dict[str, Any],
    end_ids: tuple[int, ...],
    pad_id: int,
) -> None:
    """generation_config.json wins, one id or several; padding falls back to the end id."""
    (checkpoint / "generation_config.json").write_text(json.dumps(generation))
    (checkpoint / "config.json").write_text(json.dumps({**CONFIG, **config}))
    model = ModelDirectory.read(checkpoint)
    assert (model.end_ids, model.pad_id) == (end_ids, pad_id)


def test_a_directory_without_weights_names_what_would_do(tmp_path: Path) -> None:
    """The error lists the files that could be weights."""
    with pytest.raises(ArtifactCorrupt, match=r"\*\.safetensors, \*\.gguf"):
        ModelDirectory.read(fill(tmp_path))


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json"])
def test_missing_files_are_named(checkpoint: Path, name: str) -> None:
    """Every model directory has a configuration and a tokenizer."""
    (checkpoint / name).unlink()
    with pytest.raises(ArtifactCorrupt, match=name):
        ModelDirectory.read(checkpoint)


@pytest.mark.parametrize("name", sorted(set(IR_FILES) - {"openvino_model.xml"}))
def test_an_incomplete_ir_is_corrupt(tmp_path: Path, name: str) -> None:
    """An IR without one of its files is not served, even if the GGUF is there."""
    fill(tmp_path, None, "model.gguf", *IR_FILES)
    (tmp_path / name).unlink()
    with pytest.raises(ArtifactCorrupt, match=name):
        ModelDirectory.read(tmp_path)


def test_an_engine_without_its_first_rank_is_corrupt(tmp_path: Path) -> None:
    """An engine's configuration alone is no engine."""
    with pytest.raises(ArtifactCorrupt, match=r"rank0\.engine"):
        ModelDirectory.read(fill(tmp_path, {"pretrained_config": CONFIG}))


def test_a_missing_shard_is_named(checkpoint: Path) -> None:
    """Every file that the index of a sharded checkpoint names must be there."""
    index = {"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}
    (checkpoint / "model.safetensors.index.json").write_text(json.dumps(index))
    (checkpoint / "model-1.safetensors").write_text("")
    with pytest.raises(ArtifactCorrupt, match=r"model-2\.safetensors"):
        ModelDirectory.read(checkpoint)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "pytorch_model-1-of-2.bin", "model.pth"])
def test_weights_of_pytorch_are_a_checkpoint(tmp_path: Path, name: str) -> None:
    """Older models have no safetensors."""
    assert ModelDirectory.read(fill(tmp_path, None, name)).format == "checkpoint"


def test_a_missing_pytorch_shard_is_named(tmp_path: Path) -> None:
    """Their index counts as well."""
    fill(tmp_path, None, "pytorch_model-1.bin")
    index = {"weight_map": {"a": "pytorch_model-1.bin", "b": "pytorch_model-2.bin"}}
    (tmp_path / "pytorch_model.bin.index.json").write_text(json.dumps(index))
    with pytest.raises(ArtifactCorrupt, match=r"pytorch_model-2\.bin"):
        ModelDirectory.read(tmp_path)


@pytest.mark.parametrize(
    ("key", "value"), [("vocab_size", None), ("max_position_embeddings", "long"), ("vocab_size", 0)]
)
def test_missing_values_are_named(checkpoint: Path, key: str, value: object) -> None:
    """A configuration without a value that the product needs says which."""
    (checkpoint / "config.json").write_text(json.dumps({**CONFIG, key: value}))
    with pytest.raises(ArtifactCorrupt, match=key):
        ModelDirectory.read(checkpoint)


@pytest.mark.parametrize("eos", [None, [], "</s>", [1, None], -1, True])
def test_a_model_without_end_is_corrupt(checkpoint: Path, eos: object) -> None:
    """A model that names no token id to stop at would never stop."""
    (checkpoint / "config.json").write_text(json.dumps({**CONFIG, "eos_token_id": eos}))
    with pytest.raises(ArtifactCorrupt, match="eos_token_id"):
        ModelDirectory.read(checkpoint)


@pytest.mark.parametrize("content", ["", "[]", "{", "\udcff"])
def test_unreadable_json_is_named(checkpoint: Path, content: str) -> None:
    """A configuration that is no JSON object is corrupt."""
    (checkpoint / "config.json").write_bytes(content.encode(errors="surrogateescape"))
    with pytest.raises(ArtifactCorrupt, match=r"config\.json"):
        ModelDirectory.read(checkpoint)


def test_a_file_that_only_has_the_name_of_a_gguf_is_corrupt(tmp_path: Path) -> None:
    """The first bytes of a GGUF are looked at."""
    fill(tmp_path)
    (tmp_path / "model.gguf").write_text("<html>not found</html>")
    with pytest.raises(ArtifactCorrupt, match="not a GGUF"):
        ModelDirectory.read(tmp_path)


def test_a_file_is_no_model_directory(tmp_path: Path) -> None:
    """A path that is no directory is corrupt, not a crash."""
    with pytest.raises(ArtifactCorrupt, match="not a directory"):
        ModelDirectory.read(tmp_path / "absent")


def test_a_manifest_is_believed_more_than_the_structure(checkpoint: Path) -> None:
    """Where a manifest says what was written, a file of another size is corrupt."""
    Manifest.of(checkpoint, Recipe("test"), {}).write(checkpoint)
    ModelDirectory.read(checkpoint)
    (checkpoint / "model.safetensors").write_text("cut")
    with pytest.raises(ArtifactCorrupt, match=r"model\.safetensors"):
        ModelDirectory.read(checkpoint)
