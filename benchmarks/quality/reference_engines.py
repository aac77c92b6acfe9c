"""What can make a reference: Hugging Face transformers, or the openvino engine in this process.

transformers is the independent one: its own code, weights dequantised to 32 bits. It is optional
(`requirements-reference.txt`) and imported when it is asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import version
from typing import Any

import numpy as np

from benchmarks.cannot_run import CannotRun
from benchmarks.quality.answers import Model

Generate = Callable[[list[int], int], list[int]]
"""(prompt ids, max_tokens) to the ids of the greedy answer."""


def with_transformers(model: Model) -> tuple[str, Generate]:
    """(name and version, generate); raises CannotRun if it is not installed or cannot load."""
    try:
        import torch
        from transformers import AutoModelForCausalLM
    except ImportError as err:
        raise CannotRun(f"pip install -r requirements-reference.txt is needed ({err}).") from err
    directory = model.directory
    gguf = sorted(directory.path.glob("*.gguf"))
    source: dict[str, Any] = {"gguf_file": gguf[0].name} if gguf else {}
    try:
        network = AutoModelForCausalLM.from_pretrained(
            directory.path, dtype=torch.float32, local_files_only=True, **source
        ).eval()
    except (OSError, ValueError, ImportError) as err:
        raise CannotRun(f"transformers cannot load {directory.path}: {err}") from err

    def generate(prompt_ids: list[int], max_tokens: int) -> list[int]:
        prompt = torch.tensor([prompt_ids])
        ids = network.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            max_new_tokens=max_tokens,
            do_sample=False,
            eos_token_id=list(directory.end_ids),
            pad_token_id=directory.pad_id,
        )
        return [int(token) for token in ids[0, len(prompt_ids) :]]

    return f"transformers {version('transformers')}, float32", generate


def with_openvino(model: Model) -> tuple[str, Generate]:
    """(name and version, generate): the engine that stands in the slot, without any server."""
    from cog_triton import engine, settings
    from cog_triton.runtimes.openvino import OpenVinoEngine
    from cog_triton.runtimes.slot_request import SlotRequest

    planned = engine.plan_engine(settings.load(), model.directory)
    pipeline = OpenVinoEngine(planned.config)

    def generate(prompt_ids: list[int], max_tokens: int) -> list[int]:
        request = SlotRequest(
            request_id="",
            input_ids=np.array(prompt_ids, np.int64),
            request_output_len=max_tokens,
            end_id=model.directory.end_ids[0],
            stop_words=tuple((id_,) for id_ in model.directory.end_ids[1:]),
            top_k=1,
        )
        sequence = pipeline.add(request)
        ids: list[int] = []
        finished = False
        while not finished:
            pipeline.step()
            new, _log_probs, finished = sequence.read()
            ids += new
        return ids

    return f"openvino-genai {version('openvino-genai')}", generate


ENGINES = {"openvino": with_openvino, "transformers": with_transformers}
