"""Fills a KV store until it is killed: ``python -m tests.engine.kill_writer FOLDER SEED``. Prints a line when it begins
to write. Its segments are random, a function of their tokens, so a reader can tell whether one is whole."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from random import Random

from twofold.engine.kv.segments import SEGMENT_TOKENS, SegmentGroup, SegmentHeader
from twofold.engine.kv.store import SegmentBlocks, WriteJob
from twofold.engine.kv_files import KVFiles
from twofold.engine.kv_folder import StoreFolder, open_folder

BLOCKS = 16
BLOCK_BYTES = 1 << 14


def contents(tokens: bytes) -> bytearray:
    """The blocks of the segment with these tokens."""
    return bytearray(Random(tokens).randbytes(BLOCKS * BLOCK_BYTES))


def jobs(folder: StoreFolder, seed: int) -> list[WriteJob]:
    """A job for each segment of a chain of four."""
    chance = Random(seed)
    text = array("i", (chance.randrange(1000) for _ in range(4 * SEGMENT_TOKENS))).tobytes()
    made = []
    for place, (parent, name, tokens) in enumerate(folder.keys.chain("", text)):
        header = SegmentHeader(
            place, folder.keys.identity, name, parent, tokens, BLOCKS, (SegmentGroup(0, BLOCK_BYTES),)
        )
        made.append(WriteJob(place, (SegmentBlocks(header, (array("i", range(BLOCKS)),)),)))
    return made


def main() -> None:
    store, seed = Path(sys.argv[1]), int(sys.argv[2])
    folder = open_folder(store, lambda: b"kill" * 8, "kill")
    assert folder is not None
    data = bytearray(BLOCKS * BLOCK_BYTES)

    def block_bytes(group: int, blocks: Sequence[int]) -> list[memoryview]:
        assert group == 0
        return [memoryview(data)[block * BLOCK_BYTES : (block + 1) * BLOCK_BYTES] for block in blocks]

    files = KVFiles(folder, block_bytes)
    print("writing", flush=True)
    for turn in count():
        for job in jobs(folder, 1000 * seed + turn % 3):
            data[:] = contents(job.segments[0].header.tokens)
            files.submit([job])
            files.wait()


if __name__ == "__main__":
    main()
