"""What a build runs: every command line and constructor call is one that the contract knows."""

from __future__ import annotations

import string
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cog_triton.artifacts.model_directory import ModelDirectory
from cog_triton.build.build_plan import BuildPlan, plan_build
from cog_triton.build.families import ARCHITECTURES, family_of
from cog_triton.errors import DeploymentError, SettingsError, UnsupportedModel
from tests import contract_flags
from tests.contract_flags import TRTLLM_BUILD, ContractViolation, contract
from tests.engine_samples import CONFIGS, configured, write_checkpoint

QUANTIZATIONS = [
    "none",
    "int8_weight_only",
    "int4_weight_only",
    "smoothquant",
    "fp8",
    "fp8_rowwise",
    "int4_awq",
]
KV_CACHES = ["none", "int8", "fp8"]
SCRIPTS = {name: contract("convert_checkpoint_flags")["families"][name] for name in CONFIGS}

# What the scripts have (contract), and with it which way each quantisation goes: C for
# convert_checkpoint.py and trtllm-build, L for the LLM API, - for refused.
WAYS = {
    "llama": {"none": "C", "int8_weight_only": "C", "int4_weight_only": "C", "smoothquant": "C"}
    | {"fp8": "L", "fp8_rowwise": "C", "int4_awq": "L"},
    "gpt": {"none": "C", "int8_weight_only": "C", "int4_weight_only": "C", "smoothquant": "C"}
    | {"fp8": "L", "fp8_rowwise": "L", "int4_awq": "L"},
    "phi": {"none": "C", "int8_weight_only": "C", "int4_weight_only": "C", "smoothquant": "-"}
    | {"fp8": "L", "fp8_rowwise": "L", "int4_awq": "L"},
}
WAYS["mistral"], WAYS["qwen"] = WAYS["llama"], WAYS["gpt"]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, ModelDirectory]:
    """A checkpoint of each family."""
    base = tmp_path_factory.mktemp("models")
    return {family: write_checkpoint(base / family, family) for family in CONFIGS}


def plans(
    models: dict[str, ModelDirectory], tmp_path: Path
) -> Iterator[tuple[str, Any, BuildPlan]]:
    """(family, settings, plan) over families, quantisations, KV caches and parallelism."""
    for family, model in models.items():
        for quantization in QUANTIZATIONS:
            for kv_cache in KV_CACHES:
                for tp_size, pp_size in ((1, 1), (4, 1), (2, 2)):
                    settings = configured(
                        tmp_path,
                        model=str(model.path),
                        engine__tensor_parallel_size=tp_size,
                        engine__pipeline_parallel_size=pp_size,
                        build__quantization=quantization,
                        build__kv_cache_quantization=kv_cache,
                    )
                    try:
                        yield family, settings, plan_build(settings, model)
                    except UnsupportedModel:
                        is_pipeline = family == "phi" and pp_size > 1
                        assert is_pipeline or WAYS[family][quantization] == "-"


def call_names(plan: BuildPlan) -> Iterator[tuple[str, str]]:
    """(class of the contract, argument) for everything that the LLM API is called with."""
    call: Any = plan.constructor_call(Path("m"), Path("s"))
    for name in call["arguments"]:
        yield "LLM", name
    for name in call["build_config"]:
        yield "BuildConfig", name
    for name in call["quant_config"]:
        yield "QuantConfig", name
    if call["build_config"]:
        yield "LLM", "build_config"
    if call["quant_config"]:
        yield "LLM", "quant_config"


def known_names() -> dict[str, set[str]]:
    """Arguments of each class by the contract."""
    api = contract("llm_api")
    names = {
        section: {field["name"] for field in api[section]}
        for section in ("BaseLlmArgs", "TrtLlmArgs", "BuildConfig", "QuantConfig")
    }
    return {**names, "LLM": names["BaseLlmArgs"] | names["TrtLlmArgs"]}


