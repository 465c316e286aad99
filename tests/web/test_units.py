"""The unit tests of the page's modules, which deno runs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.structure.sources import ROOT


def test_the_modules_do_what_their_tests_say() -> None:
    """Their types are checked by ``make check``."""
    deno = Path(sys.executable).with_name("deno")
    done = subprocess.run(
        [deno, "test", "--quiet", "--no-check", "--no-remote", "--allow-read=."],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
