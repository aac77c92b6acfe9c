"""The text of one inner request, as its responses arrive.

The rule: the pieces of a stream joined are exactly the text that the same request gives
without streaming, without its prompt. A state machine, fed from `relay`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from cog_triton.errors import TritonMalformedEvent
from cog_triton.runtimes.text_models.bls_request import InnerRequest
from cog_triton.text.stop_scanner import StopScanner
from cog_triton.text.tokenizer import Tokenizer

Array: TypeAlias = npt.NDArray[Any]
Tensors: TypeAlias = dict[str, Array]

_TEXT = "text_output"
# Stays inside: ids, and what only the C++ backend's two halves tell each other.
_HIDDEN = frozenset({"output_ids", "sequence_length", "batch_index", "context_phase_params"})
# Say nothing by themselves: a response needs text or more than these.
_LABELS = frozenset({_TEXT, "sequence_index", "batch_index"})
_LOG_PROBS = "output_log_probs"


class AnswerText:
    """Turns the responses of one inner request into those of the text model.

    `accumulate` makes every piece of a stream the whole text so far. `batch_index` goes into
    each response of a batch of several prompts.
    """

    def __init__(
        self,
        request: InnerRequest,
        tokenizer: Tokenizer,
        *,
        accumulate: bool = False,
        batch_index: int | None = None,
    ) -> None:
        self._request = request
        self._tokenizer = tokenizer
        self._accumulate = accumulate
        self._batch_index = batch_index
        self._beams: dict[int, list[_BeamText]] = {}
        self._collected: dict[int, Tensors] = {}
        self._indexed = False
        self._num_sent = 0

    @property
    def stopped(self) -> bool:
        """Whether every sequence has met a stop word, so that no more tokens are needed."""
        beams = [beam for beams in self._beams.values() for beam in beams]
        return len(beams) >= self._request.num_sequences and all(beam.stopped for beam in beams)

    def feed(self, tensors: Mapping[str, Array]) -> list[Tensors]:
        """What can be sent now that tensorrt_llm has answered with `tensors`.

        Raises TritonMalformedEvent, TritonTokenizerError.
        """
        self._indexed = "sequence_index" in tensors
        index = int(tensors["sequence_index"].flat[0]) if self._indexed else 0
        pieces = [beam.feed(ids) for beam, ids in self._rows(index, tensors)]
        others = {name: array for name, array in tensors.items() if name not in _HIDDEN}
        if not self._request.stream:
            self._collected[index] = _merged(self._collected.get(index, {}), others)
            return []
        if not any(pieces) and _LABELS.issuperset(others):
            return []
        return [self._labelled(others, self._shown(index, pieces))]

    def finish(self) -> list[Tensors]:
        """What is left to send at the end: the whole answers, or what a stream held back."""
        responses = []
        for index, beams in self._beams.items():
            rests = [beam.finish() for beam in beams]
            if not self._request.stream:
                texts = [beam.whole_text for beam in beams]
                responses.append(self._labelled(self._collected[index], texts))
            elif any(rests):
                label = {"sequence_index": np.array([[index]], np.int32)} if self._indexed else {}
                responses.append(self._labelled(label, self._shown(index, rests)))
        if not responses and not self._num_sent:
            responses.append(self._labelled({}, [""]))
        return responses

    def _rows(self, index: int, tensors: Mapping[str, Array]) -> list[tuple[_BeamText, list[int]]]:
        if "output_ids" not in tensors or "sequence_length" not in tensors:
            raise TritonMalformedEvent(f"tensorrt_llm answered with {', '.join(tensors)} only.")
        ids = tensors["output_ids"]
        lengths = tensors["sequence_length"].reshape(-1).tolist()
        rows = ids.reshape(len(lengths), ids.shape[-1])
        beams = self._beams.setdefault(index, [])
        while len(beams) < len(lengths):
            beams.append(_BeamText(self._tokenizer, self._request))
        return [
            (beam, row[:length].tolist())
            for beam, row, length in zip(beams, rows, lengths, strict=False)
        ]

    def _shown(self, index: int, pieces: list[str]) -> list[str]:
        return [beam.new_text for beam in self._beams[index]] if self._accumulate else pieces

    def _labelled(self, others: Mapping[str, Array], texts: list[str]) -> Tensors:
        self._num_sent += 1
        tensors = {_TEXT: np.array([text.encode() for text in texts], np.object_), **others}
        if self._batch_index is not None:
            tensors["batch_index"] = np.array([[self._batch_index]], np.int32)
        return tensors


class _BeamText:
    """The text of one sequence: the prompt's, if it is wanted, and what follows it.

    The prompt goes through the detokenizer in any case where its text is part of the answer,
    so that what follows keeps the space before its first word. A last character that is held
    back then comes out with the first new text, and is the prompt's all the same.
    """

    def __init__(self, tokenizer: Tokenizer, request: InnerRequest) -> None:
        self._detokenizer = tokenizer.detokenizer()
        self._scanner = StopScanner(request.stop_words)
        self._prompt_text = self._detokenizer.feed(request.prompt_ids)
        probe = tokenizer.detokenizer()
        probe.feed(request.prompt_ids)
        self._prompt_rest = probe.finish()
        self._num_to_skip = len(request.prompt_ids) if request.output_has_prompt else 0
        self.new_text = ""

    @property
    def stopped(self) -> bool:
        return self._scanner.stopped

    @property
    def whole_text(self) -> str:
        return self._prompt_text + self.new_text

    def feed(self, ids: list[int]) -> str:
        new, self._num_to_skip = ids[self._num_to_skip :], max(0, self._num_to_skip - len(ids))
        return self._scan(self._detokenizer.feed(new)) if new and not self.stopped else ""

    def finish(self) -> str:
        if self.stopped:
            return ""
        text = self._scan(self._detokenizer.finish())
        rest = self._scanner.finish()
        self.new_text += rest
        return text + rest

    def _scan(self, text: str) -> str:
        if text and self._prompt_rest:
            if text.startswith(self._prompt_rest):
                self._prompt_text += self._prompt_rest
                text = text[len(self._prompt_rest) :]
            self._prompt_rest = ""
        text = self._scanner.feed(text)
        self.new_text += text
        return text


def _merged(before: Tensors, now: Tensors) -> Tensors:
    """The tensors of an answer from those of its steps: log probs joined, of the rest the last."""
    merged = {**before, **now}
    if _LOG_PROBS in before and _LOG_PROBS in now:
        merged[_LOG_PROBS] = np.concatenate([before[_LOG_PROBS], now[_LOG_PROBS]], axis=-1)
    return merged
