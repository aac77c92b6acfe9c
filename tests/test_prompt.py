"""Tests of cog_triton.text.prompt."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jinja2 import Environment, Template

from cog_triton.errors import (
    BadPromptTemplate,
    InvalidMessages,
    PromptRequired,
    PromptTemplateError,
    UnsupportedInput,
    UserError,
)
from cog_triton.text.prompt import Rendered, render_messages, render_prompt
from cog_triton.text.tokenizer import Tokenizer
from tests import text_samples

USER = {"role": "user", "content": "Hi."}
SYSTEM = {"role": "system", "content": "Be kind."}
ANSWER = {"role": "assistant", "content": "Hello."}
STRICT = (  # the manners of the Llama 2 and Mistral templates
    "{{ bos_token }}"
    "{% for message in messages %}"
    "{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}"
    "{% endif %}"
    "[{{ message['content'] }}]"
    "{% endfor %}"
)


def tokenizer(chat_template: str | None) -> Tokenizer:
    return Tokenizer(
        text_samples.ALL["llama2"](),
        chat_template=chat_template,
        special_tokens={"bos_token": "<s>", "eos_token": "</s>"},
    )


def chat(
    messages: Any, system_prompt: str | None = None, template: str = text_samples.CHATML
) -> Rendered:
    return render_messages(tokenizer(template), messages, system_prompt=system_prompt)


def plain(
    prompt: str,
    template: str | None = None,
    system_prompt: str | None = None,
    chat_template: str | None = None,
) -> Rendered:
    return render_prompt(
        tokenizer(chat_template), prompt, system_prompt=system_prompt, prompt_template=template
    )


def evaluated(template: str, messages: Sequence[Mapping[str, Any]] = (USER,)) -> str:
    return chat(list(messages), template=template).text


@pytest.mark.parametrize(
    ("messages", "error", "words"),
    [
        (None, InvalidMessages, "NoneType, not a list"),
        ("Hi.", InvalidMessages, "str, not a list"),
        (USER, InvalidMessages, "dict, not a list"),
        (["Hi."], InvalidMessages, r"messages\[0\] is a str"),
        ([USER, {"content": "Hi."}], InvalidMessages, r"messages\[1\] has no role"),
        ([{"role": "bot", "content": "Hi."}], InvalidMessages, "the role 'bot'"),
        ([{"role": ["user"], "content": "Hi."}], InvalidMessages, r"the role \['user'\]"),
        ([{"role": "tool", "content": "4"}], InvalidMessages, "tool calls are not supported"),
        ([{"role": "user"}], InvalidMessages, "no text content"),
        ([{"role": "user", "content": 4}], InvalidMessages, "no text content"),
        ([{"role": "user", "content": b"Hi."}], InvalidMessages, "no text content"),
        ([{"role": "user", "content": {"text": "a"}}], InvalidMessages, "no text content"),
        ([{"role": "user", "content": ["Hi."]}], InvalidMessages, "without a type"),
        ([{"role": "user", "content": [{"type": "text"}]}], InvalidMessages, "without text"),
        ([{"role": "user", "content": [{"type": "image_url"}]}], UnsupportedInput, "image_url"),
        ([], PromptRequired, "no text"),
        ([{"role": "user", "content": " \n"}], PromptRequired, "no text"),
        ([{"role": "user", "content": []}], PromptRequired, "no text"),
    ],
)
def test_messages_of_another_shape_are_named(
    messages: Any, error: type[UserError], words: str
) -> None:
    """The error says which entry is wrong and how, whatever was sent."""
    with pytest.raises(error, match=words):
        chat(messages)


def test_a_conversation_that_the_template_rejects_gives_its_words() -> None:
    """raise_exception of a template is the caller's error, with the template's own text."""
    with pytest.raises(InvalidMessages, match="roles must alternate"):
        chat([USER, USER], template=STRICT)
    with pytest.raises(InvalidMessages, match="roles must alternate"):
        plain("Hi.", system_prompt="Be kind.", chat_template=STRICT)


@pytest.mark.parametrize(
    "template",
    [
        "{% for %}",
        "{{ messages[0].content",
        "{{ nothing.at.all }}",
        "{{ messages[0]['content'] + 1 }}",
        "{{ 1 // 0 }}",
        "{{ messages | no_such_filter }}",
        "{% include 'file' %}",
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.append(1) }}",
        "{% generation %}never closed",
    ],
)
def test_a_failing_chat_template_is_a_template_error(template: str) -> None:
    """Wrong syntax, failing expressions and ways out of the sandbox are all template errors."""
    with pytest.raises(PromptTemplateError, match="chat template failed"):
        evaluated(template)


def test_messages_need_a_chat_template() -> None:
    """A base model has no way to write messages, and says so."""
    with pytest.raises(UnsupportedInput, match="no chat template"):
        render_messages(tokenizer(None), [USER], system_prompt=None)


@pytest.mark.parametrize(
    ("template", "words"),
    [
        ("{prompt} {name}", "{name}"),
        ("{name}", "{name}"),
        ("{prompt} {}", "{}"),
        ("{prompt} {0}", "{0}"),
        ("{ prompt }", "{ prompt }"),
        ("{prompt.__class__}", "{prompt.__class__}"),
        ("{prompt[0]}", "{prompt[0]}"),
        ("{prompt!r}", "{prompt!r}"),
        ("{prompt:>9}", "{prompt:>9}"),
        ("{prompt!s:{system_prompt}}", "{prompt!s:{system_prompt}}"),
        ("{prompt", "expected '}'"),
        ("{prompt} {", "Single '{'"),
        ("prompt} {prompt}", "Single '}'"),
    ],
)
def test_a_field_that_is_not_known_is_named(template: str, words: str) -> None:
    """Only the two plain fields are replaced; anything else is an error that quotes it."""
    with pytest.raises(PromptTemplateError, match=re.escape(words)):
        plain("Hi.", template)


@pytest.mark.parametrize("template", ["Answer:", "{{prompt}}", "{system_prompt}"])
def test_a_template_without_the_prompt_is_refused(template: str) -> None:
    """A prompt_template has to say where the prompt goes."""
    with pytest.raises(BadPromptTemplate):
        plain("Hi.", template)


@pytest.mark.parametrize("prompt", ["", " \n\t"])
@pytest.mark.parametrize("template", [None, "Q: {prompt}"])
def test_a_prompt_without_text_is_refused(prompt: str, template: str | None) -> None:
    """An empty prompt is an error, with a template around it too."""
    with pytest.raises(PromptRequired):
        plain(prompt, template)


@pytest.mark.parametrize(
    ("template", "system_prompt", "text"),
    [
        ("{prompt}", None, "Hi."),
        ("[INST] {system_prompt}{prompt} [/INST]", None, "[INST] Hi. [/INST]"),
        ("<<{system_prompt}>> {prompt}", "Be kind.", "<<Be kind.>> Hi."),
        ("{prompt} {prompt}", "dropped: no place for it", "Hi. Hi."),
        ('{{"q": "{prompt}"}}', None, '{"q": "Hi."}'),
        ("{{prompt}} {{{prompt}}}", None, "{prompt} {Hi.}"),
    ],
)
def test_a_prompt_template_is_filled(template: str, system_prompt: str | None, text: str) -> None:
    """Both fields are replaced wherever they stand, and a doubled brace is one brace."""
    assert plain("Hi.", template, system_prompt, text_samples.CHATML) == Rendered(text, True)


@settings(max_examples=100, deadline=None)
@given(prompt=st.text(min_size=1).filter(str.strip), system_prompt=st.text("{}prom:!.", max_size=9))
def test_braces_in_the_input_mean_nothing(prompt: str, system_prompt: str) -> None:
    """What the caller writes into prompt and system prompt arrives unchanged."""
    rendered = plain(prompt, "a {system_prompt} {{b}} {prompt}", system_prompt)
    assert rendered.text == f"a {system_prompt} {{b}} {prompt}"
    assert plain("{prompt} {x" + prompt, "{prompt}").text == "{prompt} {x" + prompt


@pytest.mark.parametrize("template", [None, ""])
def test_a_prompt_goes_through_the_chat_template(template: str | None) -> None:
    """Without a prompt_template the model's own template writes system and user entry."""
    assert plain("Hi.", template, "Be kind.", text_samples.CHATML) == Rendered(
        "<|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>user\nHi.<|im_end|>\n"
        "<|im_start|>assistant\n",
        add_special_tokens=False,
    )
    assert "system" not in plain("Hi.", template, "", text_samples.CHATML).text


