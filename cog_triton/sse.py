"""A decoder of server-sent events: bytes in, `data` payloads out; it never touches a socket.

Protocol: WHATWG HTML, "Server-sent events", section 9.2.6. Only `data` matters to Triton's
generate_stream; other fields and comments are read and dropped.
"""

from __future__ import annotations


class SSEDecoder:
    """Collects the data of events; how the bytes are cut never changes what comes out."""

    def __init__(self) -> None:
        self._partial = b""
        self._data: list[bytes] = []
        self._skip_line_feed = False
        self._at_start = True

    def feed(self, chunk: bytes) -> list[bytes]:
        """The payloads of the events that `chunk` completes, oldest first."""
        if self._skip_line_feed and chunk:
            # A CR ended the last line at the end of a chunk: an LF belongs to it.
            chunk = chunk.removeprefix(b"\n")
            self._skip_line_feed = False
        self._skip_line_feed = chunk.endswith(b"\r")
        lines = (self._partial + chunk).replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
        self._partial = lines.pop()
        events: list[bytes] = []
        for line in lines:
            self._read_line(line, events)
        return events

    @property
    def incomplete(self) -> bool:
        """Whether bytes of an unfinished event are held; they are not an event at the end."""
        return bool(self._partial or self._data)

    def _read_line(self, line: bytes, events: list[bytes]) -> None:
        if self._at_start:
            line = line.removeprefix(b"\xef\xbb\xbf")
            self._at_start = False
        if not line:
            if self._data:
                events.append(b"\n".join(self._data))
                self._data = []
            return
        name, _, value = line.partition(b":")
        if name == b"data":
            self._data.append(value.removeprefix(b" "))
