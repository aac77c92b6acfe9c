"""Tests of cog_triton.artifacts.archive_source: models by URL, and archives on this machine."""

from __future__ import annotations

import json
import logging
import random
import subprocess
import time
from collections.abc import Iterator
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace

import pytest

from cog_triton.artifacts.archive_source import local_archive, url_model
from cog_triton.artifacts.fetch import fetch, find_fetched, obtain
from cog_triton.artifacts.manifest import MANIFEST_NAME, Manifest
from cog_triton.artifacts.model_directory import ModelDirectory
from cog_triton.artifacts.options import DownloadOptions, FetchOptions
from cog_triton.artifacts.progress import silent
from cog_triton.artifacts.retries import RetryPolicy
from cog_triton.errors import ArtifactCorrupt, ArtifactUnavailable
from tests import artifact_samples as samples
from tests import faulty_http
from tests.archive_samples import engine_archive, engine_files, entry, make_tar, tar_of
from tests.faulty_http import FileServer, drop, replaced_by

RANK0 = random.Random(0).randbytes(200_000)
DOWNLOAD = DownloadOptions(
    num_connections=4,
    part_bytes=20_000,
    num_buffers=6,
    retries=RetryPolicy(num_attempts=3, first_wait_s=0.001),
)
OPTIONS = FetchOptions(silent, download=DOWNLOAD)


@pytest.fixture
def server() -> Iterator[FileServer]:
    """A server that has an engine, as a plain tar."""
    with faulty_http.serving(engine_archive(rank0=RANK0)) as running:
        yield running


@pytest.fixture
def url(server: FileServer) -> str:
    return f"{server.url}/weights/engine.tar"


def fetch_url(url: str, store: Path, options: FetchOptions = OPTIONS) -> ModelDirectory:
    return obtain(url_model(url, store, options), options)


def names(directory: Path) -> set[str]:
    return {path.name for path in directory.iterdir()}


def assert_whole(model: ModelDirectory) -> None:
    """The directory is the engine, with nothing else but its manifest."""
    assert model.format == "engine"
    assert names(model.path) == {*engine_files(), MANIFEST_NAME}
    assert (model.path / "rank0.engine").read_bytes() == RANK0


@pytest.mark.parametrize("form", ["tar", "gzip", "zstd"])
@pytest.mark.parametrize("top", ["", "llama-engine"])
def test_an_engine_by_url(
    server: FileServer, url: str, tmp_path: Path, form: str, top: str
) -> None:
    """An archive of any form, packed with or without its directory, becomes an engine directory."""
    server.content = engine_archive(form, top, RANK0)
    model = fetch_url(url, tmp_path / "models")
    assert_whole(model)
    assert model.path.name.startswith("engine-")
    assert names(tmp_path / "models") == {model.path.name, f".{model.path.name}.lock"}


def test_a_second_fetch_asks_nothing(server: FileServer, url: str, tmp_path: Path) -> None:
    """What is there is used, also when it is to be prepared for another runtime."""
    model = fetch(url, tmp_path, progress=silent)
    num_requests = len(server.requests)
    assert fetch(url, tmp_path, progress=silent) == model
    assert fetch(url, tmp_path, progress=silent, prepare_for="openvino") == model
    assert find_fetched(url, tmp_path) == model
    assert len(server.requests) == num_requests


def test_finding_asks_nothing(server: FileServer, url: str, tmp_path: Path) -> None:
    """Before the fetch there is nothing, and nobody is asked."""
    assert find_fetched(url, tmp_path) is None
    assert server.requests == []


def test_the_manifest_says_where_it_is_from(url: str, tmp_path: Path) -> None:
    """The manifest has the address without its secrets, and the hash of every file."""
    signed = url.replace("//", "//me:hunter2@") + "?X-Amz-Signature=hunter3"
    model = fetch_url(signed, tmp_path)
    text = (model.path / MANIFEST_NAME).read_text()
    manifest = Manifest.read(model.path)
    assert manifest is not None
    assert "hunter" not in text
    assert manifest.origin == {"url": url}
    assert manifest.files["rank0.engine"].sha256 == sha256(RANK0).hexdigest()


def test_a_hash_is_checked(server: FileServer, url: str, tmp_path: Path) -> None:
    """The right SHA-256 is accepted in either case; a wrong one leaves nothing behind."""
    good = sha256(server.content).hexdigest()
    wrong = sha256(b"").hexdigest()
    with pytest.raises(ArtifactCorrupt, match=wrong):
        fetch_url(f"{url}#sha256={wrong}", tmp_path / "a")
    assert all(name.endswith(".lock") for name in names(tmp_path / "a"))
    assert_whole(fetch_url(f"{url}#sha256={good.upper()}", tmp_path / "b"))


