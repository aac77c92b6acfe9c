"""The figures over concurrency as a PNG; matplotlib is optional and imported when it is needed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from benchmarks.cannot_run import CannotRun
from benchmarks.load.figures import Figures
from benchmarks.load.table import LATENCIES

INCHES = (11.0, 8.0)


def check_installed() -> None:
    """Raises CannotRun if there is no matplotlib; to be asked before the load runs."""
    try:
        import matplotlib  # noqa: F401
    except ImportError as err:
        raise CannotRun("--plot needs matplotlib: pip install -r requirements-bench.txt.") from err


def write_png(levels: Sequence[Figures], path: Path, title: str) -> None:
    """Throughput and three latencies over concurrency; p50 as a line, p90 and p99 beside it."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=INCHES, layout="constrained")
    figure.suptitle(title)
    axes = figure.subplots(2, 2).flat
    widths = [level.concurrency for level in levels]
    axes[0].plot(widths, [level.output_tokens_per_s for level in levels], marker="o")
    axes[0].set_title("output tokens per second")
    shown = [latency for latency in LATENCIES if latency[0] != "inter_piece_ms"]
    for axis, (name, label) in zip(axes[1:], shown, strict=True):
        axis.set_title(label)
        for statistic in ("p50", "p90", "p99"):
            found = [(level.concurrency, getattr(level, name)) for level in levels]
            points = [(width, getattr(value, statistic)) for width, value in found if value]
            if points:
                axis.plot(*zip(*points, strict=True), marker="o", label=statistic)
        if axis.lines:
            axis.legend()
    for axis in axes:
        axis.set_xlabel("concurrency")
        axis.set_xscale("log", base=2)
        axis.set_xticks(widths, [str(width) for width in widths])
        axis.set_ylim(bottom=0)
        axis.grid(visible=True, alpha=0.3)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, format="png", dpi=120)
