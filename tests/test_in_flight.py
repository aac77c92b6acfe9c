"""The in-flight loop on an engine of known tokens: order, grouping, cancellation, failure."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from cog_triton.errors import UnsupportedInput, UserError
from cog_triton.runtimes.in_flight import InFlightLoop, tokens_a_response
from cog_triton.runtimes.responses import Beam
from cog_triton.runtimes.slot_request import SlotRequest

DEADLINE_S = 10.0


class CountingSequence:
    def __init__(self, engine: CountingEngine, length: int) -> None:
        self.engine = engine
        self.length = length
        self.produced = 0
        self.delivered = 0
        self.cancelled_at: int | None = None

    def read(self) -> tuple[list[int], list[float], bool]:
        ids = list(range(self.delivered, self.produced))
        self.delivered = self.produced
        return ids, [0.0] * len(ids), self.produced == self.length

    def beams(self) -> list[Beam]:
        return []

    def cancel(self) -> None:
        self.cancelled_at = self.engine.num_steps


class CountingEngine:
    """Each step gives each sequence one token: 0, 1, 2, …"""

    def __init__(self) -> None:
        self.sequences: list[CountingSequence] = []
        self.num_steps = 0
        self.fail_at: int | None = None

    def add(self, request: SlotRequest) -> CountingSequence:
        if request.request_id == "refuse":
            raise UnsupportedInput("no")
        sequence = CountingSequence(self, request.request_output_len)
        self.sequences.append(sequence)
        return sequence

    def step(self) -> None:
        self.num_steps += 1
        if self.num_steps == self.fail_at:
            raise RuntimeError("out of memory")
        for sequence in self.sequences:
            if sequence.cancelled_at is None and sequence.produced < sequence.length:
                sequence.produced += 1
        time.sleep(0.0005)


class Recorder:
    """Stands where Triton's response sender is, with the rule that nothing follows the end."""

    def __init__(self) -> None:
        self.responses: list[list[int]] = []
        self.error: Exception | None = None
        self.ended = threading.Event()
        self.cancel_after: int | None = None
        self.asked_at: list[float] = []

    def is_cancelled(self) -> bool:
        assert not self.ended.is_set(), "asking after the end crashes tritonserver"
        self.asked_at.append(time.monotonic())
        return self.cancel_after is not None and len(self.responses) >= self.cancel_after

    def send(self, ids: list[int], _log_probs: list[float], *, final: bool) -> None:
        assert not self.ended.is_set()
        self.responses.append(list(ids))
        if final:
            self.ended.set()

    def scheduled(self) -> None:
        assert not self.responses

    def finish(self) -> None:
        assert not self.ended.is_set()
        self.ended.set()

    def fail(self, error: Exception) -> None:
        assert not self.ended.is_set()
        self.error = error
        self.ended.set()

    def wait(self) -> Recorder:
        assert self.ended.wait(DEADLINE_S), "the request never ended"
        return self


def request(length: int, request_id: str = "", *, streaming: bool = True) -> SlotRequest:
    return SlotRequest(request_id, np.array([1, 2, 3]), length, streaming=streaming)


@pytest.fixture
def engine() -> CountingEngine:
    return CountingEngine()


@pytest.fixture
def submit(engine: CountingEngine) -> Iterator[Callable[..., Any]]:
    loop = InFlightLoop(
        engine,
        cancellation_check_period_s=0.02,
        on_iteration=lambda _num: None,
        on_death=lambda: None,
    )

    def run(asked: SlotRequest, recorder: Any = None) -> Any:
        recorder = recorder or Recorder()
        loop.submit(asked, recorder)
        return recorder

    run.loop = loop  # type: ignore[attr-defined]
    yield run
    loop.close(DEADLINE_S)


def test_a_refused_request_fails_alone(submit: Callable[..., Recorder]) -> None:
    """An error from the engine's add ends that request with that error; others go on."""
    other = submit(request(50))
    refused = submit(request(5, "refuse")).wait()
    assert isinstance(refused.error, UnsupportedInput)
    assert other.wait().error is None


