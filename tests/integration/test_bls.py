"""The model `tensorrt_llm_bls` on the real server: one text, however it is asked for."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator

import httpx
import pytest

from tests.text_model_server import GrpcStream, TextServer, text_arrays, text_server

# Random prompts with random seeds, each asked for three times; raise it to look harder.
NUM_PROMPTS = 12
STORY = "Once upon a time there was a"
FREED_WITHIN_S = 2.0
WORDS = [
    *(
        "the",
        "fox",
        "안녕하세요",
        "세계",
        "你好",
        "世界",
        "日本語",
        "🦊",
        "👩‍👩‍👧‍👦",
        "🇰🇷",
        "🎉",
        "naïve",
        "é",
    ),
    *("\n", "  ", "\t", "def f(x):", "1.", "-", "{", '"', "ก็", "नमस्ते", "<|im_start|>", "…"),
]
ENDLESS = {"text_input": STORY, "max_tokens": 900, "min_tokens": 900}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TextServer]:
    with text_server(tmp_path_factory.mktemp("bls")) as started:
        yield started


@pytest.fixture(scope="module")
def plain_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TextServer]:
    """One whose tensorrt_llm_bls is not decoupled."""
    with text_server(tmp_path_factory.mktemp("plain_bls"), decoupled_bls=False) as started:
        yield started


async def test_streams_of_random_prompts_join_to_the_whole_text(server: TextServer) -> None:
    """Any script, seed and length: stream, BLS and ensemble agree to the character."""
    chance = random.Random(4)
    for _ in range(NUM_PROMPTS):
        prompt = " ".join(chance.choices(WORDS, k=chance.randint(1, 6)))
        body = {
            **{"text_input": prompt, "max_tokens": chance.randint(1, 16)},
            **{"temperature": chance.uniform(0.5, 3.0), "top_k": chance.choice([1, 40, 1000])},
            "seed": chance.getrandbits(48),
        }
        for excluded in (True, False):
            asked = {**body, "exclude_input_in_output": excluded}
            joined = "".join(await server.pieces("tensorrt_llm_bls", asked))
            whole = server.text("tensorrt_llm_bls", asked)
            assert whole.endswith(joined), body
            assert whole == joined if excluded else len(whole) >= len(joined), body
        assert server.text("ensemble", {**body, "exclude_input_in_output": True}) == joined


async def test_characters_of_several_tokens_are_whole(server: TextServer) -> None:
    """No piece of a stream holds a part of one."""
    body = {"text_input": "🦊🌍🦊🌍🦊🌍🦊🌍🦊🌍", "max_tokens": 24}
    pieces = await server.pieces("tensorrt_llm_bls", body)
    assert any(ord(character) > 0xFFFF for character in "".join(pieces))
    assert "\N{REPLACEMENT CHARACTER}" not in "".join(pieces[:-1])


@pytest.mark.parametrize("stream", [True, False])
async def test_a_text_ends_before_a_stop_word_and_the_engine_stops(
    server: TextServer, stream: bool
) -> None:
    """Also before one that begins and ends inside tokens; the slot is free soon after."""
    body = {**ENDLESS, "exclude_input_in_output": True}
    free = server.text("tensorrt_llm_bls", {**body, "max_tokens": 24, "min_tokens": 24})
    stop = free[9:14]
    asked = {**body, "stop_words": [stop, "", "never said"]}
    if stream:
        text = "".join(await server.pieces("tensorrt_llm_bls", asked))
    else:
        text = await asyncio.to_thread(server.text, "tensorrt_llm_bls", asked)
    assert text == free[: free.index(stop)]
    await server.wait_for_active(0, FREED_WITHIN_S)


async def test_closing_the_connection_frees_the_engine(server: TextServer) -> None:
    """A client that goes away cancels the call behind its answer."""
    await server.close_after("tensorrt_llm_bls", ENDLESS, 5)
    await server.wait_for_active(0, FREED_WITHIN_S)


async def test_cancelling_over_grpc_frees_the_engine(server: TextServer) -> None:
    """stop_stream with cancel_requests, also for both prompts of a batch."""
    for prompts in ([STORY], [STORY, "The sky is"]):
        with GrpcStream(server) as stream:
            arrays = text_arrays(*prompts, max_tokens=900, min_tokens=900, stream=True)
            stream.send("tensorrt_llm_bls", arrays, "1")
            stream.receive()
            await server.wait_for_active(len(prompts), FREED_WITHIN_S)
        await server.wait_for_active(0, FREED_WITHIN_S)


async def test_more_streams_than_the_batch_run_in_one_instance(server: TextServer) -> None:
    """24 at once over a batch of 8: each is whole and gets its own text's length."""

    async def count(seed: int) -> int:
        body = {
            **{"text_input": STORY, "max_tokens": 30, "min_tokens": 30, "seed": seed, "top_k": 9},
            **{"return_num_output_tokens": True, "stream": True},
        }
        counts = [
            event["num_output_tokens"] async for event in server.events("tensorrt_llm_bls", body)
        ]
        assert counts == sorted(counts)
        return int(counts[-1])

    assert await asyncio.gather(*map(count, range(24))) == [30] * 24


