"""One prediction: checked inputs in, pieces of text out, a report at the end."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Literal, Protocol

from cog_triton.errors import PromptRequired, PromptTooLong, UnsupportedInput
from cog_triton.generate_request import GenerateRequest
from cog_triton.inputs import PredictionInputs
from cog_triton.settings import PromptSettings
from cog_triton.text.prompt import Rendered, render_messages, render_prompt
from cog_triton.text.stop_scanner import StopScanner
from cog_triton.text.tokenizer import Tokenizer
from cog_triton.text.word_lists import to_word_list

FinishReason = Literal["stop", "length"]
LONG_PROMPT = 10_000  # characters; shorter ones are encoded in less than 5 ms


@dataclass(frozen=True)
class ModelLimits:
    """What the model and its engine set: token ids and counts of tokens."""

    end_ids: tuple[int, ...]
    pad_id: int
    max_seq_len: int
    max_input_len: int
    takes_min_p: bool = True


@dataclass
class Report:
    """The metrics of one prediction; seconds, tokens."""

    input_token_count: int = 0
    output_token_count: int = 0
    time_to_first_token: float = 0.0
    tokens_per_second: float = 0.0
    finish_reason: FinishReason = "stop"

    def metrics(self) -> dict[str, float | int | str]:
        return {
            "input_token_count": self.input_token_count,
            "output_token_count": self.output_token_count,
            "time_to_first_token": round(self.time_to_first_token, 4),
            "tokens_per_second": round(self.tokens_per_second, 2),
            "finish_reason": self.finish_reason,
        }


class TokenSource(Protocol):
    """Where tokens come from: a GenerateClient, or one that outlives its server."""

    def stream(self, request: GenerateRequest) -> AsyncGenerator[list[int], None]: ...


@dataclass(frozen=True)
class TextGenerator:
    """Everything that predictions share: tokenizer, client, limits and prompt defaults."""

    tokenizer: Tokenizer
    client: TokenSource
    limits: ModelLimits
    prompt: PromptSettings

    async def stream(
        self,
        inputs: PredictionInputs,
        report: Report,
        log: Callable[[str], None],
        *,
        request_id: str = "",
    ) -> AsyncGenerator[str, None]:
        """Yield the answer as it arrives: one piece for each read from Triton.

        The pieces together are the text of all tokens, cut before the first stop sequence.
        `report` is filled while they arrive. Raises UserError and TritonError subclasses.
        """
        request = await self._request(inputs, report, log, request_id)
        scanner = StopScanner(inputs.stop_sequences)
        detokenizer = self.tokenizer.detokenizer()
        clock = _Clock(report)
        ids: list[int] = []
        async with aclosing(self.client.stream(request)) as chunks:
            async for ids in chunks:
                clock.count(ids)
                text = scanner.feed(detokenizer.feed(ids))
                if text:
                    yield text
                if scanner.stopped:
                    break
        clock.stop()
        if not scanner.stopped:
            rest = scanner.feed(detokenizer.finish()) + scanner.finish()
            ended = bool(ids) and ids[-1] in self.limits.end_ids
            report.finish_reason = "stop" if ended or scanner.stopped else "length"
            if rest:
                yield rest

    async def _request(
        self, inputs: PredictionInputs, report: Report, log: Callable[[str], None], request_id: str
    ) -> GenerateRequest:
        if inputs.sampling.min_p and not self.limits.takes_min_p:
            raise UnsupportedInput("min_p is not supported by the tensorrt runtime.")
        rendered = self._render(inputs)
        input_ids = await self._encode(rendered)
        if not input_ids:
            raise PromptRequired("The prompt has no text that the tokenizer knows.")
        report.input_token_count = len(input_ids)
        room = self._room(len(input_ids))
        max_tokens = min(inputs.max_tokens, room)
        if max_tokens < inputs.max_tokens:
            log(f"max_tokens cut from {inputs.max_tokens} to {room}, the room in the context")
        log(f"seed: {inputs.sampling.seed}")
        return GenerateRequest(
            input_ids=input_ids,
            max_tokens=max_tokens,
            min_tokens=min(inputs.min_tokens, max_tokens),
            end_ids=self.limits.end_ids,
            pad_id=self.limits.pad_id,
            sampling=inputs.sampling,
            bad_words=to_word_list(self._bad_word_ids(inputs)),
            request_id=request_id,
        )

    async def _encode(self, rendered: Rendered) -> list[int]:
        def encode() -> list[int]:
            return self.tokenizer.encode(
                rendered.text, add_special_tokens=rendered.add_special_tokens
            )

        # 1 MB of text takes 0.4 s, in which no other prediction would move.
        return await asyncio.to_thread(encode) if len(rendered.text) > LONG_PROMPT else encode()

    def _room(self, num_input_tokens: int) -> int:
        """How many tokens the context has left for the answer; raises PromptTooLong."""
        limits = self.limits
        room = limits.max_seq_len - num_input_tokens
        if room < 1 or num_input_tokens > limits.max_input_len:
            raise PromptTooLong(
                f"The prompt has {num_input_tokens} tokens; at most "
                f"{min(limits.max_input_len, limits.max_seq_len - 1)} fit."
            )
        return room

    def _render(self, inputs: PredictionInputs) -> Rendered:
        system_prompt = inputs.system_prompt or self.prompt.system_prompt
        if inputs.messages is not None:
            return render_messages(self.tokenizer, inputs.messages, system_prompt=system_prompt)
        return render_prompt(
            self.tokenizer,
            inputs.prompt or "",
            system_prompt=system_prompt,
            prompt_template=inputs.prompt_template or self.prompt.prompt_template,
        )

    def _bad_word_ids(self, inputs: PredictionInputs) -> list[list[int]]:
        """Each word as it stands after a space and without one, as a tokenizer tells them apart."""
        spellings = [
            spelling for word in inputs.bad_words for spelling in (word, f" {word.strip()}")
        ]
        ids = [self.tokenizer.encode(word, add_special_tokens=False) for word in spellings]
        return [word for index, word in enumerate(ids) if word and word not in ids[:index]]


class _Clock:
    """Times the tokens of one prediction for its report."""

    def __init__(self, report: Report) -> None:
        self._report = report
        self._started_at = time.perf_counter()

    def count(self, ids: list[int]) -> None:
        if not self._report.output_token_count:
            self._report.time_to_first_token = time.perf_counter() - self._started_at
        self._report.output_token_count += len(ids)

    def stop(self) -> None:
        elapsed_s = time.perf_counter() - self._started_at
        self._report.tokens_per_second = self._report.output_token_count / elapsed_s
