"""A model and a machine that exist on paper only start at once: nothing heavy is loaded for them."""

from __future__ import annotations

import subprocess
import sys

CODE = """
import sys
from twofold.planner.count import crossover, memory, step
from twofold.planner.machines.known import find_machine
from twofold.planner.shapes.known import resolve_shape
step.step(resolve_shape("llama-3-70b"), [step.SequenceRows(1, 99)])
crossover.context_crossover(resolve_shape("llama-3-70b"), find_machine("h100"))
print([name for name in ("numpy", "llvmlite", "tokenizers", "jinja2", "rich", "asyncio") if name in sys.modules])
"""


def test_paper_machines_load_nothing_heavy() -> None:
    found = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
