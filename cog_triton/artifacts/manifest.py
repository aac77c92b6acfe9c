"""The manifest of a published model directory: the proof that every file of it is there, whole.

It is the last file written before the directory gets its name. A later start compares names, sizes
and times, which costs microseconds; contents are hashed again only when a time has changed.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from cog_triton.errors import ArtifactCorrupt

MANIFEST_NAME = "cog_triton_manifest.json"
LAYOUT = 1  # raised when the derived files change their form: older directories are derived again
_CHUNK_BYTES = 1 << 20
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Recipe:
    """What a directory was made from; two equal recipes give the same directory.

    `source` names the origin exactly (with its hash where there is one). `prepared` maps a program
    that files were written for to its version, for example {"openvino-genai": "2026.4.1.0"}.
    """

    source: str
    prepared: Mapping[str, str] = field(default_factory=dict)
    layout: int = LAYOUT

    def is_met_by(self, other: Recipe) -> bool:
        """Whether a directory of recipe `other` has all that this recipe asks for."""
        return (
            self.source == other.source
            and self.layout == other.layout
            and all(other.prepared.get(name) == v for name, v in self.prepared.items())
        )


@dataclass(frozen=True)
class FileRecord:
    """One file: size, time of its last change, and content hash.

    `sha256` is None for a file that is only linked from elsewhere: for such a file a changed time
    counts as a change.
    """

    size_bytes: int
    mtime_ns: int
    sha256: str | None

    def has_time(self, mtime_ns: int) -> bool:
        """Whether a time is the recorded one, as it was or cut to seconds as image layers do."""
        return mtime_ns in (self.mtime_ns, self.mtime_ns - self.mtime_ns % 1_000_000_000)


@dataclass(frozen=True)
class Manifest:
    """All files of one directory and the recipe they were made by.

    `origin` says what the source was found to be when it was fetched, for example the commit that
    a branch stood at: {"commit": "…"}.
    """

    recipe: Recipe
    files: Mapping[str, FileRecord]
    origin: Mapping[str, str] = field(default_factory=dict)

    @staticmethod
    def of(
        directory: Path,
        recipe: Recipe,
        known_sha256: Mapping[str, str],
        origin: Mapping[str, str] | None = None,
    ) -> Manifest:
        """Record every file below `directory`; hashes that are known already are not computed."""
        files: dict[str, FileRecord] = {}
        for path in sorted(directory.rglob("*")):
            name = path.relative_to(directory).as_posix()
            if not path.is_file() or name == MANIFEST_NAME:
                continue
            stat = path.stat()
            sha256 = None if path.is_symlink() else known_sha256.get(name) or sha256_of(path)
            files[name] = FileRecord(stat.st_size, stat.st_mtime_ns, sha256)
        return Manifest(recipe, files, origin or {})

    @staticmethod
    def read(directory: Path) -> Manifest | None:
        """The manifest of a directory, None where there is none.

        Raises: ArtifactCorrupt when the manifest cannot be read.
        """
        path = directory / MANIFEST_NAME
        try:
            data: dict[str, Any] = json.loads(path.read_bytes())
            files = {name: FileRecord(**record) for name, record in data["files"].items()}
            return Manifest(Recipe(**data["recipe"]), files, dict(data.get("origin", {})))
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as err:
            raise ArtifactCorrupt(f"{path} cannot be read ({err})") from err

    def write(self, directory: Path) -> None:
        """Write it, last of all files, in one piece."""
        unfinished = directory / f".{MANIFEST_NAME}.{os.getpid()}"
        unfinished.write_text(json.dumps(asdict(self), indent=1) + "\n", encoding="utf-8")
        unfinished.replace(directory / MANIFEST_NAME)

    def verify(self, directory: Path) -> None:
        """Check every file of the directory.

        Copying a directory changes times but not contents: such files are hashed, and the times
        are recorded anew where the directory can be written.

        Raises: ArtifactCorrupt naming the first file that is missing or different.
        """
        files = {name: _checked(directory / name, record) for name, record in self.files.items()}
        if files == self.files:
            return
        try:
            replace(self, files=files).write(directory)
        except OSError as err:
            _log.info("the times of %s are checked again at the next start: %s", directory, err)


def sha256_of(path: Path) -> str:
    """SHA-256 of a file's contents, in hexadecimal."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def _checked(path: Path, record: FileRecord) -> FileRecord:
    try:
        stat = path.stat()
        if stat.st_size != record.size_bytes:
            raise ArtifactCorrupt(
                f"{path} has {stat.st_size} bytes, {record.size_bytes} were written"
            )
        if record.has_time(stat.st_mtime_ns):
            return record
        if record.sha256 is None or sha256_of(path) != record.sha256:
            raise ArtifactCorrupt(f"{path} was changed since it was written")
    except OSError as err:
        raise ArtifactCorrupt(f"{path} is missing or cannot be read ({err})") from err
    return FileRecord(stat.st_size, stat.st_mtime_ns, record.sha256)
