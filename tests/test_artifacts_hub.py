"""Tests of cog_triton.artifacts.hub with the real huggingface_hub and a hub on the loopback."""

from __future__ import annotations

import json
import os
import random
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cog_triton.artifacts.fetch import fetch, find_fetched, obtain
from cog_triton.artifacts.hub import HubName, hub_model
from cog_triton.artifacts.manifest import MANIFEST_NAME, Manifest
from cog_triton.artifacts.model_directory import ModelDirectory
from cog_triton.artifacts.options import DownloadOptions, FetchOptions
from cog_triton.artifacts.progress import silent
from cog_triton.artifacts.retries import RetryPolicy
from cog_triton.errors import ArtifactCorrupt, ArtifactUnavailable, UnsupportedModel
from tests import artifact_samples as samples
from tests import fake_hub
from tests.archive_samples import engine_files
from tests.fake_hub import COMMIT, REPO, FakeHub

CONFIG = {
    "model_type": "llama",
    "vocab_size": 10,
    "max_position_embeddings": 64,
    "eos_token_id": 2,
}
WEIGHTS = {
    "model-00001-of-00002.safetensors": random.Random(1).randbytes(300_000),
    "model-00002-of-00002.safetensors": random.Random(2).randbytes(200_000),
}
SMALL = {
    "config.json": json.dumps(CONFIG).encode(),
    "generation_config.json": b"{}",
    "tokenizer.json": b"{}" + b" " * 2000,
    "tokenizer_config.json": b"{}",
    "chat_template.jinja": b"{{ messages }}",
    "model.safetensors.index.json": json.dumps(
        {"weight_map": dict(zip("ab", WEIGHTS, strict=True))}
    ).encode(),
}
NOT_NEEDED = {
    "README.md": b"read me",
    ".gitattributes": b"",
    "pytorch_model.bin": b"p" * 5000,
    "consolidated.safetensors": b"c" * 5000,
    "onnx/model.onnx": b"o" * 5000,
    "original/params.json": b"{}",
}


@pytest.fixture(autouse=True)
def _no_token_of_mine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A token of this machine must not decide a test, nor its cache."""
    monkeypatch.setenv("HF_HUB_DISABLE_IMPLICIT_TOKEN", "1")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hf"))
    monkeypatch.setattr("huggingface_hub.constants.HF_TOKEN_PATH", str(tmp_path / "token"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DOWNLOAD_TIMEOUT", 5)


@pytest.fixture
def hub() -> Iterator[FakeHub]:
    """A hub that has a checkpoint of two shards and much that is not needed."""
    with fake_hub.serving({**WEIGHTS, **SMALL, **NOT_NEEDED}) as running:
        yield running


@pytest.fixture
def options(hub: FakeHub) -> FetchOptions:
    retries = RetryPolicy(num_attempts=3, first_wait_s=0.001)
    return FetchOptions(silent, download=DownloadOptions(retries=retries), hub_endpoint=hub.url)


def fetch_hub(source: str, store: Path, options: FetchOptions) -> ModelDirectory:
    return obtain(hub_model(source, store, options), options)


def names(directory: Path) -> set[str]:
    return {path.name for path in directory.iterdir()}


def test_a_checkpoint_is_fetched(hub: FakeHub, options: FetchOptions, tmp_path: Path) -> None:
    """The files that are needed, whole, in a directory of the model's name; no others."""
    model = fetch_hub(REPO, tmp_path, options)
    assert (model.format, model.path) == ("checkpoint", tmp_path / "tiny-org--tiny-model")
    assert names(model.path) == {*WEIGHTS, *SMALL, MANIFEST_NAME}
    for name, content in {**WEIGHTS, **SMALL}.items():
        assert (model.path / name).read_bytes() == content
    assert names(tmp_path) - {"hf"} == {model.path.name, f".{model.path.name}.lock"}
    assert not [path for name in NOT_NEEDED for path in hub.asked("GET", f"/{name}")]


def test_the_commit_and_all_hashes_are_recorded(options: FetchOptions, tmp_path: Path) -> None:
    """What a branch stood at is known afterwards."""
    model = fetch_hub(f"{REPO}@main", tmp_path, options)
    manifest = Manifest.read(model.path)
    assert manifest is not None
    assert manifest.origin == {"repo": REPO, "commit": COMMIT}
    for name, content in {**WEIGHTS, **SMALL}.items():
        assert manifest.files[name].sha256 == fake_hub.sha256(content)


