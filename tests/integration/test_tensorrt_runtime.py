"""The tensorrt runtime's config in the real tritonserver, on a stand-in for its C++ backend."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from cog_triton import inputs
from cog_triton.artifacts.model_directory import ModelDirectory
from cog_triton.errors import ServerDied
from cog_triton.generate_client import GenerateClient
from cog_triton.generate_request import GenerateRequest, Sampling
from cog_triton.prediction import ModelLimits, Report, TextGenerator
from cog_triton.server import TritonServer
from cog_triton.settings import ClientSettings, PromptSettings
from cog_triton.tensorrt_config import TensorRTConfig, template_values
from cog_triton.text.tokenizer import Tokenizer
from tests.checkpoint_samples import END_ID, MAX_SEQ_LEN, STOP_ID, write_engine
from tests.slot_server import READY_S, events, ids_of, slot_server

PROMPT = [50, 60, 70]
BODY = {
    "input_ids": PROMPT,
    "input_lengths": 3,
    "request_output_len": 20,
    "streaming": True,
    "end_id": END_ID,
    "runtime_top_k": 1,
}


class Running(NamedTuple):
    server: TritonServer
    engine: Path


@pytest.fixture(scope="module")
async def slot(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Running]:
    """One server on the config that a deployment with a few settings of its own gets."""
    directory = tmp_path_factory.mktemp("tensorrt")
    engine = write_engine(directory / "engine", max_batch_size=64)
    settings = {
        "batch_scheduler_policy": "max_utilization",
        "enable_chunked_context": True,
        "kv_cache_host_memory_bytes": 1 << 30,
        "max_attention_window_size": "1024,2048",
    }
    values = template_values(TensorRTConfig(engine, max_batch_size=64), settings)
    with slot_server(directory, values) as server:
        await server.wait_ready(READY_S)
        yield Running(server, engine)


@pytest.fixture
async def client(slot: Running) -> AsyncIterator[GenerateClient]:
    client = GenerateClient(slot.server.http_url, ClientSettings())
    yield client
    await client.aclose()


def request(**changes: Any) -> GenerateRequest:
    values: dict[str, Any] = {
        "input_ids": PROMPT,
        "max_tokens": 20,
        "end_ids": (END_ID, STOP_ID),
        "pad_id": END_ID,
        "sampling": Sampling(temperature=0.0),
        **changes,
    }
    return GenerateRequest(**values)


async def answer(client: GenerateClient, asked: GenerateRequest) -> list[int]:
    async with aclosing(client.stream(asked)) as chunks:
        return [token async for ids in chunks for token in ids]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"engine_dir": "/no/such/engine"}, "model paths are empty"),
        ({"decoupled_mode": False}, "streaming needs a decoupled model"),
    ],
)
async def test_a_config_that_the_backend_refuses(
    tmp_path: Path, change: dict[str, object], message: str
) -> None:
    """The stand-in can fail: it is the config that made it start."""
    values = template_values(TensorRTConfig(write_engine(tmp_path / "engine"), max_batch_size=4))
    filled = {**values, **change}
    with slot_server(tmp_path, filled) as server, pytest.raises(ServerDied, match=message):
        await server.wait_ready(READY_S)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"temperature": "hot"}, "non-number"),
        ({"temperature": [0.5, 0.6]}, "batch size"),
        ({"request_output_len": None}, "request_output_len"),
        ({"stop_words_list": [1, 2, 3]}, "stop_words_list"),
    ],
)
async def test_tensors_outside_the_contract_are_refused(
    slot: Running, change: dict[str, Any], message: str
) -> None:
    """Types, shapes and what is required are enforced, by Triton or by the stand-in."""
    body = {name: value for name, value in {**BODY, **change}.items() if value is not None}
    (event,) = await events(slot.server, body)
    assert message in event["error"]


async def test_responses_are_those_of_the_cpp_backend(slot: Running) -> None:
    """New ids only, counted by response, and an empty last one for the end id."""
    got = await events(slot.server, {**BODY, "return_num_output_tokens": True})
    assert [ids_of(event) for event in got] == [[token] for token in PROMPT * 2] + [[]]
    assert [event["num_output_tokens"] for event in got] == [1] * 6 + [0]


async def test_the_prompt_is_left_out_by_default(slot: Running) -> None:
    """The config says so for requests that are not streamed."""
    (event,) = await events(slot.server, {**BODY, "streaming": False})
    assert ids_of(event) == PROMPT * 2


async def test_an_answer_that_the_end_id_ends(client: GenerateClient) -> None:
    """The client reads the empty last response as the end id, and the answer is whole."""
    assert await answer(client, request()) == [*PROMPT, *PROMPT, END_ID]


async def test_an_answer_that_its_length_ends(client: GenerateClient) -> None:
    """Exactly as many ids as were asked for."""
    assert await answer(client, request(max_tokens=4)) == [*PROMPT, 50]


async def test_further_ends_and_bad_words(client: GenerateClient) -> None:
    """The two word lists arrive in the layout of the contract."""
    assert await answer(client, request(input_ids=[50, STOP_ID, 60])) == [50, STOP_ID]
    assert await answer(client, request(max_tokens=3, bad_words=[60, 1])) == [50, 61, 70]


async def test_every_sampling_tensor_is_taken(client: GenerateClient) -> None:
    """Each of the client's tensors has the type and shape of the contract; the seed acts."""
    sampling = Sampling(
        temperature=0.5,
        top_k=40,
        top_p=0.875,
        repetition_penalty=1.5,
        presence_penalty=0.25,
        frequency_penalty=-0.25,
        length_penalty=1.0,
        seed=7,
    )
    asked = request(sampling=sampling, max_tokens=5, min_tokens=3, request_id="mine")
    assert await answer(client, asked) == [60, 70, 50, 60, 70]


async def test_many_requests_at_once(client: GenerateClient) -> None:
    """32 streams of ragged lengths, each whole and in order."""
    prompts = [[100 + index, 200, 300][: 1 + index % 3] for index in range(32)]
    asked = [request(input_ids=prompt, max_tokens=12, min_tokens=12) for prompt in prompts]
    answers = await asyncio.gather(*(answer(client, one) for one in asked))
    assert answers == [(prompt * 12)[:12] for prompt in prompts]


async def test_text_in_text_out(slot: Running, client: GenerateClient) -> None:
    """The whole way of a prediction behind Cog: the toy engine says the prompt twice."""
    model = ModelDirectory.read(slot.engine)
    limits = ModelLimits(model.end_ids, model.pad_id, MAX_SEQ_LEN, MAX_SEQ_LEN)
    tokenizer = Tokenizer.load(slot.engine)
    generator = TextGenerator(tokenizer, client, limits, PromptSettings())
    asked = inputs.check({"prompt": "The fox", "prompt_template": "{prompt}", "temperature": 0.0})
    report = Report()
    async with aclosing(generator.stream(asked, report, log=lambda _line: None)) as pieces:
        text = "".join([piece async for piece in pieces])
    assert text == "The foxThe fox"
    assert report.finish_reason == "stop"
