"""The `openvino` runtime in the `tensorrt_llm` slot of the real tritonserver."""

from __future__ import annotations

import asyncio
import json
import re
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import httpx
import pytest

from cog_triton.errors import PromptTooLong, UnsupportedInput, UserError
from cog_triton.generate_request import GenerateRequest, Sampling
from cog_triton.text.tokenizer import Tokenizer
from cog_triton.text.word_lists import to_word_list
from tests.conftest import RunningTriton

FREE_WITHIN_S = 2.0
CHAT = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"
Json = dict[str, Any]


@pytest.fixture(scope="module")
def tokenizer(triton: RunningTriton) -> Tokenizer:
    return Tokenizer.load(triton.model.path)


@pytest.fixture(scope="module")
def request_(triton: RunningTriton, tokenizer: Tokenizer) -> GenerateRequest:
    return GenerateRequest(
        input_ids=tokenizer.encode(CHAT.format("Tell me a story."), add_special_tokens=False),
        max_tokens=24,
        end_ids=triton.model.end_ids,
        pad_id=triton.model.pad_id,
        sampling=Sampling(temperature=1.0, seed=7),
    )


async def collect(triton: RunningTriton, request: GenerateRequest) -> list[int]:
    return [token async for ids in triton.client.stream(request) for token in ids]


async def post(triton: RunningTriton, **fields: object) -> list[Json]:
    """The events of a raw generate_stream request."""
    body: Json = {"input_ids": [5, 6, 7], "input_lengths": 3, "request_output_len": 8, **fields}
    async with httpx.AsyncClient(trust_env=False, timeout=60) as http:
        url = f"{triton.triton_url}/v2/models/tensorrt_llm/generate_stream"
        text = (await http.post(url, json=body)).text
    return [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: ")]


async def until_active(triton: RunningTriton, expected: int) -> None:
    deadline = asyncio.get_running_loop().time() + FREE_WITHIN_S
    while await triton.num_active() != expected:
        assert asyncio.get_running_loop().time() < deadline, "the engine's slot is not freed"
        await asyncio.sleep(0.02)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"beam_width": 2, "num_return_sequences": 2}, "num_return_sequences"),
        ({"return_context_logits": True}, "return_context_logits"),
        ({"return_generation_logits": True}, "return_generation_logits"),
        ({"prompt_vocab_size": 4}, "prompt_vocab_size"),
        ({"draft_input_ids": [1, 2]}, "draft_input_ids"),
        ({"lora_task_id": 1}, "lora_task_id"),
        ({"encoder_output_lengths": 3}, "encoder_output_lengths"),
    ],
)
async def test_what_cannot_be_honoured_is_refused(
    triton: RunningTriton, fields: Json, words: str
) -> None:
    """A tensor of TensorRT-LLM alone is an error that names it and the runtime."""
    (answer,) = await post(triton, **fields)
    assert answer["error"].startswith("E1105 UnsupportedInput")
    assert words in answer["error"]
    assert "not supported" in answer["error"]


async def test_errors_arrive_as_their_own_class(
    triton: RunningTriton, request_: GenerateRequest, tokenizer: Tokenizer
) -> None:
    """What the slot refuses is raised by the client with the slot's code."""
    too_long = replace(request_, max_tokens=5000)
    with pytest.raises(PromptTooLong):
        await collect(triton, too_long)
    with pytest.raises(UserError, match="input_ids"):
        await collect(triton, replace(request_, input_ids=[49_152]))
    half = next(token for token in range(500) if "\ufffd" in tokenizer.decode([token]))
    with pytest.raises(UnsupportedInput, match="no whole text"):
        await collect(triton, replace(request_, bad_words=to_word_list([[half]])))


async def test_a_seed_repeats_and_zero_is_one(
    triton: RunningTriton, request_: GenerateRequest
) -> None:
    """Equal seeds give equal tokens, 0 included; another seed gives others."""
    with_seed: dict[int, list[list[int]]] = {}
    for seed in (0, 1, 2**40):
        seeded = replace(request_, sampling=Sampling(temperature=1.0, seed=seed))
        with_seed[seed] = [await collect(triton, seeded), await collect(triton, seeded)]
    for first, second in with_seed.values():
        assert first == second
    assert len({tuple(runs[0]) for runs in with_seed.values()}) == 3


async def test_max_and_min_tokens(triton: RunningTriton, request_: GenerateRequest) -> None:
    """Exactly as many tokens as asked for, when the end is held back."""
    tokens = await collect(triton, replace(request_, max_tokens=40, min_tokens=40))
    assert len(tokens) == 40


async def test_every_end_id_ends(triton: RunningTriton, request_: GenerateRequest) -> None:
    """The main end id and the further ones (which travel as stop words) both end the answer."""
    greedy = replace(request_, sampling=Sampling(temperature=0.0), max_tokens=20, min_tokens=20)
    tokens = await collect(triton, greedy)
    ordinary = tokens[5]
    place = tokens.index(ordinary)
    for end_ids in ([ordinary], [triton.model.end_ids[0], ordinary]):
        ended = await collect(triton, replace(greedy, end_ids=end_ids, min_tokens=0))
        assert ended == tokens[: place + 1]


