"""Whether a compiled engine fits this machine and these settings, before anything is launched.

Rules: the compatibility notes of TensorRT-LLM 1.1's engine format (an engine runs on the release
and the compute capability it was built for, with the ranks it was built in, within its limits).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from cog_triton.artifacts.manifest import Manifest
from cog_triton.build.manifest import EngineManifest
from cog_triton.engine_config import EngineConfig
from cog_triton.errors import EngineIncompatible
from cog_triton.gpu_inventory import BFLOAT16_FROM, FP8_FROM
from cog_triton.machine import Machine
from cog_triton.model_size import WeightsSize, memory_problem
from cog_triton.settings import EngineSettings

LOGITS_DATATYPES = {"float32": "TYPE_FP32", "float16": "TYPE_FP16"}
_DTYPES = ("float16", "bfloat16", "float32")


@dataclass(frozen=True)
class CheckedEngine:
    """An engine that fits, and its limits where they are narrower than the settings' defaults."""

    config: EngineConfig
    manifest: EngineManifest | None
    max_seq_len: int | None
    max_input_len: int | None
    max_batch_size: int
    max_num_tokens: int | None
    enable_kv_cache_reuse: bool

    @property
    def logits_datatype(self) -> str:
        """The value for Triton's `logits_datatype`."""
        return LOGITS_DATATYPES[self.config.logits_dtype]


def check_engine(
    directory: Path,
    limits: EngineSettings,
    machine: Machine,
    triton: Mapping[str, object] | None = None,
) -> CheckedEngine:
    """Check everything that can be checked without a GPU call.

    `triton` holds template variables that the settings set themselves (section `tensorrt`).

    A limit that the user did not set is lowered to the engine's; one that was set and exceeds it
    is a mismatch.

    Raises: EngineIncompatible with a line for each mismatch, both values in it; ArtifactCorrupt
    for files that cannot be read.
    """
    engine = EngineConfig.read(directory)
    manifest = EngineManifest.read(directory)
    lines = [
        *_version(engine, manifest, machine),
        *_ranks(engine, limits, machine),
        *_gpus(engine, manifest, machine),
        *_memory(directory, engine, machine),
        *_data_types(engine, limits),
        *_limits(engine, limits),
        *_batching(engine, limits),
        *_kv_cache(engine, limits, triton or {}),
        *_triton_values(engine, triton or {}),
        *_files(directory, manifest),
    ]
    if lines:
        raise EngineIncompatible(f"{directory}:\n  " + "\n  ".join(lines) + "\n")
    return CheckedEngine(
        config=engine,
        manifest=manifest,
        max_seq_len=limits.max_seq_len or engine.max_seq_len,
        max_input_len=limits.max_input_len or engine.max_input_len,
        max_batch_size=min(limits.max_batch_size, engine.max_batch_size or limits.max_batch_size),
        max_num_tokens=limits.max_num_tokens or engine.max_num_tokens,
        enable_kv_cache_reuse=limits.enable_kv_cache_reuse and engine.can_share_kv_blocks,
    )


def _version(
    engine: EngineConfig, manifest: EngineManifest | None, machine: Machine
) -> Iterator[str]:
    if engine.version != machine.tensorrt_llm:
        installed = machine.tensorrt_llm or "none"
        yield f"TensorRT-LLM: built by {engine.version}, installed is {installed}"
    built_with = manifest.versions.get("tensorrt") if manifest else None
    if built_with and machine.tensorrt and built_with != machine.tensorrt:
        yield f"TensorRT: built with {built_with}, installed is {machine.tensorrt}"
    if engine.unknown_mapping_keys:
        yield (
            f"mapping: has {', '.join(engine.unknown_mapping_keys)}, which "
            f"TensorRT-LLM {machine.tensorrt_llm} does not know and refuses to load"
        )


def _ranks(engine: EngineConfig, limits: EngineSettings, machine: Machine) -> Iterator[str]:
    for name, wanted, built in (
        ("tensor_parallel_size", limits.tensor_parallel_size, engine.tp_size),
        ("pipeline_parallel_size", limits.pipeline_parallel_size, engine.pp_size),
    ):
        if wanted is not None and wanted != built:
            yield f"{name}: the settings ask for {wanted}, the engine has {built}"
    product = engine.tp_size * engine.pp_size * engine.cp_size
    if engine.world_size != product:
        yield f"world_size: {engine.world_size}, but tp_size * pp_size * cp_size is {product}"
    missing = sorted(set(range(engine.world_size)) - set(engine.rank_files))
    if missing:
        names = ", ".join(f"rank{rank}.engine" for rank in missing)
        yield f"rank files: {len(engine.rank_files)} of {engine.world_size}, missing {names}"
    surplus = [rank for rank in engine.rank_files if rank >= engine.world_size]
    if surplus:
        names = ", ".join(f"rank{rank}.engine" for rank in surplus)
        yield f"rank files: {names} beyond a world_size of {engine.world_size}"
    if engine.world_size > len(machine.gpus):
        yield f"GPUs: the engine needs {engine.world_size}, this machine has {len(machine.gpus)}"


