"""Write the members of an archive below one directory, and nothing anywhere else.

The directory must be new and private: what lies in it is then exactly what was written here. Names
are checked, not repaired: a path or a link that leads out of the directory is an error, as are
device files, which the reader refuses. No file is ever opened through a link. Modes are 0644 or
0755, whatever the archive says, so no file is setuid; owners and times are not taken over.
"""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Callable
from concurrent.futures import Executor
from pathlib import Path, PurePosixPath

from cog_triton.artifacts.tar_reader import Kind, Member
from cog_triton.errors import ArtifactCorrupt, ArtifactUnavailable

MAX_MEMBERS = 100_000
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
_BAD_NAME = (errno.ENAMETOOLONG, errno.EINVAL, errno.EILSEQ)


class TreeWriter:
    """`begin` a member, `write` its data, and so on; `close` at the end, whatever happened.

    `need_space(num_bytes)` raises when the disk has no room; it is asked before each file. Data is
    hashed by `hasher` while it is written: both take about as long.
    """

    def __init__(self, root: Path, need_space: Callable[[int], None], hasher: Executor) -> None:
        self._root = root
        self._hasher = hasher
        self._need_space = need_space
        self._kinds: dict[tuple[str, ...], Kind] = {(): "directory"}
        self._num_members = 0
        self._file: _OpenFile | None = None
        self._sha256: dict[str, str] = {}

    @property
    def sha256(self) -> dict[str, str]:
        """SHA-256 of every file that is complete, by its path below the root."""
        return dict(self._sha256)

    def begin(self, member: Member) -> None:
        """Make a directory or a link, or open a file for the data that follows.

        Raises: ArtifactCorrupt for an entry that is refused; ArtifactUnavailable when the file
        system is.
        """
        self.close()
        self._num_members += 1
        if self._num_members > MAX_MEMBERS:
            raise ArtifactCorrupt(f"the archive has more than {MAX_MEMBERS} entries")
        parts = checked_parts(member.name)
        try:
            self._make(member, parts)
        except OSError as err:
            raise _explained(err, member.name) from err

    def write(self, data: memoryview) -> None:
        """Append to the file that was begun last. Raises: ArtifactUnavailable."""
        if self._file is None:
            raise ArtifactCorrupt("the archive has data that belongs to no file")
        hashed = self._hasher.submit(self._file.digest.update, data)
        try:
            self._file.write(data)
        except OSError as err:
            raise _explained(err, self._file.name) from err
        finally:
            hashed.result()  # `data` belongs to the caller again
        if self._file.missing_bytes == 0:
            self.close()

    def close(self) -> None:
        """Close the current file; call it again as often as you like."""
        file, self._file = self._file, None
        if file is not None:
            file.close()
            if file.missing_bytes == 0:
                self._sha256[file.name] = file.digest.hexdigest()

    def _make(self, member: Member, parts: tuple[str, ...]) -> None:
        if member.kind == "directory":
            self._make_directory(parts, member.name)
            return
        self._make_directory(parts[:-1], member.name)
        self._clear_name(parts, member.name)
        path = self._path(parts)
        if member.kind == "symlink":
            check_link(parts, member.target)
            os.symlink(member.target, path)
        elif member.kind == "hardlink":
            self._make_hardlink(member, path, parts)
        else:
            self._need_space(member.size_bytes)
            name = "/".join(parts)
            self._file = _OpenFile(path, name, member.size_bytes, member.is_executable)
        self._kinds[parts] = "file" if member.kind == "hardlink" else member.kind
        if self._file is not None and member.size_bytes == 0:
            self.close()

    def _make_directory(self, parts: tuple[str, ...], name: str) -> None:
        for depth in range(1, len(parts) + 1):
            above = parts[:depth]
            kind = self._kinds.get(above)
            if kind is None:
                os.mkdir(self._path(above), 0o755)
                self._kinds[above] = "directory"
            elif kind != "directory":
                raise ArtifactCorrupt(f"{name!r} in the archive lies below a {kind}")

    def _clear_name(self, parts: tuple[str, ...], name: str) -> None:
        """A later entry replaces an earlier file or link of its name, as tar does it."""
        kind = self._kinds.get(parts)
        if kind == "directory":
            raise ArtifactCorrupt(f"{name!r} in the archive is also a directory")
        if kind is not None:
            del self._kinds[parts]
            self._sha256.pop("/".join(parts), None)
            os.unlink(self._path(parts))

    def _make_hardlink(self, member: Member, path: Path, parts: tuple[str, ...]) -> None:
        target = checked_parts(member.target)
        if self._kinds.get(target) != "file":
            raise ArtifactCorrupt(
                f"{member.name!r} in the archive is a link to {member.target!r}, which is no file "
                "of the archive before it"
            )
        os.link(self._path(target), path, follow_symlinks=False)
        self._sha256["/".join(parts)] = self._sha256["/".join(target)]

    def _path(self, parts: tuple[str, ...]) -> Path:
        return self._root.joinpath(*parts)


class _OpenFile:
    """A file that is being written, and what is known of its contents."""

    def __init__(self, path: Path, name: str, size_bytes: int, is_executable: bool) -> None:
        self.name = name
        self.missing_bytes = size_bytes
        self.digest = hashlib.sha256()
        self._descriptor = os.open(path, _NEW_FILE, 0o755 if is_executable else 0o644)

    def write(self, data: memoryview) -> None:
        self.missing_bytes -= len(data)
        while data:
            data = data[os.write(self._descriptor, data) :]

    def close(self) -> None:
        os.close(self._descriptor)


def checked_parts(name: str) -> tuple[str, ...]:
    """The components of a path of an archive. Raises: ArtifactCorrupt for one that leads out."""
    parts = PurePosixPath(name).parts
    if not name or name.startswith("/") or ".." in parts or "\0" in name:
        raise ArtifactCorrupt(f"the archive has the name {name!r}, which leads out of it")
    return parts


def check_link(parts: tuple[str, ...], target: str) -> None:
    """Raises: ArtifactCorrupt unless a link at `parts` with this target stays in the tree.

    A target may go up only at its beginning. Where it goes up, it passes real directories (nothing
    is ever put below a link), so the number of levels can be counted; from there on it only goes
    down, through directories and links that stay in the tree as well.
    """
    components = PurePosixPath(target).parts
    num_up = next((i for i, part in enumerate(components) if part != ".."), len(components))
    is_inside = num_up < len(parts) and ".." not in components[num_up:]
    if not target or target.startswith("/") or "\0" in target or not is_inside:
        raise ArtifactCorrupt(
            f"{'/'.join(parts)!r} in the archive is a link to {target!r}, which leads out of it"
        )


def _explained(err: OSError, name: str) -> ArtifactCorrupt | ArtifactUnavailable:
    if err.errno in _BAD_NAME:
        return ArtifactCorrupt(f"the archive has a name that cannot be used: {name[:80]!r}…")
    if err.errno in _NO_ROOM:
        return ArtifactUnavailable(f"the disk is full; {name!r} could not be written")
    return ArtifactUnavailable(f"{name!r} could not be written ({err})")
