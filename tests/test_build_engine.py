"""The whole build with stand-in programs: one engine, whole or not at all, whatever happens."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from cog_triton import engine, model, plan
from cog_triton.artifacts.model_directory import ModelDirectory
from cog_triton.artifacts.published import ensure_published
from cog_triton.build.engine_build import EngineBuild, ensure_engine, prepare
from cog_triton.build.manifest import EngineManifest
from cog_triton.engine_check import check_engine
from cog_triton.errors import EngineBuildFailed, EngineIncompatible, RuntimeUnavailable
from cog_triton.settings import EngineSettings
from tests import contract_flags
from tests.engine_samples import (
    A100,
    CONFIGS,
    GPUS,
    H100,
    ROOT,
    STANDINS,
    configured,
    machine,
    write_checkpoint,
)

SCRIPT = ROOT / "scripts" / "build_engine.py"


class Log(list[str]):
    """Collects the lines of a build."""

    def __call__(self, line: str) -> None:
        self.append(line)


def prepared(tmp_path: Path, family: str = "llama", **changes: Any) -> EngineBuild:
    """A build of a new checkpoint, not started."""
    path = tmp_path / family
    checkpoint = ModelDirectory.read(path) if path.exists() else write_checkpoint(path, family)
    settings = configured(tmp_path, model=str(path), runtime="tensorrt", **changes)
    gpus = [A100] * (settings.engine.tensor_parallel_size or 1)
    return prepare(settings, checkpoint, machine(*gpus, tensorrt="10.13.3.9"), Log())


def run(build: EngineBuild) -> ModelDirectory:
    return ensure_engine(build.settings, build.model, build.machine, build.log)


def nothing_is_left(build: EngineBuild) -> bool:
    """Whether neither an engine nor a half of one lies in the cache."""
    names = [path.name for path in build.dest.parent.iterdir()]
    return not build.dest.exists() and all(name.endswith(".lock") for name in names)


@pytest.mark.parametrize("program", ["convert_checkpoint", "trtllm-build"])
def test_a_step_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str) -> None:
    """The error has the program's last lines; nothing of the build stays."""
    monkeypatch.setenv("STANDIN_FAIL", program)
    build = prepared(tmp_path)
    with pytest.raises(EngineBuildFailed) as caught:
        run(build)
    assert f"{program} ended with status 1" in str(caught.value)
    assert f"{program} ran out of memory (CUDA)" in str(caught.value)
    assert nothing_is_left(build)


def test_a_program_that_refuses_its_arguments(tmp_path: Path) -> None:
    """Status 2 and the reason come through, should a release change its flags."""
    build = prepared(tmp_path)
    build = replace(build, settings=configured(tmp_path, build__trtllm_build=refusing(tmp_path)))
    with pytest.raises(EngineBuildFailed) as caught:
        run_as_planned(build)
    assert "trtllm-build ended with status 2" in str(caught.value)
    assert "unrecognized arguments: --kv_cache_type" in str(caught.value)
    assert nothing_is_left(build)


def refusing(tmp_path: Path) -> str:
    """A trtllm-build of another release."""
    program = tmp_path / "trtllm-build"
    program.write_text("#!/bin/sh\necho error: unrecognized arguments: --kv_cache_type\nexit 2\n")
    program.chmod(0o755)
    return str(program)


def test_programs_that_build_something_else(tmp_path: Path) -> None:
    """What they leave is checked before it is published."""
    build = prepared(tmp_path)
    build.plan.convert_values["tp_size"] = 2
    with pytest.raises(EngineIncompatible, match="GPUs: the engine needs 2, this machine has 1"):
        run_as_planned(build)
    assert nothing_is_left(build)


def test_programs_that_are_not_there(tmp_path: Path) -> None:
    """The error names the program or script, and what to do without it."""
    build = prepared(tmp_path, build__examples_dir=str(tmp_path / "examples"))
    with pytest.raises(RuntimeUnavailable, match=r"convert_checkpoint\.py is not there.*llm_api"):
        run(build)
    build = prepared(tmp_path, build__trtllm_build="no-such-trtllm-build")
    with pytest.raises(RuntimeUnavailable, match="there is no program no-such-trtllm-build"):
        run(build)
    assert nothing_is_left(build)


@pytest.mark.parametrize("family", CONFIGS)
def test_every_family(tmp_path: Path, family: str) -> None:
    """The engine fits, has tokenizer, end ids and manifest, and its output was told as it came."""
    build = prepared(tmp_path, family, engine__max_seq_len=512, engine__max_batch_size=4)
    built = run(build)
    assert built.format == "engine"
    assert built.end_ids == (2,)
    assert (built.path / "tokenizer_config.json").is_file()
    manifest = EngineManifest.read(built.path)
    assert manifest is not None
    assert manifest.gpu["compute_capability"] == "8.0"
    assert manifest.versions == {"tensorrt_llm": "1.1.0", "tensorrt": "10.13.3.9"}
    assert set(manifest.files) >= {"config.json", "rank0.engine", "tokenizer.json"}
    assert [command[0] for command in manifest.commands][1].endswith("trtllm-build")
    lines = build.log
    assert isinstance(lines, Log)
    assert "convert_checkpoint: Weights of rank 0 converted" in lines
    assert "trtllm-build: Engine of rank 0 of 1" in lines
    planned = engine.plan_engine(build.settings, built, build.machine)
    assert (planned.max_seq_len, planned.config.max_batch_size) == (512, 4)


