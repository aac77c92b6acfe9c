"""The engine manifest: what an engine was built from, with and for; it travels with the engine.

An engine's own config.json does not say which GPU it was compiled for, which model it holds, or
what its files are: `cog_triton_engine.json` beside it does, in an archive and on a hub too.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from cog_triton.artifacts.manifest import sha256_of
from cog_triton.errors import ArtifactCorrupt

ENGINE_MANIFEST_NAME = "cog_triton_engine.json"
FORMAT = 1


@dataclass(frozen=True)
class EngineManifest:
    """Everything known at build time.

    model               as the settings named it
    model_identity      its revision or digests, as `fingerprint.model_identity` gives them
    origin              what its source was found to be, such as {"commit": "…"}
    versions            of tensorrt_llm and tensorrt
    gpu                 name, compute_capability, memory_bytes and driver_version at the build
    commands            the argument lists that were run, or the constructor call, in order
    fingerprint         SHA-256 over all that matters for the result
    built_at            UTC, ISO 8601
    files               size_bytes and sha256 of each file of the engine directory
    """

    model: str
    model_identity: str
    versions: Mapping[str, str | None]
    gpu: Mapping[str, Any]
    commands: list[list[str]]
    fingerprint: str
    built_at: str
    origin: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    format: int = FORMAT

    def write(self, directory: Path) -> dict[str, str]:
        """Record the files of `directory` and write it there; returns SHA-256 by file name."""
        files = {
            path.relative_to(directory).as_posix(): {
                "size_bytes": path.stat().st_size,
                "sha256": sha256_of(path),
            }
            for path in sorted(directory.rglob("*"))
            if path.is_file() and path.name != ENGINE_MANIFEST_NAME
        }
        text = json.dumps({**asdict(self), "files": files}, indent=1) + "\n"
        (directory / ENGINE_MANIFEST_NAME).write_text(text, encoding="utf-8")
        return {name: str(record["sha256"]) for name, record in files.items()}

    @staticmethod
    def read(directory: Path) -> EngineManifest | None:
        """The manifest of an engine directory, None where there is none.

        Raises: ArtifactCorrupt when it cannot be read.
        """
        path = directory / ENGINE_MANIFEST_NAME
        try:
            data = json.loads(path.read_bytes())
            if data["format"] != FORMAT:
                raise ValueError(f"format {data['format']}, this release reads {FORMAT}")
            return EngineManifest(**data)
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError, KeyError) as err:
            raise ArtifactCorrupt(f"{path} cannot be read ({err})") from err

    def changed_files(self, directory: Path, known_sha256: Mapping[str, str | None]) -> list[str]:
        """A line for each file that is not as it was built: missing, or another size or digest.

        Digests are compared where `known_sha256` has one (an artifact manifest proves them by
        time of change); a whole engine is not hashed again at each start.
        """
        lines = []
        for name, record in self.files.items():
            path, size_bytes = directory / name, record["size_bytes"]
            known = known_sha256.get(name)
            if not path.is_file():
                lines.append(f"{name}: missing, {size_bytes} bytes were built")
            elif path.stat().st_size != size_bytes:
                lines.append(f"{name}: {path.stat().st_size} bytes, {size_bytes} were built")
            elif known and known != record["sha256"]:
                lines.append(f"{name}: SHA-256 {known[:12]}…, {record['sha256'][:12]}… was built")
        return lines
