"""The model repository: our template against the contract, and how it is written."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import httpx
import pytest

from cog_triton.errors import ModelRepositoryError
from cog_triton.model_repository import build
from cog_triton.template import ModelConfig, parse
from cog_triton.template_values import configure
from tests.triton_samples import start

ROOT = Path(__file__).parents[1]
TEMPLATES = ROOT / "triton_model_repo"
CONTRACT: dict[str, Any] = json.loads(
    (ROOT / "tests/data/contracts/tensorrt_llm_model.json").read_text()
)
VALUES = {
    "triton_backend": "python",
    "triton_max_batch_size": 4,
    "decoupled_mode": True,
    "engine_dir": "/engine",
    "batching_strategy": "inflight_fused_batching",
}
ECHO_MODEL = b"""
import numpy as np
import triton_python_backend_utils as pb


class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            ids = pb.get_input_tensor_by_name(request, "input_ids").as_numpy()
            words = pb.get_input_tensor_by_name(request, "stop_words_list").as_numpy()
            length = np.array([[ids.size + words.shape[-1]]], np.int32)
            ids = pb.Tensor("output_ids", ids.reshape(1, 1, -1))
            response = pb.InferenceResponse([ids, pb.Tensor("sequence_length", length)])
            sender.send(response, flags=pb.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""


@pytest.fixture
def templates(tmp_path: Path) -> Path:
    """Two small models of our own: one with files, one without any version directory."""
    for name in ("small", "chain"):
        (tmp_path / "templates" / name).mkdir(parents=True)
        (tmp_path / "templates" / name / "config.pbtxt").write_text(
            f'name: "{name}"\nmax_batch_size: ${{size}}\n'
        )
    version = tmp_path / "templates" / "small" / "1"
    (version / "inner" / "__pycache__").mkdir(parents=True)
    (version / "model.py").write_text("template")
    (version / "inner" / "data").write_bytes(b"\0")
    (version / "inner" / "__pycache__" / "x.pyc").write_bytes(b"")
    return tmp_path / "templates"


def tensors(entries: Any) -> list[tuple[object, ...]]:
    """Inputs or outputs of a ModelConfig as plain values."""
    types = entries[0].DESCRIPTOR.fields_by_name["data_type"].enum_type.values_by_number
    return [
        (
            entry.name,
            types[entry.data_type].name,
            list(entry.dims),
            getattr(entry, "optional", False),
            getattr(entry, "allow_ragged_batch", False),
            list(entry.reshape.shape) if entry.HasField("reshape") else None,
        )
        for entry in entries
    ]


def contract_tensors(
    entries: list[dict[str, Any]], types: dict[str, str]
) -> list[tuple[object, ...]]:
    """The same of the contract."""
    return [
        (
            entry["name"],
            types.get(entry["data_type"], entry["data_type"]),
            entry["dims"],
            entry.get("optional", False),
            entry.get("allow_ragged_batch", False),
            entry.get("reshape"),
        )
        for entry in entries
    ]


@pytest.fixture(scope="module")
def filled() -> ModelConfig:
    """Our tensorrt_llm template with a value of its own for every variable."""
    text = (TEMPLATES / "tensorrt_llm" / "config.pbtxt").read_text()
    values = {
        **VALUES,
        "logits_datatype": "TYPE_FP16",
        "encoder_input_features_data_type": "TYPE_BF16",
        "prompt_embedding_table_data_type": "TYPE_FP32",
        "max_queue_size": 7,
        "max_queue_delay_microseconds": 9,
    }
    return configure("tensorrt_llm", text, values, source="template")


def test_inputs_and_outputs_are_those_of_the_contract(filled: ModelConfig) -> None:
    """Name by name, in order: type, dims, optional, ragged, reshape."""
    types = {
        "${logits_datatype}": "TYPE_FP16",
        "${encoder_input_features_data_type}": "TYPE_BF16",
        "${prompt_embedding_table_data_type}": "TYPE_FP32",
    }
    assert tensors(filled.input) == contract_tensors(CONTRACT["input"], types)
    assert tensors(filled.output) == contract_tensors(CONTRACT["output"], types)


def test_batching_and_instances_are_those_of_the_contract(filled: ModelConfig) -> None:
    """The rest of the config, field by field."""
    assert (filled.name, filled.backend, filled.max_batch_size) == ("tensorrt_llm", "python", 4)
    assert filled.model_transaction_policy.decoupled is True
    batching = filled.dynamic_batching
    assert list(batching.preferred_batch_size) == [4]
    assert batching.max_queue_delay_microseconds == 9
    assert batching.default_queue_policy.max_queue_size == 7
    groups = [(group.count, group.Kind.Name(group.kind)) for group in filled.instance_group]
    assert groups == [(group["count"], group["kind"]) for group in CONTRACT["instance_group"]]
    assert {field.name for field, _ in filled.ListFields()} == {
        *("name", "backend", "max_batch_size", "model_transaction_policy", "dynamic_batching"),
        *("instance_group", "input", "output", "parameters"),
    }


def test_the_template_has_the_parameters_of_the_contract() -> None:
    """Every parameter takes its text from the variable that the contract names."""
    text = (TEMPLATES / "tensorrt_llm" / "config.pbtxt").read_text()
    quoted = re.sub(r"(data_type: )\$\{\w+\}", r"\1TYPE_FP16", text)
    quoted = quoted.replace("decoupled: ${decoupled_mode}", "decoupled: true")
    quoted = re.sub(r'(?<!")\$\{\w+\}', "1", quoted)
    config = parse(quoted, source="template")
    parameters = {key: value.string_value for key, value in config.parameters.items()}
    assert parameters == CONTRACT["parameters"]


@pytest.mark.parametrize(
    ("values", "files", "message"),
    [
        ({"small": {}}, {}, r"small/config\.pbtxt: no value for size"),
        ({"smal": {"size": 1}}, {}, r"no model smal \(nearest known key: small\)"),
        ({"small": {"size": "x"}}, {}, r"not a Triton model config: line 2"),
        ({"small": {"size": 1}}, {"../x": b""}, "'../x' is not the path"),
        ({"small": {"size": 1}}, {"/small/x": b""}, "'/small/x' is not the path"),
        ({"small": {"size": 1}}, {"x": b""}, "'x' is not the path"),
        ({"small": {"size": 1}}, {"chain/1/x": b""}, "belongs to no model"),
    ],
)
def test_a_failure_leaves_the_older_repository_as_it_was(
    templates: Path,
    tmp_path: Path,
    values: dict[str, dict[str, object]],
    files: dict[str, bytes],
    message: str,
) -> None:
    """Nothing half-written is left, and what was there still is."""
    destination = build(templates, tmp_path / "run" / "repository", {"chain": {"size": 3}})
    with pytest.raises(ModelRepositoryError, match=message):
        build(templates, destination, values, files=files)
    assert [path.name for path in destination.iterdir()] == ["chain"]
    assert [path.name for path in destination.parent.iterdir()] == ["repository"]


def test_a_name_that_is_not_the_directorys_is_an_error(templates: Path, tmp_path: Path) -> None:
    """Triton would refuse it later."""
    (templates / "small" / "config.pbtxt").write_text('name: "big"')
    with pytest.raises(ModelRepositoryError, match='the name is "big", not "small"'):
        build(templates, tmp_path / "repository", {"small": {}})


def test_a_place_that_cannot_be_written_is_an_error(templates: Path, tmp_path: Path) -> None:
    """The message gives the place."""
    (tmp_path / "file").write_text("")
    with pytest.raises(ModelRepositoryError, match="file/repository cannot be written"):
        build(templates, tmp_path / "file" / "repository", {"small": {"size": 1}})


def test_the_repository_holds_config_versions_and_extra_files(
    templates: Path, tmp_path: Path
) -> None:
    """All of it is private, and an extra file wins over the template's."""
    before = {path: path.stat().st_mtime_ns for path in templates.rglob("*")}
    destination = build(
        templates,
        tmp_path / "a" / "b" / "repository",
        {"small": {"size": 4}, "chain": {"size": 0}},
        files={"small/1/runtime.json": b"{}", "small/1/model.py": b"extra", "small/2/x": b""},
    )
    found = {str(path.relative_to(destination)): path for path in destination.rglob("*")}
    assert sorted(found) == [
        *("chain", "chain/1", "chain/config.pbtxt", "small", "small/1", "small/1/inner"),
        *("small/1/inner/data", "small/1/model.py", "small/1/runtime.json", "small/2"),
        *("small/2/x", "small/config.pbtxt"),
    ]
    assert found["small/1/model.py"].read_bytes() == b"extra"
    assert parse(found["small/config.pbtxt"].read_text(), source="").max_batch_size == 4
    for path in (*found.values(), destination):
        assert path.stat().st_mode & 0o777 == (0o700 if path.is_dir() else 0o600)
    assert {path: path.stat().st_mtime_ns for path in templates.rglob("*")} == before


def test_an_older_repository_is_replaced(templates: Path, tmp_path: Path) -> None:
    """Nothing of the older one stays."""
    destination = tmp_path / "repository"
    build(templates, destination, {"chain": {"size": 1}}, files={"chain/1/old": b""})
    build(templates, destination, {"small": {"size": 2}})
    assert [path.name for path in destination.iterdir()] == ["small"]
    assert [path.name for path in tmp_path.glob(".*")] == []


async def test_triton_loads_the_template_and_serves_tokens(tmp_path: Path) -> None:
    """The real server takes our config and gives a flat list of 2·n as a [2, n] tensor."""
    repository = build(
        TEMPLATES,
        tmp_path / "repository",
        {"tensorrt_llm": VALUES},
        files={"tensorrt_llm/1/model.py": ECHO_MODEL},
    )
    server = start(tmp_path, repository)
    try:
        await server.wait_ready(30)
        body = {
            "input_ids": [5, 6, 7],
            "input_lengths": 3,
            "request_output_len": 1,
            "stop_words_list": [1, 2, 1, 2],
        }
        url = f"{server.http_url}/v2/models/tensorrt_llm/generate_stream"
        async with httpx.AsyncClient() as client:
            answer = await client.post(url, json=body)
    finally:
        server.stop(0)
    event = json.loads(answer.text.removeprefix("data: "))
    assert (event["output_ids"], event["sequence_length"]) == ([5, 6, 7], 5)