def test_a_second_fetch_asks_nothing(hub: FakeHub, options: FetchOptions, tmp_path: Path) -> None:
    """A model that is there is used without the hub, for any runtime; looking asks nothing."""
    assert find_fetched(REPO, tmp_path) is None
    model = fetch_hub(REPO, tmp_path, options)
    num_requests = len(hub.requests)
    assert fetch_hub(REPO, tmp_path, options) == model
    assert fetch_hub(REPO, tmp_path, replace(options, prepare_for="openvino")) == model
    manifest = Manifest.read(model.path)
    assert manifest is not None
    assert manifest.recipe.prepared
    assert manifest.origin["commit"] == COMMIT
    assert find_fetched(REPO, tmp_path) == model
    assert len(hub.requests) == num_requests


@pytest.mark.parametrize("revision", ["v1.0", COMMIT])
def test_a_revision_has_a_directory_of_its_own(
    options: FetchOptions, tmp_path: Path, revision: str
) -> None:
    """Tags and commits do not take the place of the main branch."""
    path = fetch_hub(f"{REPO}@{revision}", tmp_path, options).path
    assert path.name == f"tiny-org--tiny-model@{revision}"


def test_a_download_that_breaks_goes_on(
    hub: FakeHub, options: FetchOptions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dropped connections and a server that stumbles are got over, with ranges."""
    monkeypatch.setattr("huggingface_hub.constants.DOWNLOAD_CHUNK_SIZE", 500)
    hub.faults.extend([fake_hub.drop_after(1000), fake_hub.unavailable])
    assert fetch_hub(REPO, tmp_path, options).format == "checkpoint"
    ranges = [headers.get("range") for _, path, headers in hub.requests if "/store/" in path]
    assert "bytes=1000-" in ranges


def test_what_has_arrived_is_kept_for_the_next_start(
    hub: FakeHub, options: FetchOptions, tmp_path: Path
) -> None:
    """A fetch that fails leaves no model, but the next one does not begin anew."""
    once = replace(options, download=DownloadOptions(retries=RetryPolicy(1)))
    [large, other] = [fake_hub.sha256(content) for content in WEIGHTS.values()]
    hub.files["tokenizer.json"] = b"{}"
    hub.faults.extend([fake_hub.unavailable] * 4)
    with pytest.raises(ArtifactUnavailable, match="503"):
        fetch_hub(REPO, tmp_path, once)
    assert find_fetched(REPO, tmp_path) is None
    hub.faults.clear()
    num_requests = len(hub.requests)
    assert fetch_hub(REPO, tmp_path, options).format == "checkpoint"
    again = [path for _, path, _ in hub.requests[num_requests:]]
    assert not [path for path in again if path.endswith("/config.json")]
    assert {f"/store/{large}", f"/store/{other}"} <= set(again)
    assert names(tmp_path) - {"hf"} == {"tiny-org--tiny-model", ".tiny-org--tiny-model.lock"}


def test_other_bytes_than_the_hub_names(
    hub: FakeHub, options: FetchOptions, tmp_path: Path
) -> None:
    """A weight file whose SHA-256 differs is told, and fetched again at the next start."""
    hub.faults.extend([fake_hub.other_content] * 3)
    with pytest.raises(ArtifactCorrupt, match="other bytes than the Hub names"):
        fetch_hub(REPO, tmp_path, options)
    hub.faults.clear()
    assert fetch_hub(REPO, tmp_path, options).format == "checkpoint"


@pytest.mark.parametrize(
    ("status", "code", "says"),
    [
        (401, "GatedRepo", "gated: ask for access on huggingface.co/tiny-org/tiny-model"),
        (403, "GatedRepo", "gated"),
        (401, "RepoNotFound", "shows no tiny-org/tiny-model"),
        (404, "RepoNotFound", "no such path here"),
        (403, "", "token may not read"),
    ],
)
def test_refusals_say_what_to_do(
    hub: FakeHub, options: FetchOptions, tmp_path: Path, status: int, code: str, says: str
) -> None:
    """Gated, private and missing models are told apart, with the way out; once, without retries."""
    hub.token, hub.refusal = "hf_right", (status, code)
    with pytest.raises(ArtifactUnavailable, match=says) as caught:
        fetch_hub(REPO, tmp_path, options)
    assert "HF_TOKEN" in str(caught.value)
    assert len(hub.requests) == 1
    assert names(tmp_path) - {"hf"} == {".tiny-org--tiny-model.lock"}


def test_a_revision_that_is_not_there(options: FetchOptions, tmp_path: Path) -> None:
    """The error names the revision."""
    with pytest.raises(ArtifactUnavailable, match=r"revision v9.*what follows @"):
        fetch_hub(f"{REPO}@v9", tmp_path, options)


def test_a_hub_that_fails(hub: FakeHub, options: FetchOptions, tmp_path: Path) -> None:
    """Server errors are asked again a few times, then told."""
    hub.api_status = 503
    with pytest.raises(ArtifactUnavailable, match="answers 503"):
        fetch_hub(REPO, tmp_path, options)
    assert len(hub.requests) == 3


def test_a_hub_that_is_not_there(options: FetchOptions, tmp_path: Path) -> None:
    """Without a network the error says what could not be reached."""
    with fake_hub.serving({}) as hub:
        gone = replace(options, hub_endpoint=hub.url)
    with pytest.raises(ArtifactUnavailable, match="could not be reached"):
        fetch_hub(REPO, tmp_path, gone)


def test_offline(
    hub: FakeHub, options: FetchOptions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """HF_HUB_OFFLINE is respected for what is not there, and does not matter for what is."""
    fetch_hub(f"{REPO}@v1.0", tmp_path, options)
    num_requests = len(hub.requests)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    fetch_hub(f"{REPO}@v1.0", tmp_path, options)
    with pytest.raises(ArtifactUnavailable, match="HF_HUB_OFFLINE"):
        fetch_hub(REPO, tmp_path, options)
    assert len(hub.requests) == num_requests


def test_room_is_checked_before_the_download(
    hub: FakeHub, options: FetchOptions, tmp_path: Path
) -> None:
    """With too little space no file is asked for."""
    full = replace(options, disk_usage=lambda _: SimpleNamespace(free=400_000))
    with pytest.raises(ArtifactUnavailable, match="are needed"):
        fetch_hub(REPO, tmp_path, full)
    assert hub.asked("GET", "resolve") == []


def test_progress_counts_all_files(options: FetchOptions, tmp_path: Path) -> None:
    """One step with the bytes of all files, whose end comes when all are there."""
    seen: list[tuple[str, int, int | None]] = []
    fetch_hub(REPO, tmp_path, replace(options, progress=lambda *report: seen.append(report)))
    total_bytes = sum(map(len, {**WEIGHTS, **SMALL}.values()))
    assert {step for step, _, _ in seen} == {f"download {REPO}"}
    assert seen[-1][1:] == (total_bytes, total_bytes)
    assert total_bytes // 2 < seen[-2][1] < total_bytes
    assert [done for _, done, _ in seen] == sorted(done for _, done, _ in seen)


def test_a_repository_that_cannot_be_served(
    hub: FakeHub, options: FetchOptions, tmp_path: Path
) -> None:
    """What lacks a tokenizer is told before anything is fetched."""
    del hub.files["tokenizer.json"]
    with pytest.raises(UnsupportedModel, match=r"tokenizer\.json"):
        fetch_hub(REPO, tmp_path, options)
    assert len(hub.requests) == 1


def test_an_engine_repository(hub: FakeHub, options: FetchOptions, tmp_path: Path) -> None:
    """An engine that was uploaded is fetched as one."""
    hub.files = {**engine_files(b"engine" * 500), "README.md": b"x"}
    model = fetch_hub(REPO, tmp_path, options)
    assert model.format == "engine"
    assert names(model.path) == {*engine_files(), MANIFEST_NAME}


@pytest.mark.parametrize("selector", ["", "/Q4/tiny-Q4.gguf"])
def test_a_gguf_repository(
    hub: FakeHub, options: FetchOptions, tmp_path: Path, selector: str
) -> None:
    """The one GGUF, or the one that is named, gets its tokenizer; preparing asks no hub."""
    gguf = samples.write_gguf(tmp_path / "a.gguf", with_weights=True).read_bytes()
    hub.files = {"Q4/tiny-Q4.gguf": gguf, "README.md": b"x"}
    if selector:
        hub.files["tiny-Q8.gguf"] = b"GGUF" * 1000
    model = fetch_hub(REPO + selector, tmp_path / "models", options)
    assert (model.format, model.weights.read_bytes()) == ("gguf", gguf)
    num_requests = len(hub.requests)
    prepared = replace(options, prepare_for="openvino")
    assert fetch_hub(REPO + selector, tmp_path / "models", prepared).format == "openvino_ir"
    assert len(hub.requests) == num_requests


def test_names_of_models() -> None:
    """Revision and file are told from the name; what cannot be a name is none."""
    assert HubName.parse("a/b") == HubName("a/b")
    assert HubName.parse("a/b@refs/pr/1") == HubName("a/b", "refs/pr/1")
    assert HubName.parse("a/b/c/d.gguf@v1") == HubName("a/b", "v1", "c/d.gguf")
    for source in ("a", "a/b/c", "a/b@", "/a/b", "s3://a/b", "a b/c", "a/b\n", "../a", ""):
        assert HubName.parse(source) is None, source


# Processes, and the environment

_PROGRAM = """
import logging, sys
from pathlib import Path
from cog_triton.artifacts.fetch import fetch
logging.basicConfig(level=logging.DEBUG)
print(fetch(sys.argv[1], Path(sys.argv[2])).path)
"""


def start(
    hub: FakeHub, store: Path, monkeypatch: pytest.MonkeyPatch, **environ: Any
) -> subprocess.Popen[str]:
    monkeypatch.delenv("HF_HUB_DISABLE_IMPLICIT_TOKEN")
    monkeypatch.setenv("HF_ENDPOINT", hub.url)
    monkeypatch.setenv("HF_HOME", str(store / "hf"))
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    return samples.start_python(_PROGRAM, REPO, str(store))


def test_endpoint_and_token_come_from_the_environment(
    hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """HF_ENDPOINT and HF_TOKEN are used; no log at any level and no file has the token."""
    hub.token = "hf_secretsecretsecret"
    with start(hub, tmp_path, monkeypatch, HF_TOKEN=hub.token) as process:
        out, err = process.communicate(timeout=60)
    assert out.strip() == str(tmp_path / "tiny-org--tiny-model"), err
    assert hub.token not in out + err
    with_token = [path for _, path, headers in hub.requests if "authorization" in headers]
    assert with_token
    assert not [path for path in with_token if "/store/" in path]
    for path in (tmp_path / "tiny-org--tiny-model").iterdir():
        assert hub.token.encode() not in path.read_bytes()


def test_the_token_stays_with_the_hub(
    hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A refusal does not print the token that was refused."""
    hub.token = "hf_right"
    with start(hub, tmp_path, monkeypatch, HF_TOKEN="hf_wrongwrongwrong") as process:
        out, err = process.communicate(timeout=60)
    assert "E3002" in err
    assert "hf_wrong" not in out + err


def test_a_killed_download_is_taken_up(
    hub: FakeHub, options: FetchOptions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SIGKILL half way leaves no model; the next fetch completes with what had arrived."""
    hub.faults.extend([fake_hub.half_then_hang] * 3)
    with start(hub, tmp_path, monkeypatch) as process:
        assert hub.half_sent.wait(30)
        process.kill()
    hub.resume.set()
    hub.faults.clear()
    assert find_fetched(REPO, tmp_path) is None
    assert fetch_hub(REPO, tmp_path, options).format == "checkpoint"
    store = {"tiny-org--tiny-model", ".tiny-org--tiny-model.lock"}
    assert names(tmp_path) - {"hf"} == store


def test_a_start_that_finds_the_model_loads_no_hub_library(
    options: FetchOptions, tmp_path: Path
) -> None:
    """The library costs nothing once the model is there."""
    fetch_hub(REPO, tmp_path, options)
    program = (
        "import sys; from pathlib import Path; from cog_triton.artifacts.fetch import fetch\n"
        "fetch(sys.argv[1], Path(sys.argv[2])); print('huggingface_hub' in sys.modules)"
    )
    with samples.start_python(program, REPO, str(tmp_path)) as process:
        assert process.communicate(timeout=60) == ("False\n", "")


def test_a_path_comes_before_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A directory that is called like a model is the directory."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny-org" / "tiny-model").mkdir(parents=True)
    for name, content in engine_files().items():
        (tmp_path / "tiny-org" / "tiny-model" / name).write_bytes(content)
    assert fetch(REPO, tmp_path / "models", progress=silent).path == Path(REPO)
    assert os.listdir(tmp_path) == ["tiny-org"]
