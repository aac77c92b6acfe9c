"""An engine that does not fit is refused with a line for each mismatch, both values in it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cog_triton.artifacts.manifest import Manifest, Recipe
from cog_triton.build.manifest import ENGINE_MANIFEST_NAME, EngineManifest
from cog_triton.engine_check import check_engine, smallest_kv_cache_tokens
from cog_triton.engine_config import EngineConfig
from cog_triton.errors import ArtifactCorrupt, EngineIncompatible
from cog_triton.machine import Machine
from cog_triton.settings import EngineSettings
from tests.contract_flags import contract
from tests.engine_samples import A100, H100, L4, T4, engine_config, machine, write_engine

MODEL, BUILD, PLUGINS = "pretrained_config__", "build_config__", "build_config__plugin_config__"
MAPPING = "pretrained_config__mapping__"

# (check of the contract, engine, settings, machine, the line)
MISMATCHES: list[tuple[str, dict[str, Any], dict[str, Any], Machine, str]] = [
    (
        "TensorRT-LLM version",
        {"version": "1.0.0"},
        {},
        machine(A100),
        "TensorRT-LLM: built by 1.0.0, installed is 1.1.0",
    ),
    (
        "TensorRT-LLM version",
        {MAPPING + "auto_parallel": False},
        {},
        machine(A100),
        "mapping: has auto_parallel, which TensorRT-LLM 1.1.0 does not know",
    ),
    (
        "world size",
        {MAPPING + "tp_size": 2, MAPPING + "world_size": 2},
        {},
        machine(A100),
        "GPUs: the engine needs 2, this machine has 1",
    ),
    (
        "world size",
        {MAPPING + "world_size": 4, MAPPING + "tp_size": 2},
        {},
        machine(*[A100] * 4),
        "world_size: 4, but tp_size * pp_size * cp_size is 2",
    ),
    (
        "world size",
        {},
        {"tensor_parallel_size": 2},
        machine(A100, A100),
        "tensor_parallel_size: the settings ask for 2, the engine has 1",
    ),
    (
        "world size",
        {},
        {"pipeline_parallel_size": 3},
        machine(*[A100] * 3),
        "pipeline_parallel_size: the settings ask for 3, the engine has 1",
    ),
    (
        "model directory",
        {MAPPING + "tp_size": 2, MAPPING + "world_size": 2},
        {},
        machine(A100, A100),
        "rank files: 1 of 2, missing rank1.engine",
    ),
    (
        "sequence length",
        {},
        {"max_seq_len": 4096},
        machine(A100),
        "max_seq_len: the settings ask for 4096, the engine was built for 2048",
    ),
    (
        "sequence length",
        {},
        {"max_input_len": 2000},
        machine(A100),
        "max_input_len: the settings ask for 2000, the engine was built for 1024",
    ),
    (
        "batch and beam",
        {},
        {"max_batch_size": 64},
        machine(A100),
        "max_batch_size: the settings ask for 64, the engine was built for 8",
    ),
    (
        "batch and beam",
        {},
        {"max_beam_width": 4},
        machine(A100),
        "max_beam_width: the settings ask for 4, the engine was built for 1",
    ),
    (
        "batch and beam",
        {},
        {"max_num_tokens": 9000},
        machine(A100),
        "max_num_tokens: the settings ask for 9000, the engine was built for 8192",
    ),
    (
        "chunked context and KV reuse",
        {PLUGINS + "use_paged_context_fmha": False},
        {"enable_kv_cache_reuse": True},
        machine(A100),
        "enable_kv_cache_reuse: true, but the engine was built with use_paged_context_fmha false",
    ),
    (
        "chunked context and KV reuse",
        {PLUGINS + "use_paged_context_fmha": False},
        {"triton": {"enable_chunked_context": True}},
        machine(A100),
        "enable_chunked_context: true, but the engine was built with use_paged_context_fmha false",
    ),
    (
        "chunked context and KV reuse",
        {},
        {"max_tokens_in_paged_kv_cache": 1024},
        machine(A100),
        "max_tokens_in_paged_kv_cache: 1024, one sequence of max_seq_len 2048 needs 2048",
    ),
    (
        "in-flight batching",
        {BUILD + "kv_cache_type": "CONTINUOUS"},
        {},
        machine(A100),
        "kv_cache_type: CONTINUOUS, in-flight batching needs PAGED",
    ),
    (
        "in-flight batching",
        {PLUGINS + "remove_input_padding": False},
        {},
        machine(A100),
        "remove_input_padding: False, in-flight batching needs true",
    ),
    (
        "in-flight batching",
        {PLUGINS + "gpt_attention_plugin": None},
        {},
        machine(A100),
        "gpt_attention_plugin: None, in-flight batching needs",
    ),
    (
        "logits outputs",
        {MODEL + "logits_dtype": "bfloat16"},
        {},
        machine(A100),
        "logits_dtype: bfloat16, Triton takes float32, float16",
    ),
    (
        "logits outputs",
        {MODEL + "logits_dtype": "float16"},
        {"triton": {"logits_datatype": "TYPE_FP32"}},
        machine(A100),
        "logits_datatype: the settings ask for TYPE_FP32, the engine has TYPE_FP16",
    ),
    (
        "dtype",
        {MODEL + "dtype": "bfloat16"},
        {},
        machine(T4),
        "dtype: bfloat16 needs compute capability 8.0, Tesla T4 has 7.5",
    ),
    (
        "dtype",
        {},
        {"dtype": "bfloat16"},
        machine(A100),
        "dtype: the settings ask for bfloat16, the engine has float16",
    ),
    (
        "dtype",
        {MODEL + "quantization__quant_algo": "FP8"},
        {},
        machine(A100),
        "quantization: FP8 needs compute capability 8.9, NVIDIA A100-SXM4-80GB has 8.0",
    ),
    (
        "dtype",
        {MODEL + "quantization__kv_cache_quant_algo": "FP8"},
        {},
        machine(A100),
        "quantization: FP8 needs compute capability 8.9",
    ),
]
# Checks of the contract that other tests hold: those below, and ModelDirectory (tokenizer).
ELSEWHERE = {"GPU architecture", "tokenizer"}


def limits(**values: Any) -> tuple[EngineSettings, dict[str, object]]:
    triton = values.pop("triton", {})
    return EngineSettings(**values), triton


@pytest.mark.parametrize(
    ("engine", "values", "where", "line"),
    [row[1:] for row in MISMATCHES],
    ids=[f"{row[0]}: {row[4][:40]}" for row in MISMATCHES],
)
def test_mismatch(
    tmp_path: Path,
    engine: dict[str, Any],
    values: dict[str, Any],
    where: Machine,
    line: str,
) -> None:
    """One line with both values, and no other line but what follows from the same cause."""
    path = write_engine(tmp_path / "engine", **engine)
    wanted, triton = limits(**values)
    with pytest.raises(EngineIncompatible) as caught:
        check_engine(path, wanted, where, triton)
    assert line in str(caught.value)
    assert str(path) in str(caught.value)
    assert len(caught.value.detail.strip().splitlines()) <= 4


def test_every_check_of_the_contract_is_covered() -> None:
    """The table above and the tests named beside it hold each compatibility rule."""
    checks = {row["check"] for row in contract("engine_config")["checks_for_compatibility"]}
    assert checks == {row[0] for row in MISMATCHES} | ELSEWHERE


def test_all_mismatches_are_told_at_once(tmp_path: Path) -> None:
    """A person corrects everything in one go."""
    path = write_engine(tmp_path / "engine", version="0.21.0", pretrained_config__dtype="bfloat16")
    with pytest.raises(EngineIncompatible) as caught:
        check_engine(path, EngineSettings(max_batch_size=64, max_seq_len=9999), machine(T4))
    lines = caught.value.detail.strip().splitlines()[1:]
    assert [line.split(":")[0].strip() for line in lines] == [
        "TensorRT-LLM",
        "dtype",
        "max_seq_len",
        "max_batch_size",
    ]


def test_an_engine_larger_than_the_gpu(tmp_path: Path) -> None:
    """Rank files that do not fit into the memory are a mismatch, with both values."""
    path = write_engine(tmp_path / "engine")
    with (path / "rank0.engine").open("ab") as file:
        file.truncate(40 << 30)  # sparse
    with pytest.raises(EngineIncompatible, match=r"40\.0 GiB on each of 1 GPU.* 19\.8 of 22\.0"):
        check_engine(path, EngineSettings(), machine(L4))


def test_surplus_rank_files(tmp_path: Path) -> None:
    """Ranks beyond the world size are left from another engine, so the directory is mixed up."""
    path = write_engine(tmp_path / "engine", num_ranks=2)
    with pytest.raises(EngineIncompatible, match=r"rank1\.engine beyond a world_size of 1"):
        check_engine(path, EngineSettings(), machine(A100, A100))


def test_the_engine_of_another_gpu(tmp_path: Path) -> None:
    """The manifest of the build says for which compute capability it was compiled."""
    path = with_manifest(write_engine(tmp_path / "engine"))
    assert check_engine(path, EngineSettings(), machine(A100)).manifest is not None
    with pytest.raises(EngineIncompatible) as caught:
        check_engine(path, EngineSettings(), machine(H100))
    assert "compute capability: built for 8.0 (NVIDIA A100-SXM4-80GB), NVIDIA H100" in str(
        caught.value
    )


def test_another_tensorrt(tmp_path: Path) -> None:
    """The TensorRT that compiled it is in the manifest, and must be the installed one."""
    path = with_manifest(write_engine(tmp_path / "engine"))
    where = replace(machine(A100), tensorrt="10.11.0.33")
    with pytest.raises(EngineIncompatible, match=r"built with 10\.13\.3\.9, installed is 10\.11"):
        check_engine(path, EngineSettings(), where)


@pytest.mark.parametrize("damage", ["shorter", "missing", "exchanged"])
def test_files_that_are_not_as_they_were_built(tmp_path: Path, damage: str) -> None:
    """A copy that broke off, lost a file or got another one of the same size is refused."""
    path = with_manifest(write_engine(tmp_path / "engine"))
    file = path / "rank0.engine"
    if damage == "shorter":
        file.write_bytes(b"an")
    elif damage == "missing":
        (path / "generation_config.json").unlink()
    else:
        file.write_bytes(b"AN ENGINE")
        Manifest.of(path, Recipe("https://example.com/engine.tar"), {}).write(path)
    with pytest.raises(EngineIncompatible, match=r"file (rank0\.engine|generation_config\.json): "):
        check_engine(path, EngineSettings(), machine(A100))


def test_an_unreadable_manifest(tmp_path: Path) -> None:
    """A manifest that cannot be read is corruption, not the absence of one."""
    path = write_engine(tmp_path / "engine")
    (path / ENGINE_MANIFEST_NAME).write_text('{"format": 99}')
    with pytest.raises(ArtifactCorrupt, match="format 99"):
        check_engine(path, EngineSettings(), machine(A100))


def test_limits_that_nobody_set_become_the_engines(tmp_path: Path) -> None:
    """The defaults of the settings are lowered to what was built; what was set stays."""
    path = write_engine(
        tmp_path / "engine", build_config__plugin_config__use_paged_context_fmha=False
    )
    checked = check_engine(path, EngineSettings(), machine(A100))
    assert (checked.max_batch_size, checked.max_seq_len, checked.max_input_len) == (8, 2048, 1024)
    assert checked.max_num_tokens == 8192
    assert checked.enable_kv_cache_reuse is False
    checked = check_engine(path, EngineSettings(max_batch_size=4, max_seq_len=512), machine(A100))
    assert (checked.max_batch_size, checked.max_seq_len) == (4, 512)


def test_the_logits_type_follows_the_engine(tmp_path: Path) -> None:
    """Triton's config must name the engine's own type of logits."""
    path = write_engine(tmp_path / "engine", pretrained_config__logits_dtype="float16")
    assert check_engine(path, EngineSettings(), machine(A100)).logits_datatype == "TYPE_FP16"


def test_the_kv_cache_rule_of_the_guide() -> None:
    """beam_width * tokensPerBlock * maxBlocksPerSeq, in whole blocks."""
    assert smallest_kv_cache_tokens(131072, 1, 32) == 131072
    assert smallest_kv_cache_tokens(1000, 4, 64) == 4 * 1024


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"builder_config": {}, "plugin_config": {}}, "0.7 and before"),
        ({"pretrained_config": {}}, "has no build_config"),
        ([], "not a JSON object"),
        ({"pretrained_config": {"mapping": {"tp_size": "x"}}, "build_config": {}}, "understood"),
    ],
)
def test_a_config_of_something_else(tmp_path: Path, config: object, words: str) -> None:
    """Layouts that no loader of today reads are refused by name."""
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ArtifactCorrupt, match=words):
        EngineConfig.read(tmp_path)


def test_older_configs_lack_keys(tmp_path: Path) -> None:
    """Absent keys have defaults: an engine of 0.10 can be named in an error, not crash."""
    (tmp_path / "config.json").write_text(
        json.dumps(
            {
                "version": "0.10.0",
                "pretrained_config": {"mapping": {"world_size": 2, "tp_size": 2, "pp_size": 1}},
                "build_config": {"max_output_len": 9, "plugin_config": {"paged_kv_cache": False}},
            }
        )
    )
    config = EngineConfig.read(tmp_path)
    assert (config.tp_size, config.kv_cache_type, config.max_seq_len) == (2, "CONTINUOUS", None)


def test_the_samples_are_in_the_contracts_layout() -> None:
    """Every key of the sample config is one that the contract knows."""
    known, config = contract("engine_config"), engine_config()
    assert set(config) == set(known["top_level"])
    for section in ("pretrained_config", "build_config"):
        assert set(config[section]) <= set(known[section])
    plugins = config["build_config"]["plugin_config"]
    assert set(plugins) <= set(known["build_config"]["plugin_config"]["fields"])
    mapping = config["pretrained_config"]["mapping"]
    assert set(mapping) <= set(known["pretrained_config"]["mapping"]["fields"])


def with_manifest(path: Path) -> Path:
    EngineManifest(
        model="org/model",
        model_identity="hub:org/model@abc",
        versions={"tensorrt_llm": "1.1.0", "tensorrt": "10.13.3.9"},
        gpu={"name": A100.name, "compute_capability": "8.0"},
        commands=[],
        fingerprint="0" * 64,
        built_at="2025-12-01T00:00:00+00:00",
    ).write(path)
    return path
