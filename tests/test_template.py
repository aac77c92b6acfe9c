"""Strict filling of templates, and the checks of the values that go in."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cog_triton.errors import ModelRepositoryError
from cog_triton.template import fill, parse, render, variables
from cog_triton.template_values import FALSE_WORDS, TRUE_WORDS, check, configure, resolve
from cog_triton.template_variables import (
    ALWAYS_SUPPLIED,
    TENSORRT_LLM,
    Kind,
    Need,
    Variable,
    known,
)

ROOT = Path(__file__).parents[1]
CONTRACT: dict[str, Any] = json.loads(
    (ROOT / "tests/data/contracts/tensorrt_llm_model.json").read_text()
)
MANDATORY = {
    "triton_max_batch_size": 4,
    "decoupled_mode": True,
    "engine_dir": "/engine",
    "batching_strategy": "inflight_fused_batching",
}


def test_a_variable_without_a_value_is_an_error_that_names_it_and_the_file() -> None:
    """Nothing is left unfilled: all missing keys are named at once."""
    with pytest.raises(ModelRepositoryError, match=r"^E3006 .*a\.pbtxt: no value for size, who\."):
        fill('name: "${who}" max_batch_size: ${size}', {}, source="a.pbtxt")


def test_a_value_without_a_variable_is_an_error_that_names_the_nearest() -> None:
    """A misspelt key does not vanish."""
    with pytest.raises(ModelRepositoryError, match=r"engine_dri \(nearest known key: engine_dir\)"):
        fill('name: "${engine_dir}"', {"engine_dir": "a", "engine_dri": "b"}, source="t")


@pytest.mark.parametrize(
    "text",
    [
        'name: "a/${who}"',
        'name: "${who}s"',
        "max_batch_size: TYPE_${who}",
        "max_batch_size: ${who}${who}",
        "max_batch_size: ${who}2",
        "max_batch_size: ${wh o}",
        "max_batch_size: ${who:-3}",
        "max_batch_size: ${}",
        "max_batch_size: ${",
        "max_batch_size: $${who}",
        'name: "${who"',
    ],
)
def test_a_dollar_brace_that_is_not_a_whole_value_is_an_error(text: str) -> None:
    """Only `${name}` as a whole value exists; the error gives the line."""
    with pytest.raises(ModelRepositoryError, match="t, line 2: "):
        fill(f"\n{text}", {"who": "1"}, source="t")


@pytest.mark.parametrize("value", ["", "4 max_batch_size: 9", "4}", 'a"', "${x}", "#", "4\n"])
def test_a_value_outside_of_quotes_must_be_one_token(value: str) -> None:
    """An unquoted value cannot add anything to the config but itself."""
    with pytest.raises(ModelRepositoryError, match=r"size is .*outside of quotes"):
        fill("max_batch_size: ${size}", {"size": value}, source="t")


def test_bytes_that_are_no_text_are_an_error() -> None:
    """A path with undecodable bytes cannot go into a config."""
    with pytest.raises(ModelRepositoryError, match="who is not valid Unicode"):
        fill('name: "${who}"', {"who": "\udc80"}, source="t")


@given(value=st.text(st.characters(exclude_categories=["Cs"])), quote=st.sampled_from("'\""))
def test_no_value_breaks_out_of_its_quotes(value: str, quote: str) -> None:
    """Whatever stands in a value, the config holds exactly that and nothing more."""
    text = fill(f"name: {quote}${{who}}{quote}\nmax_batch_size: 1", {"who": value}, source="t")
    config = parse(text, source="t")
    assert (config.name, config.max_batch_size) == (value, 1)
    assert len(config.ListFields()) == (2 if value else 1)
    assert text.count("\n") == 1


def test_comments_lists_and_repeated_variables_are_handled() -> None:
    """A variable may stand several times and in a list; one in a comment is only a comment."""
    text = '# ${no} "\nname: "#"\n'
    text += "dynamic_batching { preferred_batch_size: [${a},${b}, ${a}] }\n{ ${c}}"
    assert variables(text, source="t") == ["a", "b", "c"]
    filled = fill(text, {"a": "1", "b": "2", "c": "3"}, source="t")
    assert filled.endswith("[1,2, 1] }\n{ 3}")


def test_text_that_is_no_config_is_an_error_with_its_line() -> None:
    """The position is that in the file."""
    with pytest.raises(ModelRepositoryError, match=r"t is not .*line 2, column 3: .*max_batch_siz"):
        parse('name: "a"\n  max_batch_siz: 1', source="t")


def test_rendering_gives_the_same_config_back() -> None:
    """What is written is what was checked."""
    text = (ROOT / "triton_model_repo/tensorrt_llm/config.pbtxt").read_text()
    config = configure("tensorrt_llm", text, MANDATORY, source="t")
    assert parse(render(config), source="t") == config


@pytest.mark.parametrize(
    ("kind", "good", "bad"),
    [
        (Kind.INT, {"4": "4", 4: "4", 0: "0"}, ["four", "4.0", -1, "", True, 4.0, "٤", " 4"]),
        (Kind.FLOAT, {"0.5": "0.5", 1: "1", 1e-05: "1e-05", ".5": ".5"}, ["nan", "inf", "-1", "a"]),
        (
            Kind.BOOL,
            {"True": "true", "TRUE": "true", 1: "true", "False": "false", "0": "false"},
            ["yes", "tRUE", 2, 1.0, "t"],
        ),
        (Kind.PATH, {"/a b": "/a b", Path("/c"): "/c"}, [3, True, b"/a", ["/a"]]),
        (Kind.INT_LIST, {"1,2;3": "1,2;3", 7: "7"}, ["1,", "a", "1 2", True]),
        (Kind.TEXT, {"{0}, {0, 1}": "{0}, {0, 1}", 3: "3"}, [True, None, object()]),
    ],
)
def test_values_are_checked_against_their_type(
    kind: Kind, good: dict[object, str], bad: list[object]
) -> None:
    """A value of the wrong type is named with the key and with what was expected."""
    variable = Variable("key", kind, "")
    assert {value: check(variable, value, source="t") for value in good} == good
    for value in bad:
        with pytest.raises(ModelRepositoryError, match=f"t: key is .*, expected {kind.value}"):
            check(variable, value, source="t")


def test_values_out_of_range_are_errors() -> None:
    """Shares are 0 to 1, a batch is at least 1, an enum is one of its words."""
    for name, value, expected in (
        ("kv_cache_free_gpu_mem_fraction", 1.5, "a number, 0 to 1"),
        ("triton_max_batch_size", 0, "a whole number, 1 or more"),
        ("batch_scheduler_policy", "guaranteed_completion", "guaranteed_no_evict, max_utilization"),
    ):
        with pytest.raises(ModelRepositoryError, match=f"{name} is .*{expected}"):
            check(known("tensorrt_llm")[name], value, source="t")


def test_retired_names_and_parameter_keys_are_answered_with_todays_name() -> None:
    """Names that older guides use lead to the name that took their place."""
    for key, hint in (
        ("tokenizer_type", "gone since 0.9"),
        ("visual_model_path", "use multimodal_model_path"),
        ("gpt_model_path", "filled from engine_dir"),
        ("engine_dirr", "nearest known key: engine_dir"),
    ):
        with pytest.raises(ModelRepositoryError, match=f"no such variable: {key} .*{hint}"):
            resolve("tensorrt_llm", ["engine_dir"], {key: "x", "engine_dir": "/e"}, source="t")


def test_a_model_without_a_table_gets_only_the_queue_defaults() -> None:
    """As in NVIDIA's tool, the queue's variables are always supplied; the rest must be given."""
    names = ["count", "max_queue_size", "max_queue_delay_microseconds"]
    with pytest.raises(ModelRepositoryError, match=r"no value for count\."):
        resolve("preprocessing", names, {}, source="t")
    filled = resolve("preprocessing", names, {"count": 2, "max_queue_size": 5}, source="t")
    assert filled == {"count": "2", "max_queue_size": "5", "max_queue_delay_microseconds": "0"}


def test_the_table_is_that_of_the_contract() -> None:
    """Names, choices, parameter keys and kinds are those of TensorRT-LLM 1.1's template."""
    kinds = {"int": Kind.INT, "bool": Kind.BOOL, "enum": Kind.ENUM, "path": Kind.PATH}
    kinds |= {"float": Kind.FLOAT, "float 0..1": Kind.FLOAT, "brace lists": Kind.TEXT}
    table = {
        variable.name: (variable.kind, set(variable.choices), variable.key)
        for variable in TENSORRT_LLM
    }
    assert table == {
        entry["variable"]: (
            kinds.get(entry["value_type"], Kind.INT_LIST),
            set(entry.get("choices", [])),
            entry.get("parameter_key", ""),
        )
        for entry in CONTRACT["template_variables"]
    }
    optional = {entry["variable"] for entry in CONTRACT["template_variables"]} - {
        entry["variable"] for entry in CONTRACT["template_variables"] if entry["mandatory"]
    }
    assert {entry.name for entry in TENSORRT_LLM if entry.default is Need.UNSET} == optional


