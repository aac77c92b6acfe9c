"""Models of the Hugging Face Hub: `org/name`, `org/name@revision`, `org/name/file.gguf@revision`.

huggingface_hub does the downloads: parallel, resumed, also over its Xet store. It reads HF_TOKEN
(or the token that `hf auth login` stored), HF_ENDPOINT, HF_HUB_OFFLINE and HF_HUB_DOWNLOAD_TIMEOUT
by itself, so a token never passes through this code. Only files that are needed are fetched.

A branch is resolved once: what was fetched is used until its directory is deleted, and the commit
is recorded in its manifest. What has arrived of a broken download is kept for the next start.
"""

from __future__ import annotations

import glob
import logging
import re
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from cog_triton.artifacts.gguf_directory import wanted_programs
from cog_triton.artifacts.hub_files import choose_files
from cog_triton.artifacts.manifest import Recipe, sha256_of
from cog_triton.artifacts.options import FetchOptions
from cog_triton.artifacts.prepare import link_file, prepare, prepare_again
from cog_triton.artifacts.published import Publication, Workspace
from cog_triton.artifacts.retries import TryAgain
from cog_triton.errors import ArtifactCorrupt, ArtifactUnavailable

_NUM_HASHERS = 4
_NAME = re.compile(
    r"(?P<repo>\w[\w.-]*/\w[\w.-]*)(?:/(?P<gguf>[\w./ +-]+\.gguf))?(?:@(?P<revision>[\w./-]+))?",
    re.ASCII | re.IGNORECASE,
)
_log = logging.getLogger(__name__)
_T = TypeVar("_T")


@dataclass(frozen=True)
class HubName:
    """A model on the Hub as the settings name it; `revision` None is its main branch."""

    repo: str
    revision: str | None = None
    gguf: str | None = None

    @staticmethod
    def parse(source: str) -> HubName | None:
        """None for what cannot be such a name."""
        match = _NAME.fullmatch(source)
        return HubName(match["repo"], match["revision"], match["gguf"]) if match else None

    def __str__(self) -> str:
        file = f"/{self.gguf}" if self.gguf else ""
        return f"{self.repo}{file}" + (f"@{self.revision}" if self.revision else "")

    @property
    def directory_name(self) -> str:
        return str(self).replace("/", "--").replace(" ", "_")


@dataclass(frozen=True)
class HubFile:
    """One file of a commit; `sha256` is None for the small ones that git itself holds."""

    name: str
    size_bytes: int
    sha256: str | None


def hub_model(source: str, store: Path, options: FetchOptions) -> Publication:
    """A model of the Hub as a directory below `store`.

    Building raises ArtifactUnavailable (not there, gated, offline, no space), ArtifactCorrupt and
    UnsupportedModel.
    """
    name = HubName.parse(source)
    if name is None:
        raise ArtifactUnavailable(f"{source!r} is no name of a model on the Hugging Face Hub")

    def build(work: Workspace) -> Mapping[str, str]:
        if work.previous is not None:
            return prepare_again(work, work.previous, options)
        commit, files = _persistently(lambda: _list_files(name, options), options)
        partial = work.partial or work.scratch
        partial.mkdir(exist_ok=True)
        work.need_space(sum(file.size_bytes for file in files) - _present_bytes(partial))
        _persistently(lambda: _download(name, commit, files, partial, options), options)
        sha256 = _verified(name, files, partial)
        for file in files:
            target = work.model / Path(file.name).name
            link_file(partial / file.name, target)
        work.origin.update(repo=name.repo, commit=commit)
        return prepare(work, sha256, options)

    recipe = Recipe(f"hub:{name}", wanted_programs(options))
    return Publication(store / name.directory_name, recipe, build)


def _list_files(name: HubName, options: FetchOptions) -> tuple[str, list[HubFile]]:
    """(the commit that the revision stands for, the files of it that are needed)."""
    # Only here: a start that finds the model does not pay for the library.
    from huggingface_hub import HfApi

    from cog_triton.artifacts.hub_errors import explained

    with explained(name.repo, name.revision):
        api = HfApi(endpoint=options.hub_endpoint)
        info = api.model_info(name.repo, revision=name.revision, files_metadata=True)
    siblings = {sibling.rfilename: sibling for sibling in info.siblings or ()}
    if info.sha is None or not siblings:
        raise ArtifactUnavailable(f"{name.repo} on the Hugging Face Hub is empty")
    files = [
        HubFile(found.rfilename, found.size or 0, found.lfs.sha256 if found.lfs else None)
        for found in (siblings[file] for file in choose_files(name.repo, siblings, name.gguf))
    ]
    return info.sha, files


