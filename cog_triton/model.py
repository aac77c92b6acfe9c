"""The model of the settings, as a directory on this machine."""

from __future__ import annotations

from cog_triton.artifacts.fetch import fetch
from cog_triton.artifacts.model_directory import ModelDirectory
from cog_triton.settings import Settings


def fetch_model(config: Settings) -> ModelDirectory:
    """Fetched on the first start, found in milliseconds afterwards; see `fetch` for errors."""
    return fetch(config.model, config.models_dir, prepare_for="openvino")
