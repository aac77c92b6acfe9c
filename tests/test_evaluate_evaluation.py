"""Comparing answers and holding the scores against thresholds."""

from __future__ import annotations

import pytest

from benchmarks.quality.answers import Answer, Model
from benchmarks.quality.articles import Article
from benchmarks.quality.evaluation import SCORES, Case, compare, shortfalls, table, totals
from benchmarks.quality.scores import rouge
from cog_triton.artifacts.model_directory import ModelDirectory

ARTICLE = Article("a", "A long text.", "the cat sat")


@pytest.fixture(scope="module")
def model(model_directory: ModelDirectory) -> Model:
    return Model.load(model_directory)


def case(model: Model, answer: Answer, reference: str) -> Case:
    return compare(model, rouge(), ARTICLE, answer, model.ids(reference))


def test_scores_under_their_threshold_are_named() -> None:
    """Only what is under its threshold is a shortfall; equal is enough."""
    scores = {"summary.rouge1": 19.99, "tokens.share": 80.0}
    assert shortfalls(scores, {"summary.rouge1": 20}) == ["summary.rouge1 is 19.99, under 20"]
    assert shortfalls(scores, {"tokens.share": 80.0}) == []


def test_an_answer_that_differs(model: Model) -> None:
    """ROUGE against the summary and the reference, and tokens until the two part."""
    found = case(model, Answer("the cat ran away"), "the cat sat")
    assert found.tokens.num_common == 2
    assert not found.tokens.exact
    assert found.rouge["reference_summary"]["rouge1"] == pytest.approx(100)
    assert 0 < found.rouge["reference"]["rouge1"] < 100
    assert found.rouge["reference"] == found.rouge["summary"]


def test_ids_and_text_of_the_same_answer_agree(model: Model) -> None:
    """An answer of ids ends before its end id; one of text is compared by its tokens."""
    ids = model.ids("the cat sat")
    end = model.directory.end_ids[0]
    cut = model.cut([*ids, end, 5])
    assert case(model, Answer(model.text([*ids, end]), cut), "the cat sat").tokens.exact
    assert case(model, Answer("the cat sat"), "the cat sat").tokens.exact


def test_totals_are_means(model: Model) -> None:
    """Every named score is there, as the mean over the articles, and in the table."""
    cases = [
        case(model, Answer("the cat sat"), "the cat sat"),
        case(model, Answer("dogs bark"), "the cat sat"),
    ]
    found = totals(cases)
    assert set(found) == set(SCORES)
    assert found["reference.rouge1"] == pytest.approx(50)
    assert found["tokens.exact"] == 50
    assert found["tokens.share"] == 50
    assert "50.00" in table(found)