@pytest.mark.parametrize("stream", [True, False])
def test_over_grpc_an_empty_response_ends_the_answer(server: TextServer, stream: bool) -> None:
    """Data without the final flag, then the flag alone; texts have the shape [beams]."""
    with GrpcStream(server) as grpc:
        arrays = text_arrays(STORY, max_tokens=6, min_tokens=6, stream=stream)
        *data, end = grpc.answer("tensorrt_llm_bls", arrays)
    assert (len(data), end.final, end.tensors) == (6 if stream else 1, True, {})
    for one in data:
        assert not one.final
        assert one.tensors["text_output"].shape == (1,)
        assert "batch_index" not in one.tensors


@pytest.mark.parametrize("stream", [True, False])
def test_a_batch_is_answered_prompt_by_prompt(server: TextServer, stream: bool) -> None:
    """Each response names its prompt in batch_index; each text is that of the prompt alone."""
    prompts = [STORY, "1, 2, 3, 4,"]
    options = {"max_tokens": 4, "exclude_input_in_output": True, "top_k": 1}
    with GrpcStream(server) as grpc:
        arrays = text_arrays(*prompts, **options, stream=stream)
        *data, end = grpc.answer("tensorrt_llm_bls", arrays)
    assert end.tensors == {}
    texts = ["", ""]
    for one in data:
        texts[one.tensors["batch_index"].item()] += one.tensors["text_output"][0].decode()
    assert texts == [
        server.text("tensorrt_llm_bls", {"text_input": prompt, **options}) for prompt in prompts
    ]


def test_an_error_of_the_engine_arrives_with_its_code(server: TextServer) -> None:
    """And the server goes on."""
    answer = server.generate(
        "tensorrt_llm_bls", {"text_input": STORY, "max_tokens": 3, "return_generation_logits": True}
    )
    assert answer.status_code == httpx.codes.BAD_REQUEST
    assert answer.json()["error"].startswith("E1105 UnsupportedInput: return_generation_logits")
    assert server.text("tensorrt_llm_bls", {"text_input": STORY, "max_tokens": 3}) != ""


def test_request_parameters_go_on_to_the_engine(server: TextServer) -> None:
    """min_p has no tensor in the contract."""
    body = {"text_input": STORY, "max_tokens": 3, "top_k": 5}
    answer = server.generate("tensorrt_llm_bls", {**body, "min_p": 1.5})
    assert "min_p is 1.5" in answer.json()["error"]
    assert server.text("tensorrt_llm_bls", {**body, "min_p": 0.2}).startswith(STORY)


async def test_a_model_that_is_not_decoupled_gives_one_response(plain_server: TextServer) -> None:
    """Whole texts as ever, stop words too; several answers are refused, and nothing breaks."""
    server = plain_server
    body = {"text_input": STORY, "max_tokens": 12, "exclude_input_in_output": True}
    whole = server.text("tensorrt_llm_bls", body)
    for refused in ({"stream": True}, {"num_return_sequences": 2}):
        answer = server.generate("tensorrt_llm_bls", {**body, **refused})
        assert "decoupled tensorrt_llm_bls" in answer.json()["error"]
    assert server.text("tensorrt_llm_bls", body) == whole == server.text("ensemble", body)
    assert server.text("tensorrt_llm_bls", {**body, "stop_words": [whole[8:11]]}) == whole[:8]
    await server.wait_for_active(0, FREED_WITHIN_S)
