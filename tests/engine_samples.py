"""Machines, checkpoints without weights and engine directories, for the engine and build tests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from cog_triton import settings
from cog_triton.artifacts.model_directory import ModelDirectory
from cog_triton.gpu_inventory import GIB, ComputeCapability, Gpu, GpuInventory
from cog_triton.machine import Machine
from cog_triton.settings import Settings

ROOT = Path(__file__).resolve().parent.parent
GPUS = ROOT / "tests" / "data" / "gpus"
STANDINS = ROOT / "tests" / "standins"

A100 = Gpu("NVIDIA A100-SXM4-80GB", 80 * GIB, ComputeCapability(8, 0))
H100 = Gpu("NVIDIA H100 80GB HBM3", 80 * GIB, ComputeCapability(9, 0))
L4 = Gpu("NVIDIA L4", 22 * GIB, ComputeCapability(8, 9))
T4 = Gpu("Tesla T4", 15 * GIB, ComputeCapability(7, 5))

# By family: what a Hugging Face config.json of it says; sizes are made up and small.
_COMMON = {"vocab_size": 512, "torch_dtype": "bfloat16", "eos_token_id": 2}
_ROPE = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
_GPT = {"n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 1024}
CONFIGS: dict[str, dict[str, Any]] = {
    "llama": {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "max_position_embeddings": 4096,
        **_ROPE,
    },
    "mistral": {
        "architectures": ["MistralForCausalLM"],
        "model_type": "mistral",
        "max_position_embeddings": 32768,
        **_ROPE,
    },
    "phi": {
        "architectures": ["Phi3ForCausalLM"],
        "model_type": "phi3",
        "max_position_embeddings": 4096,
        **_ROPE,
    },
    "gpt": {"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", **_GPT},
    "qwen": {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "max_position_embeddings": 32768,
        **_ROPE,
    },
}


def machine(*gpus: Gpu, **changes: Any) -> Machine:
    """NVIDIA's container with these GPUs in it."""
    found = GpuInventory(gpus, "580.95.05", "" if gpus else "no NVIDIA driver")
    return Machine(**{"gpus": found, "tensorrt_llm": "1.1.0", "has_cpp_backend": True, **changes})


def configured(tmp_path: Path, **changes: Any) -> Settings:
    """Settings with their cache in `tmp_path` and the stand-ins as programs.

    Keys of a section go as `engine__max_seq_len=…`.
    """
    base = settings.load({"XDG_CACHE_HOME": str(tmp_path / "cache")})
    values: dict[str, Any] = {
        "build.trtllm_build": STANDINS / "bin" / "trtllm-build",
        "build.examples_dir": STANDINS / "examples",
        **{name.replace("__", "."): value for name, value in changes.items()},
    }
    values["build.trtllm_build"] = str(values["build.trtllm_build"])
    return settings.changed(base, values)


def write_checkpoint(directory: Path, family: str = "llama", **config: Any) -> ModelDirectory:
    """A Hugging Face checkpoint directory of a family, with weights of a few bytes."""
    directory.mkdir(parents=True)
    _write(directory / "config.json", {**_COMMON, **CONFIGS[family], **config})
    _write(directory / "tokenizer.json", {"model": {"type": "BPE", "vocab": {}, "merges": []}})
    _write(directory / "tokenizer_config.json", {"model_max_length": 4096})
    (directory / "model.safetensors").write_bytes(b"no weights")
    return ModelDirectory.read(directory)


def engine_config(**changes: Any) -> dict[str, Any]:
    """An engine's config.json in the layout of 1.1; `pretrained_config__dtype=…` changes a key."""
    config: dict[str, Any] = {
        "version": "1.1.0",
        "pretrained_config": {
            "architecture": "LlamaForCausalLM",
            "dtype": "float16",
            "logits_dtype": "float32",
            "vocab_size": 512,
            "max_position_embeddings": 4096,
            "mapping": {"world_size": 1, "tp_size": 1, "pp_size": 1, "cp_size": 1},
            "quantization": {"quant_algo": None, "kv_cache_quant_algo": None},
        },
        "build_config": {
            "max_input_len": 1024,
            "max_seq_len": 2048,
            "max_batch_size": 8,
            "max_beam_width": 1,
            "max_num_tokens": 8192,
            "kv_cache_type": "PAGED",
            "gather_context_logits": False,
            "plugin_config": {
                "gpt_attention_plugin": "auto",
                "remove_input_padding": True,
                "use_paged_context_fmha": True,
                "tokens_per_block": 32,
            },
        },
    }
    for path, value in changes.items():
        *sections, key = path.split("__")
        place = config
        for section in sections:
            place = place[section]
        place[key] = value
    return config


def write_engine(directory: Path, num_ranks: int = 1, **changes: Any) -> Path:
    """An engine directory with a tokenizer; `changes` as for `engine_config`."""
    directory.mkdir(parents=True)
    _write(directory / "config.json", engine_config(**changes))
    _write(directory / "tokenizer.json", {})
    _write(directory / "generation_config.json", {"eos_token_id": 2})
    for rank in range(num_ranks):
        (directory / f"rank{rank}.engine").write_bytes(b"an engine")
    return directory


def _write(path: Path, value: object) -> None:
    path.write_text(json.dumps(value))
