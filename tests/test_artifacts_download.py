"""Tests of cog_triton.artifacts.download against a server that fails on demand."""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Iterator
from dataclasses import replace

import httpx
import pytest

from cog_triton.artifacts.download import downloading
from cog_triton.artifacts.http_source import MAX_REDIRECTS, SourceChanged
from cog_triton.artifacts.options import DownloadOptions
from cog_triton.artifacts.retries import RetryPolicy
from cog_triton.errors import ArtifactUnavailable
from tests import faulty_http
from tests.faulty_http import FileServer, drop, redirect, status

CONTENT = bytes(i * 7 % 251 for i in range(100_000))
OPTIONS = DownloadOptions(
    num_connections=4,
    part_bytes=10_000,
    num_buffers=6,
    connect_timeout_s=5.0,
    read_timeout_s=5.0,
    retries=RetryPolicy(num_attempts=3, first_wait_s=0.001),
)
ONE_AT_A_TIME = replace(OPTIONS, num_connections=1)


@pytest.fixture
def server() -> Iterator[FileServer]:
    with faulty_http.serving(CONTENT) as running:
        yield running


def read(url: str, options: DownloadOptions = OPTIONS) -> bytes:
    with downloading(httpx.URL(url), options) as download:
        return b"".join(bytes(piece) for piece in download.pieces)


@pytest.mark.parametrize("part_bytes", [999, 10_000, 33_333, 100_000, 1 << 20])
@pytest.mark.parametrize("num_connections", [1, 4])
def test_parts_arrive_in_order(server: FileServer, part_bytes: int, num_connections: int) -> None:
    """Whatever the parts and the number of connections, the file comes out as it is."""
    server.chunk_bytes = 500
    options = replace(OPTIONS, part_bytes=part_bytes, num_connections=num_connections)
    assert read(server.url, options) == CONTENT


def test_other_parts_arrive_while_one_hangs(server: FileServer) -> None:
    """All buffers but one fill up while a connection hangs; then its part goes on where it was."""
    server.faults.extend([None, faulty_http.hang])
    num_requests: list[int] = []

    def resume_when_full() -> None:
        deadline_s = time.monotonic() + 10
        while len(server.requests) <= OPTIONS.num_buffers and time.monotonic() < deadline_s:
            time.sleep(0.01)
        time.sleep(0.5)
        num_requests.append(len(server.requests))
        server.resume.set()

    watcher = threading.Thread(target=resume_when_full)
    watcher.start()
    assert read(server.url) == CONTENT
    watcher.join()
    # One of the first parts hangs; those before it were read, and their buffers used again.
    [resumed] = [w for w in server.ranges if re.fullmatch(r"bytes=(\d000)?1-\d+", w or "")]
    num_before = int((resumed or "").removeprefix("bytes=").split("-")[0]) // OPTIONS.part_bytes
    assert num_requests == [1 + OPTIONS.num_buffers + num_before]


def test_a_reader_that_is_slow_bounds_the_memory(server: FileServer) -> None:
    """No more parts are asked for than there are buffers, however long the reader takes."""
    with downloading(httpx.URL(server.url), OPTIONS) as download:
        pieces = download.pieces
        next(pieces)
        time.sleep(0.3)
        starts = [int((w or "").removeprefix("bytes=").split("-")[0]) for w in server.ranges]
        assert max(starts) < OPTIONS.num_buffers * OPTIONS.part_bytes
        assert sum(len(piece) for piece in pieces) == len(CONTENT) - OPTIONS.part_bytes


def test_a_broken_part_goes_on_where_it_broke(server: FileServer) -> None:
    """Bytes that have arrived are not asked for again, and the condition is the file's version."""
    server.faults.extend([None, drop(4_000), drop(3_000)])
    assert read(server.url, ONE_AT_A_TIME) == CONTENT
    assert server.ranges[1:4] == ["bytes=0-9999", "bytes=4000-9999", "bytes=7000-9999"]
    assert server.requests[2][1]["if-range"] == '"v1"'


def test_breaks_that_bring_something_are_not_counted(server: FileServer) -> None:
    """A connection that breaks over and over, but gets on, is not given up."""
    server.faults.extend([None, *[drop(100)] * 20])
    assert read(server.url, ONE_AT_A_TIME) == CONTENT