def test_boolean_words_and_queue_defaults_are_those_of_the_contract() -> None:
    """The words are the backend's, the two defaults those of NVIDIA's fill tool."""
    words = {"true": list(TRUE_WORDS), "false": list(FALSE_WORDS)}
    assert words == CONTRACT["boolean_words"]
    assert {name: int(text) for name, text in ALWAYS_SUPPLIED.items()} == CONTRACT[
        "always_supplied"
    ]
    assert all(known("tensorrt_llm")[name].default == "0" for name in ALWAYS_SUPPLIED)


def test_unset_parameters_are_left_out_but_for_those_that_must_exist() -> None:
    """The backend's own defaults hold, and it finds the keys that it reads unconditionally."""
    text = (ROOT / "triton_model_repo/tensorrt_llm/config.pbtxt").read_text()
    config = configure("tensorrt_llm", text, {**MANDATORY, "max_beam_width": ""}, source="t")
    parameters = {key: value.string_value for key, value in config.parameters.items()}
    fixed = {key: text for key, text in CONTRACT["parameters"].items() if "${" not in text}
    unset = {f"{name}": f"${{{name}}}" for name in CONTRACT["keys_that_must_exist"]}
    assert parameters == {
        **fixed,
        **unset,
        "gpt_model_type": "inflight_fused_batching",
        "gpt_model_path": "/engine",
    }
