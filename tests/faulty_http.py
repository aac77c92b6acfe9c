"""A file server on the loopback that answers ranges, and misbehaves as a test tells it to."""

from __future__ import annotations

import re
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Fault = Callable[["Answer"], None]
"""Answers one request in the place of the good answer."""


class FileServer(ThreadingHTTPServer):
    """Serves `content` at every path; each request takes the next of `faults`, while there are any.

    `requests` holds (path, headers) of all requests so far, `times_s` when they came (monotonic).
    `resume` ends all that hang.
    """

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, content: bytes) -> None:
        super().__init__(("127.0.0.1", 0), Answer)
        self.content = content
        self.etag: str | None = '"v1"'
        self.has_ranges = True
        self.faults: deque[Fault | None] = deque()
        self.every: Fault | None = None
        self.requests: list[tuple[str, dict[str, str]]] = []
        self.times_s: list[float] = []
        self.chunk_bytes = 1 << 20
        self.chunk_delay_s = 0.0
        self.resume = threading.Event()
        self.lock = threading.Lock()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    @property
    def ranges(self) -> list[str | None]:
        """The ranges that were asked for."""
        return [headers.get("range") for _, headers in self.requests]

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients that go away while they read are part of the tests."""


class Answer(BaseHTTPRequestHandler):
    """One connection; also what a fault has in hand."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: FileServer

    def do_GET(self) -> None:
        headers = {name.lower(): value for name, value in self.headers.items()}
        with self.server.lock:
            self.server.requests.append((self.path, headers))
            self.server.times_s.append(time.monotonic())
            fault = self.server.faults.popleft() if self.server.faults else self.server.every
        (fault or Answer.good)(self)

    def good(self) -> None:
        """The range that was asked for, or all, if there are no ranges or the condition fails."""
        start, end = self.wanted()
        self.head(206 if self.is_partial() else 200, end - start, start, end)
        self.body(self.server.content[start:end])

    def is_partial(self) -> bool:
        condition = self.headers.get("If-Range")
        is_current = condition is None or condition == self.server.etag
        return self.server.has_ranges and "Range" in self.headers and is_current

    def wanted(self) -> tuple[int, int]:
        match = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        size = len(self.server.content)
        if match is None or not self.is_partial():
            return 0, size
        return int(match[1]), min(int(match[2]) + 1, size)

    def head(self, status: int, length: int | None, start: int, end: int, **more: str) -> None:
        self.send_response(status)
        if self.server.etag is not None:
            self.send_header("ETag", self.server.etag)
        if length is not None:
            self.send_header("Content-Length", str(length))
        if status == 206:
            size = len(self.server.content)
            self.send_header("Content-Range", f"bytes {start}-{end - 1}/{size}")
        for name, value in more.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()

    def body(self, content: bytes) -> None:
        step = self.server.chunk_bytes
        for at in range(0, len(content), step):
            self.wfile.write(content[at : at + step])
            if self.server.chunk_delay_s:
                time.sleep(self.server.chunk_delay_s)

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing on stderr."""


def status(code: int, **headers: str) -> Fault:
    """An answer without content."""

    def answer(to: Answer) -> None:
        to.head(code, 0, 0, 0, **headers)

    return answer


def drop(num_bytes: int) -> Fault:
    """The right headers, so many bytes, and then the connection is closed."""

    def answer(to: Answer) -> None:
        start, end = to.wanted()
        to.head(206 if to.is_partial() else 200, end - start, start, end)
        to.wfile.write(to.server.content[start:end][:num_bytes])
        to.close_connection = True

    return answer


def hang(to: Answer) -> None:
    """The right headers, one byte, and then nothing."""
    start, end = to.wanted()
    to.head(206 if to.is_partial() else 200, end - start, start, end)
    to.wfile.write(to.server.content[start : start + 1])
    to.server.resume.wait(30)
    to.close_connection = True


def wrong_length(difference: int) -> Fault:
    """A Content-Length that is not that of the range, which is sent whole."""

    def answer(to: Answer) -> None:
        start, end = to.wanted()
        to.head(206, end - start + difference, start, end)
        to.body(to.server.content[start:end])
        to.close_connection = True

    return answer


def other_range(to: Answer) -> None:
    """Another range than was asked for, told as such."""
    start, end = to.wanted()
    to.head(206, end - start, start + 1, end + 1)
    to.body(to.server.content[start + 1 : end + 1])
    to.close_connection = True


def unconditional(to: Answer) -> None:
    """All of the file for a range on condition, as some caches do it."""
    if "If-Range" in to.headers:
        to.head(200, len(to.server.content), 0, 0)
        to.body(to.server.content)
    else:
        to.good()


def without_length(to: Answer) -> None:
    """All of the file, until the connection is closed; nobody knows how long it is."""
    to.close_connection = True
    to.head(200, None, 0, 0, Connection="close")
    to.body(to.server.content)


def replaced_by(content: bytes, etag: str) -> Fault:
    """From this request on there is another file."""

    def answer(to: Answer) -> None:
        to.server.content, to.server.etag = content, etag
        to.good()

    return answer


def redirect(location: str, code: int = 302) -> Fault:
    return status(code, Location=location)


@contextmanager
def serving(content: bytes) -> Iterator[FileServer]:
    """A `FileServer` that runs while the block does."""
    with FileServer(content) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield server
        finally:
            server.resume.set()
            server.shutdown()
            thread.join()
