"""From answers to figures, a table and JSON."""

from __future__ import annotations

import json

import pytest

from benchmarks.load.figures import Figures, measure
from benchmarks.load.summary import Summary
from benchmarks.load.table import report, table
from benchmarks.load.targets import Ask, triton
from tests.answer_samples import attempted, event_stream, plain

TARGET = triton("tensorrt_llm", [2], 2)
ANSWER = event_stream([{"output_ids": 5}, {"output_ids": [6, 7]}, {"output_ids": 8}])
REFUSED = plain({"error": "E1000 no"}, "400 Bad Request")


def level(*, with_failures: bool = True) -> Figures:
    answers = [attempted(ANSWER, step_s=0.5), attempted(ANSWER, started_at=1.0, num_conflicts=2)]
    if with_failures:
        cut = event_stream([{"output_ids": 5}])
        answers += [attempted(REFUSED), attempted(REFUSED), attempted(cut, started_at=5.0)]
    return measure(TARGET, Ask(max_tokens=4), 2, answers)


def test_failed_requests_are_counted_and_named() -> None:
    """Each answer is in the figures or among the errors; lost tokens are an error too."""
    found = level()
    assert (found.num_requests, found.num_failed, found.num_conflicts) == (5, 3, 2)
    assert found.errors == {"HTTP 400: E1000 no": 2, "1 of 4 tokens came": 1}
    assert found.duration_s == 8.0  # the failed ones took time too
    assert found.requests_per_s == pytest.approx(2 / 8)
    assert found.output_tokens_per_s == pytest.approx(8 / 8)


def test_nothing_but_failures() -> None:
    """With no answer there are no latencies, and no division by zero."""
    found = measure(TARGET, Ask(max_tokens=4), 2, [attempted(REFUSED)])
    assert (found.requests_per_s, found.num_failed) == (0, 1)
    assert found.end_to_end_ms is None
    assert "1 x HTTP 400: E1000 no" in table([found])


def test_latencies() -> None:
    """First token from the request on, between tokens after the first one, and the whole."""
    found = level(with_failures=False)
    assert found.num_output_tokens == 8
    # Pieces come every 500 and every 1000 ms, the head before the first one.
    assert _of(found.time_to_first_token_ms) == (1000, 2000)
    assert _of(found.inter_token_ms) == pytest.approx((1000 / 3, 2000 / 3))
    assert _of(found.inter_piece_ms) == (500, 1000)
    assert _of(found.end_to_end_ms) == (2500, 5000)


def test_whole_answers_have_no_first_token() -> None:
    """Without a stream only the time of the whole answer is known."""
    answers = [attempted(plain({"output_ids": [5, 6, 7, 8]}))]
    found = measure(TARGET, Ask(max_tokens=4, stream=False), 1, answers)
    assert (found.time_to_first_token_ms, found.inter_token_ms, found.inter_piece_ms) == (None,) * 3
    assert _of(found.end_to_end_ms) == (1000, 1000)


def test_the_table_and_the_json_hold_everything() -> None:
    """Rates, each statistic of each latency, and every error with its count."""
    found = level()
    text = table([found])
    for word in ("requests/s", "output tokens/s", "p50", "p90", "p99", "2 x HTTP 400: E1000 no"):
        assert word in text
    content = json.loads(json.dumps(report({"target": "triton"}, [found])))
    assert content["parameters"] == {"target": "triton"}
    assert content["levels"][0]["errors"]["1 of 4 tokens came"] == 1
    assert set(content["levels"][0]["end_to_end_ms"]) == {"mean", "p50", "p90", "p99", "min", "max"}


def _of(summary: Summary | None) -> tuple[float, float]:
    assert summary is not None
    return summary.min, summary.max
