"""A request to the slot as Triton's generate endpoint takes it: flat JSON, contract names."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Sampling:
    """How tokens are chosen; a value that is None is left to the engine."""

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    length_penalty: float | None = None
    seed: int | None = None

    @property
    def greedy(self) -> bool:
        return self.temperature == 0.0


@dataclass(frozen=True)
class GenerateRequest:
    """Token ids in; `end_ids` are all ids that end the answer, the main one first."""

    input_ids: Sequence[int]
    max_tokens: int
    end_ids: Sequence[int]
    pad_id: int
    min_tokens: int = 0
    sampling: Sampling = field(default_factory=Sampling)
    bad_words: Sequence[int] = ()
    request_id: str = ""

    def payload(self) -> dict[str, object]:
        """The body of POST generate_stream (contract: tensorrt_llm inputs, generate endpoint).

        The contract has one end_id: further ones go as stop words of one token. min_p has no
        tensor and travels as a request parameter, which Python runtimes read.
        """
        sampling = self.sampling
        body: dict[str, object] = {
            "input_ids": list(self.input_ids),
            "input_lengths": len(self.input_ids),
            "request_output_len": self.max_tokens,
            "streaming": True,
            "end_id": self.end_ids[0],
            "pad_id": self.pad_id,
            "return_num_output_tokens": True,
            # top_k 1 is greedy on every runtime; temperature 0 is refused by some.
            "runtime_top_k": 1 if sampling.greedy else sampling.top_k,
        }
        if not sampling.greedy:
            body["temperature"] = sampling.temperature
            body["runtime_top_p"] = sampling.top_p
            if sampling.min_p:
                body["min_p"] = sampling.min_p
        optional: dict[str, object | None] = {
            "repetition_penalty": sampling.repetition_penalty,
            "presence_penalty": sampling.presence_penalty,
            "frequency_penalty": sampling.frequency_penalty,
            "len_penalty": sampling.length_penalty,
            "seed": sampling.seed,
            "min_tokens": self.min_tokens or None,
            "stop_words_list": self._further_end_ids() or None,
            "bad_words_list": list(self.bad_words) or None,
            "id": self.request_id or None,
        }
        body.update({name: value for name, value in optional.items() if value is not None})
        return body

    def _further_end_ids(self) -> list[int]:
        further = list(self.end_ids[1:])
        return further + list(range(1, len(further) + 1))
