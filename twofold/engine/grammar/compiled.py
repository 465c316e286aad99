"""Compiles a grammar in this process, which a hostile one may block or crash: ``host`` processes exist for that.

The result is a matcher before its first token; each completion gets a copy.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from llguidance import LLMatcher, LLParserLimits

from twofold.core.errors import ParameterError
from twofold.engine.grammar.completion import LONGEST, CompletionSearch, Path
from twofold.engine.grammar.constraint import GrammarConstraint
from twofold.engine.grammar.growth import growth_bytes, literals
from twofold.engine.grammar.source import GrammarSource, impossible
from twofold.engine.grammar.vocabulary import TokenVocabulary

COMPILE_WORK: Final = 800_000
"""Limit of the search for a shortest output (``completion``): about a second."""
MIN_HEADROOM: Final = 8
BRACKET_TOKENS: Final = 4
"""What closing a bracket of a caller's own grammar takes: ``+1)`` and a little more."""
_HINTS: Final = {
    "json": "Check the schema; supported are the keywords of draft 2020-12 that llguidance lists.",
    "regex": "Use the syntax of Rust's regex package: no look-around, no back-references.",
    "choice": "Give fewer or shorter texts.",
    "grammar": "Check the rules; `start` (in GBNF `root`) is the first one.",
}


@dataclass(frozen=True, slots=True)
class CompiledGrammar:
    """A compiled grammar, for any number of completions. Thread-safe.

    ``min_tokens``: a valid output of this many tokens is known.
    """

    form: str
    matcher: LLMatcher
    vocabulary: TokenVocabulary
    texts: tuple[bytes, ...]
    literals: tuple[Path, ...]
    path: Path
    headroom: int

    @property
    def min_tokens(self) -> int:
        return len(self.path)

    def start(self, max_tokens: int) -> GrammarConstraint:
        """The constraint of one completion of at most ``max_tokens`` tokens, which is valid whenever it ends.

        Raises ParameterError if the grammar needs more tokens than that.
        """
        check_room(self.min_tokens, max_tokens)
        return GrammarConstraint(
            self.matcher.deep_copy(),
            self.vocabulary,
            CompletionSearch(self.vocabulary, self.texts, self.literals),
            max_tokens=max_tokens,
            path=self.path,
            headroom=self.headroom,
        )


def check_room(min_tokens: int, max_tokens: int) -> None:
    """Raises ParameterError if the shortest known output is longer than ``max_tokens``."""
    if max_tokens < min_tokens:
        raise ParameterError(
            f"The structured output needs at least {min_tokens} tokens; max_tokens is {max_tokens}.",
            param="max_tokens",
            hint=f"Set max_tokens to well above {min_tokens}.",
        )


def matched(source: GrammarSource, vocabulary: TokenVocabulary) -> LLMatcher:
    """A matcher whose first mask was computed. Raises ParameterError for an impossible grammar."""
    limits = LLParserLimits(max_lexer_states=50_000, verbose_errors=False)  # a state takes 1 to 2 KB
    matcher = LLMatcher(vocabulary.matchable, source.grammar, log_level=0, limits=limits)
    if not matcher.is_error():
        matcher.compute_bitmask()
        matcher.compute_ff_bytes()
    if matcher.is_error():
        raise _refused(source.form, matcher.get_error())
    return matcher


def completed(source: GrammarSource, matcher: LLMatcher, vocabulary: TokenVocabulary) -> CompiledGrammar:
    """The grammar with the shortest output that was found. Raises ParameterError if none was."""
    spelled = tuple(tuple(vocabulary.spell(text.encode())) for text in literals(source))
    search = CompletionSearch(vocabulary, source.texts, spelled)
    path = search.find(matcher, LONGEST, b"", COMPILE_WORK)
    if matcher.is_error():
        raise _refused(source.form, matcher.get_error())
    if path is None:
        raise unending(source.form, f"has no complete answer of up to {LONGEST} tokens that could be found")
    return CompiledGrammar(source.form, matcher, vocabulary, source.texts, spelled, path, _headroom(source, vocabulary))


def unending(form: str, why: str) -> ParameterError:
    """The error for a grammar without a known output."""
    return impossible(form, why, "Give recursive parts an alternative that ends; lower least counts.")


def too_much(form: str, why: str) -> ParameterError:
    """The error for a grammar that exceeds a limit."""
    return impossible(form, why, "Make it smaller: fewer alternatives, properties, repetitions or levels.")


def _headroom(source: GrammarSource, vocabulary: TokenVocabulary) -> int:
    """How many tokens a single token can add to the shortest rest: the brackets that it opens.

    A byte counts as a token, which it needs if the vocabulary has no longer piece (emoji, digits).
    """
    if source.texts:
        return max(len(vocabulary.spell(text)) for text in source.texts)
    brackets = vocabulary.deepest * (BRACKET_TOKENS if source.form == "grammar" else 1)
    return max(MIN_HEADROOM, growth_bytes(source), brackets)


def _refused(form: str, fault: str) -> ParameterError:
    return impossible(form, f"cannot be compiled: {_one_line(fault)}", _HINTS.get(form, "Simplify it."))


def _one_line(fault: str) -> str:
    """The important line of llguidance's message, without positions in a grammar that the caller never saw."""
    lines = [line.strip() for line in fault.splitlines() if line.strip()]
    if lines and lines[0].startswith("NoExtension"):
        return "no answer can have this form"
    line = next((line.removeprefix("error:") for line in lines if line.startswith("error:")), lines[0])
    line = re.sub(r"^(?:at )?\d+\(\d+\): ", "", line.split(" (in regex): ")[-1])
    return line.strip().split(";")[0].rstrip(".")[:160]
