"""What a runtime can count on: the GPUs and the parts of TensorRT-LLM that are installed."""

from __future__ import annotations

from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path

from cog_triton import gpu_inventory
from cog_triton.gpu_inventory import GpuInventory
from cog_triton.settings import Settings

# Where NVIDIA's image has it (the template's executor_worker_path lies in that directory).
CPP_BACKEND_DIR = Path("/opt/tritonserver/backends/tensorrtllm")

RELEASE = "1.1.0"  # TensorRT-LLM of that image


@dataclass(frozen=True)
class Machine:
    """GPUs, versions of TensorRT-LLM and TensorRT (None: not installed), Triton's C++ backend."""

    gpus: GpuInventory = field(default_factory=GpuInventory)
    tensorrt_llm: str | None = None
    has_cpp_backend: bool = False
    tensorrt: str | None = None


def look(settings: Settings) -> Machine:
    """This machine, or the one that the setting `gpu_inventory` describes.

    Raises: SettingsError when that file cannot be used.
    """
    here = Machine(
        GpuInventory(), version("tensorrt_llm"), CPP_BACKEND_DIR.is_dir(), version("tensorrt")
    )
    if settings.gpu_inventory is None:
        return Machine(
            gpu_inventory.detect(), here.tensorrt_llm, here.has_cpp_backend, here.tensorrt
        )
    file = gpu_inventory.read_file(settings.gpu_inventory)
    described = file.inventory(str(settings.gpu_inventory))
    # A file of GPUs alone describes NVIDIA's image on them; without GPUs, this machine.
    assumed_version = here.tensorrt_llm or (RELEASE if described.gpus else None)
    assumed_backend = here.has_cpp_backend or bool(described.gpus)
    return Machine(
        described,
        assumed_version if file.tensorrt_llm is None else file.tensorrt_llm or None,
        assumed_backend if file.tensorrtllm_backend is None else file.tensorrtllm_backend,
        here.tensorrt,
    )


def version(distribution: str) -> str | None:
    """Installed version of a distribution, without importing it; None where it is not there."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None
