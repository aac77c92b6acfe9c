"""Settings: one YAML file plus `COG_TRITON_*` variables, parsed once, then frozen.

This is the only module that reads the environment. A variable names a key by
its path, two underscores between the parts: `COG_TRITON_ENGINE__MAX_BATCH_SIZE`
is `engine.max_batch_size`. Variables win over the file, the file over defaults.
"""

from __future__ import annotations

import difflib
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from cog_triton.errors import SettingsError

PREFIX = "COG_TRITON_"
CONFIG_VARIABLE = "COG_TRITON_CONFIG"
DEFAULT_FILE = "config.yaml"


class Section(BaseModel):
    """A part of the settings: frozen, and closed against unknown keys."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", allow_inf_nan=False, protected_namespaces=()
    )


class EngineSettings(Section):
    """Limits of the engine; names as in TensorRT-LLM's build flags."""

    max_batch_size: int = Field(64, ge=1, le=1024, description="requests in flight at once")
    max_seq_len: int | None = Field(None, ge=16, description="prompt plus output, in tokens")
    max_num_tokens: int | None = Field(
        None, ge=16, description="tokens in one step, over all requests; 512 on CPUs, 8192 on GPUs"
    )
    max_input_len: int | None = Field(None, ge=1, description="prompt, in tokens")
    max_beam_width: int = Field(1, ge=1, description="largest beam of a request")
    kv_cache_bytes: int | None = Field(None, ge=64 << 20, description="memory of the KV cache")
    max_tokens_in_paged_kv_cache: int | None = Field(
        None, ge=1, description="bound of a GPU's KV cache in tokens; default: what memory allows"
    )
    kv_cache_free_gpu_mem_fraction: float | None = Field(
        None, gt=0, lt=1, description="KV cache's share of the GPU memory that the weights leave"
    )
    enable_kv_cache_reuse: bool = Field(
        True, description="share blocks of equal prompt prefixes; off on the CPU unless set"
    )
    num_threads: int | None = Field(None, ge=1, description="CPU threads; default: all cores")
    dtype: Literal["auto", "float16", "bfloat16", "float32"] = Field(
        "auto", description="of weights and activations on GPUs; auto: as the checkpoint has it"
    )
    tensor_parallel_size: int | None = Field(None, ge=1, description="default: the engine's, or 1")
    pipeline_parallel_size: int | None = Field(
        None, ge=1, description="default: the engine's, or 1"
    )
    num_parameters: int | None = Field(
        None, ge=1, description="of the model, to judge its size before it is fetched"
    )


FlagValue = bool | int | float | str | list[str]


class BuildSettings(Section):
    """How a TensorRT engine is made from a checkpoint."""

    method: Literal["auto", "trtllm_build", "llm_api"] = Field(
        "auto", description="auto: convert_checkpoint.py and trtllm-build where they can do it"
    )
    quantization: Literal[
        "none",
        "int8_weight_only",
        "int4_weight_only",
        "smoothquant",
        "fp8",
        "fp8_rowwise",
        "int4_awq",
    ] = "none"
    kv_cache_quantization: Literal["none", "int8", "fp8"] = "none"
    smoothquant_alpha: float = Field(0.5, ge=0, le=1)
    quant_ckpt_path: Path | None = Field(None, description="weights that are AWQ-quantised already")
    workers: int | None = Field(None, ge=1, description="ranks built at once; default: all")
    flags: dict[str, FlagValue] = Field({}, description="more flags for trtllm-build")
    convert_flags: dict[str, FlagValue] = Field({}, description="more for convert_checkpoint.py")
    trtllm_build: str = Field("trtllm-build", description="the program, a path or on PATH")
    examples_dir: Path = Field(
        Path("/app/examples"), description="TensorRT-LLM's examples, with models/core below"
    )


