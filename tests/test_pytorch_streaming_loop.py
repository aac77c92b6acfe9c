"""The streaming loop on an engine of known tokens: order, cancellation, failure, one sender."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from cog_triton.errors import UnsupportedInput, UserError
from cog_triton.runtimes.slot_request import SlotRequest
from cog_triton.runtimes.streaming_loop import EngineGone, StreamingLoop

DEADLINE_S = 10.0


class CountingSequence:
    """0, 1, 2, … with `step_s` between; `fail_at` is a read that raises."""

    def __init__(self, length: int, fail_at: int | None) -> None:
        self.length = length
        self.fail_at = fail_at
        self.num_reads = 0
        self.aborted = False

    async def read(self) -> tuple[list[int], list[float], bool]:
        await asyncio.sleep(0.0005)
        token = self.num_reads
        self.num_reads += 1
        if self.num_reads == self.fail_at:
            raise RuntimeError("out of memory")
        return [token], [0.0], self.num_reads == self.length

    def abort(self) -> None:
        self.aborted = True


class CountingEngine:
    def __init__(self) -> None:
        self.sequences: list[CountingSequence] = []
        self.gone = False
        self.closed = False

    def generate(self, request: SlotRequest) -> CountingSequence:
        if self.gone:
            raise EngineGone("shut down")
        if request.request_id == "refuse":
            raise UnsupportedInput("no")
        fail_at = 3 if request.request_id == "fail" else None
        self.sequences.append(CountingSequence(request.request_output_len, fail_at))
        return self.sequences[-1]

    def close(self) -> None:
        self.closed = True


class Recorder:
    """Stands where the responder is, with Triton's rules: one thread, and nothing after the end."""

    def __init__(self) -> None:
        self.responses: list[list[int]] = []
        self.error: Exception | None = None
        self.ended = threading.Event()
        self.cancel_after: int | None = None
        self.num_asked = 0
        self.threads: set[str] = set()
        self.break_sending = False

    def is_cancelled(self) -> bool:
        self._used()
        self.num_asked += 1
        return self.cancel_after is not None and len(self.responses) >= self.cancel_after

    def send(self, ids: list[int], _log_probs: list[float], *, final: bool) -> None:
        self._used()
        if self.break_sending:
            raise RuntimeError("Triton's sender is broken")
        self.responses.append(list(ids))
        if final:
            self.ended.set()

    def finish(self) -> None:
        self._used()
        self.ended.set()

    def fail(self, error: Exception) -> None:
        self._used()
        self.error = error
        self.ended.set()

    def _used(self) -> None:
        assert not self.ended.is_set(), "a use after the end crashes tritonserver"
        self.threads.add(threading.current_thread().name)

    def wait(self) -> Recorder:
        assert self.ended.wait(DEADLINE_S), "the request never ended"
        return self

    @property
    def tokens(self) -> list[int]:
        return [token for response in self.responses for token in response]


def request(length: int, request_id: str = "", *, streaming: bool = True) -> SlotRequest:
    return SlotRequest(request_id, np.array([1, 2, 3]), length, streaming=streaming)


def start(engine: CountingEngine, **changes: Any) -> StreamingLoop:
    values: dict[str, Any] = {
        "cancellation_check_period_s": 0.02,
        "on_iteration": lambda _num: None,
        "on_death": lambda: None,
        **changes,
    }
    return StreamingLoop(engine, **values)


@pytest.fixture
def engine() -> CountingEngine:
    return CountingEngine()


@pytest.fixture
def loop(engine: CountingEngine) -> Iterator[StreamingLoop]:
    loop = start(engine)
    yield loop
    loop.close(DEADLINE_S)


@pytest.fixture
def submit(loop: StreamingLoop) -> Callable[..., Recorder]:
    def run(asked: SlotRequest, recorder: Recorder | None = None) -> Recorder:
        recorder = recorder or Recorder()
        loop.submit(asked, recorder)  # type: ignore[arg-type]
        return recorder

    return run


def test_a_refused_request_fails_alone(submit: Callable[..., Recorder]) -> None:
    """An error from the engine's generate ends that request with that error; others go on."""
    other = submit(request(50))
    assert isinstance(submit(request(5, "refuse")).wait().error, UnsupportedInput)
    assert other.wait().error is None


