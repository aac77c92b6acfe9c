"""Engine directories and archives built in code, good and hostile."""

from __future__ import annotations

import gzip
import io
import json
import tarfile
from collections.abc import Mapping
from typing import Any

import zstandard

ENGINE_CONFIG: dict[str, Any] = {
    "version": "1.1.0",
    "pretrained_config": {
        "architecture": "LlamaForCausalLM",
        "vocab_size": 32000,
        "max_position_embeddings": 4096,
    },
    "build_config": {"max_batch_size": 8},
}


def engine_files(rank0: bytes = b"engine") -> dict[str, bytes]:
    """The files of a TensorRT-LLM engine directory with its tokenizer."""
    return {
        "config.json": json.dumps(ENGINE_CONFIG).encode(),
        "generation_config.json": b'{"eos_token_id": 2}',
        "tokenizer.json": b"{}",
        "tokenizer_config.json": b"{}",
        "rank0.engine": rank0,
    }


def entry(
    name: str, content: bytes = b"", kind: bytes = tarfile.REGTYPE, target: str = "", **more: Any
) -> tuple[tarfile.TarInfo, bytes]:
    """One entry of a tar; `more` are further attributes of its header."""
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.size = kind, target, len(content)
    for key, value in more.items():
        setattr(info, key, value)
    return info, content


def make_tar(
    *entries: tuple[tarfile.TarInfo, bytes], tar_format: int = tarfile.PAX_FORMAT
) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tar_format) as archive:
        for info, content in entries:
            archive.addfile(info, io.BytesIO(content))
    return out.getvalue()


def tar_of(files: Mapping[str, bytes], top: str = "") -> bytes:
    """A tar of files, as `tar -C directory` makes it of all or, with `top`, of one directory."""
    entries = [entry(top or ".", kind=tarfile.DIRTYPE)]
    prefix = f"{top}/" if top else "./"
    entries += [entry(prefix + name, content) for name, content in files.items()]
    return make_tar(*entries)


def engine_archive(form: str = "tar", top: str = "", rank0: bytes = b"engine") -> bytes:
    """An engine as `tar`, `gzip` or `zstd`."""
    content = tar_of(engine_files(rank0), top)
    if form == "gzip":
        return gzip.compress(content)
    return zstandard.ZstdCompressor().compress(content) if form == "zstd" else content
