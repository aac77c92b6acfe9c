"""The config of the C++ backend: every value held against the contract of TensorRT-LLM 1.1."""

from __future__ import annotations

import json
import string
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cog_triton.errors import SettingsError
from cog_triton.template_values import configure
from cog_triton.tensorrt_config import (
    DEFAULTS,
    SET_ELSEWHERE,
    TensorRTConfig,
    template_values,
)

ROOT = Path(__file__).parents[1]
TEMPLATE = (ROOT / "triton_model_repo/tensorrt_llm/config.pbtxt").read_text()
CONTRACT: dict[str, Any] = json.loads(
    (ROOT / "tests/data/contracts/tensorrt_llm_model.json").read_text()
)
VARIABLES: dict[str, dict[str, Any]] = {
    entry["variable"]: entry for entry in CONTRACT["template_variables"]
}
CONFIG = TensorRTConfig(Path("/engines/llama"), max_batch_size=64)
# A good value for every kind of variable that the contract names.
BY_TYPE: dict[str, list[object]] = {
    "int": [0, 7, "12"],
    "float": [0.5, "0.25", 1],
    "float 0..1": [0.5],
    "bool": [True, "false"],
    "path": ["/some/where"],
    "comma list of int": ["1024", "1024,2048"],
    "comma list; semicolon between instances": ["0,1;2,3", 0],
    "brace lists": ["{{0},{1}}"],
}
NEEDED_WITH: dict[str, dict[str, object]] = {
    "guided_decoding_backend": {"xgrammar_tokenizer_info_path": "/t.json"},
    "decoding_mode": {
        "lookahead_window_size": 4,
        "lookahead_ngram_size": 3,
        "lookahead_verification_set_size": 4,
    },
}


def parameters(overrides: Mapping[str, object] | None = None) -> dict[str, str]:
    """The parameters of the filled config, by their key."""
    config = configure("tensorrt_llm", TEMPLATE, template_values(CONFIG, overrides), source="t")
    return {key: value.string_value for key, value in config.parameters.items()}


def not_of_the_contract(emitted: Mapping[str, str]) -> list[str]:
    """What the contract does not know, or would not take, in the parameters of a config."""
    by_key = {
        entry["parameter_key"]: entry for entry in VARIABLES.values() if "parameter_key" in entry
    }
    wrong = []
    for key, value in emitted.items():
        if key not in CONTRACT["parameters"]:
            wrong.append(key)
        elif value.startswith("${"):
            if key not in CONTRACT["keys_that_must_exist"]:
                wrong.append(key)
        elif "choices" in by_key.get(key, {}) and value not in by_key[key]["choices"]:
            wrong.append(key)
    return wrong


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            {"kv_cache_free_gpu_mem_fractio": 1},
            r"nearest known key: kv_cache_free_gpu_mem_fraction",
        ),
        ({"gpt_model_path": "/x"}, r"tensorrt\.gpt_model_path is not a known key"),
        ({"engine_dir": "/x"}, r"tensorrt\.engine_dir follows from the setting model"),
        ({"triton_max_batch_size": 1}, r"follows from the setting engine\.max_batch_size"),
        ({"decoupled_mode": False}, r"decoupled_mode follows from the runtime: streaming needs it"),
        ({"triton_backend": "python"}, r"follows from the setting runtime"),
        ({"kv_cache_free_gpu_mem_fraction": 1.5}, r"fraction is 1\.5, expected a number, 0 to 1"),
        ({"batch_scheduler_policy": "static_batch"}, r"expected one of guaranteed_no_evict, max"),
        ({"batching_strategy": "v2"}, r"expected one of inflight_fused_batching"),
        ({"enable_chunked_context": "yes"}, r"expected true or false"),
        ({"cancellation_check_period_ms": -1}, r"expected a whole number, 0 or more"),
        ({"logits_datatype": "TYPE_BF16"}, r"expected one of TYPE_FP32, TYPE_FP16"),
        ({"gpu_device_ids": "0 1"}, r"expected whole numbers with commas"),
        (
            {"decoding_mode": "lookahead", "lookahead_window_size": 4},
            r"decoding_mode=lookahead needs lookahead_ngram_size, lookahead_verification_set_size",
        ),
        ({"guided_decoding_backend": "xgrammar"}, r"needs xgrammar_tokenizer_info_path as well"),
    ],
)
def test_a_wrong_setting_is_named(overrides: dict[str, object], message: str) -> None:
    """The backend would warn and take its default; here it is an error before any start."""
    with pytest.raises(SettingsError, match=message):
        template_values(CONFIG, overrides)


def test_a_parameter_that_the_contract_lacks_is_found() -> None:
    """The check below can fail: a wrong key, a wrong choice, and an unfilled one."""
    emitted = parameters()
    assert not_of_the_contract({**emitted, "kv_cache_fraction": "1"}) == ["kv_cache_fraction"]
    assert not_of_the_contract({**emitted, "gpt_model_type": "V2"}) == ["gpt_model_type"]
    assert not_of_the_contract({**emitted, "num_nodes": "${num_nodes}"}) == ["num_nodes"]


