"""Tests of cog_triton.artifacts.published."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace

import pytest

from cog_triton.artifacts.manifest import MANIFEST_NAME, Manifest, Recipe
from cog_triton.artifacts.published import (
    Build,
    Publication,
    Workspace,
    ensure_published,
    is_published,
)
from cog_triton.errors import ArtifactCorrupt, ArtifactUnavailable
from tests import artifact_samples as samples

RECIPE = Recipe("test")
SLOW_BUILD = """
import sys, time
from pathlib import Path
from shutil import disk_usage
from cog_triton.artifacts.manifest import Recipe
from cog_triton.artifacts.published import Publication, ensure_published
def build(work):
    print("building", flush=True)
    (work.model / "half").write_text("x")
    sys.stdin.read()
    (work.model / "whole").write_text("x")
    return {}
ensure_published(Publication(Path(sys.argv[1]), Recipe("test"), build), disk_usage)
print("done", flush=True)
"""


class Builder:
    """A build that writes one file, and remembers how often it ran and what it was given."""

    def __init__(self, during: Callable[[Workspace], None] = lambda _: None) -> None:
        self.during = during
        self.seen: list[Workspace] = []

    def __call__(self, work: Workspace) -> Mapping[str, str]:
        self.seen.append(work)
        (work.scratch / "junk").write_text("thrown away")
        (work.model / "weights").write_text(f"build {len(self.seen)}")
        self.during(work)
        return {}


def publish(dest: Path, build: Build, recipe: Recipe = RECIPE, free_bytes: int = 1) -> None:
    publication = Publication(dest, recipe, build)
    ensure_published(publication, lambda _: SimpleNamespace(free=free_bytes))
    assert is_published(publication)


def names(directory: Path) -> set[str]:
    return {path.name for path in directory.iterdir()}


def start_slow_build(dest: Path) -> subprocess.Popen[str]:
    """A process that stands in the middle of its build until its standard input is closed."""
    return subprocess.Popen(
        [sys.executable, "-c", SLOW_BUILD, str(dest)],
        cwd=samples.ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def read_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def test_the_directory_appears_with_its_manifest_and_nothing_else(tmp_path: Path) -> None:
    """After a build there is the directory and the lock beside it, and no rest of the work."""
    dest = tmp_path / "deep" / "model"
    publish(dest, Builder())
    assert names(dest) == {"weights", MANIFEST_NAME}
    assert names(dest.parent) == {"model", ".model.lock"}


def test_a_second_call_builds_nothing(tmp_path: Path) -> None:
    """What is there by the same recipe is used as it is."""
    builder = Builder()
    publish(tmp_path / "model", builder)
    publish(tmp_path / "model", builder)
    assert len(builder.seen) == 1


def test_a_build_that_fails_leaves_nothing(tmp_path: Path) -> None:
    """An error in the middle of a build reaches the caller and leaves no directory behind."""

    def fail(_: Workspace) -> None:
        raise ArtifactUnavailable("no network")

    with pytest.raises(ArtifactUnavailable, match="no network"):
        publish(tmp_path / "model", Builder(fail))
    assert names(tmp_path) == {".model.lock"}


def test_a_failed_rebuild_keeps_what_was_there(tmp_path: Path) -> None:
    """A directory that cannot be made anew stays as it is."""

    def fail(_: Workspace) -> None:
        raise ArtifactUnavailable("no network")

    publish(tmp_path / "model", Builder())
    with pytest.raises(ArtifactUnavailable):
        publish(tmp_path / "model", Builder(fail), Recipe("other"))
    assert (tmp_path / "model" / "weights").read_text() == "build 1"


@pytest.mark.parametrize("name", ["weights", MANIFEST_NAME])
def test_a_damaged_directory_is_built_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    """A file or manifest that is not what was written has the directory replaced, with a line."""
    builder, dest = Builder(), tmp_path / "model"
    publish(dest, builder)
    (dest / name).write_text("damage")
    with caplog.at_level(logging.WARNING):
        publish(dest, builder)
    assert (dest / "weights").read_text() == "build 2"
    assert builder.seen[1].previous is None
    assert name in caplog.text
    assert names(tmp_path) == {"model", ".model.lock"}


def test_a_missing_file_has_the_directory_built_again(tmp_path: Path) -> None:
    """A directory that lost a file is replaced."""
    builder, dest = Builder(), tmp_path / "model"
    publish(dest, builder)
    (dest / "weights").unlink()
    publish(dest, builder)
    assert (dest / "weights").read_text() == "build 2"


def test_an_intact_directory_of_the_same_source_can_be_reused(tmp_path: Path) -> None:
    """When only the preparation is new, the build sees the old directory, and then replaces it."""
    builder, dest = Builder(), tmp_path / "model"
    publish(dest, builder)
    publish(dest, builder, Recipe("test", {"program": "2"}))
    assert builder.seen[1].previous == dest
    publish(dest, builder, Recipe("elsewhere"))
    assert builder.seen[2].previous is None
    assert (dest / "weights").read_text() == "build 3"


def test_files_of_somebody_else_are_never_removed(tmp_path: Path) -> None:
    """A directory that no fetch wrote is in the way, and stays."""
    dest = tmp_path / "model"
    dest.mkdir()
    (dest / "thesis.txt").write_text("precious")
    with pytest.raises(ArtifactCorrupt, match="in the way") as caught:
        publish(dest, Builder())
    assert "E3003 ArtifactCorrupt" in str(caught.value)
    assert names(dest) == {"thesis.txt"}


def test_an_empty_directory_is_taken(tmp_path: Path) -> None:
    """An empty directory of that name is no obstacle."""
    (tmp_path / "model").mkdir()
    publish(tmp_path / "model", Builder())
    assert names(tmp_path / "model") == {"weights", MANIFEST_NAME}


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    """When the name is a link, what it points to is built, beside that."""
    (tmp_path / "disk").mkdir()
    (tmp_path / "model").symlink_to(tmp_path / "disk" / "real")
    publish(tmp_path / "model", Builder())
    assert names(tmp_path / "disk") == {"real", ".real.lock"}
    assert (tmp_path / "model").is_symlink()
    assert (tmp_path / "model" / "weights").exists()


def test_too_little_space_is_told_before_anything_is_done(tmp_path: Path) -> None:
    """A build that needs more than is free stops with both numbers."""
    builder = Builder(lambda work: work.need_space(300_000_000))
    with pytest.raises(ArtifactUnavailable, match="100 MB free, 300 MB are needed"):
        publish(tmp_path / "model", builder, free_bytes=100_000_000)
    assert names(tmp_path) == {".model.lock"}


def test_a_disk_that_refuses_is_an_error_of_ours(tmp_path: Path) -> None:
    """An error of the file system is told under the product's own error."""
    (tmp_path / "file").write_text("")
    with pytest.raises(ArtifactUnavailable, match="cannot be read or written"):
        publish(tmp_path / "file" / "model", Builder())


