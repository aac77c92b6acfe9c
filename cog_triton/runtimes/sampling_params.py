"""From a request to the arguments of TensorRT-LLM's `SamplingParams`, one by one.

Names, defaults and rules are those of `tensorrt_llm.SamplingParams` 1.1. A value that asks for
nothing is left out, so that the engine's default holds. Two facts shape the rest: without a
tokenizer `end_id` has to be given, and words to stop at or to avoid are taken as single ids
(text would need the tokenizer).
"""

from __future__ import annotations

from cog_triton.errors import UnsupportedInput
from cog_triton.runtimes.slot_request import SlotRequest

NO_END_ID = -1


def sampling_arguments(request: SlotRequest) -> dict[str, object]:
    """Keyword arguments for `tensorrt_llm.SamplingParams`.

    Stop words of several tokens are not among them (see `StopWordWatch`). Raises
    UnsupportedInput for bad words of several tokens, which the API cannot express.
    """
    arguments: dict[str, object] = {
        "max_tokens": request.request_output_len,
        "detokenize": False,
        # The stop word is part of the answer, as with the C++ backend; the API would cut it off.
        "include_stop_str_in_output": True,
        **_ends(request),
        **_choice(request),
    }
    optional: dict[str, tuple[object, bool]] = {
        "min_tokens": (request.min_tokens, request.min_tokens > 0),
        "repetition_penalty": (request.repetition_penalty, request.repetition_penalty != 1.0),
        "presence_penalty": (request.presence_penalty, request.presence_penalty != 0.0),
        "frequency_penalty": (request.frequency_penalty, request.frequency_penalty != 0.0),
        "logprobs": (1, request.return_log_probs),
        "bad_token_ids": (_bad_ids(request), bool(request.bad_words)),
    }
    arguments.update({name: value for name, (value, asked) in optional.items() if asked})
    return arguments


def _ends(request: SlotRequest) -> dict[str, object]:
    ends: dict[str, object] = {"end_id": request.end_id}
    if request.end_id is None:
        ends = {"end_id": NO_END_ID, "ignore_eos": True}
    if request.pad_id is not None:
        ends["pad_id"] = request.pad_id
    single = [word[0] for word in request.stop_words if len(word) == 1]
    if single:
        ends["stop_token_ids"] = single
    return ends


def _choice(request: SlotRequest) -> dict[str, object]:
    """How a token is chosen: top_k 1 is greedy on every sampler, temperature 0 is not."""
    if request.greedy:
        return {"top_k": 1}
    choice: dict[str, object] = {
        "temperature": request.temperature,
        "top_k": request.top_k,
        # 0 is refused here, and unset would mean greedy.
        "top_p": request.top_p or 1.0,
    }
    if request.min_p:
        choice["min_p"] = request.min_p
    if request.seed is not None:
        choice["seed"] = request.seed
    return choice


def _bad_ids(request: SlotRequest) -> list[int]:
    if any(len(word) > 1 for word in request.bad_words):
        raise UnsupportedInput(
            "bad_words_list holds a word of several tokens; the pytorch runtime can only ban "
            "words that are one token."
        )
    return [word[0] for word in request.bad_words]
