"""Tokens that a test can foretell: the prompt again and again, then the end id.

Token n of an answer is the prompt's id at n modulo its length; sampling shifts n by the seed.
Twice the prompt's length is the answer's, unless min_tokens is longer. As in the real C++
sampler the end id itself is not part of the answer; a stop word is, if that is asked for.
"""

from __future__ import annotations

import asyncio
import threading
import time
from dataclasses import dataclass
from typing import Any

from .contract import CompletionOutput, SamplingParams


class RequestError(RuntimeError):
    """An error of one request alone."""


@dataclass
class Logprob:
    logprob: float
    rank: int | None = None


def toy_tokens(prompt: list[int], params: SamplingParams, vocab_size: int) -> tuple[list[int], Any]:
    """All tokens of an answer and why it ends: stop, length, or (stop, stop id)."""
    greedy = (params.top_k in (None, 1)) and params.top_p is None
    shift = 0 if greedy else (params.seed or 0)
    natural = max(2 * len(prompt), params.min_tokens or 0)
    banned = set(params.bad_token_ids or ())
    ids: list[int] = []
    while len(ids) < params.max_tokens:
        if len(ids) == natural and not params.ignore_eos:
            return ids, "stop"
        token = prompt[(len(ids) + shift) % len(prompt)]
        while token in banned:
            token = (token + 1) % vocab_size
        ids.append(token)
        if token in (params.stop_token_ids or ()) and len(ids) >= (params.min_tokens or 0):
            return (ids if params.include_stop_str_in_output else ids[:-1]), ("stop", token)
    return ids, "length"


class ToyRequest:
    """A request in flight: filled by the engine's thread, read on the loop that made it."""

    def __init__(
        self, request_id: int, prompt: list[int], params: SamplingParams, streaming: bool
    ) -> None:
        self.request_id = request_id
        self.prompt = prompt
        self.params = params
        self.streaming = streaming
        self.output = CompletionOutput(0, logprobs=[], prompt_logprobs=[])
        self.finished = False
        self.aborted = False
        self.num_made = 0
        # The real queue belongs to the running loop too; without one it cannot be awaited.
        self._loop = asyncio.get_running_loop()
        self._steps: asyncio.Queue[tuple[list[int], Any]] = asyncio.Queue()

    def put(self, ids: list[int], reason: Any) -> None:
        """Called by the engine's thread with new ids and, with the last, why it ends."""
        try:
            self._loop.call_soon_threadsafe(self._steps.put_nowait, (ids, reason))
        except RuntimeError:
            self.aborted = True  # the reader's loop is closed

    async def step(self) -> None:
        ids, reason = await self._steps.get()
        if isinstance(reason, Exception):
            raise reason
        for token in ids:
            position = len(self.output.token_ids)
            self.output.token_ids.append(token)
            if self.params.logprobs:
                self.output.logprobs.append({token: Logprob(-0.5 * (position + 1), 1)})
        if reason is not None:
            self.finished = True
            self.output.finish_reason, self.output.stop_reason = (
                reason if isinstance(reason, tuple) else (reason, None)
            )


class ToyEngine:
    """In-flight batching in a thread: one token for each running request an interval."""

    def __init__(self, vocab_size: int, max_batch_size: int, token_interval_s: float) -> None:
        self._vocab_size = vocab_size
        self._max_batch_size = max_batch_size
        self._interval_s = token_interval_s
        self._lock = threading.Lock()
        self._waiting: list[ToyRequest] = []
        self._running: list[tuple[ToyRequest, list[int], Any]] = []
        self._wake = threading.Event()
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="toy-engine", daemon=True)
        self._thread.start()

    def add(self, request: ToyRequest) -> None:
        with self._lock:
            self._waiting.append(request)
        self._wake.set()

    def abort(self, request: ToyRequest) -> None:
        request.aborted = True
        self._wake.set()

    def close(self) -> None:
        self._closing = True
        self._wake.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._closing:
            if not self._running and not self._waiting:
                self._wake.wait()
                self._wake.clear()
            self._admit()
            time.sleep(self._interval_s)
            self._step()

    def _admit(self) -> None:
        with self._lock:
            while self._waiting and len(self._running) < self._max_batch_size:
                request = self._waiting.pop(0)
                ids, reason = toy_tokens(request.prompt, request.params, self._vocab_size)
                self._running.append((request, ids, reason))

    def _step(self) -> None:
        for entry in list(self._running):
            request, ids, reason = entry
            if request.aborted:
                self._running.remove(entry)
                request.put([], "cancelled")
                continue
            request.num_made += 1
            # The end id takes a step of its own, which brings no token.
            by_end_id = reason == "stop"
            finished = request.num_made >= len(ids) + by_end_id
            if finished:
                self._running.remove(entry)
            if request.streaming:
                new = ids[request.num_made - 1 : request.num_made]
                request.put(new, reason if finished else None)
            elif finished:
                request.put(ids, reason)
