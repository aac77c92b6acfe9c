"""The resolved plan of a deployment, computed without fetching or starting anything."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from cog_triton.artifacts.fetch import find_fetched
from cog_triton.engine import GIB, RuntimeChoice, choose_runtime, kv_cache_bytes, plan_engine
from cog_triton.settings import Settings


@dataclass(frozen=True)
class Plan:
    """What `python -m cog_triton plan` prints, a line a field."""

    model: str
    runtime: str
    runtime_reason: str
    engine_dir: str
    fetched: bool
    max_seq_len: str
    max_batch_size: int
    max_num_tokens: int
    kv_cache: str
    concurrency: int
    http: str
    grpc: str
    metrics: str
    run_dir: str

    def lines(self) -> list[str]:
        values = asdict(self)
        width = max(map(len, values))
        return [f"{name:<{width}}  {value}" for name, value in values.items()]


def resolve(settings: Settings) -> Plan:
    """The plan for these settings; raises what a start would raise before it starts anything."""
    runtime: RuntimeChoice = choose_runtime(settings)
    model = find_fetched(settings.model, settings.models_dir)
    limits, triton = settings.engine, settings.triton
    if model is not None:
        max_seq_len = str(plan_engine(settings, model).max_seq_len)
    else:
        max_seq_len = str(limits.max_seq_len or "the model's context")
    return Plan(
        model=settings.model,
        runtime=runtime.name,
        runtime_reason=runtime.reason,
        engine_dir=str(model.path if model else settings.models_dir),
        fetched=model is not None,
        max_seq_len=max_seq_len,
        max_batch_size=limits.max_batch_size,
        max_num_tokens=limits.max_num_tokens,
        kv_cache=f"{kv_cache_bytes(limits) / GIB:g} GiB",
        concurrency=settings.resolved_concurrency,
        http=f"{triton.host}:{triton.http_port}",
        grpc=f"{triton.host}:{triton.grpc_port}",
        metrics=f"{triton.host}:{triton.metrics_port}",
        run_dir=str(settings.resolved_run_dir),
    )