def _gpus(engine: EngineConfig, manifest: EngineManifest | None, machine: Machine) -> Iterator[str]:
    built_for = manifest.gpu.get("compute_capability") if manifest else None
    used = dict.fromkeys(machine.gpus.gpus[: engine.world_size])
    for gpu in used:
        if built_for is not None and str(gpu.compute_capability) != built_for:
            name = manifest.gpu.get("name", "a GPU") if manifest else ""
            yield (
                f"compute capability: built for {built_for} ({name}), "
                f"{gpu.name} has {gpu.compute_capability}"
            )
        if engine.dtype == "bfloat16" and gpu.compute_capability < BFLOAT16_FROM:
            yield (
                f"dtype: bfloat16 needs compute capability {BFLOAT16_FROM}, "
                f"{gpu.name} has {gpu.compute_capability}"
            )
        quant_algos = [engine.quant_algo or "", engine.kv_cache_quant_algo or ""]
        fp8 = next((algo for algo in quant_algos if "FP8" in algo), None)
        if fp8 and gpu.compute_capability < FP8_FROM:
            yield (
                f"quantization: {fp8} needs compute capability {FP8_FROM}, "
                f"{gpu.name} has {gpu.compute_capability}"
            )


def _memory(directory: Path, engine: EngineConfig, machine: Machine) -> Iterator[str]:
    files = (directory / f"rank{rank}.engine" for rank in engine.rank_files)
    size = WeightsSize(sum(path.stat().st_size for path in files), "the engine's files")
    problem = memory_problem(size, engine.world_size, machine.gpus)
    if problem:
        yield problem


def _data_types(engine: EngineConfig, limits: EngineSettings) -> Iterator[str]:
    if engine.dtype not in _DTYPES:
        yield f"dtype: {engine.dtype}, known are {', '.join(_DTYPES)}"
    if limits.dtype not in ("auto", engine.dtype):
        yield f"dtype: the settings ask for {limits.dtype}, the engine has {engine.dtype}"
    if engine.logits_dtype not in LOGITS_DATATYPES:
        yield f"logits_dtype: {engine.logits_dtype}, Triton takes {', '.join(LOGITS_DATATYPES)}"


def _limits(engine: EngineConfig, limits: EngineSettings) -> Iterator[str]:
    for name in (
        "max_seq_len",
        "max_input_len",
        "max_batch_size",
        "max_beam_width",
        "max_num_tokens",
    ):
        wanted, built = getattr(limits, name), getattr(engine, name)
        is_set = name in limits.model_fields_set and wanted is not None
        if is_set and built is not None and wanted > built:
            yield f"{name}: the settings ask for {wanted}, the engine was built for {built}"


def _batching(engine: EngineConfig, limits: EngineSettings) -> Iterator[str]:
    for name, value, is_right, needed in (
        ("kv_cache_type", engine.kv_cache_type, engine.kv_cache_type == "PAGED", "PAGED"),
        ("remove_input_padding", engine.remove_input_padding, engine.remove_input_padding, "true"),
        (
            "gpt_attention_plugin",
            engine.gpt_attention_plugin,
            engine.gpt_attention_plugin is not None,
            "a data type or auto",
        ),
    ):
        if not is_right:
            yield f"{name}: {value}, in-flight batching needs {needed}"
    wants_reuse = limits.enable_kv_cache_reuse and (
        "enable_kv_cache_reuse" in limits.model_fields_set
    )
    if wants_reuse and not engine.can_share_kv_blocks:
        yield f"enable_kv_cache_reuse: true, {_context_fmha(engine)}"


def _kv_cache(
    engine: EngineConfig, limits: EngineSettings, triton: Mapping[str, object]
) -> Iterator[str]:
    bound = triton.get("max_tokens_in_paged_kv_cache", limits.max_tokens_in_paged_kv_cache)
    longest = limits.max_seq_len or engine.max_seq_len
    if bound is None or longest is None:
        return
    beam_width = min(limits.max_beam_width, engine.max_beam_width)
    needed = smallest_kv_cache_tokens(longest, beam_width, engine.tokens_per_block)
    if int(str(bound)) < needed:
        yield (
            f"max_tokens_in_paged_kv_cache: {bound}, one sequence of max_seq_len {longest} "
            f"needs {needed}; leave it out, then memory decides"
        )


def _triton_values(engine: EngineConfig, triton: Mapping[str, object]) -> Iterator[str]:
    chunked = str(triton.get("enable_chunked_context", "false")).lower()
    if chunked in ("true", "1") and not engine.can_share_kv_blocks:
        yield f"enable_chunked_context: {chunked}, {_context_fmha(engine)}"
    wanted, built = triton.get("logits_datatype"), LOGITS_DATATYPES.get(engine.logits_dtype)
    if wanted is not None and wanted != built:
        yield f"logits_datatype: the settings ask for {wanted}, the engine has {built}"


def _context_fmha(engine: EngineConfig) -> str:
    return (
        "but the engine was built with use_paged_context_fmha "
        f"{str(engine.use_paged_context_fmha).lower()} and kv_cache_type {engine.kv_cache_type}"
    )


def smallest_kv_cache_tokens(max_seq_len: int, beam_width: int, tokens_per_block: int) -> int:
    """Tokens a KV cache needs to finish one sequence, in whole blocks.

    From the Phi-3 guide: the bound must cover beam_width * tokensPerBlock * maxBlocksPerSeq.
    """
    return beam_width * tokens_per_block * -(-max_seq_len // tokens_per_block)


def _files(directory: Path, manifest: EngineManifest | None) -> Iterator[str]:
    if manifest is None:
        return
    fetched = Manifest.read(directory)
    known = {name: record.sha256 for name, record in fetched.files.items()} if fetched else {}
    for line in manifest.changed_files(directory, known):
        yield f"file {line}"
