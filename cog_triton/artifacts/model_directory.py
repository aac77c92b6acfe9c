"""What the rest of the product knows of a model: one directory, read once and checked."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from cog_triton.artifacts.gguf_model import has_gguf_magic
from cog_triton.artifacts.manifest import Manifest
from cog_triton.artifacts.openvino_ir import IR_FILES
from cog_triton.errors import ArtifactCorrupt

# Weights in the order in which Hugging Face's libraries look for them, and the index of shards.
_CHECKPOINTS = (
    ("*.safetensors", "model.safetensors.index.json"),
    ("pytorch_model*.bin", "pytorch_model.bin.index.json"),
    ("*.pth", "pytorch_model.pth.index.json"),
)
ModelFormat = Literal["gguf", "openvino_ir", "checkpoint", "engine"]


@dataclass(frozen=True)
class ModelDirectory:
    """A model directory that was found complete.

    path                     the directory; holds tokenizer.json, usually tokenizer_config.json
    format                   what the weights are
    weights                  what the runtime opens: the file for gguf, else the directory itself
    max_position_embeddings  longest sequence of the model, in tokens
    vocab_size               number of token ids
    end_ids                  ids that end a generation, the main one first; never empty
    pad_id                   id for padding, the main end id where the model has none
    model_type               architecture: llama, qwen2, … (an engine: LlamaForCausalLM, …)
    """

    path: Path
    format: ModelFormat
    weights: Path
    max_position_embeddings: int
    vocab_size: int
    end_ids: tuple[int, ...]
    pad_id: int
    model_type: str

    @staticmethod
    def read(path: Path) -> ModelDirectory:
        """Read and check a directory; takes milliseconds, whatever the size of the weights.

        A directory that a fetch wrote is checked against its manifest, any other by its structure.

        Raises: ArtifactCorrupt naming what is missing or wrong.
        """
        if not path.is_dir():
            raise ArtifactCorrupt(f"{path} is not a directory")
        manifest = Manifest.read(path)
        if manifest is not None:
            manifest.verify(path)
        config = _read_json(path, "config.json")
        found, weights = _find_weights(path, config)
        _need_file(path, "tokenizer.json")
        model_config = _model_config(config)
        end_ids, pad_id = _special_ids(path, model_config)
        return ModelDirectory(
            path=path,
            format=found,
            weights=weights,
            max_position_embeddings=_need_int(
                path, model_config, "max_position_embeddings", "n_positions", "max_seq_len"
            ),
            vocab_size=_need_int(path, model_config, "vocab_size"),
            end_ids=end_ids,
            pad_id=pad_id,
            model_type=str(model_config.get("model_type") or model_config.get("architecture", "")),
        )


def _find_weights(path: Path, config: dict[str, Any]) -> tuple[ModelFormat, Path]:
    """Which kind of weights lies here; the IR before the GGUF that it was made from."""
    if "pretrained_config" in config:
        _need_file(path, "rank0.engine")
        return "engine", path
    if (path / "openvino_model.xml").exists():
        for name in IR_FILES:
            _need_file(path, name)
        return "openvino_ir", path
    gguf_files = sorted(path.glob("*.gguf"))
    if len(gguf_files) == 1:
        if not has_gguf_magic(gguf_files[0]):
            raise ArtifactCorrupt(f"{gguf_files[0]} is not a GGUF file")
        return "gguf", gguf_files[0]
    if gguf_files:
        raise ArtifactCorrupt(f"{path} holds {len(gguf_files)} GGUF files, one is expected")
    if _has_checkpoint(path):
        return "checkpoint", path
    raise ArtifactCorrupt(
        f"{path} holds no weights: no *.safetensors, *.gguf, pytorch_model*.bin, "
        "openvino_model.xml or rank0.engine"
    )


def _has_checkpoint(path: Path) -> bool:
    """Whether a Hugging Face checkpoint lies here, with every shard that its index names."""
    for pattern, index in _CHECKPOINTS:
        if (path / index).exists():
            shards = _read_json(path, index).get("weight_map", {})
            for name in sorted(set(shards.values())):
                _need_file(path, name)
            return True
        if any(path.glob(pattern)):
            return True
    return False


def _model_config(config: dict[str, Any]) -> dict[str, Any]:
    """The part of config.json that describes the language model.

    An engine keeps it under pretrained_config (TensorRT-LLM's EngineConfig), a multimodal
    checkpoint under text_config.
    """
    nested = config.get("pretrained_config") or config.get("text_config")
    return {**config, **nested} if isinstance(nested, dict) else config


def _special_ids(path: Path, config: dict[str, Any]) -> tuple[tuple[int, ...], int]:
    """(end ids, pad id): generation_config.json says it better than config.json, if it is there."""
    generation = _read_json(path, "generation_config.json", optional=True)
    end_ids = _token_ids(generation.get("eos_token_id")) or _token_ids(config.get("eos_token_id"))
    if not end_ids:
        raise ArtifactCorrupt(
            f"{path} names no end token: neither generation_config.json nor config.json has a "
            "usable eos_token_id"
        )
    pad_ids = _token_ids(generation.get("pad_token_id")) or _token_ids(config.get("pad_token_id"))
    return end_ids, (pad_ids or end_ids)[0]


def _token_ids(value: object) -> tuple[int, ...]:
    """Token ids from a JSON value that is one id or a list of them; () if it is anything else."""
    values = value if isinstance(value, list) else [value]
    ids = tuple(i for i in values if type(i) is int and i >= 0)
    return ids if len(ids) == len(values) else ()


def _need_file(path: Path, name: str) -> None:
    if not (path / name).is_file():
        raise ArtifactCorrupt(f"{path} has no {name}")


def _need_int(path: Path, config: dict[str, Any], *names: str) -> int:
    for name in names:
        value = config.get(name)
        if isinstance(value, int) and value > 0:
            return value
    raise ArtifactCorrupt(f"{path / 'config.json'} has no usable {names[0]}")


def _read_json(path: Path, name: str, *, optional: bool = False) -> dict[str, Any]:
    try:
        value = json.loads((path / name).read_bytes())
    except FileNotFoundError as err:
        if optional:
            return {}
        raise ArtifactCorrupt(f"{path} has no {name}") from err
    except (OSError, ValueError) as err:
        raise ArtifactCorrupt(f"{path / name} cannot be read ({err})") from err
    if not isinstance(value, dict):
        raise ArtifactCorrupt(f"{path / name} is not a JSON object")
    return value