def test_a_server_that_sends_nothing_is_given_up(server: FileServer) -> None:
    """After as many attempts as the policy allows the error says how many there were."""
    server.faults.append(None)
    server.every = drop(0)
    with pytest.raises(ArtifactUnavailable, match="3 times in a row"):
        read(server.url, ONE_AT_A_TIME)
    assert len(server.requests) == 1 + 3


def test_a_server_that_is_not_there() -> None:
    """A port that nobody listens on is an error, after the attempts."""
    with faulty_http.serving(CONTENT) as server:
        url = server.url
    with pytest.raises(ArtifactUnavailable, match="3 times"):
        read(url)


@pytest.mark.parametrize("code", [408, 429, 500, 502, 503, 504])
def test_answers_that_may_pass_are_asked_again(server: FileServer, code: int) -> None:
    """Overload and server errors are retried, at the first request and in the middle."""
    server.faults.extend([status(code), None, status(code)])
    assert read(server.url, ONE_AT_A_TIME) == CONTENT


def test_retry_after_is_honoured_by_all_connections(server: FileServer) -> None:
    """No connection asks before the time that one of them was told."""
    server.faults.extend([None, status(429, Retry_After="1")])
    server.chunk_delay_s = 0.1
    assert read(server.url, replace(OPTIONS, part_bytes=3_000, num_buffers=40)) == CONTENT
    told_s = server.times_s[1]
    # What was on its way comes to its end; then nothing is asked until the second is over.
    assert not [t for t in server.times_s if 0.5 < t - told_s < 1.0]
    assert server.times_s[-1] - told_s >= 1.0


@pytest.mark.parametrize(
    ("code", "why"),
    [(401, "credentials"), (403, "expired"), (404, "no such file"), (410, "gone"), (418, "418")],
)
def test_answers_that_stay_are_not_asked_again(server: FileServer, code: int, why: str) -> None:
    """Where another attempt cannot help there is none, and the error says what it is."""
    server.every = status(code)
    with pytest.raises(ArtifactUnavailable, match=why):
        read(server.url)
    assert len(server.requests) == 1


def test_redirects_are_followed_once(server: FileServer) -> None:
    """Parts are asked for where the redirects led to, without asking for the way again."""
    server.faults.extend([redirect("/a"), redirect(f"{server.url}/b", 307)])
    assert read(server.url, ONE_AT_A_TIME) == CONTENT
    assert {path for path, _ in server.requests[2:]} == {"/b"}


def test_a_place_that_expires_is_looked_up_again(server: FileServer) -> None:
    """When the signed address of a part is refused, the first address is asked for a new one."""
    server.faults.extend([redirect("/one"), None, None, status(403), redirect("/two")])
    assert read(server.url, ONE_AT_A_TIME) == CONTENT
    assert [path for path, _ in server.requests[:6]] == ["/", "/one", "/one", "/one", "/", "/two"]


def test_redirects_that_never_end(server: FileServer) -> None:
    """A loop is left after a few turns."""
    server.every = redirect("/again")
    with pytest.raises(ArtifactUnavailable, match="redirects more than"):
        read(server.url)
    assert len(server.requests) == MAX_REDIRECTS + 1


@pytest.mark.parametrize("location", ["ftp://127.0.0.1/x", "file:///etc/passwd", ""])
def test_redirects_to_other_protocols_are_refused(server: FileServer, location: str) -> None:
    """Nothing but the web is followed to."""
    server.every = redirect(location) if location else status(302)
    with pytest.raises(ArtifactUnavailable, match="redirects"):
        read(server.url)
    assert len(server.requests) == 1


@pytest.mark.parametrize("has_etag", [True, False])
def test_a_file_that_is_replaced_meanwhile(server: FileServer, has_etag: bool) -> None:
    """Parts of two versions are never mixed; without an entity tag the size tells them apart."""
    if not has_etag:
        server.etag = None
    new = faulty_http.replaced_by(CONTENT + b"x", '"v2"')
    server.faults.extend([None, None, new])
    with pytest.raises(SourceChanged):
        read(server.url, ONE_AT_A_TIME)


