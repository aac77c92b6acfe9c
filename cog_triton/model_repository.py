"""The model repository that Triton reads: templates filled for one deployment.

It is written beside its destination and moved into place when all of it is
there and valid, so Triton never sees a half-written one. The templates are
only read; Python writes its `__pycache__` into the copies.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

from cog_triton.errors import ModelRepositoryError
from cog_triton.template import nearest, render
from cog_triton.template_values import configure

CONFIG = "config.pbtxt"


def build(
    templates: Path,
    destination: Path,
    values: Mapping[str, Mapping[str, object]],
    *,
    files: Mapping[str, bytes] | None = None,
) -> Path:
    """Writes the models named in `values` to `destination` and returns it.

    `values` maps a model (a directory of `templates`) to its template variables;
    `files` maps paths in the repository (`tensorrt_llm/1/runtime.json`) to their
    content, over the template's own file of that name. An older destination is
    replaced; directories are 0700, files 0600. Raises ModelRepositoryError for an
    unknown model, for values that do not fit, and for what the disk refuses; the
    older destination then stays.
    """
    try:
        destination.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        staging = Path(tempfile.mkdtemp(prefix=f".{destination.name}-", dir=destination.parent))
    except OSError as err:
        raise ModelRepositoryError(f"{destination} cannot be written: {err}") from err
    try:
        for model, model_values in values.items():
            _write_model(templates, staging / "new" / model, model, model_values)
        for name, content in (files or {}).items():
            _write(staging / "new" / _inside(name, values), content)
        _put_in_place(staging, destination)
    except (OSError, UnicodeDecodeError) as err:
        raise ModelRepositoryError(f"{destination} cannot be written: {err}") from err
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    return destination


def _write_model(templates: Path, target: Path, model: str, values: Mapping[str, object]) -> None:
    source = templates / model / CONFIG
    if not source.is_file():
        models = (path.parent.name for path in templates.glob(f"*/{CONFIG}"))
        raise ModelRepositoryError(f"{templates} has no model {model}{nearest(model, models)}.")
    config = configure(model, source.read_text(encoding="utf-8"), values, source=str(source))
    if config.name != model:
        # Triton refuses it: the name must be that of the directory.
        raise ModelRepositoryError(f'{source}: the name is "{config.name}", not "{model}".')
    _write(target / CONFIG, render(config).encode())
    versions = [path for path in (templates / model).iterdir() if path.name.isdigit()]
    # A model without files (an ensemble) needs a version directory all the same, and
    # git does not keep an empty one.
    _make_directory(target / "1")
    for version in versions:
        for file in version.rglob("*"):
            if file.is_file() and "__pycache__" not in file.parts:
                _write(target / version.name / file.relative_to(version), file.read_bytes())


def _inside(name: str, models: Mapping[str, object]) -> PurePosixPath:
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or len(path.parts) < 2:
        raise ModelRepositoryError(f"{name!r} is not the path of a file in a model's directory.")
    if path.parts[0] not in models:
        raise ModelRepositoryError(f"{name!r} belongs to no model{nearest(path.parts[0], models)}.")
    return path


def _put_in_place(staging: Path, destination: Path) -> None:
    _make_directory(staging / "new")
    if not destination.exists():
        os.rename(staging / "new", destination)
        return
    os.rename(destination, staging / "old")
    try:
        os.rename(staging / "new", destination)
    except OSError:
        os.rename(staging / "old", destination)
        raise


def _write(path: Path, content: bytes) -> None:
    _make_directory(path.parent)
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(content)


def _make_directory(path: Path) -> None:
    """Like `mkdir -p -m 700`, for every directory made: parents= alone follows the umask."""
    if not path.is_dir():
        _make_directory(path.parent)
        path.mkdir(mode=0o700)
