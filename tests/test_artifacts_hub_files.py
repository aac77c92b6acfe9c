"""Tests of cog_triton.artifacts.hub_files, with listings of repositories as they are on the Hub."""

from __future__ import annotations

import pytest

from cog_triton.artifacts.hub_files import choose_files
from cog_triton.errors import ArtifactUnavailable, UnsupportedModel

COMMON = ["config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"]
EXTRA = [".gitattributes", "LICENSE", "README.md", "USE_POLICY.md"]


def choose(*names: str, gguf: str | None = None) -> set[str]:
    return set(choose_files("org/name", names, gguf))


def shards(count: int, suffix: str, stem: str = "model") -> list[str]:
    return [f"{stem}-{i:05}-of-{count:05}.{suffix}" for i in range(1, count + 1)]


def test_gpt2_medium() -> None:
    """Of the weights of six frameworks only safetensors are taken."""
    needed = [*COMMON, "model.safetensors", "merges.txt", "vocab.json"]
    others = ["pytorch_model.bin", "flax_model.msgpack", "rust_model.ot", "tf_model.h5"]
    assert choose(*needed, *EXTRA, *others, "onnx/decoder_model.onnx", "64.tflite") == set(needed)


def test_llama() -> None:
    """Meta's own form of the weights, below original/, is left."""
    needed = [*COMMON, *shards(4, "safetensors"), "model.safetensors.index.json"]
    others = ["original/consolidated.00.pth", "original/tokenizer.model", "original/params.json"]
    assert choose(*needed, *EXTRA, *others) == set(needed)


def test_mistral() -> None:
    """The same weights in one consolidated file are not fetched a second time."""
    needed = [*COMMON, *shards(3, "safetensors"), "tokenizer.model", "params.json"]
    assert choose(*needed, *EXTRA, "consolidated.safetensors") == set(needed)


def test_phi() -> None:
    """Code that belongs to the model comes along: a runtime that trusts it may need it."""
    needed = [*COMMON, *shards(2, "safetensors"), "modeling_phi3.py", "configuration_phi3.py"]
    assert choose(*needed, *EXTRA, "figures/a.png", "sample_finetune.md") == set(needed)


def test_pytorch_weights_where_there_is_nothing_better() -> None:
    """Without safetensors the shards of PyTorch are taken, with their index."""
    needed = [*COMMON, *shards(2, "bin", "pytorch_model"), "pytorch_model.bin.index.json"]
    assert choose(*needed, *EXTRA, "training_args.bin") == set(needed)


def test_an_engine_and_an_ir_are_taken_as_they_are() -> None:
    """What was built for a runtime is preferred to the weights it was built from."""
    engine = [*COMMON, "rank0.engine", "rank1.engine"]
    assert choose(*engine, "model.safetensors") == set(engine)
    ir = [*COMMON, *(f"openvino_{n}.{s}" for n in ("model", "tokenizer") for s in ("xml", "bin"))]
    assert choose(*ir, *EXTRA) == set(ir)


def test_a_chat_template_of_its_own() -> None:
    """A template in a file beside the tokenizer's configuration is needed."""
    needed = [*COMMON, "model.safetensors", "chat_template.jinja"]
    assert choose(*needed) == set(needed)


def test_an_adapter_is_no_model() -> None:
    """Weights of an adapter alone cannot be served."""
    with pytest.raises(UnsupportedModel, match="no weights"):
        choose(*COMMON, "adapter_model.safetensors", "adapter_config.json")


@pytest.mark.parametrize("missing", ["config.json", "tokenizer.json"])
def test_what_is_missing_is_told_beforehand(missing: str) -> None:
    """A repository that could not be served is not fetched."""
    with pytest.raises(UnsupportedModel, match=f"no {missing}"):
        choose(*(name for name in COMMON if name != missing), "model.safetensors")


def test_the_only_gguf_is_taken_alone() -> None:
    """Everything else is in the GGUF; a projector for images is no language model."""
    assert choose("a-Q4.gguf", "mmproj-a.gguf", *EXTRA, "config.json") == {"a-Q4.gguf"}


def test_one_of_several_ggufs_has_to_be_named() -> None:
    """The error lists them in the form in which one is named."""
    with pytest.raises(ArtifactUnavailable, match=r"org/name/a-Q4\.gguf; it has .*a-Q8\.gguf"):
        choose("a-Q4.gguf", "a-Q8.gguf")
    assert choose("a-Q4.gguf", "a-Q8.gguf", gguf="a-Q8.gguf") == {"a-Q8.gguf"}


def test_a_gguf_that_is_not_there() -> None:
    """A misspelt file is told with those that are there."""
    with pytest.raises(ArtifactUnavailable, match=r"has no a-Q5\.gguf; it has a-Q4\.gguf"):
        choose("a-Q4.gguf", gguf="a-Q5.gguf")


def test_a_split_gguf() -> None:
    """One part of several cannot be opened."""
    with pytest.raises(UnsupportedModel, match="split"):
        choose("a-00001-of-00002.gguf", gguf="a-00001-of-00002.gguf")
