"""Tests of cog_triton.artifacts.gguf_model."""

from __future__ import annotations

from pathlib import Path

import gguf
import pytest

from cog_triton.artifacts.gguf_model import has_gguf_magic, read_gguf_model
from cog_triton.errors import ArtifactCorrupt
from tests import artifact_samples as samples


def test_a_file_is_read_as_it_was_written(tmp_path: Path) -> None:
    """Everything that a GGUF says of its tokenizer comes back."""
    model = samples.byte_level_model(eot_id=1, eom_id=0, add_space_prefix=False)
    assert read_gguf_model(samples.write_gguf(tmp_path / "a.gguf", model)) == model


def test_scores_are_read(tmp_path: Path) -> None:
    """A SentencePiece vocabulary comes back with its scores; what is not there is None."""
    model = samples.sentencepiece_model({"a": -1.0, "▁a": -2.5})
    read = read_gguf_model(samples.write_gguf(tmp_path / "a.gguf", model))
    assert read == model
    assert (read.pad_id, read.add_bos, read.chat_template) == (None, None, None)


@pytest.mark.parametrize("content", [b"", b"GG", b"not a model at all", b"GGUF\x03\0\0\0"])
def test_other_files_are_refused(tmp_path: Path, content: bytes) -> None:
    """A file that is no GGUF, or only the beginning of one, is corrupt."""
    path = tmp_path / "a.gguf"
    path.write_bytes(content)
    with pytest.raises(ArtifactCorrupt, match=r"a\.gguf"):
        read_gguf_model(path)


def test_the_magic_tells_a_gguf(tmp_path: Path) -> None:
    """The first four bytes tell a GGUF from another file."""
    (tmp_path / "b").write_bytes(b"GGU")
    assert has_gguf_magic(samples.write_gguf(tmp_path / "a"))
    assert not has_gguf_magic(tmp_path / "b")


@pytest.mark.parametrize("part", [0.1, 0.5, 0.9, 0.999])
def test_truncated_files_are_refused(tmp_path: Path, part: float) -> None:
    """A GGUF that was cut anywhere in its metadata or tensors is corrupt."""
    path = samples.write_gguf(tmp_path / "a.gguf", with_weights=True)
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * part)])
    with pytest.raises(ArtifactCorrupt, match="complete GGUF"):
        read_gguf_model(path)


def test_missing_keys_are_named(tmp_path: Path) -> None:
    """A GGUF without a tokenizer says which key it lacks."""
    writer = gguf.GGUFWriter(tmp_path / "a.gguf", "llama")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    with pytest.raises(ArtifactCorrupt, match=r"tokenizer\.ggml\.tokens"):
        read_gguf_model(tmp_path / "a.gguf")


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"token_types": [1, 1]}, "2 token types"),
        ({"scores": [0.5]}, "1 scores"),
        ({"eos_id": 100_000}, "eos_id 100000"),
        ({"tokens": ["a", "a"], "token_types": [1, 1], "merges": ()}, "twice"),
    ],
)
def test_contradictions_are_named(tmp_path: Path, changes: dict[str, object], reason: str) -> None:
    """A vocabulary that contradicts itself is corrupt."""
    path = samples.write_gguf(tmp_path / "a.gguf", samples.byte_level_model(**changes))
    with pytest.raises(ArtifactCorrupt, match=reason):
        read_gguf_model(path)
