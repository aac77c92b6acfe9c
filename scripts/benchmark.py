"""Load on a running server: throughput and latencies over concurrency.

A server of this project must be running: `make serve` gives Cog on port 5000 and Triton behind it
on port 8000. Each request has a prompt of its own with --input-tokens tokens and gets exactly
--output-tokens tokens. Figures go to stdout, progress to stderr. Exit status: 0 all requests were
answered, 1 some failed (they are counted and shown), 2 nothing could be measured.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.arguments import not_negative, positive
from benchmarks.cannot_run import CannotRun
from benchmarks.load import closed_loop, plot, table
from benchmarks.load.address import check_address, check_health
from benchmarks.load.figures import Figures, measure
from benchmarks.load.prompts import PromptSource
from benchmarks.load.raw_answer import request_bytes
from benchmarks.load.targets import TRITON_MODELS, Ask, Cog, Target, triton
from cog_triton import settings
from cog_triton.artifacts.model_directory import ModelDirectory
from cog_triton.errors import CogTritonError
from cog_triton.model import fetch_model
from cog_triton.text.tokenizer import Tokenizer

URLS = {"cog": "http://127.0.0.1:5000", "triton": "http://127.0.0.1:8000"}


def main() -> int:
    options = parse()
    try:
        url = check_address(options.url or URLS[options.target], allow_remote=options.allow_remote)
        if options.plot:
            plot.check_installed()
        path = options.model_dir or fetch_model(settings.load()).path
        target = choose_target(options, path)
        check_health(url, target.health_path)
        prompts = PromptSource(Tokenizer.load(path), options.input_tokens, options.seed)
        levels = [run_level(options, url, target, prompts, n) for n in options.concurrency]
    except (CannotRun, CogTritonError) as err:
        print(err, file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("\nInterrupted.", file=sys.stderr)
        return 130
    write(options, target, levels)
    return 1 if any(level.num_failed for level in levels) else 0


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--target", choices=sorted(URLS), default="cog")
    add("--model", choices=TRITON_MODELS, default="tensorrt_llm", help="with --target triton")
    add("--url", help=f"default: {', '.join(f'{name} {url}' for name, url in URLS.items())}")
    add("--allow-remote", action="store_true", help="load another machine than this one")
    add("--concurrency", type=positive, nargs="+", default=[1, 2, 4, 8, 16])
    add("--requests", type=positive, help="for each level (default: 4 x concurrency, at least 8)")
    add("--warmup", type=not_negative, help="unmeasured ones before a level (default: concurrency)")
    add("--input-tokens", type=positive, default=128, help="length of prompts (default: 128)")
    add("--output-tokens", type=positive, default=128, help="length of answers (default: 128)")
    add("--early-end", action="store_true", help="let the model end an answer before that")
    add("--no-stream", dest="stream", action="store_false", help="ask for whole answers")
    add("--timeout-s", type=float, default=300.0, help="for one request (default: 300)")
    add("--seed", type=int, default=1, help="of the prompts and of the sampling (default: 1)")
    add("--model-dir", type=Path, help="tokenizer and end ids (default: the settings' model)")
    add("--json", type=Path, help="also write the figures here")
    add("--plot", type=Path, help="also write a PNG of the figures over concurrency here")
    return parser.parse_args()


def choose_target(options: argparse.Namespace, path: Path) -> Target:
    if options.target == "cog":
        return Cog()
    model = ModelDirectory.read(path)
    return triton(options.model, model.end_ids, model.pad_id)


def run_level(
    options: argparse.Namespace, url: str, target: Target, prompts: PromptSource, concurrency: int
) -> Figures:
    """Warm up, send the requests of one level, print its figures."""
    ask = Ask(options.output_tokens, options.stream, options.early_end)
    num_requests = options.requests or max(8, 4 * concurrency)
    num_warmup = concurrency if options.warmup is None else options.warmup
    for name, num in (("warm-up", num_warmup), ("measured", num_requests)):
        requests = [
            request_bytes(
                url,
                target.path(ask),
                target.body(prompts.next(), ask, options.seed + index),
                accept=target.accept(ask),
            )
            for index in range(num)
        ]
        running = closed_loop.run(
            url,
            requests,
            concurrency=concurrency,
            timeout_s=options.timeout_s,
            on_progress=partial(say, concurrency, name),
        )
        answers = asyncio.run(running)
    level = measure(target, ask, concurrency, answers)
    print(table.table([level]) + "\n", flush=True)
    return level


def say(concurrency: int, name: str, done: int, total: int) -> None:
    if total:
        line = f"concurrency {concurrency}, {name}: {done} of {total} requests"
        print(line, file=sys.stderr, flush=True)


def write(options: argparse.Namespace, target: Target, levels: list[Figures]) -> None:
    parameters = {
        "target": options.target,
        "model": target.name,
        "stream": options.stream,
        "input_tokens": options.input_tokens,
        "output_tokens": options.output_tokens,
        "early_end": options.early_end,
        "seed": options.seed,
    }
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(table.report(parameters, levels), indent=1) + "\n")
    if options.plot:
        title = (
            f"{options.target}, {target.name}: {options.input_tokens} tokens in, "
            f"{options.output_tokens} out, {'streamed' if options.stream else 'whole answers'}"
        )
        plot.write_png(levels, options.plot, title)


if __name__ == "__main__":
    sys.exit(main())
