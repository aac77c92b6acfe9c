"""The inputs of one prediction, checked: what Cog hands over becomes a `PredictionInputs`.

Ranges are checked here and not by Cog's ge/le, so that a wrong value ends with its code
and a sentence that says what to do.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cog_triton.errors import (
    InvalidArgument,
    InvalidArgumentMaxTokens,
    InvalidArgumentMinTokens,
    InvalidMessages,
    PromptRequired,
)
from cog_triton.generate_request import Sampling
from cog_triton.text.word_lists import parse_sequences

DEFAULT_MAX_TOKENS = 512
MAX_SEED = 2**64 - 1
MAX_TOP_K = 2**31 - 1


@dataclass(frozen=True)
class PredictionInputs:
    """Checked inputs of one prediction; exactly one of prompt and messages is set."""

    prompt: str | None
    messages: Sequence[Mapping[str, Any]] | None
    system_prompt: str | None
    prompt_template: str | None
    max_tokens: int
    min_tokens: int
    stop_sequences: Sequence[str]
    bad_words: Sequence[str]
    sampling: Sampling


def check(values: Mapping[str, Any]) -> PredictionInputs:
    """The inputs that `predict()` got, by name.

    Raises PromptRequired, InvalidMessages, InvalidArgumentMaxTokens, InvalidArgumentMinTokens
    or InvalidArgument.
    """
    prompt, messages = _prompt_or_messages(values)
    max_tokens = _max_tokens(values)
    return PredictionInputs(
        prompt=prompt,
        messages=messages,
        system_prompt=values.get("system_prompt") or None,
        prompt_template=values.get("prompt_template") or None,
        max_tokens=max_tokens,
        min_tokens=_min_tokens(values, max_tokens),
        stop_sequences=parse_sequences(values.get("stop_sequences") or ""),
        bad_words=parse_sequences(values.get("bad_words") or ""),
        sampling=_sampling(values),
    )


def _prompt_or_messages(
    values: Mapping[str, Any],
) -> tuple[str | None, Sequence[Mapping[str, Any]] | None]:
    prompt = values.get("prompt") or ""
    messages = values.get("messages")
    if prompt.strip() and messages:
        raise InvalidMessages("prompt and messages are both given; send one of them.")
    if messages:
        return None, messages
    if not prompt.strip():
        raise PromptRequired
    return prompt, None


def _max_tokens(values: Mapping[str, Any]) -> int:
    new_name, old_name = values.get("max_tokens"), values.get("max_new_tokens")
    if old_name is not None and new_name not in (None, DEFAULT_MAX_TOKENS, old_name):
        raise InvalidArgumentMaxTokens(
            f"max_tokens is {new_name} and its older name max_new_tokens is {old_name}."
        )
    value = old_name if old_name is not None else new_name
    value = DEFAULT_MAX_TOKENS if value is None else int(value)
    if not 1 <= value <= 2**31 - 1:
        raise InvalidArgumentMaxTokens(f"max_tokens is {value}, but must be 1 or more.")
    return value


def _min_tokens(values: Mapping[str, Any], max_tokens: int) -> int:
    new_name, old_name = values.get("min_tokens"), values.get("min_new_tokens")
    if new_name is not None and old_name is not None:
        raise InvalidArgumentMinTokens(
            "min_tokens and its older name min_new_tokens are both given."
        )
    value = int(new_name if new_name is not None else old_name or 0)
    if value < 0:
        raise InvalidArgumentMinTokens(f"min_tokens is {value}, but must be 0 or more.")
    if value > max_tokens:
        raise InvalidArgumentMinTokens(
            f"min_tokens is {value}, which is more than max_tokens {max_tokens}."
        )
    return value


def _sampling(values: Mapping[str, Any]) -> Sampling:
    top_k = int(_number(values, "top_k", 0, -1, MAX_TOP_K))
    seed = values.get("seed")
    if seed is not None and not 0 <= seed <= MAX_SEED:
        raise InvalidArgument(f"seed is {seed}, but must lie between 0 and {MAX_SEED}.")
    return Sampling(
        temperature=_number(values, "temperature", 0.7, 0.0, 5.0),
        top_k=max(top_k, 0),
        top_p=_number(values, "top_p", 0.95, 0.0, 1.0) or 1.0,
        min_p=_number(values, "min_p", 0.0, 0.0, 0.999),
        repetition_penalty=_optional(values, "repetition_penalty", 0.01, 10.0),
        presence_penalty=_optional(values, "presence_penalty", -2.0, 2.0),
        frequency_penalty=_optional(values, "frequency_penalty", -2.0, 2.0),
        length_penalty=_optional(values, "length_penalty", -10.0, 10.0),
        seed=secrets.randbits(32) if seed is None else int(seed),
    )


def _number(values: Mapping[str, Any], name: str, default: float, low: float, high: float) -> float:
    value = values.get(name)
    if value is None:
        return default
    number = float(value)
    if not math.isfinite(number) or not low <= number <= high:
        raise InvalidArgument(f"{name} is {value}, but must lie between {low:g} and {high:g}.")
    return number


def _optional(values: Mapping[str, Any], name: str, low: float, high: float) -> float | None:
    return None if values.get(name) is None else _number(values, name, 0.0, low, high)