def test_a_failed_step_fails_every_running_request(
    engine: CountingEngine, submit: Callable[..., Recorder]
) -> None:
    """A step is shared: its error reaches all, and the loop serves the next request."""
    engine.fail_at = 5
    recorders = [submit(request(100)) for _ in range(3)]
    assert all("out of memory" in str(recorder.wait().error) for recorder in recorders)
    assert submit(request(3)).wait().responses[-1][-1] == 2


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_the_death_of_the_thread_is_told(engine: CountingEngine) -> None:
    """If the loop itself fails, the process is told to end: a slot that hangs is worse."""
    died = threading.Event()

    def fail(_num_active: int) -> None:
        raise RuntimeError("a fault of the loop")

    loop = InFlightLoop(engine, cancellation_check_period_s=1, on_iteration=fail, on_death=died.set)
    assert died.wait(DEADLINE_S)
    loop.close(DEADLINE_S)


def test_a_rejection_is_sent_from_the_loop(submit: Any) -> None:
    """Errors found while parsing go the same way as tokens: one sending thread."""
    recorder = Recorder()
    submit.loop.reject(recorder, UserError("bad"))
    assert str(recorder.wait().error).startswith("E1000")


def test_every_token_once_and_in_order(submit: Callable[..., Recorder]) -> None:
    """With 40 streams at once each gets its tokens whole, the first one alone."""
    recorders = [submit(request(30 + index)) for index in range(40)]
    for index, recorder in enumerate(recorders):
        responses = recorder.wait().responses
        assert [token for ids in responses for token in ids] == list(range(30 + index))
        assert responses[0] == [0]


def test_few_streams_get_each_token_at_once(submit: Callable[..., Recorder]) -> None:
    """Under light load a response carries one token."""
    assert submit(request(20)).wait().responses == [[token] for token in range(20)]


def test_not_streaming_is_one_response(submit: Callable[..., Recorder]) -> None:
    """Without streaming all tokens come at the end."""
    assert submit(request(20, streaming=False)).wait().responses == [list(range(20))]


def test_a_cancelled_request_frees_its_slot(engine: CountingEngine, submit: Any) -> None:
    """The sequence is cancelled, the request ended, and the engine steps once more to let go."""
    recorder = Recorder()
    recorder.cancel_after = 3
    submit(request(100_000), recorder)
    recorder.wait()
    submit.loop.close(DEADLINE_S)
    cancelled_at = engine.sequences[0].cancelled_at
    assert cancelled_at is not None
    assert engine.num_steps == cancelled_at + 1


def test_every_stream_is_asked_about_cancellation(submit: Callable[..., Recorder]) -> None:
    """Asking costs as much as a response: the streams take turns, and none is left out."""
    recorders = [submit(request(400)) for _ in range(10)]
    for recorder in recorders:
        recorder.wait()
        assert 2 <= len(recorder.asked_at) <= 300


def test_a_stop_request_ends_the_request_of_its_id(submit: Any) -> None:
    """Both end: the stopped one with what it had, the stop request with an empty response."""
    running = submit(request(100_000, "a"))
    while not running.responses:
        time.sleep(0.001)
    answer = Recorder()
    submit.loop.stop_request("a", answer)
    answer.wait()
    tokens = [token for ids in running.wait().responses for token in ids]
    assert tokens == list(range(len(tokens)))
    assert answer.responses == []


def test_closing_ends_what_runs(engine: CountingEngine) -> None:
    """Closing cancels the running requests, so that Triton can unload the model."""
    loop = InFlightLoop(
        engine, cancellation_check_period_s=1, on_iteration=lambda _num: None, on_death=lambda: None
    )
    recorder = Recorder()
    loop.submit(request(10_000_000), recorder)  # type: ignore[arg-type]
    while not recorder.responses:
        time.sleep(0.001)
    loop.close(DEADLINE_S)
    recorder.wait()


@pytest.mark.parametrize(("num_active", "expected"), [(1, 1), (8, 1), (9, 4), (64, 4)])
def test_tokens_a_response(num_active: int, expected: int) -> None:
    """Responses carry more tokens as more streams share the sender."""
    assert tokens_a_response(num_active) == expected
