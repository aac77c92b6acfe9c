"""From answers to figures: what a row of the table and an entry of the JSON hold."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from benchmarks.load.closed_loop import Attempted
from benchmarks.load.events import BadAnswer, read_events
from benchmarks.load.summary import Summary, summarize
from benchmarks.load.targets import Ask, Target, Tokens

MAX_ERROR_CHARS = 200


@dataclass(frozen=True)
class Figures:
    """One level of concurrency.

    Rates count answered requests and their tokens over the time from the first request to the
    last answer, failed ones included. Latencies are of answered requests, in milliseconds:

    time_to_first_token_ms  from the request to the first piece of its answer
    inter_token_ms          time after the first token over the tokens after it, one a request
    inter_piece_ms          between two pieces of a stream; a piece can hold several tokens
    end_to_end_ms           from the request to the end of its answer

    The first three are None without a stream. `errors` maps each error to how often it came.
    """

    concurrency: int
    num_requests: int
    num_failed: int
    num_conflicts: int
    duration_s: float
    requests_per_s: float
    output_tokens_per_s: float
    num_output_tokens: int
    time_to_first_token_ms: Summary | None
    inter_token_ms: Summary | None
    inter_piece_ms: Summary | None
    end_to_end_ms: Summary | None
    errors: dict[str, int] = field(default_factory=dict)


@dataclass
class _Values:
    first_ms: list[float] = field(default_factory=list)
    token_ms: list[float] = field(default_factory=list)
    piece_ms: list[float] = field(default_factory=list)
    whole_ms: list[float] = field(default_factory=list)
    num_tokens: int = 0

    def add(self, attempted: Attempted, tokens: Tokens) -> None:
        answer, arrivals = attempted.answer, tokens.arrivals
        self.num_tokens += tokens.num_tokens
        self.whole_ms.append((answer.ended_at - answer.started_at) * 1e3)
        if not arrivals:
            return
        self.first_ms.append((arrivals[0] - answer.started_at) * 1e3)
        self.piece_ms += [(later - earlier) * 1e3 for earlier, later in pairwise(arrivals)]
        if tokens.num_tokens > 1:
            self.token_ms.append((arrivals[-1] - arrivals[0]) * 1e3 / (tokens.num_tokens - 1))


def measure(target: Target, ask: Ask, concurrency: int, answers: Sequence[Attempted]) -> Figures:
    """Read the answers; each one is either in the figures or among the errors."""
    values = _Values()
    errors: Counter[str] = Counter()
    for attempted in answers:
        try:
            values.add(attempted, _tokens(target, ask, attempted))
        except BadAnswer as err:
            errors[str(err)[:MAX_ERROR_CHARS]] += 1
    duration_s = _duration_s(answers)
    return Figures(
        concurrency=concurrency,
        num_requests=len(answers),
        num_failed=errors.total(),
        num_conflicts=sum(attempted.num_conflicts for attempted in answers),
        duration_s=duration_s,
        requests_per_s=len(values.whole_ms) / duration_s,
        output_tokens_per_s=values.num_tokens / duration_s,
        num_output_tokens=values.num_tokens,
        time_to_first_token_ms=summarize(values.first_ms),
        inter_token_ms=summarize(values.token_ms),
        inter_piece_ms=summarize(values.piece_ms),
        end_to_end_ms=summarize(values.whole_ms),
        errors=dict(errors.most_common()),
    )


def _tokens(target: Target, ask: Ask, attempted: Attempted) -> Tokens:
    tokens = target.read(read_events(attempted.answer), ask)
    # Triton's HTTP front end can lose responses of a stream without a word.
    if tokens.num_tokens < ask.min_tokens:
        raise BadAnswer(f"{tokens.num_tokens} of {ask.min_tokens} tokens came")
    return tokens


def _duration_s(answers: Sequence[Attempted]) -> float:
    started_at = min(attempted.answer.started_at for attempted in answers)
    return max(attempted.answer.ended_at for attempted in answers) - started_at
