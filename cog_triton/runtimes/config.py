"""What a Python runtime is told, beside `config.pbtxt`, as JSON in its version directory.

`config.pbtxt` holds what TensorRT-LLM's contract has words for; the rest (which
runtime, memory, threads) is here, so that the config stays pure contract.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

FILE_NAME = "runtime.json"


@dataclass(frozen=True)
class RuntimeConfig:
    """Everything the slot's model.py needs to open an engine; token counts, bytes.

    From `tensor_parallel_size` on the fields are for the pytorch runtime alone. There
    `kv_cache_bytes` 0 leaves the size to `kv_cache_free_gpu_mem_fraction`, and `llm_arguments`
    holds further arguments of `tensorrt_llm.LLM`, which win over what follows from the rest.
    """

    runtime: str
    weights: str
    vocab_size: int
    max_batch_size: int
    max_seq_len: int
    max_num_tokens: int
    kv_cache_bytes: int
    max_beam_width: int = 1
    enable_kv_cache_reuse: bool = True
    num_threads: int | None = None
    cancellation_check_period_ms: int = 50
    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    dtype: str = "auto"
    kv_cache_free_gpu_mem_fraction: float | None = None
    max_tokens_in_paged_kv_cache: int | None = None
    llm_arguments: dict[str, Any] = field(default_factory=dict)

    def to_json(self) -> bytes:
        return json.dumps(asdict(self), indent=1).encode() + b"\n"

    @classmethod
    def read(cls, version_dir: Path) -> RuntimeConfig:
        """The config in a version directory of the model repository."""
        return cls(**json.loads((version_dir / FILE_NAME).read_bytes()))
