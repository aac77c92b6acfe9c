"""An engine for other machines: an archive, or a repository of a hub on the loopback."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
import tarfile
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from cog_triton.artifacts.manifest import MANIFEST_NAME, sha256_of
from cog_triton.build import share
from cog_triton.build.manifest import ENGINE_MANIFEST_NAME
from cog_triton.errors import ArtifactUnavailable, SettingsError
from tests.engine_samples import ROOT, write_engine

UPLOAD = """
import sys
from pathlib import Path
from cog_triton.build import share
from cog_triton.errors import CogTritonError
try:
    print(share.upload(Path(sys.argv[1]), "org/engine", private=True))
except CogTritonError as err:
    sys.exit(str(err))
"""


def engine_dir(tmp_path: Path) -> Path:
    path = write_engine(tmp_path / "engine")
    (path / MANIFEST_NAME).write_text("{}")
    (path / ENGINE_MANIFEST_NAME).write_text("{}")
    return path


@pytest.mark.parametrize("name", ["engine.zip", "engine.tar.zst", "engine"])
def test_archives_of_another_kind(tmp_path: Path, name: str) -> None:
    """The suffix says what is written; others are refused."""
    with pytest.raises(SettingsError, match=r"expected \.tar or \.tar\.gz"):
        share.write_tar(engine_dir(tmp_path), tmp_path / name)


def test_an_archive_that_cannot_be_written(tmp_path: Path) -> None:
    """Nothing of it stays."""
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(ArtifactUnavailable, match="cannot be written"):
        share.write_tar(engine_dir(tmp_path), tmp_path / "file" / "engine.tar")


@pytest.mark.parametrize("name", ["engine.tar", "engine.tar.gz", "engine.tgz"])
def test_the_files_of_the_engine_at_the_top(tmp_path: Path, name: str) -> None:
    """All but the manifest of this machine's cache, with no owner and no time."""
    target = tmp_path / "out" / name
    digest = share.write_tar(engine_dir(tmp_path), target)
    assert digest == sha256_of(target)
    with tarfile.open(target) as archive:
        members = archive.getmembers()
    assert {member.name for member in members} == {
        "config.json",
        "generation_config.json",
        "rank0.engine",
        "tokenizer.json",
        ENGINE_MANIFEST_NAME,
    }
    assert {(member.uid, member.uname, member.mtime) for member in members} == {(0, "", 0)}
    assert list(target.parent.iterdir()) == [target]


class Hub(BaseHTTPRequestHandler):
    """The calls of the Hub's API that an upload makes, for one token."""

    commits: list[dict[str, str]]
    repositories: list[dict[str, Any]]

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"] or 0))
        if self.headers.get("Authorization") != "Bearer hf_right":
            self._answer(401, {"error": "Invalid credentials"})
        elif self.path == "/api/repos/create":
            self.repositories.append(json.loads(body))
            self._answer(
                200, {"url": f"http://{self.headers['Host']}/org/engine", "name": "org/engine"}
            )
        elif self.path.startswith("/api/models/org/engine/preupload/"):
            files = [file["path"] for file in json.loads(body)["files"]]
            modes = [
                {"path": path, "uploadMode": "regular", "shouldIgnore": False} for path in files
            ]
            self._answer(200, {"files": modes})
        elif self.path.startswith("/api/models/org/engine/commit/"):
            lines = [json.loads(line) for line in body.splitlines()]
            files = [line["value"] for line in lines if line["key"] == "file"]
            decoded = {f["path"]: base64.b64decode(f["content"]).decode() for f in files}
            self.commits.append(decoded)
            url = f"http://{self.headers['Host']}/org/engine/commit/abc"
            self._answer(200, {"commitUrl": url, "commitOid": "abc", "success": True})
        else:
            self._answer(200, {})

    def do_GET(self) -> None:
        self._answer(200, {"id": "org/engine", "sha": "0" * 40, "siblings": []})

    def log_message(self, *_: object) -> None:
        """Quiet."""

    def _answer(self, status: int, value: object) -> None:
        content = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


@pytest.fixture
def hub() -> Iterator[tuple[str, type[Hub]]]:
    """Address of a hub, and what it was told."""
    handler = type("OneHub", (Hub,), {"commits": [], "repositories": []})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}", handler
        server.shutdown()
        thread.join()


def upload(engine: Path, endpoint: str, token: str) -> subprocess.CompletedProcess[str]:
    """In a process of its own, as huggingface_hub reads its variables when it is imported."""
    environ = {**os.environ, "HF_ENDPOINT": endpoint, "HF_TOKEN": token, "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [sys.executable, "-c", UPLOAD, str(engine)],
        env={**environ, "HF_HUB_DISABLE_XET": "1", "HF_HOME": str(engine.parent / "hf")},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_a_refused_upload(tmp_path: Path, hub: tuple[str, type[Hub]]) -> None:
    """The hub's reason comes through, the token does not."""
    done = upload(engine_dir(tmp_path), hub[0], "hf_wrong")
    assert done.returncode == 1
    assert "E3002 ArtifactUnavailable: org/engine could not be uploaded" in done.stderr
    assert "401" in done.stderr
    assert "hf_wrong" not in done.stderr + done.stdout


def test_an_upload(tmp_path: Path, hub: tuple[str, type[Hub]]) -> None:
    """A private repository with the engine's files in one commit."""
    endpoint, seen = hub
    done = upload(engine_dir(tmp_path), endpoint, "hf_right")
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == f"{endpoint}/org/engine/commit/abc"
    assert seen.repositories[0]["name"] == "engine"
    assert "private" in json.dumps(seen.repositories[0])
    (files,) = seen.commits
    assert files["rank0.engine"] == "an engine"
    assert ENGINE_MANIFEST_NAME in files
    assert MANIFEST_NAME not in files
