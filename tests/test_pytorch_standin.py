"""The stand-in tensorrt_llm: made from the contract, and as strict as the real package."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.checkpoint_samples import write_checkpoint, write_engine
from tests.slot_server import STANDINS
from tests.standins import generate

CONTRACT = json.loads(generate.CONTRACT.read_text(encoding="utf-8"))


@pytest.fixture
def package(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The stand-in, imported as `tensorrt_llm` for one test."""
    monkeypatch.syspath_prepend(str(STANDINS))
    import tensorrt_llm

    yield tensorrt_llm
    for name in [name for name in sys.modules if name.split(".")[0] == "tensorrt_llm"]:
        del sys.modules[name]


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return write_checkpoint(tmp_path / "model", num_gpus=2)


def test_the_generated_module_is_that_of_the_contract() -> None:
    """contract.py is what generate.py writes today."""
    assert generate.TARGET.read_text(encoding="utf-8") == generate.render(CONTRACT)


def test_names_and_defaults_are_those_of_the_contract(package: Any) -> None:
    """Every field of SamplingParams and KvCacheConfig, with the default it has there."""
    from tensorrt_llm.llmapi import KvCacheConfig

    defaults = {field["name"]: field["default"] for field in CONTRACT["SamplingParams"]["fields"]}
    assert vars(package.SamplingParams()) == defaults
    fields = {field["name"] for field in CONTRACT["KvCacheConfig"]}
    assert KvCacheConfig.model_fields.keys() == fields


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"max_batchsize": 1}, "invalid argument: max_batchsize"),
        ({"fast_build": True}, "fast_build is for tensorrt_llm._tensorrt_engine.LLM only"),
        ({"tensor_parallel_size": "2"}, "tensor_parallel_size is '2'"),
        ({"sampler_type": "trtllm"}, "sampler_type is 'trtllm'"),
        ({"kv_cache_config": {"max_token": 1}}, "max_token"),
    ],
)
async def test_the_constructor_refuses(
    package: Any, checkpoint: Path, arguments: dict[str, Any], message: str
) -> None:
    """Unknown names, wrong types, and what only the engine class has: ValueError."""
    with pytest.raises(ValueError, match=message):
        package.LLM(str(checkpoint), **arguments)


async def test_what_cannot_be_loaded(package: Any, checkpoint: Path, tmp_path: Path) -> None:
    """A compiled engine, and more ranks than GPUs."""
    with pytest.raises(ValueError, match="is a TensorRT engine"):
        package.LLM(str(write_engine(tmp_path / "engine")))
    with pytest.raises(RuntimeError, match=r"TP\*PP is 4, but this node has 2"):
        package.LLM(str(checkpoint), tensor_parallel_size=4)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"end_id": None}, "tokenizer is required to reset end_id"),
        ({"top_p": 0.0}, "top_p must be over 0"),
        ({"temperature": 0.0}, "temperature must be over 0"),
        ({"top_k": 1.0}, "top_k is 1.0"),
        ({"stop": "x"}, "not processed by a tokenizer"),
    ],
)
async def test_a_request_that_is_refused(
    package: Any, checkpoint: Path, arguments: dict[str, Any], message: str
) -> None:
    """The rules that the contract notes for SamplingParams."""
    llm = package.LLM(str(checkpoint), skip_tokenizer_init=True)
    try:
        params = package.SamplingParams(**{"end_id": 1, **arguments})
        with pytest.raises((ValueError, RuntimeError), match=message):
            llm.generate_async([5, 6], params, streaming=True)
    finally:
        llm.shutdown()


def test_unknown_sampling_parameters_are_refused(package: Any) -> None:
    """SamplingParams is a dataclass: an unknown name is a TypeError."""
    with pytest.raises(TypeError, match="topk"):
        package.SamplingParams(topk=1)


async def test_token_ids_are_cumulative(package: Any, checkpoint: Path) -> None:
    """The same object comes back after each step, with one id more; the end id is left out."""
    llm = package.LLM(str(checkpoint), skip_tokenizer_init=True)
    try:
        output = llm.generate_async([5, 6], package.SamplingParams(end_id=1), streaming=True)
        steps = [(step is output, list(step.outputs[0].token_ids)) async for step in output]
    finally:
        llm.shutdown()
    ids = [5, 6, 5, 6]
    assert steps == [(True, ids[:end]) for end in (1, 2, 3, 4, 4)]
    assert output.outputs[0].finish_reason == "stop"
    with pytest.raises(RuntimeError, match="LLM is shutting down"):
        llm.generate_async([5, 6], package.SamplingParams(end_id=1))


def test_it_cannot_be_imported_in_another_mpi_job(monkeypatch: pytest.MonkeyPatch) -> None:
    """As MPI would abort, if a parent's job were still in the environment."""
    monkeypatch.syspath_prepend(str(STANDINS))
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "2")
    with pytest.raises(RuntimeError, match="MPI_Init"):
        import tensorrt_llm  # noqa: F401
    for name in [name for name in sys.modules if name.split(".")[0] == "tensorrt_llm"]:
        del sys.modules[name]