async def test_stop_words_of_several_tokens(
    triton: RunningTriton, request_: GenerateRequest
) -> None:
    """A stop word of several ids ends the answer and is part of it, as in TensorRT-LLM."""
    greedy = replace(request_, sampling=Sampling(temperature=0.0))
    tokens = await collect(triton, greedy)
    word = tokens[6:9]
    (answer,) = await post(
        triton,
        input_ids=list(request_.input_ids),
        input_lengths=len(request_.input_ids),
        request_output_len=24,
        exclude_input_in_output=True,
        stop_words_list=to_word_list([word]),
    )
    ids = answer["output_ids"]
    assert ids[-3:] == word
    assert len(ids) < 24


async def test_bad_words_never_occur(
    triton: RunningTriton, request_: GenerateRequest, tokenizer: Tokenizer
) -> None:
    """A banned word does not occur in the text, however it could be cut into tokens."""
    banned = ["the", " a", "e"]
    ids = [tokenizer.encode(word, add_special_tokens=False) for word in banned]
    for seed in range(3):
        sampled = replace(
            request_,
            sampling=Sampling(temperature=1.0, seed=seed),
            bad_words=to_word_list(ids),
            min_tokens=20,
        )
        text = tokenizer.decode(await collect(triton, sampled))
        assert text
        assert not any(word in text for word in banned)


async def test_sampling_parameters_reach_the_engine(
    triton: RunningTriton, request_: GenerateRequest
) -> None:
    """Each parameter changes what is sampled, or pins it whatever the seed and temperature."""
    greedy = await collect(triton, replace(request_, sampling=Sampling(temperature=0.0)))
    pinned = [
        Sampling(temperature=5.0, top_k=1, seed=3),
        Sampling(temperature=1.0, min_p=0.99, seed=3),
    ]
    for sampling in pinned:
        assert await collect(triton, replace(request_, sampling=sampling)) == greedy
    # The likeliest two tokens may be equal, and then top_p takes another one than greedy does.
    nucleus = [Sampling(temperature=5.0, top_p=0.0001, seed=seed) for seed in (3, 4)]
    runs = [await collect(triton, replace(request_, sampling=sampling)) for sampling in nucleus]
    assert runs[0] == runs[1]
    changed = [
        Sampling(temperature=0.0, repetition_penalty=5.0),
        Sampling(temperature=0.0, presence_penalty=2.0, frequency_penalty=2.0),
        Sampling(temperature=5.0, seed=3),
    ]
    for sampling in changed:
        assert await collect(triton, replace(request_, sampling=sampling)) != greedy


async def test_log_probs_and_counts(triton: RunningTriton) -> None:
    """Log probabilities come one for a token, with their sum; counts when asked for."""
    (answer,) = await post(
        triton,
        return_log_probs=True,
        return_num_input_tokens=True,
        return_num_output_tokens=True,
        exclude_input_in_output=True,
    )
    assert len(answer["output_log_probs"]) == len(answer["output_ids"]) == 8
    assert all(value < 0 for value in answer["output_log_probs"])
    assert answer["cum_log_probs"] == pytest.approx(sum(answer["output_log_probs"]), abs=1e-3)
    assert (answer["num_input_tokens"], answer["num_output_tokens"]) == (3, 8)


async def test_without_streaming_the_prompt_is_part_of_the_answer(triton: RunningTriton) -> None:
    """As on the C++ backend: one response, prompt first, unless exclude_input_in_output."""
    (whole,) = await post(triton)
    (bare,) = await post(triton, exclude_input_in_output=True)
    assert whole["output_ids"] == [5, 6, 7, *bare["output_ids"]]


