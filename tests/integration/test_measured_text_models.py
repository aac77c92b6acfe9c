"""scripts/benchmark.py and scripts/evaluate.py on the models ensemble and tensorrt_llm_bls."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.text_model_server import TextServer, text_server

SCRIPTS = Path(__file__).parents[2] / "scripts"
MODELS = ["ensemble", "tensorrt_llm_bls"]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TextServer]:
    with text_server(tmp_path_factory.mktemp("measured")) as running:
        yield running


def run(script: str, server: TextServer, *arguments: str) -> subprocess.CompletedProcess[str]:
    target = ["--target", "triton", "--url", server.http_url]
    return subprocess.run(
        [sys.executable, str(SCRIPTS / script), *target, *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("model", MODELS)
def test_every_token_is_counted(
    server: TextServer, tmp_path: Path, model: str, stream: bool
) -> None:
    """Answers of a known length: all of their tokens are in the figures, streamed or not."""
    found = tmp_path / "figures.json"
    lengths = ["--input-tokens", "16", "--output-tokens", "6"]
    flags = ["--requests", "3", "--warmup", "0", "--concurrency", "3", "--json", str(found)]
    flags += [] if stream else ["--no-stream"]
    done = run("benchmark.py", server, "--model", model, *lengths, *flags)
    assert done.returncode == 0, done.stdout + done.stderr
    (level,) = json.loads(found.read_text())["levels"]
    assert level["num_output_tokens"] == 18
    assert (level["inter_token_ms"] is not None) == stream


@pytest.mark.parametrize("model", MODELS)
def test_text_in_gives_the_answers_of_ids_in(
    server: TextServer, tmp_path: Path, model: str
) -> None:
    """Prompts as text get the same greedy answers as prompts as ids."""
    answers = {}
    for name in ("tensorrt_llm", model):
        found = tmp_path / f"{name}.json"
        flags = ["--limit", "2", "--max-tokens", "8", "--json", str(found)]
        done = run("evaluate.py", server, "--model", name, *flags)
        assert done.returncode == 0, done.stderr
        answers[name] = [case["answer"] for case in json.loads(found.read_text())["cases"]]
    assert answers[model] == answers["tensorrt_llm"]
    assert all(answers[model])
