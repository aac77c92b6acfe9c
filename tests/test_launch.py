"""The launcher: its command lines against the contract, and the script as a process."""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import socket
import subprocess
import sys
import sysconfig
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from cog_triton import triton_installation
from cog_triton.errors import RuntimeUnavailable, SettingsError
from cog_triton.launch import (
    LaunchOptions,
    commands,
    environment,
    takes_memory_pool_flags,
)
from tests.triton_samples import free_ports

ROOT = Path(__file__).parents[1]
SCRIPT = ROOT / "scripts" / "launch_triton_server.py"
CONTRACT: dict[str, Any] = json.loads(
    (ROOT / "tests/data/contracts/launch_triton_server.json").read_text()
)
CASES: dict[str, dict[str, Any]] = {
    "world_size_1": {},
    "world_size_2": {"world_size": 2},
    "world_size_2_two_model_names": {
        "world_size": 2,
        "tensorrt_llm_model_name": "tensorrt_llm,tensorrt_llm_2",
    },
    "no_mpi": {"no_mpi": True},
    "log": {"log": True},
    "exit_timeout_30": {"exit_timeout": 30},
    "oversubscribe": {"oversubscribe": True},
    "llmapi_launch_world_size_4_oversubscribe": {
        "world_size": 4,
        "oversubscribe": True,
        "trtllm_llmapi_launch": True,
    },
    "multi_model_spawning_on_2_gpus": {"multi_model": True, "num_gpus": 2},
    "multi_model_without_spawning_world_size_3": {
        "world_size": 3,
        "multi_model": True,
        "disable_spawn_processes": True,
    },
    "multimodal_pool": {"multimodal_gpu0_cuda_mem_pool_bytes": 500_000_000},
}


def options(**changes: Any) -> LaunchOptions:
    return LaunchOptions("/opt/tritonserver/bin/tritonserver", "MODEL_REPO", **changes)


def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("launch_triton_server", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def server(tmp_path: Path) -> Path:
    """A program in tritonserver's place that prints its process id, arguments and variables."""
    program = tmp_path / "tritonserver"
    program.write_text(
        f"#!{sys.executable}\nimport json, os, sys\n"
        "json.dump([os.getpid(), sys.argv[1:], dict(os.environ)], sys.stdout)\nsys.exit(7)\n"
    )
    program.chmod(0o700)
    return program


def launch(*arguments: object, **options: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPT), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, **options)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"world_size": 0}, "--world_size is 0"),
        ({"world_size": 2, "no_mpi": True}, "--no-mpi starts one rank"),
        ({"world_size": 2, "multi_model": True}, "--disable-spawn-processes"),
    ],
)
def test_flags_that_exclude_each_other_are_errors(changes: dict[str, Any], message: str) -> None:
    """As in NVIDIA's launcher, but with words."""
    with pytest.raises(SettingsError, match=message):
        commands(options(**changes))


def test_every_case_of_the_contract_is_tested() -> None:
    """No case of the contract is left out."""
    assert CASES.keys() == CONTRACT["argv"].keys()


@pytest.mark.parametrize("case", CASES)
def test_the_command_is_that_of_the_contract(case: str) -> None:
    """Argument for argument; with one rank without mpirun around it."""
    expected = CONTRACT["argv"][case]
    if CASES[case].get("world_size", 1) == 1 and case != "no_mpi":
        assert expected[-1] == ":"
        expected = expected[expected.index("1") + 1 : -1]
    assert commands(options(**CASES[case])) == expected


def test_extra_arguments_go_to_every_rank() -> None:
    """They come last, where tritonserver lets them win."""
    command = commands(options(world_size=2, extra_arguments=("--http-address=::1", "--x")))
    assert command.count("--http-address=::1") == command.count("--x") == 2
    assert command[-3:] == ["--http-address=::1", "--x", ":"]


def test_the_orchestrators_variables_are_those_of_the_contract() -> None:
    """They are set with --multi-model only."""
    assert environment(options()) == CONTRACT["environment"]["always"]
    names = CONTRACT["environment"]["multi_model"].keys()
    spawning = environment(options(multi_model=True))
    assert spawning == dict.fromkeys(names, "1")
    waiting = environment(options(multi_model=True, disable_spawn_processes=True))
    assert waiting == {**spawning, "TRTLLM_ORCHESTRATOR_SPAWN_PROCESSES": "0"}


def test_memory_pool_flags_need_a_release_above_24_06() -> None:
    """The container's release has to be known."""
    releases = ("24.05", "24.06", "24.07", "25.01")
    assert [takes_memory_pool_flags(release) for release in releases] == [False, False, True, True]
    for release in (None, "", "latest"):
        with pytest.raises(SettingsError, match="NVIDIA_TRITON_SERVER_VERSION"):
            takes_memory_pool_flags(release)


def test_flags_and_defaults_are_those_of_the_contract() -> None:
    """Two defaults differ: the server is looked for, the repository is this project's."""
    parser: argparse.ArgumentParser = script().parser()
    actions = {action.option_strings[0]: action for action in parser._actions}
    for flag in CONTRACT["flags"]:
        action = actions[flag["flag"]]
        assert action.option_strings[1:] == flag.get("aliases", [])
        if flag["flag"] not in ("--tritonserver", "--model_repo"):
            assert str(action.default) == str(flag["default"])
    assert actions["--tritonserver"].default is None
    assert actions["--model_repo"].default == str(ROOT / "triton_model_repo")
    own = actions.keys() - {flag["flag"] for flag in CONTRACT["flags"]}
    assert own == {"-h", "--parent-pid", "--scratch"}