def test_four_ranks(tmp_path: Path) -> None:
    """Tensor parallelism gives one engine file a rank, and the launcher's world size."""
    build = prepared(tmp_path, "gpt", engine__tensor_parallel_size=4)
    built = run(build)
    assert sorted(path.name for path in built.path.glob("rank*")) == [
        f"rank{rank}.engine" for rank in range(4)
    ]
    assert engine.plan_engine(build.settings, built, build.machine).world_size == 4


def test_the_llm_api(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """FP8 goes through LLM(...).save(), with arguments that the stand-in knows, in the layout."""
    record = tmp_path / "record"
    monkeypatch.setenv("STANDIN_RECORD", str(record))
    monkeypatch.setenv("PYTHONPATH", str(STANDINS / "engine_api"))
    build = prepared(tmp_path, "qwen", build__method="llm_api", engine__max_seq_len=512)
    built = run(build)
    call = json.loads(record.read_text())
    assert "build_config" in call["arguments"]
    assert json.loads((built.path / "tokenizer.json").read_text())["model"]["type"] == "BPE"
    assert check_engine(built.path, EngineSettings(), build.machine).config.max_seq_len == 512
    quantised = prepared(tmp_path, "qwen", build__quantization="int4_awq")
    assert check_engine(run(quantised).path, EngineSettings(), build.machine).config.quant_algo == (
        "W4A16_AWQ"
    )


def test_an_argument_that_the_llm_api_does_not_know(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its ValueError names the argument, and reaches the user."""
    monkeypatch.setenv("PYTHONPATH", str(STANDINS / "engine_api"))
    build = prepared(tmp_path, build__method="llm_api")
    build.plan.arguments["max_output_len"] = 5
    with pytest.raises(EngineBuildFailed, match="got invalid argument: max_output_len"):
        run_as_planned(build)
    assert nothing_is_left(build)


def run_as_planned(build: EngineBuild) -> None:
    """The plan as a test has changed it, which `ensure_engine` would make anew."""
    ensure_published(build.publication, shutil.disk_usage)


def test_a_second_start_builds_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Equal settings find the engine; a changed flag, version or GPU has one of its own."""
    record = tmp_path / "record"
    monkeypatch.setenv("STANDIN_RECORD", str(record))
    first = prepared(tmp_path)
    assert not first.is_built
    run(first)
    again = prepared(tmp_path)
    assert again.is_built
    assert run(again).path == first.dest
    assert len(record.read_text().splitlines()) == 2
    assert prepared(tmp_path, build__workers=3).dest == first.dest
    assert prepared(tmp_path, engine__max_batch_size=3).dest != first.dest
    assert prepared(tmp_path, build__flags={"tokens_per_block": 64}).dest != first.dest
    (tmp_path / "llama" / "config.json").write_text(
        (tmp_path / "llama" / "config.json").read_text() + " "
    )
    assert prepared(tmp_path).dest != first.dest


def test_fetch_model_gives_the_engine(tmp_path: Path) -> None:
    """A deployment with `runtime: tensorrt` and a checkpoint needs no other step."""
    checkpoint = write_checkpoint(tmp_path / "llama")
    settings = configured(
        tmp_path,
        model=str(checkpoint.path),
        runtime="tensorrt",
        gpu_inventory=str(GPUS / "1xa100.json"),
    )
    before = plan.resolve(settings)
    assert before.engine_build.startswith("will be built at the first start (llama, trtllm_build)")
    for command, program in zip(before.build_commands, ("llama", "trtllm-build"), strict=True):
        words = command.split()
        contract_flags.check(program, words[2:] if program == "llama" else words[1:])
    built = model.fetch_model(settings)
    assert built.format == "engine"
    after = plan.resolve(settings)
    assert (after.engine_dir, after.engine_build[:14]) == (str(built.path), "was built here")


def test_relative_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The programs run in a directory of their own, yet paths mean what they mean here."""
    write_checkpoint(tmp_path / "model")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "programs").symlink_to(STANDINS)
    settings = configured(
        tmp_path,
        model="./model",
        runtime="tensorrt",
        cache_dir="cache",
        build__trtllm_build="programs/bin/trtllm-build",
        build__examples_dir="programs/examples",
        gpu_inventory=str(GPUS / "1xa100.json"),
    )
    assert model.fetch_model(settings).format == "engine"


def write_config(tmp_path: Path, **changes: Any) -> Path:
    """A deployment file for the script, with a new checkpoint."""
    write_checkpoint(tmp_path / "llama")
    values = {
        "model": str(tmp_path / "llama"),
        "cache_dir": str(tmp_path / "cache"),
        "gpu_inventory": str(GPUS / "1xa100.json"),
        "engine": {"max_seq_len": 1024},
        "build": {
            "trtllm_build": str(STANDINS / "bin" / "trtllm-build"),
            "examples_dir": str(STANDINS / "examples"),
        },
        **changes,
    }
    config = tmp_path / "deployment.yaml"
    config.write_text(yaml.safe_dump(values))
    return config


def call_script(*arguments: object, **environ: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPT), *map(str, arguments)]
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, **environ},
        check=False,
    )


def test_the_script_with_flags_of_a_guide_and_an_archive(tmp_path: Path) -> None:
    """One command: from a guide's flags to an engine and an archive of it that is an engine."""
    config, archive = write_config(tmp_path), tmp_path / "out" / "engine.tar.gz"
    guide = ["--", "trtllm-build", "--max_input_len", 256, "--max_output_len", 256]
    refused = call_script(config, *guide, "--tp_size", 1, "--use_custom_all_reduce", "enable")
    assert refused.returncode == 1
    assert "--use_custom_all_reduce: removed without replacement" in refused.stderr
    # The settings file says 1024, the guide 512: the command line wins, as it came last.
    done = call_script(config, "--tar", archive, *guide, "--tp_size", 1)
    assert done.returncode == 0, done.stderr
    assert "256 + 256 = 512" in done.stderr
    assert "trtllm-build: Engine of rank 0 of 1" in done.stderr
    engine_dir = Path(done.stdout.strip())
    with tarfile.open(archive) as tar:
        tar.extractall(tmp_path / "unpacked", filter="data")
    unpacked = ModelDirectory.read(tmp_path / "unpacked")
    where = machine(A100)
    assert check_engine(unpacked.path, EngineSettings(), where).config.max_seq_len == 512
    assert {path.name for path in unpacked.path.iterdir()} == (
        {path.name for path in engine_dir.iterdir()} - {"cog_triton_manifest.json"}
    )


def test_the_script_refuses_at_once(tmp_path: Path) -> None:
    """No GPU, or a name for the archive that cannot be, is told before anything is fetched."""
    config = write_config(tmp_path, gpu_inventory=str(GPUS / "none.json"))
    done = call_script(config)
    assert (done.returncode, done.stdout) == (1, "")
    assert "GPUs: it needs one" in done.stderr
    assert "expected .tar or .tar.gz" in call_script(config, "--tar", "engine.zip").stderr


def test_a_dry_run_prints_the_commands(tmp_path: Path) -> None:
    """They are the ones that would be run, and the contract knows them."""
    done = call_script(write_config(tmp_path), "--dry-run")
    assert done.returncode == 0, done.stderr
    converted, compiled = done.stdout.splitlines()
    contract_flags.check("llama", converted.split()[2:])
    contract_flags.check("trtllm-build", compiled.split()[1:])
    assert not (tmp_path / "cache" / "engines").exists()


def test_kill_9_at_random_moments(tmp_path: Path) -> None:
    """Ten killed builds: what is there is whole, no program runs on, the next start completes."""
    config = write_config(tmp_path, engine={"max_seq_len": 1024, "tensor_parallel_size": 4})
    values = yaml.safe_load(config.read_text())
    config.write_text(yaml.safe_dump({**values, "gpu_inventory": str(GPUS / "4xh100.json")}))
    engines = tmp_path / "cache" / "engines"
    clock = random.Random(7)
    environ = {**os.environ, "STANDIN_DELAY_S": "0.04"}
    stages = set()
    for _ in range(10):
        process = subprocess.Popen(
            [sys.executable, str(SCRIPT), str(config)],
            env=environ,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert process.stderr is not None
        for line in process.stderr:
            if "The engine " in line:
                break
        else:
            pytest.fail("the build did not start")
        time.sleep(clock.uniform(0, 0.9))
        children = child_pids(process.pid)
        process.send_signal(signal.SIGKILL)
        stages.add(last_stage(process.communicate(timeout=30)[1]))
        wait_gone(children)
        for found in engines.iterdir():
            if not found.name.startswith("."):
                assert is_whole(found)
    done = call_script(config)
    assert done.returncode == 0, done.stderr
    assert is_whole(Path(done.stdout.strip()))
    names = [path.name for path in engines.iterdir()]
    assert len([name for name in names if not name.endswith(".lock")]) == 1
    assert len(stages) > 1  # the moments were different ones


def is_whole(path: Path) -> bool:
    settings = EngineSettings(tensor_parallel_size=4)
    ModelDirectory.read(path)
    return check_engine(path, settings, machine(*[H100] * 4)).manifest is not None


def last_stage(stderr: str) -> str:
    lines = stderr.splitlines()
    return lines[-1] if lines else "nothing"


def child_pids(pid: int) -> list[int]:
    """Direct children of a process (Linux)."""
    path = Path(f"/proc/{pid}/task/{pid}/children")
    return [int(child) for child in path.read_text().split()] if path.exists() else []


def wait_gone(pids: list[int]) -> None:
    """Until none runs; a zombie that nobody reaps does not run any more."""
    deadline = time.monotonic() + 20
    while any(runs(pid) for pid in pids):
        assert time.monotonic() < deadline, "a program of the build outlived it"
        time.sleep(0.01)


def runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
