"""Writes `tensorrt_llm/contract.py`, the stand-in's names, types and defaults, from the contract.

Run it after a change of tests/data/contracts/llm_api.json; a test compares the result.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent
CONTRACT = ROOT.parent / "data" / "contracts" / "llm_api.json"
TARGET = ROOT / "tensorrt_llm" / "contract.py"

ARGUMENT_LISTS = {
    "BASE_LLM_ARGS": "BaseLlmArgs",
    "TORCH_LLM_ARGS": "TorchLlmArgs",
    "TRT_LLM_ARGS": "TrtLlmArgs",
}
CONFIGS = ("KvCacheConfig", "SchedulerConfig", "PeftCacheConfig", "LoraConfig")

# Types of the contract that a plain check can decide; everything else is taken as it comes.
_SIMPLE = {
    "bool": "bool",
    "str": "str",
    "int": "int",
    "int >= 0": "Annotated[int, Field(ge=0)]",
    "int >= 1": "Annotated[int, Field(ge=1)]",
    "float": "float",
    "float 0..1": "Annotated[float, Field(ge=0, le=1)]",
    "dict": "dict[str, Any]",
    "list of int": "list[int]",
    "list of positive int": "list[Annotated[int, Field(gt=0)]]",
    "list of str": "list[str]",
    "None": "None",
}


def annotation(described: str) -> str:
    """A type of the contract as Python; `Any` where it names a class or says it in words."""
    parts = [part.strip() for part in described.split(" | ")]
    words = [part for part in parts if re.fullmatch("'[^']*'", part)]
    known = [_SIMPLE.get(part) for part in parts if part not in words]
    literal = [f"Literal[{', '.join(json.dumps(word[1:-1]) for word in words)}]"] if words else []
    return " | ".join([*literal, *map(str, known)]) if all(known) else "Any"


def default(described: object) -> str:
    """A default of the contract as Python; a sentence that starts with a value gives the value."""
    if isinstance(described, str) and described.startswith("None"):
        return "None"
    if isinstance(described, (dict, list)):
        return f"Field(default_factory={type(described).__name__})"
    return json.dumps(described) if isinstance(described, str) else repr(described)


def render(contract: dict[str, Any]) -> str:
    """The whole module."""
    parts = [_HEAD]
    for name, source in ARGUMENT_LISTS.items():
        parts.append(_types(name, contract[source]))
    for name in CONFIGS:
        parts.append(_model(name, contract[name]))
    for name in ("GuidedDecodingParams", "SamplingParams"):
        parts.append(_dataclass(name, contract[name]["fields"]))
    parts.append(_record("CompletionOutput", contract["CompletionOutput"]["fields"]))
    return "\n\n\n".join(part.strip("\n") for part in parts) + "\n"


def _types(name: str, fields: list[dict[str, Any]]) -> str:
    lines = [f'    "{field["name"]}": {annotation(field["type"])},' for field in fields]
    lines += [
        f'    "{field["alias"]}": {annotation(field["type"])},'
        for field in fields
        if "alias" in field
    ]
    return "\n".join([f"{name}: dict[str, Any] = {{", *lines, "}"])


def _model(name: str, fields: list[dict[str, Any]]) -> str:
    lines = []
    for field in fields:
        kind = annotation(field["type"])
        text = default(field["default"])
        if kind == "Any" and text.startswith('"'):
            text = "None"  # an enum or an object, described in words
        lines.append(f"    {field['name']}: {kind} = {text}")
    return "\n".join([f"class {name}(StrictModel):", *lines])


def _dataclass(name: str, fields: list[dict[str, Any]]) -> str:
    lines = [f"    {f['name']}: {annotation(f['type'])} = {default(f['default'])}" for f in fields]
    return "\n".join(["@dataclass(kw_only=True)", f"class {name}:", *lines])


def _record(name: str, fields: list[dict[str, Any]]) -> str:
    lines = []
    for field in fields:
        text = default(field["default"])
        text = text.replace("Field(default_factory", "field(default_factory")
        required = field["default"] == "required"
        lines.append(f"    {field['name']}: Any" + ("" if required else f" = {text}"))
    return "\n".join(["@dataclass", f"class {name}:", *lines])


_HEAD = '''
"""Names, types and defaults of tensorrt_llm 1.1. Written by ../generate.py: do not edit."""

# ruff: noqa: E501
# fmt: off

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field


class StrictModel(BaseModel):
    """A model that refuses unknown fields, as the argument models of the real package do."""

    model_config = ConfigDict(extra="forbid", strict=True)
'''


if __name__ == "__main__":
    text = render(json.loads(CONTRACT.read_text(encoding="utf-8")))
    if "--check" in sys.argv:
        sys.exit(0 if TARGET.read_text(encoding="utf-8") == text else 1)
    TARGET.write_text(text, encoding="utf-8")
