"""The model of the settings, as a directory on this machine."""

from __future__ import annotations

from cog_triton.artifacts.fetch import fetch
from cog_triton.artifacts.model_directory import ModelDirectory
from cog_triton.build.engine_build import ensure_engine
from cog_triton.machine import look
from cog_triton.runtime_choice import choose_runtime
from cog_triton.settings import Settings


def fetch_model(config: Settings) -> ModelDirectory:
    """Fetched on the first start, found in milliseconds afterwards; see `fetch` for errors.

    What cannot work is refused before the download. A checkpoint that the tensorrt runtime is to
    serve becomes an engine here; see `ensure_engine` for errors.
    """
    machine = look(config)
    choose_runtime(config, machine)
    model = fetch(config.model, config.models_dir, prepare_for="openvino")
    choice = choose_runtime(config, machine, model)
    if choice is not None and choice.name == "tensorrt" and model.format == "checkpoint":
        return ensure_engine(config, model, machine)
    return model
