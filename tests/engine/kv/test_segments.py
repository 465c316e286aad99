"""Names, headers and the index of stored segments, and how many bytes are written of new ones."""

from __future__ import annotations

from array import array

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, rule

from twofold.engine.kv.segments import (
    NAME_BYTES,
    PINNED_SHARE,
    SEGMENT_TOKENS,
    SegmentGroup,
    SegmentHeader,
    SegmentIndex,
    StoredSegment,
    StoreKeys,
    header_bytes,
)
from twofold.engine.kv.store import DAY_S, WriteAllowance

KEYS = StoreKeys(b"s" * 32, b"i" * 32)
OTHER = StoreKeys(b"t" * 32, b"i" * 32)


def text(seed: int, segments: int, rest: int = 0) -> bytes:
    return array("i", [(seed * 7919 + i) % 1000 for i in range(segments * SEGMENT_TOKENS + rest)]).tobytes()


def test_names_depend_on_secret_salt_identity_and_all_tokens_before() -> None:
    mine = [name for _, name, _ in KEYS.chain("a", text(1, 3, 255))]
    assert len(mine) == len(set(mine)) == 3
    assert mine == [name for _, name, _ in KEYS.chain("a", text(1, 3))]
    for keys, salt in ((KEYS, "b"), (OTHER, "a"), (StoreKeys(KEYS.secret, b"j" * 32), "a")):
        assert not set(mine) & {name for _, name, _ in keys.chain(salt, text(1, 3))}
    changed = bytearray(text(1, 3))
    changed[0] ^= 1
    assert not set(mine) & {name for _, name, _ in KEYS.chain("a", bytes(changed))}
    assert [parent for parent, _, _ in KEYS.chain("a", text(1, 3))] == [KEYS.root("a"), *mine[:2]]


def header(groups: int = 2) -> SegmentHeader:
    parts = tuple(SegmentGroup(i, 64 * (i + 1), bytes([i]) * NAME_BYTES) for i in range(groups))
    return SegmentHeader(3, KEYS.identity, b"n" * 32, b"p" * 32, text(1, 1), 16, parts)


@given(st.integers(1, 5), st.binary(max_size=20))
def test_headers_come_back_whatever_follows(groups: int, after: bytes) -> None:
    made = header(groups)
    raw = made.pack(KEYS)
    assert len(raw) == header_bytes(groups)
    assert SegmentHeader.read(raw + after, KEYS) == made


def test_a_header_with_any_byte_changed_or_missing_is_refused() -> None:
    raw = header().pack(KEYS)
    for place in range(len(raw)):
        changed = bytearray(raw)
        changed[place] ^= 1 << place % 8
        assert SegmentHeader.read(bytes(changed), KEYS) is None, place
        assert SegmentHeader.read(raw[:place], KEYS) is None, place
    assert SegmentHeader.read(raw, OTHER) is None
    assert SegmentHeader.read(raw, StoreKeys(KEYS.secret, b"j" * 32)) is None


class IndexEvents(RuleBasedStateMachine):
    """Random events of an index; its laws hold after each, and what it evicts is never an inner segment."""

    chains = Bundle("chains")

    def __init__(self) -> None:
        super().__init__()
        self.index = SegmentIndex(2000)
        self.now = 0.0

    def present(self, chain: list[bytes]) -> list[bytes]:
        found = []
        for name in chain:
            if name not in self.index:
                break
            found.append(name)
        return found

    @rule(target=chains, seed=st.integers(0, 3), length=st.integers(1, 4), tail=st.integers(0, 3))
    def grow(self, seed: int, length: int, tail: int) -> list[bytes]:
        tokens = text(seed, length - 1) + text(10 + tail, 1)
        chain = [name for _, name, _ in KEYS.chain("", tokens)]
        done: list[bytes] = []
        for parent, name, _ in KEYS.chain("", tokens):
            if name not in self.index:
                gone = self.index.make_room(100, self.now, done)
                if gone is None:
                    break
                assert not set(gone) & set(done)
                self.index.add(StoredSegment(name, parent, 100, (0,)), reversed(done))
            done.append(name)
        return chain

    @rule(chain=chains)
    def use(self, chain: list[bytes]) -> None:
        self.index.touch(self.present(chain))

    @rule(chain=chains, seconds=st.integers(1, 50))
    def pin(self, chain: list[bytes], seconds: int) -> None:
        kept = self.present(chain)
        if self.index.pin(kept, self.now + seconds, self.now):
            assert all(self.index.pinned(name, self.now) for name in kept)

    @rule(chain=chains)
    def lose(self, chain: list[bytes]) -> None:
        kept = self.present(chain)
        if kept:
            gone = self.index.drop(kept[0])
            assert gone[-1] == kept[0]
            assert set(kept) <= set(gone)

    @rule(seconds=st.integers(1, 30))
    def wait(self, seconds: int) -> None:
        self.now += seconds

    @rule(size=st.integers(0, 2000))
    def evict(self, size: int) -> None:
        before = {name for name in self.names() if self.index.pinned(name, self.now)}
        gone = self.index.make_room(size, self.now)
        assert before <= self.names()
        if gone is not None:
            assert self.index.bytes + size <= self.index.budget

    def names(self) -> set[bytes]:
        return set(self.index._order)

    @invariant()
    def laws(self) -> None:
        self.index.check()
        assert self.index.bytes <= self.index.budget
        held = sum(100 for name in self.names() if self.index.pinned(name, self.now))
        assert held <= PINNED_SHARE * self.index.budget


TestIndex = IndexEvents.TestCase
TestIndex.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


@given(st.lists(st.tuples(st.floats(0, 2 * DAY_S), st.integers(0, 2000)), max_size=30))
def test_an_allowance_is_kept_in_any_day(asked: list[tuple[float, int]]) -> None:
    allowance, spent, now = WriteAllowance(1000), [], 500.0
    for after, size in asked:
        now += after
        if size <= allowance.left(now):
            allowance.spend(size)
            spent.append((now, size))
    for first, (start, _) in enumerate(spent):
        day = sum(size for at, size in spent[first:] if at < start + DAY_S)
        assert day <= 2 * 1000, "what was left before, and what a day adds"
    assert sum(size for _, size in spent) <= 1000 * (1 + (now - 500.0) / DAY_S) + 1e-6
