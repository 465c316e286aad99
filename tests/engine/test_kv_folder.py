"""The folder of a KV store with files in it that are not ours."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.engine.conftest import MakeLLM
from twofold.core.errors import ParameterError
from twofold.engine.kv_folder import STAGED, find_folders, remove

SHAPE: dict[str, Any] = {"block_size": 16, "blocks": 160, "context": 2048, "rows": 512}


def test_a_foreign_folder_with_the_name_of_a_draft_stays(make_llm: MakeLLM, tmp_path: Path) -> None:
    make_llm(store=tmp_path / "kv", **SHAPE).close()
    (lock,) = tmp_path.glob("kv/*/lock")
    (lock.parent / f"{STAGED}x").mkdir()
    (lock.parent / f"{STAGED}y").symlink_to(lock.parent / f"{STAGED}x")
    make_llm(store=tmp_path / "kv", **SHAPE).close()
    assert [each.name for each in lock.parent.glob(f"{STAGED}*")] == [f"{STAGED}x"]
    remove(tmp_path / "kv", find_folders(tmp_path / "kv"), whole=True)
    assert (lock.parent / f"{STAGED}x").is_dir()
    assert not lock.exists()


@pytest.mark.parametrize("name", ["lock", "model"])
def test_a_link_in_place_of_a_file_is_refused(name: str, make_llm: MakeLLM, tmp_path: Path) -> None:
    """What it points to is not written, and the store is free again when the link is gone."""
    make_llm(store=tmp_path / "kv", **SHAPE).close()
    (file,) = tmp_path.glob(f"kv/*/{name}")
    victim = tmp_path / "victim"
    victim.write_text("important")
    file.unlink()
    file.symlink_to(victim)
    with pytest.raises(ParameterError, match=f"{name} is a symbolic link"):
        make_llm(store=tmp_path / "kv", **SHAPE)
    assert victim.read_text() == "important"
    file.unlink()
    make_llm(store=tmp_path / "kv", **SHAPE).close()