def test_a_base_model_gets_the_prompt_as_it_is() -> None:
    """Without any template the prompt is the text, after the system prompt if there is one."""
    assert plain(" Hi. ") == Rendered(" Hi. ", add_special_tokens=True)
    assert plain("Hi.", None, "Be kind.") == Rendered("Be kind.\n\nHi.", add_special_tokens=True)


@pytest.mark.parametrize("template", [None, "{prompt}"])
def test_a_first_token_in_the_text_is_not_added_again(template: str | None) -> None:
    """A text that begins with the first token needs no other; encoded, it has exactly one."""
    rendered = plain("<s>the fox", template)
    assert rendered == Rendered("<s>the fox", add_special_tokens=False)
    ids = tokenizer(None).encode(rendered.text, add_special_tokens=rendered.add_special_tokens)
    assert ids[:2].count(1) == 1
    without_bos = Tokenizer(text_samples.ALL["llama2"]())
    assert render_prompt(
        without_bos, "<s>the", system_prompt=None, prompt_template=template
    ).add_special_tokens


def test_a_conversation_ends_where_the_answer_begins() -> None:
    """Messages are written in order, and the generation prompt asks for the assistant."""
    assert chat([SYSTEM, USER, ANSWER, USER]) == Rendered(
        "<|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>user\nHi.<|im_end|>\n"
        "<|im_start|>assistant\nHello.<|im_end|>\n<|im_start|>user\nHi.<|im_end|>\n"
        "<|im_start|>assistant\n",
        add_special_tokens=False,
    )


