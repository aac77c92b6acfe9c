"""The `openvino` runtime: OpenVINO GenAI's continuous batching pipeline as a stepping engine.

Facts about the pipeline (openvino-genai 2026.4, tried): generated ids include the end id
that ended them; `stop_token_ids` end a sequence, `min_new_tokens` holds them back;
`max_new_tokens` 0 and sampling at temperature 0 are refused; a read returns what all
steps since the last read produced.
"""

from __future__ import annotations

import itertools
import weakref
from typing import Any

import numpy as np

from cog_triton.errors import TritonUnknownError, UnsupportedInput
from cog_triton.runtimes.config import RuntimeConfig
from cog_triton.runtimes.engine_metrics import EngineStatistics
from cog_triton.runtimes.responses import Beam
from cog_triton.runtimes.slot_request import SlotRequest
from cog_triton.runtimes.stop_words import StopWordWatch
from cog_triton.runtimes.word_ban import grammar

GIB = 1 << 30
TOKENS_PER_BLOCK = 32  # fixed in OpenVINO's CPU plugin


class OpenVinoEngine:
    """A `SteppingEngine`; raises RuntimeError from the constructor if the model cannot load."""

    def __init__(self, config: RuntimeConfig) -> None:
        import openvino
        import openvino_genai

        self._tensor = openvino.Tensor
        self._genai = openvino_genai
        self._ids = itertools.count(1)
        properties: dict[str, Any] = {}
        if config.num_threads is not None:
            properties["INFERENCE_NUM_THREADS"] = config.num_threads
        self._pipeline = openvino_genai.ContinuousBatchingPipeline(
            config.weights, self._scheduler(config), "CPU", properties
        )
        self._tokenizer = self._pipeline.get_tokenizer()
        # Those that nobody holds any more are not counted.
        self._sequences: weakref.WeakSet[OpenVinoSequence] = weakref.WeakSet()
        self._num_kv_blocks = self._count_kv_blocks()

    def add(self, request: SlotRequest) -> OpenVinoSequence:
        """Queue the request for the next step; raises UnsupportedInput for what cannot be done."""
        generation = self._generation_config(request)
        try:
            generation.validate()
            handle = self._pipeline.add_request(
                next(self._ids), self._tensor(request.input_ids[np.newaxis, :]), generation
            )
        except RuntimeError as err:
            raise TritonUnknownError(f"OpenVINO GenAI refuses the request: {err}") from err
        sequence = OpenVinoSequence(handle, self._genai.GenerationStatus.RUNNING, request)
        self._sequences.add(sequence)
        return sequence

    def step(self) -> None:
        self._pipeline.step()

    def statistics(self) -> EngineStatistics:
        """Requests and KV blocks of the last step."""
        metrics = self._pipeline.get_metrics()
        waiting = [sequence for sequence in self._sequences if not sequence.has_started]
        return EngineStatistics(
            num_scheduled=int(metrics.scheduled_requests),
            num_context=len(waiting),
            num_context_tokens=sum(sequence.num_input_tokens for sequence in waiting),
            kv_blocks_used=round(float(metrics.cache_usage) / 100 * self._num_kv_blocks),
            kv_blocks_max=self._num_kv_blocks,
            kv_tokens_per_block=TOKENS_PER_BLOCK,
            cpu_memory_bytes=int(metrics.cache_size_in_bytes),
        )

    def _count_kv_blocks(self) -> int:
        """The size of the cache in blocks, from the share that one block takes.

        The pipeline only tells shares and bytes. The step is also the first one, which compiles.
        """
        config = self._genai.GenerationConfig()
        config.max_new_tokens = 1
        config.apply_chat_template = False
        handle = self._pipeline.add_request(0, self._tensor(np.zeros((1, 1), np.int64)), config)
        self._pipeline.step()
        share = float(self._pipeline.get_metrics().cache_usage) / 100
        handle.read_all()
        return round(1 / share)

    def _scheduler(self, config: RuntimeConfig) -> Any:
        scheduler = self._genai.SchedulerConfig()
        scheduler.max_num_seqs = config.max_batch_size
        scheduler.max_num_batched_tokens = config.max_num_tokens
        scheduler.cache_size = max(1, round(config.kv_cache_bytes / GIB))
        scheduler.enable_prefix_caching = config.enable_kv_cache_reuse
        scheduler.dynamic_split_fuse = True
        return scheduler

    def _generation_config(self, request: SlotRequest) -> Any:
        generation = self._genai.GenerationConfig()
        generation.max_new_tokens = request.request_output_len
        generation.min_new_tokens = min(request.min_tokens, request.request_output_len)
        single = {word[0] for word in request.stop_words if len(word) == 1}
        if request.end_id is None and not single:
            generation.ignore_eos = True
        else:
            ends = single if request.end_id is None else single | {request.end_id}
            generation.stop_token_ids = ends
            if request.end_id is not None:
                generation.eos_token_id = request.end_id
        generation.repetition_penalty = request.repetition_penalty
        generation.presence_penalty = request.presence_penalty
        generation.frequency_penalty = request.frequency_penalty
        generation.logprobs = 1 if request.return_log_probs else 0
        generation.apply_chat_template = False
        if request.beam_width > 1:
            self._set_beams(generation, request)
        else:
            self._set_sampling(generation, request)
        if request.bad_words:
            generation.structured_output_config = self._ban(request.bad_words)
        return generation

    def _set_sampling(self, generation: Any, request: SlotRequest) -> None:
        generation.do_sample = not request.greedy
        if request.greedy:
            return
        generation.temperature = request.temperature
        generation.top_p = request.top_p or 1.0
        if request.top_k:
            generation.top_k = request.top_k
        generation.min_p = request.min_p
        if request.seed is not None:
            # The sampler's generator takes 32 bits: both halves count, and small seeds stay.
            generation.rng_seed = (request.seed ^ (request.seed >> 32)) & 0xFFFFFFFF

    def _set_beams(self, generation: Any, request: SlotRequest) -> None:
        """Beam search: all beams come back, at the end; it does not sample."""
        criteria = self._genai.StopCriteria
        generation.num_beams = request.beam_width
        generation.num_return_sequences = request.beam_width
        generation.length_penalty = request.len_penalty
        generation.stop_criteria = criteria.EARLY if request.early_stopping else criteria.HEURISTIC

    def _ban(self, bad_words: tuple[tuple[int, ...], ...]) -> Any:
        words = {self._tokenizer.decode(list(ids), skip_special_tokens=False) for ids in bad_words}
        if "" in words or any("\N{REPLACEMENT CHARACTER}" in word for word in words):
            raise UnsupportedInput("bad_words_list holds ids that are no whole text.")
        ban = self._genai.StructuredOutputConfig()
        ban.grammar = grammar(sorted(words))
        return ban


