"""Have the engine of a checkpoint: at once if it was built before, otherwise by building it."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import sys
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path

from cog_triton.artifacts.manifest import Manifest, Recipe
from cog_triton.artifacts.model_directory import ModelDirectory
from cog_triton.artifacts.published import (
    Publication,
    Workspace,
    ensure_published,
    is_published,
)
from cog_triton.build import convert, tool
from cog_triton.build.build_plan import BuildPlan, plan_build
from cog_triton.build.fingerprint import fingerprint, model_identity
from cog_triton.build.manifest import EngineManifest
from cog_triton.build.pack import pack
from cog_triton.engine_check import check_engine
from cog_triton.errors import ArtifactCorrupt, EngineBuildFailed, RuntimeUnavailable
from cog_triton.machine import Machine
from cog_triton.model_size import weights_size
from cog_triton.settings import Settings

_JOB = Path(__file__).with_name("llm_api_job.py")


def to_stderr(line: str) -> None:
    """The usual log of a build: coglet shows stderr as the setup's log."""
    print(line, file=sys.stderr, flush=True)


@dataclass(frozen=True)
class EngineBuild:
    """One engine as it shall be; `dest` is named after the fingerprint of all that matters."""

    settings: Settings
    model: ModelDirectory
    machine: Machine
    plan: BuildPlan
    identity: str
    fingerprint: str
    log: tool.Log = to_stderr

    @property
    def dest(self) -> Path:
        """For example `…/engines/phi-3-mini-4k-instruct-1f0c5d3a9b2e`."""
        name = self.settings.model.split("@")[0].rstrip("/").rsplit("/", 1)[-1]
        slug = re.sub(r"[^a-z0-9.]+", "-", name.lower()).strip("-.") or "model"
        return self.settings.engines_dir / f"{slug}-{self.fingerprint[:12]}"

    @property
    def publication(self) -> Publication:
        return Publication(self.dest, Recipe(f"engine:{self.fingerprint}"), self._build)

    @property
    def is_built(self) -> bool:
        return is_published(self.publication)

    def shown_commands(self) -> list[str]:
        """What is run, for a person to read; its working directories are named in the end only."""
        scratch, engine_dir = Path("SCRATCH"), Path("ENGINE")
        if self.plan.method == "llm_api":
            call = json.dumps(self.plan.constructor_call(self.model.path, scratch))
            return [f"tensorrt_llm._tensorrt_engine.LLM {call}"]
        commands = self.plan.commands(self.settings, self.model.path, scratch, engine_dir)
        return [shlex.join(command) for command in commands]

    def _build(self, work: Workspace) -> dict[str, str]:
        size = weights_size(self.settings, self.model, builds_engine=True)
        work.need_space(int(2.2 * size.num_bytes) if size else 0)  # converted, and compiled
        commands = self._run_tools(work)
        try:
            check_engine(work.model, self.settings.engine, self.machine)
        except ArtifactCorrupt as err:
            raise EngineBuildFailed(f"the build ended, but left no engine: {err.detail}") from err
        pack(self.model, work.model)
        gpu = self.machine.gpus.gpus[0]
        fetched = Manifest.read(self.model.path)
        return EngineManifest(
            model=self.settings.model,
            model_identity=self.identity,
            versions={
                "tensorrt_llm": self.machine.tensorrt_llm,
                "tensorrt": self.machine.tensorrt,
            },
            gpu={
                "name": gpu.name,
                "compute_capability": str(gpu.compute_capability),
                "memory_bytes": gpu.memory_bytes,
                "driver_version": self.machine.gpus.driver_version,
            },
            commands=commands,
            fingerprint=self.fingerprint,
            origin=fetched.origin if fetched else {},
            built_at=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        ).write(work.model)

    def _run_tools(self, work: Workspace) -> list[list[str]]:
        if self.plan.method == "llm_api":
            call = self.plan.constructor_call(self.model.path, work.scratch)
            call_file = work.scratch / "call.json"
            call_file.write_text(json.dumps(call), encoding="utf-8")
            command = [sys.executable, str(_JOB), str(call_file), str(work.model)]
            tool.run(command, cwd=work.scratch, log=self.log, name="LLM API")
            return [["tensorrt_llm._tensorrt_engine.LLM", json.dumps(call)]]
        commands = self.plan.commands(self.settings, self.model.path, work.scratch, work.model)
        script = convert.script_path(self.settings.build.examples_dir, self.plan.family.script)
        if not script.is_file():
            raise RuntimeUnavailable(
                f"{script} is not there (NVIDIA's image has it; build.examples_dir says where the "
                "examples lie, build.method: llm_api does without them)"
            )
        for command, name in zip(commands, ("convert_checkpoint", "trtllm-build"), strict=True):
            tool.run(command, cwd=work.scratch, log=self.log, name=name)
        shutil.rmtree(work.scratch / "checkpoint", ignore_errors=True)
        return commands


def prepare(
    settings: Settings, model: ModelDirectory, machine: Machine, log: tool.Log = to_stderr
) -> EngineBuild:
    """What would be built of a checkpoint, and where; builds nothing.

    Raises: what `plan_build` raises.
    """
    model = replace(model, path=model.path.resolve())  # the programs run elsewhere
    plan = plan_build(settings, model)
    identity = model_identity(model)
    digest = fingerprint(identity, plan, machine, settings.build)
    return EngineBuild(settings, model, machine, plan, identity, digest, log)


def ensure_engine(
    settings: Settings, model: ModelDirectory, machine: Machine, log: tool.Log = to_stderr
) -> ModelDirectory:
    """The engine directory of a checkpoint.

    A build is done once for each fingerprint; processes that want the same wait for each other.
    It appears under its name whole, or not at all.

    Raises: EngineBuildFailed, RuntimeUnavailable, EngineIncompatible (the tools built something
    else), ArtifactUnavailable (no space), and what `plan_build` raises.
    """
    build = prepare(settings, model, machine, log)
    ensure_published(build.publication, shutil.disk_usage)
    return ModelDirectory.read(build.dest)
