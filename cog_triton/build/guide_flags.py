"""Command lines of older guides, as settings of this product.

`trtllm-build`, `convert_checkpoint.py` and, of TensorRT-LLM 0.7, `build.py` and
`hf_gpt_convert.py` as the guides call them: each flag becomes the setting that does the same
today, or is refused with its replacement named. What a flag was replaced by: the release notes of
TensorRT-LLM as far as the guides reach (0.7 to 0.12).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from cog_triton.build import convert, trtllm_build
from cog_triton.build.flag import Flag, FlagTable, Kind
from cog_triton.build.guide_table import OLD_FLAGS
from cog_triton.errors import SettingsError

_DEFAULT_MAX_INPUT_LEN = 1024  # trtllm-build's, when a guide leaves it out


@dataclass
class Translation:
    """Settings by their path (`engine.max_seq_len`), and what a person should know of it."""

    settings: dict[str, object] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def set(self, path: str, value: object, flag: str) -> None:
        """Raises SettingsError where two flags contradict each other."""
        if self.settings.get(path, value) != value:
            raise SettingsError(
                f"{flag} makes {path} {value}, another flag made it {self.settings[path]}."
            )
        self.settings[path] = value


_ALL_CONVERT: FlagTable = {
    name: flag for flags in convert.FLAGS.values() for name, flag in flags.items()
}
_KNOWN: Mapping[str, tuple[FlagTable, str, Mapping[str, str]]] = {
    "trtllm-build": (trtllm_build.FLAGS, "build.flags", trtllm_build.FROM_SETTINGS),
    "build.py": (trtllm_build.FLAGS, "build.flags", trtllm_build.FROM_SETTINGS),
    "convert_checkpoint.py": (_ALL_CONVERT, "build.convert_flags", convert.FROM_SETTINGS),
    "hf_gpt_convert.py": ({}, "build.convert_flags", {}),
}


def translate(arguments: Sequence[str]) -> Translation:
    """Command lines with `--` between them, each with or without its program's name.

    Without a name a command is taken for trtllm-build.

    Raises: SettingsError for a flag that is refused, is not known or has a wrong value.
    """
    translation = Translation()
    for command in _split(arguments):
        program, flags = _program(command)
        given = _read(program, flags)
        for name, value in given.items():
            _apply(program, name, value, translation)
        if program in ("trtllm-build", "build.py"):
            _sequence_length(given, translation)
        if program == "convert_checkpoint.py":
            _quantization(given, translation)
    return translation


def _split(arguments: Sequence[str]) -> list[list[str]]:
    commands: list[list[str]] = [[]]
    for argument in arguments:
        if argument == "--":
            commands.append([])
        else:
            commands[-1].append(argument)
    return [command for command in commands if command]


def _program(command: list[str]) -> tuple[str, list[str]]:
    """The program's name (trtllm-build if none is given) and its arguments."""
    words = command[1:] if re.fullmatch(r"(.*/)?python3?", command[0]) else command
    if words and not words[0].startswith("-"):
        name = words[0].rsplit("/", 1)[-1]
        if name not in OLD_FLAGS:
            raise SettingsError(
                f"{name} is not a program of a build; known: {', '.join(OLD_FLAGS)}."
            )
        return name, words[1:]
    return "trtllm-build", words


def _read(program: str, words: list[str]) -> dict[str, str]:
    """Flags with their values; a flag without one has the value ""."""
    given: dict[str, str] = {}
    name = None
    for word in words:
        if re.match(r"--?[A-Za-z]", word):
            name, _, value = word.lstrip("-").partition("=")
            if name in given:
                raise SettingsError(f"{program}: --{name} is given twice.")
            given[name] = value
        elif name is None:
            raise SettingsError(f"{program}: {word} belongs to no flag.")
        else:
            given[name] = f"{given[name]} {word}".strip()
    return given


