"""Compiles what callers ask for, off their threads and within a budget, and keeps what it compiled.

A grammar is first tried in another process (``vetting``), because llguidance can crash or hang on hostile ones and
nothing stops it from inside; only what passes there is compiled here, on one worker thread, where llguidance lets go
of the interpreter's lock. The result is a matcher before its first token, which each answer gets a copy of.
"""

from __future__ import annotations

import re
import threading
from collections import OrderedDict
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

from llguidance import LLMatcher

from twofold.core.errors import ParameterError, ResourceError
from twofold.core.params import StructuredOutputsParams
from twofold.grammar.completion import LONGEST, CompletionSearch, Path
from twofold.grammar.constraint import GrammarConstraint
from twofold.grammar.rise import literals, rise_bytes
from twofold.grammar.source import GrammarSource, grammar_source, impossible
from twofold.grammar.vet import parser_limits
from twofold.grammar.vetting import TrialProcess
from twofold.grammar.vocabulary import TokenVocabulary
from twofold.text.tokenizer import Tokenizer

COMPILE_S: Final = 0.25
CACHED_GRAMMARS: Final = 64
MAX_WAITING: Final = 256
COMPILE_WORK: Final = 800_000
"""Of the search for a shortest answer (``completion``): about a second."""
LEAST_HEADROOM: Final = 8
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
    """A form that answers may have, ready for any number of them. Safe to share among threads.

    ``least_tokens`` is how many tokens are known to be enough for an answer.
    """

    form: str
    matcher: LLMatcher
    vocabulary: TokenVocabulary
    texts: tuple[bytes, ...]
    literals: tuple[Path, ...]
    path: Path
    headroom: int

    @property
    def least_tokens(self) -> int:
        return len(self.path)

    def start(self, max_tokens: int) -> GrammarConstraint:
        """The constraint of one answer of at most ``max_tokens`` tokens, valid wherever it ends.

        Raises ParameterError if the form needs more tokens than that.
        """
        if max_tokens < self.least_tokens:
            raise ParameterError(
                f"The structured output needs {self.least_tokens} tokens at the least, max_tokens is {max_tokens}.",
                param="max_tokens",
                hint=f"Set max_tokens to {self.least_tokens} or more; leave room for what the model wants to say.",
            )
        return GrammarConstraint(
            self.matcher.deep_copy(),
            self.vocabulary,
            CompletionSearch(self.vocabulary, self.texts, self.literals),
            max_tokens=max_tokens,
            path=self.path,
            headroom=self.headroom,
        )


class GrammarCompiler:
    """Compiles for one model. Made cheaply: the vocabulary is prepared with the first grammar. Thread-safe.

    end_ids     every token that may end an answer
    vocab_size  how many logits a row has
    seconds     budget of a compilation on trial, the only clock here: it decides what is refused, never an answer
    """

    def __init__(
        self, tokenizer: Tokenizer, end_ids: Iterable[int], vocab_size: int, *, seconds: float = COMPILE_S
    ) -> None:
        self._tokenizer = tokenizer
        self._end_ids = tuple(end_ids)
        self._vocab_size = vocab_size
        self._seconds = seconds
        self._vocabulary: TokenVocabulary | None = None
        self._trial = TrialProcess(seconds)
        self._known: OrderedDict[str, CompiledGrammar] = OrderedDict()
        self._lock = threading.Lock()
        self._waiting = 0
        self._worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="twofold-grammar")

    def submit(self, params: StructuredOutputsParams) -> Future[CompiledGrammar]:
        """Compiles in the background. The future raises ParameterError for a form that is impossible.

        Raises ResourceError where too many wait already.
        """
        with self._lock:
            if self._waiting >= MAX_WAITING:
                raise ResourceError(
                    f"{self._waiting} grammars wait to be compiled already.", hint="Try again in a few seconds."
                )
            self._waiting += 1
        future = self._worker.submit(self._compile, params)
        future.add_done_callback(self._left)
        return future

    def close(self) -> None:
        """Drops what waits, ends what runs, and lets the other process go."""
        self._worker.shutdown(wait=True, cancel_futures=True)
        self._trial.close()

    def _left(self, _: Future[CompiledGrammar]) -> None:
        with self._lock:
            self._waiting -= 1

    def _compile(self, params: StructuredOutputsParams) -> CompiledGrammar:
        source = grammar_source(params)
        key = f"{source.form} {source.grammar}"
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = self._compiled(source)
            while len(self._known) > CACHED_GRAMMARS:
                self._known.popitem(last=False)
        self._known.move_to_end(key)
        return known

    def _compiled(self, source: GrammarSource) -> CompiledGrammar:
        if not self._end_ids:
            raise impossible(source.form, "needs a model with an end-of-sequence token", "Use another model.")
        fault = self._trial.fault(source.grammar)
        if fault:
            raise _refused(source.form, fault)
        if self._vocabulary is None:
            self._vocabulary = TokenVocabulary(self._tokenizer, self._end_ids, self._vocab_size)
        matcher = LLMatcher(self._vocabulary.matchable, source.grammar, log_level=0, limits=parser_limits())
        spelled = tuple(tuple(self._vocabulary.spell(text.encode())) for text in literals(source))
        search = CompletionSearch(self._vocabulary, source.texts, spelled)
        path = None if matcher.is_error() else search.find(matcher, LONGEST, b"", COMPILE_WORK)
        if matcher.is_error():
            raise _refused(source.form, matcher.get_error())
        if path is None:
            why = f"has no complete answer of up to {LONGEST} tokens that could be found"
            raise impossible(source.form, why, "Give recursive parts an alternative that ends; lower least counts.")
        headroom = _headroom(source, self._vocabulary)
        return CompiledGrammar(source.form, matcher, self._vocabulary, source.texts, spelled, path, headroom)


def _headroom(source: GrammarSource, vocabulary: TokenVocabulary) -> int:
    """How many tokens a single token can add to the shortest completion: what it opens, if it opens several.

    A byte counts as a token, which it takes where a vocabulary knows no longer piece (emoji, digits).
    """
    if source.texts:
        return max(len(vocabulary.spell(text)) for text in source.texts)
    brackets = vocabulary.deepest * (BRACKET_TOKENS if source.form == "grammar" else 1)
    return max(LEAST_HEADROOM, rise_bytes(source), brackets)


def _refused(form: str, fault: str) -> ParameterError:
    hint = _HINTS.get(form, "Simplify it.")
    if fault.startswith(("takes more", "is too")):
        return impossible(form, fault, "Make it smaller: fewer alternatives, properties, repetitions or levels.")
    return impossible(form, f"cannot be compiled: {_one_line(fault)}", hint)


def _one_line(fault: str) -> str:
    """The telling line of llguidance's message, without places in a grammar that the caller never saw."""
    lines = [line.strip() for line in fault.splitlines() if line.strip()]
    if lines and lines[0].startswith("NoExtension"):
        return "no answer can have this form"
    line = next((line.removeprefix("error:") for line in lines if line.startswith("error:")), lines[0])
    line = re.sub(r"^(?:at )?\d+\(\d+\): ", "", line.split(" (in regex): ")[-1])
    return line.strip().split(";")[0].rstrip(".")[:160]