def test_a_server_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    """The program is named, without a traceback."""
    done = launch("--tritonserver", tmp_path / "none")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
    assert done.stderr.startswith("E3005 RuntimeUnavailable: ")
    assert "none is not a program" in done.stderr


def test_a_program_that_cannot_be_run_is_one_line(tmp_path: Path) -> None:
    """An executable file that is no program is found, but exec refuses it."""
    program = tmp_path / "tritonserver"
    program.write_bytes(b"\x7fELF")
    program.chmod(0o700)
    done = launch("--tritonserver", program, "--force")
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "tritonserver cannot be run: Exec format error" in done.stderr


def test_a_taken_port_stops_it_unless_forced(server: Path) -> None:
    """The check is made on the address that the server will use."""
    http, grpc, metrics = free_ports(3)
    flags = (f"--http_port={http}", f"--grpc_port={grpc}", f"--metrics_port={metrics}")
    with socket.create_server(("127.0.0.1", grpc)):
        extra = ("--", "--grpc-address=127.0.0.1")
        done = launch("--tritonserver", server, *flags, *extra)
        assert done.returncode == 1
        assert f"E3007 PortInUse: Port {grpc} on 127.0.0.1 (--grpc_port)" in done.stderr
        assert launch("--tritonserver", server, *flags, "--force", *extra).returncode == 7
        other = launch("--tritonserver", server, *flags, "--", "--grpc-address=127.0.0.2")
        assert other.returncode == 7


def test_it_does_not_start_a_server_for_a_parent_that_is_gone(server: Path) -> None:
    """If the parent ended before the kernel was asked, nothing would ever end the server."""
    done = launch("--tritonserver", server, "--force", f"--parent-pid={os.getppid()}")
    assert done.returncode == 1
    assert "The process that started this launcher is gone" in done.stderr


def test_the_process_becomes_the_server(server: Path, tmp_path: Path) -> None:
    """Same process id and exit status, arguments and environment passed on, from anywhere."""
    environ = {"PATH": os.defpath, "PYTHONPATH": "/elsewhere", "CUDA_VISIBLE_DEVICES": "1"}
    flags = ["--force", f"--parent-pid={os.getpid()}", "--model_repo=repo", "--multi-model"]
    flags += ["--disable-spawn-processes", f"--tritonserver={server}"]
    process = subprocess.Popen(
        [sys.executable, str(SCRIPT), *flags, "--", "--http-thread-count=2", "--", "x"],
        stdout=subprocess.PIPE,
        env=environ,
        cwd=tmp_path,
    )
    output, _ = process.communicate(timeout=30)
    pid, arguments, seen = json.loads(output)
    assert (pid, process.returncode) == (process.pid, 7)
    assert arguments[0] == "--model-repository=repo"
    assert arguments[-3:] == ["--http-thread-count=2", "--", "x"]
    assert seen["CUDA_VISIBLE_DEVICES"] == "1"
    assert seen["TRTLLM_ORCHESTRATOR_SPAWN_PROCESSES"] == "0"
    assert seen["PYTHONPATH"].split(":") == [str(ROOT), "/elsewhere"]
    assert seen["PATH"].split(":")[0] == str(Path(sys.executable).parent)


def test_without_any_server_both_ways_to_get_one_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The message is what somebody on a new machine reads first."""
    monkeypatch.setattr(triton_installation, "NGC_SERVER", tmp_path / "none")
    monkeypatch.setattr(sys, "path", [])
    with pytest.raises(RuntimeUnavailable, match=r"neither .*25\.12.* nor nvidia-pytriton"):
        triton_installation.find(None, tmp_path)


def test_a_missing_libpython_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The wheel does not carry the library that its backend is linked to."""
    monkeypatch.setattr(triton_installation, "NGC_SERVER", tmp_path / "none")
    monkeypatch.setattr(sysconfig, "get_config_var", lambda _: None)
    monkeypatch.setattr(triton_installation, "_loader_cache", lambda: "")
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    with pytest.raises(RuntimeUnavailable, match=f"apt-get install libpython{version}"):
        triton_installation.find(None, tmp_path / "scratch")


def test_a_backend_directory_that_others_can_write_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Programs are run from it."""
    monkeypatch.setattr(triton_installation, "NGC_SERVER", tmp_path / "none")
    (tmp_path / "backends").mkdir()
    (tmp_path / "backends").chmod(0o777)
    with pytest.raises(RuntimeUnavailable, match="only this user can write"):
        triton_installation.find(None, tmp_path)


def test_the_containers_server_comes_before_the_wheels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, server: Path
) -> None:
    """There its own backend directory is right."""
    monkeypatch.setattr(triton_installation, "NGC_SERVER", server)
    found = triton_installation.find(None, tmp_path / "scratch")
    assert (found.server, found.backend_directory, found.library_path) == (server, None, ())
    assert not (tmp_path / "scratch").exists()


def test_the_wheels_backend_directory_is_put_together_from_links(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stub of this Python lies beside the backend; naming the wheel's server is the same."""
    monkeypatch.setattr(triton_installation, "NGC_SERVER", tmp_path / "none")
    found = triton_installation.find(None, tmp_path)
    backends = tmp_path / "backends"
    assert found.backend_directory == backends
    assert backends.stat().st_mode & 0o777 == 0o700
    names = {"libtriton_python.so", "triton_python_backend_utils.py", "triton_python_backend_stub"}
    links = {path.name: path.resolve() for path in (backends / "python").iterdir()}
    assert links.keys() == names
    assert all(path.is_file() for path in links.values())
    assert triton_installation.find(str(found.server), tmp_path) == found
    assert found.environment({"LD_LIBRARY_PATH": "/x"})["LD_LIBRARY_PATH"].endswith(".libs:/x")
