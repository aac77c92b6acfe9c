"""When to ask a server again: back-off, and what the server says about it itself."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timezone
from email.utils import parsedate_to_datetime

# RFC 9110: 408 Request Timeout, 429 (RFC 6585) Too Many Requests, and the server errors that pass.
RETRIED_STATUS = frozenset((408, 425, 429, 500, 502, 503, 504))


class TryAgain(Exception):
    """An attempt failed in a way that may pass; `wait_s` is what the server asks for, or None."""

    def __init__(self, reason: str, wait_s: float | None = None) -> None:
        super().__init__(reason)
        self.wait_s = wait_s


@dataclass(frozen=True)
class RetryPolicy:
    """How often and how soon to ask again.

    num_attempts    attempts in a row that may bring nothing
    first_wait_s    before the second of them; doubled before each further one
    longest_wait_s  of all waits, also of those that the server asks for
    """

    num_attempts: int = 7
    first_wait_s: float = 0.5
    longest_wait_s: float = 120.0

    def wait_s(self, num_failures: int, asked_s: float | None) -> float:
        """Seconds to wait after so many failures in a row: what is asked for, or the back-off."""
        if asked_s is not None:
            return min(max(asked_s, 0.0), self.longest_wait_s)
        wait_s = self.first_wait_s * 2.0 ** min(num_failures - 1, 30)
        return min(wait_s, self.longest_wait_s) * random.uniform(0.5, 1.0)


def retry_after_s(header: str | None, now: Callable[[], float] = time.time) -> float | None:
    """Seconds that a Retry-After header asks for (RFC 9110 10.2.3), None where it says nothing."""
    if header is None:
        return None
    if header.strip().isdigit():
        return float(header)
    try:
        date = parsedate_to_datetime(header)
    except ValueError:
        return None
    if date.tzinfo is None:
        date = date.replace(tzinfo=timezone.utc)
    return max(0.0, (date - datetime.fromtimestamp(now(), timezone.utc)).total_seconds())


class Gate:
    """Lets the connections of one download pass, all of them later when the server asks to wait."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._opens_at_s = 0.0
        self._closed = threading.Event()

    def hold(self, wait_s: float) -> None:
        """Nobody passes for so long."""
        self._opens_at_s = max(self._opens_at_s, self._clock() + wait_s)

    def shut(self) -> None:
        """Wake everybody up and let nobody pass any more."""
        self._closed.set()

    @property
    def is_shut(self) -> bool:
        return self._closed.is_set()

    def wait(self, own_wait_s: float = 0.0) -> bool:
        """Wait until it opens, at least `own_wait_s`; whether one may go on."""
        until_s = self._clock() + own_wait_s
        while (left_s := max(until_s, self._opens_at_s) - self._clock()) > 0:
            if self._closed.wait(left_s):
                return False
        return not self._closed.is_set()
