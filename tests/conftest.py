"""What tests share: the embedded model, free ports, a real Triton and a real Cog server."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from cog_triton import deployment, engine, settings
from cog_triton.artifacts.model_directory import ModelDirectory
from cog_triton.cog_server import CogServer
from cog_triton.generate_client import GenerateClient
from cog_triton.model import fetch_model
from cog_triton.server import TritonServer
from cog_triton.settings import Settings

READY_TIMEOUT_S = 120.0
MAX_SEQ_LEN = 1024


def free_ports(num: int) -> list[int]:
    """Ports that nobody listens on now; held together, so that they differ."""
    probes = [socket.socket() for _ in range(num)]
    try:
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [int(probe.getsockname()[1]) for probe in probes]
    finally:
        for probe in probes:
            probe.close()


def environment(run_dir: Path) -> dict[str, str]:
    """Settings of a server of its own: free ports, its own run directory, a small engine."""
    http, grpc, metrics = free_ports(3)
    return {
        "COG_TRITON_CONFIG": str(Path(__file__).parent / "data" / "small.yaml"),
        "COG_TRITON_RUN_DIR": str(run_dir),
        "COG_TRITON_TRITON__HTTP_PORT": str(http),
        "COG_TRITON_TRITON__GRPC_PORT": str(grpc),
        "COG_TRITON_TRITON__METRICS_PORT": str(metrics),
    }


def load(environ: dict[str, str]) -> Settings:
    return settings.load(settings.child_environment() | environ)


@pytest.fixture(scope="session")
def model_directory() -> ModelDirectory:
    """The embedded model, fetched once into the user's cache."""
    return fetch_model(settings.load())


@dataclass(frozen=True)
class Running:
    """A server under test and what is needed to look at it."""

    config: Settings
    model: ModelDirectory

    @property
    def triton_url(self) -> str:
        return f"http://127.0.0.1:{self.config.triton.http_port}"

    async def num_active(self) -> int:
        """Requests in the engine now, from Triton's metrics."""
        url = f"http://127.0.0.1:{self.config.triton.metrics_port}/metrics"
        async with httpx.AsyncClient(trust_env=False) as http:
            lines = (await http.get(url)).text.splitlines()
        name = 'nv_trt_llm_request_metrics{model="tensorrt_llm",request_type="active"'
        return sum(int(float(line.split()[-1])) for line in lines if line.startswith(name))


@dataclass(frozen=True)
class RunningTriton(Running):
    server: TritonServer
    client: GenerateClient


@dataclass(frozen=True)
class RunningCog(Running):
    server: CogServer

    @property
    def url(self) -> str:
        return self.server.url


@pytest.fixture(scope="session")
async def triton(
    model_directory: ModelDirectory, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[RunningTriton]:
    """The real tritonserver with the openvino runtime on the embedded model."""
    config = load(environment(tmp_path_factory.mktemp("triton")))
    server = deployment.start_server(config, engine.plan_engine(config, model_directory))
    try:
        await server.wait_ready(READY_TIMEOUT_S)
        client = GenerateClient(server.http_url, config.client)
        yield RunningTriton(config, model_directory, server, client)
        await client.aclose()
    finally:
        server.stop(0)


@pytest.fixture(scope="session")
def cog(
    model_directory: ModelDirectory, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningCog]:
    """The real Cog server on predict.py, with Triton behind it."""
    environ = environment(tmp_path_factory.mktemp("cog"))
    server = CogServer(free_ports(1)[0], concurrency=24, environment=environ)
    try:
        server.wait_ready(READY_TIMEOUT_S)
        yield RunningCog(load(environ), model_directory, server)
    finally:
        server.stop()
