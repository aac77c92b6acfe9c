"""A real tritonserver with all five models on the embedded model, and clients for it."""

from __future__ import annotations

import asyncio
import json
import queue
import re
import time
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import aclosing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import numpy.typing as npt
import tritonclient.grpc as grpc

from cog_triton import engine, model_repository, settings, triton_installation
from cog_triton.artifacts.model_directory import ModelDirectory
from cog_triton.model import fetch_model
from cog_triton.runtimes.config import FILE_NAME
from cog_triton.server import TritonServer
from cog_triton.settings import TritonSettings
from cog_triton.sse import SSEDecoder
from cog_triton.text_model_values import text_model_values
from tests.triton_samples import triton_settings

TEMPLATES = Path(__file__).parents[1] / "triton_model_repo"
READY_S = 120.0
# The form in which `curl -d` sends what it is given.
CURL_HEADERS = {"Content-Type": "application/x-www-form-urlencoded"}


@dataclass(frozen=True)
class TextServer:
    """A server that is ready; `triton` has its ports."""

    model: ModelDirectory
    triton: TritonSettings

    @property
    def http_url(self) -> str:
        return f"http://127.0.0.1:{self.triton.http_port}"

    @property
    def metrics_url(self) -> str:
        return f"http://127.0.0.1:{self.triton.metrics_port}/metrics"

    def generate(self, model: str, body: str | Mapping[str, Any]) -> httpx.Response:
        """One request to the generate endpoint, as curl would send it."""
        content = body if isinstance(body, str) else json.dumps(body)
        url = f"{self.http_url}/v2/models/{model}/generate"
        # verify=False: reading the certificates would take longer than the answer.
        return httpx.post(
            url, content=content.encode(), headers=CURL_HEADERS, timeout=60, verify=False
        )

    def text(self, model: str, body: Mapping[str, Any]) -> str:
        """The text of one answer that is not streamed."""
        answer = self.generate(model, body)
        assert answer.status_code == httpx.codes.OK, answer.text
        text: str = answer.json()["text_output"]
        return text

    async def events(
        self, model: str, body: Mapping[str, Any]
    ) -> AsyncGenerator[dict[str, Any], None]:
        """The events of one stream; closing the iterator closes the connection."""
        decoder = SSEDecoder()
        url = f"{self.http_url}/v2/models/{model}/generate_stream"
        async with (
            httpx.AsyncClient(verify=False, timeout=60) as http,
            http.stream("POST", url, json=body) as answer,
        ):
            async for chunk in answer.aiter_raw():
                for payload in decoder.feed(chunk):
                    event: dict[str, Any] = json.loads(payload)
                    assert "error" not in event, event
                    yield event

    async def pieces(self, model: str, body: Mapping[str, Any]) -> list[str]:
        """The texts of a whole stream."""
        found = self.events(model, {**body, "stream": True})
        return [event["text_output"] async for event in found]

    async def num_active(self) -> int:
        """Requests that run in the engine now, as its metric says."""
        async with httpx.AsyncClient(verify=False, timeout=10) as http:
            metrics = (await http.get(self.metrics_url)).text
        match = re.search(r'nv_trt_llm_request_metrics\{.*"active".*\} (\d+)', metrics)
        assert match is not None, metrics
        return int(match[1])

    async def wait_for_active(self, number: int, deadline_s: float) -> None:
        """Returns when so many requests run; fails after the deadline."""
        deadline = time.monotonic() + deadline_s
        while await self.num_active() != number:
            assert time.monotonic() < deadline, f"{await self.num_active()} requests run"
            await asyncio.sleep(0.01)

    async def close_after(self, model: str, body: Mapping[str, Any], num_events: int) -> None:
        """Read so many events of a stream, and close the connection."""
        async with aclosing(self.events(model, {**body, "stream": True})) as events:
            async for _event in events:
                num_events -= 1
                if not num_events:
                    return


