"""`triton.models: all`: the deployment serves the four text models around the slot too."""

from __future__ import annotations

from pathlib import Path

import httpx

from cog_triton import deployment, engine
from cog_triton.artifacts.model_directory import ModelDirectory
from tests.conftest import READY_TIMEOUT_S, environment, load


async def test_text_goes_in_and_out(model_directory: ModelDirectory, tmp_path: Path) -> None:
    """The ensemble and BLS answer the guides' request with the same text."""
    config = load(environment(tmp_path) | {"COG_TRITON_TRITON__MODELS": "all"})
    server = deployment.start_server(config, engine.plan_engine(config, model_directory))
    try:
        await server.wait_ready(READY_TIMEOUT_S)
        body = {"text_input": "What is machine learning?", "max_tokens": 20, "stop_words": ""}
        async with httpx.AsyncClient(base_url=server.http_url, trust_env=False, timeout=60) as http:
            texts = [
                (await http.post(f"/v2/models/{model}/generate", json=body)).json()["text_output"]
                for model in ("ensemble", "tensorrt_llm_bls")
            ]
    finally:
        server.stop(0)
    assert texts[0] == texts[1]
    assert texts[0].startswith("What is machine learning?")
    assert len(texts[0]) > 30
