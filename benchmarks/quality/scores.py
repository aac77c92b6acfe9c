"""How alike two answers are; scores are percentages, as the guides' ROUGE thresholds are."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from benchmarks.cannot_run import CannotRun

ROUGE = ("rouge1", "rouge2", "rougeL")
Rouge = Callable[[str, str], dict[str, float]]
"""(what should be said, what is said) to the F-measures."""


def rouge() -> Rouge:
    """Google's rouge-score with its stemmer; raises CannotRun if it is not installed."""
    try:
        from rouge_score.rouge_scorer import RougeScorer
    except ImportError as err:
        raise CannotRun("pip install -r requirements-evaluate.txt is needed.") from err
    scorer = RougeScorer(list(ROUGE), use_stemmer=True)

    def score(expected: str, said: str) -> dict[str, float]:
        found = scorer.score(expected, said)
        return {name: 100 * float(found[name].fmeasure) for name in ROUGE}

    return score


@dataclass(frozen=True)
class TokenMatch:
    """How far two greedy answers agree: tokens until they part, and the longer one's length."""

    num_common: int
    num_tokens: int

    @property
    def share(self) -> float:
        """Percentage of the longer answer; 100 for two empty ones."""
        return 100 * self.num_common / self.num_tokens if self.num_tokens else 100.0

    @property
    def exact(self) -> bool:
        return self.num_common == self.num_tokens


def match_tokens(expected: Sequence[int], said: Sequence[int]) -> TokenMatch:
    pairs = zip(expected, said, strict=False)
    longest = max(len(expected), len(said))
    shortest = min(len(expected), len(said))
    num_common = next((at for at, (one, other) in enumerate(pairs) if one != other), shortest)
    return TokenMatch(num_common, longest)


def mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)
