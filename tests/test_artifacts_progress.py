"""Tests of cog_triton.artifacts.progress."""

from __future__ import annotations

import io

import pytest

from cog_triton.artifacts.progress import ProgressLines


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_lines_come_at_most_twice_a_second() -> None:
    """However often a step reports, a line appears each half second, and one at the end."""
    out, clock = io.StringIO(), Clock()
    progress = ProgressLines(out, clock)
    for tenth in range(101):
        clock.now_s = 100 + tenth / 10
        progress("download x", tenth * 1_000_000, 100_000_000)
    lines = out.getvalue().splitlines()
    assert len(lines) == 20
    assert lines[0] == "download x: 5.0 of 100.0 MB, 10.0 MB/s, 10 s left"
    assert lines[-1] == "download x: 100.0 of 100.0 MB, 10.0 MB/s, took 10.0 s"


def test_the_end_is_printed_once() -> None:
    """A step that reports its end twice is printed once, even within half a second."""
    out, clock = io.StringIO(), Clock()
    progress = ProgressLines(out, clock)
    progress("unpack", 0, 10)
    clock.now_s += 0.1
    progress("unpack", 10, 10)
    progress("unpack", 10, 10)
    assert len(out.getvalue().splitlines()) == 1


def test_a_step_that_is_over_at_once_is_still_printed() -> None:
    """The first report of a step may be its last, and then there is no rate to tell."""
    out = io.StringIO()
    ProgressLines(out, Clock())("unpack", 10_000_000, 10_000_000)
    assert out.getvalue() == "unpack: 10.0 of 10.0 MB\n"


def test_a_step_of_unknown_length_is_named_once() -> None:
    """Without a total there is one line that says what goes on."""
    out, clock = io.StringIO(), Clock()
    progress = ProgressLines(out, clock)
    for _ in range(5):
        progress("convert", 0, None)
        clock.now_s += 1
    assert out.getvalue() == "convert …\n"


def test_lines_go_to_the_standard_error_of_the_moment(capsys: pytest.CaptureFixture[str]) -> None:
    """Without a stream the lines go to what sys.stderr is when they are printed."""
    ProgressLines()("convert", 0, None)
    assert capsys.readouterr().err == "convert …\n"