@contextmanager
def text_server(
    directory: Path,
    *,
    decoupled_bls: bool = True,
    num_postprocessing: int = 1,
    max_batch_size: int = 8,
) -> Iterator[TextServer]:
    """All five models, filled as a deployment fills them; the server is killed at the end.

    KV blocks are not reused: a prompt that is half in the cache is computed in other shapes,
    and about one request in thirty then takes another token than it took the first time.
    """
    config = settings.load()
    limits = {"max_batch_size": max_batch_size, "max_seq_len": 1024, "kv_cache_bytes": 1 << 30}
    limited = config.engine.model_copy(update={**limits, "enable_kv_cache_reuse": False})
    config = config.model_copy(update={"engine": limited, "runtime": "openvino"})
    model = fetch_model(config)
    planned = engine.plan_engine(config, model)
    values = text_model_values(model.path, max_batch_size, decoupled=decoupled_bls)
    values["postprocessing"]["postprocessing_instance_count"] = num_postprocessing
    repository = model_repository.build(
        TEMPLATES,
        directory / "repository",
        {"tensorrt_llm": engine.template_values(planned), **values},
        files={f"tensorrt_llm/1/{FILE_NAME}": planned.config.to_json()},
    )
    triton = triton_settings()
    installation = triton_installation.find(None, directory)
    server = TritonServer.start(triton, installation, repository, directory / "run")
    try:
        asyncio.run(server.wait_ready(READY_S))
        yield TextServer(model, triton)
    finally:
        server.stop(0)


@dataclass(frozen=True)
class Response:
    """One response over gRPC; `error` is the text of its error."""

    tensors: Mapping[str, npt.NDArray[Any]]
    final: bool
    error: str = ""


class GrpcStream:
    """A gRPC stream as NVIDIA's clients use it; leave it to stop it."""

    def __init__(self, server: TextServer) -> None:
        self._client = grpc.InferenceServerClient(f"127.0.0.1:{server.triton.grpc_port}")
        self._answers: queue.SimpleQueue[tuple[Any, Any]] = queue.SimpleQueue()

    def __enter__(self) -> GrpcStream:
        self._client.start_stream(lambda result, error: self._answers.put((result, error)))
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        self._client.close()

    def stop(self) -> None:
        """Cancel what still runs."""
        self._client.stop_stream(cancel_requests=True)

    def send(self, model: str, arrays: Mapping[str, npt.NDArray[Any]], request_id: str) -> None:
        """Send one request that asks for the empty final response too."""
        inputs = []
        for name, array in arrays.items():
            kind = "BYTES" if array.dtype == np.object_ else grpc_type(array)
            one = grpc.InferInput(name, array.shape, kind)
            one.set_data_from_numpy(array)
            inputs.append(one)
        self._client.async_stream_infer(
            model, inputs, request_id=request_id, enable_empty_final_response=True
        )

    def receive(self, timeout_s: float = 60) -> Response:
        """The next response of any request."""
        result, error = self._answers.get(timeout=timeout_s)
        if error is not None:
            return Response({}, True, str(error))
        message = result.get_response()
        tensors = {output.name: result.as_numpy(output.name) for output in message.outputs}
        return Response(tensors, message.parameters["triton_final_response"].bool_param)

    def answer(
        self, model: str, arrays: Mapping[str, npt.NDArray[Any]], request_id: str = "1"
    ) -> list[Response]:
        """All responses to one request."""
        self.send(model, arrays, request_id)
        responses = [self.receive()]
        while not responses[-1].final:
            responses.append(self.receive())
        return responses


def grpc_type(array: npt.NDArray[Any]) -> str:
    """Triton's name of a numpy type."""
    names = {"int32": "INT32", "uint64": "UINT64", "float32": "FP32", "bool": "BOOL"}
    return names[array.dtype.name]


def text_arrays(*prompts: str, **scalars: object) -> dict[str, npt.NDArray[Any]]:
    """Inputs of the text models, each scalar for every prompt of the batch."""
    arrays: dict[str, npt.NDArray[Any]] = {
        "text_input": np.array([[prompt.encode()] for prompt in prompts], np.object_)
    }
    for name, value in scalars.items():
        dtype = {bool: np.bool_, int: np.int32, float: np.float32, str: np.object_}[type(value)]
        item = value.encode() if isinstance(value, str) else value
        arrays[name] = np.array([[item]] * len(prompts), np.uint64 if name == "seed" else dtype)
    return arrays
