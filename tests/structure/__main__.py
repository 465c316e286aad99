"""Prints measures of the package's structure: ``python -m tests.structure``.

Static ones come from the syntax trees. Those of a request and of a step come
from running the tiny model: a streamed chat of 8 tokens through a server (functions entered in the HTTP process, after
a warm-up request), and one decode step of an engine with one sequence.
"""

from __future__ import annotations

import json
import signal
import sys
import tempfile
import time
from pathlib import Path

from tests.server.live import live_server
from tests.structure.measures import backend_users, import_cycles, loop_drivers, names_defined_twice
from tests.structure.profiled import Profile
from tests.structure.sources import package_sources
from tests.structure.test_sizes import MAX_PACKAGE_LINES, package_lines, room_table
from tests.support.tiny import TinyOptions, write_tiny
from twofold import LLM, SamplingParams
from twofold.backends.base import BACKENDS

CHAT = {
    "model": "tiny",
    "messages": [{"role": "user", "content": "abc"}],
    "ignore_eos": True,
    "stream": True,
    "speculation": False,  # a token a step
}


def functions_of_a_chat(model: Path, folder: Path, tokens: int = 8) -> list[tuple[str, str, int]]:
    """The package's functions that the HTTP process enters for one streamed chat after a first one."""
    chat = CHAT | {"max_tokens": tokens}
    output = folder / "functions.json"
    command = (sys.executable, "-m", "tests.structure.profiled", str(output))
    with live_server(folder, f"tiny={model}", "--threads", "1", twofold=command) as server:
        server.post("/v1/chat/completions", chat)
        time.sleep(1.0)  # what happens after the last byte
        server.process.send_signal(signal.SIGUSR1)
        time.sleep(0.2)
        server.post("/v1/chat/completions", chat)
        time.sleep(1.0)
        server.process.send_signal(signal.SIGUSR2)
        while not output.exists():
            time.sleep(0.05)
    return [(file, function, calls) for file, function, calls in json.loads(output.read_text())]


def functions_of_a_step(model: Path) -> list[tuple[str, str, int]]:
    """The package's functions that one decode step of one sequence enters."""
    profile = Profile()
    with LLM(model=str(model), threads=1) as llm:
        llm.generate("abc", SamplingParams(temperature=0, max_tokens=4))
        stream = llm.stream("abc", SamplingParams(temperature=0, max_tokens=8, ignore_eos=True))
        for _ in range(3):
            next(stream)
        profile.counting = True
        sys.setprofile(profile)
        next(stream)
        sys.setprofile(None)
    return profile.rows()


def static_measures() -> None:
    """Prints those that the syntax trees say."""
    sources = package_sources()
    twice = names_defined_twice(sources)
    print(f"lines of the package: {package_lines():,} (at most {MAX_PACKAGE_LINES:,})")
    print(room_table())
    print(f"files of the package: {len(sources):,}")
    print(f"class names defined more than once: {len(twice)}  {' '.join(twice)}")
    print(f"drivers of the loop: {len(loop_drivers(sources))}  {' '.join(loop_drivers(sources))}")
    users = backend_users(sources, BACKENDS.values())
    print(f"files above the backends that name one: {len(users)}  {' '.join(users)}")
    cycles = import_cycles(sources)
    print(f"import cycles: {len(cycles)}  {' | '.join(' ↔ '.join(cycle) for cycle in cycles)}")


def main() -> int:
    static_measures()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model = write_tiny(folder / "tiny.gguf", TinyOptions("llama", vocab=300, context=512)).path
        for what, rows in (
            ("streamed chat, HTTP process", functions_of_a_chat(model, folder)),
            ("decode step of one sequence", functions_of_a_step(model)),
        ):
            calls = sum(row[2] for row in rows)
            print(f"{what}: {len(rows)} functions in {len({row[0] for row in rows})} files, {calls:,} calls")
            if "--functions" in sys.argv:
                for file, function, count in rows:
                    print(f"    {file:48} {function:60} {count}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
