"""`python -m cog_triton plan` prints the resolved plan; `fetch` gets the model beforehand."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path

from cog_triton import settings
from cog_triton.errors import CogTritonError


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m cog_triton", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    plan = commands.add_parser("plan", help="print the resolved plan; starts nothing")
    plan.add_argument("--json", action="store_true", help="as JSON")
    plan.add_argument("--gpus", type=Path, help="JSON file that describes another machine's GPUs")
    fetch = commands.add_parser("fetch", help="fetch the model, as the first start would")
    for command in (plan, fetch):
        command.add_argument("-f", "--file", type=Path, help="settings file")
    options = parser.parse_args(arguments)
    try:
        config = settings.load(file=options.file)
        if options.command == "plan":
            if options.gpus is not None:
                config = config.model_copy(update={"gpu_inventory": options.gpus})
            print_plan(config, as_json=options.json)
        else:
            from cog_triton.model import fetch_model

            print(fetch_model(config).path)
    except CogTritonError as err:
        print(err, file=sys.stderr)
        return 1
    return 0


def print_plan(config: settings.Settings, *, as_json: bool) -> None:
    from cog_triton.plan import resolve

    plan = resolve(config)
    print(json.dumps(asdict(plan), indent=1) if as_json else "\n".join(plan.lines()))


if __name__ == "__main__":
    sys.exit(main())
