"""Predicting for a paper machine loads nothing that takes time."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import sys
from twofold.planner.machines.known import find_machine
from twofold.planner.predict.constants import GPU
from twofold.planner.predict.request import Case, Predictor
from twofold.planner.shapes.known import find_shape
Predictor(find_shape("llama-3-8b"), find_machine("h100"), GPU).predict(Case(prompt=100, output=100))
print(sorted({"numpy", "llvmlite", "tokenizers", "twofold.engine"} & set(sys.modules)))
"""


def test_no_numpy_and_no_compiler_is_loaded() -> None:
    found = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
