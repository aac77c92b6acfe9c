"""A Hugging Face Hub on the loopback: what huggingface_hub asks of it to fetch a model.

Paths, headers and error codes as huggingface_hub 2.4 uses them (hf_api.py: model_info and
list_repo_tree; file_download.py: get_hf_file_metadata; utils/_http.py: hf_raise_for_status).
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

REPO = "tiny-org/tiny-model"
COMMIT = "a" * 40
LARGE_BYTES = 1000  # from here on a file is stored apart, as git-lfs does it
Fault = Callable[["HubAnswer"], None]


class FakeHub(ThreadingHTTPServer):
    """One repository with `files`, at `COMMIT`, which is also its branch `main`.

    `token` is what a request must bring; `refusal` (status, error code) is the answer to all
    requests without it. `faults` are taken by the requests for contents of large files, one each.
    """

    daemon_threads = True

    def __init__(self, files: dict[str, bytes]) -> None:
        super().__init__(("127.0.0.1", 0), HubAnswer)
        self.files = files
        self.token: str | None = None
        self.refusal = (401, "RepoNotFound")
        self.api_status = 200
        self.faults: deque[Fault] = deque()
        self.requests: list[tuple[str, str, dict[str, str]]] = []
        self.half_sent = threading.Event()
        self.resume = threading.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    @property
    def store_url(self) -> str:
        """Where large files are: another host, as on the real hub."""
        return f"http://localhost:{self.server_address[1]}"

    def asked(self, method: str, part: str) -> list[str]:
        """Paths of the requests of one method whose path has this part."""
        return [path for made, path, _ in self.requests if made == method and part in path]

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients that go away while they read are part of the tests."""


class HubAnswer(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: FakeHub

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path)
        headers = {name.lower(): value for name, value in self.headers.items()}
        self.server.requests.append((self.command, path, headers))
        store = re.fullmatch(r"/store/(\w+)", path)
        if store is not None:
            self.large_content(store[1])
            return
        if self.server.token and headers.get("authorization") != f"Bearer {self.server.token}":
            status, code = self.server.refusal
            self.answer(status, X_Error_Code=code)
            return
        self.route(path)

    def route(self, path: str) -> None:
        api = re.fullmatch(rf"/api/models/{REPO}(?:/(revision|tree)/([^/]+))?", path)
        file = re.fullmatch(rf"/{REPO}/resolve/([^/]+)/(.+)", path)
        revision = api[2] if api else file[1] if file else None
        if api is None and file is None:
            self.answer(404, X_Error_Code="RepoNotFound")
        elif revision not in (None, "main", COMMIT, "v1.0"):
            self.answer(404, X_Error_Code="RevisionNotFound")
        elif self.server.api_status != 200:
            self.answer(self.server.api_status)
        elif api is not None:
            content = self.tree() if api[1] == "tree" else self.info()
            self.answer(200, json.dumps(content).encode(), Content_Type="application/json")
        elif file is not None:
            self.resolve(file[2])

    def info(self) -> dict[str, Any]:
        siblings = [
            {
                "rfilename": name,
                "size": len(content),
                "blobId": git_id(content),
                **({"lfs": lfs(content, "sha256")} if is_large(content) else {}),
            }
            for name, content in self.server.files.items()
        ]
        return {"_id": "1", "id": REPO, "sha": COMMIT, "siblings": siblings, "tags": []}

    def tree(self) -> list[dict[str, Any]]:
        return [
            {
                "type": "file",
                "path": name,
                "size": len(content),
                "oid": git_id(content),
                **({"lfs": lfs(content, "oid")} if is_large(content) else {}),
            }
            for name, content in self.server.files.items()
        ]

    def resolve(self, name: str) -> None:
        content = self.server.files.get(name)
        if content is None:
            self.answer(404, X_Error_Code="EntryNotFound", X_Repo_Commit=COMMIT)
        elif is_large(content):
            digest = sha256(content)
            self.answer(
                302,
                Location=f"{self.server.store_url}/store/{digest}",
                X_Repo_Commit=COMMIT,
                X_Linked_Etag=f'"{digest}"',
                X_Linked_Size=str(len(content)),
            )
        else:
            self.answer(200, content, X_Repo_Commit=COMMIT, ETag=f'"{git_id(content)}"')

    def large_content(self, digest: str) -> None:
        [content] = [c for c in self.server.files.values() if sha256(c) == digest]
        fault = self.server.faults.popleft() if self.server.faults else None
        if fault is not None:
            fault(self)
        else:
            self.send_content(content)

    def send_content(self, content: bytes, num_bytes: int | None = None) -> None:
        """The range that is asked for, or its first bytes only."""
        match = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        start = int(match[1]) if match else 0
        self.send_response(206 if match else 200)
        self.send_header("Content-Length", str(len(content) - start))
        if match:
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content[start:][:num_bytes])
        self.close_connection = num_bytes is not None

    def answer(self, status: int, content: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing on stderr."""


def drop_after(num_bytes: int) -> Fault:
    """Some bytes of a large file, then the connection is closed."""
    return lambda to: to.send_content(asked_for(to), num_bytes)


def other_content(to: HubAnswer) -> None:
    """Other bytes, as many as there should be."""
    to.send_content(asked_for(to)[::-1])


def unavailable(to: HubAnswer) -> None:
    to.answer(503)


def half_then_hang(to: HubAnswer) -> None:
    """Half of a large file; the rest never comes."""
    content = asked_for(to)
    to.send_content(content, len(content) // 2)
    to.wfile.flush()
    to.server.half_sent.set()
    to.server.resume.wait(30)


def asked_for(to: HubAnswer) -> bytes:
    digest = to.path.rpartition("/")[2]
    [content] = [c for c in to.server.files.values() if sha256(c) == digest]
    return content


def is_large(content: bytes) -> bool:
    return len(content) >= LARGE_BYTES


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def git_id(content: bytes) -> str:
    """The id of a git blob."""
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


def lfs(content: bytes, key: str) -> dict[str, Any]:
    return {key: sha256(content), "size": len(content), "pointerSize": 130}


@contextmanager
def serving(files: dict[str, bytes]) -> Iterator[FakeHub]:
    """A `FakeHub` that runs while the block does."""
    with FakeHub(files) as hub:
        thread = threading.Thread(target=hub.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield hub
        finally:
            hub.resume.set()
            hub.shutdown()
            thread.join()
