"""The model `ensemble` on the real server: exact texts, streams within their limit, stopping.

postprocessing runs in two instances here, as the Phi-3 guide fills it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import httpx
import numpy as np
import pytest

from cog_triton.text.tokenizer import Tokenizer
from tests.text_model_server import GrpcStream, TextServer, text_arrays, text_server

STORY = "Once upon a time there was a"
FOXES = "🦊🌍🦊🌍🦊🌍🦊🌍🦊🌍"
REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
FREED_WITHIN_S = 2.0


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TextServer]:
    with text_server(tmp_path_factory.mktemp("ensemble"), num_postprocessing=2) as started:
        yield started


@pytest.fixture(scope="module")
def tokenizer(server: TextServer) -> Tokenizer:
    return Tokenizer.load(server.model.path)


def slot_ids(server: TextServer, prompt_ids: list[int], num_tokens: int) -> list[int]:
    """What tensorrt_llm alone answers to token ids, the prompt included."""
    content = server.generate(
        "tensorrt_llm",
        {
            "input_ids": prompt_ids,
            "input_lengths": len(prompt_ids),
            "request_output_len": num_tokens,
            "end_id": server.model.end_ids[0],
        },
    ).json()
    ids: list[int] = content["output_ids"]
    return ids


@pytest.mark.parametrize("prompt", [STORY, FOXES, "안녕하세요, ", "   def f(x):\n"])
def test_a_text_that_is_not_streamed_is_exact(
    server: TextServer, tokenizer: Tokenizer, prompt: str
) -> None:
    """It is what the tokenizer decodes from the engine's ids, with the prompt and without."""
    prompt_ids = tokenizer.encode(prompt, add_special_tokens=True)
    ids = slot_ids(server, prompt_ids, 16)
    body = {"text_input": prompt, "max_tokens": 16, "end_id": server.model.end_ids[0]}
    assert server.text("ensemble", body) == tokenizer.decode(ids)
    alone = server.text("ensemble", {**body, "exclude_input_in_output": True})
    assert alone == tokenizer.decode(ids[len(prompt_ids) :])


async def test_a_stream_keeps_every_space(server: TextServer) -> None:
    """Where no character is cut, the pieces joined are the whole text."""
    body = {"text_input": STORY, "max_tokens": 40, "exclude_input_in_output": True}
    assert "".join(await server.pieces("ensemble", body)) == server.text("ensemble", body)


async def test_a_cut_character_of_a_stream_is_one_replacement_character(
    server: TextServer,
) -> None:
    """That is the limit of a step that knows no other: every other character is in its place."""
    body = {"text_input": FOXES, "max_tokens": 24, "exclude_input_in_output": True}
    whole = server.text("ensemble", body)
    joined = "".join(await server.pieces("ensemble", body))
    assert REPLACEMENT not in whole.rstrip(REPLACEMENT)
    assert REPLACEMENT in joined
    assert len(joined) == len(whole)
    assert all(ours in (theirs, REPLACEMENT) for ours, theirs in zip(joined, whole, strict=True))


async def test_pieces_of_many_streams_come_in_order(server: TextServer) -> None:
    """Also with several instances of postprocessing: the count of tokens only grows."""

    async def counts(seed: int) -> list[int]:
        body = {
            **{"text_input": STORY, "max_tokens": 40, "min_tokens": 40, "stream": True},
            **{"top_k": 20, "seed": seed, "return_num_output_tokens": True},
        }
        return [event["num_output_tokens"] async for event in server.events("ensemble", body)]

    for found in await asyncio.gather(*map(counts, range(8))):
        assert found == sorted(found)
        assert found[-1] == 40


def test_stop_words_and_bad_words_reach_the_engine(server: TextServer) -> None:
    """A stop word ends the text and stays in it; a bad word does not come."""
    body = {"text_input": STORY, "max_tokens": 30, "exclude_input_in_output": True}
    free = server.text("ensemble", body)
    word = free.split()[3]
    assert (
        server.text("ensemble", {**body, "stop_words": [word]})
        == free[: free.index(word) + len(word)]
    )
    assert word not in server.text("ensemble", {**body, "bad_words": [word]})


def test_over_grpc_the_last_piece_carries_the_final_flag(server: TextServer) -> None:
    """Streamed or not; texts have the shape [beams]."""
    with GrpcStream(server) as stream:
        for streamed, count in ((True, 6), (False, 1)):
            arrays = text_arrays(STORY, max_tokens=6, min_tokens=6, stream=streamed)
            responses = stream.answer("ensemble", arrays)
            assert [one.final for one in responses] == [False] * (count - 1) + [True]
            for one in responses:
                assert one.tensors["text_output"].shape == (1,)


def test_an_older_name_as_a_tensor_is_refused_by_triton(server: TextServer) -> None:
    """The 1.1 template has no such input, and Triton takes no others."""
    with GrpcStream(server) as stream:
        [response] = stream.answer("ensemble", text_arrays(STORY, max_tokens=6, min_length=3))
    assert "unexpected inference input 'min_length'" in response.error


async def test_a_stop_request_with_the_same_id_ends_an_ensemble(server: TextServer) -> None:
    """Its id goes on to tensorrt_llm; closing the connection does not, Triton sees to that."""
    arrays = text_arrays(STORY, max_tokens=900, min_tokens=900, stream=True)
    with GrpcStream(server) as stream:
        stream.send("ensemble", arrays, "to-be-stopped")
        stream.receive()
        await server.wait_for_active(1, FREED_WITHIN_S)
        one = np.ones((1, 1), np.int32)
        stop = {
            **{"input_ids": one, "input_lengths": one * 0, "request_output_len": one * 0},
            "stop": np.array([[True]]),
        }
        stream.send("tensorrt_llm", stop, "to-be-stopped")
        await server.wait_for_active(0, FREED_WITHIN_S)


def test_preprocessing_and_postprocessing_answer_on_their_own(
    server: TextServer, tokenizer: Tokenizer
) -> None:
    """Text to ids and back, over HTTP, as clients that chain the models by hand do it."""
    ids = tokenizer.encode(STORY, add_special_tokens=True)
    prepared = server.generate(
        "preprocessing", {"QUERY": STORY, "REQUEST_OUTPUT_LEN": 5, "STOP_WORDS_DICT": ["a", ""]}
    )
    assert prepared.status_code == httpx.codes.OK, prepared.text
    content = prepared.json()
    assert content["INPUT_ID"] == ids
    assert content["REQUEST_INPUT_LEN"] == len(ids)
    assert (content["OUT_END_ID"], content["OUT_PAD_ID"]) == (2, 2)
    text = server.generate("postprocessing", {"TOKENS_BATCH": ids, "SEQUENCE_LENGTH": len(ids)})
    assert text.json()["OUTPUT"] == STORY
    refused = server.generate("postprocessing", {"TOKENS_BATCH": ids, "SEQUENCE_LENGTH": 99})
    assert "E1000 UserError: SEQUENCE_LENGTH" in refused.json()["error"]
