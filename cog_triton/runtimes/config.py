"""What a Python runtime is told, beside `config.pbtxt`, as JSON in its version directory.

`config.pbtxt` holds what TensorRT-LLM's contract has words for; the rest (which
runtime, memory, threads) is here, so that the config stays pure contract.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

FILE_NAME = "runtime.json"


@dataclass(frozen=True)
class RuntimeConfig:
    """Everything the slot's model.py needs to open an engine; token counts, bytes."""

    runtime: str
    weights: str
    vocab_size: int
    max_batch_size: int
    max_seq_len: int
    max_num_tokens: int
    kv_cache_bytes: int
    enable_kv_cache_reuse: bool = True
    num_threads: int | None = None
    cancellation_check_period_ms: int = 50

    def to_json(self) -> bytes:
        return json.dumps(asdict(self), indent=1).encode() + b"\n"

    @classmethod
    def read(cls, version_dir: Path) -> RuntimeConfig:
        """The config in a version directory of the model repository."""
        return cls(**json.loads((version_dir / FILE_NAME).read_bytes()))
