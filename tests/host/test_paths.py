"""Files of ours in folders that others might own."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from twofold.host.paths import open_own


def test_a_file_of_ours_is_private_and_no_link(tmp_path: Path) -> None:
    os.close(open_own(tmp_path / "own", os.O_WRONLY | os.O_CREAT))
    assert (tmp_path / "own").stat().st_mode & 0o777 == 0o600
    (tmp_path / "link").symlink_to(tmp_path / "own")
    with pytest.raises(OSError, match="link"):
        open_own(tmp_path / "link", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
