"""The ``twofold`` command with its own functions counted: ``python -m tests.structure.profiled FILE ARGUMENTS``.

SIGUSR1 begins to count in all threads. SIGUSR2 ends it and writes FILE: a JSON list of [file, function, calls].
"""

from __future__ import annotations

import json
import signal
import sys
import threading
from collections import Counter
from pathlib import Path
from types import CodeType, FrameType

from tests.structure.sources import PACKAGE, ROOT

HOME = f"{ROOT / PACKAGE}/"


class Profile:
    """Calls of the package's functions, by code object, while ``counting`` is set."""

    def __init__(self) -> None:
        self.calls: Counter[CodeType] = Counter()
        self.counting = False

    def __call__(self, frame: FrameType, event: str, argument: object) -> None:
        del argument
        if self.counting and event == "call" and frame.f_code.co_filename.startswith(HOME):
            self.calls[frame.f_code] += 1

    def install(self) -> None:
        """Observe this thread, and all that start later."""
        threading.setprofile(self)
        sys.setprofile(self)

    def rows(self) -> list[tuple[str, str, int]]:
        """File, function and calls; comprehensions and lambdas belong to their function."""
        found: Counter[tuple[str, str]] = Counter()
        for code, calls in self.calls.items():
            if not code.co_name.startswith("<"):
                found[code.co_filename.removeprefix(HOME), f"{code.co_qualname}:{code.co_firstlineno}"] += calls
        return sorted((file, function, calls) for (file, function), calls in found.items())


def main() -> int:
    path, *arguments = sys.argv[1:]
    profile = Profile()

    def begin(number: int, frame: FrameType | None) -> None:
        del number, frame
        profile.counting = True

    def end(number: int, frame: FrameType | None) -> None:
        del number, frame
        profile.counting = False
        part = Path(f"{path}.part")
        part.write_text(json.dumps(profile.rows()), encoding="utf-8")
        part.rename(path)

    profile.install()
    signal.signal(signal.SIGUSR1, begin)
    signal.signal(signal.SIGUSR2, end)
    from twofold.cli.main import main as command  # noqa: PLC0415 - its threads are to be observed

    sys.argv = [PACKAGE, *arguments]
    return command()


if __name__ == "__main__":
    sys.exit(main())