def test_a_killed_build_is_never_seen_and_is_cleaned_up(tmp_path: Path) -> None:
    """SIGKILL in the middle of a build leaves no directory; the next call removes the rest."""
    dest = tmp_path / "model"
    with start_slow_build(dest) as process:
        assert read_line(process) == "building"
        process.kill()
    assert not dest.exists()
    assert any(name.startswith(".model.staging-") for name in names(tmp_path))
    publish(dest, Builder())
    assert names(tmp_path) == {"model", ".model.lock"}


def test_processes_wait_for_each_other(tmp_path: Path) -> None:
    """While one process builds, another waits, and then finds the work done."""
    dest = tmp_path / "model"
    with start_slow_build(dest) as first:
        assert read_line(first) == "building"
        with start_slow_build(dest) as second:
            assert second.stdin is not None
            assert second.stderr is not None
            second.stdin.close()
            assert "waiting" in second.stderr.readline()
            first.communicate("")
            assert read_line(second) == "done"
    assert names(dest) == {"half", "whole", MANIFEST_NAME}


def test_replacing_survives_a_kill_between_the_two_names(tmp_path: Path) -> None:
    """If a process dies after it moved the old directory aside, the next call builds anew."""
    dest = tmp_path / "model"
    publish(dest, Builder())
    dest.rename(tmp_path / ".model.old-12345678")
    publish(dest, Builder())
    assert names(tmp_path) == {"model", ".model.lock"}


def test_a_read_only_copy_is_used_without_a_lock(tmp_path: Path) -> None:
    """A complete directory is used even where no lock could be made, as in an image."""
    dest = tmp_path / "model"
    publish(dest, Builder())
    (tmp_path / ".model.lock").unlink()
    publish(dest, Builder())
    assert names(tmp_path) == {"model"}


def test_known_hashes_reach_the_manifest(tmp_path: Path) -> None:
    """What a build knows of its files is recorded without hashing them again."""

    def build(work: Workspace) -> Mapping[str, str]:
        (work.model / "weights").write_text("x")
        return {"weights": "known"}

    publish(tmp_path / "model", build)
    manifest = Manifest.read(tmp_path / "model")
    assert manifest is not None
    assert manifest.files["weights"].sha256 == "known"


def test_what_is_partial_outlives_a_failure(tmp_path: Path) -> None:
    """The next build of the same source goes on there; once published, nothing of it is left."""
    seen: list[bool] = []

    def begin(work: Workspace) -> None:
        assert work.partial is not None
        seen.append(work.partial.exists())
        work.partial.mkdir(exist_ok=True)
        (work.partial / "half").write_text("x")
        if len(seen) < 2:
            raise ArtifactUnavailable("broken")

    with pytest.raises(ArtifactUnavailable, match="broken"):
        publish(tmp_path / "model", Builder(begin))
    assert len(names(tmp_path)) == 2
    publish(tmp_path / "model", Builder(begin))
    assert seen == [False, True]
    assert names(tmp_path) == {"model", ".model.lock"}


def test_what_is_partial_of_another_source_is_removed(tmp_path: Path) -> None:
    """A build never goes on with what was begun for something else."""

    def begin(work: Workspace) -> None:
        assert work.partial is not None
        work.partial.mkdir()
        raise ArtifactUnavailable("broken")

    for source in ("one", "two"):
        with pytest.raises(ArtifactUnavailable, match="broken"):
            publish(tmp_path / "model", Builder(begin), Recipe(source))
    assert len([name for name in names(tmp_path) if "partial" in name]) == 1


def test_the_origin_is_recorded(tmp_path: Path) -> None:
    """What a build finds out about its source is in the manifest, and stays there."""
    dest = tmp_path / "model"
    publish(dest, Builder(lambda work: work.origin.update(commit="abc")))
    (dest / "weights").touch()
    manifest = Manifest.read(dest)
    assert manifest is not None
    manifest.verify(dest)
    assert Manifest.read(dest) != manifest
    again = Manifest.read(dest)
    assert again is not None
    assert again.origin == manifest.origin == {"commit": "abc"}
