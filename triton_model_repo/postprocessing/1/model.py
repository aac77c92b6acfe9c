"""The Triton model `postprocessing`: token ids in, text out."""

from __future__ import annotations

import os
import sys
from typing import Any

import triton_python_backend_utils as pb_utils

# The interpreter inside Triton's stub is an isolated one: it ignores PYTHONPATH by itself.
sys.path[:0] = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]

from cog_triton.errors import CogTritonError
from cog_triton.runtimes import parent_watchdog
from cog_triton.runtimes.text_models import postprocess, replies
from cog_triton.runtimes.text_models.parameters import Parameters
from cog_triton.runtimes.text_models.step_text import StepDecoder


class TritonPythonModel:
    """What Triton's Python backend calls."""

    def initialize(self, args: dict[str, str]) -> None:
        parent_watchdog.watch()
        parameters = Parameters.of_model(args["model_config"])
        skip = parameters.flag("skip_special_tokens", True)
        self._decoder = StepDecoder.load(
            parameters.directory("tokenizer_dir"), skip_special_tokens=skip
        )

    def execute(self, requests: list[Any]) -> list[Any]:
        return [self._answer(request) for request in requests]

    def _answer(self, request: Any) -> Any:
        arrays = replies.inputs(request)
        try:
            output = postprocess.texts(
                self._decoder, arrays["TOKENS_BATCH"], arrays["SEQUENCE_LENGTH"]
            )
        except CogTritonError as err:
            return replies.failure(pb_utils, err)
        return replies.response(pb_utils, {"OUTPUT": output})
