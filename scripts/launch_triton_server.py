#!/usr/bin/env python3
"""Starts Triton for a model repository: `launch_triton_server.py --model_repo=DIR`.

The flags are those of TensorRT-LLM's launcher. Unlike that one this process
becomes the server (or mpirun, with several ranks): its exit status is the
server's, and a signal sent to it reaches the server. It refuses to start when
one of the ports is taken, not when any tritonserver runs, so that several can
share a machine. What follows `--` goes to each rank's tritonserver as it is.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from cog_triton import launch, triton_installation
from cog_triton.errors import CogTritonError, RuntimeUnavailable

_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def parser() -> argparse.ArgumentParser:
    """The launcher's flags; those below the last group are not NVIDIA's."""
    flags = argparse.ArgumentParser(description="Start Triton for a model repository.")
    add = flags.add_argument
    add("--world_size", type=int, default=1, help="ranks: tensor times pipeline parallelism")
    add("--tritonserver", help="server program; default: the one found on this machine")
    add("--grpc_port", type=int, default=8001, help="gRPC port")
    add("--http_port", type=int, default=8000, help="HTTP port")
    add("--metrics_port", type=int, default=8002, help="metrics port")
    add("--force", "-f", action="store_true", help="do not look whether the ports are taken")
    add("--log", action="store_true", help="verbose log of rank 0 into a file")
    add("--log-file", default="triton_log.txt", help="that file")
    add("--no-mpi", action="store_true", help="no mpirun; world_size must be 1")
    add("--model_repo", default=str(triton_installation.PROJECT_ROOT / "triton_model_repo"))
    add(
        "--tensorrt_llm_model_name",
        default="tensorrt_llm",
        help="models that ranks over 0 load, with commas between",
    )
    add("--multi-model", action="store_true", help="orchestrator mode for several models")
    add("--disable-spawn-processes", action="store_true", help="ranks are started already")
    add("--multimodal_gpu0_cuda_mem_pool_bytes", type=int, default=0, help="CUDA pool of GPU 0")
    add("--oversubscribe", action="store_true", help="passed to mpirun")
    add("--trtllm_llmapi_launch", action="store_true", help="wrap in trtllm-llmapi-launch")
    add("--exit_timeout", type=int, help="seconds that the server may take to stop")
    own = flags.add_argument_group("not in NVIDIA's launcher")
    own.add_argument("--parent-pid", type=int, help="die with this parent process")
    own.add_argument(
        "--scratch",
        type=Path,
        help="directory for the Python backend's links; default: one of this user",
    )
    return flags


def options_of(
    flags: argparse.Namespace, server: str, extra: Sequence[str]
) -> launch.LaunchOptions:
    """The parsed flags as launch options, without the GPUs, which have to be counted."""
    names = launch.LaunchOptions.__dataclass_fields__.keys() & vars(flags).keys()
    given = {name: getattr(flags, name) for name in names - {"tritonserver"}}
    return launch.LaunchOptions(tritonserver=server, extra_arguments=tuple(extra), **given)


def main(arguments: Sequence[str], environ: Mapping[str, str]) -> int:
    """Becomes the server; returns 1, after one line on stderr, only if that failed."""
    own, extra = _split(arguments)
    flags = parser().parse_args(own)
    try:
        if flags.parent_pid is not None:
            die_with(flags.parent_pid)
        installation = triton_installation.find(flags.tritonserver, flags.scratch or _scratch())
        options = options_of(flags, str(installation.server), extra)
        if installation.backend_directory is not None:
            directory = f"--backend-directory={installation.backend_directory}"
            options = replace(options, extra_arguments=(directory, *options.extra_arguments))
        if options.spawns_workers and launch.takes_memory_pool_flags(
            environ.get("NVIDIA_TRITON_SERVER_VERSION")
        ):
            options = replace(options, num_gpus=_num_gpus())
        command = launch.commands(options)
        if not flags.force:
            _check_ports(flags, extra)
        environment = installation.environment({**environ, **launch.environment(options)})
        become(command, environment)
    except CogTritonError as err:
        print(err, file=sys.stderr)
    return 1


def die_with(parent_pid: int) -> None:
    """Has the kernel kill this process when the thread that started it ends.

    The setting survives the exec into the server. If the parent ended before it was
    made, nothing would ever come, so that is looked at afterwards.
    """
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise RuntimeUnavailable(f"prctl failed: {os.strerror(ctypes.get_errno())}.")
    if os.getppid() != parent_pid:
        raise RuntimeUnavailable("The process that started this launcher is gone.")


def become(command: Sequence[str], environment: Mapping[str, str]) -> None:
    """Replaces this process by the command; returns only by raising RuntimeUnavailable."""
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        os.execvpe(command[0], list(command), dict(environment))
    except OSError as err:
        raise RuntimeUnavailable(f"{command[0]} cannot be run: {err.strerror}.") from err


def _split(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    given = list(arguments)
    if "--" not in given:
        return given, []
    end = given.index("--")
    return given[:end], given[end + 1 :]


def _scratch() -> Path:
    import tempfile

    scratch = Path(tempfile.gettempdir()) / f"cog-triton-launcher-{os.getuid()}"
    triton_installation.make_private(scratch)
    return scratch


def _check_ports(flags: argparse.Namespace, extra: Sequence[str]) -> None:
    from cog_triton.ports import check_free

    # The server's own rule: metrics bind where HTTP does unless told otherwise.
    http = next(_values("--http-address", extra), "0.0.0.0")
    grpc = next(_values("--grpc-address", extra), "0.0.0.0")
    metrics = next(_values("--metrics-address", extra), http)
    check_free(
        {
            "--http_port": (http, flags.http_port),
            "--grpc_port": (grpc, flags.grpc_port),
            "--metrics_port": (metrics, flags.metrics_port),
        }
    )


def _values(flag: str, arguments: Sequence[str]) -> Iterator[str]:
    for argument in arguments:
        if argument.startswith(f"{flag}="):
            yield argument.partition("=")[2]


def _num_gpus() -> int:
    import subprocess

    try:
        listing = subprocess.run(
            ["nvidia-smi", "--list-gpus"], capture_output=True, text=True, check=True, timeout=60
        )
    except (OSError, subprocess.SubprocessError) as err:
        raise RuntimeUnavailable(f"nvidia-smi, which counts the GPUs, failed: {err}") from err
    return len(listing.stdout.splitlines())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], os.environ))
