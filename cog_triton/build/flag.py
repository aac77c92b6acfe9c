"""Command line flags of TensorRT-LLM's programs: what is known of one, and how it is written.

The programs end with status 2 at a flag they do not know, after minutes of start-up at times;
here a wrong flag or value is an error before anything runs.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from cog_triton.errors import SettingsError

Value = bool | int | float | str | Sequence[str]


class Kind(Enum):
    """What a flag takes; the enum's value is how an error message says it."""

    INT = "a whole number"
    FLOAT = "a number"
    TEXT = "text"
    LIST = "one or more words"
    SWITCH = "true or false"  # present or absent
    ENABLE = "enable or disable"


@dataclass(frozen=True)
class Flag:
    """One flag by its long name, without dashes; `choices` is empty where any value does."""

    name: str
    kind: Kind = Kind.TEXT
    choices: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()

    def argv(self, value: Value, where: str) -> list[str]:
        """The arguments for a value, [] for a switch that is off.

        Raises SettingsError naming `where` for a value that does not fit.
        """
        words = self._words(value)
        if words is None or (self.choices and not set(words) <= set(self.choices)):
            expected = f"one of {', '.join(self.choices)}" if self.choices else self.kind.value
            raise SettingsError(f"{where}.{self.name} is {value!r}, expected {expected}.")
        if self.kind is Kind.SWITCH:
            return [f"--{self.name}"] if words else []
        return [f"--{self.name}", *words]

    def _words(self, value: Value) -> list[str] | None:
        """The value as the program reads it; None if it is of the wrong kind."""
        if self.kind is Kind.SWITCH:
            switch = {True: ["on"], False: [], "true": ["on"], "false": []}
            return switch.get(value) if isinstance(value, (bool, str)) else None
        if self.kind is Kind.ENABLE:
            value = {True: "enable", False: "disable"}[value] if isinstance(value, bool) else value
            return [value] if value in ("enable", "disable") else None
        if self.kind is Kind.LIST:
            words = value.split() if isinstance(value, str) else value
            is_list = (
                isinstance(words, Sequence) and words and all(isinstance(w, str) for w in words)
            )
            return list(words) if is_list else None  # type: ignore[arg-type]
        if isinstance(value, bool) or not isinstance(value, (int, float, str)):
            return None
        if self.kind is Kind.TEXT:
            return [str(value)] if value != "" else None
        try:
            number = int(value) if self.kind is Kind.INT else float(value)
        except ValueError:
            return None
        is_whole = self.kind is Kind.FLOAT or not isinstance(value, float)
        return [str(number)] if is_whole else None


FlagTable = Mapping[str, Flag]


def table(flags: Iterable[Flag]) -> FlagTable:
    """Flags by name."""
    return {flag.name: flag for flag in flags}


def render(flags: FlagTable, values: Mapping[str, Value], where: str) -> list[str]:
    """Arguments for the values, in their order; raises SettingsError for what is not known."""
    arguments: list[str] = []
    for name, value in values.items():
        arguments += lookup(flags, name, where).argv(value, where)
    return arguments


def lookup(flags: FlagTable, name: str, where: str) -> Flag:
    """The flag of that name (dashes before it do not count), or SettingsError with the nearest."""
    bare = name.lstrip("-")
    flag = flags.get(bare)
    if flag is None:
        near = difflib.get_close_matches(bare, flags, n=1)
        hint = f" (nearest: {near[0]})" if near else ""
        raise SettingsError(f"{where}.{bare} is not a flag of TensorRT-LLM 1.1{hint}.")
    return flag
