"""Strict filling of `${name}` in Triton model configs, and reading the result.

NVIDIA's fill tool leaves a variable without a value in the file and says
nothing; what happens then depends on where it stands (an unquoted one stops
the model from loading, a quoted one is passed on as text). Here every variable
needs a value, every value needs a variable, and a value can only ever be one
string or one token: it cannot break out of its quotes.
"""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from cog_triton.errors import ModelRepositoryError, RuntimeUnavailable

# The message class is made when tritonclient's generated module is imported,
# so there is no static type for it.
ModelConfig: TypeAlias = Any

_PIECE = re.compile(
    r"""(?P<comment>\#[^\n]*)
      | (?P<string>"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')
      | (?P<bare>[\w.+\-$}]*\$\{[^\s"'\#,:;<>\[\]]*)""",
    re.VERBOSE,
)
_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
_BARE_VARIABLE = re.compile(r"(\$\{[A-Za-z_][A-Za-z0-9_]*\})\}*")
_TOKEN = re.compile(r"[A-Za-z0-9_.+\-]+")


class _Place(NamedTuple):
    """One `${name}`: characters [start, end) of the text, inside quotes or not."""

    name: str
    start: int
    end: int
    quoted: bool


def variables(text: str, *, source: str) -> list[str]:
    """The names of the variables of a template, in order, each once.

    Only the form `${name}` exists, and only as a whole value (`key: ${name}`,
    `key: "${name}"`); a `${` of any other kind raises ModelRepositoryError. Comments
    are passed over.
    """
    return list(dict.fromkeys(place.name for place in _places(text, source)))


def fill(text: str, values: Mapping[str, str], *, source: str) -> str:
    """The text with each `${name}` replaced by `values[name]`.

    A value in quotes is escaped as protobuf's text format wants it; one outside
    of quotes has to be a single token (number, word). Raises ModelRepositoryError
    that names the key and `source` for a variable without a value, a value without
    a variable, and a value that does not fit its place.
    """
    places = list(_places(text, source))
    names = {place.name for place in places}
    missing = sorted(names - values.keys())
    if missing:
        raise ModelRepositoryError(f"{source}: no value for {', '.join(missing)}.")
    unknown = sorted(values.keys() - names)
    if unknown:
        hints = (f"{key}{nearest(key, names)}" for key in unknown)
        raise ModelRepositoryError(f"{source}: no such variable: {', '.join(hints)}.")
    pieces: list[str] = []
    done = 0
    for place in places:
        pieces += text[done : place.start], _encode(values[place.name], place, source)
        done = place.end
    return "".join([*pieces, text[done:]])


def nearest(key: str, known: Iterable[str]) -> str:
    """` (nearest known key: …)` for a message, or all known keys if none is near."""
    names = sorted(known)
    matches = difflib.get_close_matches(key, names, n=1)
    if matches:
        return f" (nearest known key: {matches[0]})"
    return f" (known keys: {', '.join(names)})" if names else " (the template has no variables)"


def parse(text: str, *, source: str) -> ModelConfig:
    """The text as Triton's `inference.ModelConfig`.

    Raises ModelRepositoryError with the line and column where it stops being one;
    the names and types are those of tritonclient's `model_config_pb2`.
    """
    text_format = importlib.import_module("google.protobuf.text_format")
    try:
        return text_format.Parse(text, _model_config_module().ModelConfig())
    except text_format.ParseError as err:
        where = f"line {err.GetLine()}, column {err.GetColumn()}"
        raise ModelRepositoryError(
            f"{source} is not a Triton model config: {where}: {err}"
        ) from err


def render(config: ModelConfig) -> str:
    """The text form of a ModelConfig; the same config gives the same text."""
    text_format = importlib.import_module("google.protobuf.text_format")
    text: str = text_format.MessageToString(config, as_utf8=True)
    return text


def _places(text: str, source: str) -> Iterator[_Place]:
    for piece in _PIECE.finditer(text):
        if piece.lastgroup == "comment":
            continue
        quoted = piece.lastgroup == "string"
        found = piece.group()[1:-1] if quoted else piece.group()
        start = piece.start() + int(quoted)
        if "${" not in found:
            continue
        if not quoted and (bare := _BARE_VARIABLE.fullmatch(found)):
            found = bare.group(1)
        if not (match := _VARIABLE.fullmatch(found)):
            line = text.count("\n", 0, start) + 1
            raise ModelRepositoryError(
                f"{source}, line {line}: {found!r} is not a variable: only a whole value "
                "of the form ${name} is filled."
            )
        yield _Place(match.group(1), start, start + len(found), quoted)


def _encode(value: str, place: _Place, source: str) -> str:
    if not place.quoted:
        if _TOKEN.fullmatch(value):
            return value
        raise ModelRepositoryError(
            f"{source}: {place.name} is {value!r}, but stands outside of quotes, where only "
            "one number or word fits."
        )
    try:
        value.encode("utf-8")
    except UnicodeEncodeError as err:
        raise ModelRepositoryError(f"{source}: {place.name} is not valid Unicode.") from err
    escape = importlib.import_module("google.protobuf.text_encoding").CEscape
    escaped: str = escape(value, as_utf8=True)
    return escaped


@lru_cache(maxsize=1)
def _model_config_module() -> Any:
    """tritonclient's generated `model_config_pb2`, without the rest of tritonclient.

    `import tritonclient.grpc` also loads grpc and numpy: 160 ms against 5 ms for
    this one file, on the way to the first token.
    """
    package = importlib.util.find_spec("tritonclient")
    for folder in package.submodule_search_locations or [] if package else []:
        file = Path(folder) / "grpc" / "model_config_pb2.py"
        spec = importlib.util.spec_from_file_location("cog_triton._model_config_pb2", file)
        if file.is_file() and spec and spec.loader:
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
            return module
    raise RuntimeUnavailable("tritonclient, which knows Triton's config format, is missing.")
