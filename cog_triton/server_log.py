"""What the Triton server prints: kept in a file, its end in memory, its reasons apart.

The server's output has to be read all the time: one that fills its pipe stands
still. The file is bounded, and a full disk stops the file, not the server.
"""

from __future__ import annotations

import errno
import os
import re
from collections import deque
from pathlib import Path
from typing import BinaryIO

_NUM_TAIL_LINES = 200
_NUM_REASONS = 8
_MAX_LINE_BYTES = 2000
_MAX_FILE_BYTES = 64 << 20

# The lines that say why a server did not start: Triton's own error records (`E1120 …]`),
# its last words, what the C++ runtime prints when a process aborts, and our launcher's.
_REASON = re.compile(
    r"E\d{4} .*\] .*(?:failed to load '|failed to start|Poll failed)"
    r"|error: creating server"
    r"|\[libprotobuf ERROR"
    r"|terminate called|\s+what\(\):"
    r"|.*error while loading shared libraries"
    r"|E\d{4} [A-Z]\w+: "
)


class ServerLog:
    """Takes the output of one server in pieces of any size.

    The file is new (the one before is kept as `<name>.1`), readable by this user only,
    and starts again at 64 MiB. `feed` is for one thread; the rest may be called from any.
    """

    def __init__(self, path: Path, max_file_bytes: int = _MAX_FILE_BYTES) -> None:
        self.path = path
        self._max_file_bytes = max_file_bytes
        self._tail: deque[str] = deque(maxlen=_NUM_TAIL_LINES)
        self._reasons: deque[str] = deque(maxlen=_NUM_REASONS)
        self._unfinished = b""
        self._num_file_bytes = 0
        self._file: BinaryIO | None = None
        try:
            self._file = self._open()
        except OSError as err:
            if err.errno != errno.ENOSPC:
                raise
            self._tail.append(f"({self.path.name} cannot be made: {err})")

    def feed(self, data: bytes) -> None:
        """Adds output; never raises for the sake of the file."""
        self._write(data)
        *lines, rest = (self._unfinished + data).split(b"\n")
        for line in lines:
            self._add(line)
        # The end of an endless line is dropped, not kept until memory ends.
        self._unfinished = rest[:_MAX_LINE_BYTES]

    def close(self) -> None:
        """Ends the last line and closes the file."""
        if self._unfinished:
            self._add(self._unfinished)
            self._unfinished = b""
        if self._file is not None:
            self._file.close()
            self._file = None

    def tail(self) -> list[str]:
        """The last lines, at most 200, long ones cut."""
        return list(self._tail.copy())

    def summary(self, num_lines: int = 20) -> str:
        """For an error message: the lines that look like the reason, then the last ones.

        Triton's tables of options are left out.
        """
        reasons = list(dict.fromkeys(self._reasons.copy()))
        last = [line[:300] for line in self.tail() if line and not line.startswith(("|", "+-"))]
        last = last[-num_lines:]
        parts = [line.replace("\\n", "\n") for line in reasons]
        if last:
            parts += [f"Last lines of {self.path}:", *last]
        return "\n".join(parts) or f"{self.path} is empty"

    def _add(self, line: bytes) -> None:
        text = line[:_MAX_LINE_BYTES].decode("utf-8", "replace").rstrip("\r")
        self._tail.append(text)
        if _REASON.match(text):
            self._reasons.append(text)

    def _write(self, data: bytes) -> None:
        if self._file is None:
            return
        try:
            if self._num_file_bytes + len(data) > self._max_file_bytes:
                self._file.close()
                self._file = self._open()
            self._file.write(data)
            self._num_file_bytes += len(data)
        except OSError as err:
            self._tail.append(f"({self.path.name} ends here: {err})")
            if self._file is not None:
                self._file.close()
            self._file = None

    def _open(self) -> BinaryIO:
        if self.path.exists():
            os.replace(self.path, self.path.with_name(f"{self.path.name}.1"))
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND
        self._num_file_bytes = 0
        return open(os.open(self.path, flags, 0o600), "wb", buffering=0)
