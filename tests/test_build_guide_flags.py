"""The command lines of the guides, of 0.7 to 0.12, as settings of today."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest

from cog_triton import settings
from cog_triton.build import guide_flags
from cog_triton.build.build_plan import plan_build
from cog_triton.errors import SettingsError
from tests import contract_flags
from tests.engine_samples import configured, write_checkpoint

LLAMA_2 = """
    python convert_checkpoint.py --model_dir /models/Llama-2-7b-hf/
        --output_dir ./tllm_checkpoint_4gpu_tp4 --dtype float16 --tp_size 4
    -- trtllm-build --checkpoint_dir ./tllm_checkpoint_4gpu_tp4
        --output_dir /tmp/llama/7B/trt_engines/fp16/4-gpu/ --gemm_plugin float16
"""
PHI_3 = """
    python3 ./convert_checkpoint.py --model_dir ./Phi-3-mini-4k-instruct
        --output_dir ./phi-checkpoint --dtype float16
    -- trtllm-build --checkpoint_dir ./phi-checkpoint --output_dir ./phi-engine
        --gemm_plugin float16 --max_batch_size 8 --max_input_len 1024 --max_seq_len 2048
        --tp_size 1 --pp_size 1
"""
PHI_3_128K = """
    python3 ./convert_checkpoint.py --model_type "Phi-3-mini-128k-instruct"
        --model_dir microsoft/Phi-3-mini-128k-instruct --output_dir ./phi-checkpoint
        --dtype float16
    -- trtllm-build --checkpoint_dir ./phi-checkpoint --output_dir ./phi-engine
        --gemm_plugin float16 --max_batch_size 8 --max_input_len 1024 --max_output_len 1024
        --tp_size 1 --pp_size 1
"""
GPT_2 = """
    python3 convert_checkpoint.py --model_dir gpt2 --dtype float16 --tp_size 4
        --output_dir ./c-model/gpt2/fp16/4-gpu
    -- trtllm-build --checkpoint_dir ./c-model/gpt2/fp16/4-gpu --gpt_attention_plugin float16
        --remove_input_padding enable --paged_kv_cache enable --gemm_plugin float16
        --output_dir engines/fp16/4-gpu
"""
GPT_2_AT_0_7 = """
    python3 hf_gpt_convert.py -p 8 -i gpt2 -o ./c-model/gpt2 --tensor-parallelism 1
        --storage-type float16
    -- python3 build.py --model_dir=./c-model/gpt2/1-gpu/ --world_size=1 --dtype float16
        --use_inflight_batching --use_gpt_attention_plugin float16 --paged_kv_cache
        --use_gemm_plugin float16 --remove_input_padding --use_layernorm_plugin float16
        --hidden_act gelu --parallel_build --output_dir=engines/fp16/1-gpu
