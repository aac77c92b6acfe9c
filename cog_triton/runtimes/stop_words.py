"""Stop words of several tokens, for engines that only know single ids as ends."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


class StopWordWatch:
    """Looks for the first of `words` in the generated ids of one request, piece by piece."""

    def __init__(self, words: Iterable[Sequence[int]]) -> None:
        self._words = [list(word) for word in words]
        self._tail: list[int] = []
        self._tail_len = max(map(len, self._words), default=0)

    def feed(self, ids: Sequence[int]) -> int | None:
        """How many of the new `ids` end with the first stop word (which is kept), or None."""
        for index, token in enumerate(ids if self._words else ()):
            self._tail = [*self._tail, token][-self._tail_len :]
            if any(self._tail[-len(word) :] == word for word in self._words):
                return index + 1
        return None