@pytest.mark.parametrize("fragment", ["sha256=12", "md5=0", "x"])
def test_a_hash_that_is_none(url: str, tmp_path: Path, fragment: str) -> None:
    """A fragment that could have been meant as a hash is not ignored."""
    with pytest.raises(ArtifactUnavailable, match="64 hex digits"):
        fetch_url(f"{url}#{fragment}", tmp_path)


@pytest.mark.parametrize("url", ["https://", "https://x:port/a.tar", "https:///a.tar"])
def test_a_url_that_is_none(url: str, tmp_path: Path) -> None:
    """What cannot be asked for is told before anything is done."""
    with pytest.raises(ArtifactUnavailable, match="URL"):
        fetch(url, tmp_path / "models")
    assert not (tmp_path / "models").exists()


def test_names_of_one_file(tmp_path: Path) -> None:
    """Signing a URL again, or serving a known hash elsewhere, does not fetch again."""

    def identity(url: str) -> str:
        return url_model(url, tmp_path, OPTIONS).recipe.source

    base, some = "https://a.example/e.tar", "#sha256=" + "0" * 64
    assert identity(f"{base}?X-Amz-Signature=1&x=1") == identity(f"{base}?X-Amz-Signature=2")
    assert identity(base + some) == identity("https://b.example/f.tar" + some)
    assert len({identity(base), identity(base + "?v=1"), identity(base + "?v=2")}) == 3


def test_a_broken_download_goes_on(server: FileServer, url: str, tmp_path: Path) -> None:
    """Connections that drop and servers that stumble cost only what is missing."""
    server.faults.extend([None, drop(1000), faulty_http.status(503), drop(5), drop(0)])
    assert_whole(fetch_url(url, tmp_path))


@pytest.mark.parametrize("has_ranges", [True, False])
def test_a_file_that_changes_is_read_again(
    server: FileServer, url: str, tmp_path: Path, has_ranges: bool
) -> None:
    """A new version in the middle is read from its start; nothing of the old one is left."""
    new, server.has_ranges = server.content, has_ranges
    server.content = tar_of({**engine_files(RANK0[::-1]), "old.txt": b"old"})
    broken = [drop(30_000)] if not has_ranges else [None, None]
    server.faults.extend([None, *broken, replaced_by(new, '"v2"')])
    options = replace(OPTIONS, download=replace(DOWNLOAD, num_connections=1))
    assert_whole(fetch_url(url, tmp_path, options))


def test_a_file_that_never_stays_the_same(server: FileServer, url: str, tmp_path: Path) -> None:
    """After a few versions the error says what goes on."""

    def change(to: faulty_http.Answer) -> None:
        to.server.etag = f'"{len(to.server.requests)}"'
        to.good()

    server.every = change
    with pytest.raises(ArtifactUnavailable, match="in one go"):
        fetch_url(url, tmp_path)
    assert len(names(tmp_path)) == 1


def test_a_truncated_archive_leaves_nothing(server: FileServer, url: str, tmp_path: Path) -> None:
    """A file that is shorter than its archive is corrupt, and named."""
    server.content = server.content[:100_000]
    with pytest.raises(ArtifactCorrupt, match=r"engine\.tar cannot be used: .*cut off"):
        fetch_url(url, tmp_path)
    assert all(name.endswith(".lock") for name in names(tmp_path))


def test_a_page_instead_of_an_archive(server: FileServer, url: str, tmp_path: Path) -> None:
    """What a login page says is shown."""
    server.content = b"<html>Please log in</html>"
    with pytest.raises(ArtifactCorrupt, match="Please log in"):
        fetch_url(url, tmp_path)


def test_an_archive_of_something_else(server: FileServer, url: str, tmp_path: Path) -> None:
    """An archive without an engine is told by what it lacks."""
    server.content = tar_of({"README.md": b"hello"})
    with pytest.raises(ArtifactCorrupt, match=r"config\.json"):
        fetch_url(url, tmp_path)


def test_an_archive_that_leads_out(server: FileServer, url: str, tmp_path: Path) -> None:
    """A hostile archive writes nothing."""
    server.content = make_tar(entry("../../evil", b"x"))
    with pytest.raises(ArtifactCorrupt, match="leads out"):
        fetch_url(url, tmp_path / "models")
    assert not list(tmp_path.rglob("evil"))


def test_room_is_checked_before_the_download(server: FileServer, url: str, tmp_path: Path) -> None:
    """With too little space only the size is asked for."""
    options = replace(OPTIONS, disk_usage=lambda _: SimpleNamespace(free=100_000))
    with pytest.raises(ArtifactUnavailable, match="0 MB free"):
        fetch_url(url, tmp_path, options)
    assert server.ranges == ["bytes=0-0"]