def test_an_error_while_reading_fails_that_request(submit: Callable[..., Recorder]) -> None:
    """The engine's word on one request does not touch the others."""
    other = submit(request(50))
    failed = submit(request(50, "fail")).wait()
    assert "out of memory" in str(failed.error)
    assert failed.tokens == [0, 1]
    assert other.wait().tokens == list(range(50))


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("fault", ["engine gone", "sender broken", "metrics broken"])
def test_the_death_of_the_loop_is_told(engine: CountingEngine, fault: str) -> None:
    """If no request can be served any more, the process is told to end, not left hanging."""
    died = threading.Event()

    def on_iteration(num_active: int) -> None:
        if fault == "metrics broken" and num_active:
            raise RuntimeError("a fault of the loop")

    loop = start(engine, on_iteration=on_iteration, on_death=died.set)
    engine.gone = fault == "engine gone"
    recorder = Recorder()
    recorder.break_sending = fault == "sender broken"
    loop.submit(request(5), recorder)  # type: ignore[arg-type]
    assert died.wait(DEADLINE_S)
    if engine.gone:
        assert "shut down" in str(recorder.error)
    loop.close(DEADLINE_S)


def test_a_rejection_is_sent_from_the_loop(
    loop: StreamingLoop, submit: Callable[..., Recorder]
) -> None:
    """Errors found while parsing go the same way as tokens: one sending thread for all."""
    rejected, answered = Recorder(), submit(request(20))
    loop.reject(rejected, UserError("bad"))  # type: ignore[arg-type]
    assert str(rejected.wait().error).startswith("E1000")
    answered.wait()
    assert rejected.threads == answered.threads == {"engine"}


def test_every_token_once_and_in_order(submit: Callable[..., Recorder]) -> None:
    """With 40 streams at once each gets its tokens whole, the first one alone."""
    recorders = [submit(request(30 + index)) for index in range(40)]
    for index, recorder in enumerate(recorders):
        assert recorder.wait().tokens == list(range(30 + index))
        assert recorder.responses[0] == [0]


def test_few_streams_get_each_token_at_once(submit: Callable[..., Recorder]) -> None:
    """Under light load a response carries one token."""
    assert submit(request(20)).wait().responses == [[token] for token in range(20)]


def test_many_streams_get_several_tokens_a_response(submit: Callable[..., Recorder]) -> None:
    """Under load responses carry up to four tokens, as the sender is the bottleneck."""
    recorders = [submit(request(200)) for _ in range(40)]
    sizes = {len(response) for recorder in recorders for response in recorder.wait().responses}
    assert max(sizes) == 4


def test_not_streaming_is_one_response(submit: Callable[..., Recorder]) -> None:
    """Without streaming all tokens come at the end."""
    assert submit(request(20, streaming=False)).wait().responses == [list(range(20))]


def test_a_cancelled_request_is_aborted(
    engine: CountingEngine, submit: Callable[..., Recorder]
) -> None:
    """The engine is told, the request ended, and no token follows."""
    recorder = Recorder()
    recorder.cancel_after = 3
    submit(request(100_000), recorder).wait()
    assert engine.sequences[0].aborted
    num_reads = engine.sequences[0].num_reads
    time.sleep(0.02)
    assert engine.sequences[0].num_reads == num_reads


def test_every_stream_is_asked_about_cancellation(submit: Callable[..., Recorder]) -> None:
    """Asking costs as much as a response: the streams take turns, and none is left out."""
    recorders = [submit(request(400)) for _ in range(10)]
    assert all(2 <= recorder.wait().num_asked <= 300 for recorder in recorders)


def test_a_stop_request_ends_the_request_of_its_id(
    engine: CountingEngine, loop: StreamingLoop, submit: Callable[..., Recorder]
) -> None:
    """Both end: the stopped one with what it had, the stop request with an empty response."""
    running = submit(request(100_000, "a"))
    while not running.responses:
        time.sleep(0.001)
    answer = Recorder()
    loop.stop_request("a", answer)  # type: ignore[arg-type]
    answer.wait()
    tokens = running.wait().tokens
    assert tokens == list(range(len(tokens)))
    assert answer.responses == []
    assert engine.sequences[0].aborted


def test_closing_ends_what_runs(engine: CountingEngine) -> None:
    """Closing cancels the running requests and closes the engine; a second time does nothing."""
    counts: list[int] = []
    loop = start(engine, on_iteration=counts.append)
    recorder = Recorder()
    loop.submit(request(10_000_000), recorder)  # type: ignore[arg-type]
    while not recorder.responses:
        time.sleep(0.001)
    loop.close(DEADLINE_S)
    recorder.wait()
    assert (engine.closed, counts[0], counts[-1]) == (True, 1, 0)
    loop.close(DEADLINE_S)
