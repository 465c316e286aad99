"""The reasoning section of a completion, within a budget, and the grammar of what follows it.

    OPENING   the first tokens may spell the start mark; with a grammar, only the mark or the grammar is allowed
    INSIDE    tokens are counted; all are allowed, except an end of sequence if a grammar has to follow
    CLOSING   the budget is spent: only the tokens of the end mark are allowed, one by one
    AFTER     the grammar decides; without one all tokens are allowed

Laws
    A state is a function of the tokens so far. Marks are found by their bytes, however they are cut into tokens.
    If a grammar follows, the section is closed in time to leave room for the end mark and the shortest output.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from copy import copy
from enum import Enum

from twofold.core.errors import ParameterError
from twofold.core.params import ThinkingParams
from twofold.core.step import TokenConstraint
from twofold.engine.grammar.form import WORD_BITS, OutputGrammar


class _Stage(Enum):
    OPENING = 0
    INSIDE = 1
    CLOSING = 2
    AFTER = 3


class ThinkingConstraint:
    """A ``TokenConstraint`` for a completion of at most ``max_tokens`` tokens that may begin with reasoning.

    grammar     the grammar of what follows the section; None for any text
    spell       the bytes of a token
    end_ids     tokens that end the completion, not allowed inside the section if a grammar follows
    vocab_size  logits of a row

    Raises ParameterError if the prompt has opened the section, and its end and the grammar need more than
    ``max_tokens``.
    """

    def __init__(
        self,
        thinking: ThinkingParams,
        grammar: OutputGrammar | None,
        *,
        max_tokens: int,
        spell: Callable[[int], bytes],
        end_ids: Collection[int],
        vocab_size: int,
    ) -> None:
        self._start, self._end = tuple(thinking.start), tuple(thinking.end)
        self._start_bytes, self._end_bytes = (b"".join(map(spell, mark)) for mark in (self._start, self._end))
        self._budget = thinking.budget
        self._grammar = grammar
        self._spell = spell
        self._room = max_tokens
        self._words = -(-vocab_size // WORD_BITS)
        self._unended = self._mask_without(end_ids) if grammar else None
        self._inner: TokenConstraint | None = None
        self._read = b""
        self._marked = 0
        self._between = 0
        self._cut = False
        self._made: memoryview | None = None
        self._drafts: tuple[int, ...] = ()
        self._stage = _Stage.OPENING
        self._begin()

    @property
    def finished(self) -> bool:
        return self._inner is not None and self._inner.finished

    @property
    def shortened(self) -> bool:
        """Whether the output, or the thinking before it, was cut so that the grammar is complete within the limit."""
        return self._cut or (self._inner is not None and self._inner.shortened)

    def prepare(self, drafts: Sequence[int] = ()) -> None:
        """``TokenConstraint.prepare``. It ignores drafts beyond the point where a grammar begins."""
        if self._inner is not None:
            self._inner.prepare(drafts if self._stage is _Stage.AFTER else ())
        else:
            self._drafts = tuple(drafts)

    @property
    def forced(self) -> Sequence[int]:
        """``TokenConstraint.forced``."""
        if self._stage is _Stage.CLOSING:
            return self._end[self._marked :]
        return () if self._inner is None or self._stage is not _Stage.AFTER else self._inner.forced

    @property
    def ready(self) -> bool:
        return self._inner is None or self._inner.ready

    def wait(self) -> bool:
        """``TokenConstraint.wait``."""
        return self._inner is None or self._inner.wait()

    def masks(self) -> Sequence[memoryview | None]:
        """``TokenConstraint.masks``."""
        if self._inner is not None and self._stage is _Stage.AFTER:
            return self._inner.masks()
        masks, state = [self._mask()], self
        for token in self._drafts:
            if not _allows(masks[-1], token):
                break
            state = copy(state)
            state._advance(token)
            if state._inner is not None:
                break
            masks.append(state._mask())
        return masks

    def advance(self, tokens: Sequence[int]) -> None:
        """``TokenConstraint.advance``."""
        self._drafts = ()
        for index, token in enumerate(tokens):
            if self._stage is _Stage.AFTER and self._inner is not None:
                self._inner.advance(tokens[index:])
                return
            self._advance(token)

    def _mask(self) -> memoryview | None:
        if self._stage is _Stage.INSIDE:
            return self._unended
        if self._stage is _Stage.CLOSING:
            return self._closing()
        if self._stage is _Stage.AFTER or self._grammar is None:
            return None
        return self._opening()

    def _advance(self, token: int) -> None:
        marked = self._stage is _Stage.OPENING and token == self._opening_token
        self._room -= 1
        if self._stage is _Stage.OPENING:
            self._open(token, marked=marked)
        elif self._stage is _Stage.INSIDE:
            self._think(token)
        elif self._stage is _Stage.CLOSING:
            self._close(token)
        self._made = None

    @property
    def _min_tokens(self) -> int:
        """The minimum number of tokens of an output of the grammar."""
        return 0 if self._grammar is None else self._grammar.min_tokens

    def _begin(self) -> None:
        if self._start:
            self._inner = self._start_grammar()
            return
        needed = len(self._end) + self._min_tokens
        if self._grammar is not None and self._room < needed:
            raise ParameterError(
                f"Closing the thinking and the shortest structured output take {needed} tokens, but max_tokens is "
                f"{self._room}.",
                param="max_tokens",
                hint="Raise max_tokens, with room for thinking.",
            )
        self._enter()

    def _start_grammar(self) -> TokenConstraint | None:
        return None if self._grammar is None else self._grammar.start(self._room)

    def _open(self, token: int, *, marked: bool) -> None:
        """Takes a token that continues the start mark: as the mark's own token (``marked``) or by its bytes. Any other
        token begins a completion without a thinking section."""
        self._read += self._spell(token)
        if self._inner is not None and (not marked or _allows(self._inner.masks()[0], token)):
            self._inner.advance((token,))
        else:
            self._inner = None
        fits = self._grammar is None or self._inner is None or self._room >= len(self._end) + self._min_tokens
        if self._read.startswith(self._start_bytes) and fits:
            self._marked, self._read = 0, self._read[len(self._start_bytes) :]
            self._enter()
        elif self._start_bytes.startswith(self._read) and self._read != self._start_bytes:
            self._marked = self._marked + 1 if marked else len(self._start)
        else:
            self._stage = _Stage.AFTER

    @property
    def _opening_token(self) -> int | None:
        """The token of the start mark that may follow, if the tokens so far are those of the mark and there is room."""
        if self._marked >= len(self._start):
            return None
        needed = len(self._start) - self._marked + len(self._end) + self._min_tokens
        return self._start[self._marked] if self._grammar is None or self._room >= needed else None

    def _enter(self) -> None:
        self._inner = None
        self._stage = _Stage.INSIDE
        self._look_at_budget()

    def _look_at_budget(self) -> None:
        spent = self._budget is not None and self._between >= self._budget
        tight = self._grammar is not None and self._room <= len(self._end) + self._min_tokens
        if spent or tight:
            self._cut = not spent
            self._marked = 0
            self._stage = _Stage.CLOSING

    def _think(self, token: int) -> None:
        self._read += self._spell(token)
        if self._end_bytes in self._read:
            self._leave()
            return
        self._read = self._read[-len(self._end_bytes) :]
        self._between += 1
        self._look_at_budget()

    def _close(self, token: int) -> None:
        assert token == self._end[self._marked], "only the end mark can follow a spent budget"
        self._marked += 1
        if self._marked == len(self._end):
            self._leave()

    def _leave(self) -> None:
        self._inner = self._start_grammar()
        self._stage = _Stage.AFTER

    def _opening(self) -> memoryview | None:
        """What the grammar allows, and the next token of the start mark."""
        if self._made is None:
            token = self._opening_token
            mask = None if self._inner is None else self._inner.masks()[0]
            allowed = bytes(4 * self._words) if mask is None else mask.tobytes()
            self._made = _with(allowed, () if token is None else (token,))
        return self._made

    def _closing(self) -> memoryview:
        if self._made is None:
            self._made = _with(bytes(4 * self._words), (self._end[self._marked],))
        return self._made

    def _mask_without(self, ids: Collection[int]) -> memoryview:
        words = bytearray(b"\xff" * (4 * self._words))
        for token in ids:
            words[token >> 3] &= ~(1 << (token & 7)) & 0xFF
        return memoryview(bytes(words)).cast("I")


def _with(words: bytes, tokens: Collection[int]) -> memoryview:
    """A mask with some tokens allowed in addition: bit t % 8 of byte t // 8, as words are little-endian."""
    changed = bytearray(words)
    for token in tokens:
        changed[token >> 3] |= 1 << (token & 7)
    return memoryview(bytes(changed)).cast("I")


def _allows(mask: memoryview | None, token: int) -> bool:
    return mask is None or bool(mask.cast("B")[token >> 3] >> (token & 7) & 1)


def completion_constraint(
    thinking: ThinkingParams | None,
    grammar: OutputGrammar | None,
    *,
    max_tokens: int,
    spell: Callable[[int], bytes],
    end_ids: Collection[int],
    vocab_size: int,
) -> TokenConstraint | None:
    """The constraint of one completion; None without one. Raises ParameterError as ``ThinkingConstraint``."""
    if thinking is None or (thinking.budget is None and grammar is None):
        return None if grammar is None else grammar.start(max_tokens)
    return ThinkingConstraint(
        thinking, grammar, max_tokens=max_tokens, spell=spell, end_ids=end_ids, vocab_size=vocab_size
    )
