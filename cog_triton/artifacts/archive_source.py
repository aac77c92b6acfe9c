"""Models that come as one file: a tar archive, plain or compressed, or a GGUF; by URL or by path.

The URL may end in `#sha256=<hash>`, which is then checked over the file as it was sent. What the
archive holds lies at its top level or below one directory of any name.
"""

from __future__ import annotations

import hashlib
import logging
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import httpx

from cog_triton.artifacts.download import downloading
from cog_triton.artifacts.gguf_directory import WEIGHTS_NAME, wanted_programs
from cog_triton.artifacts.http_source import SourceChanged, plain_name
from cog_triton.artifacts.manifest import Recipe
from cog_triton.artifacts.options import FetchOptions
from cog_triton.artifacts.prepare import prepare, prepare_again
from cog_triton.artifacts.published import Publication, Workspace
from cog_triton.artifacts.unpack import SNIFF_BYTES, find_form, peek, unpack
from cog_triton.errors import ArtifactCorrupt, ArtifactUnavailable

_NUM_VERSIONS = 3  # how often a file may change while it is read
_SHA256 = re.compile(r"sha256=([0-9a-f]{64})", re.IGNORECASE)
# Query parameters of URLs that S3, Google Cloud Storage, CloudFront and Azure sign.
_SIGNATURES = ("x-amz-signature", "x-goog-signature", "signature", "sig")
_SUFFIXES = (".tar", ".tar.gz", ".tgz", ".tar.zst", ".tzst", ".gguf")
_CHUNK_BYTES = 4 << 20
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Link:
    """A URL as the settings have it, taken apart."""

    url: httpx.URL
    sha256: str | None

    @staticmethod
    def parse(source: str) -> _Link:
        """Raises: ArtifactUnavailable for what is no URL, or has a fragment that is no SHA-256."""
        try:
            url = httpx.URL(source)
        except httpx.InvalidURL as err:
            raise ArtifactUnavailable(f"the URL of the model cannot be read ({err})") from err
        if not url.host:
            raise ArtifactUnavailable(f"the URL {plain_name(url)} names no host")
        match = _SHA256.fullmatch(url.fragment)
        if url.fragment and match is None:
            raise ArtifactUnavailable(
                f"what follows # in the URL {plain_name(url)} must be sha256= and 64 hex digits"
            )
        return _Link(url.copy_with(fragment=None), match.group(1).lower() if match else None)

    @property
    def identity(self) -> str:
        """What stays the same when the same file is signed, or served, once more."""
        if self.sha256 is not None:
            return f"sha256:{self.sha256}"
        is_signed = any(key.lower() in _SIGNATURES for key in self.url.params)
        query = b"" if is_signed else self.url.query
        tag = f"?{hashlib.sha256(query).hexdigest()[:16]}" if query else ""
        return plain_name(self.url) + tag

    @property
    def stem(self) -> str:
        """The file's name without the suffixes of an archive, of harmless characters."""
        name = PurePosixPath(self.url.path).name
        suffix = max((s for s in _SUFFIXES if name.lower().endswith(s)), key=len, default="")
        return re.sub(r"[^\w.-]", "_", name[: len(name) - len(suffix)]).strip(".") or "model"


def is_url(source: str) -> bool:
    """Whether a source is a URL of the web."""
    return source.lower().startswith(("https://", "http://"))


def url_model(source: str, store: Path, options: FetchOptions) -> Publication:
    """The model behind a URL as a directory below `store`.

    Raises: ArtifactUnavailable for a URL that cannot be used. Building raises ArtifactUnavailable,
    ArtifactCorrupt and UnsupportedModel.
    """
    link = _Link.parse(source)

    def build(work: Workspace) -> Mapping[str, str]:
        if work.previous is not None:
            return prepare_again(work, work.previous, options)
        if link.url.scheme == "http":
            _log.warning("%s is plain http: anybody on the way can change it", plain_name(link.url))
        for _ in range(_NUM_VERSIONS):
            try:
                return _download(link, work, options)
            except SourceChanged as err:
                _log.warning("%s; it is read again from the start", err)
                _clear(work.model)
        raise ArtifactUnavailable(
            f"{plain_name(link.url)} could not be read in one go in {_NUM_VERSIONS} attempts: it "
            "changes, or the server sends no ranges and connections break"
        )

    return _publication(link.stem, link.identity, store, build, options)


