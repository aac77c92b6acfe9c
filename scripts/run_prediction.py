"""One prediction through the real Cog server: start it, stream the answer, stop it.

The answer goes to stdout as it arrives, progress and metrics to stderr.
"""

from __future__ import annotations

import argparse
import json
import signal
import socket
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import httpx

from cog_triton import settings
from cog_triton.cog_server import CogServer, setup_line
from cog_triton.errors import CogTritonError
from cog_triton.sse import SSEDecoder

SETUP_TIMEOUT_S = 1800.0
METRICS = (
    ("input_token_count", "input tokens", ""),
    ("output_token_count", "output tokens", ""),
    ("time_to_first_token", "first token", " s"),
    ("tokens_per_second", "tokens per second", ""),
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--prompt", required=True)
    parser.add_argument("-i", dest="inputs", action="append", default=[], metavar="NAME=VALUE")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    server = None
    try:
        config = settings.load()
        inputs = {"prompt": options.prompt, **dict(map(parse_input, options.inputs))}
        server = CogServer(free_port(), concurrency=config.resolved_concurrency, on_log=show)
        server.wait_ready(SETUP_TIMEOUT_S)
        return stream(server.url, inputs)
    except CogTritonError as err:
        print(err, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nInterrupted.", file=sys.stderr)
        return 130
    finally:
        if server is not None:
            server.stop()


def stream(url: str, inputs: dict[str, Any]) -> int:
    """Print the answer as it comes; 0 if the prediction succeeded."""
    decoder = SSEDecoder()
    headers = {"Accept": "text/event-stream"}
    timeout = httpx.Timeout(10, read=None)
    with (
        httpx.Client(base_url=url, timeout=timeout, trust_env=False) as http,
        http.stream("POST", "/predictions", json={"input": inputs}, headers=headers) as response,
    ):
        if response.status_code != httpx.codes.OK:
            print(response.read().decode("utf-8", "replace"), file=sys.stderr)
            return 1
        for chunk in response.iter_raw():
            for event in map(json.loads, decoder.feed(chunk)):
                if "chunk" in event:
                    print(event["chunk"], end="", flush=True)
                elif event.get("status") in ("succeeded", "failed", "canceled"):
                    return finish(event)
    print("\nThe stream ended early.", file=sys.stderr)
    return 1


def finish(event: dict[str, Any]) -> int:
    print(flush=True)
    if event["status"] != "succeeded":
        print(event.get("error") or event["status"], file=sys.stderr)
        return 1
    metrics = event.get("metrics", {})
    parts = [f"{label}: {metrics[name]}{unit}" for name, label, unit in METRICS if name in metrics]
    print(" | ".join(parts), file=sys.stderr)
    return 0


def parse_input(text: str) -> tuple[str, Any]:
    """`name=value`, the value as JSON if it is JSON and as text if not."""
    name, _, value = text.partition("=")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


def show(line: str) -> None:
    message = setup_line(line)
    if message:
        print(message, file=sys.stderr, flush=True)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


if __name__ == "__main__":
    sys.exit(main())