async def test_requests_share_the_steps(triton: RunningTriton, request_: GenerateRequest) -> None:
    """Two long requests run at the same time, in-flight, and not one after the other."""
    long = replace(request_, max_tokens=60, min_tokens=60)
    order: list[int] = []

    async def run(name: int) -> None:
        async for _ids in triton.client.stream(long):
            order.append(name)

    await asyncio.gather(run(0), run(1))
    first_end = min(len(order) - 1 - order[::-1].index(name) for name in (0, 1))
    assert {0, 1} <= set(order[: first_end // 2])


async def test_closing_the_stream_frees_the_slot(
    triton: RunningTriton, request_: GenerateRequest
) -> None:
    """Leaving a stream cancels the request in the engine, not only in the client."""
    long = replace(request_, max_tokens=900, min_tokens=900)
    async with aclosing(triton.client.stream(long)) as chunks:
        async for _ids in chunks:
            break
        await until_active(triton, 1)
    await until_active(triton, 0)


async def test_a_cancelled_task_frees_the_slot(
    triton: RunningTriton, request_: GenerateRequest
) -> None:
    """A task that is cancelled while it waits for tokens closes its request too."""
    task = asyncio.create_task(collect(triton, replace(request_, max_tokens=900, min_tokens=900)))
    await until_active(triton, 1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await until_active(triton, 0)


async def test_a_stop_request_ends_the_running_one(triton: RunningTriton) -> None:
    """The contract's stop tensor: same id, and the running request gets its final response."""
    running = asyncio.create_task(
        post(triton, id="stop-me", request_output_len=900, min_tokens=900, streaming=True)
    )
    await until_active(triton, 1)
    await post(triton, id="stop-me", stop=True, input_lengths=0, request_output_len=0)
    assert 0 < len(await running) < 900
    await until_active(triton, 0)


async def test_beams(triton: RunningTriton) -> None:
    """All beams come in one response, padded with -1; the best one scores best."""
    (answer,) = await post(
        triton,
        beam_width=3,
        streaming=True,
        exclude_input_in_output=True,
        return_log_probs=True,
        end_id=triton.model.end_ids[0],
    )
    assert len(answer["sequence_length"]) == len(answer["cum_log_probs"]) == 3
    width = len(answer["output_ids"]) // 3
    rows = [answer["output_ids"][index * width : (index + 1) * width] for index in range(3)]
    for row, length in zip(rows, answer["sequence_length"], strict=True):
        assert all(token >= 0 for token in row[:length])
        assert set(row[length:]) <= {-1}
    assert len({tuple(row) for row in rows}) == 3
    (greedy,) = await post(triton, exclude_input_in_output=True, return_log_probs=True)
    assert max(answer["cum_log_probs"]) >= greedy["cum_log_probs"] - 0.5


async def test_more_beams_than_the_engine_has(triton: RunningTriton) -> None:
    """The error names the limit and its setting."""
    (answer,) = await post(triton, beam_width=5)
    assert "engine.max_beam_width is 4" in answer["error"]


async def test_several_answers_stream_side_by_side(triton: RunningTriton) -> None:
    """Each response tells its sequence; each sequence is whole, and they differ."""
    events = await post(
        triton, num_return_sequences=3, streaming=True, runtime_top_p=1.0, seed=5, min_tokens=8
    )
    sequences: dict[int, list[int]] = {}
    for event in events:
        ids = event["output_ids"]
        sequences.setdefault(event["sequence_index"], []).extend(
            [ids] if isinstance(ids, int) else ids
        )
    assert sorted(sequences) == [0, 1, 2]
    assert all(len(ids) == 8 for ids in sequences.values())
    assert len({tuple(ids) for ids in sequences.values()}) == 3


async def test_times(triton: RunningTriton) -> None:
    """The last response carries arrival, first scheduled, first and last token, in this order."""
    *earlier, last = await post(triton, streaming=True, return_perf_metrics=True)
    times = [
        last[f"{name}_time_ns"]
        for name in ("arrival", "first_scheduled", "first_token", "last_token")
    ]
    assert times == sorted(times)
    assert 0 < times[3] - times[0] < 60e9
    assert not any("arrival_time_ns" in event for event in earlier)


async def test_the_metrics_of_the_backends_readme(
    triton: RunningTriton, request_: GenerateRequest
) -> None:
    """Requests, KV blocks, iterations and memory are real: they move with a running request."""
    before = await metrics(triton)
    long = replace(request_, max_tokens=400, min_tokens=400)
    async with aclosing(triton.client.stream(long)) as chunks:
        num = 0
        async for ids in chunks:
            num += len(ids)
            if num >= 150:
                break
        during = await metrics(triton)
        await until_active(triton, 1)
    await until_active(triton, 0)
    after = await metrics(triton)
    kv = "nv_trt_llm_kv_cache_block_metrics"
    for moment in (before, during, after):
        assert moment[kv, "used"] + moment[kv, "free"] == moment[kv, "max"] > 1000
        assert moment[kv, "tokens_per"] == 32
    assert (before[kv, "used"], after[kv, "used"]) == (0, 0)
    assert 1 <= during[kv, "used"] <= 10
    requests = "nv_trt_llm_request_metrics"
    assert before[requests, "max"] == triton.config.engine.max_batch_size
    assert during[requests, "scheduled"] == 1
    assert during["nv_trt_llm_inflight_batcher_metrics", "generation_requests"] == 1
    general = "nv_trt_llm_general_metrics"
    iterations = [moment[general, "iteration_counter"] for moment in (before, during, after)]
    assert iterations == sorted(iterations)
    assert iterations[2] - iterations[0] >= 150
    assert after["nv_trt_llm_runtime_memory_metrics", "cpu"] > 1 << 20


async def metrics(triton: RunningTriton) -> dict[tuple[str, str], float]:
    """The backend's metrics by name and by the label that is not model or version."""
    async with httpx.AsyncClient(trust_env=False) as http:
        url = f"http://127.0.0.1:{triton.config.triton.metrics_port}/metrics"
        text = (await http.get(url)).text
    found = re.findall(r"^(nv_trt_llm_\w+)\{(.*)\} (\S+)$", text, re.MULTILINE)
    values = {}
    for name, labels, value in found:
        (kind,) = re.findall(r'(?:_type|_specific_metric)="(\w+)"', labels)
        values[name, kind] = float(value)
    return values
