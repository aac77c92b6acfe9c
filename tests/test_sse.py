"""The SSE decoder: payloads of events, whatever the cuts."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from cog_triton.sse import SSEDecoder

lines = st.text(st.characters(exclude_characters="\r\n", exclude_categories=["Cs"]), max_size=12)
payloads = st.lists(st.lists(lines, min_size=1, max_size=3), max_size=5)
newlines = st.sampled_from(["\n", "\r\n", "\r"])


def cut(data: bytes, points: list[int]) -> list[bytes]:
    places = sorted({point % (len(data) + 1) for point in points})
    edges = [0, *places, len(data)]
    return [data[start:end] for start, end in pairwise(edges)]


def decode(chunks: list[bytes]) -> list[bytes]:
    decoder = SSEDecoder()
    return [event for chunk in chunks for event in decoder.feed(chunk)]


def test_an_event_without_its_blank_line_is_not_an_event() -> None:
    """What a broken connection leaves half-way is held back and reported as incomplete."""
    decoder = SSEDecoder()
    assert decoder.feed(b'data: {"a":1}\n') == []
    assert decoder.incomplete


def test_other_fields_and_comments_are_dropped() -> None:
    """Only data makes an event: comments, ids, event names and unknown fields do not."""
    stream = b": hello\nid: 7\nevent: x\nfoo\n\ndata: a\nretry: 5\ndata: b\n\ndata\n\n"
    assert decode([stream]) == [b"a\nb", b""]


def test_only_one_leading_space_is_removed() -> None:
    """`data:  x` keeps the second space."""
    assert decode([b"data:  x\n\ndata:y\n\n"]) == [b" x", b"y"]


def test_a_byte_order_mark_at_the_start_is_dropped() -> None:
    """The mark belongs to the stream and not to the first field's name."""
    assert decode([b"\xef\xbb\xbfdata: x\n\n"]) == [b"x"]


@given(payloads, newlines, st.lists(st.integers(0, 10_000), max_size=8))
def test_cuts_never_change_the_events(
    events: list[list[str]], newline: str, points: list[int]
) -> None:
    """Any cut, also inside a character or a CRLF, gives the events that were written."""
    text = "".join(
        "".join(f"data: {line}{newline}" for line in event) + newline for event in events
    )
    expected = ["\n".join(event).encode() for event in events]
    assert decode(cut(text.encode(), points)) == expected


@given(payloads, newlines)
def test_byte_by_byte(events: list[list[str]], newline: str) -> None:
    """A byte at a time is a cut like any other."""
    text = "".join(
        "".join(f"data: {line}{newline}" for line in event) + newline for event in events
    )
    data = text.encode()
    assert decode([data[i : i + 1] for i in range(len(data))]) == decode([data])
