"""From settings and a model to an engine: runtime, limits, and what Triton is told."""

from __future__ import annotations

from pathlib import Path

import pytest

from cog_triton import engine, settings
from cog_triton.artifacts.model_directory import ModelDirectory
from cog_triton.errors import SettingsError, UnsupportedModel
from cog_triton.template_values import configure
from tests.engine_samples import (
    A100,
    H100,
    ROOT,
    configured,
    machine,
    write_checkpoint,
    write_engine,
)

TEMPLATE = ROOT / "triton_model_repo" / "tensorrt_llm" / "config.pbtxt"


def test_a_sequence_longer_than_the_context(tmp_path: Path) -> None:
    """max_seq_len above the model's context is an error with both values."""
    model = write_checkpoint(tmp_path / "llama")
    config = configured(tmp_path, model=str(model.path), engine__max_seq_len=5000)
    with pytest.raises(SettingsError, match=r"5000.*4096"):
        engine.plan_engine(config, model, machine(A100))


def test_a_kv_cache_smaller_than_one_sequence(tmp_path: Path) -> None:
    """The Phi-3 guide's rule: the bound must hold one whole sequence."""
    model = write_checkpoint(tmp_path / "phi", "phi", max_position_embeddings=131072)
    config = configured(tmp_path, model=str(model.path), engine__max_tokens_in_paged_kv_cache=4096)
    with pytest.raises(SettingsError, match=r"4096.*131072 tokens needs 131072"):
        engine.plan_engine(config, model, machine(A100))


def test_a_checkpoint_is_no_engine_yet(tmp_path: Path) -> None:
    """The tensorrt runtime plans on the engine that was built, not on the checkpoint."""
    model = write_checkpoint(tmp_path / "llama")
    config = configured(tmp_path, model=str(model.path), runtime="tensorrt")
    with pytest.raises(UnsupportedModel, match="no engine was built"):
        engine.plan_engine(config, model, machine(A100))


def test_the_pytorch_runtime(tmp_path: Path) -> None:
    """Parallelism, data type and memory go to the runtime as they were set; steps are long."""
    model = write_checkpoint(tmp_path / "llama")
    config = configured(
        tmp_path,
        model=str(model.path),
        engine__tensor_parallel_size=2,
        engine__dtype="bfloat16",
        engine__kv_cache_free_gpu_mem_fraction=0.5,
        engine__max_input_len=1000,
        pytorch={"stream_interval": 2},
    )
    planned = engine.plan_engine(config, model, machine(H100, H100))
    assert planned.runtime.name == "pytorch"
    assert (planned.world_size, planned.max_seq_len, planned.max_input_len) == (2, 4096, 1000)
    runtime = planned.config
    assert (runtime.tensor_parallel_size, runtime.dtype) == (2, "bfloat16")
    assert (runtime.max_num_tokens, runtime.kv_cache_bytes) == (8192, 0)
    assert runtime.kv_cache_free_gpu_mem_fraction == 0.5
    assert runtime.llm_arguments == {"stream_interval": 2}
    assert engine.template_values(planned)["triton_backend"] == "python"


def test_an_unknown_argument_of_the_llm_api(tmp_path: Path) -> None:
    """It is found by the plan, not minutes after the start."""
    model = write_checkpoint(tmp_path / "llama")
    config = configured(tmp_path, model=str(model.path), pytorch={"stream_intervall": 2})
    with pytest.raises(SettingsError, match="stream_interval"):
        engine.plan_engine(config, model, machine(A100))


def test_a_compiled_engine(tmp_path: Path) -> None:
    """Its own limits, ranks and types are what the C++ backend is configured with."""
    path = write_engine(
        tmp_path / "engine",
        num_ranks=2,
        pretrained_config__mapping__tp_size=2,
        pretrained_config__mapping__world_size=2,
        pretrained_config__logits_dtype="float16",
    )
    model = ModelDirectory.read(path)
    config = configured(tmp_path, model=str(path), tensorrt={"max_queue_size": 7})
    planned = engine.plan_engine(config, model, machine(A100, A100))
    assert (planned.world_size, planned.max_seq_len, planned.max_input_len) == (2, 2048, 1024)
    assert planned.config.max_batch_size == 8
    values = engine.template_values(planned)
    filled = configure("tensorrt_llm", TEMPLATE.read_text(), values, source="template")
    assert (filled.backend, filled.max_batch_size) == ("tensorrtllm", 8)
    assert filled.dynamic_batching.default_queue_policy.max_queue_size == 7
    assert filled.parameters["gpt_model_path"].string_value == str(path)
    assert values["logits_datatype"] == "TYPE_FP16"
    assert "enable_chunked_context" not in values


def test_prompts_longer_than_a_step_are_cut(tmp_path: Path) -> None:
    """Without chunked context the backend refuses them, so it is turned on where it can be."""
    long = {"build_config__max_input_len": 2000, "build_config__max_num_tokens": 512}
    model = ModelDirectory.read(write_engine(tmp_path / "engine", **long))
    config = configured(tmp_path, model=str(model.path))
    planned = engine.plan_engine(config, model, machine(A100))
    assert engine.template_values(planned)["enable_chunked_context"] is True
    assert planned.max_input_len == 2000


def test_where_prompts_cannot_be_cut_they_are_limited(tmp_path: Path) -> None:
    """An engine without paged context attention takes prompts of one step only."""
    model = ModelDirectory.read(
        write_engine(
            tmp_path / "engine",
            build_config__max_input_len=2000,
            build_config__max_num_tokens=512,
            build_config__plugin_config__use_paged_context_fmha=False,
        )
    )
    planned = engine.plan_engine(configured(tmp_path, model=str(model.path)), model, machine(A100))
    assert planned.max_input_len == 512
    assert engine.template_values(planned)["enable_kv_cache_reuse"] is False


def test_reuse_of_kv_blocks_is_off_on_the_cpu_unless_it_is_set(tmp_path: Path) -> None:
    """OpenVINO's prefix cache changes answers, so a seed would not repeat its text."""
    (tmp_path / "model").mkdir()
    model = ModelDirectory(
        tmp_path / "model", "gguf", tmp_path / "model.gguf", 64, 100, (2,), 0, "llama"
    )
    for given, expected in (({}, False), ({"engine.enable_kv_cache_reuse": True}, True)):
        config = settings.changed(configured(tmp_path), given)
        planned = engine.plan_engine(config, model, machine())
        assert planned.config.enable_kv_cache_reuse is expected
