"""Tells a server that has stopped generating from one that has nothing to do. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(eq=False)
class Passage:
    """One request from the moment it is sent to its end."""

    has_tokens: bool = False


class ProgressWatchdog:
    """Requests are in flight and nobody has got a token for too long: the server is stalled.

    In-flight batching serves all requests in turns, so a token for anyone is progress of the
    server. While every request still waits for its first token a long prompt may be the
    reason, and the longer deadline holds. Times are seconds of any one monotonic clock.
    """

    def __init__(self, *, stall_timeout_s: float, first_token_timeout_s: float) -> None:
        self._stall_timeout_s = stall_timeout_s
        self._first_token_timeout_s = max(first_token_timeout_s, stall_timeout_s)
        self._num_waiting = 0
        self._num_streaming = 0
        self._last_progress_s = 0.0

    @property
    def num_in_flight(self) -> int:
        return self._num_waiting + self._num_streaming

    @property
    def last_progress_s(self) -> float:
        """When the last token came, or when the first request after an idle time was sent."""
        return self._last_progress_s

    def begin(self, now_s: float) -> Passage:
        if self.num_in_flight == 0:
            self._last_progress_s = now_s
        self._num_waiting += 1
        return Passage()

    def token(self, passage: Passage, now_s: float) -> None:
        self._last_progress_s = now_s
        if not passage.has_tokens:
            passage.has_tokens = True
            self._num_waiting -= 1
            self._num_streaming += 1

    def end(self, passage: Passage) -> None:
        """To be called once for each passage, however it ends."""
        if passage.has_tokens:
            self._num_streaming -= 1
        else:
            self._num_waiting -= 1

    def stalled_for_s(self, now_s: float) -> float | None:
        """How long nothing has come, if that is too long; None otherwise."""
        if self.num_in_flight == 0:
            return None
        limit_s = self._stall_timeout_s if self._num_streaming else self._first_token_timeout_s
        silent_s = now_s - self._last_progress_s
        return silent_s if silent_s >= limit_s else None
