"""The helper process with a plan that takes memory until it gets no more."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any, NoReturn

from twofold.server.planning import child
from twofold.server.planning.work import TASKS


def endless(_: Mapping[str, Any]) -> NoReturn:
    taken = []
    while True:
        taken.append(bytearray(1 << 20))


if __name__ == "__main__":
    vars(child)["TASKS"] = {**TASKS, "plan": endless}
    child.main(float(sys.argv[1]))
