"""The pytorch runtime in the real tritonserver, on the stand-in tensorrt_llm."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest

from cog_triton import inputs
from cog_triton.artifacts.model_directory import ModelDirectory
from cog_triton.cog_server import CogServer
from cog_triton.errors import ServerDied, UnsupportedInput
from cog_triton.generate_client import GenerateClient
from cog_triton.generate_request import GenerateRequest, Sampling
from cog_triton.prediction import ModelLimits, Report, TextGenerator
from cog_triton.runtimes.config import RuntimeConfig
from cog_triton.server import TritonServer
from cog_triton.settings import ClientSettings, PromptSettings
from cog_triton.text.tokenizer import Tokenizer
from tests.checkpoint_samples import END_ID, MAX_SEQ_LEN, STOP_ID, VOCAB_SIZE, write_checkpoint
from tests.slot_server import READY_S, STANDINS, TESTS, events, ids_of, records, slot_server
from tests.triton_samples import free_ports

PROMPT = [50, 60, 70]
BODY = {
    "input_ids": PROMPT,
    "input_lengths": 3,
    "request_output_len": 20,
    "streaming": True,
    "end_id": END_ID,
    "runtime_top_k": 1,
}
DEADLINE_S = 10.0


class Running(NamedTuple):
    server: TritonServer
    model: Path
    record: Path


def config_for(model: Path) -> RuntimeConfig:
    return RuntimeConfig(
        runtime="pytorch",
        weights=str(model),
        vocab_size=VOCAB_SIZE,
        max_batch_size=64,
        max_seq_len=MAX_SEQ_LEN,
        max_num_tokens=128,
        kv_cache_bytes=0,
        kv_cache_free_gpu_mem_fraction=0.85,
        llm_arguments={"trust_remote_code": True},
    )


def template_values(model: Path) -> dict[str, object]:
    return {
        "triton_backend": "python",
        "triton_max_batch_size": 64,
        "decoupled_mode": True,
        "batching_strategy": "inflight_fused_batching",
        "engine_dir": model,
    }


@pytest.fixture(scope="module")
async def slot(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Running]:
    """One server for all, started as if by mpirun: the runtime has to leave that job."""
    directory = tmp_path_factory.mktemp("pytorch")
    record = directory / "record"
    model = write_checkpoint(directory / "model", record=str(record), token_interval_s=0.002)
    job = {"OMPI_COMM_WORLD_SIZE": "2", "PMIX_RANK": "0"}
    with slot_server(directory, template_values(model), config_for(model), **job) as server:
        await server.wait_ready(READY_S)
        yield Running(server, model, record)


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


async def test_an_engine_that_does_not_start_gives_its_reason(tmp_path: Path) -> None:
    """What TensorRT-LLM said is in the error of the start."""
    model = write_checkpoint(tmp_path / "model", fail="CUDA error: no kernel image for sm_70")
    reason = pytest.raises(ServerDied, match="CUDA error: no kernel image for sm_70")
    with slot_server(tmp_path, template_values(model), config_for(model)) as server, reason:
        await server.wait_ready(READY_S)


async def test_a_tensor_that_is_not_supported_is_refused_by_name(slot: Running) -> None:
    """The error names the tensor and this runtime."""
    (event,) = await events(slot.server, {**BODY, "beam_width": 2})
    assert event["error"].startswith("E1105 UnsupportedInput: beam_width")
    assert "pytorch runtime" in event["error"]


async def test_a_bad_word_that_cannot_be_banned_is_refused(client: GenerateClient) -> None:
    """The client raises what the runtime raised."""
    with pytest.raises(UnsupportedInput, match="word of several tokens"):
        await answer(client, request(bad_words=[50, 60, 2, -1]))


async def test_the_engine_got_its_arguments(slot: Running) -> None:
    """As the deployment set them; MPI's variables were gone, or the import had failed."""
    (call,) = records(slot.record, "LLM")
    assert call["model"] == str(slot.model)
    assert (call["max_batch_size"], call["max_seq_len"]) == (64, MAX_SEQ_LEN)
    assert call["enable_chunked_prefill"] is call["trust_remote_code"] is True
    assert call["sampler_type"] == "TRTLLMSampler"
    assert call["kv_cache_config"]["free_gpu_memory_fraction"] == 0.85


async def test_an_answer_that_the_end_id_ends(client: GenerateClient) -> None:
    """All new ids in order, the end id last, though the sampler keeps that to itself."""
    assert await answer(client, request()) == [*PROMPT, *PROMPT, END_ID]


async def test_an_answer_that_its_length_ends(client: GenerateClient) -> None:
    """Exactly as many ids as were asked for."""
    assert await answer(client, request(max_tokens=4)) == [*PROMPT, 50]


async def test_a_further_end_id_ends_an_answer(client: GenerateClient) -> None:
    """It goes as a stop word of one token and stays in the answer."""
    ids = await answer(client, request(input_ids=[50, STOP_ID, 60]))
    assert ids == [50, STOP_ID]


