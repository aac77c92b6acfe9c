"""Holds command lines against the contract data of TensorRT-LLM 1.1, as argparse would, strictly.

Only the standard library: the stand-in programs use it too, under whichever Python they find.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

CONTRACTS = Path(__file__).resolve().parent / "data" / "contracts"
TRTLLM_BUILD = "trtllm-build"


class ContractViolation(Exception):
    """A flag or value that the contract does not know."""


def contract(name: str) -> dict[str, Any]:
    data: dict[str, Any] = json.loads((CONTRACTS / f"{name}.json").read_bytes())
    return data


def flags_of(program: str) -> dict[str, dict[str, Any]]:
    """The contract's flags by long name, of trtllm-build or of a family's conversion script."""
    if program == TRTLLM_BUILD:
        groups = contract("trtllm_build_flags")["flags"].values()
        return {flag["flag"]: flag for group in groups for flag in group}
    families = contract("convert_checkpoint_flags")["families"]
    family = families[families[program].get("same_flags_as", program)]
    return {flag["flag"]: flag for flag in family["flags"]}


def check(program: str, arguments: Sequence[str]) -> dict[str, Any]:
    """Flag values by long name; raises ContractViolation for what the program would refuse."""
    flags = flags_of(program)
    aliases = {alias: flag for flag in flags.values() for alias in flag.get("aliases", ())}
    values: dict[str, Any] = {}
    for name, words in _groups(program, arguments):
        flag = flags.get(name) or aliases.get(name)
        if flag is None:
            raise ContractViolation(f"{program}: unrecognized arguments: {name}")
        values[flag["flag"]] = _value(program, flag, words)
    for name, flag in flags.items():
        if flag.get("required") and name not in values:
            raise ContractViolation(f"{program}: {name} is required")
    return values


def _groups(program: str, arguments: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    name = ""
    words: list[str] = []
    for argument in arguments:
        if argument.startswith("-") and not argument.lstrip("-")[:1].isdigit():
            if name:
                yield name, words
            name, words = argument, []
        elif name:
            words.append(argument)
        else:
            raise ContractViolation(f"{program}: unrecognized arguments: {argument}")
    if name:
        yield name, words


def _value(program: str, flag: Mapping[str, Any], words: list[str]) -> Any:
    name, kind = flag["flag"], flag["type"]
    if kind == "store_true":
        if words:
            raise ContractViolation(f"{program}: unrecognized arguments: {' '.join(words)}")
        return True
    is_list = "one or more" in kind
    if not words and flag.get("value_optional"):
        return flag["default"]
    if not words or (len(words) > 1 and not is_list):
        raise ContractViolation(f"{program}: {name} expects a value, got {words}")
    try:
        parsed = [{"int": int, "float": float}.get(kind, str)(word) for word in words]
    except ValueError as err:
        raise ContractViolation(f"{program}: {name}: invalid {kind} value: {words}") from err
    choices = flag.get("choices")
    for value in parsed:
        if choices and value not in choices:
            raise ContractViolation(f"{program}: {name}: invalid choice: {value}")
    return parsed if is_list else parsed[0]
