"""Tests of cog_triton.artifacts.openvino_ir, with the real OpenVINO GenAI."""

from __future__ import annotations

import os
from pathlib import Path

import openvino_genai
import pytest

from cog_triton.artifacts import child, openvino_ir
from cog_triton.artifacts.fetch import fetch
from cog_triton.artifacts.progress import silent
from cog_triton.errors import ArtifactUnavailable, UnsupportedModel
from tests import artifact_samples as samples


def generate(weights: Path, texts: list[str]) -> list[list[int]]:
    """Greedy output ids of each text, one after the other."""
    scheduler = openvino_genai.SchedulerConfig()
    pipeline = openvino_genai.ContinuousBatchingPipeline(str(weights), scheduler, "CPU")
    config = openvino_genai.GenerationConfig()
    config.max_new_tokens = 24
    config.stop_token_ids = {0, 2}
    outputs = []
    for number, text in enumerate(texts):
        ids = pipeline.get_tokenizer().encode(text).input_ids
        handle = pipeline.add_request(number, ids, config)
        while handle.get_status() == openvino_genai.GenerationStatus.RUNNING:
            pipeline.step()
        [result] = handle.read_all()
        outputs.append(list(result.generated_ids))
    return outputs


def test_the_ir_generates_what_the_gguf_does(tmp_path: Path) -> None:
    """A GGUF and the IR written for it give the same tokens; our files beside it do no harm."""
    gguf = samples.write_gguf(tmp_path / "tiny.gguf", with_weights=True)
    model = fetch(str(gguf), tmp_path / "models", progress=silent, prepare_for="openvino")
    assert model.format == "openvino_ir"
    texts = ["The quick brown fox", "안녕하세요", "12345 a"]
    from_ir = generate(model.weights, texts)
    assert from_ir == generate(gguf, texts)
    for text, ids in zip(texts, from_ir, strict=True):
        assert ids == samples.counted(text, 24)


def test_the_engine_takes_end_ids_from_the_directory(tmp_path: Path) -> None:
    """OpenVINO's own defaults for an IR come from the generation_config.json beside it."""
    gguf = samples.write_gguf(tmp_path / "tiny.gguf", with_weights=True)
    model = fetch(str(gguf), tmp_path / "models", progress=silent, prepare_for="openvino")
    pipeline = openvino_genai.ContinuousBatchingPipeline(
        str(model.weights), openvino_genai.SchedulerConfig(), "CPU"
    )
    config = pipeline.get_config()
    assert (config.eos_token_id, config.stop_token_ids) == (2, {0, 2})


def test_a_model_that_openvino_cannot_read(tmp_path: Path) -> None:
    """A GGUF without usable weights is refused with OpenVINO's words, and nothing is published."""
    gguf = samples.write_gguf(tmp_path / "tiny.gguf")
    with pytest.raises(UnsupportedModel, match=r"could not convert model\.gguf: .*Error"):
        fetch(str(gguf), tmp_path / "models", progress=silent, prepare_for="openvino")
    assert not [p for p in (tmp_path / "models").iterdir() if not p.name.endswith(".lock")]


def test_a_conversion_that_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A conversion that the kernel kills is told as what it is, not as a bad model."""
    program = tmp_path / "killed.py"
    program.write_text("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)\n")
    monkeypatch.setattr(child, "_PROGRAM", program)
    with (
        pytest.raises(ArtifactUnavailable, match="signal 9"),
        openvino_ir.writing_openvino_ir(tmp_path / "model.gguf", tmp_path, silent),
    ):
        pass


def test_an_error_beside_the_conversion_ends_it(tmp_path: Path) -> None:
    """If the work beside the conversion fails, its own error is told and the process ended."""
    gguf = samples.write_gguf(tmp_path / "model.gguf", with_weights=True)
    before = samples.children_of(os.getpid())
    with (
        pytest.raises(UnsupportedModel, match="tokenizer"),
        openvino_ir.writing_openvino_ir(gguf, tmp_path, silent),
    ):
        raise UnsupportedModel("tokenizer")
    assert samples.children_of(os.getpid()) == before