class TritonSettings(Section):
    """The server process."""

    host: str = Field("127.0.0.1", description="address that HTTP, gRPC and metrics bind to")
    http_port: int = Field(8000, ge=1, le=65535)
    grpc_port: int = Field(8001, ge=1, le=65535)
    metrics_port: int = Field(8002, ge=1, le=65535)
    models: Literal["token", "all"] = Field(
        "token",
        description="the slot alone, or also preprocessing, postprocessing, ensemble and BLS",
    )
    tritonserver: str | None = Field(None, description="server program; default: the one found")
    start_timeout_s: float = Field(600.0, gt=0)
    stop_grace_s: float = Field(5.0, gt=0)


class ClientSettings(Section):
    """Deadlines of one request to Triton."""

    connect_timeout_s: float = Field(5.0, gt=0)
    first_token_timeout_s: float = Field(300.0, gt=0)
    token_timeout_s: float = Field(60.0, gt=0)


class SupervisionSettings(Section):
    """How a running server is watched and started again."""

    probe_period_s: float = Field(0.5, gt=0, description="between two looks whether it answers")
    probe_timeout_s: float = Field(
        2.0, gt=0, description="a server that answers nothing for so long is restarted"
    )
    stall_timeout_s: float | None = Field(
        None,
        gt=0,
        description="without a token for anyone who waits for the next one it is restarted; "
        "default: client.token_timeout_s",
    )
    restart_wait_s: float = Field(
        60.0, ge=0, description="a new prediction waits so long for a restart, then it fails"
    )
    restart_backoff_s: float = Field(
        1.0, ge=0, description="before the second restart; doubles with each further one"
    )
    max_restart_backoff_s: float = Field(30.0, ge=0)
    max_restarts: int = Field(10, ge=0, description="in one window; then it stays down")
    restart_window_s: float = Field(600.0, gt=0, description="of the time in which it was ready")


class PromptSettings(Section):
    """What is used when a prediction leaves it out."""

    system_prompt: str | None = None
    prompt_template: str | None = None


