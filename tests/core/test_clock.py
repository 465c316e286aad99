from __future__ import annotations

import subprocess
import sys

import pytest

from tests.support.clock import VirtualClock
from twofold.core.clock import MonotonicClock


def test_the_machines_clock_does_not_go_back() -> None:
    clock = MonotonicClock()
    first = clock.now()
    assert clock.now() >= first


def test_a_virtual_clock_moves_only_when_told() -> None:
    clock = VirtualClock(5.0)
    clock.advance(0.25)
    assert clock.now() == 5.25
    with pytest.raises(ValueError, match="go back"):
        clock.advance(-1)


def test_importing_the_package_imports_nothing_heavy() -> None:
    code = "import sys, twofold; assert not {'numpy', 'llvmlite', 'tokenizers', 'jinja2'} & sys.modules.keys()"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=300)


def test_the_package_exports_are_there() -> None:
    import twofold  # noqa: PLC0415

    assert twofold.SamplingParams.__name__ == "SamplingParams"
    assert twofold.LLM.__name__ == "LLM"
    with pytest.raises(AttributeError, match="nothing"):
        _ = twofold.nothing
