"""The GPUs of this machine, as NVIDIA's driver reports them, or as a JSON file describes them."""

from __future__ import annotations

import contextlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pynvml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from cog_triton.errors import SettingsError

GIB = 1 << 30


@dataclass(frozen=True, order=True)
class ComputeCapability:
    """CUDA compute capability: 8.0 for an A100, 8.9 for an L4 and an RTX 4090, 9.0 for an H100."""

    major: int
    minor: int

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}"

    @staticmethod
    def parse(text: str) -> ComputeCapability:
        """From `"8.9"`; raises ValueError for anything else."""
        major, minor = text.split(".")
        return ComputeCapability(int(major), int(minor))


BFLOAT16_FROM = ComputeCapability(8, 0)
FP8_FROM = ComputeCapability(8, 9)


@dataclass(frozen=True)
class Gpu:
    """One GPU; `memory_bytes` is all of it, used or not."""

    name: str
    memory_bytes: int
    compute_capability: ComputeCapability


@dataclass(frozen=True)
class GpuInventory:
    """The GPUs in the order of the driver; `source` says where that is known from."""

    gpus: tuple[Gpu, ...] = ()
    driver_version: str | None = None
    source: str = ""

    def __len__(self) -> int:
        return len(self.gpus)

    def describe(self) -> str:
        """For example `4 x NVIDIA H100 80GB HBM3 (80.0 GiB, compute capability 9.0)`."""
        if not self.gpus:
            return f"none ({self.source})" if self.source else "none"
        parts = [
            f"{self.gpus.count(gpu)} x {gpu.name} ({gpu.memory_bytes / GIB:.1f} GiB, "
            f"compute capability {gpu.compute_capability})"
            for gpu in dict.fromkeys(self.gpus)
        ]
        return ", ".join(parts)


def detect() -> GpuInventory:
    """What NVML reports; empty, with the reason, where there is no driver or no GPU.

    Never raises: a machine without a GPU is a normal one. NVML also lists GPUs that
    CUDA_VISIBLE_DEVICES hides; containers hide them from NVML as well.
    """
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as err:
        return GpuInventory(source=f"no NVIDIA driver: {err}")
    try:
        handles = [
            pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())
        ]
        gpus = tuple(_read_gpu(handle) for handle in handles)
        driver = _text(pynvml.nvmlSystemGetDriverVersion())
    except pynvml.NVMLError as err:
        return GpuInventory(source=f"the NVIDIA driver does not answer: {err}")
    finally:
        with contextlib.suppress(pynvml.NVMLError):
            pynvml.nvmlShutdown()
    return GpuInventory(gpus, driver, "" if gpus else "the NVIDIA driver reports none")


def _read_gpu(handle: Any) -> Gpu:
    major, minor = pynvml.nvmlDeviceGetCudaComputeCapability(handle)
    return Gpu(
        _text(pynvml.nvmlDeviceGetName(handle)),
        int(pynvml.nvmlDeviceGetMemoryInfo(handle).total),
        ComputeCapability(major, minor),
    )


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value  # bytes before nvidia-ml-py 12


class _GpuEntry(BaseModel):
    model_config = ConfigDict(extra="forbid")

    name: str
    memory_bytes: int = Field(gt=0)
    compute_capability: str = Field(pattern=r"^[0-9]+\.[0-9]+$")
    count: int = Field(1, ge=1)


class InventoryFile(BaseModel):
    """The JSON file of the setting `gpu_inventory`: GPUs, and software where it is to be given.

    What the file leaves out of the software is looked up on this machine; where it is not there,
    a file with GPUs stands for NVIDIA's image on them.
    """

    model_config = ConfigDict(extra="forbid")

    gpus: list[_GpuEntry]
    driver_version: str | None = None
    tensorrt_llm: str | None = Field(None, description="version, empty for not installed")
    tensorrtllm_backend: bool | None = Field(None, description="Triton's C++ backend is there")

    def inventory(self, source: str) -> GpuInventory:
        gpus = [
            Gpu(entry.name, entry.memory_bytes, ComputeCapability.parse(entry.compute_capability))
            for entry in self.gpus
            for _ in range(entry.count)
        ]
        return GpuInventory(tuple(gpus), self.driver_version, source)


def read_file(path: Path) -> InventoryFile:
    """A described machine; raises SettingsError naming what is wrong with the file."""
    try:
        return InventoryFile.model_validate(json.loads(path.read_bytes()))
    except (OSError, ValueError) as err:
        reason = _explain(err) if isinstance(err, ValidationError) else str(err)
        raise SettingsError(f"the GPU inventory {path} cannot be used: {reason}") from err


def _explain(err: ValidationError) -> str:
    return "; ".join(
        f"{'.'.join(map(str, problem['loc']))}: {problem['msg']}" for problem in err.errors()
    )
