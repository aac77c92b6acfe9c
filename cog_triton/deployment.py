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

from cog_triton import cog_bridge, engine, inputs, model_repository, settings, triton_installation
from cog_triton.errors import DeploymentError
from cog_triton.generate_client import GenerateClient
from cog_triton.model import fetch_model
from cog_triton.prediction import ModelLimits, Report, TextGenerator
from cog_triton.runtimes.config import FILE_NAME
from cog_triton.server import TritonServer
from cog_triton.settings import Settings
from cog_triton.text.tokenizer import Tokenizer

TEMPLATES = Path(__file__).parent.parent / "triton_model_repo"
HEALTH_PERIOD_S = 1.0


class Deployment:
    """A running server and what predictions share; made by `start`."""

    def __init__(self, server: TritonServer, generator: TextGenerator) -> None:
        self._server = server
        self._generator = generator
        self._healthy = True
        self._watcher = asyncio.get_running_loop().create_task(self._watch())

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
        server = start_server(config, planned)
        try:
            tokenizer = await asyncio.to_thread(Tokenizer.load, model.path)
            await server.wait_ready(config.triton.start_timeout_s)
            generator = TextGenerator(
                tokenizer,
                GenerateClient(server.http_url, config.client),
                model_limits(planned),
                config.prompt,
            )
            await prove_streaming(generator)
            say(f"Ready after {time.perf_counter() - started_at:.1f} s")
        except BaseException:
            await asyncio.to_thread(server.stop, config.triton.stop_grace_s)
            raise
        return cls(server, generator)

    @property
    def healthy(self) -> bool:
        """Whether the server was alive when it was last looked at; costs nothing."""
        return self._healthy

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

    async def _watch(self) -> None:
        while True:
            self._healthy = self._server.is_running
            await asyncio.sleep(HEALTH_PERIOD_S)


def start_server(config: Settings, planned: engine.Engine) -> TritonServer:
    """Fill the model repository in the run directory and start Triton on it."""
    run_dir = config.resolved_run_dir
    installation = triton_installation.find(config.triton.tritonserver, run_dir)
    repository = model_repository.build(
        TEMPLATES,
        run_dir / "model_repository",
        {"tensorrt_llm": engine.template_values(planned)},
        files={f"tensorrt_llm/1/{FILE_NAME}": planned.config.to_json()},
    )
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
