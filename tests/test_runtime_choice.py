"""Which runtime serves what, and what an explicit choice lacks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cog_triton.artifacts.model_directory import ModelDirectory
from cog_triton.errors import DeploymentError, RuntimeUnavailable, UnsupportedModel
from cog_triton.machine import Machine
from cog_triton.runtime_choice import choose_runtime, format_of
from tests.engine_samples import (
    A100,
    H100,
    L4,
    T4,
    configured,
    machine,
    write_checkpoint,
    write_engine,
)

PHI = "microsoft/Phi-3-mini-4k-instruct"
LLAMA_7B = "meta-llama/Llama-2-7b-hf"


@pytest.mark.parametrize(
    ("changes", "where", "error", "words"),
    [
        ({"model": PHI}, machine(), UnsupportedModel, ["checkpoint", "no GPU", "no NVIDIA driver"]),
        (
            {"model": PHI, "runtime": "pytorch"},
            machine(tensorrt_llm=None),
            RuntimeUnavailable,
            ["GPUs: it needs one", "TensorRT-LLM is not installed"],
        ),
        (
            {"model": PHI},
            machine(L4, tensorrt_llm=None),
            RuntimeUnavailable,
            ["pip install tensorrt_llm"],
        ),
        (
            {"model": PHI, "runtime": "tensorrt"},
            machine(L4, has_cpp_backend=False),
            RuntimeUnavailable,
            ["C++ backend", "25.12"],
        ),
        (
            {"runtime": "pytorch"},
            machine(L4),
            UnsupportedModel,
            ["smollm2-135m-instruct is a GGUF", "a Hugging Face checkpoint"],
        ),
        ({"runtime": "tensorrt"}, machine(L4), UnsupportedModel, ["is a GGUF"]),
        (
            {"model": PHI, "runtime": "openvino"},
            machine(L4),
            UnsupportedModel,
            ["openvino runtime opens a GGUF or an OpenVINO IR"],
        ),
        (
            {"model": PHI, "engine__tensor_parallel_size": 4, "engine__pipeline_parallel_size": 2},
            machine(H100, H100),
            UnsupportedModel,
            ["tensor_parallel_size 4 * pipeline_parallel_size 2 needs 8, found 2"],
        ),
        (
            {"model": "meta-llama/Llama-2-13b-hf"},
            machine(L4),
            UnsupportedModel,
            ["24.2 GiB", "19.8 of 22.0 GiB", "2 such GPUs would do"],
        ),
        (
            {"model": "bigcode/starcoder", "engine__num_parameters": 15_500_000_000},
            machine(L4),
            UnsupportedModel,
            ["28.9 GiB", "engine.num_parameters"],
        ),
        (
            {"model": PHI, "engine__dtype": "bfloat16"},
            machine(T4),
            UnsupportedModel,
            ["bfloat16 (set) needs compute capability 8.0", "Tesla T4 has 7.5", "float16 works"],
        ),
        (
            {"model": PHI, "runtime": "tensorrt", "build__quantization": "fp8"},
            machine(A100),
            UnsupportedModel,
            ["fp8 needs compute capability 8.9", "8.0"],
        ),
        (
            {"model": PHI, "runtime": "tensorrt", "build__kv_cache_quantization": "fp8"},
            machine(A100),
            UnsupportedModel,
            ["8.9"],
        ),
    ],
)
def test_what_cannot_work_says_what_is_missing(
    tmp_path: Path,
    changes: dict[str, Any],
    where: Machine,
    error: type[DeploymentError],
    words: list[str],
) -> None:
    """Before anything is fetched the error names what is missing, with both values."""
    with pytest.raises(error) as caught:
        choose_runtime(configured(tmp_path, **changes), where)
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "where", "name", "reason"),
    [
        ({}, machine(), "openvino", "GGUF"),
        ({}, machine(H100), "openvino", "GGUF"),
        ({"model": PHI}, machine(L4), "pytorch", "1 x NVIDIA L4"),
        ({"model": f"{PHI}@main"}, machine(L4, has_cpp_backend=False), "pytorch", "auto"),
        ({"model": LLAMA_7B, "runtime": "tensorrt"}, machine(L4), "tensorrt", "settings"),
        ({"runtime": "openvino"}, machine(L4), "openvino", "settings"),
        (
            {"model": "meta-llama/Llama-2-13b-hf", "engine__tensor_parallel_size": 2},
            machine(L4, L4),
            "pytorch",
            "2 x NVIDIA L4",
        ),
        ({"model": "TheBloke/Llama-2-13B-AWQ"}, machine(L4), "pytorch", "auto"),
        ({"model": PHI, "engine__dtype": "float16"}, machine(T4), "pytorch", "Tesla T4"),
    ],
)
def test_the_choice_and_its_reason(
    tmp_path: Path, changes: dict[str, Any], where: Machine, name: str, reason: str
) -> None:
    """By the name of the model alone, with the reason that the plan prints."""
    choice = choose_runtime(configured(tmp_path, **changes), where)
    assert choice is not None
    assert choice.name == name
    assert reason in choice.reason


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("smollm2-135m-instruct", "gguf"),
        ("./somewhere/model.gguf", "gguf"),
        ("org/name", "checkpoint"),
        ("org/name@v1.0", "checkpoint"),
        ("org/name/file.gguf@v1.0", "gguf"),
        ("https://example.com/model.gguf#sha256=00", "gguf"),
        ("https://example.com/engine.tar", None),
        ("no-such-name", None),
    ],
)
def test_what_a_name_says(source: str, found: str | None) -> None:
    """A hub name is a checkpoint; what an archive holds is known when it is fetched."""
    assert format_of(source) == found


def test_an_archive_is_decided_later_on_a_gpu_machine(tmp_path: Path) -> None:
    """It may hold an engine or a checkpoint, which are for different runtimes."""
    config = configured(tmp_path, model="https://example.com/engine.tar")
    assert choose_runtime(config, machine(L4)) is None


def test_a_fetched_engine_is_for_tensorrt(tmp_path: Path) -> None:
    """An engine directory decides by itself, under auto; other runtimes refuse it."""
    path = write_engine(tmp_path / "engine")
    model = ModelDirectory.read(path)
    choice = choose_runtime(configured(tmp_path, model=str(path)), machine(A100), model)
    assert choice is not None
    assert choice.name == "tensorrt"
    assert format_of(str(path)) == "engine"
    with pytest.raises(UnsupportedModel, match="TensorRT-LLM engine, the pytorch runtime opens"):
        choose_runtime(
            configured(tmp_path, model=str(path), runtime="pytorch"), machine(A100), model
        )


def test_a_checkpoint_that_only_engines_run(tmp_path: Path) -> None:
    """GPT-2 is not in the PyTorch backend: auto builds an engine, explicit pytorch is refused."""
    model = write_checkpoint(tmp_path / "gpt2", "gpt")
    choice = choose_runtime(configured(tmp_path, model=str(model.path)), machine(L4), model)
    assert choice is not None
    assert (choice.name, "gpt2" in choice.reason) == ("tensorrt", True)
    with pytest.raises(UnsupportedModel, match="runtime: tensorrt builds an engine"):
        choose_runtime(
            configured(tmp_path, model=str(model.path), runtime="pytorch"), machine(L4), model
        )


def test_the_files_of_a_fetched_checkpoint_tell_its_size(tmp_path: Path) -> None:
    """Weights that do not fit are refused by the size of their files, whatever the name says."""
    model = write_checkpoint(tmp_path / "tiny-1b", torch_dtype="float16")
    with (model.path / "model.safetensors").open("ab") as file:
        file.truncate(60 << 30)  # sparse: it takes no space
    config = configured(tmp_path, model=str(model.path))
    with pytest.raises(UnsupportedModel, match=r"take 60\.0 GiB on each of 1 GPU.*19\.8 of 22\.0"):
        choose_runtime(config, machine(L4), model)
    assert choose_runtime(config, machine(A100), model) is not None


def test_one_sequence_must_fit_too(tmp_path: Path) -> None:
    """A max_seq_len that was set needs its KV cache; unset, the runtime shortens it."""
    sizes = {"num_hidden_layers": 32, "num_attention_heads": 32, "hidden_size": 3072}
    model = write_checkpoint(tmp_path / "phi", "phi", max_position_embeddings=131072, **sizes)
    changes = {"model": str(model.path), "engine__max_seq_len": 131072}
    with pytest.raises(UnsupportedModel, match=r"one sequence of engine.max_seq_len 48\.0 GiB"):
        choose_runtime(configured(tmp_path, **changes), machine(L4), model)
    assert choose_runtime(configured(tmp_path, **changes), machine(A100), model) is not None
    assert choose_runtime(configured(tmp_path, model=str(model.path)), machine(L4), model)
    halves = {**changes, "engine__tensor_parallel_size": 4}
    assert choose_runtime(configured(tmp_path, **halves), machine(L4, L4, L4, L4), model)


def test_quantised_builds_need_less_memory(tmp_path: Path) -> None:
    """int4 weights take a quarter of 16 bits, when an engine is built."""
    changes = {
        "model": "meta-llama/Llama-2-13b-hf",
        "runtime": "tensorrt",
        "build__quantization": "int4_weight_only",
    }
    assert choose_runtime(configured(tmp_path, **changes), machine(L4)) is not None


def test_a_bfloat16_checkpoint_on_an_old_gpu(tmp_path: Path) -> None:
    """The LLM API falls back to float16 by itself, an engine build has to be told."""
    model = write_checkpoint(tmp_path / "llama")
    changes = {"model": str(model.path), "runtime": "tensorrt"}
    with pytest.raises(UnsupportedModel, match=r"bfloat16 \(the checkpoint has it\) needs .* 7\.5"):
        choose_runtime(configured(tmp_path, **changes), machine(T4), model)
    told = configured(tmp_path, **changes, engine__dtype="float16")
    assert choose_runtime(told, machine(T4), model) is not None
    assert choose_runtime(configured(tmp_path, model=str(model.path)), machine(T4), model)
