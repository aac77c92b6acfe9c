"""The resolved plan of a deployment, computed without fetching, building or starting anything."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field

from cog_triton.artifacts.fetch import find_fetched
from cog_triton.artifacts.model_directory import ModelDirectory
from cog_triton.build.engine_build import EngineBuild, prepare
from cog_triton.engine import (
    MAX_NUM_TOKENS,
    Engine,
    check_kv_cache_bound,
    kv_cache_bytes,
    plan_engine,
)
from cog_triton.gpu_inventory import GIB
from cog_triton.machine import Machine, look
from cog_triton.runtime_choice import RuntimeChoice, choose_runtime, format_of, world_size
from cog_triton.settings import Settings

UNDECIDED = "known when the model is fetched"


@dataclass(frozen=True)
class Plan:
    """What `python -m cog_triton plan` prints, a line a field."""

    model: str
    runtime: str
    runtime_reason: str
    gpus: str
    tensorrt_llm: str
    engine_dir: str
    fetched: bool
    engine_build: str
    world_size: int
    dtype: str
    max_seq_len: str
    max_batch_size: int
    max_num_tokens: int
    kv_cache: str
    concurrency: int
    http: str
    grpc: str
    metrics: str
    run_dir: str
    build_commands: list[str] = field(default_factory=list)

    def lines(self) -> list[str]:
        values = asdict(self)
        commands = values.pop("build_commands")
        width = max(map(len, values))
        rows = [f"{name:<{width}}  {value}" for name, value in values.items()]
        return rows + [f"{'build command':<{width}}  {command}" for command in commands]


def resolve(settings: Settings, machine: Machine | None = None) -> Plan:
    """The plan for these settings; raises what a start would raise before it starts anything."""
    machine = look(settings) if machine is None else machine
    model = find_fetched(settings.model, settings.models_dir)
    runtime = choose_runtime(settings, machine, model)
    if settings.engine.max_seq_len is not None:
        check_kv_cache_bound(settings.engine, settings.engine.max_seq_len)
    build = None
    is_compiled = runtime is not None and runtime.name == "tensorrt"
    if is_compiled and model is not None and model.format == "checkpoint":
        build = prepare(settings, model, machine)
        model = ModelDirectory.read(build.dest) if build.is_built else None
    engine = plan_engine(settings, model, machine) if model is not None else None
    return _plan(settings, machine, runtime, model, engine, build)


def _plan(
    settings: Settings,
    machine: Machine,
    runtime: RuntimeChoice | None,
    model: ModelDirectory | None,
    engine: Engine | None,
    build: EngineBuild | None,
) -> Plan:
    limits, triton = settings.engine, settings.triton
    name = runtime.name if runtime else None
    default_tokens = limits.max_num_tokens or (MAX_NUM_TOKENS[name] if name else 0)
    planned_len = build.plan.build_values.get("max_seq_len") if build else limits.max_seq_len
    return Plan(
        model=settings.model,
        runtime=name or UNDECIDED,
        runtime_reason=runtime.reason if runtime else "auto: an archive may hold either",
        gpus=machine.gpus.describe(),
        tensorrt_llm=machine.tensorrt_llm or "not installed",
        engine_dir=str(model.path if model else build.dest if build else settings.models_dir),
        fetched=model is not None or build is not None,
        engine_build=_engine_build(settings, name, model, build),
        world_size=engine.world_size if engine else world_size(settings) if name else 1,
        dtype=engine.config.dtype if engine else limits.dtype,
        max_seq_len=str(engine.max_seq_len if engine else planned_len or "the model's context"),
        max_batch_size=engine.config.max_batch_size if engine else limits.max_batch_size,
        max_num_tokens=engine.config.max_num_tokens if engine else default_tokens,
        kv_cache=_kv_cache(settings, name),
        concurrency=settings.resolved_concurrency,
        http=f"{triton.host}:{triton.http_port}",
        grpc=f"{triton.host}:{triton.grpc_port}",
        metrics=f"{triton.host}:{triton.metrics_port}",
        run_dir=str(settings.resolved_run_dir),
        build_commands=build.shown_commands() if build else [],
    )


def _engine_build(
    settings: Settings,
    name: str | None,
    model: ModelDirectory | None,
    build: EngineBuild | None,
) -> str:
    if name is None:
        return UNDECIDED
    if name != "tensorrt":
        return "not needed"
    if build is not None:
        done = "was built here" if model else "will be built at the first start"
        return f"{done} ({build.plan.family.name}, {build.plan.method})"
    is_fetched_engine = model is not None or format_of(settings.model) == "engine"
    return "fetched as it is" if is_fetched_engine else "at the first start, after the fetch"


def _kv_cache(settings: Settings, name: str | None) -> str:
    limits = settings.engine
    if name == "openvino":
        return f"{kv_cache_bytes(limits) / GIB:g} GiB"
    parts = [f"{limits.kv_cache_free_gpu_mem_fraction or 0.9:g} of the free GPU memory"]
    if limits.kv_cache_bytes:
        parts = [f"{limits.kv_cache_bytes / GIB:g} GiB"]
    if limits.max_tokens_in_paged_kv_cache:
        parts.append(f"at most {limits.max_tokens_in_paged_kv_cache} tokens")
    return ", ".join(parts)
