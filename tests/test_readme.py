"""What the README says is what the code does."""

from __future__ import annotations

import re
from pathlib import Path

from cog_triton.errors import table

README = (Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8")


def test_the_error_table_is_the_codes() -> None:
    """Code, name, meaning and remedy of every error, in the order of the codes."""
    rows = re.findall(r"^\| (E\d{4}) \| (\w+) \| (.+?) \| (.+?) \|$", README, re.MULTILINE)
    assert rows == [tuple(row) for row in table()]


def test_codes_are_unique_and_complete() -> None:
    """No two errors share a code, and each says what it means and what to do."""
    rows = table()
    assert len({row.code for row in rows}) == len(rows)
    assert all(row.meaning and row.remedy for row in rows)


def test_the_inputs_are_all_described() -> None:
    """Each input of predict() has its line in the README."""
    source = (Path(__file__).parent.parent / "predict.py").read_text(encoding="utf-8")
    names = re.findall(r"^        (\w+): .* = Input\(", source, re.MULTILINE)
    assert len(names) >= 19
    for name in names:
        assert f"| `{name}` |" in README, name


def test_the_two_commands_are_there() -> None:
    """The README starts from `make predict` and `make test`."""
    assert "make predict" in README
    assert "make test" in README
