"""Regular expressions over bytes as automata: the shortest end of a partial text, and the state after each token.

The state of a text is an expression for what may follow, the derivative by that text (Brzozowski, Derivatives of
Regular Expressions, 1964). Equal expressions are one object, so equal states are found, and a repetition of 5,000
needs no 5,000 states before a text has that length.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from twofold.engine.grammar.vocabulary import TokenVocabulary

MAX_STATES: Final = 4_096
"""States of an automaton. Texts that need more count as texts without an end."""
MAX_NODES: Final = 200_000
"""Expressions of a grammar; further ones count as without a match."""
MAX_END: Final = 65_536
"""Maximum bytes of an end."""
MAX_SEARCHED: Final = 2_000
"""States that are visited to find the shortest text of an intersection."""
WALKS: Final = 4
DEAD: Final = 0
"""The state of texts that are no prefix of a match."""
ALL: Final = (1 << 256) - 1
_PREFERRED: Final = b"0aA1 -_.,:/@"
"""Bytes of which an end is made, if possible."""

States: TypeAlias = NDArray[np.int32]


class ByteExpression:
    """An expression: a set of bytes (``bits``), or ``parts`` joined by ``kind``. ``length`` is that of the shortest
    match, None if there is none. Made by ``Expressions``."""

    __slots__ = ("bits", "kind", "least", "length", "most", "nullable", "parts", "row")

    def __init__(self, kind: str, parts: tuple[ByteExpression, ...], bits: int, least: int, most: int | None) -> None:
        self.kind, self.parts, self.bits, self.least, self.most = kind, parts, bits, least, most
        self.row: list[tuple[int, ByteExpression]] | None = None
        lengths = [part.length for part in parts]
        known = [length for length in lengths if length is not None]
        self.length: int | None = None
        if kind == "set":
            self.length = 1 if bits else None
        elif kind == "cat":
            self.length = sum(known) if len(known) == len(parts) else None
        elif kind == "alt":
            self.length = min(known, default=None)
        elif kind == "repeat":
            self.length = least * known[0] if known else 0 if least == 0 else None
        every = all if kind in ("cat", "both") else any
        inner = kind != "set" and every([part.nullable for part in parts])
        self.nullable: bool = inner or (kind == "repeat" and least == 0)


class Expressions:
    """Makes expressions, simplified. ``nothing`` has no match, ``empty`` only the empty text."""

    def __init__(self) -> None:
        self._known: dict[tuple[object, ...], ByteExpression] = {}
        self.nothing = self.one_of(0)
        self.empty = self._node("cat", ())

    def one_of(self, bits: int) -> ByteExpression:
        """One byte of a set; bit b stands for byte b."""
        return self._node("set", (), bits=bits)

    def literal(self, text: bytes) -> ByteExpression:
        """A text."""
        return self.cat(*(self.one_of(1 << byte) for byte in text))

    def cat(self, *parts: ByteExpression) -> ByteExpression:
        """Parts one after another."""
        found = self.empty
        for part in reversed(parts):
            found = self._pair(part, found)
        return found

    def _pair(self, first: ByteExpression, then: ByteExpression) -> ByteExpression:
        if first is self.nothing or then is self.nothing:
            return self.nothing
        if first is self.empty or then is self.empty:
            return then if first is self.empty else first
        heads = []
        while first.kind == "cat":
            heads.append(first.parts[0])
            first = first.parts[1]
        for head in (first, *reversed(heads)):
            then = self._node("cat", (head, then))
        return then

    def alt(self, parts: Iterable[ByteExpression]) -> ByteExpression:
        """One of several parts."""
        flat = [inner for part in parts for inner in (part.parts if part.kind == "alt" else (part,))]
        bits = 0
        for part in flat:
            bits |= part.bits
        rest = {id(part): part for part in flat if part.kind != "set"}
        if bits:
            one = self.one_of(bits)
            rest[id(one)] = one
        if len(rest) < 2:
            return next(iter(rest.values()), self.nothing)
        return self._node("alt", tuple(rest.values()), key=("alt", frozenset(rest)))

    def both(self, first: ByteExpression, other: ByteExpression) -> ByteExpression:
        """What matches two expressions."""
        if first is other:
            return first
        if self.nothing in (first, other):
            return self.nothing
        node = self._node("both", (first, other))
        if node.length is None:
            node.length = 0 if node.nullable else self._shortest_of_both(node)
        return node

    def repeat(self, part: ByteExpression, least: int = 0, most: int | None = None) -> ByteExpression:
        """``least`` to ``most`` times a part."""
        if most == 0 or part is self.empty:
            return self.empty
        if part is self.nothing:
            return self.nothing if least else self.empty
        return part if (least, most) == (1, 1) else self._node("repeat", (part,), least=least, most=most)

    def _node(
        self,
        kind: str,
        parts: tuple[ByteExpression, ...],
        *,
        bits: int = 0,
        least: int = 0,
        most: int | None = None,
        key: tuple[object, ...] | None = None,
    ) -> ByteExpression:
        key = key or (kind, *map(id, parts), bits, least, most)
        found = self._known.get(key)
        if found is None:
            if len(self._known) > MAX_NODES:
                return self.nothing
            found = self._known[key] = ByteExpression(kind, parts, bits, least, most)
        return found

    def row(self, node: ByteExpression) -> list[tuple[int, ByteExpression]]:
        """The derivatives of an expression: disjoint sets of bytes, each with what may follow; other bytes are not
        possible."""
        if node.row is None:
            node.row = self._row(node)
        return node.row

    def _row(self, node: ByteExpression) -> list[tuple[int, ByteExpression]]:
        match node.kind:
            case "set":
                return [(node.bits, self.empty)] if node.bits else []
            case "repeat":
                most = None if node.most is None else node.most - 1
                rest = self.repeat(node.parts[0], max(node.least - 1, 0), most)
                return [(bits, self._pair(after, rest)) for bits, after in self.row(node.parts[0])]
            case "both":
                pairs = [
                    (bits & other_bits, self.both(after, other))
                    for bits, after in self.row(node.parts[0])
                    for other_bits, other in self.row(node.parts[1])
                ]
                return [(bits, after) for bits, after in pairs if bits and after is not self.nothing]
            case "alt":
                return self._sum([self.row(part) for part in node.parts])
        if not node.parts:
            return []
        first, then = node.parts
        row = [(bits, self._pair(after, then)) for bits, after in self.row(first)]
        return self._sum([row, self.row(then)]) if first.nullable else row

    def _sum(self, rows: list[list[tuple[int, ByteExpression]]]) -> list[tuple[int, ByteExpression]]:
        """Rows of alternatives as one row."""
        found: list[tuple[int, list[ByteExpression]]] = []
        for row in rows:
            for bits, after in row:
                fresh, parts = bits, []
                for known, nodes in found:
                    parts += [(known & ~bits, nodes), (known & bits, [*nodes, after])]
                    fresh &= ~known
                found = [(known, nodes) for known, nodes in [*parts, (fresh, [after])] if known]
        merged: dict[int, tuple[int, ByteExpression]] = {}
        for bits, nodes in found:
            node = self.alt(nodes)
            merged[id(node)] = (merged.get(id(node), (0, node))[0] | bits, node)
        return list(merged.values())

    def _shortest_of_both(self, node: ByteExpression) -> int | None:
        """The length of the shortest match of an intersection, found breadth first; None if none was found."""
        layer, seen, length = [node], {id(node)}, 0
        while layer and len(seen) < MAX_SEARCHED:
            length += 1
            following = []
            for pair in layer:
                first, other = pair.parts
                for bits, after in self.row(first):
                    for other_bits, beside in self.row(other):
                        if not bits & other_bits or self.nothing in (after, beside):
                            continue
                        if after.nullable and beside.nullable:
                            return length
                        found = self._node("both", (after, beside))
                        if id(found) not in seen:
                            seen.add(id(found))
                            following.append(found)
            layer = following
        return None


@dataclass(frozen=True, slots=True)
class Walk:
    """The states after each token of a vocabulary, by the token's place in its columns.

    live      the mask of the tokens after which a match is possible, and ``count`` their number
    reached   the states after those, each once; ``examples`` are tokens that lead to them
    """

    states: States
    live: NDArray[np.uint32]
    count: int
    reached: list[int]
    examples: list[int]

    def to(self, states: list[int]) -> NDArray[np.bool_]:
        """Whether each token leads to one of some states."""
        chosen = np.zeros(max(self.reached, default=0) + 1, dtype=np.bool_)
        chosen[states] = True
        return chosen[self.states]


class Automaton:
    """The states of one expression, made when they are needed. ``runs`` are the bytes of which a repetition is made, if
    possible. Not thread-safe."""

    def __init__(self, expressions: Expressions, root: ByteExpression, runs: bytes = b"") -> None:
        self._expressions = expressions
        self._runs = runs
        self._nodes = [expressions.nothing]
        self._index = {id(expressions.nothing): DEAD}
        self._table = np.zeros((16, 256), dtype=np.int32)
        self._filled = np.zeros(16, dtype=np.bool_)
        self._filled[DEAD] = True
        self._ends: dict[int, bytes] = {}
        self._rows: list[list[int] | None] = [None]
        self._walks: OrderedDict[int, Walk] = OrderedDict()
        self.start = self._state(root)
        self.closed = self._state(expressions.empty)
        """The state in which a match is complete and nothing can follow."""

    def after(self, text: bytes, state: int) -> int:
        """The state after ``state`` and then a text."""
        for byte in text:
            if state == DEAD:
                break
            state = (self._rows[state] or self._listed(state))[byte]
        return state

    def _listed(self, state: int) -> list[int]:
        """The states after each byte, as a list, which is faster than an array for a single byte."""
        self._fill(state)
        row: list[int] = self._table[state].tolist()
        self._rows[state] = row
        return row

    def end(self, state: int) -> bytes | None:
        """The shortest text that completes a match; None if there is none of at most MAX_END bytes."""
        length = self._nodes[state].length
        if length is None or length > MAX_END:
            return None
        if state not in self._ends:
            self._ends[state] = self._spell_end(self._nodes[state])
        return self._ends[state]

    def _spell_end(self, node: ByteExpression) -> bytes:
        out, waiting = bytearray(), [node]
        while waiting:
            node = waiting.pop()
            if node.nullable:
                continue
            if node.kind == "set":
                out.append(_chosen(node.bits))
            elif node.kind == "cat":
                waiting += reversed(node.parts)
            elif node.kind == "repeat":
                bits = _single_bytes(node.parts[0])
                if bits and node.least > 1:
                    out += bytes([_chosen(bits, self._runs)]) * node.least
                else:
                    waiting += node.parts * node.least
            else:
                steps = self._expressions.row(node) if node.kind == "both" else [(0, part) for part in node.parts]
                bits, after = min(steps, key=lambda step: MAX_END if step[1].length is None else step[1].length)
                out += bytes([_chosen(bits)]) if bits else b""
                waiting.append(after)
        return bytes(out)

    def walk(self, state: int, vocabulary: TokenVocabulary) -> Walk:
        """The states after each token. Recent results are kept."""
        walk = self._walks.get(state)
        if walk is None:
            states = np.full(len(vocabulary.order), state, dtype=np.int32)
            for column in vocabulary.columns:
                part = states[: len(column)]
                for missing in np.unique(part[~self._filled[part]]).tolist():
                    self._fill(missing)
                part[:] = self._table[part, column]
            examples = np.full(len(self._nodes), -1)
            examples[states] = np.arange(len(states))
            reached = [each for each in np.flatnonzero(examples >= 0).tolist() if each != DEAD]
            live = vocabulary.order[states != DEAD]
            tokens = vocabulary.order[examples[reached]].tolist()
            walk = Walk(states, vocabulary.bits(live), len(live), reached, tokens)
            self._walks[state] = walk
            while len(self._walks) > WALKS:
                self._walks.popitem(last=False)
        self._walks.move_to_end(state)
        return walk

    def _state(self, node: ByteExpression) -> int:
        found = self._index.get(id(node))
        if found is None:
            if node.length is None or len(self._nodes) >= MAX_STATES:
                return DEAD
            found = self._index[id(node)] = len(self._nodes)
            self._nodes.append(node)
            self._rows.append(None)
            if found >= len(self._table):
                self._table = np.concatenate([self._table, np.zeros_like(self._table)])
                self._filled = np.concatenate([self._filled, np.zeros_like(self._filled)])
        return found

    def _fill(self, state: int) -> None:
        if self._filled[state]:
            return
        self._filled[state] = True
        for bits, after in self._expressions.row(self._nodes[state]):
            following = self._state(after)
            self._table[state, _bytes_of(bits)] = following


def _bytes_of(bits: int) -> NDArray[np.intp]:
    return np.flatnonzero(np.unpackbits(np.frombuffer(bits.to_bytes(32, "little"), np.uint8), bitorder="little"))


def _single_bytes(node: ByteExpression) -> int:
    """Matches of a single byte."""
    parts = node.parts if node.kind == "alt" else (node,)
    return next((part.bits for part in parts if part.kind == "set"), 0)


def _chosen(bits: int, first: bytes = b"") -> int:
    """A byte of a set."""
    preferred = next((byte for byte in first + _PREFERRED if bits >> byte & 1), None)
    return (bits & -bits).bit_length() - 1 if preferred is None else preferred
