"""The program that builds an engine through TensorRT-LLM's LLM API, in a process of its own.

`llm_api_job.py <call.json> <engine_dir>`. It imports nothing from the package, so that it works
wherever the package lies. Names: tensorrt_llm 1.1, where engines are built by the class in
`tensorrt_llm._tensorrt_engine`; `tensorrt_llm.LLM` is PyTorch only and has no save().
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any


def main() -> None:
    call_file, engine_dir = sys.argv[1:]
    call: dict[str, Any] = json.loads(Path(call_file).read_text(encoding="utf-8"))
    from tensorrt_llm._tensorrt_engine import LLM
    from tensorrt_llm.llmapi import BuildConfig, QuantAlgo, QuantConfig

    quant = {
        name: getattr(QuantAlgo, value) if name.endswith("quant_algo") else value
        for name, value in call["quant_config"].items()
    }
    arguments = {**call["arguments"], "build_config": BuildConfig(**call["build_config"])}
    if quant:
        arguments["quant_config"] = QuantConfig(**quant)
    llm = LLM(**arguments)
    try:
        llm.save(engine_dir)
    finally:
        llm.shutdown()


# MPI starts further ranks by importing this file: they must not build.
if __name__ == "__main__":
    main()
