"""From a deployment's values to the text of every template variable.

The C++ backend catches a value that it cannot convert, warns, and takes its
default. Here a wrong value is an error before anything starts.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import PurePath

from cog_triton.errors import ModelRepositoryError
from cog_triton.template import ModelConfig, fill, nearest, parse, variables
from cog_triton.template_variables import (
    ALWAYS_SUPPLIED,
    KEYS_THAT_MUST_EXIST,
    RETIRED,
    Kind,
    Need,
    Variable,
    known,
)

# The words that the C++ backend takes for a boolean.
TRUE_WORDS = ("True", "true", "TRUE", "1")
FALSE_WORDS = ("False", "false", "FALSE", "0")


def configure(model: str, text: str, values: Mapping[str, object], *, source: str) -> ModelConfig:
    """The template `text` of a Triton model, filled, as an `inference.ModelConfig`.

    Unset optional variables take their parameter out of the config. Raises
    ModelRepositoryError that names the key and `source` for a missing, unknown or
    wrong value, and for a text that is no model config.
    """
    filled = resolve(model, variables(text, source=source), values, source=source)
    config = parse(fill(text, filled, source=source), source=source)
    table = known(model)
    for name, value in filled.items():
        if value == "" and name in table and table[name].key in config.parameters:
            del config.parameters[table[name].key]
    return config


def resolve(
    model: str, names: Sequence[str], values: Mapping[str, object], *, source: str
) -> dict[str, str]:
    """A text for each of the template's variables `names`, and for nothing else.

    An empty value is no value. Unset optional variables get the empty text, or their
    own `${name}` where the parameter has to exist. A model without a table has no
    types and no defaults but the two that NVIDIA's tool supplies. Raises
    ModelRepositoryError for a missing, an unknown or a wrong value.
    """
    table = known(model)
    for key in sorted(values.keys() - set(names)):
        raise ModelRepositoryError(f"{source}: no such variable: {key}{_hint(key, table, names)}.")
    filled: dict[str, str] = {}
    missing: list[str] = []
    for name in names:
        value = values.get(name)
        variable = table.get(name) or _untyped(name)
        if value is not None and value != "":
            filled[name] = check(variable, value, source=source)
        elif isinstance(variable.default, str):
            filled[name] = variable.default
        elif variable.default is Need.UNSET:
            filled[name] = f"${{{name}}}" if name in KEYS_THAT_MUST_EXIST else ""
        else:
            missing.append(name)
    if missing:
        raise ModelRepositoryError(f"{source}: no value for {', '.join(missing)}.")
    return filled


def check(variable: Variable, value: object, *, source: str) -> str:
    """The text to fill in for a value; raises ModelRepositoryError if it does not fit.

    Booleans come out as true or false, whichever of the backend's words went in.
    """
    text = _text(variable.kind, str(value) if isinstance(value, PurePath) else value)
    fits = text is not None and (not variable.choices or text in variable.choices)
    if text is not None and variable.kind in (Kind.INT, Kind.FLOAT):
        fits = variable.minimum <= float(text) <= variable.maximum
    if text is None or not fits:
        raise ModelRepositoryError(
            f"{source}: {variable.name} is {value!r}, expected {variable.expected}."
        )
    return text


def _text(kind: Kind, value: object) -> str | None:
    if kind is Kind.BOOL:
        word = str(value) if isinstance(value, (bool, int, str)) else ""
        return "true" if word in TRUE_WORDS else "false" if word in FALSE_WORDS else None
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    if kind is Kind.PATH and not isinstance(value, str):
        return None
    pattern = {
        Kind.INT: r"[0-9]+",
        Kind.FLOAT: r"([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?",
        Kind.INT_LIST: r"[0-9]+([,;][0-9]+)*",
    }.get(kind, r"[\s\S]*")
    return str(value) if re.fullmatch(pattern, str(value)) else None


def _untyped(name: str) -> Variable:
    return Variable(name, Kind.TEXT, "", ALWAYS_SUPPLIED.get(name, Need.MANDATORY))


def _hint(key: str, table: Mapping[str, Variable], names: Sequence[str]) -> str:
    if key in RETIRED:
        since, instead = RETIRED[key]
        return f" (gone since {since}, {f'use {instead}' if instead else 'not needed any more'})"
    for variable in table.values():
        if variable.key == key:
            return f" (the parameter {key} is filled from {variable.name})"
    return nearest(key, names)
