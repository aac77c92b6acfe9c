"""When a server that failed is started again, and when no more. Pure: time is given to it."""

from __future__ import annotations

from collections import deque

from cog_triton.settings import SupervisionSettings


class RestartPolicy:
    """At once after the first failure, then after a delay that doubles with each further one.

    Only the failures of the last `restart_window_s` seconds of service count, so a server that
    holds out starts afresh. More than `max_restarts` of them end the restarts. Service is the
    time in which a server was ready: starts that fail count however long each of them takes.
    """

    def __init__(self, limits: SupervisionSettings) -> None:
        self._limits = limits
        self._served_s = 0.0
        self._failed_at: deque[float] = deque()

    def after_failure(self, served_s: float) -> float | None:
        """Seconds to wait before the next start, or None to give up.

        `served_s` is how long the server was ready before it failed, 0 for a failed start.
        """
        limits = self._limits
        self._served_s += served_s
        self._failed_at.append(self._served_s)
        while self._failed_at[0] <= self._served_s - limits.restart_window_s:
            self._failed_at.popleft()
        num_failures = len(self._failed_at)
        if num_failures > limits.max_restarts:
            return None
        if num_failures == 1:
            return 0.0
        # Bounded before it is used: two to the power of a large number is no float.
        doublings = min(num_failures - 2, 60)
        return min(limits.restart_backoff_s * 2.0**doublings, limits.max_restart_backoff_s)