def local_archive(path: Path, store: Path, options: FetchOptions) -> Publication:
    """The model in an archive on this machine.

    Raises: ArtifactCorrupt for a file that is no archive. Builds as `url_model` does.
    """
    target = path.resolve()
    stat = target.stat()
    with target.open("rb") as file:
        start = file.read(SNIFF_BYTES)
    with _named(str(path)):
        find_form(start)
    identity = f"file:{target} {stat.st_size} {stat.st_mtime_ns}"

    def build(work: Workspace) -> Mapping[str, str]:
        if work.previous is not None:
            return prepare_again(work, work.previous, options)
        work.need_space(stat.st_size)
        return _take(_read(target, options), work, options, target.name)

    return _publication(target.name.partition(".")[0], identity, store, build, options)


def _publication(
    stem: str,
    identity: str,
    store: Path,
    build: Callable[[Workspace], Mapping[str, str]],
    options: FetchOptions,
) -> Publication:
    tag = hashlib.sha256(identity.encode()).hexdigest()[:8]  # two files may share a name
    return Publication(store / f"{stem}-{tag}", Recipe(identity, wanted_programs(options)), build)


def _download(link: _Link, work: Workspace, options: FetchOptions) -> Mapping[str, str]:
    """Raises: SourceChanged when all has to be done again, beside what `url_model` names."""
    name = plain_name(link.url)
    step = f"download {PurePosixPath(link.url.path).name or name}"

    def report(num_received: int, total_bytes: int | None) -> None:
        # The step is over only when its last byte is on the disk.
        cap = num_received if total_bytes is None else total_bytes - 1
        options.progress(step, min(num_received, cap), total_bytes)

    with downloading(link.url, options.download, report) as download:
        work.need_space(download.total_bytes or 0)
        sha256 = _take(_verified(download.pieces, link.sha256), work, options, name)
        if download.total_bytes is not None:
            options.progress(step, download.total_bytes, download.total_bytes)
    work.origin["url"] = name
    return sha256


def _take(
    pieces: Iterator[memoryview], work: Workspace, options: FetchOptions, name: str
) -> Mapping[str, str]:
    """Fill `work.model` from the pieces of one file; SHA-256 of what is known of it."""
    start, pieces = peek(pieces)
    with _named(name):
        if find_form(start) == "gguf":
            sha256 = _write_gguf(pieces, work.model / WEIGHTS_NAME)
        else:
            sha256 = unpack(pieces, work.model, work.need_space)
    return prepare(work, sha256, options)


@contextmanager
def _named(name: str) -> Iterator[None]:
    """Have errors about an archive say which one it is."""
    try:
        yield
    except ArtifactCorrupt as err:
        raise ArtifactCorrupt(f"{name} cannot be used: {err.detail}") from err


def _write_gguf(pieces: Iterator[memoryview], path: Path) -> dict[str, str]:
    digest = hashlib.sha256()
    with path.open("wb") as out:
        for piece in pieces:
            out.write(piece)
            digest.update(piece)
    return {path.name: digest.hexdigest()}


def _verified(pieces: Iterator[memoryview], sha256: str | None) -> Iterator[memoryview]:
    """The same pieces, hashed in a thread of its own; at the end: ArtifactCorrupt if it differs."""
    if sha256 is None:
        yield from pieces
        return
    digest = hashlib.sha256()
    with ThreadPoolExecutor(1) as hasher:
        for piece in pieces:
            hashed = hasher.submit(digest.update, piece)
            yield piece
            hashed.result()
    if digest.hexdigest() != sha256:
        raise ArtifactCorrupt(f"its SHA-256 is {digest.hexdigest()}, {sha256} is expected")


def _read(path: Path, options: FetchOptions) -> Iterator[memoryview]:
    step, done_bytes, total_bytes = f"unpack {path.name}", 0, path.stat().st_size
    buffer = bytearray(_CHUNK_BYTES)
    with path.open("rb", buffering=0) as file:
        while num_read := file.readinto(buffer):
            done_bytes += num_read
            options.progress(step, done_bytes, total_bytes)
            yield memoryview(buffer)[:num_read]


def _clear(directory: Path) -> None:
    shutil.rmtree(directory)
    directory.mkdir()
