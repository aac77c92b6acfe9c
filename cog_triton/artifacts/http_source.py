"""One file behind a URL: where it is, what it is, and requests for parts of it.

Ranges, validators and conditions are those of RFC 9110, sections 8.8, 13.1.5 and 14.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import httpx

from cog_triton.artifacts.retries import RETRIED_STATUS, TryAgain, retry_after_s
from cog_triton.errors import ArtifactUnavailable

MAX_REDIRECTS = 8
_CONTENT_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+)", re.ASCII)
_REDIRECTS = frozenset((301, 302, 303, 307, 308))
_REFUSED = {
    401: "it needs credentials",
    403: "access is refused; a signed URL may have expired, or the address may need credentials",
    404: "there is no such file",
    410: "the file is gone",
}


class SourceChanged(Exception):
    """The file is another one than at the first request: what was read of it is worth nothing."""


@dataclass(frozen=True)
class Version:
    """What tells one version of a file from another; None where the server does not say."""

    total_bytes: int | None
    etag: str | None
    last_modified: str | None

    @property
    def condition(self) -> str | None:
        """The value for If-Range: a strong entity tag, otherwise the date (RFC 9110 13.1.5)."""
        if self.etag is not None and not self.etag.startswith("W/"):
            return self.etag
        return self.last_modified

    def is_other(self, new: Version) -> bool:
        """Whether anything that both say is different."""
        pairs = (
            (self.total_bytes, new.total_bytes),
            (self.etag, new.etag),
            (self.last_modified, new.last_modified),
        )
        return any(None not in pair and pair[0] != pair[1] for pair in pairs)


class HttpSource:
    """Requests to one URL; any number of threads may use it at once."""

    def __init__(self, client: httpx.Client, url: httpx.URL) -> None:
        self._client = client
        self._url = url
        self._resolved = url  # where redirects led last
        self._has_conditions = True  # whether the server understands If-Range
        self.name = plain_name(url)

    @contextmanager
    def get(
        self, start: int, end: int, expected: Version | None = None
    ) -> Iterator[tuple[httpx.Response, Version]]:
        """A response, unread, and the version it is of: bytes [start, end), or all with status 200.

        Raises: TryAgain; SourceChanged when it is not the `expected` version; ArtifactUnavailable
        when asking again would not help.
        """
        headers = {"Range": f"bytes={start}-{end - 1}", "Accept-Encoding": "identity"}
        if expected is not None and expected.condition is not None and self._has_conditions:
            headers["If-Range"] = expected.condition
        try:
            response = self._send(headers)
            try:
                version = self._checked(response, start, end)
                if expected is not None:
                    self._check_same(expected, version, response.status_code)
                yield response, version
            finally:
                response.close()
        except httpx.TransportError as err:
            raise self._explained(err) from err

    def _check_same(self, expected: Version, version: Version, status: int) -> None:
        if expected.is_other(version):
            raise SourceChanged(f"{self.name} was replaced while it was read")
        if status == httpx.codes.OK:
            # All of the same file: some caches answer so to any condition. The headers of each
            # answer are compared in any case, so the condition is not needed.
            self._has_conditions = False
            raise TryAgain(f"{self.name} sends all in the place of a range")

    def _send(self, headers: dict[str, str]) -> httpx.Response:
        """The response that redirects lead to; the last address is asked first the next time."""
        url = self._resolved
        for _ in range(MAX_REDIRECTS + 1):
            response = self._client.send(
                self._client.build_request("GET", url, headers=headers), stream=True
            )
            if response.status_code not in _REDIRECTS:
                if response.status_code in _REFUSED and self._resolved != self._url:
                    response.close()
                    self._resolved = self._url
                    raise TryAgain(f"{plain_name(url)} no longer answers")
                self._resolved = url
                return response
            response.close()
            url = self._redirected(url, response)
        raise ArtifactUnavailable(f"{self.name} redirects more than {MAX_REDIRECTS} times")

    def _redirected(self, url: httpx.URL, response: httpx.Response) -> httpx.URL:
        try:
            target = url.join(response.headers["Location"])
        except (KeyError, httpx.InvalidURL) as err:
            raise ArtifactUnavailable(f"{self.name} redirects to nowhere") from err
        is_downgrade = url.scheme == "https" and target.scheme == "http"
        if target.scheme not in ("http", "https") or is_downgrade or not target.host:
            raise ArtifactUnavailable(
                f"{self.name} redirects to {plain_name(target)}, which is not followed"
            )
        return target

    def _checked(self, response: httpx.Response, start: int, end: int) -> Version:
        status, headers = response.status_code, response.headers
        if status in RETRIED_STATUS:
            raise TryAgain(
                f"{self.name} answers {status}", retry_after_s(headers.get("Retry-After"))
            )
        if status == httpx.codes.OK:
            length = headers.get("Content-Length", "")
            total_bytes = int(length) if length.isdigit() else None
        elif status == httpx.codes.PARTIAL_CONTENT:
            match = _CONTENT_RANGE.fullmatch(headers.get("Content-Range", ""))
            if match is None:
                raise ArtifactUnavailable(f"{self.name} answers a range without saying which")
            first, last, total_bytes = map(int, match.groups())
            if (first, last + 1) != (start, min(end, total_bytes)):
                raise TryAgain(f"{self.name} answers another range than was asked for")
        elif status == httpx.codes.REQUESTED_RANGE_NOT_SATISFIABLE:
            raise ArtifactUnavailable(f"{self.name} is empty, or shorter than it was")
        else:
            why = _REFUSED.get(status, "that is no file")
            raise ArtifactUnavailable(f"{self.name} answers {status}: {why}")
        return Version(total_bytes, headers.get("ETag"), headers.get("Last-Modified"))

    def _explained(self, err: httpx.TransportError) -> Exception:
        reason = f"{self.name}: {err or type(err).__name__}"
        if isinstance(err, (httpx.UnsupportedProtocol, httpx.ProxyError)):
            return ArtifactUnavailable(reason)
        if "CERTIFICATE_VERIFY_FAILED" in str(err):
            return ArtifactUnavailable(f"{reason}; set SSL_CERT_FILE for a private authority")
        return TryAgain(reason)


def plain_name(url: httpx.URL) -> str:
    """A URL for people and logs: without credentials, and without a query, which may be signed."""
    return str(url.copy_with(username=None, password=None, query=None, fragment=None))


class _PlainUrls(logging.Filter):
    """Has httpx log its requests without the parts of a URL that may be secret."""

    def filter(self, record: logging.LogRecord) -> bool:
        if isinstance(record.args, tuple):
            record.args = tuple(
                plain_name(value) if isinstance(value, httpx.URL) else value
                for value in record.args
            )
        return True


@contextmanager
def plain_request_log() -> Iterator[None]:
    """While the block runs, httpx's log has no queries and no credentials in it."""
    logger, plain = logging.getLogger("httpx"), _PlainUrls()
    logger.addFilter(plain)
    try:
        yield
    finally:
        logger.removeFilter(plain)
