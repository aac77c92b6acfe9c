"""The pytorch runtime on the stand-in tensorrt_llm: what goes in, and which ids come out."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cog_triton.errors import SettingsError, TritonUnknownError, UnsupportedInput
from cog_triton.runtimes.config import RuntimeConfig
from cog_triton.runtimes.pytorch import PyTorchEngine, PyTorchSequence
from cog_triton.runtimes.slot_request import SlotRequest
from cog_triton.runtimes.stop_words import StopWordWatch
from cog_triton.runtimes.streaming_loop import EngineGone
from tests.checkpoint_samples import VOCAB_SIZE, write_checkpoint
from tests.slot_server import STANDINS, records

PROMPT = [5, 6, 7]


def config_for(model: Path, **changes: Any) -> RuntimeConfig:
    values: dict[str, Any] = {
        "runtime": "pytorch",
        "weights": str(model),
        "vocab_size": VOCAB_SIZE,
        "max_batch_size": 8,
        "max_seq_len": 256,
        "max_num_tokens": 256,
        "kv_cache_bytes": 0,
        **changes,
    }
    return RuntimeConfig(**values)


def request(max_tokens: int = 20, **changes: Any) -> SlotRequest:
    values: dict[str, Any] = {"streaming": True, "end_id": 1, **changes}
    return SlotRequest("", np.array(PROMPT), max_tokens, **values)


async def read_all(sequence: PyTorchSequence) -> tuple[list[list[int]], list[float]]:
    """The ids of each read, and all log probs."""
    reads, log_probs, finished = [], [], False
    while not finished:
        ids, new, finished = await asyncio.wait_for(sequence.read(), 10)
        reads.append(ids)
        log_probs += new
    return reads, log_probs


def flat(reads: list[list[int]]) -> list[int]:
    return [token for ids in reads for token in ids]


@pytest.fixture(autouse=True)
def standin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The stand-in can be imported as `tensorrt_llm`, by one test at a time."""
    monkeypatch.syspath_prepend(str(STANDINS))
    yield
    for name in [name for name in sys.modules if name.split(".")[0] == "tensorrt_llm"]:
        del sys.modules[name]


@pytest.fixture
def record(tmp_path: Path) -> Path:
    return tmp_path / "record"


@pytest.fixture
async def engine(tmp_path: Path, record: Path) -> AsyncIterator[PyTorchEngine]:
    model = write_checkpoint(tmp_path / "model", record=str(record))
    engine = PyTorchEngine(config_for(model), {})
    yield engine
    engine.close()


async def test_a_failed_start_gives_the_reason(tmp_path: Path) -> None:
    """What TensorRT-LLM says is what the caller gets."""
    model = write_checkpoint(tmp_path / "model", fail="CUDA error: out of memory")
    with pytest.raises(RuntimeError, match="CUDA error: out of memory"):
        PyTorchEngine(config_for(model), {})
    with pytest.raises(SettingsError, match=r"pytorch\.no_such"):
        PyTorchEngine(config_for(model, llm_arguments={"no_such": 1}), {})


async def test_refused_requests(engine: PyTorchEngine) -> None:
    """What the API refuses and what it cannot express are errors of that request alone."""
    with pytest.raises(UnsupportedInput, match="bad_words_list"):
        engine.generate(request(bad_words=((5, 6),)))
    with pytest.raises(TritonUnknownError, match="TensorRT-LLM failed: min_p is"):
        engine.generate(request(top_p=0.9, min_p="x"))
    assert await read_all(engine.generate(request(1))) == ([[5]], [])


async def test_a_prompt_over_the_step_without_chunks(tmp_path: Path) -> None:
    """The API's ValueError keeps its text."""
    model = write_checkpoint(tmp_path / "model")
    arguments = {"enable_chunked_prefill": False}
    engine = PyTorchEngine(config_for(model, max_num_tokens=2, llm_arguments=arguments), {})
    try:
        with pytest.raises(TritonUnknownError, match=r"refuses the request: .* max_num_tokens 2"):
            engine.generate(request())
    finally:
        engine.close()


async def test_after_its_shutdown_the_engine_is_gone(engine: PyTorchEngine) -> None:
    """No later request can be served, and the caller can tell that from a bad request."""
    engine.close()
    with pytest.raises(EngineGone, match="takes no requests any more: LLM is shutting down"):
        engine.generate(request())


async def test_the_parents_mpi_job_is_left(tmp_path: Path) -> None:
    """Its variables are gone before TensorRT-LLM is imported, the rest stays."""
    environ = {"OMPI_COMM_WORLD_SIZE": "4", "PMIX_RANK": "0", "PATH": "/bin"}
    engine = PyTorchEngine(config_for(write_checkpoint(tmp_path / "model")), environ)
    engine.close()
    assert environ == {"PATH": "/bin"}


