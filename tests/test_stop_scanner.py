"""Tests of cog_triton.text.stop_scanner."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from cog_triton.text.stop_scanner import StopScanner

# Two letters make overlaps and near misses likely.
STOPS = st.lists(st.text("ab", min_size=1, max_size=5), max_size=4)
TEXT = st.text("abc", max_size=30)
CUTS = st.lists(st.integers(0, 7), max_size=12)


def by_the_rule(stops: Sequence[str], text: str) -> tuple[str, str | None]:
    """Text before the winning match and that match, straight from the definition."""
    for start in range(len(text)):
        here = [stop for stop in stops if text.startswith(stop, start)]
        if here:
            return text[:start], min(here, key=len)
    return text, None


def pieces(text: str, sizes: Sequence[int]) -> list[str]:
    """The text in pieces of the given sizes, and the rest."""
    ends = list(accumulate(sizes, initial=0))
    cut = [text[start:end] for start, end in pairwise(ends)]
    return [*cut, text[ends[-1] :]]


def scan(stops: Sequence[str], chunks: Sequence[str]) -> tuple[str, str | None, bool]:
    scanner = StopScanner(stops)
    text = "".join([*map(scanner.feed, chunks), scanner.finish()])
    return text, scanner.matched, scanner.stopped


def test_an_empty_stop_sequence_is_refused() -> None:
    """An empty sequence would stop everything at once, so it is an error of the caller."""
    with pytest.raises(ValueError, match="empty"):
        StopScanner(["a", ""])


@settings(max_examples=300, deadline=None)
@given(stops=STOPS, text=TEXT, sizes=CUTS)
@example(stops=["abab", "ba"], text="ababa", sizes=[3])
@example(stops=["aabaaab", "baa"], text="aabaaaa", sizes=[])
@example(stops=["abcd", "bc"], text="abcx", sizes=[3])
@example(stops=["abcd", "bc"], text="abc", sizes=[1])
@example(stops=["ab", "abc"], text="abc", sizes=[])
def test_cutting_never_changes_what_comes_out(
    stops: list[str], text: str, sizes: list[int]
) -> None:
    """Whole, in any pieces or by characters, the output is the one of the definition."""
    before, matched = by_the_rule(stops, text)
    expected = (before, matched, matched is not None)
    assert scan(stops, [text]) == expected
    assert scan(stops, pieces(text, sizes)) == expected
    assert scan(stops, list(text)) == expected


@settings(max_examples=200, deadline=None)
@given(stops=STOPS, text=TEXT)
def test_no_more_is_held_back_than_the_beginning_of_a_stop(stops: list[str], text: str) -> None:
    """After each character all text is out but the longest suffix that begins a stop sequence."""
    scanner = StopScanner(stops)
    out = ""
    for end, char in enumerate(text, start=1):
        out += scanner.feed(char)
        if scanner.stopped:
            break
        read = text[:end]
        held = next(
            read[start:]
            for start in range(end + 1)
            if start == end or any(stop.startswith(read[start:]) for stop in stops)
        )
        if by_the_rule(stops, read)[1] is None:  # else an earlier longer match may still come
            assert out == read.removesuffix(held)
        assert read.startswith(out)


def test_text_after_the_match_is_dropped() -> None:
    """Once stopped, the rest of the text, later feeds and finish give nothing."""
    scanner = StopScanner(["</s>", "\nUser:"])
    assert scanner.feed("Hello <") == "Hello "
    assert scanner.feed("b></") == "<b>"
    assert not scanner.stopped
    assert scanner.feed("s> and </s>") == ""
    assert scanner.stopped
    assert scanner.matched == "</s>"
    assert scanner.feed("\nUser: more") == ""
    assert scanner.finish() == ""
    assert scanner.matched == "</s>"


def test_a_match_waits_for_a_longer_one_that_began_before_it() -> None:
    """A stop sequence inside the beginning of another is decided when the other one fails."""
    scanner = StopScanner(["abcd", "bc"])
    assert scanner.feed("xabc") == "x"
    assert not scanner.stopped
    assert scanner.feed("e") == "a"
    assert scanner.matched == "bc"


@pytest.mark.parametrize("stops", [["ab"], ["ab", "abc"], ["abc", "b", "ab"]])
def test_a_match_is_decided_with_its_last_character(stops: list[str]) -> None:
    """A match that nothing earlier can beat stops at once, not with the next text."""
    scanner = StopScanner(stops)
    assert scanner.feed("xa") == "x"
    assert scanner.feed("b") == ""
    assert scanner.matched == "ab"


def test_without_stop_sequences_text_passes() -> None:
    """No stop sequences hold nothing back."""
    scanner = StopScanner([])
    assert scanner.feed("any <text>") == "any <text>"
    assert scanner.finish() == ""
    assert not scanner.stopped
    assert scanner.matched is None


def test_a_near_miss_that_repeats_is_not_read_again() -> None:
    """A text made to force rescanning, 200,000 characters one by one, only slides what is held."""
    stop = "a" * 1000 + "b"
    scanner = StopScanner([stop, *(stop[i:] + "c" for i in range(0, 1000, 100))])
    num_out = sum(len(scanner.feed("a")) for _ in range(200_000))
    assert num_out == 200_000 - 1000
    assert len(scanner.finish()) == 1000
