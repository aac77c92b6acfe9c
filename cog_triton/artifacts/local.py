"""Models that lie on this machine already: a directory, a GGUF file, or an archive."""

from __future__ import annotations

import hashlib
from pathlib import Path

from cog_triton.artifacts.archive_source import local_archive
from cog_triton.artifacts.gguf_directory import (
    WEIGHTS_NAME,
    derived_space_bytes,
    wanted_programs,
    write_derived_files,
)
from cog_triton.artifacts.gguf_model import has_gguf_magic
from cog_triton.artifacts.manifest import Recipe
from cog_triton.artifacts.options import FetchOptions
from cog_triton.artifacts.published import Publication, Workspace
from cog_triton.errors import ArtifactCorrupt, ArtifactUnavailable


def local_model(path: Path, store: Path, options: FetchOptions) -> Path | Publication:
    """A model directory as it lies; a GGUF gets a directory below `store` that links to it.

    A directory that holds one bare GGUF, without a tokenizer, counts as that GGUF. An archive is
    unpacked below `store`.

    Raises: ArtifactUnavailable when there is nothing at `path`; ArtifactCorrupt for a file of
    another kind. Building raises ArtifactCorrupt, UnsupportedModel or ArtifactUnavailable.
    """
    if path.is_file():
        try:
            is_gguf = has_gguf_magic(path)
        except OSError as err:
            raise ArtifactUnavailable(f"{path} cannot be read ({err})") from err
        make = _gguf_model if is_gguf else local_archive
        return make(path, store, options)
    if not path.is_dir():
        raise ArtifactUnavailable(f"there is no file or directory {path}")
    weights = sorted(path.glob("*.gguf"))
    if not weights or (path / "tokenizer.json").exists():
        return path
    if len(weights) > 1:
        names = ", ".join(file.name for file in weights)
        raise ArtifactUnavailable(f"{path} holds several GGUF files, name one of them: {names}")
    return _gguf_model(weights[0], store, options)


def _gguf_model(path: Path, store: Path, options: FetchOptions) -> Publication:
    if not has_gguf_magic(path):
        raise ArtifactCorrupt(f"{path} is not a GGUF file")
    target = path.resolve()
    tag = hashlib.sha256(str(target).encode()).hexdigest()[:8]  # two files may share a name

    def build(work: Workspace) -> dict[str, str]:
        work.need_space(derived_space_bytes(target.stat().st_size, options))
        (work.model / WEIGHTS_NAME).symlink_to(target)
        write_derived_files(work, options)
        return {}

    recipe = Recipe(f"gguf:{target}", wanted_programs(options))
    return Publication(store / f"{target.stem}-{tag}", recipe, build)