async def test_streaming_gives_new_ids_only(engine: PyTorchEngine, record: Path) -> None:
    """One id a step; the end id, which the sampler keeps to itself, is an empty last read."""
    reads, _ = await read_all(engine.generate(request()))
    assert reads == [[5], [6], [7], [5], [6], [7], []]
    (call,) = records(record, "generate_async")
    assert (call["inputs"], call["streaming"], call["end_id"]) == (PROMPT, True, 1)


async def test_the_length_ends_an_answer_with_its_last_id(engine: PyTorchEngine) -> None:
    """Nothing follows the last id of an answer that max_tokens ends."""
    reads, _ = await read_all(engine.generate(request(4)))
    assert reads == [[5], [6], [7], [5]]


async def test_not_streaming_is_one_read(engine: PyTorchEngine) -> None:
    """All ids at once."""
    reads, _ = await read_all(engine.generate(request(4, streaming=False)))
    assert reads == [[5, 6, 7, 5]]


async def test_log_probs_come_with_their_ids(engine: PyTorchEngine) -> None:
    """One for each id, from the cumulative list."""
    asked = request(3, return_log_probs=True)
    reads, log_probs = await read_all(engine.generate(asked))
    assert reads == [[5], [6], [7]]
    assert log_probs == [-0.5, -1.0, -1.5]


async def test_a_stop_word_of_one_token_is_kept(engine: PyTorchEngine) -> None:
    """The client tells by it why the answer ended."""
    reads, _ = await read_all(engine.generate(request(stop_words=((6,),))))
    assert reads == [[5], [6]]


@pytest.mark.parametrize("streaming", [True, False])
async def test_a_stop_word_of_several_tokens(
    engine: PyTorchEngine, record: Path, streaming: bool
) -> None:
    """It is found here, and the engine's work on the request is ended."""
    asked = request(stop_words=((6, 7),), streaming=streaming, return_log_probs=True)
    reads, log_probs = await read_all(engine.generate(asked))
    assert flat(reads) == [5, 6, 7]
    assert len(log_probs) == 3
    assert len(records(record, "abort")) == 1


async def test_sampling_and_bad_words_reach_the_engine(engine: PyTorchEngine) -> None:
    """The seed moves the toy tokens, and a banned one is replaced."""
    sampled = request(3, top_p=0.9, temperature=0.8, seed=1)
    assert await read_all(engine.generate(sampled)) == ([[6], [7], [5]], [])
    assert await read_all(engine.generate(request(3, bad_words=((6,),)))) == ([[5], [7], [7]], [])


async def test_without_an_end_id_the_answer_is_as_long_as_asked(engine: PyTorchEngine) -> None:
    """The model's own end id is not used behind the caller's back."""
    reads, _ = await read_all(engine.generate(request(20, end_id=None)))
    assert len(reads) == 20


async def test_an_abort_ends_the_request(engine: PyTorchEngine, record: Path) -> None:
    """The engine is told; what it still sends is the end."""
    sequence = engine.generate(request(200, min_tokens=200))
    await sequence.read()
    sequence.abort()
    reads, _ = await read_all(sequence)
    assert len(flat(reads)) < 200
    assert len(records(record, "abort")) == 1


class ManyAtOnce:
    """A RequestOutput whose steps carry several ids, with plain numbers for log probs."""

    def __init__(self, steps: list[list[int]]) -> None:
        self.steps = steps
        self.finished = False
        self.outputs = [self]
        self.token_ids: list[int] = []
        self.logprobs: list[float] = []
        self.num_aborts = 0

    async def __anext__(self) -> ManyAtOnce:
        self.token_ids += self.steps.pop(0)
        self.logprobs = [float(token) for token in self.token_ids]
        self.finished = not self.steps
        return self

    def abort(self) -> None:
        self.num_aborts += 1


async def test_several_ids_a_step() -> None:
    """Speculative decoding gives more than one; ids behind a stop word are dropped."""
    output = ManyAtOnce([[1, 2, 3], [4, 5, 6], [7]])
    sequence = PyTorchSequence(output, StopWordWatch([[3, 4]]), with_log_probs=True)
    assert await read_all(sequence) == ([[1, 2, 3], [4]], [1.0, 2.0, 3.0, 4.0])
    assert output.num_aborts == 1


async def test_a_stop_word_in_the_last_step_needs_no_abort() -> None:
    """The request has ended by itself."""
    output = ManyAtOnce([[1], [2, 3]])
    sequence = PyTorchSequence(output, StopWordWatch([[1, 2]]), with_log_probs=False)
    assert await read_all(sequence) == ([[1], [2]], [])
    assert output.num_aborts == 0
