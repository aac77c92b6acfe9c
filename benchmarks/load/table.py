"""The figures as text for a terminal, and as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from typing import Any

from benchmarks.load.figures import Figures
from benchmarks.load.summary import Summary

LATENCIES = (
    ("time_to_first_token_ms", "time to first token (ms)"),
    ("inter_token_ms", "inter-token latency (ms)"),
    ("inter_piece_ms", "between pieces (ms)"),
    ("end_to_end_ms", "end to end (ms)"),
)
STATISTICS = tuple(column.name for column in fields(Summary))
LABEL_WIDTH = 26
COLUMN_WIDTH = 10


def table(levels: Sequence[Figures]) -> str:
    """A block a level of concurrency: rates, latencies, then every error with its count."""
    return "\n\n".join(_block(level) for level in levels)


def report(parameters: Mapping[str, Any], levels: Sequence[Figures]) -> dict[str, Any]:
    """What `--json` writes: the parameters of the run and the figures of each level."""
    return {"parameters": dict(parameters), "levels": [asdict(level) for level in levels]}


def _block(level: Figures) -> str:
    lines = [
        f"concurrency {level.concurrency}: {level.num_requests} requests in "
        f"{level.duration_s:.2f} s, {level.num_failed} failed, "
        f"{level.num_conflicts} sent again after a 409",
        f"  {level.requests_per_s:.2f} requests/s, {level.output_tokens_per_s:.1f} output tokens/s",
        "  " + " " * LABEL_WIDTH + "".join(f"{name:>{COLUMN_WIDTH}}" for name in STATISTICS),
    ]
    for name, label in LATENCIES:
        summary = getattr(level, name)
        if summary is not None:
            lines.append(f"  {label:<{LABEL_WIDTH}}" + _row(summary))
    lines += [f"  {count} x {error}" for error, count in level.errors.items()]
    return "\n".join(lines)


def _row(summary: Summary) -> str:
    return "".join(f"{getattr(summary, name):>{COLUMN_WIDTH}.2f}" for name in STATISTICS)
