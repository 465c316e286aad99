"""A process that writes to a KV store is killed at any moment: the next one finds whole segments and no leftovers."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from random import Random

from tests.engine.kill_writer import BLOCK_BYTES, BLOCKS, contents
from twofold.engine.kv.segments import header_bytes
from twofold.engine.kv_folder import damaged, find_folders, open_folder, read_header, segment_files

KILLS = 25


def kill_at(store: Path, seed: int, after_s: float) -> None:
    """Runs a writer, and kills it with SIGKILL so long after it began to write."""
    command = [sys.executable, "-m", "tests.engine.kill_writer", str(store), str(seed)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == b"writing\n"
        time.sleep(after_s)
        writer.kill()


def check(store: Path) -> tuple[int, int]:
    """Opens the store as the next process does, and checks all that is there; returns segments and leftovers."""
    (before,) = find_folders(store)
    drafts = len(list(before.path.glob(".writing-*")))
    folder = open_folder(store, lambda: b"kill" * 8, "kill")
    assert folder is not None
    index = folder.index(1 << 40, 0.0)
    index.check()
    assert folder.lost == 0, "a segment was damaged or an orphan"
    assert not list(folder.path.glob(".writing-*"))
    assert damaged(folder) == []
    names = [name for name, _, _ in segment_files(folder.path)]
    assert len(names) == len(index)
    for name in names:
        header = read_header(folder.file(name), folder.keys)
        assert header is not None
        assert folder.file(name).read_bytes()[header_bytes(1) :] == contents(header.tokens)
        assert header.payload_bytes == BLOCKS * BLOCK_BYTES
    folder.close()
    return len(names), drafts


def test_kills_at_random_moments_leave_whole_segments(tmp_path: Path) -> None:
    chance = Random(5)
    found = 0
    for seed in range(KILLS):
        kill_at(tmp_path, seed % 4, chance.expovariate(1 / 0.02))
        found = max(found, check(tmp_path)[0])
    assert found > 4, "the writers wrote"
