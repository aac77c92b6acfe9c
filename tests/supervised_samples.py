"""A supervised Triton whose slot holds a stand-in engine that fails when it is told to."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from cog_triton import engine, model_repository, run_directory, triton_installation
from cog_triton.artifacts.model_directory import ModelDirectory
from cog_triton.deployment import TEMPLATES
from cog_triton.generate_request import GenerateRequest
from cog_triton.runtimes.config import FILE_NAME
from cog_triton.server import TritonServer
from cog_triton.settings import Settings
from cog_triton.supervised_client import SupervisedClient
from cog_triton.supervisor import Supervisor
from tests.conftest import environment, load

READY_S = 30.0
TOKEN_ID = 7
END_ID = 2
# A prompt of this one id has the engine do this after three tokens.
HANG, EXIT, END_EARLY = 100, 101, 102

ENGINE = """

import time

PLACE = Path({place!r})


class Sequence:
    def __init__(self, request):
        self.order = int(request.input_ids[0])
        self.num_left = request.request_output_len
        self.num_read = 0

    def read(self):
        self.num_read += 1
        early = self.order == {END_EARLY} and self.num_read == 4
        return [{TOKEN_ID}], [0.0], early or self.num_read >= self.num_left

    def beams(self):
        return []

    def cancel(self):
        self.order = 0


class Engine:
    def __init__(self):
        self.sequences = []

    def add(self, request):
        self.sequences.append(Sequence(request))
        return self.sequences[-1]

    def step(self):
        time.sleep(0.005)
        orders = [sequence.order for sequence in self.sequences if sequence.num_read == 3]
        if {HANG} in orders:
            time.sleep(1e6)
        if {EXIT} in orders:
            os._exit(1)


def open_engine(config):
    if (PLACE / "broken").exists():
        raise RuntimeError("broken on purpose")
    if (PLACE / "slow").exists():
        time.sleep(60)
    return InFlightLoop, Engine()
"""


@dataclass
class Supervised:
    """A running supervisor, a client on it and what it said."""

    config: Settings
    place: Path
    supervisor: Supervisor
    client: SupervisedClient
    said: list[str] = field(default_factory=list)
    servers: list[TritonServer] = field(default_factory=list)

    @property
    def server(self) -> TritonServer:
        """The server that was started last."""
        return self.servers[-1]

    def order(self, what: str) -> None:
        """What each start from now on does: `broken` or `slow`."""
        (self.place / what).touch()

    async def until_healthy(self, expected: bool, timeout_s: float = READY_S) -> None:
        deadline = asyncio.get_running_loop().time() + timeout_s
        while self.supervisor.healthy is not expected:
            assert asyncio.get_running_loop().time() < deadline, self.said
            await asyncio.sleep(0.005)


def request(order: int = 5, max_tokens: int = 8000) -> GenerateRequest:
    return GenerateRequest([order], max_tokens, end_ids=[END_ID], pad_id=0)


@asynccontextmanager
async def supervised(
    directory: Path, model: ModelDirectory, **variables: str
) -> AsyncIterator[Supervised]:
    """A server that is ready; `variables` are settings, `SUPERVISION__PROBE_TIMEOUT_S` and such."""
    overrides = {f"COG_TRITON_{name}": value for name, value in variables.items()}
    # The most that the model has: 40 s of tokens of the stand-in.
    config = load(
        environment(directory / "run") | {"COG_TRITON_ENGINE__MAX_SEQ_LEN": "8192"} | overrides
    )
    servers: list[TritonServer] = []

    def start() -> TritonServer:
        servers.append(start_standin(config, model, directory))
        return servers[-1]

    said: list[str] = []
    try:
        await start().wait_ready(READY_S)
        supervisor = Supervisor(servers[0], config, start=start, say=said.append)
        client = SupervisedClient(supervisor)
        try:
            yield Supervised(config, directory, supervisor, client, said, servers)
        finally:
            await supervisor.close(0)
    finally:
        for server in servers:
            server.stop(0)


def start_standin(config: Settings, model: ModelDirectory, place: Path) -> TritonServer:
    """The project's model repository with the stand-in engine in the slot."""
    run_dir = run_directory.prepare(config)
    planned = engine.plan_engine(config, model)
    source = (TEMPLATES / "tensorrt_llm/1/model.py").read_text(encoding="utf-8")
    names = {"TOKEN_ID": TOKEN_ID, "HANG": HANG, "EXIT": EXIT, "END_EARLY": END_EARLY}
    source += ENGINE.format(place=str(place), **names)
    repository = model_repository.build(
        TEMPLATES,
        run_dir / "model_repository",
        {"tensorrt_llm": engine.template_values(planned)},
        files={
            f"tensorrt_llm/1/{FILE_NAME}": planned.config.to_json(),
            "tensorrt_llm/1/model.py": source.encode(),
        },
    )
    installation = triton_installation.find(config.triton.tritonserver, run_dir)
    return TritonServer.start(config.triton, installation, repository, run_dir)
