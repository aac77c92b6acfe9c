"""The OpenAPI schema under version control is the one that the cog CLI makes of predict.py."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

import pytest

PROJECT = Path(__file__).parent.parent
SCHEMA = json.loads((PROJECT / ".cog/openapi_schema.json").read_text(encoding="utf-8"))
PROPERTIES: dict[str, Any] = SCHEMA["components"]["schemas"]["Input"]["properties"]
TYPES = {"str": "string", "int": "integer", "float": "number", "list": "array"}


def predict_function() -> ast.AsyncFunctionDef:
    tree = ast.parse((PROJECT / "predict.py").read_text(encoding="utf-8"))
    return next(
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.AsyncFunctionDef) and node.name == "predict"
    )


def declared() -> dict[str, dict[str, Any]]:
    """Name, type and Input(…) keywords of each parameter, read from the source alone."""
    function = predict_function()
    parameters = function.args.args[1:]
    result = {}
    for parameter, default in zip(parameters, function.args.defaults, strict=True):
        assert isinstance(default, ast.Call)
        keywords = {
            keyword.arg: ast.literal_eval(keyword.value)
            for keyword in default.keywords
            if keyword.arg is not None
        }
        assert parameter.annotation is not None
        result[parameter.arg] = {"type": ast.unparse(parameter.annotation), **keywords}
    return result


DECLARED = declared()


def test_same_inputs_in_the_same_order() -> None:
    """The schema has each input once, in the order of the function."""
    order = sorted(PROPERTIES, key=lambda name: int(PROPERTIES[name]["x-order"]))
    assert order == list(DECLARED)


@pytest.mark.parametrize("name", list(DECLARED))
def test_input(name: str) -> None:
    """Type, default, description, optionality and deprecation of one input agree."""
    source, schema = DECLARED[name], PROPERTIES[name]
    optional = source["type"].startswith("Optional[")
    base = source["type"].removeprefix("Optional[").partition("[")[0].rstrip("]")
    assert schema["type"] == TYPES[base]
    assert schema.get("nullable", False) is optional
    assert schema["default"] == source["default"]
    assert schema["description"] == source["description"]
    assert schema.get("deprecated", False) is source.get("deprecated", False)


def test_nothing_is_required() -> None:
    """Every input has a default, so the CLI marks none as required."""
    assert "required" not in SCHEMA["components"]["schemas"]["Input"]


def test_the_output_streams() -> None:
    """The CLI has seen the streaming decorator and a concatenated iterator of strings."""
    assert SCHEMA["paths"]["/predictions"]["post"]["x-cog-streaming"] is True
    output = SCHEMA["components"]["schemas"]["Output"]
    assert (output["type"], output["items"]["type"]) == ("array", "string")
    assert output["x-cog-array-display"] == "concatenate"
