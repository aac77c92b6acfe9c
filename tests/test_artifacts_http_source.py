"""Tests of cog_triton.artifacts.http_source that need no server, and of retries."""

from __future__ import annotations

import threading
from collections.abc import Callable
from email.utils import formatdate

import httpx
import pytest

from cog_triton.artifacts.http_source import HttpSource, Version, plain_name
from cog_triton.artifacts.retries import Gate, RetryPolicy, TryAgain, retry_after_s
from cog_triton.errors import ArtifactUnavailable

URL = httpx.URL("https://example.com/a.tar")


def source(answer: Callable[[httpx.Request], httpx.Response]) -> HttpSource:
    return HttpSource(httpx.Client(transport=httpx.MockTransport(answer)), URL)


def test_https_is_not_left_for_http() -> None:
    """A redirect to plain http is refused, as the user asked for https."""

    def answer(request: httpx.Request) -> httpx.Response:
        assert request.url.scheme == "https"
        return httpx.Response(302, headers={"Location": "http://example.com/a.tar"})

    with pytest.raises(ArtifactUnavailable, match="not followed"), source(answer).get(0, 1):
        pass


def test_a_certificate_that_cannot_be_verified_is_not_tried_again() -> None:
    """The error says what helps."""

    def answer(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("[SSL: CERTIFICATE_VERIFY_FAILED]", request=request)

    with pytest.raises(ArtifactUnavailable, match="SSL_CERT_FILE"), source(answer).get(0, 1):
        pass


@pytest.mark.parametrize("headers", [{}, {"Content-Range": "bytes */5"}])
def test_a_part_that_does_not_say_which(headers: dict[str, str]) -> None:
    """A 206 without a usable Content-Range is no file that can be read."""
    with (
        pytest.raises(ArtifactUnavailable, match="without saying"),
        source(lambda _: httpx.Response(206, headers=headers)).get(0, 1),
    ):
        pass


def test_a_connection_that_breaks_may_be_tried_again() -> None:
    """What httpx raises, also while the body is read, comes as one exception."""
    found = source(lambda _: httpx.Response(200, headers={"Content-Length": "5"}))
    with pytest.raises(TryAgain), found.get(0, 5):
        raise httpx.ReadError("reset by peer")


@pytest.mark.parametrize(
    ("version", "condition"),
    [
        (Version(1, '"a"', "Mon"), '"a"'),
        (Version(1, 'W/"a"', "Mon"), "Mon"),
        (Version(1, 'W/"a"', None), None),
        (Version(1, None, None), None),
    ],
)
def test_only_strong_validators_are_conditions(version: Version, condition: str | None) -> None:
    """A weak entity tag may not be used with ranges."""
    assert version.condition == condition


def test_versions_differ_in_what_both_say() -> None:
    """A header that one answer leaves out tells nothing."""
    first = Version(1, '"a"', "Mon")
    assert not first.is_other(Version(None, None, None))
    assert not first.is_other(first)
    for other in (Version(2, None, None), Version(1, '"b"', None), Version(1, '"a"', "Tue")):
        assert first.is_other(other)


def test_a_plain_name_has_no_secrets() -> None:
    """User, password, query and fragment are left out."""
    url = httpx.URL("https://me:pw@example.com:8443/x/y.tar?sig=1#sha256=2")
    assert plain_name(url) == "https://example.com:8443/x/y.tar"


@pytest.mark.parametrize(
    ("header", "wait_s"),
    [(None, None), ("7", 7.0), (" 7 ", 7.0), ("soon", None), ("-1", None), ("1.5", None)],
)
def test_retry_after_in_seconds(header: str | None, wait_s: float | None) -> None:
    """Whole seconds count; what is malformed asks for nothing."""
    assert retry_after_s(header) == wait_s


def test_retry_after_as_a_date() -> None:
    """A date is so many seconds from now, and one of the past is now."""
    assert retry_after_s(formatdate(1_000_060, usegmt=True), now=lambda: 1_000_000.0) == 60.0
    assert retry_after_s(formatdate(999_000, usegmt=True), now=lambda: 1_000_000.0) == 0.0


def test_waits_grow_and_are_bounded() -> None:
    """Each wait is up to twice the one before, and none is longer than the longest."""
    policy = RetryPolicy(first_wait_s=1.0, longest_wait_s=10.0)
    for num_failures, full_s in [(1, 1.0), (2, 2.0), (3, 4.0), (5, 10.0), (5000, 10.0)]:
        assert full_s / 2 <= policy.wait_s(num_failures, None) <= full_s
    assert policy.wait_s(1, 3.0) == 3.0
    assert policy.wait_s(1, 3600.0) == 10.0


def test_a_gate_that_is_shut_lets_nobody_pass() -> None:
    """Those who wait at it are woken up and told."""
    gate = Gate()
    assert gate.wait()
    gate.hold(60.0)
    threading.Timer(0.05, gate.shut).start()
    assert not gate.wait()
    assert not gate.wait(60.0)
