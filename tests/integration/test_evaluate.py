"""scripts/evaluate.py as people run it, against the real servers."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from benchmarks.quality.evaluation import SCORES
from benchmarks.quality.reference import Reference
from tests.conftest import RunningCog, RunningTriton, free_ports

SCRIPT = Path(__file__).parents[2] / "scripts" / "evaluate.py"
SHORT = ["--limit", "2", "--max-tokens", "6"]


def evaluate(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(SCRIPT), *SHORT, *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_no_server() -> None:
    """Without a server the command ends with one line that names the address, and no traceback."""
    url = f"http://127.0.0.1:{free_ports(1)[0]}"
    done = evaluate("--url", url)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"Nothing answers at {url}")
    assert done.stderr.count("\n") == 1


def test_no_such_score() -> None:
    """A threshold for a score that does not exist is refused with the names that do."""
    done = evaluate("--fail-under", "rouge9=20")
    assert done.returncode == 2
    assert "summary.rouge1" in done.stderr


def test_a_server_that_says_something_else(triton: RunningTriton, tmp_path: Path) -> None:
    """Against a reference of other answers the thresholds fail, are named, and the status is 1."""
    path = tmp_path / "other.jsonl"
    done = evaluate("--reference", "openvino", "--write-reference", str(path))
    assert done.returncode == 0, done.stderr
    made = Reference.read(path)
    other = {id_: list(reversed(ids)) for id_, ids in made.answers.items()}
    Reference(made.model, made.made_by, made.max_tokens, made.instruction, other).write(path)
    done = evaluate(
        *("--target", "triton", "--url", triton.triton_url, "--reference", str(path)),
        *("--fail-under", "tokens.share=90", "--fail-under", "reference.rougeL=1"),
    )
    assert done.returncode == 1, done.stderr
    assert "FAILED: tokens.share is " in done.stderr
    assert "FAILED: reference.rougeL" not in done.stderr


def test_triton_says_what_its_engine_says(triton: RunningTriton, tmp_path: Path) -> None:
    """The same engine without any server gives the same tokens, each of them."""
    path, found = tmp_path / "made.jsonl", tmp_path / "scores.json"
    done = evaluate("--reference", "openvino", "--write-reference", str(path))
    assert done.returncode == 0, done.stderr
    done = evaluate(
        *("--target", "triton", "--url", triton.triton_url, "--reference", str(path)),
        *("--fail-under", "tokens.exact=100", "--json", str(found)),
    )
    assert done.returncode == 0, done.stderr
    content = json.loads(found.read_text())
    assert content["reference"]["made_by"].startswith("openvino-genai ")
    assert set(content["scores"]) == set(SCORES)
    assert content["failed"] == []
    assert [case["tokens"]["num_tokens"] for case in content["cases"]] == [6, 6]


def test_a_reference_is_made_by_an_engine(tmp_path: Path) -> None:
    """A file cannot make a reference: the engines are named, and nothing is written."""
    path = tmp_path / "made.jsonl"
    done = evaluate("--reference", "other.jsonl", "--write-reference", str(path))
    assert (done.returncode, path.exists()) == (2, False)
    assert "openvino or transformers" in done.stderr


def test_cog_says_what_transformers_says(cog: RunningCog) -> None:
    """Cog's summaries are like those of the shipped reference, made by transformers.

    Texts are compared and loosely, as another CPU's arithmetic can lead to other words.
    """
    longer = ["--limit", "3", "--max-tokens", "32"]
    done = evaluate("--url", cog.url, *longer, "--fail-under", "reference.rouge1=15")
    assert done.returncode == 0, done.stderr
    assert "transformers " in done.stdout
    assert "3 of 3, " in done.stderr
