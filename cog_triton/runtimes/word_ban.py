"""A grammar that accepts every text in which none of the banned words occurs.

OpenVINO GenAI has no list of bad words, but it has structured output: a grammar
(xgrammar's GBNF) masks each token that would leave the language. The language
"no banned word inside" is regular: the automaton of Aho and Corasick finds all
words in one pass, and its complement, state by state, is a right-linear grammar.
So a word is banned however it is cut into tokens.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable


class _Automaton:
    """Aho-Corasick: `step(state, character)` is the next state, `found` marks matches."""

    def __init__(self, words: Iterable[str]) -> None:
        self.edges: list[dict[str, int]] = [{}]
        self.found: list[bool] = [False]
        self._fallback: list[int] = [0]
        for word in words:
            self._insert(word)
        self._link()

    def step(self, state: int, character: str) -> int:
        while state and character not in self.edges[state]:
            state = self._fallback[state]
        return self.edges[state].get(character, 0)

    def _insert(self, word: str) -> None:
        state = 0
        for character in word:
            if character not in self.edges[state]:
                self.edges.append({})
                self.found.append(False)
                self._fallback.append(0)
                self.edges[state][character] = len(self.edges) - 1
            state = self.edges[state][character]
        self.found[state] = True

    def _link(self) -> None:
        pending = deque(self.edges[0].values())
        while pending:
            state = pending.popleft()
            for character, following in self.edges[state].items():
                pending.append(following)
                self._fallback[following] = self.step(self._fallback[state], character)
                self.found[following] |= self.found[self._fallback[following]]


def grammar(words: Iterable[str]) -> str:
    """GBNF text whose language is every text without any of `words` (none of them empty)."""
    automaton = _Automaton(words)
    alphabet = sorted({character for edges in automaton.edges for character in edges})
    other = "".join(_escape(character) for character in alphabet)
    rules = ["root ::= s0"]
    for state, found in enumerate(automaton.found):
        if found:
            continue
        choices = ['""']
        for character in alphabet:
            following = automaton.step(state, character)
            if not automaton.found[following]:
                choices.append(f"[{_escape(character)}] s{following}")
        choices.append(f"[^{other}] s0")
        rules.append(f"s{state} ::= {' | '.join(choices)}")
    return "\n".join(rules)


def _escape(character: str) -> str:
    return f"\\U{ord(character):08X}"
