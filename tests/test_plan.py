"""What `plan` prints for models that are not fetched, and for what is built from them."""

from __future__ import annotations

from pathlib import Path

import pytest

from cog_triton import plan
from cog_triton.errors import (
    ArtifactUnavailable,
    EngineIncompatible,
    SettingsError,
    UnsupportedModel,
)
from tests.engine_samples import A100, L4, configured, machine, write_checkpoint, write_engine


def test_a_source_that_does_not_exist(tmp_path: Path) -> None:
    """A name of no known kind is an error of the plan."""
    with pytest.raises(ArtifactUnavailable, match="no-such-model"):
        plan.resolve(configured(tmp_path, model="no-such-model"), machine(A100))


def test_an_engine_that_does_not_fit(tmp_path: Path) -> None:
    """The plan refuses what a start would refuse."""
    path = write_engine(tmp_path / "engine", version="1.0.0")
    with pytest.raises(EngineIncompatible, match=r"built by 1\.0\.0"):
        plan.resolve(configured(tmp_path, model=str(path)), machine(A100))


def test_an_unfetched_model_is_judged_by_its_name(tmp_path: Path) -> None:
    """Nothing is fetched, nothing fails for want of files; limits are those of the settings."""
    config = configured(tmp_path, model="org/model@main", engine__max_seq_len=777)
    found = plan.resolve(config, machine(L4))
    assert (found.runtime, found.fetched, found.engine_build) == ("pytorch", False, "not needed")
    assert (found.max_seq_len, found.max_num_tokens) == ("777", 8192)
    assert found.kv_cache == "0.9 of the free GPU memory"
    assert not config.cache_dir.exists()


def test_an_unfetched_model_that_becomes_an_engine(tmp_path: Path) -> None:
    """The tensorrt runtime builds it at the first start."""
    config = configured(tmp_path, model="org/model", runtime="tensorrt")
    assert plan.resolve(config, machine(L4)).engine_build == "at the first start, after the fetch"


def test_an_archive(tmp_path: Path) -> None:
    """On a GPU machine its content decides, which the plan says; without one it cannot work."""
    config = configured(tmp_path, model="https://example.com/engine.tar")
    found = plan.resolve(config, machine(A100))
    assert (found.runtime, found.engine_build) == (plan.UNDECIDED, plan.UNDECIDED)
    bound = configured(
        tmp_path,
        model="https://example.com/engine.tar",
        engine__max_seq_len=4096,
        engine__max_tokens_in_paged_kv_cache=64,
    )
    with pytest.raises(SettingsError, match="max_tokens_in_paged_kv_cache is 64"):
        plan.resolve(bound, machine(A100))


def test_a_fetched_engine(tmp_path: Path) -> None:
    """Its own limits are printed."""
    path = write_engine(tmp_path / "engine")
    config = configured(
        tmp_path,
        model=str(path),
        engine__kv_cache_free_gpu_mem_fraction=0.2,
        engine__max_tokens_in_paged_kv_cache=4096,
    )
    found = plan.resolve(config, machine(A100))
    assert (found.runtime, found.engine_build, found.fetched) == (
        "tensorrt",
        "fetched as it is",
        True,
    )
    assert (found.dtype, found.max_batch_size, found.max_seq_len) == ("float16", 8, "2048")
    assert found.kv_cache == "0.2 of the free GPU memory, at most 4096 tokens"


def test_the_llm_api_call_is_printed(tmp_path: Path) -> None:
    """A build through the LLM API has no command line, but a constructor call."""
    model = write_checkpoint(tmp_path / "llama")
    config = configured(
        tmp_path, model=str(model.path), runtime="tensorrt", build__quantization="fp8"
    )
    (line,) = plan.resolve(config, machine(L4)).build_commands
    assert line.startswith("tensorrt_llm._tensorrt_engine.LLM ")
    assert '"quant_algo": "FP8"' in line


def test_lines_hold_one_field_each(tmp_path: Path) -> None:
    """A field a line, the commands of a build last."""
    model = write_checkpoint(tmp_path / "llama")
    config = configured(tmp_path, model=str(model.path), runtime="tensorrt")
    lines = plan.resolve(config, machine(L4)).lines()
    assert lines[0].split() == ["model", str(model.path)]
    assert [line.split()[:2] for line in lines[-2:]] == [["build", "command"]] * 2


def test_an_unsupported_architecture(tmp_path: Path) -> None:
    """No engine of it can be built, which the plan says."""
    model = write_checkpoint(tmp_path / "mamba", architectures=["MambaForCausalLM"])
    config = configured(tmp_path, model=str(model.path), runtime="tensorrt")
    with pytest.raises(UnsupportedModel, match="MambaForCausalLM"):
        plan.resolve(config, machine(L4))
