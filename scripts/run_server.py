"""The Cog server on a fixed port, for curl and clients, until Ctrl-C or SIGTERM."""

from __future__ import annotations

import argparse
import signal
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from cog_triton import settings
from cog_triton.cog_server import CogServer, setup_line
from cog_triton.errors import CogTritonError

SETUP_TIMEOUT_S = 1800.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=5000)
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    server = None
    try:
        config = settings.load()
        server = CogServer(options.port, concurrency=config.resolved_concurrency, on_log=show)
        server.wait_ready(SETUP_TIMEOUT_S)
        print(f"Ready on {server.url} (Ctrl-C stops it)", file=sys.stderr, flush=True)
        return server.wait()
    except CogTritonError as err:
        print(err, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    finally:
        if server is not None:
            server.stop()


def show(line: str) -> None:
    print(setup_line(line) or line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
