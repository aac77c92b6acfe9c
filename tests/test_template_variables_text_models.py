"""The four text models' templates against the contract, and the guides' commands on them."""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from cog_triton.errors import ModelRepositoryError
from cog_triton.model_repository import build
from cog_triton.template import ModelConfig, parse
from cog_triton.template_values import configure
from cog_triton.template_variables import Kind, known
from cog_triton.text_model_values import TEXT_MODELS, text_model_values

ROOT = Path(__file__).parents[1]
TEMPLATES = ROOT / "triton_model_repo"
CONTRACTS: dict[str, dict[str, Any]] = {
    model: json.loads((ROOT / f"tests/data/contracts/{model}_model.json").read_text())
    for model in TEXT_MODELS
}
# A value of its own for every variable that the four templates have.
VALUES: dict[str, object] = {
    "triton_max_batch_size": 4,
    "tokenizer_dir": "/tokenizer",
    "preprocessing_instance_count": 2,
    "postprocessing_instance_count": 3,
    "bls_instance_count": 5,
    "max_queue_delay_microseconds": 9,
    "max_queue_size": 7,
    "add_special_tokens": "false",
    "skip_special_tokens": "true",
    "multimodal_model_path": "/vision",
    "engine_dir": "/engine",
    "max_num_images": 1,
    "logits_datatype": "TYPE_FP16",
    "decoupled_mode": "true",
    "prompt_embedding_table_data_type": "TYPE_BF16",
    "accumulate_tokens": "true",
    "tensorrt_llm_model_name": "llm",
    "tensorrt_llm_draft_model_name": "draft",
    "multimodal_encoders_name": "encoders",
}
TOKENIZER = "tensorrt_llm/examples/gpt/gpt2"
# Every command of the guides on one of the four templates: model, substitutions.
GUIDE_COMMANDS = [
    *(
        (
            f"{stage}processing",
            f"triton_max_batch_size:4,tokenizer_dir:{directory},tokenizer_type:auto,"
            f"{stage}processing_instance_count:1",
        )
        for stage in ("pre", "post")
        for directory in (f"/src/tensorrtllm_backend/{TOKENIZER}", "/src/gpt2", f"/{TOKENIZER}")
    ),
    *(
        (
            f"{stage}processing",
            "tokenizer_dir:/src/tensorrtllm_backend/triton_model/tensorrt_llm/1,"
            "tokenizer_type:auto,triton_max_batch_size:8",
        )
        for stage in ("pre", "post")
    ),
    *(
        (
            f"{stage}processing",
            "tokenizer_dir:/llama,tokenizer_type:llama,triton_max_batch_size:64,"
            f"{stage}processing_instance_count:1",
        )
        for stage in ("pre", "post")
    ),
    *(
        (
            f"{stage}processing",
            "tokenizer_type:auto,tokenizer_dir:../Phi-3-mini-4k-instruct,"
            f"triton_max_batch_size:128,{stage}processing_instance_count:2",
        )
        for stage in ("pre", "post")
    ),
    ("ensemble", "triton_max_batch_size:4"),
    ("ensemble", "triton_max_batch_size:64"),
    ("ensemble", "triton_max_batch_size:128"),
]


