"""The flag tables are the contract's, and nothing else gets through them."""

from __future__ import annotations

from typing import Any

import pytest

from cog_triton.build import convert, trtllm_build
from cog_triton.build.flag import Flag, FlagTable, Kind
from cog_triton.errors import SettingsError
from tests.contract_flags import TRTLLM_BUILD, flags_of

TABLES: dict[str, FlagTable] = {TRTLLM_BUILD: trtllm_build.FLAGS, **convert.FLAGS}


def kind_of(flag: dict[str, Any]) -> Kind:
    """The kind that the contract's type means."""
    if flag.get("choices") == ["enable", "disable"]:
        return Kind.ENABLE
    by_type = {"int": Kind.INT, "float": Kind.FLOAT, "store_true": Kind.SWITCH}
    return by_type.get(flag["type"], Kind.LIST if "one or more" in flag["type"] else Kind.TEXT)


@pytest.mark.parametrize("program", TABLES)
def test_the_table_is_the_contracts(program: str) -> None:
    """Every flag of the contract, with its kind, choices and aliases, and no other."""
    expected = {
        name.lstrip("-"): (
            kind_of(flag),
            {str(choice) for choice in flag.get("choices", ()) if choice is not None},
            {alias.lstrip("-") for alias in flag.get("aliases", ())},
        )
        for name, flag in flags_of(program).items()
    }
    found = {
        name: (flag.kind, set(flag.choices), set(flag.aliases))
        for name, flag in TABLES[program].items()
    }
    assert found == expected


@pytest.mark.parametrize(
    ("flag", "value"),
    [
        (Flag("workers", Kind.INT), "two"),
        (Flag("workers", Kind.INT), 1.5),
        (Flag("workers", Kind.INT), True),
        (Flag("rms_norm_eps", Kind.FLOAT), "small"),
        (Flag("gemm_plugin", Kind.TEXT, ("auto",)), "float64"),
        (Flag("checkpoint_dir"), ""),
        (Flag("context_fmha", Kind.ENABLE, ("enable", "disable")), "on"),
        (Flag("fast_build", Kind.SWITCH), "perhaps"),
        (Flag("lora_dir", Kind.LIST), []),
        (Flag("lora_dir", Kind.LIST), 3),
        (Flag("lora_target_modules", Kind.LIST, ("attn_q",)), "attn_q attn_x"),
    ],
)
def test_values_that_do_not_fit(flag: Flag, value: Any) -> None:
    """The error names the flag, the value and what was expected."""
    with pytest.raises(SettingsError) as caught:
        flag.argv(value, "build.flags")
    assert f"build.flags.{flag.name} is {value!r}, expected " in str(caught.value)


@pytest.mark.parametrize(
    ("flag", "value", "argv"),
    [
        (Flag("workers", Kind.INT), "4", ["--workers", "4"]),
        (Flag("smoothquant", Kind.FLOAT), 0.5, ["--smoothquant", "0.5"]),
        (Flag("fast_build", Kind.SWITCH), True, ["--fast_build"]),
        (Flag("fast_build", Kind.SWITCH), "false", []),
        (Flag("context_fmha", Kind.ENABLE), False, ["--context_fmha", "disable"]),
        (Flag("context_fmha", Kind.ENABLE), "enable", ["--context_fmha", "enable"]),
        (Flag("lora_dir", Kind.LIST), ["a", "b"], ["--lora_dir", "a", "b"]),
        (Flag("lora_dir", Kind.LIST), "a b", ["--lora_dir", "a", "b"]),
    ],
)
def test_values_as_arguments(flag: Flag, value: Any, argv: list[str]) -> None:
    """From YAML and from a variable (text) to what the program reads."""
    assert flag.argv(value, "build.flags") == argv


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({"gemm_plugn": "auto"}, ["gemm_plugn", "nearest: gemm_plugin"]),
        ({"tp_size": 2}, ["tp_size is not a flag"]),
        ({"max_batch_size": 4}, ["is set by engine.max_batch_size"]),
        ({"paged_kv_cache": "enable"}, ["deprecated", "kv_cache_type"]),
        ({"kv_cache_type": "continuous"}, ["in-flight batching needs paged"]),
        ({"remove_input_padding": False}, ["in-flight batching needs enable"]),
        ({"gpt_attention_plugin": "disable"}, ["in-flight batching needs it"]),
        ({"streamingllm": "enable"}, ["refuses"]),
        ({"build_config": "x.json"}, ["ignore the sizes"]),
    ],
)
def test_flags_that_cannot_be_set(flags: dict[str, Any], words: list[str]) -> None:
    """What another setting sets, what is gone and what Triton's batching rules out is refused."""
    with pytest.raises(SettingsError) as caught:
        trtllm_build.check_flags(flags)
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize(
    ("script", "flags", "words"),
    [
        ("phi", {"smoothquant": 0.5}, "not a flag"),
        ("llama", {"tp_size": 2}, "is set by engine.tensor_parallel_size"),
        ("llama", {"save_config_only": True}, "no weights"),
        ("qwen", {"group_size": "many"}, "a whole number"),
    ],
)
def test_conversion_flags_that_cannot_be_set(
    script: str, flags: dict[str, Any], words: str
) -> None:
    """Each family's script has its own flags."""
    with pytest.raises(SettingsError, match=words):
        convert.check_flags(script, flags)


def test_dashes_do_not_count() -> None:
    """`--gemm_plugin`, as guides write it, is gemm_plugin."""
    assert trtllm_build.check_flags({"--gemm_plugin": "float16"}) == {"gemm_plugin": "float16"}
