"""The grammar of banned words, checked against a plain search."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from cog_triton.runtimes.word_ban import grammar

words = st.lists(st.text("abc", min_size=1, max_size=4), min_size=1, max_size=4)
texts = st.text("abcx", max_size=12)


def accepts(gbnf: str, text: str) -> bool:
    """Walk the right-linear grammar; every state accepts the end of the text."""
    rules: dict[str, list[tuple[bool, set[str], str]]] = {}
    for rule in gbnf.splitlines()[1:]:
        name, _, body = rule.partition(" ::= ")
        choices = re.findall(r"\[(\^?)((?:\\U[0-9A-F]{8})+)\] (s\d+)", body)
        rules[name] = [
            (
                bool(caret),
                {chr(int(code, 16)) for code in re.findall(r"\\U([0-9A-F]{8})", codes)},
                to,
            )
            for caret, codes, to in choices
        ]
        assert '""' in body
    state = "s0"
    for character in text:
        following = [
            to for negated, letters, to in rules[state] if (character in letters) != negated
        ]
        if not following:
            return False
        assert len(following) == 1, "the grammar is deterministic"
        state = following[0]
    return True


@given(words, texts)
def test_accepts_exactly_the_texts_without_a_banned_word(banned: list[str], text: str) -> None:
    """A text is in the language if and only if no banned word occurs in it."""
    assert accepts(grammar(banned), text) == (not any(word in text for word in banned))


def test_a_word_inside_a_longer_one_bans_it_too() -> None:
    """Overlapping words are found through the fallback links."""
    gbnf = grammar(["abab", "ba"])
    assert not accepts(gbnf, "xaba")
    assert accepts(gbnf, "xaab")
