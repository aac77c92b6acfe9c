"""A text request to `tensorrt_llm_bls` as requests to `tensorrt_llm`, one for each prompt.

Names on both sides: the models `tensorrt_llm_bls` and `tensorrt_llm` of TensorRT-LLM's
Triton backend 1.1.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from cog_triton.errors import UnsupportedInput, UserError
from cog_triton.runtimes.text_models.preprocess import Preprocessor

Array: TypeAlias = npt.NDArray[Any]

# To preprocessing, and from it to tensorrt_llm.
_TO_PREPROCESSING = {
    "text_input": "QUERY",
    "decoder_text_input": "DECODER_QUERY",
    "max_tokens": "REQUEST_OUTPUT_LEN",
    "bad_words": "BAD_WORDS_DICT",
    "stop_words": "STOP_WORDS_DICT",
    "embedding_bias_words": "EMBEDDING_BIAS_WORDS",
    "embedding_bias_weights": "EMBEDDING_BIAS_WEIGHTS",
    "end_id": "END_ID",
    "pad_id": "PAD_ID",
    "prompt_table_extra_id": "PROMPT_TABLE_EXTRA_ID",
    "image_bytes_input": "IMAGE_BYTES",
    "image_url_input": "IMAGE_URL",
    "image_sizes_input": "IMAGE_SIZES",
    "video_bytes_input": "VIDEO_BYTES",
}
_FROM_PREPROCESSING = {
    "INPUT_ID": "input_ids",
    "REQUEST_INPUT_LEN": "input_lengths",
    "REQUEST_OUTPUT_LEN": "request_output_len",
    "DECODER_INPUT_ID": "decoder_input_ids",
    "REQUEST_DECODER_INPUT_LEN": "decoder_input_lengths",
    "BAD_WORDS_IDS": "bad_words_list",
    "STOP_WORDS_IDS": "stop_words_list",
    "EMBEDDING_BIAS": "embedding_bias",
    "OUT_END_ID": "end_id",
    "OUT_PAD_ID": "pad_id",
    "OUT_PROMPT_TABLE_EXTRA_IDS": "prompt_table_extra_ids",
}
_RENAMED = {"top_k": "runtime_top_k", "top_p": "runtime_top_p", "length_penalty": "len_penalty"}
_OWN = frozenset({"stream", "image_input", "num_draft_tokens", "use_draft_logits"})

# Names up to release 0.19 that guides still show. They are no inputs of the 1.1 template:
# Triton refuses them as gRPC tensors, and its generate endpoint hands them on as parameters.
_OLDER_NAMES = {
    "min_length": ("min_tokens", np.int32),
    "random_seed": ("seed", np.uint64),
    "len_penalty": ("length_penalty", np.float32),
}


@dataclass(frozen=True)
class Target:
    """What the calls go to: the model's name, and what its config says about answers."""

    model: str = "tensorrt_llm"
    decoupled: bool = True
    exclude_input_in_output: bool = False


@dataclass(frozen=True)
class InnerRequest:
    """The tensors of one call, each with a batch dimension of 1, and what its answer becomes.

    `stream`, `num_responses` (candidates) and `num_sequences` (times beams) are the client's;
    `streaming` says how tensorrt_llm answers. `prompt_ids` are those that the answer's text
    continues: none where the client leaves the prompt out.
    """

    tensors: Mapping[str, Array]
    parameters: Mapping[str, str | int | bool]
    prompt_ids: tuple[int, ...]
    stop_words: tuple[str, ...] = ()
    stream: bool = False
    streaming: bool = False
    num_responses: int = 1
    num_sequences: int = 1
    output_has_prompt: bool = False


