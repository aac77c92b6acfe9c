"""Stand-ins for convert_checkpoint.py and trtllm-build: no GPU, no weights, the real layout.

They hold their own arguments against the contract data and end with status 2 where the real ones
would. From the environment: `STANDIN_RECORD`, a file that gets a JSON line for each call;
`STANDIN_DELAY_S`, a pause before each file that is written; `STANDIN_FAIL`, the name of the
program that shall fail half-way. Only the standard library.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from tests import contract_flags

VERSION = "1.1.0"


def convert_checkpoint(family: str) -> None:
    """Like the family's script: config.json and rank<N>.safetensors."""
    values = _start(family, "convert_checkpoint")
    if family == "phi" and values.get("--pp_size", 1) != 1:
        sys.exit("AssertionError: pipeline parallelism is not supported for phi")
    source = json.loads((Path(values["--model_dir"]) / "config.json").read_bytes())
    out = Path(values.get("--output_dir", "tllm_checkpoint"))
    out.mkdir(parents=True, exist_ok=True)
    tp_size, pp_size = values.get("--tp_size", 1), values.get("--pp_size", 1)
    dtype = values.get("--dtype", "auto")
    if dtype == "auto":
        dtype = {"float32": "float16"}.get(source["torch_dtype"], source["torch_dtype"])
    heads = source.get("num_attention_heads") or source["n_head"]
    config = {
        "architecture": source["architectures"][0],
        "dtype": dtype,
        "logits_dtype": "float32",
        "vocab_size": source["vocab_size"],
        "hidden_size": source.get("hidden_size") or source["n_embd"],
        "num_hidden_layers": source.get("num_hidden_layers") or source["n_layer"],
        "num_attention_heads": heads,
        "max_position_embeddings": source.get("max_position_embeddings") or source["n_positions"],
        "mapping": {"world_size": tp_size * pp_size, "tp_size": tp_size, "pp_size": pp_size},
        "quantization": {
            "quant_algo": _quant_algo(values),
            "kv_cache_quant_algo": _kv_cache_quant_algo(values),
        },
    }
    _write(out / "config.json", json.dumps(config).encode())
    for rank in range(tp_size * pp_size):
        print(f"Weights of rank {rank} converted", flush=True)
        _write(out / f"rank{rank}.safetensors", f"weights of rank {rank}".encode() * 100)
        if rank == 0:
            _fail_if_asked("convert_checkpoint")


def trtllm_build() -> None:
    """Like trtllm-build: config.json first, then an engine for each rank, then the timing cache."""
    values = _start(contract_flags.TRTLLM_BUILD, "trtllm-build")
    checkpoint = Path(values["--checkpoint_dir"])
    model = json.loads((checkpoint / "config.json").read_bytes())
    out = Path(values.get("--output_dir", "engine_outputs"))
    out.mkdir(parents=True, exist_ok=True)
    config = {
        "version": VERSION,
        "pretrained_config": model,
        "build_config": build_config(values, model["max_position_embeddings"]),
    }
    _write(out / "config.json", json.dumps(config, indent=1).encode())
    for rank in range(model["mapping"]["world_size"]):
        weights = (checkpoint / f"rank{rank}.safetensors").read_bytes()
        print(f"Engine of rank {rank} of {model['mapping']['world_size']}", flush=True)
        _write(out / f"rank{rank}.engine", b"engine of " + weights)
        if rank == 0:
            _fail_if_asked("trtllm-build")
    _write(Path(values.get("--output_timing_cache", "model.cache")), b"timings")


def build_config(values: dict[str, Any], context: int) -> dict[str, Any]:
    """The `build_config` of an engine, in the form that the contract describes."""
    switches = {
        name: values.get(f"--{name}", default) == "enable"
        for name, default in {
            "context_fmha": "enable",
            "remove_input_padding": "enable",
            "use_paged_context_fmha": "enable",
            "use_fp8_context_fmha": "enable",
            "multiple_profiles": "disable",
            "use_fused_mlp": "enable",
        }.items()
    }
    plugins = {
        name: None
        if values.get(f"--{name}", "auto") == "disable"
        else values.get(f"--{name}", "auto")
        for name in ("gpt_attention_plugin", "gemm_plugin", "nccl_plugin")
    }
    return {
        "max_input_len": values.get("--max_input_len", 1024),
        "max_seq_len": values.get("--max_seq_len", context),
        "max_batch_size": values.get("--max_batch_size", 2048),
        "max_beam_width": values.get("--max_beam_width", 1),
        "max_num_tokens": values.get("--max_num_tokens", 8192),
        "opt_num_tokens": None,
        "kv_cache_type": values.get("--kv_cache_type", "paged").upper(),
        "gather_context_logits": values.get("--gather_context_logits", False),
        "strongly_typed": True,
        "max_draft_len": 0,
        "speculative_decoding_mode": 1,
        "plugin_config": {
            **switches,
            **plugins,
            "dtype": "float16",
            "tokens_per_block": values.get("--tokens_per_block", 32),
            "paged_kv_cache": True,
            "streamingllm": False,
        },
    }


def _start(program: str, name: str) -> dict[str, Any]:
    print(f"[TensorRT-LLM] TensorRT-LLM version: {VERSION}", flush=True)
    record = os.environ.get("STANDIN_RECORD")
    if record:
        with open(record, "a", encoding="utf-8") as file:
            file.write(json.dumps({"program": program, "argv": sys.argv[1:]}) + "\n")
    try:
        return contract_flags.check(program, sys.argv[1:])
    except contract_flags.ContractViolation as err:
        print(f"usage: {name} [-h] …\n{name}: error: {err}", file=sys.stderr, flush=True)
        sys.exit(2)


def _quant_algo(values: dict[str, Any]) -> str | None:
    if values.get("--use_weight_only"):
        precision = values.get("--weight_only_precision", "int8")
        return {"int8": "W8A16", "int4": "W4A16", "int4_awq": "W4A16_AWQ"}[precision]
    if values.get("--smoothquant") is not None:
        return "W8A8_SQ_PER_CHANNEL_PER_TOKEN_PLUGIN"
    return "FP8_PER_CHANNEL_PER_TOKEN" if values.get("--use_fp8_rowwise") else None


def _kv_cache_quant_algo(values: dict[str, Any]) -> str | None:
    if values.get("--int8_kv_cache"):
        return "INT8"
    return "FP8" if values.get("--fp8_kv_cache") else None


def _write(path: Path, content: bytes) -> None:
    """In two halves, so that a kill can come between."""
    pause_s = float(os.environ.get("STANDIN_DELAY_S", "0"))
    with path.open("wb") as file:
        file.write(content[: len(content) // 2])
        file.flush()
        time.sleep(pause_s)
        file.write(content[len(content) // 2 :])


def _fail_if_asked(name: str) -> None:
    if os.environ.get("STANDIN_FAIL") == name:
        sys.exit(f"RuntimeError: {name} ran out of memory (CUDA)")
