"""The tokenizer.json that was derived from the GGUF against the engine's own tokenizer."""

from __future__ import annotations

from typing import Any

import numpy as np
import openvino_genai
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from cog_triton.artifacts.model_directory import ModelDirectory
from tests import artifact_samples as samples

# Unassigned and private characters are left out: whether one is a letter depends on the version of
# Unicode that a library was built with, and the two libraries differ in that.
# Six control characters have no token in SmolLM2's vocabulary: Hugging Face's tokenizers and ours
# drop them, the engine's puts <|endoftext|> in their place.
CHARACTERS = st.characters(
    exclude_categories=("Cn", "Co", "Cs"), exclude_characters="\x04\x06\x13\x14\x16\x1d"
)
WORDS = st.sampled_from(
    [" ", "  ", "\n", "\t", "'s", "'ll", " the", "ing", "007", "<|im_start|>", "<|im_end|>", "<|"]
)
TEXTS = st.lists(st.one_of(st.text(CHARACTERS, max_size=6), WORDS), max_size=12).map("".join)


@pytest.fixture(scope="module")
def engine_tokenizer(model_directory: ModelDirectory) -> Any:
    """The tokenizer that OpenVINO GenAI built for itself."""
    scheduler = openvino_genai.SchedulerConfig()
    weights = str(model_directory.weights)
    return openvino_genai.ContinuousBatchingPipeline(weights, scheduler, "CPU").get_tokenizer()


@pytest.fixture(scope="module")
def our_tokenizer(model_directory: ModelDirectory) -> Tokenizer:
    """The tokenizer that the predictor uses."""
    return Tokenizer.from_file(str(model_directory.path / "tokenizer.json"))


def engine_ids(tokenizer: Any, text: str) -> list[int]:
    ids: list[int] = np.array(tokenizer.encode(text).input_ids.data).reshape(-1).tolist()
    return ids


@pytest.mark.parametrize("text", samples.TEXTS)
def test_samples_encode_alike(engine_tokenizer: Any, our_tokenizer: Tokenizer, text: str) -> None:
    """Prose, code, digits, white space, scripts and special tokens give the engine's ids."""
    assert our_tokenizer.encode(text).ids == engine_ids(engine_tokenizer, text)


@settings(max_examples=300, deadline=None)
@given(text=TEXTS)
def test_any_text_encodes_and_decodes_alike(
    engine_tokenizer: Any, our_tokenizer: Tokenizer, text: str
) -> None:
    """Whatever the text, ids and the text made of them again are the engine's."""
    ids = our_tokenizer.encode(text).ids
    assert ids == engine_ids(engine_tokenizer, text)
    assert our_tokenizer.decode(ids) == engine_tokenizer.decode(ids)


def test_special_ids_are_the_engines(
    engine_tokenizer: Any, model_directory: ModelDirectory
) -> None:
    """The main end id and the padding id are those that the engine read from the GGUF."""
    assert model_directory.end_ids[0] == engine_tokenizer.get_eos_token_id()
    assert model_directory.pad_id == engine_tokenizer.get_pad_token_id()
