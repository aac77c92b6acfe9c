"""Prompts of a wanted length in tokens, each different from its first word on.

Different beginnings matter: a server that keeps the KV cache of common prefixes would otherwise
answer the second prompt without computing it.
"""

from __future__ import annotations

import random

from benchmarks.load.targets import Prompt
from cog_triton.text.tokenizer import Tokenizer

_TEXT = (
    "able about after again air all also animal answer apple area arm art ask away baby back ball "
    "bank base bear bed best big bird black blue boat body book box boy bread bring brother build "
    "car care case cat child city class clear close cold color come corn country cross cut dark "
    "day deep door down draw dream drive dry ear earth east eat edge end even eye face fall family "
    "far farm fast father field fire fish floor flower food foot forest form free friend full game "
    "garden girl give glass gold good grass great green ground grow hair half hand hard head hear "
    "heart heat high hill home horse hot house ice idea island job king land large late law leaf "
    "learn left letter life light line list long love low man map mark milk mind moon morning "
    "mother mountain mouth music name near night north open page paper part people picture place "
    "plan plant play point power quick rain read red rest rice ride right ring river road rock "
    "room round rule run salt sand sea season second sheep ship shop short side silver sing sister "
    "sky sleep slow small snow song sound south spring star stone street strong summer sun table "
    "talk tall tell thing time town train tree turn village voice walk wall war warm water week "
    "west wheel white wide wind window winter wood word work world year young"
)
WORDS = _TEXT.split()


class PromptSource:
    """Makes prompts; the same seed gives the same prompts."""

    def __init__(self, tokenizer: Tokenizer, num_tokens: int, seed: int) -> None:
        self._tokenizer = tokenizer
        self._num_tokens = num_tokens
        self._random = random.Random(seed)
        words = [word for word in WORDS if len(self._ids(f" {word}")) == 1]
        self._words = words or WORDS

    def next(self) -> Prompt:
        """A prompt of the wanted length, or the next longer one that this tokenizer can make."""
        words: list[str] = []
        ids: list[int] = []
        while len(ids) < self._num_tokens:
            num_missing = max(1, (self._num_tokens - len(ids)) * 3 // 4)
            words += self._random.choices(self._words, k=num_missing)
            ids = self._ids(" ".join(words))
        return Prompt(ids, " ".join(words))

    def _ids(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, add_special_tokens=True)
