"""What a build will run, as a plain value, computed without running anything."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from cog_triton.artifacts.model_directory import ModelDirectory
from cog_triton.build import convert, quantization, trtllm_build
from cog_triton.build.families import Family, family_of
from cog_triton.build.flag import Value
from cog_triton.errors import ArtifactCorrupt, SettingsError, UnsupportedModel
from cog_triton.settings import EngineSettings, Settings

MAX_NUM_TOKENS = 8192  # trtllm-build's own default


@dataclass(frozen=True)
class BuildPlan:
    """How one engine is made.

    convert_values  flags of convert_checkpoint.py, without its directories
    build_values    flags of trtllm-build, without its directories
    arguments       keyword arguments of `tensorrt_llm._tensorrt_engine.LLM`, of plain values
    build_config    fields of its BuildConfig
    quant_config    fields of its QuantConfig
    """

    family: Family
    architecture: str
    method: Literal["trtllm_build", "llm_api"]
    world_size: int
    convert_values: dict[str, Value] = field(default_factory=dict)
    build_values: dict[str, Value] = field(default_factory=dict)
    arguments: dict[str, Value] = field(default_factory=dict)
    build_config: dict[str, Value] = field(default_factory=dict)
    quant_config: dict[str, Value] = field(default_factory=dict)

    def commands(
        self, settings: Settings, model_dir: Path, scratch: Path, engine_dir: Path
    ) -> list[list[str]]:
        """The command lines of method trtllm_build, in order.

        Raises: SettingsError when a value does not fit its flag.
        """
        script, checkpoint = self.family.script, scratch / "checkpoint"
        path = convert.script_path(settings.build.examples_dir, script)
        python, program = sys.executable, settings.build.trtllm_build
        if os.sep in program:
            program = os.path.abspath(program)  # it runs in the scratch directory
        return [
            convert.command(python, path, script, model_dir, checkpoint, self.convert_values),
            trtllm_build.command(program, checkpoint, engine_dir, scratch, self.build_values),
        ]

    def constructor_call(self, model_dir: Path, scratch: Path) -> dict[str, object]:
        """The call of method llm_api: keyword arguments, and the fields of the two configs."""
        return {
            "arguments": {
                "model": str(model_dir),
                "workspace": str(scratch / "workspace"),
                **self.arguments,
            },
            "build_config": self.build_config,
            "quant_config": self.quant_config,
        }


def plan_build(settings: Settings, model: ModelDirectory) -> BuildPlan:
    """The build of a checkpoint by the settings.

    Raises: UnsupportedModel for an architecture, quantisation or pipeline that cannot be built;
    SettingsError for limits and flags that cannot be.
    """
    architecture = _architecture(model)
    family, build = family_of(architecture), settings.build
    tp_size = settings.engine.tensor_parallel_size or 1
    pp_size = settings.engine.pipeline_parallel_size or 1
    if family.script == "phi" and pp_size > 1:
        raise UnsupportedModel(
            f"engine.pipeline_parallel_size is {pp_size}, phi's convert_checkpoint.py takes only 1"
        )
    quant_config = quantization.quant_config(family, build)
    convert_values = quantization.convert_values(family, build)
    sizes = _sizes(settings.engine, model)
    if build.method == "llm_api" or (build.method == "auto" and convert_values is None):
        _need_no_flags(settings)
        return BuildPlan(
            family,
            architecture,
            "llm_api",
            tp_size * pp_size,
            arguments={
                "dtype": settings.engine.dtype,
                "tensor_parallel_size": tp_size,
                "pipeline_parallel_size": pp_size,
            },
            build_config=sizes,
            quant_config=quant_config,
        )
    if convert_values is None:
        raise UnsupportedModel(
            f"{family.script}'s convert_checkpoint.py has no {_asked(settings)}; "
            "build.method: llm_api (or auto) builds it through the LLM API"
        )
    workers = build.workers or tp_size * pp_size
    in_parallel: dict[str, Value] = {"workers": workers} if workers > 1 else {}
    parallelism: dict[str, Value] = {"tp_size": tp_size, "pp_size": pp_size}
    extra = convert.check_flags(family.script, dict(build.convert_flags))
    return BuildPlan(
        family,
        architecture,
        "trtllm_build",
        tp_size * pp_size,
        convert_values={
            "dtype": settings.engine.dtype,
            **parallelism,
            **convert_values,
            **extra,
            **in_parallel,
        },
        build_values={
            **sizes,
            "gemm_plugin": "auto",
            "kv_cache_type": "paged",
            "remove_input_padding": "enable",
            "use_paged_context_fmha": "enable",
            **trtllm_build.check_flags(dict(build.flags)),
            **in_parallel,
        },
    )


def _sizes(limits: EngineSettings, model: ModelDirectory) -> dict[str, Value]:
    """The size limits, under names that trtllm-build and BuildConfig share; in tokens."""
    context = model.max_position_embeddings
    max_seq_len = limits.max_seq_len or context
    if max_seq_len > context:
        raise SettingsError(
            f"engine.max_seq_len is {max_seq_len}, but the model's context is {context} tokens."
        )
    max_input_len = limits.max_input_len or max_seq_len
    if max_input_len > max_seq_len:
        raise SettingsError(
            f"engine.max_input_len is {max_input_len}, more than max_seq_len, {max_seq_len}."
        )
    return {
        "max_batch_size": limits.max_batch_size,
        "max_input_len": max_input_len,
        "max_seq_len": max_seq_len,
        "max_beam_width": limits.max_beam_width,
        "max_num_tokens": limits.max_num_tokens or MAX_NUM_TOKENS,
    }


def _need_no_flags(settings: Settings) -> None:
    for section, program in (("flags", "trtllm-build"), ("convert_flags", "convert_checkpoint.py")):
        given = getattr(settings.build, section)
        if given:
            raise SettingsError(
                f"build.{section} ({', '.join(given)}) are for {program}, but {_asked(settings)} "
                "is built through the LLM API; leave them out."
            )


def _asked(settings: Settings) -> str:
    build = settings.build
    parts = [f"build.quantization {build.quantization}"]
    if build.kv_cache_quantization != "none":
        parts.append(f"build.kv_cache_quantization {build.kv_cache_quantization}")
    if build.quantization == "int4_awq":
        parts.append("without build.quant_ckpt_path" if not build.quant_ckpt_path else "")
    return " ".join(part for part in parts if part)


def _architecture(model: ModelDirectory) -> str:
    path = model.path / "config.json"
    try:
        named = json.loads(path.read_bytes()).get("architectures") or [""]
        return str(named[0])
    except (OSError, ValueError, AttributeError, LookupError) as err:
        raise ArtifactCorrupt(f"{path} cannot be read ({err})") from err
