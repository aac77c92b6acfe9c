"""What load can go to: Cog's predictions, and the models behind Triton's generate endpoint.

Request and answer forms: Cog's HTTP API (docs/http.md of Cog), Triton's generate extension
(docs/protocol/extension_generate.md of Triton Server), tensors of TensorRT-LLM 1.1's models.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Protocol

from benchmarks.load.events import BadAnswer, Event
from cog_triton.generate_request import GenerateRequest, Sampling

TRITON_MODELS = ("tensorrt_llm", "ensemble", "tensorrt_llm_bls")
TEMPERATURE = 0.7
TOP_P = 0.95


@dataclass(frozen=True)
class Prompt:
    """A prompt as ids and as text; both have as many tokens."""

    ids: Sequence[int]
    text: str


@dataclass(frozen=True)
class Ask:
    """What is asked of the server with each prompt."""

    max_tokens: int
    stream: bool = True
    early_end: bool = False

    @property
    def min_tokens(self) -> int:
        return 0 if self.early_end else self.max_tokens


@dataclass(frozen=True)
class Tokens:
    """The answer: its number of tokens, and when pieces of it came (none without a stream)."""

    num_tokens: int
    arrivals: Sequence[float]


class Target(Protocol):
    """A server's form of requests and answers; `read` raises BadAnswer for a failed one."""

    name: str
    health_path: str

    def path(self, ask: Ask) -> str: ...

    def accept(self, ask: Ask) -> str: ...

    def body(self, prompt: Prompt, ask: Ask, seed: int) -> dict[str, Any]: ...

    def read(self, events: Sequence[Event], ask: Ask) -> Tokens: ...


class Cog:
    """`POST /predictions`, with server-sent events or as one JSON answer."""

    name = "cog"
    health_path = "/health-check"

    def path(self, ask: Ask) -> str:
        del ask
        return "/predictions"

    def accept(self, ask: Ask) -> str:
        return "text/event-stream" if ask.stream else "application/json"

    def body(self, prompt: Prompt, ask: Ask, seed: int) -> dict[str, Any]:
        """The prompt goes as it is, without a chat template: its length is then what was asked."""
        inputs = {
            "prompt": prompt.text,
            "prompt_template": "{prompt}",
            "max_tokens": ask.max_tokens,
            "min_tokens": ask.min_tokens,
            "temperature": TEMPERATURE,
            "top_p": TOP_P,
            "seed": seed,
        }
        return {"input": inputs}

    def read(self, events: Sequence[Event], ask: Ask) -> Tokens:
        """The last event is the whole prediction, whose metrics hold the count of tokens."""
        last = events[-1].content if events else {}
        if last.get("status") != "succeeded":
            raise BadAnswer(f"the prediction ended as {last.get('status', 'nothing')}")
        num_tokens = last.get("metrics", {}).get("output_token_count")
        if not isinstance(num_tokens, int):
            raise BadAnswer("the prediction has no metric output_token_count")
        pieces = [event.at for event in events if "chunk" in event.content]
        return Tokens(num_tokens, pieces if ask.stream else [])


class TritonIds:
    """The model tensorrt_llm: token ids in, token ids out."""

    name = "tensorrt_llm"
    health_path = "/v2/health/ready"

    def __init__(self, end_ids: Sequence[int], pad_id: int) -> None:
        self._end_ids = end_ids
        self._pad_id = pad_id

    def path(self, ask: Ask) -> str:
        return _triton_path(self.name, ask)

    def accept(self, ask: Ask) -> str:
        del ask
        return "*/*"

    def body(self, prompt: Prompt, ask: Ask, seed: int) -> dict[str, Any]:
        request = GenerateRequest(
            input_ids=prompt.ids,
            max_tokens=ask.max_tokens,
            end_ids=self._end_ids,
            pad_id=self._pad_id,
            min_tokens=ask.min_tokens,
            sampling=Sampling(temperature=TEMPERATURE, top_p=TOP_P, seed=seed),
        )
        whole = {"streaming": ask.stream, "exclude_input_in_output": True}
        return {**request.payload(), **whole}

    def read(self, events: Sequence[Event], ask: Ask) -> Tokens:
        ids = [_ids(event) for event in events]
        arrivals = [event.at for event, new in zip(events, ids, strict=True) if new]
        return Tokens(sum(map(len, ids)), arrivals if ask.stream else [])


class TritonText:
    """The models ensemble and tensorrt_llm_bls: text in, text out."""

    health_path = "/v2/health/ready"

    def __init__(self, name: str) -> None:
        self.name = name

    def path(self, ask: Ask) -> str:
        return _triton_path(self.name, ask)

    def accept(self, ask: Ask) -> str:
        del ask
        return "*/*"

    def body(self, prompt: Prompt, ask: Ask, seed: int) -> dict[str, Any]:
        return {
            "text_input": prompt.text,
            "max_tokens": ask.max_tokens,
            "min_tokens": ask.min_tokens,
            "bad_words": "",
            "stop_words": "",
            "temperature": TEMPERATURE,
            "top_p": TOP_P,
            "seed": seed,
            "stream": ask.stream,
            "exclude_input_in_output": True,
            "return_num_output_tokens": True,
        }

    def read(self, events: Sequence[Event], ask: Ask) -> Tokens:
        counts = [event.content.get("num_output_tokens") for event in events]
        if not counts or not all(isinstance(count, int) for count in counts):
            raise BadAnswer("an event has no num_output_tokens")
        num_tokens = total(counts)
        # A piece without text can still stand for a token: half of a character.
        return Tokens(num_tokens, [event.at for event in events] if ask.stream else [])


def total(counts: Sequence[Any]) -> int:
    """Tokens of an answer whose events are counted.

    The Python runtimes count all tokens so far, the C++ backend those of each response: only the
    former rises with every event. An event that ends a stream and brings nothing repeats a count.
    """
    steps = [later - earlier for earlier, later in pairwise(counts)]
    if len(steps) > 1 and steps[-1] == 0:
        steps.pop()
    return int(counts[-1] if all(step > 0 for step in steps) else sum(counts))


def triton(model: str, end_ids: Sequence[int], pad_id: int) -> Target:
    """The target for one of TRITON_MODELS."""
    return TritonIds(end_ids, pad_id) if model == "tensorrt_llm" else TritonText(model)


def _triton_path(model: str, ask: Ask) -> str:
    return f"/v2/models/{model}/{'generate_stream' if ask.stream else 'generate'}"


def _ids(event: Event) -> list[int]:
    """Triton turns a tensor of one element into a number, and of none into an empty list."""
    ids = event.content.get("output_ids")
    if isinstance(ids, int):
        return [ids]
    if isinstance(ids, list) and all(isinstance(token, int) for token in ids):
        return ids
    raise BadAnswer("an event has no output_ids")
