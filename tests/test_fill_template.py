"""The command fill_template.py, as the guides use it."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from cog_triton.errors import ModelRepositoryError
from cog_triton.template import parse

ROOT = Path(__file__).parents[1]
SCRIPT = ROOT / "scripts" / "fill_template.py"
TEMPLATE = ROOT / "triton_model_repo" / "tensorrt_llm" / "config.pbtxt"
MINIMUM = (
    "triton_max_batch_size:4,decoupled_mode:True,engine_dir:/engine,"
    "batching_strategy:inflight_fused_batching"
)
# What the guides fill the tensorrt_llm template with, each line from another guide.
GUIDE_SUBSTITUTIONS = [
    "triton_max_batch_size:4,decoupled_mode:True,engine_dir:/src/tensorrtllm_backend/"
    "triton_model_repo/tensorrt_llm/1,batching_strategy:inflight_fused_batching,"
    "max_queue_delay_microseconds:100,batch_scheduler_policy:max_utilization",
    "triton_max_batch_size:4,decoupled_mode:False,engine_dir:/tensorrtllm_backend/"
    "triton_model_repo/tensorrt_llm/1,batching_strategy:V1,max_queue_delay_microseconds:100",
    "batching_strategy:inflight_fused_batching,engine_dir:/src/tensorrtllm_backend/triton_model/"
    "tensorrt_llm/1,batch_scheduler_policy:max_utilization,decoupled_mode:True,"
    "triton_max_batch_size:8",
    "triton_max_batch_size:64,decoupled_mode:False,max_beam_width:1,engine_dir:/tmp/llama/7B/"
    "trt_engines/fp16/4-gpu/,max_tokens_in_paged_kv_cache:2560,max_attention_window_size:2560,"
    "kv_cache_free_gpu_mem_fraction:0.5,exclude_input_in_output:True,enable_kv_cache_reuse:False,"
    "batching_strategy:inflight_batching,max_queue_delay_microseconds:600",
    # As in the Phi-3 guide, but for the scheduler policy: no release has guaranteed_completion.
    "decoupled_mode:true,engine_dir:/all_models/inflight_batcher_llm/tensorrt_llm/1,"
    "max_tokens_in_paged_kv_cache:,batch_scheduler_policy:guaranteed_no_evict,"
    "kv_cache_free_gpu_mem_fraction:0.2,max_num_sequences:4,triton_backend:tensorrtllm,"
    "triton_max_batch_size:128,max_queue_delay_microseconds:10,max_beam_width:1,"
    "batching_strategy:inflight_fused_batching,engine_dir:/opt/all_models/inflight_batcher_llm/"
    "tensorrt_llm/1,max_tokens_in_paged_kv_cache:1,kv_cache_free_gpu_mem_fraction:0.2",
]


def run(*arguments: object, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPT), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=cwd)


@pytest.fixture(scope="module")
def script() -> ModuleType:
    """The script as a module."""
    spec = importlib.util.spec_from_file_location("fill_template", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """A template of one's own to fill in place."""
    return Path(shutil.copy(TEMPLATE, tmp_path / "config.pbtxt"))


def test_an_error_is_one_line_and_exit_status_1_and_the_file_stays(config: Path) -> None:
    """A missing mandatory variable is named, without a traceback, and nothing is written."""
    before = config.read_bytes()
    done = run("-i", config, "triton_max_batch_size:4,decoupled_mode:True")
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.startswith("E3006 ModelRepositoryError: ")
    assert "no value for batching_strategy, engine_dir." in done.stderr
    assert done.stderr.count("\n") == 1
    assert config.read_bytes() == before
    assert [path.name for path in config.parent.iterdir()] == ["config.pbtxt"]


@pytest.mark.parametrize(
    ("substitutions", "message"),
    [
        (f"{MINIMUM},engine_dri:x", "engine_dri (nearest known key: engine_dir)"),
        (f"{MINIMUM},decoupled_mode:perhaps", "expected true or false"),
        (f"{MINIMUM},batch_scheduler_policy:guaranteed_completion", "guaranteed_no_evict"),
        (f"{MINIMUM},max_beam_width", "'max_beam_width' is not name:value"),
        (f"{MINIMUM},engine_dir:a:b", "write a comma as"),
        (f"{MINIMUM},", "'' is not name:value"),
    ],
)
def test_wrong_substitutions_are_named(
    script: ModuleType, config: Path, substitutions: str, message: str
) -> None:
    """Each kind of mistake says what it is."""
    with pytest.raises(ModelRepositoryError) as caught:
        script.fill_file(config, substitutions)
    assert message in str(caught.value)


