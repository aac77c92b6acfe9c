"""The command lines that `scripts/launch_triton_server.py` runs, as pure functions.

Source: the launcher of TensorRT-LLM 1.1's Triton backend, flag for flag and
argument for argument. Ours differs in one thing: with one rank there is no
mpirun, so that the process that was started is the server itself.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from cog_triton.errors import SettingsError

# Triton releases above this one take the flags that switch its memory pools off.
_MEMORY_POOL_RELEASE = (24, 6)


@dataclass(frozen=True)
class LaunchOptions:
    """What the launcher's flags say; the defaults are those of its flags.

    `num_gpus` is given where the server's memory pools are to be switched off, as its
    spawned workers need the memory; `extra_arguments` go to each rank's server as they are.
    """

    tritonserver: str
    model_repo: str
    world_size: int = 1
    grpc_port: int = 8001
    http_port: int = 8000
    metrics_port: int = 8002
    log: bool = False
    log_file: str = "triton_log.txt"
    no_mpi: bool = False
    tensorrt_llm_model_name: str = "tensorrt_llm"
    multi_model: bool = False
    disable_spawn_processes: bool = False
    multimodal_gpu0_cuda_mem_pool_bytes: int = 0
    oversubscribe: bool = False
    trtllm_llmapi_launch: bool = False
    exit_timeout: int | None = None
    num_gpus: int | None = None
    extra_arguments: tuple[str, ...] = ()

    @property
    def spawns_workers(self) -> bool:
        """Whether the backend starts the workers of each model by itself."""
        return self.multi_model and not self.disable_spawn_processes


def commands(options: LaunchOptions) -> list[str]:
    """The whole command: the server's, or mpirun with one server for each rank.

    Raises SettingsError for flags that exclude each other.
    """
    _check(options)
    if options.world_size == 1:
        return _rank(options, 0)
    command = ["mpirun", "--allow-run-as-root"]
    if options.oversubscribe:
        command.append("--oversubscribe")
    for rank in range(options.world_size):
        command += ["-n", "1", *_rank(options, rank), ":"]
    return command


def environment(options: LaunchOptions) -> dict[str, str]:
    """The variables that the backend's orchestrator mode needs, on top of the caller's."""
    if not options.multi_model:
        return {}
    spawn = "1" if options.spawns_workers else "0"
    return {"TRTLLM_ORCHESTRATOR": "1", "TRTLLM_ORCHESTRATOR_SPAWN_PROCESSES": spawn}


def takes_memory_pool_flags(release: str | None) -> bool:
    """Whether a container release (NVIDIA_TRITON_SERVER_VERSION) is above 24.06.

    Raises SettingsError if it is not set or not of the form year.month.
    """
    match = re.match(r"(\d+)\.(\d+)", release or "")
    if match is None:
        raise SettingsError(
            f"NVIDIA_TRITON_SERVER_VERSION is {release!r}; --multi-model needs the release of "
            "the container there, like 25.12."
        )
    return (int(match.group(1)), int(match.group(2))) > _MEMORY_POOL_RELEASE


def _check(options: LaunchOptions) -> None:
    if options.world_size < 1:
        raise SettingsError(f"--world_size is {options.world_size}, expected 1 or more.")
    if options.no_mpi and options.world_size > 1:
        raise SettingsError("--no-mpi starts one rank: --world_size must be 1.")
    if options.spawns_workers and options.world_size > 1:
        raise SettingsError(
            "--multi-model starts its workers itself: --world_size must be 1, "
            "or give --disable-spawn-processes."
        )


def _rank(options: LaunchOptions, rank: int) -> list[str]:
    ports = [
        f"--grpc-port={options.grpc_port}",
        f"--http-port={options.http_port}",
        f"--metrics-port={options.metrics_port}",
    ]
    command = ["trtllm-llmapi-launch"] if options.trtllm_llmapi_launch else []
    command += [options.tritonserver, f"--model-repository={options.model_repo}"]
    if options.exit_timeout is not None:
        command.append(f"--exit-timeout-secs={options.exit_timeout}")
    command += ports
    if options.log and rank == 0:
        command += ["--log-verbose=3", f"--log-file={options.log_file}"]
    if rank > 0:
        # A worker only runs the engine: it loads no other model and takes no request.
        command.append("--model-control-mode=explicit")
        names = options.tensorrt_llm_model_name.split(",")
        command += [f"--load-model={name}" for name in names]
    elif options.multimodal_gpu0_cuda_mem_pool_bytes:
        size = options.multimodal_gpu0_cuda_mem_pool_bytes
        command.append(f"--cuda-memory-pool-byte-size=0:{size}")
    if options.num_gpus is not None:
        command += ["--pinned-memory-pool-byte-size=0", "--enable-peer-access=false"]
        command += [f"--cuda-memory-pool-byte-size={gpu}:0" for gpu in range(options.num_gpus)]
    return [
        *command,
        *ports,  # a second time, as NVIDIA's launcher does
        "--disable-auto-complete-config",
        f"--backend-config=python,shm-region-prefix-name=prefix{rank}_",
        *options.extra_arguments,
    ]
