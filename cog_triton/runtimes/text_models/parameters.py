"""Parameters of a filled config, of the model's own and of its neighbours'.

TensorRT-LLM's rule (1.1, "unfilled rules" of its templates): a parameter that is missing,
empty or still `${name}` counts as not given.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from cog_triton.errors import ModelRepositoryError
from cog_triton.template import parse

_UNFILLED = re.compile(r"\$\{\w+\}")
_TRUE = ("True", "true", "TRUE", "1")
_FALSE = ("False", "false", "FALSE", "0")


@dataclass(frozen=True)
class Parameters:
    """The given parameters of one model by key, and whether it is decoupled."""

    model: str
    values: Mapping[str, str]
    decoupled: bool = False

    @classmethod
    def of_model(cls, model_config: str) -> Parameters:
        """From the JSON text that Triton hands to `initialize`."""
        config = json.loads(model_config)
        return cls(
            str(config.get("name", "")),
            {key: str(value["string_value"]) for key, value in config["parameters"].items()},
            bool(config.get("model_transaction_policy", {}).get("decoupled", False)),
        )

    @classmethod
    def of_neighbour(cls, model_dir: Path, name: str) -> Parameters:
        """From the config.pbtxt of another model of the same repository.

        Raises ModelRepositoryError if it is not there or no model config.
        """
        path = model_dir.parent / name / "config.pbtxt"
        try:
            config = parse(path.read_text(encoding="utf-8"), source=str(path))
        except (OSError, UnicodeDecodeError) as err:
            raise ModelRepositoryError(f"{model_dir.name} needs {path}: {err}") from err
        return cls(
            name,
            {key: value.string_value for key, value in config.parameters.items()},
            bool(config.model_transaction_policy.decoupled),
        )

    def text(self, key: str) -> str | None:
        """The value of a parameter, None if it is not given."""
        value = self.values.get(key, "").strip()
        return None if not value or _UNFILLED.fullmatch(value) else value

    def flag(self, key: str, default: bool) -> bool:
        """A boolean parameter; raises ModelRepositoryError for any other word."""
        value = self.text(key)
        if value is None:
            return default
        if value not in _TRUE + _FALSE:
            raise ModelRepositoryError(
                f"{self.model}: the parameter {key} is {value!r}, expected true or false."
            )
        return value in _TRUE

    def directory(self, key: str) -> Path:
        """A parameter that names a directory; raises ModelRepositoryError if there is none."""
        value = self.text(key)
        if value is None or not Path(value).is_dir():
            raise ModelRepositoryError(f"{self.model}: {key} is {value!r}, which is no directory.")
        return Path(value)
