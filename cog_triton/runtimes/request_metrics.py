"""Counters of the slot as Triton custom metrics, named as the C++ backend names them."""

from __future__ import annotations

import time
from typing import Any

UPDATE_PERIOD_S = 0.1


class RequestMetrics:
    """`nv_trt_llm_request_metrics` on Triton's metrics port: active and max requests."""

    def __init__(self, backend: Any, model: str, version: str, max_requests: int) -> None:
        family = backend.MetricFamily(
            name="nv_trt_llm_request_metrics",
            description="TRT LLM request metrics",
            kind=backend.MetricFamily.GAUGE,
        )
        self._family = family
        labels = {"model": model, "version": version}
        self._active = family.Metric(labels={**labels, "request_type": "active"})
        self._max = family.Metric(labels={**labels, "request_type": "max"})
        self._max.set(max_requests)
        self._last: int | None = None
        self._updated_at = 0.0

    def update(self, num_active: int) -> None:
        """Publish the number of running requests: at once when it falls to 0, else at 10 Hz."""
        now = time.monotonic()
        if num_active == self._last:
            return
        if num_active == 0 or now - self._updated_at >= UPDATE_PERIOD_S:
            self._active.set(num_active)
            self._last = num_active
            self._updated_at = now