def _apply(program: str, name: str, value: str, translation: Translation) -> None:
    old = OLD_FLAGS[program].get(name)
    flag = f"{program} {'--' if len(name) > 1 else '-'}{name}"
    if name in ("max_output_len", "quant_ckpt_path", *_QUANTIZATION):
        return  # together with others, below
    if old is None and name == "paged_kv_cache":
        _paged_kv_cache(value, flag, translation)
    elif old is None:
        _current(program, name, value, translation)
    elif old.startswith("refuse: "):
        raise SettingsError(f"{flag}: {old.removeprefix('refuse: ')}.")
    elif old.startswith("note: "):
        translation.notes.append(f"{flag} is left out: {old.removeprefix('note: ')}.")
    elif old.startswith("->"):
        _current(program, old.removeprefix("->"), value or "auto", translation)
    else:
        path = old.removeprefix("=")
        if value in ("", "enable", "disable"):
            translation.set(path, value != "disable", flag)
        else:
            translation.set(path, _number(value), flag)
        translation.notes.append(f"{flag} is now the setting {path}.")


def _current(program: str, name: str, value: str, translation: Translation) -> None:
    """A flag that the program of today has."""
    table, section, from_settings = _KNOWN[program]
    known = table.get(name) or next((f for f in table.values() if name in f.aliases), None)
    if known is None:
        raise SettingsError(f"{program} --{name} is not a flag that TensorRT-LLM 1.1 has.")
    parsed = _value(known, value)
    known.argv(parsed, program)
    target = from_settings.get(known.name)
    translation.set(target or f"{section}.{known.name}", parsed, f"{program} --{name}")


def _value(flag: Flag, text: str) -> bool | int | float | str:
    if flag.kind is Kind.SWITCH:
        return text in ("", "true", "True")
    if flag.kind is Kind.ENABLE:
        return text or "enable"  # switches without a value in 0.7
    return _number(text)


def _number(text: str) -> int | float | str:
    for convert_text in (int, float):
        try:
            return convert_text(text)
        except ValueError:
            continue
    return text


def _paged_kv_cache(value: str, flag: str, translation: Translation) -> None:
    if value not in ("", "enable"):
        raise SettingsError(f"{flag} {value}: in-flight batching needs a paged KV cache.")
    translation.set("build.flags.kv_cache_type", "paged", flag)
    translation.notes.append(f"{flag} is now --kv_cache_type paged, which is the default.")


def _sequence_length(given: Mapping[str, str], translation: Translation) -> None:
    """`--max_output_len`, until 0.10: prompt and output together are max_seq_len since 0.11."""
    if "max_output_len" not in given:
        return
    max_input_len = translation.settings.get("engine.max_input_len", _DEFAULT_MAX_INPUT_LEN)
    flag = f"--max_output_len {given['max_output_len']}"
    try:
        max_seq_len = int(str(max_input_len)) + int(given["max_output_len"])
    except ValueError as err:
        raise SettingsError(f"{flag} is not a whole number.") from err
    translation.set("engine.max_input_len", max_input_len, flag)
    translation.set("engine.max_seq_len", max_seq_len, flag)
    translation.notes.append(
        f"{flag} is now engine.max_seq_len: {max_input_len} + {given['max_output_len']} = "
        f"{max_seq_len}."
    )


_QUANTIZATION = (
    "use_weight_only",
    "weight_only_precision",
    "smoothquant",
    "sq",
    "use_fp8_rowwise",
    "use_fp8",
    "int8_kv_cache",
    "fp8_kv_cache",
)


def _quantization(given: Mapping[str, str], translation: Translation) -> None:
    """Several flags of the conversion scripts, as the one setting that stands for them."""
    path, kv_path = "build.quantization", "build.kv_cache_quantization"
    if "use_weight_only" in given:
        precision = given.get("weight_only_precision") or "int8"
        names = {"int8": "int8_weight_only", "int4": "int4_weight_only", "int4_awq": "int4_awq"}
        if precision not in names:
            raise SettingsError(
                f"--weight_only_precision {precision} is not supported; {', '.join(names)} are."
            )
        translation.set(path, names[precision], "--use_weight_only")
    alpha = given.get("smoothquant", given.get("sq"))
    if alpha is not None:
        translation.set(path, "smoothquant", "--smoothquant")
        translation.set("build.smoothquant_alpha", _number(alpha), "--smoothquant")
    for flag in ("use_fp8", "use_fp8_rowwise"):
        if flag in given:
            translation.set(path, flag.removeprefix("use_"), f"--{flag}")
    for flag in ("int8_kv_cache", "fp8_kv_cache"):
        if flag in given:
            translation.set(kv_path, flag.split("_", maxsplit=1)[0], f"--{flag}")
    if "quant_ckpt_path" in given:
        translation.set("build.quant_ckpt_path", given["quant_ckpt_path"], "--quant_ckpt_path")
