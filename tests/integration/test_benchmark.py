"""scripts/benchmark.py as people run it, against the real servers."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.load.summary import Summary
from tests.conftest import RunningCog, RunningTriton, free_ports

SCRIPT = Path(__file__).parents[2] / "scripts" / "benchmark.py"
SHORT = ["--requests", "3", "--warmup", "0", "--input-tokens", "16", "--output-tokens", "6"]
LATENCIES = ("time_to_first_token_ms", "inter_token_ms", "inter_piece_ms", "end_to_end_ms")
PNG = b"\x89PNG\r\n\x1a\n"


def benchmark(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(SCRIPT), *SHORT, *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.parametrize("target", ["cog", "triton"])
def test_no_server(target: str) -> None:
    """Without a server the command ends with one line that names the address, and no traceback."""
    url = f"http://127.0.0.1:{free_ports(1)[0]}"
    done = benchmark("--target", target, "--url", url)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"Nothing answers at {url}")
    assert done.stderr.count("\n") == 1


def test_another_machine_is_refused() -> None:
    """Load on another machine has to be allowed with a flag; nothing is sent before."""
    done = benchmark("--url", "http://192.0.2.1:5000")
    assert done.returncode == 2
    assert "--allow-remote" in done.stderr


@pytest.mark.parametrize("wrong", ["--concurrency=0", "--requests=-1", "--warmup=-1"])
def test_wrong_counts(wrong: str) -> None:
    """Counts that make no sense are refused before anything is sent."""
    done = benchmark(wrong)
    assert done.returncode == 2
    assert "or more" in done.stderr


def test_requests_that_fail_are_shown(triton: RunningTriton) -> None:
    """Requests that the server refuses are counted with its words, and the exit status is 1."""
    too_long = ["--output-tokens", "5000", "--concurrency", "2"]
    done = benchmark("--target", "triton", "--url", triton.triton_url, *too_long)
    assert done.returncode == 1
    assert "3 failed" in done.stdout
    assert "3 x HTTP 400: E1002 PromptTooLong" in done.stdout


def test_cog_over_concurrency(cog: RunningCog, tmp_path: Path) -> None:
    """A table, JSON and a plot, with every statistic, and progress while it runs."""
    found, plot = tmp_path / "figures.json", tmp_path / "plots" / "figures.png"
    outputs = ["--json", str(found), "--plot", str(plot)]
    done = benchmark("--url", cog.url, "--concurrency", "1", "2", *outputs)
    assert done.returncode == 0, done.stderr
    assert "concurrency 2: 3 requests" in done.stdout
    assert "concurrency 2, measured: 3 of 3 requests" in done.stderr
    assert plot.read_bytes().startswith(PNG)
    content = json.loads(found.read_text())
    assert content["parameters"]["target"] == "cog"
    assert [level["concurrency"] for level in content["levels"]] == [1, 2]
    for level in content["levels"]:
        assert (level["num_requests"], level["num_failed"], level["errors"]) == (3, 0, {})
        assert level["num_output_tokens"] == 18
        for name in LATENCIES:
            summary = Summary(**level[name])
            assert 0 < summary.min <= summary.p50 <= summary.p99 <= summary.max, name
        assert level["time_to_first_token_ms"]["max"] < level["end_to_end_ms"]["max"]


@pytest.mark.parametrize("stream", [True, False])
def test_triton(triton: RunningTriton, tmp_path: Path, stream: bool) -> None:
    """Token ids through Triton's generate endpoint, as a stream and as whole answers."""
    found = tmp_path / "figures.json"
    flags = ["--concurrency", "3", "--json", str(found), *([] if stream else ["--no-stream"])]
    done = benchmark("--target", "triton", "--url", triton.triton_url, *flags)
    assert done.returncode == 0, done.stderr
    (level,) = json.loads(found.read_text())["levels"]
    assert level["num_output_tokens"] == 18
    assert (level["time_to_first_token_ms"] is not None) == stream
    assert level["end_to_end_ms"]["min"] > 0
