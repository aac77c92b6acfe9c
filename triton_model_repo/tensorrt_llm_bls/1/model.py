"""The Triton model `tensorrt_llm_bls`: text in, text out, by calls to tensorrt_llm."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import triton_python_backend_utils as pb_utils

# The interpreter inside Triton's stub is an isolated one: it ignores PYTHONPATH by itself.
sys.path[:0] = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]

from cog_triton.runtimes import parent_watchdog
from cog_triton.runtimes.text_models.bls import TextService


class TritonPythonModel:
    """What Triton's Python backend calls; answers leave from the service's own thread."""

    def initialize(self, args: dict[str, str]) -> None:
        parent_watchdog.watch()
        model_dir = Path(args["model_repository"])
        self._service = TextService.open(pb_utils, model_dir, args["model_config"])

    def execute(self, requests: list[Any]) -> None:
        for request in requests:
            self._service.accept(request)

    def finalize(self) -> None:
        self._service.close()
