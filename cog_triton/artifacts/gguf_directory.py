"""Write the files that a model directory has beside its weights, from what a GGUF says.

`tokenizer.json`, `tokenizer_config.json`, `generation_config.json` and `config.json`, in the form
that Hugging Face's libraries read, reduced to what this product and its runtimes use.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from cog_triton.artifacts import openvino_ir
from cog_triton.artifacts.gguf_model import GgufModel, TokenType, read_gguf_model
from cog_triton.artifacts.options import FetchOptions
from cog_triton.artifacts.published import Workspace
from cog_triton.errors import ArtifactCorrupt

WEIGHTS_NAME = "model.gguf"
_DERIVED_SPACE_BYTES = 64_000_000  # tokenizer files of the largest vocabularies, with room

# Control tokens that end a turn or a text in some chat format. A GGUF names one to three of those
# that its model emits; llama.cpp looks for the others by their text (llama-vocab.cpp, EOG tokens).
WELL_KNOWN_END_TOKENS = frozenset(
    (
        "</s>",
        "<|im_end|>",
        "<|end|>",
        "<|endoftext|>",
        "<|end_of_text|>",
        "<|eot_id|>",
        "<|eom_id|>",
        "<end_of_turn>",
        "<|return|>",
    )
)


def derived_space_bytes(gguf_bytes: int, options: FetchOptions) -> int:
    """Disk space that `write_derived_files` may take for a GGUF of this size."""
    # Weights of 4 bits stay as they are; those of 5 and 6 bits become 8.
    return _DERIVED_SPACE_BYTES + (gguf_bytes * 8 // 5 if wanted_programs(options) else 0)


def wanted_programs(options: FetchOptions) -> dict[str, str]:
    """The programs that files are to be written for, with versions: a recipe's `prepared`."""
    version = openvino_ir.installed_version() if options.prepare_for == "openvino" else None
    return {} if version is None else {openvino_ir.PACKAGE: version}


def write_derived_files(work: Workspace, options: FetchOptions) -> None:
    """Fill `work.model`, which holds the weights as WEIGHTS_NAME, with everything else.

    Raises: ArtifactCorrupt or UnsupportedModel, as reading the GGUF, building its tokenizer and
    converting it do.
    """
    gguf = work.model / WEIGHTS_NAME
    if not wanted_programs(options):
        _write_hugging_face_files(gguf, options)
        return
    with openvino_ir.writing_openvino_ir(gguf, work.scratch, options.progress):
        _write_hugging_face_files(gguf, options)


def _write_hugging_face_files(gguf: Path, options: FetchOptions) -> None:
    # Only here, where a vocabulary is built: native code that no later start needs.
    from cog_triton.artifacts.gguf_tokenizer import build_tokenizer

    options.progress("read the tokenizer from the GGUF", 0, None)
    model = read_gguf_model(gguf)
    end_ids = find_end_ids(model)
    if not end_ids:
        raise ArtifactCorrupt(f"{gguf} names no end token (tokenizer.ggml.eos_token_id)")
    build_tokenizer(model).save(str(gguf.with_name("tokenizer.json")), pretty=False)
    generation = {**_special_ids(model, end_ids), "eos_token_id": list(end_ids)}
    _write_json(gguf.with_name("tokenizer_config.json"), _tokenizer_config(model, end_ids))
    _write_json(gguf.with_name("generation_config.json"), generation)
    _write_json(gguf.with_name("config.json"), _config(model, end_ids))


def find_end_ids(model: GgufModel) -> tuple[int, ...]:
    """Every token id after which generation is over, the model's own EOS first."""
    ids = [i for i in (model.eos_id, model.eot_id, model.eom_id) if i is not None]
    ids += [
        i
        for i, (token, kind) in enumerate(zip(model.tokens, model.token_types, strict=True))
        if kind == TokenType.CONTROL and token in WELL_KNOWN_END_TOKENS
    ]
    return tuple(dict.fromkeys(ids))


def _pad_id(model: GgufModel, end_ids: tuple[int, ...]) -> int:
    return model.pad_id if model.pad_id is not None else end_ids[0]


def _special_ids(model: GgufModel, end_ids: tuple[int, ...]) -> dict[str, Any]:
    """Ids as config.json has them: one end id; generation_config.json has them all."""
    ids: dict[str, Any] = {} if model.bos_id is None else {"bos_token_id": model.bos_id}
    return {**ids, "eos_token_id": end_ids[0], "pad_token_id": _pad_id(model, end_ids)}


def _tokenizer_config(model: GgufModel, end_ids: tuple[int, ...]) -> dict[str, Any]:
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": model.context_length,
        "clean_up_tokenization_spaces": False,
        "bos_token": model.token(model.bos_id),
        "eos_token": model.token(end_ids[0]),
        "pad_token": model.token(_pad_id(model, end_ids)),
        "unk_token": model.token(model.unk_id),
        "chat_template": model.chat_template,
    }
    return {name: value for name, value in config.items() if value is not None}


def _config(model: GgufModel, end_ids: tuple[int, ...]) -> dict[str, Any]:
    return {
        "model_type": model.architecture,
        "max_position_embeddings": model.context_length,
        "vocab_size": len(model.tokens),
        **_special_ids(model, end_ids),
    }


def _write_json(path: Path, value: dict[str, Any]) -> None:
    text = json.dumps(value, indent=2, ensure_ascii=False)
    path.write_text(text + "\n", encoding="utf-8")
