"""Checkpoint and engine directories without real weights, for the stand-ins of TensorRT-LLM."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.text_samples import byte_level

END_ID = 1
STOP_ID = 3
VOCAB_SIZE = 512
MAX_SEQ_LEN = 256


def write_checkpoint(directory: Path, **standin: Any) -> Path:
    """A Hugging Face checkpoint with a trained tokenizer; `standin` steers the stand-in LLM."""
    _write_common(directory)
    _write_json(directory / "config.json", {"model_type": "llama", **_sizes()})
    (directory / "model.safetensors").write_bytes(b"no weights")
    _write_json(directory / "standin.json", standin)
    return directory


def write_engine(directory: Path, **build_config: Any) -> Path:
    """A TensorRT-LLM engine directory of one rank, in the layout of 1.1."""
    _write_common(directory)
    pretrained = {
        "architecture": "LlamaForCausalLM",
        "dtype": "float16",
        "mapping": {"world_size": 1, "tp_size": 1, "pp_size": 1},
        **_sizes(),
    }
    config = {"version": "1.1.0", "pretrained_config": pretrained, "build_config": build_config}
    _write_json(directory / "config.json", config)
    (directory / "rank0.engine").write_bytes(b"no engine")
    return directory


def _sizes() -> dict[str, Any]:
    return {"vocab_size": VOCAB_SIZE, "max_position_embeddings": MAX_SEQ_LEN}


def _write_common(directory: Path) -> None:
    directory.mkdir(parents=True)
    byte_level().save(str(directory / "tokenizer.json"))
    _write_json(directory / "tokenizer_config.json", {"eos_token": "<|end|>"})
    generation = {"eos_token_id": [END_ID, STOP_ID], "pad_token_id": END_ID}
    _write_json(directory / "generation_config.json", generation)


def _write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value), encoding="utf-8")
