"""What a caller may choose about a fetch."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol

from cog_triton.artifacts.progress import Progress, ProgressLines

PreparedFor = Literal["openvino"]


class DiskUsage(Protocol):
    """The part of `shutil.disk_usage`'s answer that counts here."""

    @property
    def free(self) -> int: ...


@dataclass(frozen=True)
class FetchOptions:
    """Options of `fetch`.

    progress     where steps report to; lines on stderr unless given
    prepare_for  the runtime whose own files are to be written beside a GGUF, if it is installed
    pip_options  further options for `pip download`, such as an index
    disk_usage   how free space is found out
    """

    progress: Progress = field(default_factory=ProgressLines)
    prepare_for: PreparedFor | None = None
    pip_options: Sequence[str] = ()
    disk_usage: Callable[[Path], DiskUsage] = shutil.disk_usage
