"""The slot's state as Triton custom metrics, with the names and labels of the C++ backend.

Names and labels: the metrics section of the TensorRT-LLM backend's README. A family that a
runtime has no values for is left out. Setting a gauge costs a round trip to tritonserver:
the number of active requests is published at 10 Hz and at once when it falls to 0, the rest
once a second and when the engine falls idle.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any, Protocol

ACTIVE_PERIOD_S = 0.1
FULL_PERIOD_S = 1.0


@dataclass(frozen=True)
class EngineStatistics:
    """What an engine knows after a step: requests, prompt tokens, KV blocks, bytes."""

    num_scheduled: int
    num_context: int
    num_context_tokens: int
    kv_blocks_used: int
    kv_blocks_max: int
    kv_tokens_per_block: int
    cpu_memory_bytes: int


class MeasuredEngine(Protocol):
    def statistics(self) -> EngineStatistics: ...


class _Family:
    """Gauges of one name, told apart by one label."""

    def __init__(self, backend: Any, name: str, title: str, label: str, labels: dict[str, str]):
        self._family = backend.MetricFamily(
            name=f"nv_trt_llm_{name}", description=title, kind=backend.MetricFamily.GAUGE
        )
        self._label = label
        self._labels = labels
        self._gauges: dict[str, Any] = {}

    def set(self, **values: float) -> None:
        for value_name, value in values.items():
            gauge = self._gauges.get(value_name)
            if gauge is None:
                labels = {**self._labels, self._label: value_name}
                gauge = self._gauges[value_name] = self._family.Metric(labels=labels)
            gauge.set(value)


class EngineMetrics:
    """Publishes what the loop and its engine report; `update` is called after each step."""

    def __init__(
        self, backend: Any, model: str, version: str, max_requests: int, engine: object
    ) -> None:
        labels = {"model": model, "version": version}
        self._engine: MeasuredEngine | None = engine if hasattr(engine, "statistics") else None
        self._requests = _Family(
            backend, "request_metrics", "TRT LLM request metrics", "request_type", labels
        )
        self._general = _Family(
            backend, "general_metrics", "General TRT LLM metrics", "general_type", labels
        )
        if self._engine is not None:
            self._memory = _Family(
                backend,
                "runtime_memory_metrics",
                "TRT LLM runtime memory metrics",
                "memory_type",
                labels,
            )
            self._kv_blocks = _Family(
                backend,
                "kv_cache_block_metrics",
                "TRT LLM KV cache block metrics",
                "kv_cache_block_type",
                labels,
            )
            self._batcher = _Family(
                backend,
                "inflight_batcher_metrics",
                "TRT LLM inflight_batcher-specific metrics",
                "inflight_batcher_specific_metric",
                labels,
            )
        self._requests.set(max=max_requests, active=0)
        self._num_iterations = 0
        self._last_active = 0
        self._active_at = self._full_at = 0.0
        self._publish(0)

    def update(self, num_active: int) -> None:
        """Take note of a step (or, with 0, of falling idle) and publish what is due."""
        now = time.monotonic()
        fell_idle = num_active == 0 and self._last_active > 0
        self._num_iterations += num_active > 0
        if num_active != self._last_active and (
            fell_idle or now - self._active_at >= ACTIVE_PERIOD_S
        ):
            self._requests.set(active=num_active)
            self._last_active = num_active
            self._active_at = now
        if fell_idle or (num_active and now - self._full_at >= FULL_PERIOD_S):
            self._publish(num_active)
            self._full_at = now

    def _publish(self, num_active: int) -> None:
        self._general.set(iteration_counter=self._num_iterations, timestamp=int(time.time()))
        if self._engine is None:
            return
        state = self._engine.statistics()
        idle = num_active == 0
        scheduled = 0 if idle else state.num_scheduled
        context = 0 if idle else state.num_context
        self._requests.set(
            scheduled=scheduled, context=context, waiting=max(0, num_active - scheduled)
        )
        self._memory.set(cpu=state.cpu_memory_bytes, gpu=0, pinned=0)
        used = 0 if idle else state.kv_blocks_used
        self._kv_blocks.set(
            max=state.kv_blocks_max,
            used=used,
            free=state.kv_blocks_max - used,
            tokens_per=state.kv_tokens_per_block,
        )
        self._batcher.set(
            micro_batch_id=0,
            generation_requests=max(0, scheduled - context),
            total_context_tokens=0 if idle else state.num_context_tokens,
        )