class OpenVinoSequence:
    """One request in the pipeline."""

    def __init__(self, handle: Any, running: Any, request: SlotRequest) -> None:
        self._handle = handle
        self._running = running
        longer = [word for word in request.stop_words if len(word) > 1]
        self._stop_words = StopWordWatch(longer) if longer else None
        self.num_input_tokens = len(request.input_ids)
        self.has_started = False
        self._has_beams = request.beam_width > 1
        self._beams: list[tuple[float, Beam]] = []

    def read(self) -> tuple[list[int], list[float], bool]:
        ids: list[int] = []
        log_probs: list[float] = []
        # The status is asked for first: what ends between the two calls is read all the same.
        finished = self._handle.get_status() != self._running
        while self._handle.can_read():
            self.has_started = True
            for output in self._handle.read().values():
                if self._has_beams:
                    beam = Beam(output.generated_ids, output.generated_log_probs)
                    self._beams.append((output.score, beam))
                    continue
                ids += output.generated_ids
                log_probs += output.generated_log_probs
        keep = self._stop_words.feed(ids) if self._stop_words else None
        if keep is not None:
            self.cancel()
            return ids[:keep], log_probs[:keep], True
        return ids, log_probs, finished

    def beams(self) -> list[Beam]:
        """The finished beams by their score, which is normalised by length."""
        return [beam for _score, beam in sorted(self._beams, key=lambda pair: -pair[0])]

    def cancel(self) -> None:
        self._handle.cancel()
