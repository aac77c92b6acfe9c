"""From answers to scores, and to what falls short."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benchmarks.quality.answers import Answer, Model
from benchmarks.quality.articles import Article
from benchmarks.quality.scores import ROUGE, Rouge, TokenMatch, match_tokens, mean

PAIRS = ("summary", "reference", "reference_summary")
SCORES = (*(f"{pair}.{name}" for pair in PAIRS for name in ROUGE), "tokens.share", "tokens.exact")
"""Names of all scores, percentages:

summary.*            the server's answers against the written summaries
reference.*          the server's answers against the reference's
reference_summary.*  the reference's answers against the written summaries
tokens.share         tokens that are equal until the two answers part, of the longer one
tokens.exact         answers of which every token is equal
"""


@dataclass(frozen=True)
class Case:
    """One article: what the server said, what the reference said, and how they compare."""

    id: str
    answer: str
    reference: str
    tokens: TokenMatch
    rouge: Mapping[str, Mapping[str, float]]


def compare(
    model: Model, rouge: Rouge, article: Article, answer: Answer, reference_ids: Sequence[int]
) -> Case:
    """The scores of one article; an answer that came as text is compared by its text's tokens."""
    reference = model.text(reference_ids)
    if answer.ids is None:
        tokens = match_tokens(model.ids(reference), model.ids(answer.text))
    else:
        tokens = match_tokens(model.cut(reference_ids), answer.ids)
    pairs = {
        "summary": rouge(article.summary, answer.text),
        "reference": rouge(reference, answer.text),
        "reference_summary": rouge(article.summary, reference),
    }
    return Case(article.id, answer.text, reference, tokens, pairs)


def totals(cases: Sequence[Case]) -> dict[str, float]:
    """The mean of each score over the articles, by its name in SCORES."""
    found = {
        f"{pair}.{name}": mean([case.rouge[pair][name] for case in cases])
        for pair in PAIRS
        for name in ROUGE
    }
    found["tokens.share"] = mean([case.tokens.share for case in cases])
    found["tokens.exact"] = mean([100.0 * case.tokens.exact for case in cases])
    return found


def shortfalls(scores: Mapping[str, float], thresholds: Mapping[str, float]) -> list[str]:
    """A line for each score that is under its threshold."""
    return [
        f"{name} is {scores[name]:.2f}, under {threshold:g}"
        for name, threshold in thresholds.items()
        if scores[name] < threshold
    ]


def table(scores: Mapping[str, float]) -> str:
    """The scores for a terminal."""
    lines = [f"{'':<36}" + "".join(f"{name:>10}" for name in ROUGE)]
    labels = ("server, written summaries", "server, reference", "reference, written summaries")
    for pair, label in zip(PAIRS, labels, strict=True):
        row = "".join(f"{scores[f'{pair}.{name}']:>10.2f}" for name in ROUGE)
        lines.append(f"{label:<36}{row}")
    lines.append(f"{'equal tokens until they part (%)':<36}{scores['tokens.share']:>10.2f}")
    lines.append(f"{'answers with all tokens equal (%)':<36}{scores['tokens.exact']:>10.2f}")
    return "\n".join(lines)