def test_a_file_that_is_missing_is_an_error(tmp_path: Path) -> None:
    """The file is named."""
    done = run(tmp_path / "none.pbtxt", MINIMUM)
    assert (done.returncode, done.stdout) == (1, "")
    assert "none.pbtxt cannot be read" in done.stderr


@pytest.mark.parametrize("substitutions", GUIDE_SUBSTITUTIONS)
def test_the_commands_of_the_guides_give_a_valid_config(
    script: ModuleType, config: Path, substitutions: str
) -> None:
    """What the guides leave out has its default, a later pair wins over an earlier one."""
    filled = parse(script.fill_file(config, substitutions), source="filled")
    given = dict(pair.split(":") for pair in substitutions.split(","))
    assert filled.max_batch_size == int(given["triton_max_batch_size"])
    assert filled.backend == "tensorrtllm"
    parameters = {key: value.string_value for key, value in filled.parameters.items()}
    assert parameters["gpt_model_path"] == given["engine_dir"]
    assert parameters["gpt_model_type"] == given["batching_strategy"]
    assert parameters.get("max_beam_width") == given.get("max_beam_width")


def test_it_prints_and_leaves_the_file_alone_unless_told_otherwise(config: Path) -> None:
    """Without -i the result is on stdout, as `fill_template.py … > config.pbtxt` needs it."""
    before = config.read_bytes()
    done = run(config, MINIMUM)
    assert (done.returncode, done.stderr) == (0, "")
    assert parse(done.stdout, source="stdout").name == "tensorrt_llm"
    assert config.read_bytes() == before


@pytest.mark.parametrize("flag", ["-i", "--in_place"])
def test_in_place_the_file_keeps_its_mode_and_a_link_stays_a_link(config: Path, flag: str) -> None:
    """The file behind a link is replaced at once, and works from another directory."""
    config.chmod(0o640)
    link = config.with_name("link.pbtxt")
    link.symlink_to(config)
    done = run(flag, "link.pbtxt", MINIMUM, cwd=config.parent)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert link.is_symlink()
    assert os.stat(config).st_mode & 0o777 == 0o640
    assert parse(config.read_text(), source="config").max_batch_size == 4
    assert sorted(path.name for path in config.parent.iterdir()) == ["config.pbtxt", "link.pbtxt"]


def test_values_that_are_no_longer_needed_give_a_note(config: Path) -> None:
    """tokenizer_type, which every older guide gives, is passed over and said to be."""
    done = run("-i", config, f"{MINIMUM},tokenizer_type:auto")
    assert done.returncode == 0
    assert done.stderr == "note: tokenizer_type is gone since 0.9; its value is not needed\n"


def test_a_template_that_still_has_a_retired_variable_is_filled_with_it(
    script: ModuleType, tmp_path: Path
) -> None:
    """What counts is the file: an older template of somebody's own gets its value."""
    file = tmp_path / "config.pbtxt"
    file.write_text(
        'name: "preprocessing"\nmax_batch_size: ${triton_max_batch_size}\n'
        'parameters { key: "t" value { string_value: "${tokenizer_type}" } }\n'
        "dynamic_batching { max_queue_delay_microseconds: ${max_queue_delay_microseconds} }\n"
    )
    filled = parse(script.fill_file(file, "triton_max_batch_size:4,tokenizer_type:auto"), source="")
    assert filled.parameters["t"].string_value == "auto"


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        (r"key:a\,b", "a,b"),
        (r"key:a\:b", "a:b"),
        (r"key:a\\:b", "a:b"),
        (r"key:\\\\", "\\"),
        (r"key:0\,1;2\,3", "0,1;2,3"),
        ("key:", ""),
        ("key:1,key:2", "2"),
        (" key:a b", "a b"),
    ],
)
def test_commas_and_colons_are_escaped_with_backslashes(
    script: ModuleType, argument: str, value: str
) -> None:
    """One backslash before a comma, one or two before a colon, as each pair is split twice."""
    assert script.split_substitutions(argument) == {"key": value}
