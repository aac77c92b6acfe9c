"""A real tritonserver with a filled `tensorrt_llm` model, on the stand-ins of TensorRT-LLM."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from cog_triton import model_repository, triton_installation
from cog_triton.runtimes.config import FILE_NAME, RuntimeConfig
from cog_triton.server import TritonServer
from tests.triton_samples import triton_settings

TESTS = Path(__file__).parent
TEMPLATES = TESTS.parent / "triton_model_repo"
STANDINS = TESTS / "standins"
READY_S = 60.0
STREAM = "/v2/models/tensorrt_llm/generate_stream"


@contextmanager
def slot_server(
    directory: Path,
    values: Mapping[str, object],
    config: RuntimeConfig | None = None,
    **environment: str,
) -> Iterator[TritonServer]:
    """A started server; `values` fill the template, `config` is for a Python runtime.

    The stand-in backend `tensorrtllm` lies beside Triton's own, and the stand-in package
    `tensorrt_llm` can be imported. The server is killed at the end whatever happened.
    """
    installation = triton_installation.find(None, directory)
    assert installation.backend_directory is not None
    _add_standin_backend(installation.backend_directory)
    files = {f"tensorrt_llm/1/{FILE_NAME}": config.to_json()} if config else {}
    repository = model_repository.build(
        TEMPLATES, directory / "repository", {"tensorrt_llm": values}, files=files
    )
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {"PYTHONPATH": str(STANDINS), **environment}.items():
            patch.setenv(name, value)
        server = TritonServer.start(triton_settings(), installation, repository, directory / "run")
    try:
        yield server
    finally:
        server.stop(0)


def _add_standin_backend(backends: Path) -> None:
    """A Python-based backend: model.py and the Python backend's files, which may not be links."""
    target = backends / "tensorrtllm"
    target.mkdir()
    for file in [*(backends / "python").iterdir(), STANDINS / "backends/tensorrtllm/model.py"]:
        if file.is_file():
            shutil.copy(file, target / file.name)


async def events(server: TritonServer, body: Mapping[str, Any]) -> list[dict[str, Any]]:
    """All events of one request to generate_stream."""
    async with httpx.AsyncClient(base_url=server.http_url, timeout=30) as http:
        answer = await http.post(STREAM, json=body)
    lines = [line.removeprefix("data: ") for line in answer.text.splitlines()]
    return [json.loads(line) for line in lines if line]


def ids_of(event: Mapping[str, Any]) -> list[int]:
    """The new ids of an event; Triton writes a tensor of one element as a number."""
    ids = event["output_ids"]
    return ids if isinstance(ids, list) else [ids]


def records(path: Path, call: str) -> list[dict[str, Any]]:
    """The arguments of each call that a stand-in has written down."""
    if not path.exists():
        return []
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return [line["arguments"] for line in lines if line["call"] == call]
