"""Reading the bytes of answers."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.load.events import BadAnswer, read_events
from benchmarks.load.raw_answer import RawAnswer
from tests.answer_samples import answer, event_stream, plain

EVENTS = [{"output_ids": token} for token in (5, 6, 7)]


@pytest.mark.parametrize(
    ("pieces", "message"),
    [
        ([], "closed before the answer"),
        ([b"HTTP/1.1 200 OK\r\nContent-Type: text/"], "in the middle of the answer"),
        (event_stream(EVENTS)[:-1], "in the middle of the answer"),
        ([b"nonsense\r\n\r\n"], "in the middle of the answer"),
        (plain({"error": "E1000 UserError"}, "400 Bad Request"), "HTTP 400: E1000 UserError"),
        (plain({"detail": "no slot"}, "409 Conflict"), "HTTP 409: no slot"),
        (plain("gateway", "502 Bad Gateway"), "HTTP 502: gateway"),
        (event_stream([{"error": "E1002"}], "400 Bad Request"), "HTTP 400: E1002"),
        (event_stream([*EVENTS, {"error": "E2100 lost"}]), "E2100 lost"),
        (plain("plain text"), "no JSON"),
        (plain("[1, 2]"), "no JSON object"),
    ],
)
def test_a_failed_answer_says_why(pieces: list[bytes], message: str) -> None:
    """Broken, refused and failed answers are errors with the server's own words."""
    with pytest.raises(BadAnswer, match=message):
        read_events(answer(pieces))


def test_a_failed_connection_says_why() -> None:
    """What went wrong below HTTP is the error."""
    with pytest.raises(BadAnswer, match="connection failed"):
        read_events(RawAnswer(0.0, error="connection failed: refused"))


def test_a_plain_answer_is_one_event_at_its_end() -> None:
    """A JSON answer is one event, with the time of its last byte."""
    whole = plain({"text_output": "a"})[0]
    events = read_events(answer([whole[:20], whole[20:]]))
    assert [(event.at, event.content) for event in events] == [(2.0, {"text_output": "a"})]


def test_events_have_the_time_of_their_piece() -> None:
    """The head comes first; each event then has the time at which its bytes came."""
    events = read_events(answer(event_stream(EVENTS)))
    assert [event.content for event in events] == EVENTS
    assert [event.at for event in events] == [2.0, 3.0, 4.0]


@given(st.lists(st.integers(1, 400), max_size=12))
def test_how_the_bytes_are_cut_changes_no_event(cuts: list[int]) -> None:
    """However the network cuts an answer, its events are the same."""
    whole = b"".join(event_stream(EVENTS))
    places = [0, *sorted({min(cut, len(whole)) for cut in cuts}), len(whole)]
    pieces = [whole[a:b] for a, b in pairwise(places) if a < b]
    events = read_events(answer(pieces))
    assert [event.content for event in events] == EVENTS
