"""The fingerprint of an engine: equal inputs, equal name; anything that matters changes it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from cog_triton.artifacts.manifest import MANIFEST_NAME, Manifest, sha256_of
from cog_triton.artifacts.model_directory import ModelDirectory
from cog_triton.build.build_plan import BuildPlan
from cog_triton.machine import Machine
from cog_triton.settings import BuildSettings

# Files up to this size are hashed in a directory that has no manifest; larger ones count by size
# and time of change, as hashing tens of gigabytes at every start would take minutes.
HASHED_BYTES = 16 << 20


def fingerprint(identity: str, plan: BuildPlan, machine: Machine, build: BuildSettings) -> str:
    """SHA-256 in hexadecimal over the model, versions, GPUs, and all flags."""
    used = machine.gpus.gpus[: plan.world_size]
    inputs: dict[str, object] = {
        "model": identity,
        "tensorrt_llm": machine.tensorrt_llm,
        "tensorrt": machine.tensorrt,
        "gpus": sorted({f"{gpu.name} {gpu.compute_capability}" for gpu in used}),
        "plan": _without_workers(asdict(plan)),
        "quant_ckpt": file_identity(build.quant_ckpt_path) if build.quant_ckpt_path else None,
    }
    text = json.dumps(inputs, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def model_identity(model: ModelDirectory) -> str:
    """The source of the model and a digest over its files, in one line.

    From the manifest of a fetched directory, which holds digests; otherwise from the files.
    """
    manifest = Manifest.read(model.path)
    if manifest is None:
        files = {
            path.relative_to(model.path).as_posix(): file_identity(path)
            for path in sorted(model.path.rglob("*"))
            if path.is_file() and path.name != MANIFEST_NAME
        }
        return f"{model.path}#{_digest(files)}"
    records = {
        name: record.sha256 or f"{record.size_bytes}:{record.mtime_ns}"
        for name, record in manifest.files.items()
    }
    return f"{manifest.recipe.source}#{_digest(records)}"


def file_identity(path: Path) -> str:
    """A short text that changes when the file (or directory of files) does."""
    if path.is_dir():
        inside = sorted(file for file in path.rglob("*") if file.is_file())
        return _digest({str(file.relative_to(path)): file_identity(file) for file in inside})
    stat = path.stat()
    if stat.st_size <= HASHED_BYTES:
        return sha256_of(path)
    return f"{stat.st_size}:{stat.st_mtime_ns}"


def _digest(values: Mapping[str, str]) -> str:
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


def _without_workers(plan: dict[str, object]) -> dict[str, object]:
    """How many ranks are built at once does not change what is built."""
    return {
        key: {name: v for name, v in value.items() if name != "workers"}
        if isinstance(value, dict)
        else value
        for key, value in plan.items()
    }
