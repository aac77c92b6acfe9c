"""Turn the files that a source gave into a model directory that runtimes open."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from cog_triton.artifacts.gguf_directory import (
    WEIGHTS_NAME,
    derived_space_bytes,
    write_derived_files,
)
from cog_triton.artifacts.manifest import MANIFEST_NAME, Manifest
from cog_triton.artifacts.options import FetchOptions
from cog_triton.artifacts.published import Workspace


def prepare(work: Workspace, sha256: Mapping[str, str], options: FetchOptions) -> dict[str, str]:
    """Derive what is missing beside a bare GGUF; anything else stays as it came.

    Gives the SHA-256 that are known. Raises: ArtifactCorrupt, UnsupportedModel,
    ArtifactUnavailable (no space).
    """
    known = dict(sha256)
    weights = sorted(work.model.glob("*.gguf"))
    if len(weights) == 1 and not (work.model / "tokenizer.json").exists():
        work.need_space(derived_space_bytes(weights[0].stat().st_size, options))
        weights[0].rename(work.model / WEIGHTS_NAME)
        if weights[0].name in known:
            known[WEIGHTS_NAME] = known.pop(weights[0].name)
        write_derived_files(work, options)
    return known


def prepare_again(work: Workspace, previous: Path, options: FetchOptions) -> dict[str, str]:
    """Prepare from an intact directory what its source gave, without asking the source again."""
    manifest = Manifest.read(previous)
    known: dict[str, str] = {}
    if manifest is not None:
        work.origin.update(manifest.origin)
        known = {name: file.sha256 for name, file in manifest.files.items() if file.sha256}
    if not (previous / WEIGHTS_NAME).exists():
        link_tree(previous, work.model)
        return known
    link_file(previous / WEIGHTS_NAME, work.model / WEIGHTS_NAME)
    return prepare(work, {WEIGHTS_NAME: known[WEIGHTS_NAME]}, options)


def link_file(old: Path, new: Path) -> None:
    """Give a file a second name; where the file system cannot, copy it. A link stays a link."""
    try:
        os.link(old, new, follow_symlinks=False)
    except OSError:
        shutil.copy2(old, new, follow_symlinks=False)


def link_tree(old: Path, new: Path) -> None:
    """Give every file below `old`, but its manifest, a second name below `new`, which exists."""
    for path in sorted(old.rglob("*")):
        target = new / path.relative_to(old)
        if path.is_dir() and not path.is_symlink():
            target.mkdir()
        elif path != old / MANIFEST_NAME:
            link_file(path, target)
