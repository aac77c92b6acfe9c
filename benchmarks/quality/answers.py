"""Who can be asked for an answer: one prompt at a time, always the likeliest token.

One at a time on purpose: at default precision the text of a greedy answer depends on how many
requests the engine computes together.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import httpx

from benchmarks.cannot_run import CannotRun
from cog_triton.artifacts.model_directory import ModelDirectory
from cog_triton.generate_request import GenerateRequest, Sampling
from cog_triton.text.prompt import render_prompt
from cog_triton.text.tokenizer import Tokenizer

CONFLICT = 409
TIMEOUT_S = 600.0


@dataclass(frozen=True)
class Model:
    """What is needed to write prompts for the model and to read its ids."""

    directory: ModelDirectory
    tokenizer: Tokenizer

    @classmethod
    def load(cls, directory: ModelDirectory) -> Model:
        return cls(directory, Tokenizer.load(directory.path))

    def prompt(self, text: str) -> str:
        """The text by the model's chat template, as the Cog server writes it."""
        return self._rendered(text)[0]

    def prompt_ids(self, text: str) -> list[int]:
        rendered, add_special_tokens = self._rendered(text)
        return self.tokenizer.encode(rendered, add_special_tokens=add_special_tokens)

    def _rendered(self, text: str) -> tuple[str, bool]:
        rendered = render_prompt(self.tokenizer, text, system_prompt=None, prompt_template=None)
        return rendered.text, rendered.add_special_tokens

    def cut(self, ids: Sequence[int]) -> list[int]:
        """The ids before the first one that ends an answer."""
        ends = self.directory.end_ids
        return list(ids[: next((at for at, id_ in enumerate(ids) if id_ in ends), len(ids))])

    def text(self, ids: Sequence[int]) -> str:
        return self.tokenizer.decode(self.cut(ids))

    def ids(self, text: str) -> list[int]:
        return self.tokenizer.encode(text, add_special_tokens=False)


@dataclass(frozen=True)
class Answer:
    """An answer's text, and its ids without the end id where they are known (None from text)."""

    text: str
    ids: list[int] | None = None


Ask = Callable[[str, int], Answer]
"""(prompt, max_tokens) to the greedy answer."""


def from_cog(http: httpx.Client) -> Ask:
    """The whole way, the server's own chat template included."""

    def ask(prompt: str, max_tokens: int) -> Answer:
        inputs = {"prompt": prompt, "max_tokens": max_tokens, "temperature": 0}
        content = _post(http, "/predictions", {"input": inputs})
        if content.get("status") != "succeeded":
            raise CannotRun(f"A prediction failed: {content.get('error') or content}")
        return Answer("".join(content["output"]))

    return ask


def from_triton_ids(http: httpx.Client, model: Model) -> Ask:
    """The model tensorrt_llm."""

    def ask(prompt: str, max_tokens: int) -> Answer:
        request = GenerateRequest(
            input_ids=model.prompt_ids(prompt),
            max_tokens=max_tokens,
            end_ids=model.directory.end_ids,
            pad_id=model.directory.pad_id,
            sampling=Sampling(temperature=0.0),
        )
        body = {**request.payload(), "streaming": False, "exclude_input_in_output": True}
        found = _post(http, "/v2/models/tensorrt_llm/generate", body)["output_ids"]
        # Triton turns a tensor of one element into a number.
        ids = model.cut(found if isinstance(found, list) else [found])
        return Answer(model.text(ids), ids)

    return ask


def from_triton_text(http: httpx.Client, model: Model, name: str) -> Ask:
    """The models ensemble and tensorrt_llm_bls."""

    def ask(prompt: str, max_tokens: int) -> Answer:
        body = {
            "text_input": model.prompt(prompt),
            "max_tokens": max_tokens,
            "bad_words": "",
            "stop_words": "",
            "top_k": 1,
            "exclude_input_in_output": True,
        }
        return Answer(str(_post(http, f"/v2/models/{name}/generate", body)["text_output"]))

    return ask


def _post(http: httpx.Client, path: str, body: dict[str, Any]) -> dict[str, Any]:
    """The JSON of a good answer; a 409 of the Cog server is tried again."""
    status = CONFLICT
    try:
        while status == CONFLICT:
            answer = http.post(path, json=body, timeout=TIMEOUT_S)
            status = answer.status_code
    except httpx.TransportError as err:
        raise CannotRun(f"{http.base_url} does not answer: {err or type(err).__name__}.") from err
    if status != httpx.codes.OK:
        raise CannotRun(f"{http.base_url} answered HTTP {status}: {answer.text[:500]}")
    return dict(answer.json())
