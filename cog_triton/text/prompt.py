"""What the model reads: the prediction's prompt or messages as one text.

Chat templates are Jinja programs that come with a model. They run as transformers runs
them (`transformers/utils/chat_template_utils.py`: a sandboxed immutable environment with
trim_blocks and lstrip_blocks, `raise_exception`, `strftime_now`, a `tojson` that does not
escape, loop controls, the `generation` tag), so that a template means the same here.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from string import Formatter
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, LoopControlExtension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from cog_triton.errors import (
    BadPromptTemplate,
    InvalidMessages,
    PromptRequired,
    PromptTemplateError,
    UnsupportedInput,
)
from cog_triton.text.tokenizer import Tokenizer

_ROLES = ("system", "user", "assistant")


@dataclass(frozen=True)
class Rendered:
    """A text to encode, and whether the tokenizer still has to add its special tokens."""

    text: str
    add_special_tokens: bool


def render_messages(
    tokenizer: Tokenizer, messages: Sequence[Mapping[str, Any]], *, system_prompt: str | None
) -> Rendered:
    """The conversation by the model's chat template, open for the assistant's answer.

    `system_prompt` goes first, unless the messages begin with a system entry of their own:
    then that one stands. Raises InvalidMessages (also with the template's own words, such
    as roles that must alternate), PromptRequired, UnsupportedInput for parts that are not
    text or a model without chat template, PromptTemplateError if the template fails.
    """
    entries = _checked(messages)
    if tokenizer.chat_template is None:
        raise UnsupportedInput("this model has no chat template for messages; send prompt instead")
    if system_prompt and entries[0]["role"] != "system":
        entries.insert(0, {"role": "system", "content": system_prompt})
    return _render_chat(tokenizer, tokenizer.chat_template, entries)


def render_prompt(
    tokenizer: Tokenizer, prompt: str, *, system_prompt: str | None, prompt_template: str | None
) -> Rendered:
    """A single prompt: by `prompt_template`, else by the chat template, else as it is.

    In a prompt_template {prompt} and {system_prompt} are replaced (a missing system prompt
    by nothing) and a literal brace is written twice; braces in the prompt mean nothing.
    Without any template a system prompt stands before the prompt, a blank line between.
    Raises PromptRequired, BadPromptTemplate, PromptTemplateError, InvalidMessages (the chat
    template's own words, such as a system role that it does not support).
    """
    if not prompt.strip():
        raise PromptRequired()
    if prompt_template:
        text = _fill(prompt_template, {"prompt": prompt, "system_prompt": system_prompt or ""})
    elif tokenizer.chat_template is not None:
        entries = [{"role": "user", "content": prompt}]
        if system_prompt:
            entries.insert(0, {"role": "system", "content": system_prompt})
        return _render_chat(tokenizer, tokenizer.chat_template, entries)
    else:
        text = f"{system_prompt}\n\n{prompt}" if system_prompt else prompt
    bos = tokenizer.bos_token
    return Rendered(text, add_special_tokens=not (bos and text.startswith(bos)))


def _fill(template: str, values: Mapping[str, str]) -> str:
    """The template with its fields replaced in one pass, by the field syntax of str.format."""
    parts: list[str] = []
    fields: set[str] = set()
    try:
        parsed = list(Formatter().parse(template))
    except ValueError as err:
        raise PromptTemplateError(f"prompt_template: {err}") from err
    for literal, name, spec, conversion in parsed:
        parts.append(literal)
        if name is None:
            continue
        if name not in values or spec or conversion:
            written = name + (f"!{conversion}" if conversion else "") + (f":{spec}" if spec else "")
            raise PromptTemplateError(f"prompt_template: {{{written}}} is not a field")
        parts.append(values[name])
        fields.add(name)
    if "prompt" not in fields:
        raise BadPromptTemplate()
    return "".join(parts)


def _checked(messages: object) -> list[dict[str, str]]:
    """The messages with nothing but role and text content, at least one with visible text."""
    if isinstance(messages, str | bytes) or not isinstance(messages, Sequence):
        raise InvalidMessages(f"messages is a {type(messages).__name__}, not a list")
    entries = [_entry(f"messages[{i}]", message) for i, message in enumerate(messages)]
    if not any(entry["content"].strip() for entry in entries):
        raise PromptRequired("messages holds no text")
    return entries


def _entry(place: str, message: object) -> dict[str, str]:
    if not isinstance(message, Mapping):
        raise InvalidMessages(f"{place} is a {type(message).__name__}, not an object")
    role = message.get("role")
    if role not in _ROLES:
        given = "no role" if role is None else f"the role {role!r}"
        hint = "; tool calls are not supported" if role in ("tool", "function") else ""
        raise InvalidMessages(f"{place} has {given}{hint}")
    return {"role": role, "content": _content(place, message.get("content"))}


def _content(place: str, content: object) -> str:
    """Text content: a string, or a list of text parts, which become lines."""
    if isinstance(content, str):
        return content
    if not isinstance(content, Sequence) or isinstance(content, bytes):
        raise InvalidMessages(f"{place} has no text content")
    texts = []
    for part in content:
        kind = part.get("type") if isinstance(part, Mapping) else None
        if kind is None:
            raise InvalidMessages(f"{place} has a content part without a type")
        if kind != "text":
            raise UnsupportedInput(f"{place} has a content part of type {kind!r}; only text works")
        if not isinstance(part.get("text"), str):
            raise InvalidMessages(f"{place} has a text part without text")
        texts.append(part["text"])
    return "\n".join(texts)


class _TemplateRejects(Exception):
    """A chat template called raise_exception: the conversation is not one that it can write."""


class _GenerationTag(Extension):
    """`{% generation %}` marks the assistant's words for training; here it only groups."""

    tags = {"generation"}  # noqa: RUF012 (jinja2 declares it as an instance attribute)

    def parse(self, parser: Parser) -> nodes.Node:
        lineno = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=lineno)


def _render_chat(tokenizer: Tokenizer, template: str, entries: list[dict[str, str]]) -> Rendered:
    try:
        text = _compiled(template).render(
            messages=entries,
            tools=None,
            documents=None,
            add_generation_prompt=True,
            **tokenizer.special_tokens,
        )
    except _TemplateRejects as err:
        raise InvalidMessages(f"the model's chat template says: {err}") from err
    except Exception as err:  # a template is a program: it can fail in any way
        raise PromptTemplateError(f"the model's chat template failed: {err}") from err
    # The template writes the special tokens itself, the first of them included.
    return Rendered(text, add_special_tokens=False)


@lru_cache(maxsize=8)
def _compiled(template: str) -> jinja2.Template:
    """The template as a program; compiling takes milliseconds, so it is done once a text."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[LoopControlExtension, _GenerationTag],
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment.from_string(template)


def _tojson(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Jinja's own filter escapes <, > and & for HTML; a prompt needs them as they are."""
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _raise_exception(message: object) -> NoReturn:
    raise _TemplateRejects(str(message))


def _strftime_now(layout: str) -> str:
    return datetime.now().strftime(layout)
