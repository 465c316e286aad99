"""Compiles a grammar in this process. A hostile grammar may block or crash it, so only ``host`` processes do this.

The result is a matcher before its first token; each completion gets a copy.

``growth_bytes`` estimates, from above and in bytes, by how much a single token can lengthen the shortest rest of an
output. A token adds most if it opens the costliest part of the grammar: the longest value of an enumeration, an
optional property whose value has many required parts, a repetition of at least 100. What every output has adds nothing:
the shortest rest has it from the start. The estimate only reads the caller's text. It sets the headroom at which an
output counts as near its limit: too small a headroom could leave an output incomplete, too large a one restricts the
last tokens more than necessary.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Final, TypeAlias

from llguidance import LLMatcher, LLParserLimits

from twofold.core.errors import ParameterError, quoted
from twofold.engine.grammar.completion import LONGEST, CompletionSearch, Path
from twofold.engine.grammar.constraint import GrammarConstraint
from twofold.engine.grammar.emptiness import chooses, has_no_output, needed_parts, target_of
from twofold.engine.grammar.form import TOO_DEEP, check_room, impossible, too_deep
from twofold.engine.grammar.lexemes import Lexemes, parts_of, schemas_of
from twofold.engine.grammar.source import GrammarSource
from twofold.engine.grammar.vocabulary import TokenVocabulary

Json: TypeAlias = Any

MAX_DEPTH: Final = 100
MAX_GROWTH: Final = 1 << 20
MIN_VALUE: Final = 4
_FORMAT_BYTES: Final = 40
MAX_LITERALS: Final = 32
_LITERAL: Final = re.compile(r"""(?:[^\\.^$|?*+()\[\]{}"/]|\\[^A-Za-z0-9])+""")
_ESCAPED: Final = re.compile(r"\\(.)", re.DOTALL)
_SCHEMA: Final = re.compile(r"%json\s*(?=\{)")
_COUNT: Final = re.compile(r"\{(\d{1,9})")
_NEEDING: Final = frozenset({"required", "prefixItems", "minItems"})

COMPILE_WORK: Final = 800_000
"""Limit of the search for a shortest output (``completion``): about a second."""
MIN_HEADROOM: Final = 8
BRACKET_TOKENS: Final = 4
"""Tokens that closing a bracket may take in a caller's own grammar: ``+1)`` and a little more."""
_HINTS: Final = {
    "json": "Check the schema; supported are the keywords of draft 2020-12 that llguidance lists.",
    "regex": "Use the syntax of Rust's regex package: no look-around, no back-references.",
    "choice": "Give fewer or shorter texts.",
    "grammar": "Check the rules; `start` (in GBNF `root`) is the first one.",
}


@dataclass(frozen=True, slots=True)
class CompiledGrammar:
    """A compiled grammar, for any number of completions. Thread-safe.

    ``path`` leads to a valid output, of ``min_tokens`` tokens; None if none is known: the limit may cut an output.
    """

    form: str
    matcher: LLMatcher
    vocabulary: TokenVocabulary
    texts: tuple[bytes, ...]
    literals: tuple[Path, ...]
    lexemes: Lexemes
    headroom: int
    path: Path | None = None

    @property
    def min_tokens(self) -> int:
        return len(self.path or ())

    @property
    def ends(self) -> bool:
        return self.path is not None

    def search(self) -> CompletionSearch:
        """A search in this grammar."""
        return CompletionSearch(self.vocabulary, self.lexemes, self.texts, self.literals)

    def start(self, max_tokens: int) -> GrammarConstraint:
        """The constraint of one completion of at most ``max_tokens`` tokens, which is valid whenever it ends if a path
        is known.

        Raises ParameterError if the grammar needs more tokens than that.
        """
        check_room(self.min_tokens, max_tokens)
        return GrammarConstraint(
            self.matcher.deep_copy(),
            self.vocabulary,
            self.search(),
            max_tokens=max_tokens,
            path=self.path,
            headroom=self.headroom,
        )


def matched(source: GrammarSource, vocabulary: TokenVocabulary) -> LLMatcher:
    """A matcher that has computed its first mask. Raises ParameterError for an impossible grammar."""
    limits = LLParserLimits(max_lexer_states=50_000, verbose_errors=False)  # a state takes 1 to 2 KB
    matcher = LLMatcher(vocabulary.matchable, source.grammar, log_level=0, limits=limits)
    if not matcher.is_error():
        matcher.compute_bitmask()
        matcher.compute_ff_bytes()
    if matcher.is_error():
        raise _refused(source, matcher.get_error())
    return matcher


def prepared(source: GrammarSource, matcher: LLMatcher, vocabulary: TokenVocabulary) -> CompiledGrammar:
    """The grammar without a path."""
    spelled = tuple(tuple(vocabulary.spell(text.encode())) for text in literals(source))
    lexemes = Lexemes(source, vocabulary.runs)
    headroom = _headroom(source, vocabulary)
    return CompiledGrammar(source.form, matcher, vocabulary, source.texts, spelled, lexemes, headroom)


def path_of(source: GrammarSource, grammar: CompiledGrammar) -> Path | None:
    """Returns the shortest output that the search finds, or None. Raises ParameterError if no output exists."""
    if has_no_output(source):
        raise unending(source.form, "has no complete output: a part of it always needs itself again")
    path = grammar.search().find(grammar.matcher, LONGEST, b"", COMPILE_WORK)
    if grammar.matcher.is_error():
        raise _refused(source, grammar.matcher.get_error())
    return path


def completed(source: GrammarSource, matcher: LLMatcher, vocabulary: TokenVocabulary) -> CompiledGrammar:
    """The grammar with its path. Raises ParameterError as ``path_of``."""
    grammar = prepared(source, matcher, vocabulary)
    return replace(grammar, path=path_of(source, grammar))


def unending(form: str, why: str) -> ParameterError:
    """The error for a grammar without an output."""
    return impossible(form, why, "Give recursive parts an alternative that ends; lower minimum counts.")


def _headroom(source: GrammarSource, vocabulary: TokenVocabulary) -> int:
    """The number of tokens that a single token can add to the shortest rest of an output.

    A byte counts as a token, as in the worst case that the vocabulary has no longer piece (emoji, digits).
    """
    if source.texts:
        return max(len(vocabulary.spell(text)) for text in source.texts)
    brackets = vocabulary.deepest * (BRACKET_TOKENS if source.form == "grammar" else 1)
    return max(MIN_HEADROOM, growth_bytes(source), brackets)


def _refused(source: GrammarSource, fault: str) -> ParameterError:
    if TOO_DEEP in fault:
        return too_deep(source.form)
    schemas = schemas_of(source)
    hint = _HINTS["json"] if schemas else _HINTS.get(source.form, "Simplify it.")
    return impossible(source.form, f"cannot be compiled: {_one_line(fault)}{_culprit(schemas)}", hint)


def _culprit(schemas: list[Json]) -> str:
    """The first pattern of the schemas that cannot be compiled alone, else the beginning of the first such schema."""
    parts = [part for schema in schemas for part, _ in parts_of(schema)]
    patterns = [part["pattern"] for part in parts if isinstance(part.get("pattern"), str)][:MAX_LITERALS]
    if (pattern := next((each for each in patterns if _fails({"type": "string", "pattern": each})), None)) is not None:
        return f", in the pattern {quoted(pattern)}"
    wrong = next((each for each in schemas if len(schemas) > 1 and _fails(each)), None)
    return "" if wrong is None else f", in the schema {quoted(json.dumps(wrong))}"


def _fails(schema: Json) -> bool:
    return bool(LLMatcher.validate_grammar(LLMatcher.grammar_from_json_schema(json.dumps(schema))))


def _one_line(fault: str) -> str:
    """The important line of llguidance's message, without positions in a grammar that the caller never saw."""
    lines = [line.strip() for line in fault.splitlines() if line.strip()]
    if lines and lines[0].startswith("NoExtension"):
        return "no output can have this form"
    line = next((line.removeprefix("error:") for line in lines if line.startswith("error:")), lines[0])
    line = re.sub(r"^(?:at )?\d+\(\d+\): ", "", line.split(" (in regex): ")[-1])
    return re.split(r";|\. Enable ", line.strip())[0].rstrip(".")[:160]


def growth_bytes(source: GrammarSource) -> int:
    """The estimate for a grammar that is not a list of texts."""
    if source.form == "json":
        return SchemaSizes(json.loads(source.text)).growth(needed=True)
    return _lark_growth(source.text) if source.form == "grammar" else _text_growth(source.text)


def _lark_growth(text: str) -> int:
    """The estimate for a Lark grammar: schemas in it (``%json {…}``) count as schemas, the rest as text."""
    rest, done, growth, needed = [], 0, 0, not chooses(text)
    for found in _SCHEMA.finditer(text):
        with suppress(ValueError, RecursionError):
            schema, end = json.JSONDecoder().raw_decode(text, found.end())
            growth = max(growth, SchemaSizes(schema).growth(needed=needed))
            rest.append(text[done : found.start()])
            done = end
    return min(MAX_GROWTH, growth + _text_growth("".join((*rest, text[done:]))))


def _text_growth(text: str) -> int:
    """The estimate for a regex or rules: the longest alternative, and the largest count of a repetition."""
    longest = max(len(part.encode(errors="replace")) for part in re.split(r"[|\n]", text))
    return min(MAX_GROWTH, longest + max(map(int, _COUNT.findall(text)), default=0))


def literals(source: GrammarSource) -> tuple[str, ...]:
    """Texts that a regex or grammar may require literally, such as ``foo`` and ``.com`` in ``.*foo.*\\.com``."""
    text = " ".join(_patterns(source.text)) if source.form == "json" else source.text
    found = (_ESCAPED.sub(r"\1", literal) for literal in _LITERAL.findall(text))
    return tuple(dict.fromkeys(found))[:MAX_LITERALS]


def _patterns(schema: str) -> list[str]:
    return [
        part["pattern"]
        for part, _ in SchemaSizes(json.loads(schema)).parts()
        if isinstance(part, dict) and isinstance(part.get("pattern"), str)
    ]


class SchemaSizes:
    """Estimates the bytes that values of the parts of a JSON schema need; rather too many than too few."""

    def __init__(self, schema: Json) -> None:
        self._root = schema
        self._known: dict[int, int] = {}

    def growth(self, *, needed: bool) -> int:
        """The bytes that the costliest part needs, with its key. ``needed``: every output has one value of the schema,
        so only the own keywords of what each of these values has can add to it."""
        always = {id(part) for part in needed_parts(self._root)} if needed else set()
        sizes = (
            self._own({name: value for name, value in part.items() if name not in _NEEDING}, 0)
            if id(part) in always and "enum" not in part and "const" not in part
            else self.min_bytes(part) + extra
            for part, extra in self.parts()
        )
        return max(sizes, default=MIN_VALUE)

    def min_bytes(self, part: Json, depth: int = 0) -> int:
        """Bytes of the shortest valid value of ``part``; for an enumeration, of its longest value."""
        if not isinstance(part, dict) or depth > MAX_DEPTH:
            return MIN_VALUE
        known = self._known.get(id(part))
        if known is None:
            self._known[id(part)] = MIN_VALUE  # for references of the part to itself
            known = self._known[id(part)] = min(MAX_GROWTH, self._min_bytes(part, depth + 1))
        return known

    def _min_bytes(self, part: dict[str, Json], depth: int) -> int:
        if "const" in part:
            return len(json.dumps(part["const"]))
        if isinstance(part.get("enum"), list):
            return max((len(json.dumps(value)) for value in part["enum"]), default=MIN_VALUE)
        total = self._own(part, depth)
        for name in ("anyOf", "oneOf"):
            branches = part.get(name)
            total += (
                max((self.min_bytes(one, depth) for one in branches), default=0) if isinstance(branches, list) else 0
            )
        if isinstance(part.get("allOf"), list):
            total += sum(self.min_bytes(one, depth) for one in part["allOf"])
        return total + (self.min_bytes(target_of(self._root, part["$ref"]), depth) if "$ref" in part else 0)

    def _own(self, part: dict[str, Json], depth: int) -> int:
        """Bytes for the keywords of all types, added up: a schema rarely has those of several types."""
        total = MIN_VALUE + _count(part, "minLength") + (_FORMAT_BYTES if "format" in part else 0)
        total += _text_growth(part["pattern"]) if isinstance(part.get("pattern"), str) else 0
        total += max(len(str(part.get(name, ""))) for name in ("minimum", "maximum", "multipleOf"))
        total += _count(part, "minItems") * (1 + self.min_bytes(part.get("items"), depth))
        prefix = part.get("prefixItems")
        total += sum(self.min_bytes(one, depth) + 1 for one in prefix) if isinstance(prefix, list) else 0
        properties, required = part.get("properties"), part.get("required")
        values = properties if isinstance(properties, dict) else {}
        names = required if isinstance(required, list) else []
        total += sum(len(str(name)) + 4 + self.min_bytes(values.get(str(name)), depth) for name in names)
        return total + _count(part, "minProperties") * 8

    def parts(self) -> Iterator[tuple[Json, int]]:
        """As ``parts_of``."""
        return parts_of(self._root)


def _count(part: dict[str, Json], name: str) -> int:
    value = part.get(name, 0)
    return min(MAX_GROWTH, int(value)) if isinstance(value, int | float) and 0 <= value <= MAX_GROWTH else 0
