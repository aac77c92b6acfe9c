"""Summaries of measured values; pure, no clock and no socket."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Summary:
    """What a table shows of some values, in the unit of the values."""

    mean: float
    p50: float
    p90: float
    p99: float
    min: float
    max: float


def summarize(values: Sequence[float]) -> Summary | None:
    """The summary of the values; None if there are none, since nothing is no measurement."""
    if not values:
        return None
    ordered = sorted(values)
    # Rounding may put the mean of equal values a hair outside them.
    mean = min(max(math.fsum(ordered) / len(ordered), ordered[0]), ordered[-1])
    p50, p90, p99 = (percentile(ordered, percent) for percent in (50, 90, 99))
    return Summary(mean, p50, p90, p99, ordered[0], ordered[-1])


def percentile(ordered: Sequence[float], percent: float) -> float:
    """The value below which `percent` of the ordered values lie, as numpy.percentile has it.

    Between two values it lies on the line between them (numpy's method "linear"). Raises
    ValueError for no values or a percentage outside 0 to 100.
    """
    if not ordered or not 0 <= percent <= 100:
        raise ValueError(f"no {percent}th percentile of {len(ordered)} values")
    place = (len(ordered) - 1) * percent / 100
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)
