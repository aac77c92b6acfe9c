"""The data set: short articles with summaries, and the prompt that asks for one."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from benchmarks.cannot_run import CannotRun

DATA = Path(__file__).parent / "data"
ARTICLES = DATA / "articles.jsonl"
INSTRUCTION = "Summarise this article in one or two sentences."


@dataclass(frozen=True)
class Article:
    """One line of the data set; `summary` was written by a person."""

    id: str
    article: str
    summary: str

    @property
    def prompt(self) -> str:
        return f"{INSTRUCTION}\n\n{self.article}"


def read_articles(path: Path) -> list[Article]:
    """The articles of a JSONL file, in its order; raises CannotRun naming the line at fault."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as err:
        raise CannotRun(f"{path} cannot be read: {err}") from err
    articles = []
    for number, line in enumerate(lines, start=1):
        try:
            fields = json.loads(line)
            articles.append(Article(*(str(fields[key]) for key in ("id", "article", "summary"))))
        except (ValueError, KeyError, TypeError) as err:
            raise CannotRun(f"{path}:{number} is no article: {err!r}") from err
    if not articles or len({article.id for article in articles}) < len(articles):
        raise CannotRun(f"{path} holds no articles, or two of one id.")
    return articles
