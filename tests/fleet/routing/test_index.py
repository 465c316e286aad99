"""The index beside a naive dictionary, its bound, and its bytes."""

from __future__ import annotations

import hashlib
import tracemalloc
from array import array

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from twofold.engine.kv.names import BlockKeys
from twofold.fleet.routing.index import NAME_BYTES, BlockIndex, cached_tokens

NAMES = [number.to_bytes(NAME_BYTES, "big") for number in range(24)]
some_names = st.sets(st.sampled_from(NAMES), max_size=8)
POOL = 12


def name(number: int) -> bytes:
    return hashlib.blake2b(number.to_bytes(8, "big"), digest_size=NAME_BYTES).digest()


class IndexBesideDictionary(RuleBasedStateMachine):
    """Replicas change their blocks and send events, of which some are lost, doubled or late; some replicas leave."""

    def __init__(self) -> None:
        super().__init__()
        self.index = BlockIndex()
        self.blocks: dict[int, set[bytes]] = {}
        self.sent: dict[int, int] = {}
        self.known: dict[int, set[bytes] | None] = {}
        self.late: list[tuple[int, int, set[bytes], set[bytes]]] = []

    @rule(replica=st.integers(0, 3))
    def join(self, replica: int) -> None:
        self.index.join(replica, POOL)
        self.blocks[replica], self.sent[replica], self.known[replica] = set(), 0, None
        self.late = [each for each in self.late if each[0] != replica]

    @precondition(lambda self: self.blocks)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        replica = data.draw(st.sampled_from(sorted(self.blocks)))
        self.index.leave(replica)
        del self.blocks[replica], self.known[replica]
        self.late = [each for each in self.late if each[0] != replica]

    @precondition(lambda self: self.blocks)
    @rule(
        data=st.data(),
        added=some_names,
        removed=some_names,
        fate=st.sampled_from(["reported", "reported", "lost", "twice"]),
    )
    def change(self, data: st.DataObject, added: set[bytes], removed: set[bytes], fate: str) -> None:
        replica = data.draw(st.sampled_from(sorted(self.blocks)))
        self.blocks[replica] = (self.blocks[replica] - removed) | added
        self.sent[replica] += 1
        event = (replica, self.sent[replica], added, removed)
        if fate == "lost":
            self.late.append(event)
            return
        for _ in range(2 if fate == "twice" else 1):
            self.report(*event)

    @precondition(lambda self: self.late)
    @rule(data=st.data())
    def tell_late(self, data: st.DataObject) -> None:
        self.report(*self.late.pop(data.draw(st.integers(0, len(self.late) - 1))))

    @precondition(lambda self: self.blocks)
    @rule(data=st.data())
    def report_all(self, data: st.DataObject) -> None:
        replica = data.draw(st.sampled_from(sorted(self.blocks)))
        fits = self.index.report_all(replica, self.sent[replica], self.blocks[replica])
        assert fits == (len(self.blocks[replica]) <= POOL)
        self.known[replica] = set(self.blocks[replica]) if fits else None
        self.late = [each for each in self.late if each[0] != replica or data.draw(st.booleans())]
        self.last = getattr(self, "last", {}) | {replica: self.sent[replica]}

    def report(self, replica: int, number: int, added: set[bytes], removed: set[bytes]) -> None:
        """Tells the index, and changes the dictionary by the laws."""
        complete = self.index.report(replica, number, added, removed)
        known = self.known[replica]
        if known is None:
            assert not complete
        elif number > self.last[replica]:
            if number == self.last[replica] + 1 and len((known - removed) | added) <= POOL:
                self.known[replica], self.last[replica] = (known - removed) | added, number
                assert complete
            else:
                self.known[replica] = None
                assert not complete

    @invariant()
    def equal(self) -> None:
        self.index.check()
        known = {replica: names or set() for replica, names in self.known.items()}
        assert len(self.index) == len(set().union(*known.values()))
        for start in (0, 7):
            prompt = NAMES[start:]
            expected = [
                next((i for i, each in enumerate(prompt) if each not in known.get(replica, ())), len(prompt))
                for replica in range(4)
            ]
            assert self.index.matched(prompt, 4) == expected


TestIndexBesideDictionary = IndexBesideDictionary.TestCase
TestIndexBesideDictionary.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


@pytest.mark.parametrize("blocks", [11_000, 60_000, 90_000])
def test_a_block_takes_at_most_128_bytes(blocks: int) -> None:
    """Just after the dictionary has grown, and full; an object of 49 bytes takes 64 from the allocator."""
    tracemalloc.start()
    try:
        index = BlockIndex()
        for replica in range(2):
            index.join(replica, blocks)
            index.report_all(replica, 0, (name(number + replica * blocks // 2) for number in range(blocks)))
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(index) == blocks + blocks // 2
    assert taken / len(index) + 15 <= 128


def test_a_replica_that_lies_about_its_size_has_no_blocks() -> None:
    index = BlockIndex()
    index.join(0, 10)
    index.join(1, 100)
    assert index.report_all(1, 0, map(name, range(100)))
    assert not index.report_all(0, 0, map(name, range(11)))
    assert index.matched(map(name, range(100)), 2) == [0, 100]
    assert index.report_all(0, 4, map(name, range(10)))
    assert not index.report(0, 5, [name(10)], [])
    assert len(index) == 100


def test_names_are_independent_by_salt_secret_and_model() -> None:
    text = array("i", range(64)).tobytes()

    def names(secret: bytes = b"s", identity: bytes = b"i", salt: str = "", tokens: bytes = text) -> list[bytes]:
        return [each for _, each, _ in BlockKeys(secret, identity).names(salt, tokens, 64)]

    found = [names(), names(b"t"), names(identity=b"j"), names(salt="a")]
    assert {len(each) for each in found} == {4}
    assert {len(each) for each in found[0]} == {NAME_BYTES}
    assert len({name for each in found for name in each}) == 16
    assert names(tokens=text[:-4]) == found[0][:3]


@given(st.lists(st.integers(0, 9), min_size=1, max_size=4), st.integers(1, 100))
def test_the_last_token_is_computed(blocks: list[int], tokens: int) -> None:
    assert all(0 <= each < tokens for each in cached_tokens(blocks, 16, tokens))
