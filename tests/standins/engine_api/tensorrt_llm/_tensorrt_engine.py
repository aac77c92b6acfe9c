"""`LLM` for engines: builds one (of no weights) from a Hugging Face directory, and saves it."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

from tests.standins import checkpoint_programs

from .llmapi import BuildConfig, QuantConfig, refuse_unknown


class LLM:
    """Keyword arguments of BaseLlmArgs and TrtLlmArgs."""

    def __init__(self, model: str, **arguments: Any) -> None:
        refuse_unknown("LLM", {"model": model, **arguments}, ["BaseLlmArgs", "TrtLlmArgs"])
        build = arguments["build_config"]
        quant = arguments.get("quant_config")
        assert isinstance(build, BuildConfig)
        assert isinstance(quant, (QuantConfig, type(None)))
        _record(arguments, build, quant)
        self.workspace = Path(arguments["workspace"])
        self._engine = self.workspace / "tmp.engine"
        self._write_engine(Path(model), arguments, build, quant)

    def save(self, engine_dir: str) -> None:
        shutil.copytree(self._engine, engine_dir, dirs_exist_ok=True)

    def shutdown(self) -> None:
        shutil.rmtree(self._engine)

    def _write_engine(
        self, model: Path, arguments: dict[str, Any], build: BuildConfig, quant: QuantConfig | None
    ) -> None:
        source = json.loads((model / "config.json").read_bytes())
        tp_size, pp_size = arguments["tensor_parallel_size"], arguments["pipeline_parallel_size"]
        values = {f"--{name}": value for name, value in build.fields.items()}
        algorithms = quant.fields if quant else {}
        dtype = arguments["dtype"]
        config = {
            "version": checkpoint_programs.VERSION,
            "pretrained_config": {
                "architecture": source["architectures"][0],
                "dtype": source["torch_dtype"] if dtype == "auto" else dtype,
                "vocab_size": source["vocab_size"],
                "max_position_embeddings": source["max_position_embeddings"],
                "mapping": {
                    "world_size": tp_size * pp_size,
                    "tp_size": tp_size,
                    "pp_size": pp_size,
                },
                "quantization": {
                    name: algorithm.value
                    for name, algorithm in algorithms.items()
                    if name.endswith("quant_algo")
                },
            },
            "build_config": checkpoint_programs.build_config(values, 0),
        }
        self._engine.mkdir(parents=True)
        (self._engine / "config.json").write_text(json.dumps(config))
        for rank in range(tp_size * pp_size):
            (self._engine / f"rank{rank}.engine").write_bytes(b"an engine")
        (self._engine / "tokenizer.json").write_text("{}")


def _record(arguments: dict[str, Any], build: BuildConfig, quant: QuantConfig | None) -> None:
    path = os.environ.get("STANDIN_RECORD")
    if path:
        line = {"program": "LLM", "arguments": ["model", *arguments], "build": build.fields}
        with open(path, "a", encoding="utf-8") as file:
            file.write(json.dumps({**line, "quant": bool(quant)}) + "\n")
