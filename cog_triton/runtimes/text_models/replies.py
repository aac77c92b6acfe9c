"""Answers of the text models through Triton's Python backend."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy.typing as npt

from cog_triton.errors import CogTritonError, TritonUnknownError


def inputs(request: Any) -> dict[str, npt.NDArray[Any]]:
    """The input tensors of a request by name, batch dimension included."""
    return {tensor.name(): tensor.as_numpy() for tensor in request.inputs()}


def response(backend: Any, tensors: Mapping[str, npt.NDArray[Any]]) -> Any:
    """A response of these tensors."""
    return backend.InferenceResponse(
        [backend.Tensor(name, array) for name, array in tensors.items()]
    )


def failure(backend: Any, error: Exception) -> Any:
    """A response with an error whose text starts with its code."""
    known = error if isinstance(error, CogTritonError) else TritonUnknownError(str(error))
    return text_failure(backend, f"{known.code} {type(known).__name__}: {known.detail}")


def text_failure(backend: Any, text: str) -> Any:
    """A response with an error of this text."""
    return backend.InferenceResponse(output_tensors=[], error=backend.TritonError(text))
