"""The reference: greedy answers of the same weights, made elsewhere and stored.

A JSONL file: the first line says of what and by what the answers were made, each further line is
the answer to one article. Greedy answers of fewer tokens are beginnings of these.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.cannot_run import CannotRun
from benchmarks.quality.articles import DATA, INSTRUCTION, Article


@dataclass(frozen=True)
class Reference:
    """`answers` maps an article's id to token ids, without the end id.

    model        name of the model
    made_by      the program that generated the answers, with its version
    max_tokens   longest answer that was allowed
    instruction  of the prompt; another one gives other answers
    """

    model: str
    made_by: str
    max_tokens: int
    instruction: str
    answers: dict[str, list[int]]

    @classmethod
    def read(cls, path: Path) -> Reference:
        """Raises CannotRun if there is no such file, or if it is none."""
        try:
            head, *lines = map(json.loads, path.read_text(encoding="utf-8").splitlines())
            answers = {line["id"]: [int(token) for token in line["ids"]] for line in lines}
            return cls(**head, answers=answers)
        except OSError as err:
            raise CannotRun(
                f"There is no reference {path}; --write-reference makes one ({err.strerror})."
            ) from err
        except (ValueError, KeyError, TypeError) as err:
            raise CannotRun(f"{path} is no reference: {err!r}") from err

    def write(self, path: Path) -> None:
        head: dict[str, Any] = asdict(self)
        answers = head.pop("answers")
        lines = [head, *({"id": id_, "ids": ids} for id_, ids in answers.items())]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")

    def answer(self, article: Article, max_tokens: int) -> list[int]:
        """The reference's answer of at most `max_tokens`; raises CannotRun if it has none."""
        if self.instruction != INSTRUCTION or article.id not in self.answers:
            raise CannotRun(f"The reference has no answer to {article.id}; --write-reference.")
        if max_tokens > self.max_tokens:
            raise CannotRun(f"The reference's answers have at most {self.max_tokens} tokens.")
        return self.answers[article.id][:max_tokens]


def stored_path(model: str, engine: str) -> Path:
    """Where the reference of a model that was made by an engine is shipped."""
    return DATA / f"reference-{model}-{engine}.jsonl"
