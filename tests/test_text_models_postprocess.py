"""The model `postprocessing`: whole texts exactly, and one step of a stream as well as can be."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cog_triton.errors import TritonTokenizerError, UserError
from cog_triton.runtimes.text_models import postprocess
from cog_triton.runtimes.text_models.step_text import StepDecoder
from cog_triton.text.tokenizer import Tokenizer
from tests import text_samples

KINDS = sorted(text_samples.ALL)


def decoder(kind: str) -> StepDecoder:
    backend = text_samples.ALL[kind]()
    return StepDecoder(Tokenizer(backend), backend)


def run(kind: str, batch: list[list[list[int]]], lengths: list[list[int]]) -> list[str]:
    output = postprocess.texts(decoder(kind), np.array(batch, np.int32), np.array(lengths))
    return [text.decode() for text in output]


@pytest.mark.parametrize(
    ("batch", "lengths", "message"),
    [
        ([[[1, 2]]], [[3]], "SEQUENCE_LENGTH is"),
        ([[[1, 2]]], [[-1]], "SEQUENCE_LENGTH is"),
        ([[[1, 2]]], [[1, 1]], "has the shape"),
    ],
)
def test_lengths_that_do_not_fit_are_refused(
    batch: list[list[list[int]]], lengths: list[list[int]], message: str
) -> None:
    """More ids than there are, fewer than none, and more lengths than beams."""
    with pytest.raises(UserError, match=message):
        run("gemma", batch, lengths)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("ids", [[100_000], [1, 100_000]])
def test_an_unknown_id_is_an_error(kind: str, ids: list[int]) -> None:
    """In a step as in a whole text."""
    with pytest.raises(TritonTokenizerError):
        run(kind, [[ids]], [[len(ids)]])


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_a_text_of_several_tokens_is_exact(kind: str, data: st.DataObject) -> None:
    """Each beam of each batch entry is what the library decodes, up to its length."""
    backend = text_samples.ALL[kind]()
    token = st.integers(0, backend.get_vocab_size() - 1)
    beams = data.draw(st.lists(st.lists(token, min_size=2, max_size=12), min_size=1, max_size=4))
    width = max(map(len, beams))
    padded = [[*ids, *[-1] * (width - len(ids))] for ids in beams]
    lengths = [[len(ids)] for ids in beams]
    assert run(kind, [[ids] for ids in padded], lengths) == [backend.decode(ids) for ids in beams]


def test_the_output_has_one_text_for_each_beam() -> None:
    """Shape [beams], as clients read it, and no ids give an empty text."""
    output = postprocess.texts(
        decoder("gemma"), np.zeros((1, 3, 0), np.int32), np.zeros((1, 3), np.int32)
    )
    assert output.tolist() == [b"", b"", b""]


@pytest.mark.parametrize("kind", ["byte_level", "llama2", "gemma", "metaspace", "words"])
@pytest.mark.parametrize("text", ["the fox and the trail", "na ve", "  the  fox", "세계 안녕"])
def test_steps_of_whole_characters_join_to_the_text(kind: str, text: str) -> None:
    """No space is lost with any kind of vocabulary; at the very start there may be one more."""
    backend = text_samples.ALL[kind]()
    ids = backend.encode(text).ids
    steps = "".join(run(kind, [[[token_id]]], [[1]])[0] for token_id in ids)
    if "\N{REPLACEMENT CHARACTER}" not in steps:
        whole = backend.decode(ids)
        assert steps in (whole, f" {whole}")


@pytest.mark.parametrize("kind", ["byte_level", "llama2", "gemma", "fallback_metaspace"])
@pytest.mark.parametrize("text", ["x🌍y", "é🦊", "ⰀẀ", "👩‍👩‍👧‍👦 🇰🇷", "ก"])
def test_a_character_in_pieces_is_one_replacement_character(kind: str, text: str) -> None:
    """Its first piece shows that something is missing, the others add nothing."""
    backend = text_samples.ALL[kind]()
    ids = backend.encode(text, add_special_tokens=False).ids
    steps = "".join(run(kind, [[[token_id]]], [[1]])[0] for token_id in ids)
    whole = backend.decode(ids)
    assert len(steps.strip()) == len(whole.strip())
    assert all(
        step in (character, "\N{REPLACEMENT CHARACTER}")
        for step, character in zip(steps.strip(), whole.strip(), strict=True)
    )


@pytest.mark.parametrize("kind", KINDS)
def test_special_tokens_are_left_out_of_steps(kind: str, tmp_path: Path) -> None:
    """A step of a special token is empty, or its text where special tokens are shown."""
    backend = text_samples.ALL[kind]()
    text_samples.save_model(tmp_path, backend)
    for token_id, token in backend.get_added_tokens_decoder().items():
        if token.special:
            assert run(kind, [[[token_id]]], [[1]]) == [""]
            shown = StepDecoder.load(tmp_path, skip_special_tokens=False)
            assert shown.decode([token_id]).strip() == token.content
