"""Unpack an archive while it arrives: tar as it is, with gzip, or with Zstandard."""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from itertools import chain
from pathlib import Path
from typing import Any, Literal

import zstandard

from cog_triton.artifacts.tar_reader import BLOCK_BYTES, Member, TarReader
from cog_triton.artifacts.tree_writer import TreeWriter, check_link
from cog_triton.errors import ArtifactCorrupt

Form = Literal["tar", "gzip", "zstd", "gguf"]
SNIFF_BYTES = BLOCK_BYTES
_PIECE_BYTES = 1 << 20
# Magic numbers: RFC 1952 2.3.1, RFC 8878 3.1.1, GGUF specification, ustar at its offset in POSIX.
_MAGIC: dict[bytes, Form] = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd", b"GGUF": "gguf"}
_TAR_MAGIC_AT = 257
_OTHERS = {b"PK\x03\x04": "a zip file", b"\xfd7zXZ": "an xz file", b"BZh": "a bzip2 file"}


def find_form(start: bytes) -> Form:
    """What a file is by its first SNIFF_BYTES; raises ArtifactCorrupt for what is not supported."""
    for magic, form in _MAGIC.items():
        if start.startswith(magic):
            return form
    # Without the magic it may still be a tar of before 1988, whose header the reader will check.
    if start[_TAR_MAGIC_AT:].startswith(b"ustar") or start.endswith(bytes(BLOCK_BYTES // 2)):
        return "tar"
    for magic, name in _OTHERS.items():
        if start.startswith(magic):
            raise ArtifactCorrupt(f"it is {name}; tar, tar.gz, tar.zst and gguf are supported")
    text = start[:60].decode("utf-8", "replace").strip()
    raise ArtifactCorrupt(f"it is neither a tar (plain, gzip, zstd) nor a GGUF: {text!r}")


def peek(pieces: Iterator[memoryview]) -> tuple[bytes, Iterator[memoryview]]:
    """(the first SNIFF_BYTES, or all there is; the same pieces, from the start)."""
    start, seen = b"", []
    for piece in pieces:
        seen.append(bytes(piece[:SNIFF_BYTES]))
        start += seen[-1]
        if len(start) >= SNIFF_BYTES:
            rest = piece[SNIFF_BYTES:]
            return start[:SNIFF_BYTES], chain((memoryview(s) for s in seen), (rest,), pieces)
    return start, (memoryview(s) for s in seen)


def unpack(
    pieces: Iterator[memoryview], root: Path, need_space: Callable[[int], None]
) -> dict[str, str]:
    """Unpack a tar below the new directory `root`; SHA-256 of the files by path.

    `pieces` is read to its end, even behind the end mark of the archive. One top-level directory
    that holds everything is left out.

    Raises: ArtifactCorrupt when it is no archive, damaged, cut off, or has an entry that is
    refused; ArtifactUnavailable when the file system is; and whatever `pieces` raises.
    """
    start, pieces = peek(pieces)
    reader = TarReader()
    with ThreadPoolExecutor(1) as hasher, closing(TreeWriter(root, need_space, hasher)) as writer:
        for piece in _decompressed(find_form(start), pieces):
            for event in reader.feed(piece):
                if isinstance(event, Member):
                    writer.begin(event)
                else:
                    writer.write(event)
    for _ in pieces:  # what follows the end mark belongs to the file and to its hash
        pass
    reader.finish()
    return _without_top_directory(root, writer.sha256)


def _decompressed(form: Form, pieces: Iterator[memoryview]) -> Iterator[memoryview]:
    if form == "tar":
        yield from pieces
        return
    source: Any = io.BufferedReader(_PieceFile(pieces), _PIECE_BYTES // 4)
    try:
        with _opened(form, source) as plain:
            while content := plain.read(_PIECE_BYTES):
                yield memoryview(content)
    except (gzip.BadGzipFile, zlib.error, EOFError, zstandard.ZstdError) as err:
        raise ArtifactCorrupt(f"the compressed data is damaged or cut off ({err})") from err


def _opened(form: Form, source: Any) -> Any:
    if form == "gzip":
        return gzip.GzipFile(fileobj=source)
    if form == "zstd":
        # Bounded, so that a hostile frame cannot ask for gigabytes; `zstd --long` needs 2^27.
        decompressor = zstandard.ZstdDecompressor(max_window_size=1 << 27)
        return decompressor.stream_reader(source, read_across_frames=True, closefd=False)
    raise ArtifactCorrupt("it is not an archive")


class _PieceFile(io.RawIOBase):
    """Pieces as a file that can only be read forward."""

    def __init__(self, pieces: Iterable[memoryview]) -> None:
        self._pieces = iter(pieces)
        self._rest = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._rest:
            piece = next(self._pieces, None)
            if piece is None:
                return 0
            self._rest = piece
        target = memoryview(buffer)
        step = min(len(target), len(self._rest))
        target[:step] = self._rest[:step]
        self._rest = self._rest[step:]
        return step


def _without_top_directory(root: Path, sha256: dict[str, str]) -> dict[str, str]:
    """Lift everything out of directories that hold nothing beside one directory."""
    while True:
        entries = list(root.iterdir())
        if len(entries) != 1 or entries[0].is_symlink() or not entries[0].is_dir():
            return sha256
        # The name must be free for what comes out of it, which may be called the same.
        top = entries[0].rename(root.with_name(f"{root.name}.top"))
        for path in top.iterdir():
            path.rename(root / path.name)
        top.rmdir()
        sha256 = {name.partition("/")[2]: value for name, value in sha256.items()}
        for path in root.rglob("*"):
            if path.is_symlink():
                check_link(path.relative_to(root).parts, str(path.readlink()))