def _download(
    name: HubName, commit: str, files: list[HubFile], partial: Path, options: FetchOptions
) -> None:
    """Have every file below `partial`, going on where an earlier download ended."""
    from huggingface_hub import snapshot_download

    from cog_triton.artifacts.hub_errors import explained

    step, total_bytes = f"download {name}", sum(file.size_bytes for file in files)
    counter = _Counter(lambda done: options.progress(step, min(done, total_bytes - 1), total_bytes))
    with explained(name.repo, name.revision):
        snapshot_download(
            name.repo,
            revision=commit,
            local_dir=partial,
            allow_patterns=[glob.escape(file.name) for file in files],
            endpoint=options.hub_endpoint,
            tqdm_class=counter.bar_class,
        )
    options.progress(step, total_bytes, total_bytes)


def _verified(name: HubName, files: list[HubFile], partial: Path) -> dict[str, str]:
    """SHA-256 of all files, those of the large ones as the Hub has them.

    A file that differs is removed, so that the next start fetches it again. Raises:
    ArtifactCorrupt.
    """
    with ThreadPoolExecutor(_NUM_HASHERS) as pool:
        paths = [partial / file.name for file in files]
        digests = list(pool.map(sha256_of, paths))
    found = list(zip(files, paths, digests, strict=True))
    wrong = [
        (file.name, path)
        for file, path, digest in found
        if path.stat().st_size != file.size_bytes or digest != (file.sha256 or digest)
    ]
    for _, path in wrong:
        path.unlink()
    if wrong:
        names = ", ".join(file for file, _ in wrong)
        raise ArtifactCorrupt(
            f"of {name} came other bytes than the Hub names: {names}; they have been removed"
        )
    return {Path(file.name).name: digest for file, _, digest in found}


def _persistently(action: Callable[[], _T], options: FetchOptions) -> _T:
    """The result of an action that may raise TryAgain, after as many attempts as are allowed."""
    retries, num_failures = options.download.retries, 0
    while True:
        try:
            return action()
        except TryAgain as err:
            num_failures += 1
            if num_failures >= retries.num_attempts:
                raise ArtifactUnavailable(f"{err}, {num_failures} times") from err
            wait_s = retries.wait_s(num_failures, err.wait_s)
            _log.warning("%s; trying again in %.1f s", err, wait_s)
            time.sleep(wait_s)


def _present_bytes(partial: Path) -> int:
    """What an earlier, broken download has on the disk already."""
    return sum(path.stat().st_blocks * 512 for path in partial.rglob("*") if path.is_file())


class _Counter:
    """Adds up what huggingface_hub's threads report to their progress bars."""

    def __init__(self, on_change: Callable[[int], None]) -> None:
        self._lock = threading.Lock()
        self._done_bytes = 0
        self._on_change = on_change

    def add(self, num_bytes: int) -> None:
        with self._lock:
            self._done_bytes += num_bytes
            self._on_change(self._done_bytes)

    @property
    def bar_class(self) -> Any:
        """A class in the place of tqdm; only the bar of bytes written counts."""
        counter = self

        class Bar:
            _lock = threading.RLock()

            @classmethod
            def get_lock(cls) -> Any:
                """For releases below 1, whose pool of threads shares tqdm's lock."""
                return cls._lock

            @classmethod
            def set_lock(cls, lock: Any) -> None:
                cls._lock = lock

            def __init__(self, iterable: Any = (), *_: Any, **options: Any) -> None:
                self._iterable = iterable
                # snapshot_download has a bar for files, one for the network, one for the disk.
                self._counts = str(options.get("desc", "")).startswith("Reconstructing")
                self.total = options.get("total") or 0
                self.n = 0
                self.format_dict: dict[str, Any] = {}

            def update(self, num: float | None = 1) -> None:
                if self._counts:
                    counter.add(int(num or 0))

            def __iter__(self) -> Any:
                return iter(self._iterable)

            def __enter__(self) -> Bar:
                return self

            def __exit__(self, *_: object) -> None:
                pass

            def __getattr__(self, name: str) -> Callable[..., None]:
                return lambda *_, **__: None

        return Bar
