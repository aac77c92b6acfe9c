"""How large a model's weights are, and whether they fit into the GPUs: a rule of thumb."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path

from cog_triton.artifacts.model_directory import ModelDirectory
from cog_triton.gpu_inventory import GIB, GpuInventory
from cog_triton.settings import Settings

# The rest of a GPU is for the CUDA context, activations and the KV cache.
USABLE_SHARE = 0.9

_DTYPE_BYTES = {"float32": 4.0, "float16": 2.0, "bfloat16": 2.0}
_QUANTISED_BYTES = {
    "int8_weight_only": 1.0,
    "smoothquant": 1.0,
    "fp8": 1.0,
    "fp8_rowwise": 1.0,
    "int4_weight_only": 0.5,
    "int4_awq": 0.5,
}
# Words of a model's name that say that its weights are smaller than 16 bits already.
_SMALL_IN_NAME = (
    (0.5, re.compile(r"awq|gptq|int4|4bit|w4a|fp4|nf4|bnb", re.IGNORECASE)),
    (1.0, re.compile(r"fp8|int8|8bit|w8a", re.IGNORECASE)),
)
# `7b`, `2.5B`, `135m` or `8x7B` as a word of a model's name.
_SIZE_IN_NAME = re.compile(r"(?<![\w.])(?:(\d+)x)?(\d+(?:\.\d+)?)([bm])(?![a-z0-9])", re.IGNORECASE)


@dataclass(frozen=True)
class WeightsSize:
    """Bytes of all weights as they will lie in GPU memory, and where that is known from."""

    num_bytes: float
    source: str


def weights_size(
    settings: Settings, model: ModelDirectory | None, *, builds_engine: bool
) -> WeightsSize | None:
    """The size, None where nothing tells it: no files yet, no setting, no size in the name.

    With `builds_engine` the quantisation of the build counts.
    """
    if model is not None and model.format == "engine":
        engines = list(model.path.glob("rank*.engine"))
        return WeightsSize(sum(path.stat().st_size for path in engines), "the engine's files")
    quantised = _QUANTISED_BYTES.get(settings.build.quantization) if builds_engine else None
    wanted = None if settings.engine.dtype == "auto" else _DTYPE_BYTES[settings.engine.dtype]
    if model is not None:
        return _of_checkpoint(model.path, quantised or wanted)
    num_parameters = settings.engine.num_parameters
    source = "engine.num_parameters"
    if num_parameters is None:
        num_parameters, source = parameters_in_name(settings.model), "the model's name"
    if num_parameters is None:
        return None
    bytes_each = quantised or _bytes_in_name(settings.model) or wanted or 2.0
    return WeightsSize(num_parameters * bytes_each, source)


def parameters_in_name(model: str) -> int | None:
    """7e9 for `meta-llama/Llama-2-7b-hf`, None for a name without a size."""
    found = _SIZE_IN_NAME.search(model.split("@")[0].rsplit("/", 1)[-1])
    if found is None:
        return None
    times, number, unit = found.groups()
    return int(int(times or 1) * float(number) * (1e9 if unit.lower() == "b" else 1e6))


def _bytes_in_name(model: str) -> float | None:
    return next((size for size, words in _SMALL_IN_NAME if words.search(model)), None)


def sequence_bytes(settings: Settings, model: ModelDirectory | None) -> float:
    """KV cache on each GPU for one sequence of `engine.max_seq_len`; 0 where that is not set.

    Unset, TensorRT-LLM shortens the longest sequence to what the memory holds.
    """
    limits = settings.engine
    if model is None or model.format != "checkpoint" or limits.max_seq_len is None:
        return 0
    config = json.loads((model.path / "config.json").read_bytes())
    num_heads = config.get("num_attention_heads") or config.get("n_head")
    num_layers = config.get("num_hidden_layers") or config.get("n_layer")
    hidden_size = config.get("hidden_size") or config.get("n_embd")
    if not (num_heads and num_layers and hidden_size):
        return 0
    num_kv_heads = 1 if config.get("multi_query") else config.get("num_key_value_heads")
    head_size = config.get("head_dim") or hidden_size // num_heads
    # Each rank has a share of the heads, at least one, and of the layers.
    heads = -(-(num_kv_heads or num_heads) // (limits.tensor_parallel_size or 1))
    layers = -(-num_layers // (limits.pipeline_parallel_size or 1))
    bytes_each = 2.0 if settings.build.kv_cache_quantization == "none" else 1.0
    return float(2 * layers * heads * head_size * limits.max_seq_len * bytes_each)


def memory_problem(
    size: WeightsSize, world_size: int, gpus: GpuInventory, kv_bytes: float = 0
) -> str | None:
    """What is wrong if the weights, cut into `world_size` parts, do not fit; with both values.

    `kv_bytes` is what each GPU needs besides, for one sequence.
    """
    if not 0 < world_size <= len(gpus):
        return None  # said elsewhere
    smallest = min(gpus.gpus[:world_size], key=lambda gpu: gpu.memory_bytes)
    usable_bytes = smallest.memory_bytes * USABLE_SHARE
    share_bytes = size.num_bytes / world_size
    if share_bytes + kv_bytes <= usable_bytes:
        return None
    sizes = (n for n in (2, 4, 8, 16) if n > world_size)
    parts = next((n for n in sizes if size.num_bytes / n <= usable_bytes), None)
    hint = f"; {parts} such GPUs would do (engine.tensor_parallel_size)" if parts else ""
    kv_cache = ""
    if share_bytes <= usable_bytes:
        kv_cache = f" and one sequence of engine.max_seq_len {kv_bytes / GIB:.1f} GiB of KV cache"
        hint = "; a shorter engine.max_seq_len would do"
    return (
        f"memory: the weights take {share_bytes / GIB:.1f} GiB on each of {world_size} GPU"
        f"{'s' if world_size > 1 else ''} (from {size.source}){kv_cache}, {smallest.name} has "
        f"{usable_bytes / GIB:.1f} of {smallest.memory_bytes / GIB:.1f} GiB for them{hint}"
    )


def stored_dtype(model: ModelDirectory | None) -> str | None:
    """The data type that a checkpoint's config.json names; None where it names none."""
    if model is None or model.format != "checkpoint":
        return None
    config = json.loads((model.path / "config.json").read_bytes())
    name = config.get("torch_dtype") or config.get("dtype")
    return str(name) if name else None


def _of_checkpoint(path: Path, bytes_each: float | None) -> WeightsSize:
    files = list(path.glob("*.safetensors")) or [*path.glob("*.bin"), *path.glob("*.pth")]
    disk_bytes = sum(file.stat().st_size for file in files)
    config = json.loads((path / "config.json").read_bytes())
    stored = _DTYPE_BYTES.get(str(config.get("torch_dtype") or config.get("dtype")))
    if stored is None or "quantization_config" in config:
        return WeightsSize(disk_bytes, "the size of its files")
    # float32 is loaded as float16 unless the settings ask for it.
    return WeightsSize(disk_bytes / stored * (bytes_each or min(stored, 2.0)), "its files")
