"""Every argument of LLM and KvCacheConfig that is emitted, held against the contract."""

from __future__ import annotations

import json
import string
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cog_triton.errors import SettingsError
from cog_triton.runtimes.config import RuntimeConfig
from cog_triton.runtimes.llm_api_arguments import (
    KV_CACHE,
    KV_CACHE_ARGUMENTS,
    OPEN_ARGUMENTS,
    constructor_arguments,
)

CONTRACT: dict[str, Any] = json.loads(
    (Path(__file__).parent / "data/contracts/llm_api.json").read_text()
)
ARGUMENTS = {field["name"] for name in ("BaseLlmArgs", "TorchLlmArgs") for field in CONTRACT[name]}
KV_FIELDS = {field["name"] for field in CONTRACT["KvCacheConfig"]}
CONFIG = RuntimeConfig(
    runtime="pytorch",
    weights="/models/phi",
    vocab_size=32064,
    max_batch_size=64,
    max_seq_len=4096,
    max_num_tokens=8192,
    kv_cache_bytes=0,
)
CONFIGS = [
    CONFIG,
    replace(CONFIG, max_num_tokens=512, dtype="bfloat16", enable_kv_cache_reuse=False),
    replace(CONFIG, tensor_parallel_size=4, pipeline_parallel_size=2, kv_cache_bytes=1 << 30),
    replace(CONFIG, kv_cache_free_gpu_mem_fraction=0.8, max_tokens_in_paged_kv_cache=9000),
    replace(
        CONFIG, llm_arguments={"trust_remote_code": True, "guided_decoding_backend": "xgrammar"}
    ),
    replace(CONFIG, llm_arguments={"enable_lora": True, KV_CACHE: {"host_cache_size": 1 << 30}}),
]


def unknown_names(arguments: Mapping[str, Any]) -> set[str]:
    """Names in a constructor call that the contract does not have."""
    return {*(arguments.keys() - ARGUMENTS), *(arguments[KV_CACHE].keys() - KV_FIELDS)}


def test_a_name_that_the_contract_lacks_is_found() -> None:
    """The check below can fail: it reports a wrong argument and a wrong field."""
    arguments = constructor_arguments(CONFIG)
    assert unknown_names({**arguments, "max_batchsize": 1}) == {"max_batchsize"}
    assert unknown_names({**arguments, KV_CACHE: {"max_token": 1}}) == {"max_token"}


@given(st.data())
def test_a_mutation_of_any_emitted_name_is_found(data: st.DataObject) -> None:
    """One character changed in one name, and the call is no longer one of the contract."""
    arguments = constructor_arguments(data.draw(st.sampled_from(CONFIGS)))
    name = data.draw(st.sampled_from(sorted(arguments.keys() - {KV_CACHE})))
    place = data.draw(st.integers(0, len(name) - 1))
    letter = data.draw(st.sampled_from(string.ascii_lowercase).filter(lambda c: c != name[place]))
    mutated = name[:place] + letter + name[place + 1 :]
    assert mutated in unknown_names({**arguments, mutated: 1})


def test_everything_emitted_is_in_the_contract(record_property: Any) -> None:
    """All calls together; what they covered is listed in full."""
    calls = [constructor_arguments(config) for config in CONFIGS]
    assert [unknown_names(call) for call in calls] == [set()] * len(calls)
    covered = sorted({name for call in calls for name in call})
    record_property("covered", covered)
    assert covered == [
        *("dtype", "enable_chunked_prefill", "enable_lora", "guided_decoding_backend"),
        *("kv_cache_config", "max_batch_size", "max_num_tokens", "max_seq_len", "model"),
        *("pipeline_parallel_size", "sampler_type", "skip_tokenizer_init"),
        *("tensor_parallel_size", "trust_remote_code"),
    ]
    kv_covered = sorted({name for call in calls for name in call[KV_CACHE]})  # type: ignore[attr-defined]
    assert kv_covered == [
        *("enable_block_reuse", "free_gpu_memory_fraction", "host_cache_size"),
        *("max_gpu_total_bytes", "max_tokens"),
    ]


def test_every_argument_of_the_contract_is_decided_on() -> None:
    """Each can be set, follows from the settings, or is left out on purpose."""
    from_settings = constructor_arguments(CONFIG).keys()
    # Objects of Python, or without a meaning where token ids go in and out.
    objects = {"batched_logits_processor", "checkpoint_loader", "mpi_session", "build_config"}
    not_here = {
        *("revision", "tokenizer_revision", "postprocess_tokenizer_dir", "reasoning_parser"),
        *("num_postprocess_workers", "gather_generation_logits", "mm_encoder_only"),
        *("backend", "decoding_config"),
    }
    assert OPEN_ARGUMENTS | from_settings | objects | not_here == ARGUMENTS
    assert KV_FIELDS == KV_CACHE_ARGUMENTS


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"enable_lra": True}, r"pytorch\.enable_lra is not an argument .*nearest: enable_lora"),
        ({"model": "x"}, r"pytorch\.model is not an argument"),
        ({"quant_config": {}}, r"pytorch\.quant_config is not an argument"),
        ({KV_CACHE: {"max_token": 1}}, r"pytorch\.kv_cache_config\.max_token is not .*max_tokens"),
        ({KV_CACHE: 0.9}, r"pytorch\.kv_cache_config must hold keys"),
    ],
)
def test_a_wrong_argument_of_a_deployment(arguments: dict[str, Any], message: str) -> None:
    """It is refused by name before anything starts, with the nearest one that exists."""
    with pytest.raises(SettingsError, match=message):
        constructor_arguments(replace(CONFIG, llm_arguments=arguments))


def test_long_prompts_need_chunked_prefill() -> None:
    """Where a step may hold less than a sequence, a prompt is split over steps."""
    short_steps = replace(CONFIG, max_num_tokens=512)
    assert constructor_arguments(short_steps)["enable_chunked_prefill"] is True
    assert constructor_arguments(CONFIG)["enable_chunked_prefill"] is False


def test_the_tokenizer_is_loaded_only_where_it_is_needed() -> None:
    """Token ids go in and out; guided decoding alone builds grammars from the tokenizer."""
    assert constructor_arguments(CONFIG)["skip_tokenizer_init"] is True
    guided = replace(CONFIG, llm_arguments={"guided_decoding_backend": "xgrammar"})
    assert constructor_arguments(guided)["skip_tokenizer_init"] is False


def test_the_sampler_is_the_one_that_honours_every_parameter() -> None:
    """TorchSampler would ignore penalties and seeds, and say nothing."""
    assert constructor_arguments(CONFIG)["sampler_type"] == "TRTLLMSampler"
    chosen = replace(CONFIG, llm_arguments={"sampler_type": "TorchSampler"})
    assert constructor_arguments(chosen)["sampler_type"] == "TorchSampler"


def test_a_given_kv_cache_field_wins() -> None:
    """The deployment's own fields are put over what follows from the settings."""
    config = replace(
        CONFIG,
        kv_cache_free_gpu_mem_fraction=0.8,
        llm_arguments={KV_CACHE: {"free_gpu_memory_fraction": 0.5}},
    )
    assert constructor_arguments(config)[KV_CACHE] == {
        "enable_block_reuse": True,
        "free_gpu_memory_fraction": 0.5,
    }


def test_the_config_survives_its_file(tmp_path: Path) -> None:
    """What model.py reads is what was written, nested arguments too."""
    for config in CONFIGS:
        (tmp_path / "runtime.json").write_bytes(config.to_json())
        assert RuntimeConfig.read(tmp_path) == config
