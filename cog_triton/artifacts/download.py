"""Download one file over several connections at once and hand it on in order, as it arrives.

One connection to an object store is limited (Amazon's guide counts 85 to 90 MB/s for a request to
S3), and so is any connection over a long way; several ranges at once are not. Memory is bounded by
`num_buffers` parts: a connection that is ahead waits for the reader. A part whose connection breaks
goes on where it broke, in place, on condition that the file is still the same.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import httpx

from cog_triton.artifacts.download_parts import Parts
from cog_triton.artifacts.http_source import (
    HttpSource,
    SourceChanged,
    Version,
    plain_request_log,
)
from cog_triton.artifacts.options import DownloadOptions, OnProgress
from cog_triton.artifacts.retries import RetryPolicy, TryAgain
from cog_triton.errors import ArtifactUnavailable

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Download:
    """A file that is being downloaded.

    total_bytes  its size, None where the server does not say
    pieces       its contents in order; each piece is valid until the next one is asked for

    Iterating `pieces` raises ArtifactUnavailable, or SourceChanged when all has to be read anew.
    """

    total_bytes: int | None
    pieces: Iterator[memoryview]


@contextmanager
def downloading(
    url: httpx.URL, options: DownloadOptions, on_progress: OnProgress = lambda _, __: None
) -> Iterator[Download]:
    """Start the download of a URL; the end of the block ends it, however far it is.

    Raises: ArtifactUnavailable.
    """
    timeout = httpx.Timeout(options.read_timeout_s, connect=options.connect_timeout_s, pool=None)
    limits = httpx.Limits(max_connections=options.num_connections + 1)
    with (
        plain_request_log(),
        httpx.Client(timeout=timeout, limits=limits) as client,
    ):
        source = HttpSource(client, url)
        has_ranges, version = _first_answer(source, options.retries)
        if has_ranges and version.total_bytes is not None:
            parts = Parts(source, version, options, on_progress)
            try:
                yield Download(version.total_bytes, parts.pieces())
            finally:
                parts.stop()
        else:
            stream = _Stream(source, version, on_progress)
            yield Download(version.total_bytes, stream.pieces())


def _first_answer(source: HttpSource, retries: RetryPolicy) -> tuple[bool, Version]:
    """(whether the server sends ranges, which version of the file it has)."""
    num_failures = 0
    while True:
        try:
            with source.get(0, 1) as (response, version):
                return response.status_code == httpx.codes.PARTIAL_CONTENT, version
        except TryAgain as err:
            num_failures += 1
            if num_failures >= retries.num_attempts:
                raise ArtifactUnavailable(f"{err}, {num_failures} times") from err
            wait_s = retries.wait_s(num_failures, err.wait_s)
            _log.warning("%s; trying again in %.1f s", err, wait_s)
            time.sleep(wait_s)


class _Stream:
    """The file over one connection, from a server that sends no ranges."""

    def __init__(self, source: HttpSource, version: Version, on_progress: OnProgress) -> None:
        self._source = source
        self._version = version
        self._on_progress = on_progress

    def pieces(self) -> Iterator[memoryview]:
        num_received = 0
        try:
            with self._source.get(0, 1 << 62) as (response, version):
                if self._version.is_other(version):
                    raise SourceChanged(f"{self._source.name} was replaced")
                for chunk in response.iter_raw(1 << 20):
                    num_received += len(chunk)
                    self._on_progress(num_received, version.total_bytes)
                    yield memoryview(chunk)
        except TryAgain as err:
            # Nothing can be asked for in the middle: what was read has to be read again.
            raise SourceChanged(f"{err}, and the server cannot go on in the middle") from err