"""


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("--use_custom_all_reduce enable", ["--use_custom_all_reduce", "removed"]),
        ("--auto_parallel 4", ["engine.tensor_parallel_size"]),
        ("--enable_xqa enable", ["removed"]),
        ("--paged_kv_cache disable", ["needs a paged KV cache"]),
        ("--no_such_flag 1", ["--no_such_flag is not a flag that TensorRT-LLM 1.1 has"]),
        ("--gemm_plugin float64", ["gemm_plugin", "float64", "expected one of"]),
        ("--max_output_len many", ["not a whole number"]),
        ("--max_seq_len 4096 --max_output_len 1024", ["max_seq_len 2048", "made it 4096"]),
        ("--tp_size 2 --tp_size 2", ["given twice"]),
        ("trtllm-build stray", ["stray belongs to no flag"]),
        ("run.py --engine_dir x", ["run.py is not a program of a build"]),
        (
            "convert_checkpoint.py --use_weight_only --weight_only_precision int4_gptq",
            ["int4_gptq"],
        ),
        ("convert_checkpoint.py --tp_size 2 -- trtllm-build --tp_size 4", ["made it 2"]),
        ("hf_gpt_convert.py --calibrate-kv-cache", ["calibrate-kv-cache is not a flag"]),
    ],
)
def test_what_is_refused(command: str, words: list[str]) -> None:
    """The error names the flag and what takes its place, if anything does."""
    with pytest.raises(SettingsError) as caught:
        guide_flags.translate(shlex.split(command))
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize(
    ("commands", "expected"),
    [
        (
            LLAMA_2,
            {
                "model": "/models/Llama-2-7b-hf/",
                "engine.dtype": "float16",
                "engine.tensor_parallel_size": 4,
                "build.flags.gemm_plugin": "float16",
            },
        ),
        (
            PHI_3,
            {
                "model": "./Phi-3-mini-4k-instruct",
                "engine.dtype": "float16",
                "build.flags.gemm_plugin": "float16",
                "engine.max_batch_size": 8,
                "engine.max_input_len": 1024,
                "engine.max_seq_len": 2048,
                "engine.tensor_parallel_size": 1,
                "engine.pipeline_parallel_size": 1,
            },
        ),
        (
            PHI_3_128K,
            {
                "model": "microsoft/Phi-3-mini-128k-instruct",
                "engine.dtype": "float16",
                "build.flags.gemm_plugin": "float16",
                "engine.max_batch_size": 8,
                "engine.max_input_len": 1024,
                "engine.max_seq_len": 2048,
                "engine.tensor_parallel_size": 1,
                "engine.pipeline_parallel_size": 1,
            },
        ),
        (
            GPT_2,
            {
                "model": "gpt2",
                "engine.dtype": "float16",
                "engine.tensor_parallel_size": 4,
                "build.flags.gpt_attention_plugin": "float16",
                "build.flags.remove_input_padding": "enable",
                "build.flags.kv_cache_type": "paged",
                "build.flags.gemm_plugin": "float16",
            },
        ),
        (
            GPT_2_AT_0_7,
            {
                "model": "gpt2",
                "engine.dtype": "float16",
                "engine.tensor_parallel_size": 1,
                "build.flags.gpt_attention_plugin": "float16",
                "build.flags.gemm_plugin": "float16",
                "build.flags.kv_cache_type": "paged",
                "build.flags.remove_input_padding": "enable",
            },
        ),
    ],
    ids=["llama-2", "phi-3", "phi-3-128k", "gpt-2", "gpt-2 at 0.7"],
)
def test_the_guides(tmp_path: Path, commands: str, expected: dict[str, Any]) -> None:
    """Every command line of the guides becomes settings that build a plan the contract knows."""
    translation = guide_flags.translate(shlex.split(commands))
    assert translation.settings == expected
    model = write_checkpoint(tmp_path / "model", "gpt" if "gpt2" in commands else "llama")
    config = settings.changed(
        configured(tmp_path), {**translation.settings, "model": str(model.path)}
    )
    converted, compiled = plan_build(config, model).commands(config, model.path, tmp_path, tmp_path)
    family = "gpt" if "gpt2" in commands else "llama"
    assert contract_flags.check(family, converted[2:])["--dtype"] == "float16"
    assert contract_flags.check(contract_flags.TRTLLM_BUILD, compiled[1:])


def test_every_change_is_told() -> None:
    """What is left out or renamed is a note for the person who copied the guide."""
    notes = "\n".join(guide_flags.translate(shlex.split(GPT_2_AT_0_7)).notes)
    for flag in ("-p", "use_layernorm_plugin", "hidden_act", "parallel_build", "paged_kv_cache"):
        assert flag in notes


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("--use_weight_only", {"build.quantization": "int8_weight_only"}),
        (
            "--use_weight_only --weight_only_precision int4",
            {"build.quantization": "int4_weight_only"},
        ),
        (
            "-sq 0.8 --int8_kv_cache",
            {
                "build.quantization": "smoothquant",
                "build.smoothquant_alpha": 0.8,
                "build.kv_cache_quantization": "int8",
            },
        ),
        (
            "--use_weight_only --weight_only_precision int4_awq --quant_ckpt_path /w",
            {"build.quantization": "int4_awq", "build.quant_ckpt_path": "/w"},
        ),
        ("--load_by_shard", {"build.convert_flags.load_by_shard": True}),
        ("--workers 2", {"build.workers": 2}),
    ],
)
def test_quantisation_flags_of_the_scripts(command: str, expected: dict[str, Any]) -> None:
    """Several flags stand for one setting."""
    words = ["convert_checkpoint.py", *shlex.split(command)]
    assert guide_flags.translate(words).settings == expected


def test_flags_of_the_contracts_list_of_older_guides() -> None:
    """Each old flag that the contract lists is translated or refused, none falls through."""
    for row in contract_flags.contract("trtllm_build_flags")["flags_in_older_guides"]:
        for written in row["flag"].replace(" / ", ", ").split(", "):
            name, _, value = written.partition(" ")
            command = [name, *([value.replace("N", "8")] if value else [])]
            assert is_handled(command), name


def is_handled(command: list[str]) -> bool:
    """Translated into a setting, or refused for a reason other than being unknown."""
    try:
        return bool(guide_flags.translate(command).settings)
    except SettingsError as err:
        return "is not a flag that TensorRT-LLM 1.1 has" not in str(err)