async def test_sampling_parameters_reach_the_engine_one_by_one(
    slot: Running, client: GenerateClient
) -> None:
    """From the client's request to SamplingParams."""
    sampling = Sampling(
        temperature=0.5,
        top_k=40,
        top_p=0.875,
        min_p=0.125,
        repetition_penalty=1.5,
        presence_penalty=0.25,
        frequency_penalty=-0.25,
        seed=7,
    )
    asked = request(sampling=sampling, max_tokens=5, min_tokens=3, bad_words=[80, 1])
    assert await answer(client, asked) == [60, 70, 50, 60, 70]
    call = records(slot.record, "generate_async")[-1]
    expected = {
        "temperature": 0.5,
        "top_k": 40,
        "top_p": 0.875,
        "min_p": 0.125,
        "repetition_penalty": 1.5,
        "presence_penalty": 0.25,
        "frequency_penalty": -0.25,
        "seed": 7,
        "max_tokens": 5,
        "min_tokens": 3,
        "bad_token_ids": [80],
        "stop_token_ids": [STOP_ID],
        "end_id": END_ID,
        "pad_id": END_ID,
        "detokenize": False,
    }
    assert {name: call[name] for name in expected} == expected


async def test_log_probs_and_counts(slot: Running) -> None:
    """The tensors that a caller asks for, in the shapes of the slot."""
    asked = {"return_log_probs": True, "return_num_input_tokens": True, "request_output_len": 2}
    first, last = await events(slot.server, {**BODY, **asked})
    assert (ids_of(first), first["output_log_probs"], first["num_input_tokens"]) == ([50], -0.5, 3)
    assert (ids_of(last), last["output_log_probs"], last["cum_log_probs"]) == ([60], -1.0, -1.5)


async def test_without_streaming_all_comes_at_once(slot: Running) -> None:
    """With the prompt, unless it is left out: as the C++ backend does."""
    (event,) = await events(slot.server, {**BODY, "streaming": False})
    assert ids_of(event) == PROMPT * 3
    asked = {"streaming": False, "exclude_input_in_output": True}
    (event,) = await events(slot.server, {**BODY, **asked})
    assert ids_of(event) == PROMPT * 2


async def test_a_client_that_goes_away_aborts_its_request(
    slot: Running, client: GenerateClient
) -> None:
    """Closing the stream frees the slot in the engine."""
    before = len(records(slot.record, "abort"))
    asked = request(max_tokens=250, min_tokens=250)
    async with aclosing(client.stream(asked)) as chunks:
        async for _ids in chunks:
            break
    deadline = time.monotonic() + DEADLINE_S
    while len(records(slot.record, "abort")) == before:
        assert time.monotonic() < deadline, "the request was not aborted"
        await asyncio.sleep(0.01)


async def test_a_stop_request_ends_the_request_of_its_id(
    slot: Running, client: GenerateClient
) -> None:
    """Both end; the stopped one keeps what it had."""
    stop = {"input_ids": [1], "input_lengths": 0, "request_output_len": 0, "stop": True}
    asked = request(max_tokens=250, min_tokens=250, request_id="mine")
    ids: list[int] = []
    async with aclosing(client.stream(asked)) as chunks:
        async for new in chunks:
            if not ids:
                assert await events(slot.server, {**stop, "id": "mine"}) == []
            ids += new
    assert ids[:3] == PROMPT
    assert len(ids) < 250


async def test_many_requests_at_once(client: GenerateClient) -> None:
    """64 streams, each whole and in order."""
    prompts = [[100 + index, 200, 300] for index in range(64)]
    asked = [request(input_ids=prompt, max_tokens=30, min_tokens=30) for prompt in prompts]
    answers = await asyncio.gather(*(answer(client, one) for one in asked))
    assert answers == [prompt * 10 for prompt in prompts]


async def test_text_in_text_out(slot: Running, client: GenerateClient) -> None:
    """The whole way of a prediction behind Cog: the toy engine says the prompt twice."""
    model = ModelDirectory.read(slot.model)
    limits = ModelLimits(model.end_ids, model.pad_id, MAX_SEQ_LEN, MAX_SEQ_LEN)
    tokenizer = Tokenizer.load(slot.model)
    generator = TextGenerator(tokenizer, client, limits, PromptSettings())
    asked = inputs.check({"prompt": "The fox", "prompt_template": "{prompt}", "temperature": 0.0})
    report = Report()
    async with aclosing(generator.stream(asked, report, log=lambda _line: None)) as pieces:
        text = "".join([piece async for piece in pieces])
    assert text == "The foxThe fox"
    assert report.finish_reason == "stop"


def test_through_cog_on_a_machine_with_a_gpu(tmp_path: Path) -> None:
    """A checkpoint, an inventory with a GPU, nothing else set: the whole way answers."""
    record = tmp_path / "record"
    model = write_checkpoint(tmp_path / "model", record=str(record))
    http, grpc, metrics, port = free_ports(4)
    environment = {
        "PYTHONPATH": str(STANDINS),
        "COG_TRITON_MODEL": str(model),
        "COG_TRITON_GPU_INVENTORY": str(TESTS / "data" / "gpus" / "1xa100.json"),
        "COG_TRITON_RUN_DIR": str(tmp_path / "run"),
        "COG_TRITON_CACHE_DIR": str(tmp_path / "cache"),
        "COG_TRITON_TRITON__HTTP_PORT": str(http),
        "COG_TRITON_TRITON__GRPC_PORT": str(grpc),
        "COG_TRITON_TRITON__METRICS_PORT": str(metrics),
    }
    server = CogServer(port, concurrency=4, environment=environment)
    try:
        server.wait_ready(READY_S)
        asked = {"prompt": "The fox", "prompt_template": "{prompt}", "temperature": 0}
        answered = httpx.post(f"{server.url}/predictions", json={"input": asked}, timeout=READY_S)
    finally:
        server.stop()
    prediction = answered.json()
    assert prediction["status"] == "succeeded", prediction
    assert "".join(prediction["output"]) == "The foxThe fox"
    assert prediction["metrics"]["finish_reason"] == "stop"
    assert records(record, "LLM")[0]["model"] == str(model)
