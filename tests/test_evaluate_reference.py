"""The data set, and stored references."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.cannot_run import CannotRun
from benchmarks.quality.articles import ARTICLES, INSTRUCTION, Article, read_articles
from benchmarks.quality.reference import Reference, stored_path
from benchmarks.quality.reference_engines import ENGINES
from cog_triton.artifacts.model_directory import ModelDirectory
from cog_triton.text.tokenizer import Tokenizer

ARTICLE = Article("a", "text", "summary")
REFERENCE = Reference("m", "engine 1", 4, INSTRUCTION, {"a": [5, 6, 7], "b": []})
GOOD = '{"id": "a", "article": "x", "summary": "y"}\n'


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "no articles"),
        (GOOD + GOOD, "two of one id"),
        (GOOD + '{"id": "b"}\n', r":2 is no article"),
        (GOOD + "nonsense\n", r":2 is no article"),
        (GOOD + "[]\n", r":2 is no article"),
    ],
)
def test_what_is_no_data_set(tmp_path: Path, content: str, message: str) -> None:
    """A wrong line is named with its number."""
    path = tmp_path / "articles.jsonl"
    path.write_text(content)
    with pytest.raises(CannotRun, match=message):
        read_articles(path)


def test_a_data_set_that_is_not_there(tmp_path: Path) -> None:
    """The path is in the error."""
    with pytest.raises(CannotRun, match=r"none\.jsonl cannot be read"):
        read_articles(tmp_path / "none.jsonl")


@pytest.mark.parametrize("content", ["", "nonsense", "{}\n", '{"model": "m"}\n{"id": "a"}\n'])
def test_what_is_no_reference(tmp_path: Path, content: str) -> None:
    """A file of another kind is an error that names it."""
    path = tmp_path / "reference.jsonl"
    path.write_text(content)
    with pytest.raises(CannotRun, match=r"reference\.jsonl is no reference"):
        Reference.read(path)


def test_no_reference_says_how_to_make_one(tmp_path: Path) -> None:
    """The command that makes a reference is in the error."""
    with pytest.raises(CannotRun, match="--write-reference"):
        Reference.read(tmp_path / "none.jsonl")


def test_a_reference_comes_back_as_it_was_written(tmp_path: Path) -> None:
    """Everything that was written is read."""
    path = tmp_path / "below" / "reference.jsonl"
    REFERENCE.write(path)
    assert Reference.read(path) == REFERENCE


def test_what_a_reference_cannot_answer() -> None:
    """Longer answers, unknown articles and another prompt are errors, not zero scores."""
    with pytest.raises(CannotRun, match="at most 4 tokens"):
        REFERENCE.answer(ARTICLE, 5)
    with pytest.raises(CannotRun, match="no answer to c"):
        REFERENCE.answer(Article("c", "text", "summary"), 4)
    other = Reference("m", "engine 1", 4, "Say it in Latin.", REFERENCE.answers)
    with pytest.raises(CannotRun, match="no answer to a"):
        other.answer(ARTICLE, 4)


def test_fewer_tokens_are_the_beginning() -> None:
    """A greedy answer that is cut is the beginning of the whole one."""
    assert REFERENCE.answer(ARTICLE, 2) == [5, 6]
    assert REFERENCE.answer(ARTICLE, 4) == [5, 6, 7]


@pytest.mark.parametrize("engine", sorted(ENGINES))
def test_the_data_set_and_its_references_fit(model_directory: ModelDirectory, engine: str) -> None:
    """Every article has a summary shorter than itself and an answer of the embedded model."""
    articles = read_articles(ARTICLES)
    reference = Reference.read(stored_path(model_directory.path.name, engine))
    assert reference.made_by.startswith(engine)
    tokenizer = Tokenizer.load(model_directory.path)
    assert len(articles) >= 20
    assert set(reference.answers) == {article.id for article in articles}
    for article in articles:
        assert 60 <= len(article.article.split()) <= 150
        assert 10 <= len(article.summary.split()) < len(article.article.split()) / 2
        answer = reference.answer(article, reference.max_tokens)
        assert 0 < len(answer) <= reference.max_tokens
        assert tokenizer.decode(answer).strip()


def test_the_data_set_is_plain_jsonl() -> None:
    """A line an article, so that others can use it without our code."""
    for line in ARTICLES.read_text(encoding="utf-8").splitlines():
        assert set(json.loads(line)) == {"id", "article", "summary"}
