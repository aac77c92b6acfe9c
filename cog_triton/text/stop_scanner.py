"""Stop sequences in a stream of text.

The rule, so that how the text is cut never matters: the match that starts earliest in
the whole text wins; of those that start at the same place the shortest, which is the one
that completes first. A match is therefore decided only when no longer stop sequence that
started before it can still complete.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(slots=True)
class _Node:
    """A state: the text read so far ends in the first `depth` characters of some stop."""

    depth: int
    next: dict[str, int] = field(default_factory=dict)
    fallback: int = 0
    found: str | None = None  # longest stop that ends here


class StopScanner:
    """Passes text on until a stop sequence; see the module for which one wins.

    Aho-Corasick: a character costs a constant, whatever was held back, and what is held
    back is the longest suffix of the text that begins some stop sequence.
    Raises ValueError for an empty stop sequence. No stop sequences: text passes unchanged.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self.matched: str | None = None
        self._nodes = _automaton(stops)
        self._state = 0
        self._held = ""
        self._candidate: str | None = None
        self._candidate_start = 0  # in _held

    @property
    def stopped(self) -> bool:
        """True once a stop sequence is decided; the text after it is of no interest."""
        return self.matched is not None

    def feed(self, text: str) -> str:
        """The text that is certainly before any stop sequence; may be empty."""
        if self.stopped:
            return ""
        if len(self._nodes) == 1:
            return text
        nodes, state = self._nodes, self._state
        node = nodes[state]
        end = len(self._held)
        self._held += text
        for char in text:
            end += 1
            while state and char not in node.next:
                state = node.fallback
                node = nodes[state]
            state = node.next.get(char, 0)
            node = nodes[state]
            if node.found is not None:
                self._note(node.found, end - len(node.found))
            if self._candidate is not None and end - node.depth >= self._candidate_start:
                return self._stop()
        self._state = state
        return self._release(end - node.depth)

    def finish(self) -> str:
        """What was held back, up to a stop sequence that is now decided."""
        if self._candidate is not None and not self.stopped:
            return self._stop()
        self._state = 0
        return self._release(len(self._held))

    def _note(self, stop: str, start: int) -> None:
        if self._candidate is None or start < self._candidate_start:
            self._candidate, self._candidate_start = stop, start

    def _stop(self) -> str:
        before, self._held = self._held[: self._candidate_start], ""
        self.matched = self._candidate
        return before

    def _release(self, num_chars: int) -> str:
        text, self._held = self._held[:num_chars], self._held[num_chars:]
        self._candidate_start -= num_chars
        return text


def _automaton(stops: Sequence[str]) -> list[_Node]:
    """States of all prefixes of the stops, root first, with the longest suffix to fall back to."""
    nodes = [_Node(depth=0)]
    for stop in stops:
        if not stop:
            raise ValueError("a stop sequence must not be empty")
        state = 0
        for char in stop:
            following = nodes[state].next.get(char)
            if following is None:
                following = len(nodes)
                nodes.append(_Node(depth=nodes[state].depth + 1))
                nodes[state].next[char] = following
            state = following
        nodes[state].found = stop
    _link(nodes)
    return nodes


def _link(nodes: list[_Node]) -> None:
    """Set `fallback` and pass shorter stops down to states they end in, by growing depth."""
    pending = deque(nodes[0].next.values())
    while pending:
        node = nodes[pending.popleft()]
        for char, child in node.next.items():
            fallback = node.fallback
            while fallback and char not in nodes[fallback].next:
                fallback = nodes[fallback].fallback
            nodes[child].fallback = nodes[fallback].next.get(char, 0)
            if nodes[child].found is None:
                nodes[child].found = nodes[nodes[child].fallback].found
            pending.append(child)
