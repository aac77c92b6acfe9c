"""Publish a directory as a whole: it appears under its name complete and checked, or not at all.

Beside `<name>` there may be, all hidden: `.<name>.lock` (held while one process builds),
`.<name>.staging-*` (what it builds in), `.<name>.partial-*` (what a broken download has so far) and
`.<name>.old-*` (what it replaced). The three latter are only ever used under the lock, so whoever
holds it may remove what dead processes left; only what is partial and of the same source is kept.
"""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from uuid import uuid4

from filelock import FileLock, Timeout

from cog_triton.artifacts.manifest import Manifest, Recipe
from cog_triton.artifacts.options import DiskUsage
from cog_triton.errors import ArtifactCorrupt, ArtifactUnavailable

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Workspace:
    """Where a build works: `model` becomes the published directory, `scratch` is thrown away.

    `previous` is the intact directory of the same source that is about to be replaced, or None.
    `partial` does not exist yet: a build that can go on where an earlier one was broken off makes
    it and works there; unlike the rest it survives a failure, until the directory is published.
    What a build writes into `origin` is recorded in the manifest.
    """

    model: Path
    scratch: Path
    previous: Path | None
    disk_usage: Callable[[Path], DiskUsage]
    partial: Path | None = None
    origin: dict[str, str] = field(default_factory=dict)

    def need_space(self, num_bytes: int) -> None:
        """Raises: ArtifactUnavailable when the disk has less than `num_bytes` free."""
        free_bytes = self.disk_usage(self.model).free
        if free_bytes < num_bytes:
            raise ArtifactUnavailable(
                f"{self.model.parent.parent} has {free_bytes / 1e6:.0f} MB free, "
                f"{num_bytes / 1e6:.0f} MB are needed"
            )


Build = Callable[[Workspace], Mapping[str, str]]
"""Fills `workspace.model`; returns the SHA-256 of those files whose hash it knows already."""


@dataclass(frozen=True)
class Publication:
    """A directory as it shall be: its name, what it is made from, and how."""

    dest: Path
    recipe: Recipe
    build: Build


def is_published(publication: Publication) -> bool:
    """Whether the directory is there, whole and made by the recipe.

    Raises: ArtifactCorrupt when files of somebody else are in its place.
    """
    return _state(publication.dest, publication.recipe).is_current


def ensure_published(publication: Publication, disk_usage: Callable[[Path], DiskUsage]) -> None:
    """Have the directory: at once if it is there, otherwise by building it.

    Processes that want the same directory wait for each other; the later ones find it done.

    Raises: ArtifactCorrupt when `dest` holds files of somebody else; ArtifactUnavailable when the
    file system refuses; and whatever `build` raises.
    """
    # If the name is a link, it stays one: what it points to is built, on the disk where that is.
    dest = Path(os.path.realpath(publication.dest))
    try:
        if is_published(publication):
            return
        dest.parent.mkdir(parents=True, exist_ok=True)
        with _locked(dest):
            state = _state(dest, publication.recipe)
            if not state.is_current:
                if state.reason:
                    _log.warning("%s is made again: %s", dest, state.reason)
                _build_and_publish(dest, publication, state.intact, disk_usage)
    except OSError as err:
        raise ArtifactUnavailable(f"{dest} cannot be read or written ({err})") from err


@dataclass(frozen=True)
class _State:
    is_current: bool = False
    intact: Path | None = None
    reason: str = ""


def _state(dest: Path, recipe: Recipe) -> _State:
    """Whether `dest` can be used as it is, and if not, why not and what of it can be used."""
    if not dest.exists():
        return _State()
    try:
        manifest = Manifest.read(dest)
        if manifest is not None:
            manifest.verify(dest)
    except ArtifactCorrupt as err:
        return _State(reason=err.detail)
    if manifest is None:
        if dest.is_dir() and not any(dest.iterdir()):
            return _State()
        raise ArtifactCorrupt(f"{dest} is in the way: it was not written by an earlier fetch")
    if recipe.is_met_by(manifest.recipe):
        return _State(is_current=True)
    same_source = manifest.recipe.source == recipe.source
    return _State(intact=dest if same_source else None, reason="source, or what it is for, changed")


@contextmanager
def _locked(dest: Path) -> Iterator[None]:
    lock = FileLock(dest.parent / f".{dest.name}.lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        _log.warning("another process is fetching %s; waiting for it", dest)
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def _build_and_publish(
    dest: Path,
    publication: Publication,
    intact: Path | None,
    disk_usage: Callable[[Path], DiskUsage],
) -> None:
    recipe = publication.recipe
    tag = hashlib.sha256(recipe.source.encode()).hexdigest()[:8]
    partial = dest.parent / f".{dest.name}.partial-{tag}"
    for leftover in _leftovers(dest):
        if leftover != partial:
            _log.warning("removing %s, left by a process that ended early", leftover)
            shutil.rmtree(leftover)
    staging = dest.parent / f".{dest.name}.staging-{uuid4().hex[:8]}"
    work = Workspace(staging / "model", staging / "scratch", intact, disk_usage, partial)
    try:
        work.model.mkdir(parents=True)
        work.scratch.mkdir()
        known_sha256 = publication.build(work)
        manifest = Manifest.of(work.model, recipe, known_sha256, work.origin)
        manifest.write(work.model)
        _flush(work.model)
        shutil.rmtree(partial, ignore_errors=True)
        _put_in_place(work.model, dest)
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _leftovers(dest: Path) -> list[Path]:
    prefixes = tuple(f".{dest.name}.{kind}-" for kind in ("staging", "partial", "old"))
    return [path for path in dest.parent.iterdir() if path.name.startswith(prefixes)]


def _flush(directory: Path) -> None:
    """Have the kernel write all files and names to the disk before the directory is named."""
    for path in [*directory.rglob("*"), directory]:
        if not path.is_symlink():
            _fsync(path)


def _fsync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _put_in_place(new: Path, dest: Path) -> None:
    old = dest.parent / f".{dest.name}.old-{uuid4().hex[:8]}"
    if dest.exists():
        dest.rename(old)
    new.rename(dest)
    _fsync(dest.parent)
    if old.exists():
        shutil.rmtree(old)
