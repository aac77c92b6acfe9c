"""The request templates for NVIDIA's AIPerf."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jinja2
import pytest

from cog_triton import inputs

TEMPLATES = Path(__file__).parents[1] / "benchmarks" / "aiperf"
CONTRACTS = Path(__file__).parent / "data" / "contracts"
TEXT = 'Say "a\\b" & <c> in two\nlines: é 日本'


def render(name: str, **values: object) -> Any:
    """As AIPerf's template endpoint does: with autoescape, then parsed as JSON."""
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined)
    template = environment.from_string((TEMPLATES / name).read_text(encoding="utf-8"))
    return json.loads(template.render(text=TEXT, **values))


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("model", ["ensemble", "tensorrt_llm_bls"])
def test_triton_request(model: str, stream: bool) -> None:
    """The prompt arrives to the character, and every other name is an input of the model."""
    body = render("triton_text.json.jinja", max_tokens=64, stream=stream)
    contract = json.loads((CONTRACTS / f"{model}_model.json").read_text(encoding="utf-8"))
    assert set(body) <= {tensor["name"] for tensor in contract["input"]}
    assert (body["text_input"], body["stream"]) == (TEXT, stream)
    assert body["max_tokens"] == body["min_tokens"] == 64


def test_cog_request() -> None:
    """The prompt arrives to the character, and the predictor takes every other input."""
    body = render("cog.json.jinja", max_tokens=64)
    checked = inputs.check(body["input"])
    assert checked.prompt == TEXT
    assert checked.prompt_template == "{prompt}"
    assert (checked.max_tokens, checked.min_tokens) == (64, 64)
