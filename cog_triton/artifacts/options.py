"""What a caller may choose about a fetch."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol

from cog_triton.artifacts.progress import Progress, ProgressLines
from cog_triton.artifacts.retries import RetryPolicy

PreparedFor = Literal["openvino"]
OnProgress = Callable[[int, "int | None"], None]
"""`on_progress(bytes that have arrived, in order or not; total_bytes)`, often, in one thread."""


class DiskUsage(Protocol):
    """The part of `shutil.disk_usage`'s answer that counts here."""

    @property
    def free(self) -> int: ...


@dataclass(frozen=True)
class DownloadOptions:
    """How to download: memory in use is `part_bytes` times `num_buffers`."""

    num_connections: int = 10
    part_bytes: int = 8 << 20
    num_buffers: int = 12
    connect_timeout_s: float = 15.0
    read_timeout_s: float = 60.0
    retries: RetryPolicy = field(default_factory=RetryPolicy)


@dataclass(frozen=True)
class FetchOptions:
    """Options of `fetch`.

    progress     where steps report to; lines on stderr unless given
    prepare_for  the runtime whose own files are to be written beside a GGUF, if it is installed
    pip_options  further options for `pip download`, such as an index
    disk_usage   how free space is found out
    download     connections, memory, deadlines and retries of a download from a URL
    hub_endpoint of the Hugging Face Hub; unless given what HF_ENDPOINT says, or the Hub itself
    """

    progress: Progress = field(default_factory=ProgressLines)
    prepare_for: PreparedFor | None = None
    pip_options: Sequence[str] = ()
    disk_usage: Callable[[Path], DiskUsage] = shutil.disk_usage
    download: DownloadOptions = field(default_factory=DownloadOptions)
    hub_endpoint: str | None = None
