"""Read a tar archive from pieces as they arrive: a pure state machine without a file or a socket.

Format: POSIX.1-1988 ustar, POSIX.1-2001 pax headers and GNU long names, as in pax(1), "ustar
Interchange Format" and "pax Header Block", and GNU tar's manual, "Basic Tar Format". One header
block is decoded by Python's tarfile; its streaming mode is not used, as it copies all data twice
and takes headers of any size into memory.
"""

from __future__ import annotations

import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from cog_triton.errors import ArtifactCorrupt

BLOCK_BYTES = 512
_LARGEST_HEADER_BYTES = 1 << 20
_LARGEST_FILE_BYTES = 1 << 50
_ZERO_BLOCK = bytes(BLOCK_BYTES)
_PAX_TYPES = (tarfile.XHDTYPE, tarfile.SOLARIS_XHDTYPE)
_GNU_NAME_TYPES = {tarfile.GNUTYPE_LONGNAME: "path", tarfile.GNUTYPE_LONGLINK: "linkpath"}
_EXECUTABLE = 0o100

Kind = Literal["file", "directory", "symlink", "hardlink"]
_KINDS: dict[bytes, Kind] = {
    tarfile.REGTYPE: "file",
    tarfile.AREGTYPE: "file",
    tarfile.CONTTYPE: "file",
    tarfile.DIRTYPE: "directory",
    tarfile.SYMTYPE: "symlink",
    tarfile.LNKTYPE: "hardlink",
}
_REFUSED_KINDS = {
    tarfile.CHRTYPE: "a device",
    tarfile.BLKTYPE: "a device",
    tarfile.FIFOTYPE: "a named pipe",
    tarfile.GNUTYPE_SPARSE: "a sparse file; make the archive without --sparse",
}


@dataclass(frozen=True)
class Member:
    """One entry of an archive as its headers have it; `name` and `target` are not checked.

    `size_bytes` is 0 unless it is a file; `target` is what a link names, "" otherwise.
    """

    name: str
    kind: Kind
    size_bytes: int = 0
    target: str = ""
    is_executable: bool = False


class TarReader:
    """Feed it an archive in pieces of any length; it gives members and the data of the files."""

    def __init__(self) -> None:
        self._block = bytearray()  # what there is of a header block, or of a long header
        self._wanted_bytes = BLOCK_BYTES
        self._data_bytes = 0  # that the current file still has to get
        self._padding_bytes = 0  # to skip until the next header
        self._long_header: bytes | None = None  # type of the long header that is being read
        self._next: dict[str, str] = {}  # what long headers say of the next member
        self._all: dict[str, str] = {}  # what global headers say of all members
        self._has_ended = False

    def feed(self, piece: memoryview) -> Iterator[Member | memoryview]:
        """Members, each followed by its data as parts of `piece`, which are not copied.

        Must be iterated to the end. Raises: ArtifactCorrupt.
        """
        at, end = 0, len(piece)
        while at < end and not self._has_ended:
            if self._data_bytes:
                step = min(self._data_bytes, end - at)
                self._data_bytes -= step
                yield piece[at : at + step]
            elif self._padding_bytes:
                step = min(self._padding_bytes, end - at)
                self._padding_bytes -= step
            else:
                step = min(self._wanted_bytes - len(self._block), end - at)
                self._block += piece[at : at + step]
                if len(self._block) == self._wanted_bytes:
                    member = self._take_header()
                    if member is not None:
                        yield member
            at += step

    def finish(self) -> None:
        """Raises: ArtifactCorrupt unless the mark that ends an archive was read."""
        if not self._has_ended:
            raise ArtifactCorrupt("the tar archive is cut off: it has no end mark")

    def _take_header(self) -> Member | None:
        content = bytes(self._block)
        self._block.clear()
        self._wanted_bytes = BLOCK_BYTES
        if self._long_header is not None:
            self._take_long_header(content)
            return None
        if content == _ZERO_BLOCK:
            self._has_ended = True
            return None
        info = _decoded(content)
        if info.type in (*_PAX_TYPES, tarfile.XGLTYPE, *_GNU_NAME_TYPES):
            if not 0 < info.size <= _LARGEST_HEADER_BYTES:
                raise ArtifactCorrupt(f"the tar archive has a header of {info.size} bytes")
            self._long_header, self._wanted_bytes = info.type, info.size
            return None
        return self._member(info)

    def _take_long_header(self, content: bytes) -> None:
        kind, self._long_header = self._long_header, None
        self._padding_bytes = -len(content) % BLOCK_BYTES
        if kind in _GNU_NAME_TYPES:
            self._next[_GNU_NAME_TYPES[kind]] = _text(content.partition(b"\0")[0])
        elif kind == tarfile.XGLTYPE:
            self._all.update(_pax_records(content))
        else:
            self._next.update(_pax_records(content))

    def _member(self, info: tarfile.TarInfo) -> Member:
        said = {**self._all, **self._next}
        self._next = {}
        name = said.get("path", info.name)
        kind = _KINDS.get(info.type)
        if kind is None or any(key.startswith("GNU.sparse") for key in said):
            what = _REFUSED_KINDS.get(info.type, "an entry of a kind that is not supported")
            raise ArtifactCorrupt(f"{name!r} in the tar archive is {what}")
        size_bytes = _size(said["size"]) if "size" in said else info.size
        if kind != "file":
            size_bytes = 0  # as GNU tar and Python read it: no data follows
        if not 0 <= size_bytes <= _LARGEST_FILE_BYTES:
            raise ArtifactCorrupt(f"{name!r} in the tar archive has a size of {size_bytes} bytes")
        self._data_bytes, self._padding_bytes = size_bytes, -size_bytes % BLOCK_BYTES
        target = said.get("linkpath", info.linkname) if kind.endswith("link") else ""
        return Member(name, kind, size_bytes, target, bool(info.mode & _EXECUTABLE))


def _decoded(block: bytes) -> tarfile.TarInfo:
    try:
        return tarfile.TarInfo.frombuf(block, "utf-8", "strict")
    except (tarfile.TarError, ValueError, OverflowError) as err:
        raise ArtifactCorrupt(f"the tar archive has a damaged header ({err})") from err


def _pax_records(content: bytes) -> dict[str, str]:
    """The records `<length> <keyword>=<value>\\n` of a pax header, the length in bytes."""
    records: dict[str, str] = {}
    while content:
        length, _, _ = content[:20].partition(b" ")
        end = int(length) if length.isdigit() else 0
        is_whole = end <= len(content)
        record, content = content[len(length) + 1 : end], content[end:]
        keyword, equals, value = record.partition(b"=")
        if not (is_whole and equals and value.endswith(b"\n")):
            raise ArtifactCorrupt("the tar archive has a damaged pax header")
        if keyword in (b"path", b"linkpath", b"size") or keyword.startswith(b"GNU.sparse"):
            records[_text(keyword)] = _text(value[:-1])
    return records


def _size(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 20):
        raise ArtifactCorrupt(f"the tar archive has a size of {text[:40]!r}")
    return int(text)


def _text(content: bytes) -> str:
    try:
        return content.decode()
    except UnicodeDecodeError as err:
        raise ArtifactCorrupt("the tar archive has a name that is not UTF-8") from err
