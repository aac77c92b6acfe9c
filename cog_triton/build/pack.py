"""Pack what an engine lacks for serving: the tokenizer and the generation config of its model."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from cog_triton.artifacts.model_directory import ModelDirectory

# Hugging Face's names. config.json is not among them: the engine's own has that name.
TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "tokenizer.model",
    "chat_template.jinja",
    "chat_template.json",
)
GENERATION_CONFIG = "generation_config.json"


def pack(model: ModelDirectory, engine_dir: Path) -> None:
    """Copy the files into `engine_dir`; its generation config always names the end ids.

    An engine's config.json has no end ids, so they would be lost for a model that has them in its
    config.json only (GPT-2).
    """
    for name in TOKENIZER_FILES:
        if (model.path / name).is_file():
            shutil.copyfile(model.path / name, engine_dir / name)
    source = model.path / GENERATION_CONFIG
    generation = json.loads(source.read_bytes()) if source.is_file() else {}
    if generation.get("eos_token_id") is None:
        generation["eos_token_id"] = list(model.end_ids)
    if generation.get("pad_token_id") is None:
        generation["pad_token_id"] = model.pad_id
    text = json.dumps(generation, indent=1) + "\n"
    (engine_dir / GENERATION_CONFIG).write_text(text, encoding="utf-8")
