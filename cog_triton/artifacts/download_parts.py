"""Fetch the parts of a file with several threads, into a bounded number of buffers."""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import httpx

from cog_triton.artifacts.http_source import HttpSource, Version
from cog_triton.artifacts.options import DownloadOptions, OnProgress
from cog_triton.artifacts.retries import Gate, TryAgain
from cog_triton.errors import ArtifactUnavailable

_TICK_S = 0.2
_log = logging.getLogger(__name__)


class Parts:
    """The file as parts, which threads fetch while it is read in order.

    `pieces` starts them and gives the parts, each valid until the next one is asked for; `stop`
    must be called at the end, whatever happened.
    """

    def __init__(
        self,
        source: HttpSource,
        version: Version,
        options: DownloadOptions,
        on_progress: OnProgress,
    ) -> None:
        assert version.total_bytes is not None
        self._source, self._version, self._options = source, version, options
        self._on_progress = on_progress
        self._total_bytes = version.total_bytes
        self._num_parts = -(-self._total_bytes // options.part_bytes)
        self._gate = Gate()
        self._changed = threading.Condition()  # guards everything below
        self._num_free = options.num_buffers
        self._free: list[bytearray] = []
        self._ready: dict[int, bytearray] = {}
        self._next_part = 0
        self._error: BaseException | None = None
        self._sockets: set[socket.socket] = set()
        self._num_received = 0
        self._threads = [
            threading.Thread(target=self._work, name=f"download-{i}", daemon=True)
            for i in range(min(options.num_connections, self._num_parts))
        ]

    def pieces(self) -> Iterator[memoryview]:
        for thread in self._threads:
            thread.start()
        for part in range(self._num_parts):
            buffer = self._wait_for(part)
            yield memoryview(buffer)[: self._size(part)]
            with self._changed:
                self._free.append(buffer)
                self._num_free += 1
                self._changed.notify_all()

    def stop(self) -> None:
        """End all threads; those that wait for a server are woken up."""
        self._gate.shut()
        with self._changed:
            self._changed.notify_all()
            for connection in self._sockets:
                with suppress(OSError):  # it has been closed already
                    connection.shutdown(socket.SHUT_RDWR)
        deadline_s = time.monotonic() + 2.0
        for thread in self._threads:
            if thread.ident is not None:
                thread.join(max(0.0, deadline_s - time.monotonic()))

    def _size(self, part: int) -> int:
        start = part * self._options.part_bytes
        return min(self._options.part_bytes, self._total_bytes - start)

    def _wait_for(self, part: int) -> bytearray:
        while True:
            self._on_progress(self._num_received, self._total_bytes)
            with self._changed:
                if part in self._ready:
                    return self._ready.pop(part)
                if self._error is not None:
                    raise self._error
                if self._gate.is_shut:
                    raise ArtifactUnavailable(f"the download of {self._source.name} was ended")
                self._changed.wait(_TICK_S)

    def _work(self) -> None:
        try:
            while (claimed := self._claim()) is not None:
                index, buffer = claimed
                start = index * self._options.part_bytes
                self._fetch(_Part(start, memoryview(buffer)[: self._size(index)]))
                with self._changed:
                    self._ready[index] = buffer
                    self._changed.notify_all()
        except _Stopped:
            pass
        except BaseException as err:
            with self._changed:
                self._error = self._error or err
                self._changed.notify_all()

    def _claim(self) -> tuple[int, bytearray] | None:
        """The next part and a buffer for it; None when there is no more to do.

        Whoever has a buffer takes the lowest part that is left, so the reader never waits for a
        part that waits for a buffer.
        """
        with self._changed:
            while self._num_free == 0 and self._next_part < self._num_parts:
                if self._gate.is_shut:
                    return None
                self._changed.wait()
            if self._gate.is_shut or self._error or self._next_part >= self._num_parts:
                return None
            self._num_free -= 1
            part, self._next_part = self._next_part, self._next_part + 1
            return part, self._free.pop() if self._free else bytearray(self._options.part_bytes)

    def _fetch(self, part: _Part) -> None:
        """Fill a part, over as many connections as it takes."""
        num_failures, wait_s = 0, 0.0
        while part.missing_bytes:
            if not self._gate.wait(wait_s):
                raise _Stopped
            before = part.missing_bytes
            try:
                self._read(part)
            except TryAgain as err:
                num_failures = 1 if part.missing_bytes < before else num_failures + 1
                if num_failures >= self._options.retries.num_attempts:
                    raise ArtifactUnavailable(f"{err}, {num_failures} times in a row") from err
                wait_s = self._options.retries.wait_s(num_failures, err.wait_s)
                _log.info("%s; byte %d is asked for again in %.1f s", err, part.at, wait_s)
                if err.wait_s is not None:  # what one connection is told is meant for all
                    self._gate.hold(wait_s)

    def _read(self, part: _Part) -> None:
        """One request for what is missing of a part. Raises: TryAgain unless it is whole."""
        with (
            self._source.get(part.at, part.end, self._version) as (response, _),
            self._interruptible(response),
        ):
            for chunk in response.iter_raw():
                if self._gate.is_shut:
                    raise _Stopped
                if len(chunk) > part.missing_bytes:
                    raise TryAgain(f"{self._source.name} sends more than was asked for")
                part.append(chunk)
                with self._changed:
                    self._num_received += len(chunk)
        if part.missing_bytes:
            raise TryAgain(f"{self._source.name} ends in the middle of a part")

    @contextmanager
    def _interruptible(self, response: httpx.Response) -> Iterator[None]:
        """Have `stop` end a read from this response."""
        connection = response.extensions["network_stream"].get_extra_info("socket")
        with self._changed:
            self._sockets.add(connection)
        try:
            yield
        finally:
            with self._changed:
                self._sockets.discard(connection)


class _Part:
    """A part of the file that is being filled: there up to `at`, wanted up to `end`."""

    def __init__(self, start: int, buffer: memoryview) -> None:
        self._buffer = buffer
        self._start = start
        self.at = start
        self.end = start + len(buffer)

    @property
    def missing_bytes(self) -> int:
        return self.end - self.at

    def append(self, chunk: bytes) -> None:
        offset = self.at - self._start
        self._buffer[offset : offset + len(chunk)] = chunk
        self.at += len(chunk)


class _Stopped(Exception):
    """The download is over before this thread is."""