def parse(
    arrays: Mapping[str, Array], parameters: str, preprocessor: Preprocessor, target: Target
) -> list[InnerRequest]:
    """The inner requests for the inputs `arrays` and Triton's request parameters (JSON).

    Raises UserError and UnsupportedInput that name the input.
    """
    given, rest = _with_older_names(arrays, json.loads(parameters) if parameters else {})
    _refuse(given)
    if _flag(given, "stream") and not target.decoupled:
        raise UserError(f"stream needs a decoupled {target.model}, which this one is not.")
    text_inputs = {
        _TO_PREPROCESSING[name]: array for name, array in given.items() if name in _TO_PREPROCESSING
    }
    batch = len(given["text_input"])
    return [
        _inner(
            {name: array[row : row + 1] for name, array in given.items()},
            preprocessor.run({name: array[row : row + 1] for name, array in text_inputs.items()}),
            rest,
            target,
        )
        for row in range(batch)
    ]


def _inner(
    given: Mapping[str, Array],
    prepared: Mapping[str, Array],
    parameters: Mapping[str, str | int | bool],
    target: Target,
) -> InnerRequest:
    stream = _flag(given, "stream")
    stop_words = _stop_words(given)
    num_responses = _count(given, "num_return_sequences")
    num_sequences = num_responses * _count(given, "beam_width")
    # Stop words are found in the text, so an answer that is not streamed is followed too.
    streaming = stream or bool(stop_words and target.decoupled and num_sequences == 1)
    tensors = {_FROM_PREPROCESSING[name]: array for name, array in prepared.items()}
    for name, array in given.items():
        if name not in _TO_PREPROCESSING and name not in _OWN:
            tensors[_RENAMED.get(name, name)] = array
    tensors = {name: _with_batch(array) for name, array in tensors.items()}
    tensors["streaming"] = np.array([[streaming]])
    excluded = (
        _flag(given, "exclude_input_in_output")
        if "exclude_input_in_output" in given
        else target.exclude_input_in_output
    )
    return InnerRequest(
        tensors=tensors,
        parameters=parameters,
        prompt_ids=() if excluded else tuple(prepared["INPUT_ID"][0].tolist()),
        stop_words=stop_words,
        stream=stream,
        streaming=streaming,
        num_responses=num_responses,
        num_sequences=num_sequences,
        output_has_prompt=not excluded and not streaming,
    )


def _with_older_names(
    arrays: Mapping[str, Array], parameters: Mapping[str, Any]
) -> tuple[dict[str, Array], dict[str, str | int | bool]]:
    """The inputs with those that came under an older name, and the other parameters."""
    given = dict(arrays)
    rest: dict[str, str | int | bool] = {}
    for name, value in parameters.items():
        if name not in _OLDER_NAMES:
            # The backend's InferenceRequest takes these three types only.
            rest[name] = value if isinstance(value, (str, int, bool)) else str(value)
            continue
        today, dtype = _OLDER_NAMES[name]
        if today in given:
            raise UserError(f"{today} is given twice, also as {name}.")
        try:
            column = np.array([[value]]).astype(dtype)
        except (TypeError, ValueError, OverflowError) as err:
            raise UserError(f"{name} is {value!r}, which is no number.") from err
        given[today] = np.repeat(column, len(arrays["text_input"]), axis=0)
    return given, rest


def _refuse(given: Mapping[str, Array]) -> None:
    if "image_input" in given:
        raise UnsupportedInput("image_input: this deployment has no vision encoder.")
    if _count(given, "num_draft_tokens", 0) or _flag(given, "use_draft_logits"):
        raise UnsupportedInput("num_draft_tokens: this deployment has no draft model.")


def _stop_words(given: Mapping[str, Array]) -> tuple[str, ...]:
    if "stop_words" not in given:
        return ()
    try:
        items = [item.decode() for item in given["stop_words"].reshape(-1)]
    except UnicodeDecodeError as err:
        raise UserError(f"stop_words is not UTF-8: {err}") from err
    return tuple(dict.fromkeys(filter(None, items)))


def _flag(given: Mapping[str, Array], name: str) -> bool:
    return name in given and bool(given[name].any())


def _count(given: Mapping[str, Array], name: str, default: int = 1) -> int:
    return int(given[name].flat[0]) if name in given else default


def _with_batch(array: Array) -> Array:
    """Inputs that the config reshapes to nothing arrive as `[1]` and leave as `[1, 1]`."""
    return array.reshape(1, 1) if array.ndim == 1 else array