@pytest.fixture(scope="module")
def fill_template() -> ModuleType:
    """scripts/fill_template.py as a module."""
    file = ROOT / "scripts" / "fill_template.py"
    spec = importlib.util.spec_from_file_location("fill_template_of_text_models", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def template(model: str) -> str:
    return (TEMPLATES / model / "config.pbtxt").read_text()


def filled(model: str) -> ModelConfig:
    """The template with a value for every variable."""
    names = {entry["variable"] for entry in CONTRACTS[model]["template_variables"]}
    values = {name: VALUES[name] for name in names}
    return configure(model, template(model), values, source=model)


def value(text: object) -> object:
    """What a contract's `${name}` stands for; anything else as it is."""
    match = re.fullmatch(r"\$\{(\w+)\}", str(text))
    return VALUES[match[1]] if match else text


def tensors(entries: Any) -> dict[str, tuple[object, ...]]:
    types = entries[0].DESCRIPTOR.fields_by_name["data_type"].enum_type.values_by_number
    found: dict[str, tuple[object, ...]] = {
        entry.name: (
            types[entry.data_type].name,
            list(entry.dims),
            getattr(entry, "optional", False),
            getattr(entry, "allow_ragged_batch", False),
            list(entry.reshape.shape) if entry.HasField("reshape") else None,
        )
        for entry in entries
    }
    assert len(found) == len(entries), "a name is given twice"
    return found


def contract_tensors(entries: list[dict[str, Any]]) -> dict[str, tuple[object, ...]]:
    """The same of the contract, which lists one output of the ensemble twice."""
    return {
        entry["name"]: (
            value(entry["data_type"]),
            entry["dims"],
            entry.get("optional", False),
            entry.get("allow_ragged_batch", False),
            entry.get("reshape"),
        )
        for entry in entries
    }


@pytest.mark.parametrize("model", TEXT_MODELS)
def test_inputs_and_outputs_are_those_of_the_contract(model: str) -> None:
    """Name by name, in order: type, dims, optional, ragged, reshape."""
    config, contract = filled(model), CONTRACTS[model]
    assert list(tensors(config.input).items()) == list(contract_tensors(contract["input"]).items())
    assert list(tensors(config.output).items()) == list(
        contract_tensors(contract["output"]).items()
    )


@pytest.mark.parametrize("model", TEXT_MODELS)
def test_the_parameters_are_those_of_the_contract(model: str) -> None:
    """Every parameter takes its text from the variable that the contract names."""
    parameters = {key: one.string_value for key, one in filled(model).parameters.items()}
    contract = CONTRACTS[model].get("parameters", {})
    assert parameters == {key: str(value(text)) for key, text in contract.items()}


@pytest.mark.parametrize("model", TEXT_MODELS)
def test_batching_instances_and_backend_are_those_of_the_contract(model: str) -> None:
    """Batch size, queue, instances and the transaction policy, where the contract has them."""
    config, contract = filled(model), CONTRACTS[model]
    assert (config.name, config.max_batch_size) == (model, VALUES["triton_max_batch_size"])
    assert config.backend == contract.get("backend", "")
    assert config.platform == contract.get("platform", "")
    assert config.HasField("model_transaction_policy") == ("model_transaction_policy" in contract)
    assert config.HasField("dynamic_batching") == ("dynamic_batching" in contract)
    groups = [(group.count, group.KIND_CPU) for group in config.instance_group]
    assert groups == [
        (value(group["count"]), config.instance_group[0].KIND_CPU)
        for group in contract.get("instance_group", [])
    ]
    if contract.get("dynamic_batching"):
        batching = config.dynamic_batching
        assert list(batching.preferred_batch_size) == [VALUES["triton_max_batch_size"]]
        assert batching.max_queue_delay_microseconds == VALUES["max_queue_delay_microseconds"]
        assert batching.default_queue_policy.max_queue_size == VALUES["max_queue_size"]


def test_the_pieces_of_an_ensembles_stream_keep_their_order() -> None:
    """The one difference from the contract's templates: without it Triton may swap pieces."""
    assert filled("postprocessing").dynamic_batching.preserve_ordering


def test_the_ensembles_maps_are_those_of_the_contract() -> None:
    """Model by model, tensor by tensor, in both directions."""
    steps = [
        {
            "model_name": step.model_name,
            "model_version": step.model_version,
            "input_map": dict(step.input_map),
            "output_map": dict(step.output_map),
        }
        for step in filled("ensemble").ensemble_scheduling.step
    ]
    assert steps == CONTRACTS["ensemble"]["ensemble_scheduling"]["step"]


@pytest.mark.parametrize("model", TEXT_MODELS)
def test_every_variable_of_the_contract_is_known(model: str) -> None:
    """Names and parameter keys; booleans and counts are checked as such."""
    contract = {entry["variable"]: entry for entry in CONTRACTS[model]["template_variables"]}
    table = known(model)
    assert set(table) == set(contract)
    for name, entry in contract.items():
        assert table[name].key == entry.get("parameter_key", "")
        assert (table[name].kind is Kind.BOOL) == entry["value_type"].startswith("bool")
        assert (table[name].kind is Kind.INT) == (entry["value_type"] == "int")
        assert set(table[name].choices) == set(entry.get("choices", []))


@pytest.mark.parametrize(
    ("model", "values", "message"),
    [
        ("preprocessing", {"triton_max_batch_size": 4}, "no value for tokenizer_dir"),
        ("postprocessing", {**VALUES, "skip_special_tokens": "perhaps"}, "true or false"),
        ("ensemble", {"triton_max_batch_size": 0}, "1 or more"),
        ("tensorrt_llm_bls", {"triton_max_batch_size": 4}, "no value for decoupled_mode"),
    ],
)
def test_wrong_values_are_named(model: str, values: dict[str, object], message: str) -> None:
    """A missing, a wrong and an impossible value are errors before anything starts."""
    names = known(model).keys() & values.keys()
    with pytest.raises(ModelRepositoryError, match=message):
        configure(model, template(model), {name: values[name] for name in names}, source=model)


@pytest.mark.parametrize(("model", "substitutions"), GUIDE_COMMANDS)
def test_the_commands_of_the_guides_fill_the_templates(
    fill_template: ModuleType, tmp_path: Path, model: str, substitutions: str
) -> None:
    """`fill_template.py -i` as the guides call it gives a config with the values given."""
    config = Path(shutil.copy(TEMPLATES / model / "config.pbtxt", tmp_path))
    assert fill_template.main(["-i", str(config), substitutions]) == 0
    given = dict(pair.split(":") for pair in substitutions.split(","))
    result = parse(config.read_text(), source="filled")
    assert result.max_batch_size == int(given["triton_max_batch_size"])
    if "tokenizer_dir" in given:
        assert result.parameters["tokenizer_dir"].string_value == given["tokenizer_dir"]
        assert result.instance_group[0].count == int(given.get(f"{model}_instance_count", 1))
        assert "${" not in config.read_text()


def test_a_deployments_values_fill_all_four(tmp_path: Path) -> None:
    """`text_model_values` has a value for whatever the templates need, and nothing unknown."""
    values = text_model_values(Path("/model"), 16)
    repository = build(TEMPLATES, tmp_path / "repository", values)
    for model in TEXT_MODELS:
        assert (repository / model / "1").is_dir()
        config = parse((repository / model / "config.pbtxt").read_text(), source=model)
        assert config.max_batch_size == 16