def test_a_system_entry_stands_before_the_system_prompt() -> None:
    """The system prompt goes first, but messages that bring their own keep it."""
    assert chat([USER], "Be kind.").text == chat([SYSTEM, USER]).text
    assert chat([SYSTEM, USER], "Be rude.").text == chat([SYSTEM, USER]).text
    assert chat([USER], "").text == chat([USER], None).text


def test_the_callers_messages_are_not_changed() -> None:
    """Rendering leaves the list and its entries as they were."""
    messages = [dict(USER)]
    chat(messages, "Be kind.")
    assert messages == [USER]


def test_text_parts_become_lines() -> None:
    """OpenAI's list of text parts is the text of the parts, one a line; other keys are ignored."""
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b", "cache": 1}]
    message = {"role": "user", "content": parts, "name": "Zoe"}
    assert chat([message]).text == chat([{"role": "user", "content": "a\nb"}]).text


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("{{ bos_token }}|{{ eos_token }}|{{ pad_token }}", "<s>|</s>|"),
        ("{% if tools is not none or documents %}x{% endif %}y", "y"),
        ("{{ messages | tojson }}", '[{"role": "user", "content": "<é & \'\\"世>"}]'),
        ("{{ {'b': 1, 'a': [2]} | tojson(indent=1, sort_keys=true) }}",
         '{\n "a": [\n  2\n ],\n "b": 1\n}'),
        ("{% for i in range(9) %}{% if i == 1 %}{% continue %}{% endif %}"
         "{% if i == 3 %}{% break %}{% endif %}{{ i }}{% endfor %}", "02"),
        ("a\n  {% if true %}\n    b\n  {% endif %}\nc\n", "a\n    b\nc"),
        ("{% set x = 1 %}{% generation %}{% set x = 2 %}{{ x }}{% endgeneration %}{{ x }}", "21"),
        ("{{ messages[0].content.split('&')[0].strip() }}", "<é"),
    ],
)  # fmt: skip
def test_templates_run_as_under_transformers(template: str, text: str) -> None:
    """Variables, filters, block trimming and the added tags mean what template writers expect."""
    assert evaluated(template, [{"role": "user", "content": "<é & '\"世>"}]) == text


def test_a_chat_template_is_compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Predictions after the first find the model's template compiled."""
    compiled = []
    compile_template = Environment.from_string

    def count(self: Environment, source: str) -> Template:
        compiled.append(source)
        return compile_template(self, source)

    monkeypatch.setattr(Environment, "from_string", count)
    template = "seen for the first time: {{ messages[0].content }}"
    assert evaluated(template) == evaluated(template) == "seen for the first time: Hi."
    assert compiled == [template]


def test_the_date_is_todays() -> None:
    """strftime_now gives the day of the prediction in the layout that the template asks for."""
    before = datetime.now().strftime("%d %b %Y")
    text = evaluated("{{ strftime_now('%d %b %Y') }}")
    assert text in (before, datetime.now().strftime("%d %b %Y"))
