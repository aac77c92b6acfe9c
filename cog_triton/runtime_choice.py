"""Which runtime serves a model on a machine, why, and what it lacks if it cannot."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from cog_triton.artifacts.archive_source import is_url
from cog_triton.artifacts.embedded import EMBEDDED_MODELS
from cog_triton.artifacts.hub import HubName
from cog_triton.artifacts.model_directory import ModelDirectory, ModelFormat
from cog_triton.errors import RuntimeUnavailable, UnsupportedModel
from cog_triton.gpu_inventory import BFLOAT16_FROM, FP8_FROM
from cog_triton.machine import CPP_BACKEND_DIR, Machine
from cog_triton.model_size import memory_problem, sequence_bytes, stored_dtype, weights_size
from cog_triton.settings import Settings

RuntimeName = Literal["openvino", "pytorch", "tensorrt"]

_OPENS: dict[RuntimeName, tuple[ModelFormat, ...]] = {
    "openvino": ("gguf", "openvino_ir"),
    "pytorch": ("checkpoint",),
    "tensorrt": ("engine", "checkpoint"),
}
_FORMAT_NAMES: dict[ModelFormat, str] = {
    "gguf": "a GGUF",
    "openvino_ir": "an OpenVINO IR",
    "checkpoint": "a Hugging Face checkpoint",
    "engine": "a TensorRT-LLM engine",
}
# Not in the table of models of TensorRT-LLM's PyTorch backend (docs, models/supported-models,
# 1.0.0), but convert_checkpoint.py knows them.
ENGINE_ONLY_MODEL_TYPES = frozenset({"gpt2", "gpt_bigcode", "starcoder2", "phi"})
_NEEDS_FP8 = ("fp8", "fp8_rowwise")


@dataclass(frozen=True)
class RuntimeChoice:
    """A runtime and the reason it was taken, as `plan` prints it."""

    name: RuntimeName
    reason: str


def format_of(source: str) -> ModelFormat | None:
    """What a model is by its name alone, None where only fetching it tells (an archive)."""
    if source in EMBEDDED_MODELS:
        return "gguf"
    if os.path.isdir(source):
        return _format_of_directory(Path(source))
    if source.split("#")[0].split("?")[0].endswith(".gguf"):
        return "gguf"
    hub_name = None if os.path.exists(source) or is_url(source) else HubName.parse(source)
    if hub_name is None:
        return None
    return "gguf" if hub_name.gguf else "checkpoint"


def choose_runtime(
    settings: Settings,
    machine: Machine,
    model: ModelDirectory | None = None,
) -> RuntimeChoice | None:
    """The runtime for these settings; None if it depends on what a model that is not fetched is.

    `model` is the fetched model; before that its name decides.

    Raises: UnsupportedModel or RuntimeUnavailable saying what is missing, with both values where
    there are two.
    """
    found = model.format if model else format_of(settings.model)
    choice = _pick(settings, machine, model, found)
    if choice is None:
        return None
    _need_format(settings, machine, choice, model, found)
    if choice.name != "openvino":
        _need_gpus_and_software(settings, machine, choice, model, found)
    return choice


def check_can_build(settings: Settings, machine: Machine, model: ModelDirectory | None) -> None:
    """Raises RuntimeUnavailable or UnsupportedModel if no engine can be built on this machine.

    Building needs no Triton, so its C++ backend is not asked for.
    """
    unfit = list(_misfits(settings, machine, model, builds_engine=True))
    _refuse(f"an engine of {settings.model}", list(_missing_parts(machine)), unfit)


def world_size(settings: Settings) -> int:
    """GPUs that the settings ask for; an engine of its own size is checked elsewhere."""
    limits = settings.engine
    return (limits.tensor_parallel_size or 1) * (limits.pipeline_parallel_size or 1)


def _pick(
    settings: Settings, machine: Machine, model: ModelDirectory | None, found: ModelFormat | None
) -> RuntimeChoice | None:
    if settings.runtime != "auto":
        return RuntimeChoice(settings.runtime, "the settings ask for it")
    gpus = machine.gpus
    if found in ("gguf", "openvino_ir"):
        return RuntimeChoice(
            "openvino", f"auto: {_FORMAT_NAMES[found]}, which only OpenVINO GenAI opens"
        )
    if found == "engine":
        return RuntimeChoice("tensorrt", "auto: a compiled engine")
    if not gpus.gpus:
        return RuntimeChoice(
            "openvino", f"auto: the runtime without a GPU; GPUs: {gpus.describe()}"
        )
    if found is None:
        return None
    if model is not None and model.model_type in ENGINE_ONLY_MODEL_TYPES:
        return RuntimeChoice(
            "tensorrt",
            f"auto: a {model.model_type} checkpoint, which TensorRT-LLM runs from an engine only",
        )
    return RuntimeChoice("pytorch", f"auto: a checkpoint, and GPUs: {gpus.describe()}")


def _need_format(
    settings: Settings,
    machine: Machine,
    choice: RuntimeChoice,
    model: ModelDirectory | None,
    found: ModelFormat | None,
) -> None:
    if found is not None and found not in _OPENS[choice.name]:
        opens = " or ".join(_FORMAT_NAMES[name] for name in _OPENS[choice.name])
        gpus = ""
        if choice.name == "openvino" and settings.runtime == "auto":
            gpus = f", and no GPU was found that could serve it ({machine.gpus.source})"
        raise UnsupportedModel(
            f"{settings.model} is {_FORMAT_NAMES[found]}, the {choice.name} runtime opens "
            f"{opens}{gpus}."
        )
    is_engine_only = model is not None and model.model_type in ENGINE_ONLY_MODEL_TYPES
    if choice.name == "pytorch" and model is not None and is_engine_only:
        raise UnsupportedModel(
            f"{settings.model} is a {model.model_type}, which TensorRT-LLM's PyTorch backend does "
            "not have; runtime: tensorrt builds an engine of it."
        )


def _need_gpus_and_software(
    settings: Settings,
    machine: Machine,
    choice: RuntimeChoice,
    model: ModelDirectory | None,
    found: ModelFormat | None,
) -> None:
    missing = list(_missing_parts(machine))
    if choice.name == "tensorrt" and not machine.has_cpp_backend:
        missing.append(
            f"Triton's C++ backend tensorrtllm is not at {CPP_BACKEND_DIR}; "
            "nvcr.io/nvidia/tritonserver:25.12-trtllm-python-py3 has it"
        )
    builds_engine = choice.name == "tensorrt" and found == "checkpoint"
    unfit = [] if found == "engine" else list(_misfits(settings, machine, model, builds_engine))
    what = f"{settings.model} on runtime {choice.name} ({choice.reason})"
    _refuse(what, missing, unfit)


def _refuse(what: str, missing: list[str], unfit: list[str]) -> None:
    if missing:
        raise RuntimeUnavailable(f"{what}: {'; '.join(missing + unfit)}.")
    if unfit:
        raise UnsupportedModel(f"{what}: {'; '.join(unfit)}.")


def _missing_parts(machine: Machine) -> Iterator[str]:
    if not machine.gpus.gpus:
        yield f"GPUs: it needs one, found {machine.gpus.describe()}"
    if machine.tensorrt_llm is None:
        yield (
            "TensorRT-LLM is not installed (pip install tensorrt_llm==1.1.0 "
            "--extra-index-url https://pypi.nvidia.com)"
        )


def _misfits(
    settings: Settings, machine: Machine, model: ModelDirectory | None, builds_engine: bool
) -> Iterator[str]:
    limits, needed, gpus = settings.engine, world_size(settings), machine.gpus
    if gpus.gpus and needed > len(gpus):
        yield (
            f"GPUs: tensor_parallel_size {limits.tensor_parallel_size or 1} * "
            f"pipeline_parallel_size {limits.pipeline_parallel_size or 1} needs {needed}, "
            f"found {len(gpus)}"
        )
    # With auto the LLM API takes float16 on older GPUs, the conversion scripts do not.
    is_auto_bfloat16 = limits.dtype == "auto" and stored_dtype(model) == "bfloat16"
    is_bfloat16 = limits.dtype == "bfloat16" or (builds_engine and is_auto_bfloat16)
    for gpu in dict.fromkeys(gpus.gpus[:needed]):
        if is_bfloat16 and gpu.compute_capability < BFLOAT16_FROM:
            yield (
                f"dtype: bfloat16 ({'the checkpoint has it' if limits.dtype == 'auto' else 'set'}) "
                f"needs compute capability {BFLOAT16_FROM}, {gpu.name} has "
                f"{gpu.compute_capability} (engine.dtype: float16 works)"
            )
        wants_fp8 = builds_engine and (
            settings.build.quantization in _NEEDS_FP8
            or settings.build.kv_cache_quantization == "fp8"
        )
        if wants_fp8 and gpu.compute_capability < FP8_FROM:
            yield (
                f"quantization: fp8 needs compute capability {FP8_FROM}, {gpu.name} has "
                f"{gpu.compute_capability}"
            )
    size = weights_size(settings, model, builds_engine=builds_engine)
    kv_bytes = sequence_bytes(settings, model)
    problem = memory_problem(size, needed, gpus, kv_bytes) if size else None
    if problem:
        yield problem


def _format_of_directory(path: Path) -> ModelFormat | None:
    if (path / "rank0.engine").exists():
        return "engine"
    if (path / "openvino_model.xml").exists():
        return "openvino_ir"
    return "gguf" if any(path.glob("*.gguf")) else "checkpoint"
