"""Where tritonserver is, and what its processes need around them to run.

Two ways: NVIDIA's container (25.12-trtllm-python-py3) with the server and its
backends below /opt/tritonserver, or the PyPI wheel nvidia-pytriton, which
carries the same server for machines without Docker. Kept light (no import of
pytriton, no numpy): the launcher starts from here each time.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import sysconfig
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from cog_triton.errors import RuntimeUnavailable

NGC_SERVER = Path("/opt/tritonserver/bin/tritonserver")
PROJECT_ROOT = Path(__file__).resolve().parents[1]
_BACKEND_FILES = ("libtriton_python.so", "triton_python_backend_utils.py")
_STUB = "triton_python_backend_stub"


@dataclass(frozen=True)
class Installation:
    """A server program; `backend_directory` is None where its own default is right.

    The three paths come before what the environment already holds: `path` because the
    Python backend finds its prefix from the `python3` there, so that models see the
    packages of this interpreter, `library_path` for the wheel's libraries and libpython,
    `python_path` so that a model can import cog_triton.
    """

    server: Path
    backend_directory: Path | None = None
    path: tuple[Path, ...] = (Path(sys.executable).parent,)
    library_path: tuple[Path, ...] = ()
    python_path: tuple[Path, ...] = (PROJECT_ROOT,)

    def environment(self, base: Mapping[str, str]) -> dict[str, str]:
        """`base` with the three paths put first in their variables."""
        merged = dict(base)
        for name, first in (
            ("PATH", self.path),
            ("LD_LIBRARY_PATH", self.library_path),
            ("PYTHONPATH", self.python_path),
        ):
            parts = [str(path) for path in first]
            parts += [base[name]] if base.get(name) else []
            if parts:
                merged[name] = os.pathsep.join(parts)
        return merged


def find(tritonserver: str | None, scratch: Path) -> Installation:
    """The server to run: the given one, else the container's, else nvidia-pytriton's.

    `tritonserver` is a path or a name on PATH. The wheel's Python backend needs a
    directory of its own, which is put together in `scratch`/backends (0700, links only).
    Raises RuntimeUnavailable if there is no server, or if a part of it is missing.
    """
    wheel = _wheel()
    if tritonserver is not None:
        given = _program(tritonserver)
        if wheel is None or not given.resolve().is_relative_to(wheel.resolve()):
            return Installation(given)
    elif os.access(NGC_SERVER, os.X_OK):
        return Installation(NGC_SERVER)
    if wheel is None:
        raise RuntimeUnavailable(
            f"No tritonserver: neither {NGC_SERVER} (the image tritonserver:25.12-trtllm-"
            "python-py3) nor nvidia-pytriton (pip install nvidia-pytriton) is there."
        )
    return _from_wheel(wheel, scratch / "backends")


def make_private(directory: Path) -> None:
    """Makes a directory 0700, or looks that an older one is ours alone to write.

    Raises RuntimeUnavailable if not: programs are run from there.
    """
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = directory.lstat()
    except OSError as err:
        raise RuntimeUnavailable(f"{directory} cannot be made: {err}") from err
    if not directory.is_dir() or status.st_uid != os.getuid() or status.st_mode & 0o022:
        raise RuntimeUnavailable(f"{directory} is not a directory that only this user can write.")


def _program(name: str) -> Path:
    path: str | None = name
    if os.sep not in name:
        import shutil  # only here: the launcher starts faster without it

        path = shutil.which(name)
    if path is None or not os.path.isfile(path) or not os.access(path, os.X_OK):
        raise RuntimeUnavailable(f"{name} is not a program.")
    return Path(path)


def _wheel() -> Path | None:
    """The directory `pytriton` of the wheel, found without importing it."""
    spec = importlib.util.find_spec("pytriton")
    folders = spec.submodule_search_locations if spec else None
    return Path(next(iter(folders))) if folders else None


def _from_wheel(package: Path, backends: Path) -> Installation:
    root = package / "tritonserver"
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    stub = root / "python_backend_stubs" / version / _STUB
    if not stub.is_file():
        raise RuntimeUnavailable(f"nvidia-pytriton has no Python backend for Python {version}.")
    make_private(backends)
    try:
        (backends / "python").mkdir(mode=0o700, exist_ok=True)
        for file in (*(root / "backends" / "python" / name for name in _BACKEND_FILES), stub):
            _link(file, backends / "python" / file.name)
    except OSError as err:
        raise RuntimeUnavailable(f"{backends} cannot be written: {err}") from err
    libraries = package.parent / "nvidia_pytriton.libs"
    return Installation(
        server=root / "bin" / "tritonserver",
        backend_directory=backends,
        library_path=(*_libpython_directory(), libraries),
    )


def _link(target: Path, link: Path) -> None:
    """Makes or replaces a link at once: another launcher may be looking."""
    if link.is_symlink() and os.readlink(link) == str(target):
        return
    temporary = link.with_name(f".{link.name}-{os.getpid()}")
    temporary.symlink_to(target)
    os.replace(temporary, link)


def _libpython_directory() -> tuple[Path, ...]:
    """Where the shared libpython is that the backend's stub links; () if the loader knows.

    The wheel does not carry it. Raises RuntimeUnavailable that says what to install.
    """
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    name = f"libpython{version}.so.1.0"
    folders = [sysconfig.get_config_var("LIBDIR")]
    if multiarch := sysconfig.get_config_var("MULTIARCH"):
        folders.append(f"/usr/lib/{multiarch}")
    for folder in folders:
        if folder and (Path(folder) / name).is_file():
            return (Path(folder),)
    if name in _loader_cache():
        return ()
    raise RuntimeUnavailable(f"{name} is missing (apt-get install libpython{version}).")


def _loader_cache() -> str:
    import subprocess  # only here: it costs the launcher 10 ms that are rarely needed

    try:
        listing = subprocess.run(
            ["/sbin/ldconfig", "-p"], capture_output=True, text=True, check=False, timeout=10
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return listing.stdout
