#!/usr/bin/env python3
"""Fills the variables of a Triton model's config.pbtxt.

    fill_template.py [-i] FILE name1:value1,name2:value2

The command line is that of NVIDIA's tools/fill_template.py, so the commands of
older guides work; what it does is stricter: a value that is missing, unknown or
of the wrong type is an error, and the result is a valid model config. Optional
variables may be left out. In a value a comma is written `\\,` and a colon `\\:`
(or `\\\\:`, which NVIDIA's tool needs, as it splits twice).
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from cog_triton.errors import CogTritonError, ModelRepositoryError
from cog_triton.template import render, variables
from cog_triton.template_values import configure
from cog_triton.template_variables import RETIRED

_MODEL_NAME = re.compile(r'^name\s*:\s*"([^"]+)"', re.MULTILINE)


def split_substitutions(argument: str) -> dict[str, str]:
    """`name:value,name:value` as a mapping; a later pair wins, as in NVIDIA's tool.

    Both splits take one level of backslashes away, but the first one leaves the one
    before a colon, so that one backslash is enough there.
    """
    pairs: dict[str, str] = {}
    for pair in _split(argument, ",", keep=":"):
        parts = _split(pair, ":")
        if len(parts) != 2 or not parts[0].strip():
            raise ModelRepositoryError(
                f"{pair!r} is not name:value; in a value write a comma as \\, and a colon as \\:"
            )
        pairs[parts[0].strip()] = parts[1]
    return pairs


def _split(text: str, delimiter: str, keep: str = "") -> list[str]:
    parts = [""]
    position = 0
    while position < len(text):
        char = text[position]
        if char == "\\" and position + 1 < len(text):
            position += 1
            parts[-1] += text[position] if text[position] != keep else f"\\{keep}"
        elif char == delimiter:
            parts.append("")
        else:
            parts[-1] += char
        position += 1
    return parts


def fill_file(file: Path, substitutions: str) -> str:
    """The filled text of a template; notes on values that are not needed go to stderr."""
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as err:
        raise ModelRepositoryError(f"{file} cannot be read: {err}") from err
    values = split_substitutions(substitutions)
    names = variables(text, source=str(file))
    for name in [name for name in values if name not in names and name in RETIRED]:
        since, instead = RETIRED[name]
        if not instead:
            del values[name]
            print(f"note: {name} is gone since {since}; its value is not needed", file=sys.stderr)
    found = _MODEL_NAME.search(text)
    model = found.group(1) if found else ""
    return render(configure(model, text, values, source=str(file)))


def replace(file: Path, text: str) -> None:
    """Gives the file this text at once: whoever reads it sees the old or the new one."""
    target = file.resolve()
    try:
        handle, name = tempfile.mkstemp(prefix=f".{target.name}-", dir=target.parent)
        try:
            with open(handle, "w", encoding="utf-8") as temporary:
                temporary.write(text)
            os.chmod(name, target.stat().st_mode & 0o7777)
            os.replace(name, target)
        except BaseException:
            os.unlink(name)
            raise
    except OSError as err:
        raise ModelRepositoryError(f"{file} cannot be written: {err}") from err


def main(arguments: list[str] | None = None) -> int:
    """Runs the command; 0, or 1 after one line on stderr that says what is wrong."""
    parser = argparse.ArgumentParser(description="Fill the variables of a Triton model config.")
    parser.add_argument("file", type=Path, help="path of the config.pbtxt")
    parser.add_argument("substitutions", help="name1:value1,name2:value2")
    parser.add_argument("-i", "--in_place", action="store_true", help="write back to the file")
    options = parser.parse_args(arguments)
    try:
        text = fill_file(options.file, options.substitutions)
        if options.in_place:
            replace(options.file, text)
        else:
            sys.stdout.write(text)
    except CogTritonError as err:
        print(" ".join(str(err).split()), file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
