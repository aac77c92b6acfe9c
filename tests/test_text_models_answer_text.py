"""The text of one answer of tensorrt_llm_bls, whole and in pieces."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cog_triton.errors import TritonMalformedEvent
from cog_triton.runtimes.text_models.answer_text import AnswerText, Tensors
from cog_triton.runtimes.text_models.bls_request import InnerRequest
from cog_triton.text.tokenizer import Tokenizer
from tests import text_samples

KINDS = sorted(text_samples.ALL)
# Examples for each of the seven tokenizers; raise it to look harder.
NUM_EXAMPLES = 60
PROMPTS = ["the fox", " and", "세계", "x🦊", "🦊"]
WHOLE = InnerRequest(tensors={}, parameters={}, prompt_ids=())
STREAM = replace(WHOLE, stream=True, streaming=True)


def response(*beams: list[int], **others: npt.NDArray[Any]) -> Tensors:
    width = max(map(len, beams))
    padded = [[*ids, *[-1] * (width - len(ids))] for ids in beams]
    return {
        "output_ids": np.array([padded], np.int32),
        "sequence_length": np.array([[len(ids) for ids in beams]], np.int32),
        **others,
    }


def texts(responses: list[Tensors]) -> list[list[str]]:
    return [[text.decode() for text in one["text_output"]] for one in responses]


def first_texts(responses: list[Tensors]) -> list[str]:
    return [beams[0] for beams in texts(responses)]


def answer(kind: str, request: InnerRequest, **options: Any) -> AnswerText:
    return AnswerText(request, Tokenizer(text_samples.ALL[kind]()), **options)


def streamed(
    kind: str, request: InnerRequest, chunks: list[list[int]], **options: Any
) -> list[str]:
    """The pieces of a stream; it ends early as the relay would end it."""
    state = answer(kind, request, **options)
    pieces: list[str] = []
    for chunk in chunks:
        pieces += first_texts(state.feed(response(chunk)))
        if state.stopped:
            break
    return pieces + first_texts(state.finish())


def whole(kind: str, request: InnerRequest, ids: list[int]) -> str:
    """The text of the same answer in one response of tensorrt_llm, not streamed."""
    state = answer(kind, request)
    assert state.feed(response([*request.prompt_ids, *ids])) == []
    [text] = first_texts(state.finish())
    return text


@pytest.mark.parametrize("missing", ["output_ids", "sequence_length"])
def test_a_response_without_ids_is_an_error(missing: str) -> None:
    """Something else than tensorrt_llm stands behind the name then."""
    tensors = response([1])
    del tensors[missing]
    with pytest.raises(TritonMalformedEvent):
        answer("gemma", WHOLE).feed(tensors)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=NUM_EXAMPLES, deadline=None)
@given(data=st.data())
def test_the_pieces_of_a_stream_joined_are_the_whole_text(kind: str, data: st.DataObject) -> None:
    """Any ids in any cut, with and without the prompt before them, with and without stop words."""
    backend = text_samples.ALL[kind]()
    token = st.integers(0, backend.get_vocab_size() - 1)
    chunks = data.draw(st.lists(st.lists(token, max_size=4), max_size=12))
    prompt = data.draw(st.sampled_from([[], *(backend.encode(text).ids for text in PROMPTS)]))
    ids = [token_id for chunk in chunks for token_id in chunk]
    prompt_text, text = backend.decode(prompt), backend.decode([*prompt, *ids])
    stops = st.sampled_from(["fox", "he", " ", "世", "\ufffd", text[len(prompt_text) + 1 :][:3]])
    stop_words = tuple(filter(None, data.draw(st.lists(stops))))
    with_prompt = replace(
        WHOLE, prompt_ids=tuple(prompt), stop_words=stop_words, output_has_prompt=True
    )
    pieces = streamed(
        kind, replace(STREAM, prompt_ids=tuple(prompt), stop_words=stop_words), chunks
    )
    if not stop_words:
        assert whole(kind, with_prompt, ids) == text
    # Bytes after a prompt that ends in bytes can make its last character another one.
    if text.startswith(prompt_text):
        assert prompt_text + "".join(pieces) == whole(kind, with_prompt, ids)


@pytest.mark.parametrize("kind", ["byte_level", "llama2", "gemma", "metaspace"])
@pytest.mark.parametrize("text", text_samples.CORPUS)
def test_without_the_prompt_a_stream_is_the_decoded_text(kind: str, text: str) -> None:
    """Emoji, Korean, Chinese, combining marks and leading spaces, one token at a time."""
    backend = text_samples.ALL[kind]()
    ids = backend.encode(text).ids
    assert "".join(streamed(kind, STREAM, [[token_id] for token_id in ids])) == backend.decode(ids)


def test_after_a_prompt_the_space_before_the_first_word_stays() -> None:
    """SentencePiece drops it at the start of a text, but this is the middle of one."""
    backend = text_samples.ALL["llama2"]()
    prompt = backend.encode("the").ids
    request = replace(STREAM, prompt_ids=tuple(prompt))
    word = backend.encode("the", add_special_tokens=False).ids[0]
    assert streamed("llama2", request, [[word], [word]]) == [" the", " the"]
    assert streamed("llama2", STREAM, [[word], [word]]) == ["the", " the"]


@pytest.mark.parametrize("kind", ["llama2", "gemma", "byte_level"])
def test_a_prompt_that_ends_in_an_emoji_is_not_repeated(kind: str) -> None:
    """Its last character is decided only when something follows, but is no new text."""
    backend = text_samples.ALL[kind]()
    ids = backend.encode("the 🦊 fox").ids
    cut = len(backend.encode("the 🦊").ids)
    request = replace(STREAM, prompt_ids=tuple(ids[:cut]))
    assert "".join(streamed(kind, request, [[token_id] for token_id in ids[cut:]])) == " fox"
    assert streamed(kind, request, []) == [""]
    with_prompt = replace(WHOLE, prompt_ids=tuple(ids[:cut]), output_has_prompt=True)
    assert whole(kind, with_prompt, ids[cut:]) == "the 🦊 fox"
    assert whole(kind, with_prompt, []) == "the 🦊"


@pytest.mark.parametrize("stream", [True, False])
def test_the_text_ends_before_a_stop_word(stream: bool) -> None:
    """However it is cut into tokens; then no more tokens are needed."""
    backend = text_samples.ALL["gemma"]()
    ids = backend.encode("and the fox is", add_special_tokens=False).ids
    base = STREAM if stream else replace(WHOLE, streaming=True)
    state = answer("gemma", replace(base, stop_words=("e fo", "zzz")))
    sent: list[str] = []
    for token_id in ids:
        assert not state.stopped
        sent += first_texts(state.feed(response([token_id])))
        if state.stopped:
            break
    assert state.stopped
    assert "".join(sent + first_texts(state.finish())) == "and th"


def test_a_piece_without_text_is_not_sent_unless_it_carries_something() -> None:
    """A part of a character waits; log probs and counts of its token do not."""
    backend = text_samples.ALL["gemma"]()
    [first, *rest] = backend.encode("🦊", add_special_tokens=False).ids
    state = answer("gemma", STREAM)
    assert state.feed(response([first])) == []
    probs = np.array([[[-1.0]]], np.float32)
    [sent] = state.feed(response([rest[0]], output_log_probs=probs))
    assert sent["text_output"].tolist() == [b""]
    assert sent["output_log_probs"].tolist() == [[[-1.0]]]
    assert texts(state.feed(response(rest[1:])) + state.finish()) == [["🦊"]]


def test_an_answer_without_any_token_is_one_empty_text() -> None:
    """A client that waits for a response gets one."""
    for request in (WHOLE, STREAM):
        assert texts(answer("gemma", request).finish()) == [[""]]


def test_accumulated_pieces_are_the_text_so_far() -> None:
    """With accumulate_tokens the last piece is the answer."""
    backend = text_samples.ALL["llama2"]()
    ids = backend.encode("the fox and 🦊").ids
    pieces = streamed("llama2", STREAM, [[token_id] for token_id in ids], accumulate=True)
    assert pieces[-1] == backend.decode(ids)
    assert all(later.startswith(earlier) for earlier, later in itertools.pairwise(pieces))


def test_beams_and_candidates_have_texts_of_their_own() -> None:
    """Beams share a response, candidates come under their index, each to its own end."""
    backend = text_samples.ALL["gemma"]()
    the, fox = (backend.encode(word, add_special_tokens=False).ids for word in ("the", "fox"))
    request = replace(STREAM, num_responses=2, num_sequences=4)
    state = answer("gemma", request)
    sent: list[Tensors] = []
    for index, beams in ((0, (the, fox)), (1, (fox, the)), (0, (fox, [])), (1, ([], the))):
        sent += state.feed(response(*beams, sequence_index=np.array([[index]], np.int32)))
    found = [
        (one["sequence_index"].item(), text) for one, text in zip(sent, texts(sent), strict=True)
    ]
    assert found == [(0, ["the", "fox"]), (1, ["fox", "the"]), (0, ["fox", ""]), (1, ["", "the"])]
    assert not state.stopped


def test_all_sequences_have_to_meet_a_stop_word() -> None:
    """One that goes on needs its tokens."""
    backend = text_samples.ALL["gemma"]()
    the, fox = (backend.encode(word, add_special_tokens=False).ids for word in ("the", "fox"))
    state = answer("gemma", replace(STREAM, num_sequences=2, stop_words=("fox",)))
    state.feed(response(fox, the))
    assert not state.stopped
    state.feed(response([], fox))
    assert state.stopped


def test_the_tensors_of_the_steps_become_those_of_the_answer() -> None:
    """Followed inside but not streamed: log probs are joined, counts are the last."""
    state = answer("gemma", replace(WHOLE, streaming=True, stop_words=("x",)), batch_index=2)
    for step, prob in enumerate([-1.0, -2.0]):
        others = {
            "output_log_probs": np.array([[[prob]]], np.float32),
            "num_output_tokens": np.array([[step + 1]], np.int32),
        }
        assert state.feed(response([300], **others)) == []
    [sent] = state.finish()
    assert sent["output_log_probs"].tolist() == [[[-1.0, -2.0]]]
    assert sent["num_output_tokens"].tolist() == [[2]]
    assert sent["batch_index"].tolist() == [[2]]
    assert "output_ids" not in sent
