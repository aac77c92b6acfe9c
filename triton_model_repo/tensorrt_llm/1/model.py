"""The Triton model `tensorrt_llm` on a Python runtime: token ids in, token ids out."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import triton_python_backend_utils as pb_utils

# The interpreter inside Triton's stub is an isolated one: it ignores PYTHONPATH by itself.
sys.path[:0] = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]

from cog_triton.errors import UserError
from cog_triton.runtimes import parent_watchdog, slot_request
from cog_triton.runtimes.config import RuntimeConfig
from cog_triton.runtimes.engine_metrics import EngineMetrics
from cog_triton.runtimes.in_flight import InFlightLoop
from cog_triton.runtimes.responses import Answers, Responder

CLOSE_TIMEOUT_S = 5.0


class TritonPythonModel:
    """What Triton's Python backend calls; the work is done by the loop's thread."""

    def initialize(self, args: dict[str, str]) -> None:
        parent_watchdog.watch()
        version_dir = Path(args["model_repository"]) / args["model_version"]
        self._config = RuntimeConfig.read(version_dir)
        self._limits = slot_request.SlotLimits(
            self._config.runtime,
            self._config.vocab_size,
            self._config.max_seq_len,
            self._config.max_beam_width,
        )
        make_loop, engine = open_engine(self._config)
        metrics = EngineMetrics(
            pb_utils, args["model_name"], args["model_version"], self._config.max_batch_size, engine
        )
        self._loop = make_loop(
            engine,
            cancellation_check_period_s=self._config.cancellation_check_period_ms / 1000,
            on_iteration=metrics.update,
            # The supervisor sees the process end; Triton itself would go on saying ready.
            on_death=lambda: os._exit(1),
        )

    def execute(self, requests: list[Any]) -> None:
        for request in requests:
            self._accept(request)

    def finalize(self) -> None:
        self._loop.close(CLOSE_TIMEOUT_S)

    def _accept(self, request: Any) -> None:
        sender = request.get_response_sender()
        arrays = {tensor.name(): tensor.as_numpy() for tensor in request.inputs()}
        request_id = request.request_id()
        try:
            if slot_request.is_stop(arrays):
                if not request_id:
                    raise UserError("a stop request needs the id of the request to stop.")
                self._loop.stop_request(request_id, Responder(pb_utils, sender))
                return
            parsed = slot_request.parse(
                request_id,
                arrays,
                request.parameters(),
                self._limits,
                arrival_time_ns=time.monotonic_ns(),
            )
        except Exception as err:  # whatever is wrong with it, the request gets an answer
            self._loop.reject(Responder(pb_utils, sender), err)
            return
        answers = Answers(len(parsed))
        for single in parsed:
            self._loop.submit(single, Responder(pb_utils, sender, single, answers))


def open_engine(config: RuntimeConfig) -> tuple[Callable[..., Any], Any]:
    """The engine of the runtime that `runtime.json` names, and the loop that runs it."""
    if config.runtime == "openvino":
        from cog_triton.runtimes.openvino import OpenVinoEngine

        return InFlightLoop, OpenVinoEngine(config)
    if config.runtime == "pytorch":
        from cog_triton.runtimes.pytorch import PyTorchEngine
        from cog_triton.runtimes.streaming_loop import StreamingLoop

        return StreamingLoop, PyTorchEngine(config, os.environ)
    raise pb_utils.TritonModelException(f"unknown runtime {config.runtime!r} in runtime.json")
