"""What the way from the engine to the user costs: engine alone, through Triton, through Cog.

All sides run the same prompts, in turns, in one run, so that a drifting machine does not
matter; medians over the repeats. A: the openvino engine in a process of its own. B: Triton's
generate_stream. C: the Cog server with server-sent events.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path

PROJECT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(PROJECT))

from benchmarks.raw_stream import StreamTimes, run_all
from cog_triton import engine, settings
from cog_triton.cog_server import CogServer
from cog_triton.generate_request import GenerateRequest, Sampling
from cog_triton.model import fetch_model
from cog_triton.settings import Settings
from cog_triton.text.prompt import render_prompt
from cog_triton.text.tokenizer import Tokenizer

COG_PORT = 5055
MAX_TOKENS = 128
HEADER = (
    f"{'streams':>7} {'A engine':>10} {'B Triton':>10} {'C Cog':>10} {'B/A':>6} {'C/A':>6}"
    f" {'A first':>9} {'B first':>9} {'C first':>9} {'C/A':>6}"
)
TRITON_PATH = "/v2/models/tensorrt_llm/generate_stream"


@dataclass
class Side:
    """Measurements of one side at one concurrency, a value a repeat."""

    tokens_per_s: list[float] = field(default_factory=list)
    first_s: list[float] = field(default_factory=list)

    def add(self, num_tokens: int, total_s: float, first_s: list[float]) -> None:
        self.tokens_per_s.append(num_tokens / total_s)
        self.first_s.append(statistics.median(first_s))

    def median(self) -> tuple[float, float]:
        return statistics.median(self.tokens_per_s), statistics.median(self.first_s)


class Bench:
    """The three sides, up and warm."""

    def __init__(self) -> None:
        self.config: Settings = settings.load()
        model = fetch_model(self.config)
        planned = engine.plan_engine(self.config, model)
        self.model = model
        self.tokenizer = Tokenizer.load(model.path)
        self.cog = CogServer(COG_PORT, concurrency=self.config.resolved_concurrency)
        try:
            self.cog.wait_ready(self.config.triton.start_timeout_s)
        except BaseException:
            self.cog.stop()
            raise
        command = [sys.executable, str(PROJECT / "benchmarks/engine_process.py")]
        self.engine = subprocess.Popen(
            [*command, json.dumps(asdict(planned.config))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.engine.stdout is not None
        self.engine.stdout.readline()

    def close(self) -> None:
        assert self.engine.stdin is not None
        self.engine.stdin.close()
        self.engine.wait()
        self.cog.stop()

    def prompts(self, num: int) -> list[str]:
        return [f"Tell me a long story about the number {index}." for index in range(num)]

    def ids(self, prompt: str) -> list[int]:
        text = render_prompt(self.tokenizer, prompt, system_prompt=None, prompt_template=None)
        return self.tokenizer.encode(text.text, add_special_tokens=text.add_special_tokens)

    def run_a(self, num: int, side: Side) -> None:
        assert self.engine.stdin is not None
        assert self.engine.stdout is not None
        prompts = [self.ids(prompt) for prompt in self.prompts(num)]
        self.engine.stdin.write(json.dumps({"prompts": prompts, "max_tokens": MAX_TOKENS}) + "\n")
        self.engine.stdin.flush()
        result = json.loads(self.engine.stdout.readline())
        side.add(result["num_tokens"], result["total_s"], result["first_s"])

    def run_b(self, num: int, side: Side) -> None:
        bodies = [
            GenerateRequest(
                self.ids(prompt),
                MAX_TOKENS,
                self.model.end_ids,
                self.model.pad_id,
                min_tokens=MAX_TOKENS,
                sampling=Sampling(temperature=0.7, top_p=0.95, seed=index),
            ).payload()
            for index, prompt in enumerate(self.prompts(num))
        ]
        port = self.config.triton.http_port
        times = asyncio.run(
            run_all("127.0.0.1", port, TRITON_PATH, bodies, accept="*/*", marker=b'"output_ids"')
        )
        self._add(side, times, num)

    def run_c(self, num: int, side: Side) -> None:
        bodies = [
            {
                "input": {
                    "prompt": prompt,
                    "max_tokens": MAX_TOKENS,
                    "min_tokens": MAX_TOKENS,
                    "temperature": 0.7,
                    "seed": index,
                }
            }
            for index, prompt in enumerate(self.prompts(num))
        ]
        times = asyncio.run(
            run_all(
                "127.0.0.1",
                COG_PORT,
                "/predictions",
                bodies,
                accept="text/event-stream",
                marker=b"event: output",
            )
        )
        for answer in times:
            if b'"status":"succeeded"' not in answer.tail:
                raise SystemExit(f"a prediction failed: {answer.status} {answer.tail[-500:]!r}")
        self._add(side, times, num)

    def _add(self, side: Side, times: list[StreamTimes], num: int) -> None:
        started_at = min(answer.started_at for answer in times)
        total_s = max(answer.arrivals[-1] for answer in times) - started_at
        side.add(num * MAX_TOKENS, total_s, [answer.first_s for answer in times])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--concurrency", type=int, nargs="+", default=[1, 4, 16, 64])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", type=Path, help="also write the figures here")
    options = parser.parse_args()
    print("Starting the Cog server and the engine process", file=sys.stderr, flush=True)
    bench = Bench()
    figures: dict[str, object] = {}
    try:
        print(HEADER, flush=True)
        for num in options.concurrency:
            sides = measure(bench, num, options.repeats)
            figures[str(num)] = {name: asdict(side) for name, side in sides.items()}
            print(row(num, sides), flush=True)
    finally:
        bench.close()
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(figures, indent=1) + "\n")


def measure(bench: Bench, num: int, repeats: int) -> dict[str, Side]:
    sides = {"A": Side(), "B": Side(), "C": Side()}
    for name, run in (("A", bench.run_a), ("B", bench.run_b), ("C", bench.run_c)):
        run(num, Side())  # warms caches of this side at this width
        print(f"  {num} streams: {name} is warm", file=sys.stderr, flush=True)
    for repeat in range(repeats):
        bench.run_a(num, sides["A"])
        bench.run_b(num, sides["B"])
        bench.run_c(num, sides["C"])
        print(f"  {num} streams: repeat {repeat + 1} of {repeats}", file=sys.stderr, flush=True)
    return sides


def row(num: int, sides: dict[str, Side]) -> str:
    (a, a_first), (b, b_first), (c, c_first) = (sides[name].median() for name in "ABC")
    return (
        f"{num:>7} {a:>10.0f} {b:>10.0f} {c:>10.0f} {b / a:>6.2f} {c / a:>6.2f}"
        f" {a_first * 1000:>6.0f} ms {b_first * 1000:>6.0f} ms {c_first * 1000:>6.0f} ms"
        f" {c_first / a_first:>6.2f}"
    )


if __name__ == "__main__":
    main()
