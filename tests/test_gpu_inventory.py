"""The GPUs of a machine: from the driver, or from a file that describes them."""

from __future__ import annotations

import json
from pathlib import Path

import pynvml
import pytest

from cog_triton import gpu_inventory, machine, settings
from cog_triton.errors import SettingsError
from cog_triton.gpu_inventory import ComputeCapability
from tests.engine_samples import A100, GPUS, L4


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, ["No such file"]),
        ("{", ["cannot be used"]),
        ({}, ["gpus", "required"]),
        ({"gpus": [{"name": "x", "memory_bytes": 1}]}, ["gpus.0.compute_capability", "required"]),
        (
            {"gpus": [{"name": "x", "memory_bytes": 0, "compute_capability": "9"}]},
            ["memory_bytes", "compute_capability"],
        ),
        ({"gpus": [], "drivers": "1"}, ["drivers", "not permitted"]),
    ],
)
def test_wrong_inventory_file(tmp_path: Path, content: object, words: list[str]) -> None:
    """The error names the file and every key that is wrong."""
    file = tmp_path / "gpus.json"
    if content is not None:
        file.write_text(content if isinstance(content, str) else json.dumps(content))
    with pytest.raises(SettingsError) as caught:
        gpu_inventory.read_file(file)
    for word in [str(file), *words]:
        assert word in str(caught.value)


def test_no_driver_is_an_empty_inventory_with_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where NVML cannot be loaded there are no GPUs, and the reason is told."""

    def fail() -> None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)

    monkeypatch.setattr(pynvml, "nvmlInit", fail)
    found = gpu_inventory.detect()
    assert len(found) == 0
    assert found.describe().startswith("none (no NVIDIA driver: ")


class FakeNvml:
    """NVML of a machine with an A100 and a GPU that has fallen off the bus."""

    def __init__(self, broken: bool) -> None:
        self.broken = broken

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        nvml = pynvml
        monkeypatch.setattr(nvml, "nvmlInit", lambda: None)
        monkeypatch.setattr(nvml, "nvmlShutdown", lambda: None)
        monkeypatch.setattr(nvml, "nvmlDeviceGetCount", lambda: 1)
        monkeypatch.setattr(nvml, "nvmlDeviceGetHandleByIndex", lambda index: index)
        monkeypatch.setattr(nvml, "nvmlDeviceGetName", lambda _handle: A100.name.encode())
        monkeypatch.setattr(nvml, "nvmlDeviceGetMemoryInfo", self.memory)
        monkeypatch.setattr(nvml, "nvmlDeviceGetCudaComputeCapability", lambda _handle: (8, 0))
        monkeypatch.setattr(nvml, "nvmlSystemGetDriverVersion", lambda: "580.95.05")

    def memory(self, _handle: int) -> object:
        if self.broken:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST)
        return type("Memory", (), {"total": A100.memory_bytes})


def test_a_lost_gpu_is_an_empty_inventory(monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver that does not answer for a GPU leaves no half inventory."""
    FakeNvml(broken=True).install(monkeypatch)
    found = gpu_inventory.detect()
    assert len(found) == 0
    assert "does not answer" in found.describe()


def test_the_driver_reports_name_memory_and_capability(monkeypatch: pytest.MonkeyPatch) -> None:
    """What NVML says is what the inventory holds, bytes decoded."""
    FakeNvml(broken=False).install(monkeypatch)
    found = gpu_inventory.detect()
    assert found.gpus == (A100,)
    assert found.driver_version == "580.95.05"


def test_equal_gpus_are_described_once() -> None:
    """The description counts equal GPUs."""
    found = gpu_inventory.GpuInventory((L4, A100, L4))
    assert found.describe() == (
        "2 x NVIDIA L4 (22.0 GiB, compute capability 8.9), "
        "1 x NVIDIA A100-SXM4-80GB (80.0 GiB, compute capability 8.0)"
    )


def test_capabilities_compare_as_numbers() -> None:
    """12.0 is more than 8.9, which as text it is not."""
    assert ComputeCapability.parse("12.0") > ComputeCapability.parse("8.9")


def test_a_file_stands_in_for_the_machine() -> None:
    """The setting gpu_inventory replaces GPUs, driver and software, as far as it names them."""
    config = settings.load({"COG_TRITON_GPU_INVENTORY": str(GPUS / "4xh100.json")})
    found = machine.look(config)
    assert [str(gpu.compute_capability) for gpu in found.gpus.gpus] == ["9.0"] * 4
    assert (found.tensorrt_llm, found.has_cpp_backend) == ("1.1.0", True)


def test_software_that_a_file_leaves_out_is_looked_up(tmp_path: Path) -> None:
    """Without a version in the file it is the installed one; the empty text says not installed."""
    file = tmp_path / "gpus.json"
    file.write_text('{"gpus": []}')
    config = settings.load({"COG_TRITON_GPU_INVENTORY": str(file)})
    assert machine.look(config).tensorrt_llm == machine.version("tensorrt_llm")
    file.write_text('{"gpus": [], "tensorrt_llm": ""}')
    assert machine.look(config).tensorrt_llm is None


def test_versions_come_from_the_metadata() -> None:
    """An installed distribution has its version, one that is not there has None."""
    assert machine.version("pydantic")
    assert machine.version("no-such-distribution") is None


def test_a_file_of_gpus_alone_describes_the_image_on_them(tmp_path: Path) -> None:
    """Planning for another machine needs no TensorRT-LLM on this one."""
    file = tmp_path / "gpus.json"
    gpu = {"name": "NVIDIA L4", "memory_bytes": 24 << 30, "compute_capability": "8.9"}
    file.write_text(json.dumps({"gpus": [gpu]}))
    config = settings.load({"COG_TRITON_GPU_INVENTORY": str(file)})
    found = machine.look(config)
    expected = machine.version("tensorrt_llm") or machine.RELEASE
    assert (found.tensorrt_llm, found.has_cpp_backend) == (expected, True)
