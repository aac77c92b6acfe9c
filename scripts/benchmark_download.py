"""Fetch an engine from a tar archive over HTTP: `fetch` against `curl … | tar x`, in one run.

A server of its own process on the loopback stands for an object store that is far away: each
request is answered 20 ms late, and each connection gets at most 85 MB/s, which is what Amazon's
guide to the performance of S3 counts for one request (85 to 90 MB/s). Without such a limit the
loopback would be measured, not a download. `fetch` does all that it does for a user: ranges,
SHA-256 of the archive and of each file, fsync, atomic publication; `curl | tar` writes the files.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

MIB = 1 << 20
CONFIG = {
    "version": "1.1.0",
    "pretrained_config": {
        "architecture": "LlamaForCausalLM",
        "vocab_size": 32000,
        "max_position_embeddings": 4096,
    },
    "build_config": {"max_batch_size": 8},
}


class SlowStore(BaseHTTPRequestHandler):
    """One file, with ranges; late by `latency_s` and at most `bytes_per_s` a connection."""

    protocol_version = "HTTP/1.1"
    archive: Path
    latency_s: float
    bytes_per_s: float

    def do_GET(self) -> None:
        time.sleep(self.latency_s)
        total = self.archive.stat().st_size
        first, last = 0, total - 1
        wanted = self.headers.get("Range")
        if wanted is not None:
            start, _, end = wanted.removeprefix("bytes=").partition("-")
            first, last = int(start), min(int(end), total - 1)
        self.send_response(206 if wanted else 200)
        self.send_header("Content-Length", str(last + 1 - first))
        self.send_header("ETag", '"benchmark"')
        if wanted:
            self.send_header("Content-Range", f"bytes {first}-{last}/{total}")
        self.end_headers()
        self.wfile.flush()
        self._send(first, last + 1)

    def _send(self, at: int, end: int) -> None:
        started_at, sent = time.monotonic(), 0
        with self.archive.open("rb") as file:
            while at < end:
                step = os.sendfile(self.connection.fileno(), file.fileno(), at, min(end - at, MIB))
                at, sent = at + step, sent + step
                ahead_s = sent / self.bytes_per_s - (time.monotonic() - started_at)
                if ahead_s > 0:
                    time.sleep(ahead_s)

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


class StoreServer(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Connections that a client closes when it is done are no error."""


def serve(options: argparse.Namespace) -> None:
    SlowStore.archive = Path(options.serve)
    SlowStore.latency_s = options.latency_ms / 1e3
    SlowStore.bytes_per_s = options.connection_mb_per_s * 1e6
    with StoreServer(("127.0.0.1", 0), SlowStore) as server:
        print(server.server_address[1], flush=True)
        server.serve_forever()


def make_archive(path: Path, size_bytes: int) -> str:
    """A tar with an engine of `size_bytes` that does not compress; its SHA-256."""
    block = os.urandom(MIB)

    class Engine(io.RawIOBase):
        def read(self, size: int = -1) -> bytes:
            return block[:size]

    files = {"config.json": CONFIG, "generation_config.json": {"eos_token_id": 2}}
    with tarfile.open(path, "w") as archive:
        for name, content in [*files.items(), ("tokenizer.json", {})]:
            text = json.dumps(content).encode()
            info = tarfile.TarInfo(f"engine/{name}")
            info.size = len(text)
            archive.addfile(info, io.BytesIO(text))
        info = tarfile.TarInfo("engine/rank0.engine")
        info.size = size_bytes
        archive.addfile(info, Engine())
    with path.open("rb") as file:
        digest = hashlib.sha256()
        while chunk := file.read(4 * MIB):
            digest.update(chunk)
    return digest.hexdigest()


def fetch_here(url: str, store: str) -> None:
    """What the measured child does; prints the seconds and its peak memory as JSON."""
    from cog_triton.artifacts.fetch import fetch
    from cog_triton.artifacts.progress import silent

    started_at = time.perf_counter()
    model = fetch(url, Path(store), progress=silent)
    elapsed_s = time.perf_counter() - started_at
    if model.format != "engine":
        raise SystemExit(f"{model.path} is no engine")
    status = Path("/proc/self/status").read_text(encoding="ascii")
    [peak_kib] = [line.split()[1] for line in status.splitlines() if line.startswith("VmHWM")]
    print(json.dumps({"elapsed_s": elapsed_s, "peak_bytes": int(peak_kib) * 1024}))


def measure_fetch(url: str, store: Path) -> tuple[float, int]:
    command = [sys.executable, __file__, "--fetch", url, str(store)]
    out = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    return out["elapsed_s"], out["peak_bytes"]


def measure_curl(url: str, target: Path) -> float:
    target.mkdir()
    started_at = time.perf_counter()
    command = f"set -o pipefail; curl -sSf '{url}' | tar x -C '{target}'"
    subprocess.run(["bash", "-c", command], check=True)
    return time.perf_counter() - started_at


def run(options: argparse.Namespace, work: Path) -> int:
    archive, size_bytes = work / "engine.tar", options.size_mib * MIB
    print(f"making a tar of {options.size_mib} MiB in {work}", flush=True)
    sha256 = make_archive(archive, size_bytes)
    command = [sys.executable, __file__, "--serve", str(archive)]
    command += ["--latency-ms", str(options.latency_ms)]
    command += ["--connection-mb-per-s", str(options.connection_mb_per_s)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            url = f"http://127.0.0.1:{int(server.stdout.readline())}/engine.tar"
            curl_s = measure_curl(url, work / "curl")
            fetch_s, peak_bytes = measure_fetch(f"{url}#sha256={sha256}", work / "models")
        finally:
            server.terminate()
    ratio, load = curl_s / fetch_s, os.getloadavg()[0]
    print(f"curl | tar x  {curl_s:6.2f} s  {size_bytes / curl_s / 1e6:6.0f} MB/s")
    print(f"fetch         {fetch_s:6.2f} s  {size_bytes / fetch_s / 1e6:6.0f} MB/s")
    print(f"ratio         {ratio:6.2f}    (wanted: 3 or more)")
    print(f"peak memory   {peak_bytes / 1e6:6.0f} MB (wanted: below 200)")
    print(
        f"load average  {load:6.1f}    on {os.cpu_count()} cores (what else runs slows fetch down)"
    )
    return 0 if ratio >= 3 and peak_bytes < 200e6 else 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size-mib", type=int, default=1024)
    parser.add_argument("--latency-ms", type=float, default=20.0)
    parser.add_argument("--connection-mb-per-s", type=float, default=85.0)
    parser.add_argument("--dir", type=Path, help="where to work; default: the temporary directory")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    parser.add_argument("--fetch", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options)
        return 0
    if options.fetch:
        fetch_here(*options.fetch)
        return 0
    work = Path(tempfile.mkdtemp(prefix="benchmark-download-", dir=options.dir))
    try:
        return run(options, work)
    finally:
        shutil.rmtree(work)


if __name__ == "__main__":
    sys.exit(main())