def test_plain_http_is_remarked(url: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Without TLS there is a warning, once."""
    with caplog.at_level(logging.WARNING):
        fetch_url(url, tmp_path)
        fetch_url(url, tmp_path)
    assert caplog.text.count("plain http") == 1


def test_progress_ends_when_all_is_written(url: str, tmp_path: Path) -> None:
    """One step, whose numbers grow, and whose end comes once."""
    seen: list[tuple[str, int, int | None]] = []
    fetch_url(url, tmp_path, replace(OPTIONS, progress=lambda *report: seen.append(report)))
    assert {step for step, _, _ in seen} == {"download engine.tar"}
    assert [done for _, done, _ in seen] == sorted(done for _, done, _ in seen)
    assert sum(done == total for _, done, total in seen) == 1


def test_a_gguf_by_url(server: FileServer, tmp_path: Path) -> None:
    """A GGUF gets its tokenizer as a local one does; preparing it later downloads nothing."""
    gguf = samples.write_gguf(tmp_path / "a.gguf", with_weights=True)
    server.content = gguf.read_bytes()
    model = fetch_url(f"{server.url}/Some-Q4.gguf", tmp_path / "models")
    assert model.format == "gguf"
    assert model.path.name.startswith("Some-Q4-")
    num_requests = len(server.requests)
    options = replace(OPTIONS, prepare_for="openvino")
    assert fetch_url(f"{server.url}/Some-Q4.gguf", tmp_path / "models", options).format == (
        "openvino_ir"
    )
    assert len(server.requests) == num_requests


@pytest.mark.parametrize("form", ["tar", "gzip", "zstd"])
def test_an_archive_on_this_machine(tmp_path: Path, form: str) -> None:
    """A path may name an archive; it is unpacked once, and again when the file changes."""
    archive = tmp_path / "weights.tar.x"
    archive.write_bytes(engine_archive(form, "engine", RANK0))
    model = fetch(str(archive), tmp_path / "models", progress=silent)
    assert_whole(model)
    assert fetch(str(archive), tmp_path / "models", progress=silent) == model
    archive.write_bytes(engine_archive(form, "engine", b"other"))
    model = fetch(str(archive), tmp_path / "models", progress=silent)
    assert (model.path / "rank0.engine").read_bytes() == b"other"


def test_a_file_that_is_no_archive(tmp_path: Path) -> None:
    """A file of another kind is refused before anything is made."""
    (tmp_path / "x.tar").write_text("<html>")
    with pytest.raises(ArtifactCorrupt, match=r"x\.tar cannot be used"):
        local_archive(tmp_path / "x.tar", tmp_path / "models", OPTIONS)


# Processes

_PROGRAM = """
import sys
from pathlib import Path
from cog_triton.artifacts.fetch import obtain
from cog_triton.artifacts.archive_source import url_model
from cog_triton.artifacts.options import DownloadOptions, FetchOptions
from cog_triton.artifacts.progress import silent
options = FetchOptions(silent, download=DownloadOptions(4, 20_000, 6))
print(obtain(url_model(sys.argv[1], Path(sys.argv[2]), options), options).path)
"""


def start(url: str, store: Path) -> subprocess.Popen[str]:
    return samples.start_python(_PROGRAM, url, str(store))


def test_two_processes_download_once(server: FileServer, url: str, tmp_path: Path) -> None:
    """Two that want the same archive at once both get it, from one download."""
    with start(url, tmp_path) as first, start(url, tmp_path) as second:
        outputs = [process.communicate(timeout=60) for process in (first, second)]
    assert outputs[0][0] == outputs[1][0] != "", outputs
    num_parts = -(-len(server.content) // 20_000)
    assert len(server.requests) == 1 + num_parts


def test_a_download_that_is_killed_at_any_moment(
    server: FileServer, url: str, tmp_path: Path
) -> None:
    """SIGKILL at ten moments, from before the first byte to the end: the next fetch completes."""
    server.chunk_bytes, server.chunk_delay_s = 2_000, 0.035
    dest = url_model(url, tmp_path, OPTIONS).dest
    moments, num_killed = random.Random(5), 0
    for attempt in range(10):
        num_requests = len(server.requests)
        with start(url, tmp_path) as process:
            deadline_s = time.monotonic() + 30
            while len(server.requests) == num_requests and process.poll() is None:
                assert time.monotonic() < deadline_s
                time.sleep(0.005)
            time.sleep(attempt * 0.07 * moments.uniform(0.8, 1.2))
            num_killed += process.poll() is None
            process.kill()
        if dest.exists():
            assert_whole(ModelDirectory.read(dest))
            break
        assert find_fetched(url, tmp_path) is None
    assert num_killed >= 9
    server.chunk_delay_s = 0.0
    assert_whole(fetch_url(url, tmp_path))
    assert names(tmp_path) == {dest.name, f".{dest.name}.lock"}
    assert json.loads((dest / MANIFEST_NAME).read_text())["origin"] == {"url": url}
