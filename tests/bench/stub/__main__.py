"""``python -m tests.bench.stub``: prints the port that it listens on, and serves until it is ended."""

from __future__ import annotations

import argparse
import os

from tests.bench.stub.server import Stub


def main() -> None:
    parser = argparse.ArgumentParser(prog="stub")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--cpu", type=int, help="the core to stay on")
    options = parser.parse_args()
    if options.cpu is not None:
        os.sched_setaffinity(0, {options.cpu})
    stub = Stub(options.port)
    print(stub.port, flush=True)
    stub.run()


main()
