#!/usr/bin/env python3
"""Builds the TensorRT engine of a deployment file: `build_engine.py examples/phi-3-mini-4k.yaml`.

The engine lands in the cache, where a deployment with `runtime: tensorrt` finds it, and with
--tar or --upload where other machines can fetch it. Flags of a guide may follow after `--`, with
`--` between several commands:

  build_engine.py CONFIG -- convert_checkpoint.py --dtype float16 -- trtllm-build --tp_size 2
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from cog_triton import settings
from cog_triton.artifacts.fetch import fetch
from cog_triton.build import guide_flags, share
from cog_triton.build.engine_build import ensure_engine, prepare
from cog_triton.errors import CogTritonError, UnsupportedModel
from cog_triton.machine import Machine, look
from cog_triton.runtime_choice import check_can_build, format_of


def parser() -> argparse.ArgumentParser:
    flags = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    flags.add_argument("config", type=Path, metavar="CONFIG", help="settings file")
    flags.add_argument("--tar", type=Path, help="also write the engine as this .tar or .tar.gz")
    flags.add_argument("--upload", metavar="ORG/NAME", help="also upload it to this hub repository")
    flags.add_argument("--public", action="store_true", help="make a new hub repository public")
    flags.add_argument("--dry-run", action="store_true", help="print what would be run, and stop")
    flags.add_argument("guide_flags", nargs="*", metavar="-- GUIDE FLAGS")
    return flags


def main(arguments: list[str]) -> int:
    # What follows the first -- is not for argparse, which would drop the further ones.
    first = arguments.index("--") if "--" in arguments else len(arguments)
    options = parser().parse_args(arguments[:first])
    try:
        build(options, arguments[first + 1 :])
    except CogTritonError as err:
        print(err, file=sys.stderr)
        return 1
    return 0


def build(options: argparse.Namespace, guide: list[str]) -> None:
    """Fetch, build, share. Raises CogTritonError subclasses."""
    if options.tar is not None:
        share.check_tar_name(options.tar)
    config = settings.load(file=options.config)
    translation = guide_flags.translate(guide)
    for note in translation.notes:
        say(note)
    config = settings.changed(config, translation.settings)
    machine = look(config)
    engine_dir = built(config, machine, dry_run=options.dry_run)
    if engine_dir is None:
        return
    if options.tar is not None:
        digest = share.write_tar(engine_dir, options.tar)
        say(f"{options.tar}: {options.tar.stat().st_size / 1e6:.1f} MB, SHA-256 {digest}")
    if options.upload:
        say(f"Uploading to {options.upload}")
        say(share.upload(engine_dir, options.upload, private=not options.public))
    print(engine_dir)


def built(config: settings.Settings, machine: Machine, *, dry_run: bool) -> Path | None:
    """The engine directory; None for a dry run, which prints the commands."""
    if format_of(config.model) in ("checkpoint", None):
        check_can_build(config, machine, None)  # before a long download
    model = fetch(config.model, config.models_dir)
    if model.format != "checkpoint":
        raise UnsupportedModel(f"{config.model} is a {model.format}; engines come of checkpoints")
    check_can_build(config, machine, model)
    planned = prepare(config, model, machine)
    if dry_run:
        for command in planned.shown_commands():
            print(command)
        return None
    state = "is there already" if planned.is_built else "is built now"
    say(f"The engine {planned.dest} {state} ({planned.plan.family.name}, {planned.plan.method})")
    return ensure_engine(config, model, machine).path


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
