"""The slot through NVIDIA's gRPC client: batches, and cancellation on an open connection."""

from __future__ import annotations

import queue
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as grpcclient

from tests.conftest import RunningTriton

ANSWER_WITHIN_S = 60.0
FREE_WITHIN_S = 2.0
Answers = queue.SimpleQueue[tuple[Any, Any]]


@pytest.fixture
def grpc(triton: RunningTriton) -> Iterator[Any]:
    client = grpcclient.InferenceServerClient(f"127.0.0.1:{triton.config.triton.grpc_port}")
    yield client
    client.close()


def tensors(**values: np.ndarray[Any, Any]) -> list[Any]:
    types = {"int32": "INT32", "bool": "BOOL", "uint64": "UINT64"}
    inputs = []
    for name, value in values.items():
        tensor = grpcclient.InferInput(name, list(value.shape), types[str(value.dtype)])
        tensor.set_data_from_numpy(value)
        inputs.append(tensor)
    return inputs


def column(*values: int) -> np.ndarray[Any, Any]:
    return np.array([[value] for value in values], np.int32)


async def until_active(triton: RunningTriton, expected: int) -> None:
    deadline = time.monotonic() + FREE_WITHIN_S
    while await triton.num_active() != expected:
        assert time.monotonic() < deadline


def test_a_batch_of_prompts_is_answered_prompt_by_prompt(grpc: Any) -> None:
    """One request with two prompts of different lengths: an answer each, told by batch_index."""
    answers: Answers = queue.SimpleQueue()
    grpc.start_stream(lambda result, error: answers.put((result, error)))
    prompts = np.array([[5, 6, 7], [8, 9, 0]], np.int32)
    grpc.async_stream_infer(
        "tensorrt_llm",
        tensors(
            input_ids=prompts,
            input_lengths=column(3, 2),
            request_output_len=column(6, 4),
            end_id=column(2, 2),
        ),
        enable_empty_final_response=True,
    )
    found: dict[int, np.ndarray[Any, Any]] = {}
    final = False
    while not final:
        result, error = answers.get(timeout=ANSWER_WITHIN_S)
        assert error is None
        final = result.get_response().parameters["triton_final_response"].bool_param
        if result.as_numpy("output_ids") is not None:
            found[int(result.as_numpy("batch_index")[0][0])] = result.as_numpy("output_ids")[0][0]
    grpc.stop_stream()
    assert found[0][:3].tolist() == [5, 6, 7]
    assert found[1][:2].tolist() == [8, 9]
    assert (len(found[0]), len(found[1])) == (9, 6)


async def test_cancelling_the_stream_frees_the_slot(triton: RunningTriton, grpc: Any) -> None:
    """gRPC cancellation reaches the engine."""
    answers: Answers = queue.SimpleQueue()
    grpc.start_stream(lambda result, error: answers.put((result, error)))
    grpc.async_stream_infer(
        "tensorrt_llm",
        tensors(
            input_ids=np.array([[5, 6, 7]], np.int32),
            input_lengths=column(3),
            request_output_len=column(900),
            min_tokens=column(900),
            streaming=np.array([[True]]),
        ),
    )
    answers.get(timeout=ANSWER_WITHIN_S)
    await until_active(triton, 1)
    grpc.stop_stream(cancel_requests=True)
    await until_active(triton, 0)
