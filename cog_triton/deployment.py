"""The whole way, once: from settings to a server that has proved that it streams."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Generator, Mapping
from contextlib import aclosing
from pathlib import Path
from typing import Any

from cog import current_scope

from cog_triton import (
    cog_bridge,
    engine,
    inputs,
    model_repository,
    run_directory,
    settings,
    triton_installation,
)
from cog_triton.errors import DeploymentError, ModelRepositoryError
from cog_triton.model import fetch_model
from cog_triton.prediction import ModelLimits, Report, TextGenerator
from cog_triton.runtimes.config import FILE_NAME
from cog_triton.server import TritonServer
from cog_triton.settings import Settings
from cog_triton.supervised_client import SupervisedClient
from cog_triton.supervisor import Supervisor
from cog_triton.text.tokenizer import Tokenizer
from cog_triton.text_model_values import text_model_values

TEMPLATES = Path(__file__).parent.parent / "triton_model_repo"


class Deployment:
    """A server that is kept running and what predictions share; made by `start`."""

    def __init__(self, supervisor: Supervisor, generator: TextGenerator) -> None:
        self._supervisor = supervisor
        self._generator = generator

    @classmethod
    async def start(cls, weights: str | None = None) -> Deployment:
        """Fetch the model, start Triton on it, and prove with a short answer that text streams.

        `weights` stands in for the setting `model`. Raises DeploymentError subclasses.
        """
        config = settings.load()
        if weights:
            config = config.model_copy(update={"model": weights})
        started_at = time.perf_counter()
        model = await asyncio.to_thread(fetch_model, config)
        planned = await asyncio.to_thread(engine.plan_engine, config, model)
        say(f"Starting Triton for {config.model} on the {planned.runtime.name} runtime")
        loading = asyncio.ensure_future(asyncio.to_thread(Tokenizer.load, model.path))
        supervisor = await supervised(config, planned)
        try:
            client = SupervisedClient(supervisor)
            generator = TextGenerator(await loading, client, model_limits(planned), config.prompt)
            await prove_streaming(generator)
        except BaseException:
            await supervisor.close(config.triton.stop_grace_s)
            raise
        say(f"Ready after {time.perf_counter() - started_at:.1f} s")
        return cls(supervisor, generator)

    @property
    def healthy(self) -> bool:
        """Whether the server can take predictions now; costs nothing."""
        return self._supervisor.healthy

    async def predict(self, values: Mapping[str, Any]) -> Generator[str, None, None]:
        """Start one prediction on Cog's event loop; the generator is what Cog iterates."""
        return await cog_bridge.stream(self._pieces(values, current_scope()))

    async def _pieces(self, values: Mapping[str, Any], scope: Any) -> Any:
        report = Report()
        checked = inputs.check(values)
        async with aclosing(self._generator.stream(checked, report, log=print)) as pieces:
            async for piece in pieces:
                yield piece
        for name, value in report.metrics().items():
            scope.record_metric(name, value)


async def supervised(config: Settings, planned: engine.Engine) -> Supervisor:
    """Start the server, wait until it is ready, and have it kept running from then on.

    Raises DeploymentError subclasses: what does not start the first time is not tried again.
    """
    server = await asyncio.to_thread(start_server, config, planned)
    try:
        await server.wait_ready(config.triton.start_timeout_s)
        return Supervisor(
            server, config, start=lambda: start_server(config, planned, again=True), say=say
        )
    except BaseException:
        await asyncio.to_thread(server.stop, config.triton.stop_grace_s)
        raise


def repository_values(
    config: Settings, planned: engine.Engine
) -> Mapping[str, Mapping[str, object]]:
    """Template values by model: the slot alone, or also the four text models around it."""
    values = {"tensorrt_llm": engine.template_values(planned)}
    if config.triton.models == "all":
        values |= text_model_values(planned.model.path, planned.config.max_batch_size)
    return values


def start_server(config: Settings, planned: engine.Engine, *, again: bool = False) -> TritonServer:
    """Fill the model repository in the run directory and start Triton on it.

    `again` is for a start after a failure: a repository that cannot be written now, as the disk
    is full, is then used as the start before it left it.
    """
    run_dir = run_directory.prepare(config)
    installation = triton_installation.find(config.triton.tritonserver, run_dir)
    repository = run_dir / "model_repository"
    try:
        model_repository.build(
            TEMPLATES,
            repository,
            repository_values(config, planned),
            files={f"tensorrt_llm/1/{FILE_NAME}": planned.config.to_json()},
        )
    except ModelRepositoryError as err:
        if not (again and repository.is_dir()):
            raise
        say(f"The model repository is not written anew: {err}")
    # The C++ backend runs one rank a GPU under mpirun; the LLM API starts its own processes.
    world_size = planned.world_size if planned.runtime.name == "tensorrt" else 1
    return TritonServer.start(
        config.triton, installation, repository, run_dir, world_size=world_size
    )


def model_limits(planned: engine.Engine) -> ModelLimits:
    """What predictions must know of the engine."""
    return ModelLimits(
        end_ids=planned.model.end_ids,
        pad_id=planned.model.pad_id,
        max_seq_len=planned.max_seq_len,
        max_input_len=planned.max_input_len,
        # The contract has no tensor for min_p; the C++ backend would drop it silently.
        takes_min_p=planned.runtime.name != "tensorrt",
    )


def say(line: str) -> None:
    """Progress of the setup; coglet shows it as the setup's log."""
    print(line, file=sys.stderr, flush=True)


async def prove_streaming(generator: TextGenerator) -> None:
    """A short real answer; raises DeploymentError unless it came in two pieces or more."""
    checked = inputs.check(
        {"prompt": "Count from one to five.", "max_tokens": 8, "min_tokens": 8, "temperature": 0.0}
    )
    num_pieces = 0
    async with aclosing(generator.stream(checked, Report(), log=lambda _line: None)) as pieces:
        async for _piece in pieces:
            num_pieces += 1
    if num_pieces < 2:
        raise DeploymentError(f"The warm-up answer came in {num_pieces} piece, so nothing streams.")
