"""docs/compatibility.md: the tests that it names are there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
NAMED = sorted(
    set(
        re.findall(
            r"`(tests/[\w/]+\.py)::(\w+)`",
            (ROOT / "docs" / "compatibility.md").read_text(encoding="utf-8"),
        )
    )
)


def test_the_page_names_tests() -> None:
    """Otherwise the next test would check nothing."""
    assert len(NAMED) > 20


@pytest.mark.parametrize(("file", "test"), NAMED)
def test_a_named_test_exists(file: str, test: str) -> None:
    """Under this name, in this file."""
    source = (ROOT / file).read_text(encoding="utf-8")
    assert re.search(rf"^(async )?def {test}\(", source, re.MULTILINE)
