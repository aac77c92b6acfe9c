"""Every curl of the guides on Triton's HTTP endpoints, host and port aside."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from cog_triton.text.tokenizer import Tokenizer
from tests.text_model_server import TextServer, text_server

QUESTION = "What is machine learning?"
# The bodies as they stand in the guides.
README_BODY = (
    '{"text_input": "What is machine learning?", "max_tokens": 20, "bad_words": "", '
    '"stop_words": ""}'
)
LLAMA2_BODY = (
    '{"text_input": "What is machine learning?", "max_tokens": 20, "bad_words": "", '
    '"stop_words": "", "pad_id": 2, "end_id": 2}'
)
PHI3_BODY = """{
"text_input": "A farmer with a wolf, a goat, and a cabbage must cross a river by boat. The boat \
can carry only the farmer and a single item. If left unattended together, the wolf would eat the \
goat, or the goat would eat the cabbage. How can they cross the river without anything being \
eaten?",
"parameters": {
"max_tokens": 256,
"bad_words":[""],
"stop_words":[""]
}
}"""
# The keys of the answer that the guides show for the ensemble. Triton's sequence keys come with
# ensembles alone.
ENSEMBLE_KEYS = {
    *("model_name", "model_version", "text_output"),
    *("sequence_end", "sequence_id", "sequence_start"),
}
BLS_KEYS = {"model_name", "model_version", "text_output"}
MODELS = ["ensemble", "tensorrt_llm_bls"]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TextServer]:
    directory: Path = tmp_path_factory.mktemp("generate")
    with text_server(directory) as started:
        yield started


def answer(server: TextServer, model: str, body: str | dict[str, Any]) -> dict[str, Any]:
    response = server.generate(model, body)
    assert response.status_code == httpx.codes.OK, response.text
    content: dict[str, Any] = response.json()
    return content


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"text_input": QUESTION}, "max_tokens"),
        ({"text_input": "", "max_tokens": 3}, "E1000 UserError"),
        ({"text_input": "a", "max_tokens": 5000}, "E1002 PromptTooLong"),
        ({"text_input": "a", "max_tokens": 3, "return_context_logits": True}, "E1105"),
    ],
)
def test_errors_come_as_json_with_an_error_status(
    server: TextServer, model: str, body: dict[str, Any], message: str
) -> None:
    """What Triton refuses and what a model refuses, on either way."""
    response = server.generate(model, body)
    assert response.status_code == httpx.codes.BAD_REQUEST
    assert message in response.json()["error"]


def test_the_curl_on_the_ensemble(server: TextServer) -> None:
    """The answer has the keys of the guides; its text is the prompt and what follows it."""
    content = answer(server, "ensemble", README_BODY)
    assert set(content) == ENSEMBLE_KEYS
    assert (content["model_name"], content["model_version"]) == ("ensemble", "1")
    assert content["text_output"].startswith(f"{QUESTION} ")
    assert not content["sequence_end"]


def test_the_curl_on_bls_gives_the_ensembles_text(server: TextServer) -> None:
    """The same body on the other model."""
    content = answer(server, "tensorrt_llm_bls", README_BODY)
    assert set(content) == BLS_KEYS
    assert content["model_name"] == "tensorrt_llm_bls"
    assert content["text_output"] == answer(server, "ensemble", README_BODY)["text_output"]


def test_the_curl_with_pad_and_end_id(server: TextServer) -> None:
    """Of the Llama 2 guide."""
    content = answer(server, "ensemble", LLAMA2_BODY)
    assert set(content) == ENSEMBLE_KEYS
    assert content["text_output"].startswith(QUESTION)


def test_the_curl_with_parameters(server: TextServer) -> None:
    """Of the Phi-3 guide: inputs below "parameters", empty word lists as lists."""
    content = answer(server, "ensemble", PHI3_BODY)
    assert set(content) == ENSEMBLE_KEYS
    assert content["text_output"].startswith("A farmer with a wolf, ")


def test_the_curl_on_the_metrics(server: TextServer) -> None:
    """Triton's own counters and the engine's requests."""
    answer(server, "ensemble", README_BODY)
    metrics = httpx.get(server.metrics_url, verify=False)
    assert metrics.status_code == httpx.codes.OK
    assert 'nv_inference_request_success{model="tensorrt_llm",version="1"}' in metrics.text
    assert "# TYPE nv_trt_llm_request_metrics gauge" in metrics.text


@pytest.mark.parametrize("model", MODELS)
def test_inputs_mean_the_same_in_both_places(server: TextServer, model: str) -> None:
    """At the top level and below "parameters", one by one and mixed."""
    options = {"max_tokens": 12, "top_k": 20, "seed": 11, "exclude_input_in_output": True}
    top = answer(server, model, {"text_input": QUESTION, **options})
    below = answer(server, model, {"text_input": QUESTION, "parameters": options})
    seed = {"seed": options.pop("seed")}
    mixed = answer(server, model, {"text_input": QUESTION, **options, "parameters": seed})
    assert top["text_output"] == below["text_output"] == mixed["text_output"]
    other = answer(server, model, {"text_input": QUESTION, **options, "seed": 12})
    assert other["text_output"] != top["text_output"]


@pytest.mark.parametrize("model", MODELS)
async def test_streams_have_an_event_for_each_piece(server: TextServer, model: str) -> None:
    """The pieces joined are the text of the answer that is not streamed."""
    body = {"text_input": QUESTION, "max_tokens": 12, "exclude_input_in_output": True}
    pieces = await server.pieces(model, body)
    assert len(pieces) == 12
    assert "".join(pieces) == server.text(model, body)


@pytest.mark.parametrize("model", MODELS)
def test_tensors_that_are_asked_for_are_in_the_answer(server: TextServer, model: str) -> None:
    """One element as a number, several as a flat list."""
    content = answer(
        server,
        model,
        {
            **{"text_input": QUESTION, "max_tokens": 6, "exclude_input_in_output": True},
            **{"return_log_probs": True, "return_num_input_tokens": True},
            "return_num_output_tokens": True,
        },
    )
    assert content["num_output_tokens"] == 6
    assert content["num_input_tokens"] == 5
    assert len(content["output_log_probs"]) == 6
    assert content["cum_log_probs"] == pytest.approx(sum(content["output_log_probs"]), abs=1e-3)


@pytest.mark.parametrize("body", [{"min_length": 9}, {"parameters": {"min_length": 9}}])
def test_older_names_work_on_bls(server: TextServer, body: dict[str, Any]) -> None:
    """min_length holds back the end id, here the id of the second token that would come."""
    asked = {"text_input": QUESTION, "max_tokens": 12, "return_num_output_tokens": True}
    prompt_ids = Tokenizer.load(server.model.path).encode(QUESTION, add_special_tokens=True)
    ids = {"input_ids": prompt_ids, "input_lengths": len(prompt_ids), "request_output_len": 3}
    content = answer(server, "tensorrt_llm", {**ids, "exclude_input_in_output": True})
    end_id = content["output_ids"][1]
    short = answer(server, "tensorrt_llm_bls", {**asked, "end_id": end_id})
    longer = answer(server, "tensorrt_llm_bls", {**asked, "end_id": end_id, **body})
    assert short["num_output_tokens"] < 9 <= longer["num_output_tokens"]


def test_random_seed_is_the_seed_on_bls(server: TextServer) -> None:
    """The older name gives the text of the newer one."""
    body = {"text_input": QUESTION, "max_tokens": 12, "top_k": 50, "temperature": 2.0}
    texts = {
        server.text("tensorrt_llm_bls", {**body, name: value})
        for name, value in (("seed", 5), ("random_seed", 5), ("random_seed", 6))
    }
    assert len(texts) == 2
