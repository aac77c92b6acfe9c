"""Statistics of the benchmark."""

from __future__ import annotations

from dataclasses import astuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.load.summary import percentile, summarize

VALUES = st.lists(st.floats(0, 1e9, allow_nan=False), min_size=1, max_size=200)


@pytest.mark.parametrize(("ordered", "percent"), [([], 50), ([1.0], -1), ([1.0], 100.5)])
def test_a_percentile_that_does_not_exist(ordered: list[float], percent: float) -> None:
    """No values, or a percentage outside 0 to 100, is an error and no number."""
    with pytest.raises(ValueError, match="percentile"):
        percentile(ordered, percent)


def test_nothing_has_no_summary() -> None:
    """Without values there is no summary, not one of zeros."""
    assert summarize([]) is None


@given(VALUES, st.floats(0, 100))
def test_percentiles_are_numpys(values: list[float], percent: float) -> None:
    """Every percentile is numpy's, with its default method."""
    expected = float(np.percentile(values, percent))
    assert percentile(sorted(values), percent) == pytest.approx(expected, rel=1e-9, abs=1e-9)


@given(VALUES)
def test_a_summary_is_numpys(values: list[float]) -> None:
    """Mean, p50, p90, p99, min and max are numpy's, whatever the order of the values."""
    summary = summarize(values)
    assert summary is not None
    expected = (
        np.mean(values),
        *np.percentile(values, [50, 90, 99]),
        np.min(values),
        np.max(values),
    )
    assert astuple(summary) == pytest.approx(expected, rel=1e-9, abs=1e-9)
    assert summary.min <= summary.p50 <= summary.p90 <= summary.p99 <= summary.max
    assert summary.min <= summary.mean <= summary.max
