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


class RandomBlocks:
    """``BlockMemory`` of one group, which is only read."""

    def __init__(self) -> None:
        self.data = bytearray(BLOCKS * BLOCK_BYTES)

    def block_nbytes(self, group: int) -> int:
        assert group == 0
        return BLOCK_BYTES

    def read_blocks(self, group: int, blocks: Sequence[int], into: memoryview) -> None:
        assert group == 0
        for place, block in enumerate(blocks):
            part = self.data[block * BLOCK_BYTES : (block + 1) * BLOCK_BYTES]
            into[place * BLOCK_BYTES : (place + 1) * BLOCK_BYTES] = part

    def write_blocks(self, group: int, blocks: Sequence[int], content: memoryview) -> None:
        raise AssertionError(f"nothing is read into blocks {blocks} of group {group}: {content}")


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
    memory = RandomBlocks()
    files = KVFiles(folder, memory)
    print("writing", flush=True)
    for turn in count():
        for job in jobs(folder, 1000 * seed + turn % 3):
            memory.data[:] = contents(job.segments[0].header.tokens)
            files.submit([job])
            files.wait()


if __name__ == "__main__":
    main()