@pytest.mark.parametrize("num_connections", [1, 4])
def test_a_cache_that_does_not_understand_conditions(
    server: FileServer, num_connections: int
) -> None:
    """All of the same file in the place of a range is not taken for another file."""
    server.every = faulty_http.unconditional
    assert read(server.url, replace(OPTIONS, num_connections=num_connections)) == CONTENT
    assert len([1 for _, headers in server.requests if "if-range" in headers]) <= num_connections


@pytest.mark.parametrize("difference", [-1, 1, 5])
def test_a_wrong_length_is_noticed(server: FileServer, difference: int) -> None:
    """A part of another length than was asked for is fetched again."""
    server.faults.extend([None, faulty_http.wrong_length(difference)])
    assert read(server.url, ONE_AT_A_TIME) == CONTENT


def test_another_range_than_asked_for_is_noticed(server: FileServer) -> None:
    """A server that answers with other bytes is asked again."""
    server.faults.extend([None, faulty_http.other_range])
    assert read(server.url, ONE_AT_A_TIME) == CONTENT


def test_a_server_without_ranges(server: FileServer) -> None:
    """The file comes over one connection then."""
    server.has_ranges = False
    assert read(server.url) == CONTENT


def test_a_server_that_does_not_know_the_length(server: FileServer) -> None:
    """Without a length the file ends where the connection does."""
    server.every = faulty_http.without_length
    with downloading(httpx.URL(server.url), OPTIONS) as download:
        assert download.total_bytes is None
        assert b"".join(bytes(piece) for piece in download.pieces) == CONTENT


def test_a_break_without_ranges_means_to_start_again(server: FileServer) -> None:
    """What was read cannot be gone on with, and the caller is told."""
    server.has_ranges = False
    server.faults.extend([None, drop(5_000)])
    with pytest.raises(SourceChanged, match="cannot go on"):
        read(server.url)


def test_an_empty_file(server: FileServer) -> None:
    """A range of nothing cannot be satisfied."""
    server.every = status(416)
    with pytest.raises(ArtifactUnavailable, match="empty"):
        read(server.url)


def test_leaving_wakes_connections_that_hang(server: FileServer) -> None:
    """The end of the block does not wait for servers."""
    server.faults.append(None)
    server.every = faulty_http.hang
    started_at = time.monotonic()
    options = replace(OPTIONS, read_timeout_s=60.0)
    with downloading(httpx.URL(server.url), options) as download:
        timer = threading.Timer(0.3, lambda: None)
        timer.start()
        pieces = download.pieces

        def wait_for_the_first() -> None:
            with pytest.raises(ArtifactUnavailable, match="was ended"):
                next(pieces)

        reader = threading.Thread(target=wait_for_the_first)
        reader.start()
        timer.join()
    reader.join(5)
    assert time.monotonic() - started_at < 20.0
    assert not [t for t in threading.enumerate() if t.name.startswith("download-")]


def test_progress_counts_what_has_arrived(server: FileServer) -> None:
    """The numbers grow up to the size of the file."""
    seen: list[tuple[int, int | None]] = []
    with downloading(httpx.URL(server.url), OPTIONS, lambda *x: seen.append(x)) as download:
        for _ in download.pieces:
            pass
    assert seen == sorted(seen)
    assert seen[-1] == (len(CONTENT), len(CONTENT))


def test_secrets_of_a_url_reach_no_log_and_no_error(
    server: FileServer, caplog: pytest.LogCaptureFixture
) -> None:
    """Signatures and passwords are left out of what httpx logs and of what is raised."""
    server.faults.extend([None] * 11 + [status(404)])
    url = server.url.replace("//", "//user:hunter2@") + "/a.tar?X-Amz-Signature=hunter3"
    with caplog.at_level(logging.DEBUG, logger="httpx"):
        read(url)
        with pytest.raises(ArtifactUnavailable) as caught:
            read(url)
    assert "/a.tar" in caplog.text
    assert "hunter" not in caplog.text + str(caught.value)
    assert server.requests[0][1]["authorization"].startswith("Basic ")
