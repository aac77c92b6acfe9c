"""Side A: the engine alone, in a process of its own that does nothing else.

Commands come as lines of JSON on stdin, `{"prompts": [[ids…]…], "max_tokens": n}`; each is
answered with one line: seconds to each request's first token and to the last, and tokens.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from cog_triton.runtimes.config import RuntimeConfig
from cog_triton.runtimes.openvino import OpenVinoEngine
from cog_triton.runtimes.slot_request import SlotRequest


def main() -> None:
    engine = OpenVinoEngine(RuntimeConfig(**json.loads(sys.argv[1])))
    print("ready", flush=True)
    for line in sys.stdin:
        print(json.dumps(run(engine, **json.loads(line))), flush=True)


def run(engine: OpenVinoEngine, prompts: list[list[int]], max_tokens: int) -> dict[str, object]:
    started_at = time.perf_counter()
    running = {}
    for index, ids in enumerate(prompts):
        request = SlotRequest(
            str(index),
            np.array(ids, np.int64),
            max_tokens,
            streaming=True,
            end_id=None,
            temperature=0.7,
            top_p=0.95,
            seed=index,
        )
        running[index] = engine.add(request)
    first_s = [0.0] * len(prompts)
    num_tokens = 0
    while running:
        engine.step()
        for index, sequence in list(running.items()):
            ids, _log_probs, finished = sequence.read()
            if ids and not first_s[index]:
                first_s[index] = time.perf_counter() - started_at
            num_tokens += len(ids)
            if finished:
                del running[index]
    total_s = time.perf_counter() - started_at
    return {"first_s": first_s, "total_s": total_s, "num_tokens": num_tokens}


if __name__ == "__main__":
    main()
