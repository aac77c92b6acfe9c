"""What the model `tensorrt_llm_bls` does: prepare, call tensorrt_llm, and turn ids into text.

The config of the contract has no tokenizer: it is the one that the models preprocessing and
postprocessing of the same repository are configured with.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from cog_triton.errors import CogTritonError, UserError
from cog_triton.runtimes.text_models import bls_request, replies
from cog_triton.runtimes.text_models.answer_text import AnswerText
from cog_triton.runtimes.text_models.bls_request import InnerRequest, Target
from cog_triton.runtimes.text_models.parameters import Parameters
from cog_triton.runtimes.text_models.preprocess import Preprocessor
from cog_triton.runtimes.text_models.relay import Relay
from cog_triton.runtimes.text_models.text_tokenizer import load
from cog_triton.text.tokenizer import Tokenizer

CLOSE_TIMEOUT_S = 5.0


class TextService:
    """Serves the requests of `tensorrt_llm_bls`; all of them run at once, in one instance."""

    def __init__(
        self,
        backend: Any,
        parameters: Parameters,
        target: Target,
        preprocessor: Preprocessor,
        tokenizer: Tokenizer,
    ) -> None:
        self._target = target
        self._preprocessor = preprocessor
        self._tokenizer = tokenizer
        self._accumulate = parameters.flag("accumulate_tokens", False)
        self._decoupled = parameters.decoupled
        self._relay = Relay(backend, target.model, decoupled=parameters.decoupled)

    @classmethod
    def open(cls, backend: Any, model_dir: Path, model_config: str) -> TextService:
        """For the model in `model_dir` of a repository, with the config that Triton gives.

        Raises ModelRepositoryError, ArtifactCorrupt, UnsupportedModel.
        """
        own = Parameters.of_model(model_config)
        before = Parameters.of_neighbour(model_dir, "preprocessing")
        after = Parameters.of_neighbour(model_dir, "postprocessing")
        name = own.text("tensorrt_llm_model_name") or "tensorrt_llm"
        called = Parameters.of_neighbour(model_dir, name)
        target = Target(name, called.decoupled, called.flag("exclude_input_in_output", False))
        source, destination = before.directory("tokenizer_dir"), after.directory("tokenizer_dir")
        text = load(source)
        preprocessor = Preprocessor(
            text, add_special_tokens=before.flag("add_special_tokens", True)
        )
        skip = after.flag("skip_special_tokens", True)
        if destination != source or not skip:
            text = load(destination, skip_special_tokens=skip)
        return cls(backend, own, target, preprocessor, text.tokenizer)

    def accept(self, request: Any) -> None:
        """Take one request; the answer leaves from the relay's thread."""
        sender = request.get_response_sender()
        try:
            inner = bls_request.parse(
                replies.inputs(request), request.parameters(), self._preprocessor, self._target
            )
            if not self._decoupled:
                _check_one_response(inner)
        except CogTritonError as err:
            self._relay.reject(sender, err)
            return
        texts = [
            AnswerText(
                one,
                self._tokenizer,
                accumulate=self._accumulate,
                batch_index=row if len(inner) > 1 else None,
            )
            for row, one in enumerate(inner)
        ]
        self._relay.submit(sender, inner, texts)

    def close(self) -> None:
        self._relay.close(CLOSE_TIMEOUT_S)


def _check_one_response(requests: list[InnerRequest]) -> None:
    if any(request.stream for request in requests):
        raise UserError("stream needs a decoupled tensorrt_llm_bls, which this one is not.")
    if len(requests) > 1 or requests[0].num_responses > 1:
        raise UserError("several answers to one request need a decoupled tensorrt_llm_bls.")
