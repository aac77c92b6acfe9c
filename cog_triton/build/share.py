"""Give an engine to other machines: as an archive, or as a repository on the Hugging Face Hub."""

from __future__ import annotations

import contextlib
import os
import tarfile
from pathlib import Path
from typing import Literal
from uuid import uuid4

import httpx

from cog_triton.artifacts.manifest import MANIFEST_NAME, sha256_of
from cog_triton.errors import ArtifactUnavailable, SettingsError

# The fetching side records sizes and times of its own.
_NOT_SHARED = frozenset({MANIFEST_NAME})


def write_tar(engine_dir: Path, target: Path) -> str:
    """Write `target` (.tar, or .tar.gz) with the engine's files at its top; returns its SHA-256.

    It appears under its name when it is complete.

    Raises: SettingsError for another suffix; ArtifactUnavailable when it cannot be written.
    """
    mode = check_tar_name(target)
    unfinished = target.with_name(f".{target.name}.{uuid4().hex[:8]}")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with unfinished.open("wb") as file:
            with tarfile.open(fileobj=file, mode=mode, format=tarfile.PAX_FORMAT) as archive:
                for path in _files(engine_dir):
                    name = path.relative_to(engine_dir).as_posix()
                    archive.add(path, arcname=name, recursive=False, filter=_without_owner)
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(target)
    except OSError as err:
        raise ArtifactUnavailable(f"{target} cannot be written ({err})") from err
    finally:
        with contextlib.suppress(OSError):
            unfinished.unlink(missing_ok=True)
    return sha256_of(target)


def check_tar_name(target: Path) -> Literal["w:", "w:gz"]:
    """The mode to write an archive in; SettingsError for a name that is no .tar or .tar.gz."""
    if target.name.endswith((".tar.gz", ".tgz")):
        return "w:gz"
    if target.name.endswith(".tar"):
        return "w:"
    raise SettingsError(f"the archive is called {target.name}, expected .tar or .tar.gz.")


def upload(engine_dir: Path, repo_id: str, *, private: bool) -> str:
    """Upload to a model repository, which is made if it is not there; returns the commit's URL.

    huggingface_hub finds the token by itself (HF_TOKEN, or the file of `hf auth login`).

    Raises: ArtifactUnavailable with the hub's reason.
    """
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError, LocalTokenNotFoundError

    hub = HfApi()
    try:
        hub.create_repo(repo_id, repo_type="model", private=private, exist_ok=True)
        commit = hub.upload_folder(
            repo_id=repo_id,
            folder_path=engine_dir,
            commit_message="TensorRT-LLM engine",
            ignore_patterns=sorted(_NOT_SHARED),
        )
    except (HfHubHTTPError, LocalTokenNotFoundError, httpx.HTTPError, OSError, ValueError) as err:
        raise ArtifactUnavailable(f"{repo_id} could not be uploaded: {err}") from err
    return str(commit.commit_url)


def _files(engine_dir: Path) -> list[Path]:
    return sorted(
        path for path in engine_dir.rglob("*") if path.is_file() and path.name not in _NOT_SHARED
    )


def _without_owner(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = member.mtime = 0
    member.uname = member.gname = ""
    member.mode = 0o644
    return member
