"""Every file of examples/ loads, and plans or is refused as it must be, on five machines."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from cog_triton import plan, settings
from cog_triton.__main__ import main
from cog_triton.errors import DeploymentError
from cog_triton.settings import Settings
from tests import contract_flags
from tests.engine_samples import GPUS, ROOT

EXAMPLES = ROOT / "examples"
MACHINES = ["none", "1xa100", "4xh100", "1xl4", "2x4090"]
NO_GPU = "E3004 UnsupportedModel: * no GPU was found"
NO_GPU_FOR_ENGINES = "E3005 RuntimeUnavailable: * GPUs: it needs one"
TOO_FEW = "E3004 UnsupportedModel: * tensor_parallel_size 4 * needs 4, found"
TOO_SMALL = "E3004 UnsupportedModel: * the weights take 28.9 GiB * 2 such GPUs would do"
TOO_LONG = "E3004 UnsupportedModel: * one sequence of engine.max_seq_len 48.0 GiB of KV cache"


class Example(NamedTuple):
    """What a deployment of an example gives on each machine, in the order of MACHINES.

    `fetched` is the same when the files of the model are there, where it differs; `config` is what
    its config.json says that counts here (from the model's repository on the Hub).
    """

    outcomes: list[str]
    config: dict[str, Any]
    num_bytes: float
    fetched: list[str] | None = None
    family: str = ""


def rope(architecture: str, model_type: str, context: int, *sizes: int) -> dict[str, Any]:
    layers, heads, kv_heads, hidden = sizes
    return {
        "architectures": [architecture],
        "model_type": model_type,
        "max_position_embeddings": context,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "hidden_size": hidden,
    }


def gpt(architecture: str, model_type: str, context: int, *sizes: int) -> dict[str, Any]:
    layers, heads, hidden = sizes
    named = {"n_positions": context, "n_layer": layers, "n_head": heads, "n_embd": hidden}
    return {"architectures": [architecture], "model_type": model_type, **named}


ONE_GPU = [NO_GPU, *["pytorch"] * 4]
PHI = ("Phi3ForCausalLM", "phi3")
TABLE = {
    "smollm2": Example(["openvino"] * 5, {}, 0),
    "gpt2-medium": Example(
        [NO_GPU_FOR_ENGINES, *["tensorrt"] * 4],
        gpt("GPT2LMHeadModel", "gpt2", 1024, 24, 16, 1024),
        0.36e9 * 4,
        family="gpt",
    ),
    "gpt2-medium-4gpu": Example(
        [NO_GPU_FOR_ENGINES, TOO_FEW, "tensorrt", TOO_FEW, TOO_FEW],
        gpt("GPT2LMHeadModel", "gpt2", 1024, 24, 16, 1024),
        0.36e9 * 4,
        family="gpt",
    ),
    "llama-2-7b": Example(
        [NO_GPU, TOO_FEW, "pytorch", TOO_FEW, TOO_FEW],
        rope("LlamaForCausalLM", "llama", 4096, 32, 32, 32, 4096),
        6.74e9 * 2,
        family="llama",
    ),
    "phi-3-mini-4k": Example(ONE_GPU, rope(*PHI, 4096, 32, 32, 32, 3072), 3.82e9 * 2, family="phi"),
    "phi-3-mini-128k": Example(
        ONE_GPU,
        rope(*PHI, 131072, 32, 32, 32, 3072),
        3.82e9 * 2,
        fetched=[NO_GPU, "pytorch", "pytorch", TOO_LONG, TOO_LONG],
        family="phi",
    ),
    "mistral-7b-instruct": Example(
        ONE_GPU,
        rope("MistralForCausalLM", "mistral", 32768, 32, 32, 8, 4096),
        7.25e9 * 2,
        family="mistral",
    ),
    "starcoder": Example(
        [NO_GPU_FOR_ENGINES, "tensorrt", "tensorrt", TOO_SMALL, TOO_SMALL],
        {**gpt("GPTBigCodeForCausalLM", "gpt_bigcode", 8192, 40, 48, 6144), "multi_query": True},
        15.517e9 * 4,
        family="gpt",
    ),
    "llama-3.1-8b": Example(
        ONE_GPU,
        rope("LlamaForCausalLM", "llama", 131072, 32, 32, 8, 4096),
        8.03e9 * 2,
        family="llama",
    ),
    "qwen2.5-7b": Example(
        ONE_GPU,
        rope("Qwen2ForCausalLM", "qwen2", 32768, 28, 28, 4, 3584),
        7.62e9 * 2,
        family="qwen",
    ),
}
CASES = [(name, machine) for name in TABLE for machine in MACHINES]


def load(name: str, machine: str, tmp_path: Path, **changes: object) -> Settings:
    """The example's settings on a machine, with an empty cache."""
    config = settings.load({"XDG_CACHE_HOME": str(tmp_path)}, file=EXAMPLES / f"{name}.yaml")
    inventory = {"gpu_inventory": str(GPUS / f"{machine}.json")}
    return settings.changed(config, {**inventory, **changes})


def outcome(config: Settings) -> str:
    """The runtime, or the error as the user reads it."""
    try:
        return plan.resolve(config).runtime
    except DeploymentError as err:
        return str(err)


def matches(found: str, expected: str) -> bool:
    """Whether the parts between `*` occur in that order."""
    position = 0
    for part in expected.split(" * "):
        position = found.find(part, position)
        if position < 0:
            return False
        position += len(part)
    return expected.startswith("E") or found == expected


def test_the_table_holds_every_example() -> None:
    """A new file in examples/ needs a row here."""
    assert {path.stem for path in EXAMPLES.glob("*.yaml")} == set(TABLE)


@pytest.mark.parametrize(("name", "machine"), CASES)
def test_plan_by_name(tmp_path: Path, name: str, machine: str) -> None:
    """Before anything is fetched: the runtime, or the clear error that the table expects."""
    expected = TABLE[name].outcomes[MACHINES.index(machine)]
    found = outcome(load(name, machine, tmp_path))
    assert matches(found, expected), found


@pytest.mark.parametrize(("name", "machine"), [case for case in CASES if TABLE[case[0]].config])
def test_plan_with_the_files(tmp_path: Path, name: str, machine: str) -> None:
    """With a directory that has the model's sizes: the same, and what an engine build would run.

    Every command line of it is held against the contract.
    """
    example = TABLE[name]
    expected = (example.fetched or example.outcomes)[MACHINES.index(machine)]
    checkpoint = write_model(tmp_path / name, example)
    config = load(name, machine, tmp_path, model=str(checkpoint))
    found = outcome(config)
    assert matches(found, expected), found
    if expected.startswith("E"):
        return
    planned = plan.resolve(settings.changed(config, {"runtime": "tensorrt"}))
    converted, compiled = planned.build_commands
    assert f"({example.family}, trtllm_build)" in planned.engine_build
    flags = contract_flags.check(example.family, converted.split()[2:])
    assert flags["--dtype"] == config.engine.dtype
    assert flags["--tp_size"] == (config.engine.tensor_parallel_size or 1)
    sizes = contract_flags.check("trtllm-build", compiled.split()[1:])
    assert sizes["--max_seq_len"] == config.engine.max_seq_len
    assert sizes["--max_batch_size"] == config.engine.max_batch_size


@pytest.mark.parametrize("name", TABLE)
def test_limits_data_type_and_prompt_are_said(tmp_path: Path, name: str) -> None:
    """Each example sets its limits and data type; its template has {prompt}, if it has one."""
    config = load(name, "4xh100", tmp_path)
    assert "max_batch_size" in config.engine.model_fields_set
    template = config.prompt.prompt_template
    is_base = name.startswith(("gpt2", "llama-2", "starcoder"))
    assert template == ("{prompt}" if is_base else None)
    text = (EXAMPLES / f"{name}.yaml").read_text()
    assert is_base or "chat template" in text or "Phi-3 mini, 128k" in text
    if TABLE[name].config:
        assert {"dtype", "max_seq_len"} <= config.engine.model_fields_set


def test_the_kv_cache_rule_of_the_guide(tmp_path: Path) -> None:
    """A bound below one sequence of 128k is refused, as the guide warns; one block more is not."""
    bound = "engine.max_tokens_in_paged_kv_cache"
    refused = outcome(load("phi-3-mini-128k", "1xa100", tmp_path, **{bound: 4096}))
    assert matches(refused, "E3001 SettingsError: * 4096 * 131072 tokens needs 131072")
    assert outcome(load("phi-3-mini-128k", "1xa100", tmp_path, **{bound: 131072})) == "pytorch"


def test_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`plan -f FILE --gpus FILE` prints the plan, as text or JSON, or the error with status 1."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    file, gpus = str(EXAMPLES / "llama-3.1-8b.yaml"), str(GPUS / "1xl4.json")
    assert main(["plan", "-f", file, "--gpus", gpus, "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert (printed["runtime"], printed["max_num_tokens"]) == ("pytorch", 8192)
    assert "NVIDIA L4" in printed["gpus"]
    assert main(["plan", "-f", file, "--gpus", str(GPUS / "none.json")]) == 1
    assert capsys.readouterr().err.startswith("E3004 UnsupportedModel: meta-llama/Llama-3.1-8B")


def write_model(directory: Path, example: Example) -> Path:
    """A checkpoint directory with a sparse weights file of the model's size."""
    directory.mkdir()
    stored = "float32" if example.num_bytes in (0.36e9 * 4, 15.517e9 * 4) else "bfloat16"
    common = {"torch_dtype": stored, "vocab_size": 32000, "eos_token_id": 2}
    (directory / "config.json").write_text(json.dumps({**common, **example.config}))
    (directory / "tokenizer.json").write_text("{}")
    with (directory / "model.safetensors").open("wb") as file:
        file.truncate(int(example.num_bytes))
    return directory
