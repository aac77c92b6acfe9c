"""A text request to tensorrt_llm_bls as requests to tensorrt_llm."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from cog_triton.errors import UnsupportedInput, UserError
from cog_triton.runtimes.text_models.bls_request import InnerRequest, Target, parse
from cog_triton.runtimes.text_models.preprocess import Preprocessor
from cog_triton.runtimes.text_models.text_tokenizer import TextTokenizer
from cog_triton.text.tokenizer import Tokenizer
from tests import text_samples

CONTRACTS = Path(__file__).parent / "data" / "contracts"
ARRAY = npt.NDArray[Any]


def contract(model: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((CONTRACTS / f"{model}_model.json").read_text())
    return content


def scalar(value: object, dtype: Any = None) -> ARRAY:
    return np.array([[value]], dtype)


def text_request(*prompts: str, **others: ARRAY) -> dict[str, ARRAY]:
    prompts = prompts or ("the fox",)
    return {
        "text_input": np.array([[prompt.encode()] for prompt in prompts], np.object_),
        "max_tokens": np.array([[5]] * len(prompts), np.int32),
        **others,
    }


def run(
    arrays: dict[str, ARRAY], parameters: dict[str, Any] | None = None, target: Target | None = None
) -> list[InnerRequest]:
    text = TextTokenizer(Tokenizer(text_samples.ALL["byte_level"]()), (3,), 3)
    raw = json.dumps(parameters) if parameters is not None else ""
    return parse(arrays, raw, Preprocessor(text), target or Target())


@pytest.mark.parametrize(
    ("others", "parameters", "error", "message"),
    [
        ({"image_input": np.zeros((1, 1, 3, 1, 1))}, {}, UnsupportedInput, "image_input"),
        ({"image_url_input": np.array([[b"x"]], np.object_)}, {}, UnsupportedInput, "IMAGE_URL"),
        ({"num_draft_tokens": scalar(3)}, {}, UnsupportedInput, "num_draft_tokens"),
        ({"use_draft_logits": np.array([True])}, {}, UnsupportedInput, "draft"),
        ({"stop_words": np.array([[b"\xff"]], np.object_)}, {}, UserError, "not UTF-8"),
        ({"min_tokens": scalar(1)}, {"min_length": 2}, UserError, "also as min_length"),
        ({}, {"random_seed": "many"}, UserError, "no number"),
    ],
)
def test_what_cannot_be_done_is_refused(
    others: dict[str, ARRAY], parameters: dict[str, Any], error: type[Exception], message: str
) -> None:
    """Images, draft models, broken text, and one value under two names."""
    with pytest.raises(error, match=message):
        run(text_request(**others), parameters)


def test_streaming_needs_a_decoupled_model_to_call() -> None:
    """tensorrt_llm would refuse it too, but says less."""
    with pytest.raises(UserError, match="decoupled other"):
        run(text_request(stream=scalar(True)), target=Target("other", decoupled=False))


def test_every_input_of_the_contract_has_its_place() -> None:
    """What is not refused arrives at tensorrt_llm under a name, type and shape that it takes."""
    arrays = text_request()
    for entry in contract("tensorrt_llm_bls")["input"]:
        name = entry["name"]
        if name in arrays or name.startswith(("image", "video")):
            continue
        # An input with `reshape: []` loses its own dimension on the way into the model.
        shape = [1] if "reshape" in entry else [1, *(abs(dim) for dim in entry["dims"])]
        text = entry["data_type"] == "TYPE_STRING"
        arrays[name] = np.full(shape, b"fox", np.object_) if text else np.zeros(shape)
    inner = run(arrays)[0].tensors
    types = {entry["name"]: entry for entry in contract("tensorrt_llm")["input"]}
    assert set(inner) <= set(types)
    sent_on = set(arrays) - {"num_draft_tokens", "use_draft_logits", "embedding_bias_weights"}
    assert len(inner) >= len(sent_on) - 1  # prompt_table, word lists and ids are renamed
    for name, array in inner.items():
        assert array.ndim == 1 + len(types[name]["dims"]), name
        assert array.shape[0] == 1


def test_names_that_differ_between_the_two_models_are_translated() -> None:
    """top_k, top_p and length_penalty have other names on the other side."""
    inner = run(text_request(top_k=scalar(4), top_p=scalar(0.5), length_penalty=scalar(2.0)))[
        0
    ].tensors
    found = {name: inner[name].item() for name in ("runtime_top_k", "runtime_top_p", "len_penalty")}
    assert found == {"runtime_top_k": 4, "runtime_top_p": 0.5, "len_penalty": 2.0}


def test_older_names_are_taken_from_the_parameters() -> None:
    """min_length, random_seed and len_penalty of the guides, whatever JSON made of them."""
    older = {"min_length": 3, "random_seed": "7", "len_penalty": 1.5}
    inner = run(text_request("a", "b"), {**older, "min_p": 0.25, "flag": True})
    for request in inner:
        assert request.tensors["min_tokens"].tolist() == [[3]]
        assert request.tensors["seed"].tolist() == [[7]]
        assert request.tensors["seed"].dtype == np.uint64
        assert request.tensors["len_penalty"].tolist() == [[1.5]]
        assert request.parameters == {"min_p": "0.25", "flag": True}


def test_each_prompt_of_a_batch_is_a_request_of_its_own() -> None:
    """With its own ids, without padding, and its own row of every input."""
    inner = run(text_request("the fox", "a", temperature=np.array([[0.5], [2.0]])))
    tokenizer = Tokenizer(text_samples.ALL["byte_level"]())
    for request, prompt, temperature in zip(inner, ("the fox", "a"), (0.5, 2.0), strict=True):
        ids = tokenizer.encode(prompt, add_special_tokens=True)
        assert request.tensors["input_ids"].tolist() == [ids]
        assert request.tensors["temperature"].item() == temperature


@pytest.mark.parametrize(
    ("others", "target", "streaming"),
    [
        ({}, Target(), False),
        ({"stream": scalar(True)}, Target(), True),
        ({"stop_words": np.array([[b""]], np.object_)}, Target(), False),
        ({"stop_words": np.array([[b"fox"]], np.object_)}, Target(), True),
        ({"stop_words": np.array([[b"fox"]], np.object_)}, Target(decoupled=False), False),
        (
            {"stop_words": np.array([[b"fox"]], np.object_), "beam_width": scalar(2)},
            Target(),
            False,
        ),
    ],
)
def test_stop_words_make_the_inner_answer_a_stream(
    others: dict[str, ARRAY], target: Target, streaming: bool
) -> None:
    """They are found in the text while it grows, where the model called can stream."""
    request = run(text_request(**others), target=target)[0]
    assert request.streaming is streaming
    assert request.tensors["streaming"].tolist() == [[streaming]]


@pytest.mark.parametrize(
    ("flag", "default", "excluded"),
    [(None, False, False), (None, True, True), (True, False, True), (False, True, False)],
)
@pytest.mark.parametrize("stream", [True, False])
def test_whether_the_answer_goes_on_from_the_prompt(
    flag: bool | None, default: bool, excluded: bool, stream: bool
) -> None:
    """The request decides, then the parameter of tensorrt_llm; a stream never has the prompt."""
    others = {} if flag is None else {"exclude_input_in_output": scalar(flag)}
    arrays = text_request(stream=scalar(stream), **others)
    request = run(arrays, target=Target(exclude_input_in_output=default))[0]
    assert bool(request.prompt_ids) is not excluded
    assert request.output_has_prompt is (not excluded and not stream)