@given(st.data())
def test_a_mutation_of_any_emitted_key_is_found(data: st.DataObject) -> None:
    """One character changed in one key, and it is no parameter of the contract."""
    emitted = parameters()
    key = data.draw(st.sampled_from(sorted(emitted)))
    place = data.draw(st.integers(0, len(key) - 1))
    letter = data.draw(st.sampled_from(string.ascii_lowercase).filter(lambda c: c != key[place]))
    mutated = key[:place] + letter + key[place + 1 :]
    assert not_of_the_contract({mutated: emitted[key]}) == [mutated]


@given(st.data())
def test_a_mutation_of_any_setting_is_found(data: st.DataObject) -> None:
    """The same for a key of the deployment file."""
    name = data.draw(st.sampled_from(sorted(VARIABLES)))
    place = data.draw(st.integers(0, len(name) - 1))
    letter = data.draw(st.sampled_from(string.ascii_lowercase).filter(lambda c: c != name[place]))
    mutated = name[:place] + letter + name[place + 1 :]
    with pytest.raises(SettingsError, match="is not a known key"):
        template_values(CONFIG, {mutated: 1})


def test_the_default_config() -> None:
    """What a deployment gets that sets nothing: nothing outside the contract, streaming on."""
    config = configure("tensorrt_llm", TEMPLATE, template_values(CONFIG), source="t")
    assert (config.backend, config.max_batch_size) == ("tensorrtllm", 64)
    assert config.model_transaction_policy.decoupled is True
    emitted = parameters()
    assert not_of_the_contract(emitted) == []
    executor = "/opt/tritonserver/backends/tensorrtllm/trtllmExecutorWorker"
    assert emitted == {
        "FORCE_CPU_ONLY_INPUT_TENSORS": "no",
        "batch_scheduler_policy": "guaranteed_no_evict",
        "cancellation_check_period_ms": "50",
        "enable_kv_cache_reuse": "true",
        "exclude_input_in_output": "true",
        "executor_worker_path": executor,
        "gpt_model_path": "/engines/llama",
        "gpt_model_type": "inflight_fused_batching",
        "guided_decoding_backend": "${guided_decoding_backend}",
        "kv_cache_free_gpu_mem_fraction": "0.9",
        "max_beam_width": "1",
        "tokenizer_dir": "${tokenizer_dir}",
        "xgrammar_tokenizer_info_path": "${xgrammar_tokenizer_info_path}",
    }


def test_what_the_engine_decides() -> None:
    """Values of the settings and of the engine come before the defaults, overrides before both."""
    config = TensorRTConfig(
        Path("/e"),
        max_batch_size=4,
        max_beam_width=2,
        enable_kv_cache_reuse=False,
        kv_cache_free_gpu_mem_fraction=0.7,
        max_tokens_in_paged_kv_cache=8192,
        logits_datatype="TYPE_FP16",
    )
    values = template_values(config)
    assert values["logits_datatype"] == "TYPE_FP16"
    assert values["kv_cache_free_gpu_mem_fraction"] == 0.7
    assert values["max_tokens_in_paged_kv_cache"] == 8192
    assert (values["max_beam_width"], values["enable_kv_cache_reuse"]) == (2, False)
    assert (
        template_values(config, {"logits_datatype": "TYPE_FP32"})["logits_datatype"] == "TYPE_FP32"
    )


def values_for(variable: Mapping[str, Any]) -> list[object]:
    """Good values of a variable of the contract."""
    return list(variable.get("choices", ())) or BY_TYPE[variable["value_type"]]


def test_every_variable_of_the_contract_can_be_set() -> None:
    """Each good value of each arrives in its parameter; the list says what was covered."""
    covered = []
    for name, variable in VARIABLES.items():
        if name in SET_ELSEWHERE:
            continue
        for value in values_for(variable):
            emitted = parameters({**NEEDED_WITH.get(name, {}), name: value})
            assert not_of_the_contract(emitted) == []
            if key := variable.get("parameter_key"):
                text = str(value).lower() if variable["value_type"] == "bool" else str(value)
                assert emitted[key] == text
        covered.append(name)
    assert sorted([*covered, *SET_ELSEWHERE]) == sorted(VARIABLES)
    assert len(covered) == 46


def test_mandatory_variables_always_have_a_value() -> None:
    """Those that the contract calls mandatory, and the two that NVIDIA's tool supplies."""
    values = template_values(CONFIG)
    mandatory = {name for name, variable in VARIABLES.items() if variable["mandatory"]}
    assert mandatory <= values.keys()
    assert DEFAULTS.keys() <= values.keys()
