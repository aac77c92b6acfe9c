"""Prompts of a wanted length."""

from __future__ import annotations

import pytest

from benchmarks.load.prompts import PromptSource
from cog_triton.artifacts.model_directory import ModelDirectory
from cog_triton.text.tokenizer import Tokenizer


@pytest.mark.parametrize("num_tokens", [1, 2, 7, 128, 1000])
def test_prompts_have_the_wanted_length(model_directory: ModelDirectory, num_tokens: int) -> None:
    """The text has exactly so many tokens, and they are the ids."""
    tokenizer = Tokenizer.load(model_directory.path)
    prompt = PromptSource(tokenizer, num_tokens, seed=1).next()
    assert len(prompt.ids) == num_tokens
    assert tokenizer.encode(prompt.text, add_special_tokens=True) == list(prompt.ids)


def test_prompts_differ_and_can_be_repeated(model_directory: ModelDirectory) -> None:
    """No two prompts of a run are equal; the same seed gives the same ones."""
    tokenizer = Tokenizer.load(model_directory.path)
    one, two = (PromptSource(tokenizer, 32, seed=5) for _ in range(2))
    texts = [one.next().text for _ in range(20)]
    assert len(set(texts)) == 20
    assert [two.next().text for _ in range(20)] == texts
    assert PromptSource(tokenizer, 32, seed=6).next().text not in texts
