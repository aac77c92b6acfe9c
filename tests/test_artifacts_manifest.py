"""Tests of cog_triton.artifacts.manifest."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

import pytest

from cog_triton.artifacts.manifest import MANIFEST_NAME, Manifest, Recipe, sha256_of
from cog_triton.errors import ArtifactCorrupt


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A directory with two files, one link to elsewhere, and their manifest."""
    elsewhere = tmp_path / "elsewhere.gguf"
    elsewhere.write_bytes(b"weights")
    made = tmp_path / "model"
    (made / "sub").mkdir(parents=True)
    (made / "config.json").write_text("{}")
    (made / "sub" / "a.bin").write_bytes(b"abc")
    (made / "model.gguf").symlink_to(elsewhere)
    Manifest.of(made, Recipe("test"), {}).write(made)
    return made


def verify(directory: Path) -> None:
    manifest = Manifest.read(directory)
    assert manifest is not None
    manifest.verify(directory)


def make_older(path: Path) -> None:
    """Give a file another time without touching its contents."""
    an_hour_ago = time.time() - 3600
    os.utime(path, (an_hour_ago, an_hour_ago))


def test_an_untouched_directory_is_whole(directory: Path) -> None:
    """What was recorded is what is read, and it verifies."""
    manifest = Manifest.read(directory)
    assert manifest is not None
    assert manifest.files["sub/a.bin"].sha256 == sha256_of(directory / "sub" / "a.bin")
    assert manifest.files["model.gguf"].sha256 is None
    assert set(manifest.files) == {"config.json", "sub/a.bin", "model.gguf"}
    manifest.verify(directory)


def test_a_directory_without_manifest_has_none(tmp_path: Path) -> None:
    """No manifest is not an error: it is a directory of somebody else."""
    assert Manifest.read(tmp_path) is None
    assert Manifest.read(tmp_path / "absent") is None


@pytest.mark.parametrize("content", ["", "[]", '{"recipe": {}}', '{"files": {}, "recipe": 1}'])
def test_an_unreadable_manifest_is_corrupt(directory: Path, content: str) -> None:
    """A manifest that is cut or of another form proves nothing."""
    (directory / MANIFEST_NAME).write_text(content)
    with pytest.raises(ArtifactCorrupt, match=MANIFEST_NAME):
        Manifest.read(directory)


def test_a_missing_file_is_named(directory: Path) -> None:
    """A file that is gone is named in the error."""
    (directory / "sub" / "a.bin").unlink()
    with pytest.raises(ArtifactCorrupt, match=r"a\.bin is missing"):
        verify(directory)


def test_a_changed_size_is_named(directory: Path) -> None:
    """A file of another size is named in the error."""
    (directory / "sub" / "a.bin").write_bytes(b"abcd")
    with pytest.raises(ArtifactCorrupt, match=r"a\.bin has 4 bytes, 3 were written"):
        verify(directory)


def test_changed_contents_of_the_same_size_are_named(directory: Path) -> None:
    """A changed time has the contents hashed, and other contents are an error."""
    (directory / "sub" / "a.bin").write_bytes(b"abd")
    make_older(directory / "sub" / "a.bin")
    with pytest.raises(ArtifactCorrupt, match=r"a\.bin was changed"):
        verify(directory)


def test_a_changed_time_alone_is_recorded_anew(directory: Path) -> None:
    """A copied file has another time and the same contents: it is hashed once, not every time."""
    path = directory / "sub" / "a.bin"
    make_older(path)
    verify(directory)
    manifest = Manifest.read(directory)
    assert manifest is not None
    assert manifest.files["sub/a.bin"].mtime_ns == path.stat().st_mtime_ns
    assert sorted(p.name for p in directory.iterdir()) == sorted(
        [MANIFEST_NAME, "config.json", "model.gguf", "sub"]
    )


def test_a_copied_directory_is_whole(directory: Path, tmp_path: Path) -> None:
    """A directory that was copied without its times still verifies."""
    copied = tmp_path / "copied"
    shutil.copytree(directory, copied, symlinks=True, copy_function=shutil.copyfile)
    make_older(copied / "config.json")
    verify(copied)


def test_times_cut_to_seconds_are_the_same_times(directory: Path) -> None:
    """A directory out of an image layer, with whole seconds, is not hashed: not even a change."""
    path = directory / "sub" / "a.bin"
    path.write_bytes(b"abd")
    manifest = Manifest.read(directory)
    assert manifest is not None
    recorded_ns = manifest.files["sub/a.bin"].mtime_ns
    os.utime(path, ns=(0, recorded_ns - recorded_ns % 10**9))
    manifest.verify(directory)
    os.utime(path, ns=(0, recorded_ns - recorded_ns % 10**9 + 1))
    with pytest.raises(ArtifactCorrupt, match="was changed"):
        manifest.verify(directory)


def test_a_linked_file_that_changed_counts_as_changed(directory: Path, tmp_path: Path) -> None:
    """Weights that are only linked have no hash: another time means other weights."""
    make_older(tmp_path / "elsewhere.gguf")
    with pytest.raises(ArtifactCorrupt, match=r"model\.gguf was changed"):
        verify(directory)


def test_known_hashes_are_taken_over(tmp_path: Path) -> None:
    """A hash that the caller knows is recorded as it is."""
    (tmp_path / "a").write_bytes(b"abc")
    manifest = Manifest.of(tmp_path, Recipe("test"), {"a": "known"})
    assert manifest.files["a"].sha256 == "known"


@pytest.mark.parametrize(
    ("made_by", "is_met"),
    [
        (Recipe("a", {"openvino-genai": "1"}), True),
        (Recipe("a", {"openvino-genai": "1", "other": "2"}), True),
        (Recipe("a", {"openvino-genai": "2"}), False),
        (Recipe("a"), False),
        (Recipe("b", {"openvino-genai": "1"}), False),
        (Recipe("a", {"openvino-genai": "1"}, layout=0), False),
    ],
)
def test_a_recipe_is_met_by_one_that_has_at_least_as_much(made_by: Recipe, is_met: bool) -> None:
    """Source and layout must be equal; files for further programs do no harm."""
    assert Recipe("a", {"openvino-genai": "1"}).is_met_by(made_by) is is_met