class Settings(Section):
    """All settings of a deployment."""

    model: str = Field(
        "smollm2-135m-instruct", min_length=1, description="name, path, URL, or org/name of the Hub"
    )
    runtime: Literal["auto", "openvino", "pytorch", "tensorrt"] = "auto"
    cache_dir: Path = Field(default_factory=lambda: default_cache_dir(os.environ))
    run_dir: Path | None = Field(None, description="model repository and logs of one server")
    concurrency: int | None = Field(None, ge=1, description="predictions that Cog runs at once")
    gpu_inventory: Path | None = Field(
        None, description="JSON file that describes GPUs, instead of those of this machine"
    )
    engine: EngineSettings = EngineSettings()
    build: BuildSettings = BuildSettings()
    tensorrt: dict[str, bool | int | float | str] = Field(
        {}, description="the C++ backend's template variables, by their name in TensorRT-LLM 1.1"
    )
    pytorch: dict[str, Any] = Field(
        {}, description="further arguments of tensorrt_llm.LLM, by their name in 1.1"
    )
    triton: TritonSettings = TritonSettings()
    client: ClientSettings = ClientSettings()
    supervision: SupervisionSettings = SupervisionSettings()
    prompt: PromptSettings = PromptSettings()

    @property
    def models_dir(self) -> Path:
        """Where fetched models are kept, each in a directory of its own."""
        return self.cache_dir / "models"

    @property
    def engines_dir(self) -> Path:
        """Where engines that were built on this machine are kept."""
        return self.cache_dir / "engines"

    @property
    def resolved_run_dir(self) -> Path:
        """`run_dir`, or one of this user and HTTP port, so that instances do not meet."""
        if self.run_dir is not None:
            return self.run_dir
        base = Path(tempfile.gettempdir()) / f"cog-triton-{os.getuid()}"
        return base / str(self.triton.http_port)

    @property
    def resolved_concurrency(self) -> int:
        """Cog's slots: 1.5 times the batch, as some free slots answer 409 in a burst."""
        return self.concurrency or -(-self.engine.max_batch_size * 3 // 2)


def default_cache_dir(environ: Mapping[str, str]) -> Path:
    """`$XDG_CACHE_HOME/cog-triton`, or below the home directory."""
    base = environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "cog-triton"


def load(environ: Mapping[str, str] | None = None, *, file: Path | None = None) -> Settings:
    """The settings of this process; raises SettingsError that names every wrong key.

    `file` stands in for `COG_TRITON_CONFIG` (as `plan -f` gives it).
    """
    environ = os.environ if environ is None else environ
    values = _read_file(environ, file)
    _merge_variables(values, environ)
    if "concurrency" not in values and environ.get("COG_MAX_CONCURRENCY"):
        values["concurrency"] = environ["COG_MAX_CONCURRENCY"]
    values.setdefault("cache_dir", default_cache_dir(environ))
    try:
        return Settings.model_validate(values)
    except ValidationError as err:
        raise SettingsError(_explain(err)) from err


def changed(config: Settings, changes: Mapping[str, object]) -> Settings:
    """A copy with keys changed, named by their path (`engine.max_seq_len`).

    Raises SettingsError that names every wrong key.
    """
    values = config.model_dump(exclude_unset=True)
    for path, value in changes.items():
        *sections, key = path.split(".")
        place = values
        for section in sections:
            place = place.setdefault(section, {})
        place[key] = value
    try:
        return Settings.model_validate(values)
    except ValidationError as err:
        raise SettingsError(_explain(err)) from err


def child_environment() -> dict[str, str]:
    """A copy of this process's environment, for the server process to start from."""
    return dict(os.environ)


def _read_file(environ: Mapping[str, str], file: Path | None) -> dict[str, Any]:
    named = file or (Path(environ[CONFIG_VARIABLE]) if environ.get(CONFIG_VARIABLE) else None)
    path = named or Path(DEFAULT_FILE)
    if named is None and not path.exists():
        return {}
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as err:
        raise SettingsError(f"{path} cannot be read: {err}") from err
    except yaml.YAMLError as err:
        raise SettingsError(f"{path} is not valid YAML: {err}") from err
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise SettingsError(f"{path} must hold keys and values, not a {type(content).__name__}.")
    return content


def _merge_variables(values: dict[str, Any], environ: Mapping[str, str]) -> None:
    for variable in sorted(environ):
        text = environ[variable]
        if not variable.startswith(PREFIX) or variable == CONFIG_VARIABLE or text == "":
            continue
        *sections, key = variable[len(PREFIX) :].lower().split("__")
        place = values
        for section in sections:
            inner = place.setdefault(section, {})
            if not isinstance(inner, dict):
                raise SettingsError(f"{variable}: {section} is not a section with keys.")
            place[section] = place = dict(inner)
        place[key] = text


def _explain(err: ValidationError) -> str:
    lines = []
    for problem in err.errors():
        location = tuple(str(part) for part in problem["loc"])
        name = ".".join(location)
        if problem["type"] == "extra_forbidden":
            lines.append(f"{name} is not a known key{_nearest(location)}")
        else:
            lines.append(f"{name}: {problem['msg']}, got {problem['input']!r}")
    return "; ".join(lines) + "."


def _nearest(location: tuple[str, ...]) -> str:
    known = sorted(_known_keys(Settings))
    name = ".".join(location)
    matches = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    by_leaf = [key for key in known if key.rsplit(".", 1)[-1] == location[-1]]
    best = by_leaf or matches
    return f" (nearest known key: {best[0]})" if best else f" (known keys: {', '.join(known)})"


def _known_keys(section: type[BaseModel], prefix: str = "") -> list[str]:
    keys: list[str] = []
    for name, field in section.model_fields.items():
        keys.append(prefix + name)
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            keys.extend(_known_keys(field.annotation, f"{prefix}{name}."))
    return keys
