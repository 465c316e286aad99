"""The cases that are measured, one for each line of the report.

prefill    a prompt alone
prefix     a prompt alone whose prefix is cached
decode     sequences that decode together, one token each per step
mixed      the same, while another prompt is prefilled in the same steps
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Final, Literal, TypeAlias

from twofold.core.errors import ParameterError

Phase: TypeAlias = Literal["prefill", "prefix", "decode", "mixed"]

INPUT_TOKENS: Final = (32, 128, 512, 2048)
CONTEXTS: Final = (128, 1024)
BATCHES: Final = (1, 8, 32)
OUTPUT_TOKENS: Final = 64
ROUNDS: Final = 3
NEW_TOKENS: Final = 32
"""Tokens after the cached prefix: a short question about a long text."""
PURE_STEPS: Final = 8
"""Steps without a prompt before each prompt of a mixed case."""
MAX_SIZE: Final = 1 << 20
MAX_SIZES: Final = 64


@dataclass(frozen=True, slots=True)
class Prefill:
    """A prompt of ``tokens`` tokens without cached ones."""

    tokens: int

    phase: ClassVar[Phase] = "prefill"

    def extent(self, _step_rows: int, _rounds: int) -> int:
        """Tokens of context that the case needs, with at most ``step_rows`` rows per step."""
        return self.tokens + 1


@dataclass(frozen=True, slots=True)
class Prefix:
    """A prompt of ``tokens`` tokens, of which all but the last ``new`` are cached."""

    tokens: int
    new: int = NEW_TOKENS

    phase: ClassVar[Phase] = "prefix"

    @property
    def cached(self) -> int:
        return self.tokens - self.new

    def extent(self, _step_rows: int, _rounds: int) -> int:
        """As ``Prefill.extent``."""
        return self.tokens + 1


@dataclass(frozen=True, slots=True)
class Decode:
    """``batch`` sequences decode after ``context`` tokens each, for ``steps`` steps."""

    batch: int
    context: int
    steps: int

    phase: ClassVar[Phase] = "decode"

    def max_output(self, step_rows: int, _rounds: int) -> int:
        """Maximum of output tokens of a sequence: the first ones decode until the last prompt is computed."""
        return self.steps + 1 + _filling(self.batch, self.context, step_rows)

    def extent(self, step_rows: int, rounds: int) -> int:
        """As ``Prefill.extent``."""
        return self.context + self.max_output(step_rows, rounds)


@dataclass(frozen=True, slots=True)
class Mixed:
    """``batch`` sequences decode after ``context`` tokens each, and a prompt of ``tokens`` tokens is added."""

    batch: int
    context: int
    tokens: int

    phase: ClassVar[Phase] = "mixed"

    def prompt_steps(self, step_rows: int) -> int:
        """Steps of the prompt, in the rows that decoding leaves."""
        return -(-self.tokens // max(1, step_rows - self.batch))

    def max_output(self, step_rows: int, rounds: int) -> int:
        """As ``Decode.max_output``."""
        a_round = PURE_STEPS + self.prompt_steps(step_rows) + 1
        return rounds * a_round + 1 + _filling(self.batch, self.context, step_rows)

    def extent(self, step_rows: int, rounds: int) -> int:
        """As ``Prefill.extent``."""
        return max(self.tokens + 1, self.context + self.max_output(step_rows, rounds))


Case: TypeAlias = Prefill | Prefix | Decode | Mixed


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """The sizes of cases. Raises ParameterError for invalid ones.

    input_tokens    lengths of prompts
    context         tokens before the generated ones
    batch           numbers of sequences that decode together
    output_tokens   decode steps of a round
    rounds          measurements of a case
    """

    input_tokens: tuple[int, ...] = INPUT_TOKENS
    context: tuple[int, ...] = CONTEXTS
    batch: tuple[int, ...] = BATCHES
    output_tokens: int = OUTPUT_TOKENS
    rounds: int = ROUNDS

    def __post_init__(self) -> None:
        for name in ("input_tokens", "context", "batch"):
            sizes = getattr(self, name)
            if not 1 <= len(sizes) <= MAX_SIZES:
                raise ParameterError(f"{name} must be from 1 to {MAX_SIZES} numbers, not {len(sizes)}.", param=name)
            self._check(name, *sizes)
        self._check("output_tokens", self.output_tokens)
        self._check("rounds", self.rounds)

    @staticmethod
    def _check(name: str, *sizes: int) -> None:
        for size in sizes:
            if not 1 <= size <= MAX_SIZE:
                raise ParameterError(f"{name} must be from 1 to {MAX_SIZE:,}, not {size}.", param=name)

    def cases(self, *, prefix_caching: bool = True) -> Iterator[Case]:
        """All cases in the order of measurement. Mixed cases have the middle batch and the least context."""
        inputs, contexts, batches = (sorted(set(s)) for s in (self.input_tokens, self.context, self.batch))
        yield from map(Prefill, inputs)
        if prefix_caching:
            yield from (Prefix(tokens) for tokens in inputs if tokens > 2 * NEW_TOKENS)
        yield from (Decode(batch, context, self.output_tokens) for context in contexts for batch in batches)
        yield from (Mixed(batches[len(batches) // 2], contexts[0], tokens) for tokens in inputs)


def parse_sizes(name: str, text: str) -> tuple[int, ...]:
    """Parses ``"32,128,512"``. Raises ParameterError."""
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        message = f"{name} must be numbers with commas between them, not {text!r:.60}."
        raise ParameterError(message, param=name, hint="Like 32,128,512.") from None


def _filling(batch: int, context: int, step_rows: int) -> int:
    """Maximum of steps until every prompt is computed in the rows that decoding leaves."""
    return -(-batch * context // max(1, step_rows - batch)) + 1
