"""Parameters of filled configs, as the text models read them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cog_triton.errors import ModelRepositoryError
from cog_triton.runtimes.text_models.parameters import Parameters

CONFIG = """
name: "other"
model_transaction_policy { decoupled: true }
parameters { key: "flag" value { string_value: "True" } }
parameters { key: "unfilled" value { string_value: "${flag}" } }
"""


def given(**values: str) -> Parameters:
    return Parameters("model", values)


def test_a_word_that_is_no_boolean_is_refused() -> None:
    """NVIDIA's models warn and take the default; here it is an error with the key."""
    with pytest.raises(ModelRepositoryError, match="skip is 'perhaps'"):
        given(skip="perhaps").flag("skip", True)


@pytest.mark.parametrize("values", [{}, {"dir": ""}, {"dir": "${dir}"}, {"dir": "/nowhere"}])
def test_a_directory_that_is_not_there_is_named(values: dict[str, str]) -> None:
    """Missing, empty, unfilled, and given but absent."""
    with pytest.raises(ModelRepositoryError, match="dir is"):
        given(**values).directory("dir")


@pytest.mark.parametrize("content", [None, "name: ${model}"])
def test_a_neighbour_without_a_config_is_named(tmp_path: Path, content: str | None) -> None:
    """A model that is not there, and one whose template was not filled."""
    (tmp_path / "other").mkdir()
    if content is not None:
        (tmp_path / "other" / "config.pbtxt").write_text(content)
    with pytest.raises(ModelRepositoryError, match=r"other/config\.pbtxt"):
        Parameters.of_neighbour(tmp_path / "bls", "other")


@pytest.mark.parametrize("text", ["", " ", "${name}"])
def test_what_is_not_filled_is_not_given(text: str) -> None:
    """Then the default holds."""
    assert given(name=text).text("name") is None
    assert given(name=text).flag("name", True) is True


@pytest.mark.parametrize(
    ("word", "value"), [("True", True), ("1", True), ("FALSE", False), ("0", False)]
)
def test_booleans_are_those_of_the_backend(word: str, value: bool) -> None:
    """The words that the C++ backend takes for a boolean."""
    assert given(flag=word).flag("flag", not value) is value


def test_own_and_neighbours_configs_read_alike(tmp_path: Path) -> None:
    """Triton's JSON and a config.pbtxt give the same parameters."""
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "config.pbtxt").write_text(CONFIG)
    neighbour = Parameters.of_neighbour(tmp_path / "bls", "other")
    own = {
        "name": "other",
        "model_transaction_policy": {"decoupled": True},
        "parameters": {"flag": {"string_value": "True"}, "unfilled": {"string_value": "${flag}"}},
    }
    assert Parameters.of_model(json.dumps(own)) == neighbour
    assert neighbour.decoupled
    assert neighbour.flag("flag", False)
    assert neighbour.text("unfilled") is None