def test_everything_emitted_is_known_to_the_contract(
    models: dict[str, ModelDirectory], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Over the whole matrix; it prints which flags and arguments it has covered."""
    covered: dict[str, set[str]] = {}
    num_plans = 0
    for family, settings, plan in plans(models, tmp_path):
        num_plans += 1
        if plan.method == "llm_api":
            for section, name in call_names(plan):
                assert name in known_names()[section]
                covered.setdefault(f"LLM API {section}", set()).add(name)
            algorithms = contract("llm_api")["QuantAlgo"]
            for name, value in plan.quant_config.items():
                assert value in algorithms or not name.endswith("quant_algo")
            continue
        directories = (Path("model"), Path("scratch"), Path("engine"))
        converted, compiled = plan.commands(settings, *directories)
        script = f"{SCRIPTS[family]['path'].split('/')[-2]}/convert_checkpoint.py"
        assert converted[1].endswith(SCRIPTS[family]["path"].removeprefix("examples/"))
        for label, program, argv in (
            (script, family, converted[2:]),
            ("trtllm-build", TRTLLM_BUILD, compiled[1:]),
        ):
            values = contract_flags.check(program, argv)
            covered.setdefault(label, set()).update(values)
    for label, names in sorted(covered.items()):
        print(f"covered {label}: {', '.join(sorted(names))}")
    assert num_plans == 5 * 7 * 3 * 3 - 7 * 3 - 2 * 3  # all but phi's pipelines and smoothquant
    assert {"--tp_size", "--pp_size", "--dtype", "--smoothquant", "--int8_kv_cache"} <= (
        covered["llama/convert_checkpoint.py"]
    )
    assert {"--max_batch_size", "--max_seq_len", "--kv_cache_type"} <= covered["trtllm-build"]
    assert {"quant_algo", "kv_cache_quant_algo"} <= covered["LLM API QuantConfig"]
    assert "covered trtllm-build" in capsys.readouterr().out


@pytest.mark.parametrize("family", WAYS)
@pytest.mark.parametrize("quantization", QUANTIZATIONS)
def test_the_way_of_each_quantisation(
    models: dict[str, ModelDirectory], tmp_path: Path, family: str, quantization: str
) -> None:
    """As the scripts have it, otherwise through the LLM API, otherwise refused."""
    settings = configured(tmp_path, build__quantization=quantization)
    way = WAYS[family][quantization]
    if way == "-":
        with pytest.raises(UnsupportedModel, match="does for llama, gpt, qwen"):
            plan_build(settings, models[family])
        return
    plan = plan_build(settings, models[family])
    assert plan.method == {"C": "trtllm_build", "L": "llm_api"}[way]


def test_awq_weights_that_are_quantised_already(
    models: dict[str, ModelDirectory], tmp_path: Path
) -> None:
    """Llama's script takes them; without them modelopt quantises, through the LLM API."""
    settings = configured(
        tmp_path, build__quantization="int4_awq", build__quant_ckpt_path="/weights/awq"
    )
    plan = plan_build(settings, models["llama"])
    assert plan.convert_values["weight_only_precision"] == "int4_awq"
    assert plan.convert_values["quant_ckpt_path"] == "/weights/awq"
    assert plan_build(settings, models["qwen"]).method == "llm_api"


@pytest.mark.parametrize(
    ("family", "changes", "words"),
    [
        ("phi", {"engine__pipeline_parallel_size": 2}, ["pipeline_parallel_size is 2", "only 1"]),
        ("llama", {"engine__max_seq_len": 9999}, ["9999", "4096"]),
        ("llama", {"engine__max_seq_len": 512, "engine__max_input_len": 513}, ["513", "512"]),
        (
            "llama",
            {"build__quantization": "fp8", "build__method": "trtllm_build"},
            ["no build.quantization fp8", "build.method: llm_api"],
        ),
        (
            "llama",
            {"build__quantization": "fp8", "build__flags": {"gemm_plugin": "fp8"}},
            ["build.flags (gemm_plugin)", "LLM API"],
        ),
        (
            "llama",
            {"build__method": "llm_api", "build__convert_flags": {"load_by_shard": True}},
            ["build.convert_flags (load_by_shard)"],
        ),
        ("phi", {"build__convert_flags": {"load_by_shard": True}}, ["load_by_shard is not a flag"]),
        ("llama", {"build__flags": {"max_output_len": 3}}, ["max_output_len is not a flag"]),
    ],
)
def test_what_cannot_be_built(
    models: dict[str, ModelDirectory],
    tmp_path: Path,
    family: str,
    changes: dict[str, Any],
    words: list[str],
) -> None:
    """The error names the setting and both values, or the way that there is."""
    with pytest.raises(DeploymentError) as caught:
        plan_build(configured(tmp_path, **changes), models[family])
    for word in words:
        assert word in str(caught.value)


def test_an_architecture_without_a_script(tmp_path: Path) -> None:
    """The error names it and the ones that there are."""
    model = write_checkpoint(tmp_path / "m", architectures=["MambaForCausalLM"])
    with pytest.raises(UnsupportedModel, match=r"MambaForCausalLM.*LlamaForCausalLM"):
        plan_build(configured(tmp_path), model)


def test_phis_architectures_are_the_scripts() -> None:
    """phi's script has a list of what it takes."""
    accepted = contract("convert_checkpoint_flags")["families"]["phi"]["accepted_architectures"]
    assert {name for name in ARCHITECTURES if family_of(name).name == "phi"} == set(accepted)


def test_the_commands_of_the_llama_guide(models: dict[str, ModelDirectory], tmp_path: Path) -> None:
    """Four GPUs, float16: parallelism in the conversion, sizes and plugins in the build."""
    settings = configured(
        tmp_path,
        engine__dtype="float16",
        engine__tensor_parallel_size=4,
        engine__max_seq_len=2048,
        build__flags={"gemm_plugin": "float16"},
    )
    plan = plan_build(settings, models["llama"])
    converted, compiled = plan.commands(settings, Path("hf"), Path("tmp"), Path("out"))
    assert " ".join(converted[2:]) == (
        "--model_dir hf --output_dir tmp/checkpoint --dtype float16 --tp_size 4 --pp_size 1 "
        "--workers 4"
    )
    assert " ".join(compiled[1:]) == (
        "--checkpoint_dir tmp/checkpoint --output_dir out --output_timing_cache tmp/model.cache "
        "--max_batch_size 64 --max_input_len 2048 --max_seq_len 2048 --max_beam_width 1 "
        "--max_num_tokens 8192 --gemm_plugin float16 --kv_cache_type paged "
        "--remove_input_padding enable --use_paged_context_fmha enable --workers 4"
    )


def emitted(models: dict[str, ModelDirectory], tmp_path: Path) -> list[tuple[str, list[str]]]:
    """Every distinct command line of the matrix with the program that it is for."""
    lines = {}
    for family, settings, plan in plans(models, tmp_path):
        if plan.method == "trtllm_build":
            commands = plan.commands(settings, Path("model"), Path("scratch"), Path("engine"))
            for program, argv in zip(
                (family, TRTLLM_BUILD), (commands[0][2:], commands[1][1:]), strict=True
            ):
                lines[(program, tuple(argv))] = (program, argv)
    return list(lines.values())


def test_a_mutated_flag_name_is_caught(models: dict[str, ModelDirectory], tmp_path: Path) -> None:
    """Whatever letter of whatever emitted flag is changed, dropped or doubled, the check fails."""
    lines = emitted(models, tmp_path)
    assert len(lines) > 60

    @given(st.data())
    def mutate(data: st.DataObject) -> None:
        program, argv = data.draw(st.sampled_from(lines))
        positions = [i for i, word in enumerate(argv) if word.startswith("--")]
        where = data.draw(st.sampled_from(positions))
        name = argv[where]
        at = data.draw(st.integers(2, len(name) - 1))
        new = data.draw(st.sampled_from(["", name[at] * 2, *string.ascii_lowercase, "_", "-"]))
        mutated = name[:at] + new + name[at + 1 :]
        contract_flags.check(program, argv)
        if mutated in contract_flags.flags_of(program):
            return  # nothing mutated, or into another flag, whose value is then checked
        with pytest.raises(ContractViolation):
            contract_flags.check(program, [*argv[:where], mutated, *argv[where + 1 :]])

    mutate()


def test_a_mutated_argument_name_is_caught(
    models: dict[str, ModelDirectory], tmp_path: Path
) -> None:
    """The same for the names in the calls of the LLM API."""
    names = {pair for *_, plan in plans(models, tmp_path) for pair in call_names(plan)}
    known = known_names()

    @given(st.sampled_from(sorted(names)), st.data())
    def mutate(pair: tuple[str, str], data: st.DataObject) -> None:
        section, name = pair
        at = data.draw(st.integers(0, len(name) - 1))
        mutated = name[:at] + data.draw(st.sampled_from(["", "q", "_"])) + name[at + 1 :]
        assert (mutated in known[section]) == (mutated == name)

    mutate()


@pytest.mark.parametrize(
    "argv",
    [
        ["--max_output_len", "8"],
        ["--tp_size", "2"],
        ["--gemm_plugin", "float64"],
        ["--max_batch_size", "many"],
        ["--max_batch_size"],
        ["--max_batch_size", "1", "2"],
        ["--fast_build", "enable"],
        ["stray"],
    ],
)
def test_the_checker_refuses_what_the_program_would(argv: list[str]) -> None:
    """Unknown flags, wrong values and stray words end trtllm-build with status 2."""
    with pytest.raises(ContractViolation):
        contract_flags.check(TRTLLM_BUILD, argv)


def test_settings_errors_come_before_anything_runs(
    models: dict[str, ModelDirectory], tmp_path: Path
) -> None:
    """A wrong flag of the YAML is a settings error of the plan."""
    settings = configured(tmp_path, build__flags={"gemm_plugin": "float64"})
    with pytest.raises(SettingsError, match=r"build\.flags\.gemm_plugin is 'float64'"):
        plan_build(settings, models["llama"])
