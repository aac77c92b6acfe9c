"""`BuildConfig`, `QuantConfig` and `QuantAlgo`, which refuse what the contract does not know."""

from __future__ import annotations

import json
from enum import Enum
from pathlib import Path
from typing import Any

TESTS = Path(__file__).resolve().parents[3]
CONTRACT: dict[str, Any] = json.loads((TESTS / "data/contracts/llm_api.json").read_bytes())


class Config:
    """Keyword arguments that the contract lists under the class's name, as attributes."""

    def __init__(self, **fields: Any) -> None:
        refuse_unknown(type(self).__name__, fields, [type(self).__name__])
        self.fields = fields


class BuildConfig(Config):
    """Sizes and plugins of an engine."""


class QuantConfig(Config):
    """Quantisation of weights and KV cache."""

    def __init__(self, **fields: Any) -> None:
        super().__init__(**fields)
        for name in ("quant_algo", "kv_cache_quant_algo"):
            if not isinstance(fields.get(name), (QuantAlgo, type(None))):
                raise ValueError(f"{name} is no QuantAlgo: {fields[name]!r}")


QuantAlgo = Enum("QuantAlgo", {name: name for name in CONTRACT["QuantAlgo"]})  # type: ignore[misc]


def refuse_unknown(name: str, given: dict[str, Any], sections: list[str]) -> None:
    known = {field["name"] for section in sections for field in CONTRACT[section]}
    for argument in given:
        if argument not in known:
            raise ValueError(f"{name} got invalid argument: {argument}")
