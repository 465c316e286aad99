"""Tokens to text while they are generated. A character is sent as soon as it is complete, and the possible start of a
stop string is withheld.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterable
from dataclasses import dataclass, field

from twofold.core.errors import ParameterError
from twofold.core.params import MAX_STOP_CHARS, MAX_STOPS
from twofold.text.tokenizers.tokenizer import Tokenizer


class StreamDetokenizer:
    """Turns one sequence's ids into text, step by step.

    All pushes and the flush together are ``tokenizer.decode`` of all ids with the same options. At most three bytes
    are withheld.
    """

    def __init__(self, tokenizer: Tokenizer, *, skip_special_tokens: bool = True, continuation: bool = False) -> None:
        self._tokenizer = tokenizer
        self._skipped = tokenizer.special_ids if skip_special_tokens else frozenset()
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._strip = tokenizer.strips_first_space and not continuation

    def push(self, token: int) -> str:
        """The text that ``token`` completes; often "" within a character of several tokens."""
        if token in self._skipped:
            return ""
        return self._shown(self._decoder.decode(self._tokenizer.token_bytes(token)))

    def flush(self) -> str:
        """The withheld text at the end of the sequence: U+FFFD for an incomplete character."""
        return self._shown(self._decoder.decode(b"", final=True))

    def _shown(self, text: str) -> str:
        if not self._strip or not text:
            return text
        self._strip = False
        return text.removeprefix(" ")


class StopStrings:
    """Cuts a stream as soon as one of ``stops`` is complete, however the stream is split into pieces.

    If one character completes several of them, the longest counts. ``include`` leaves the stop string in the text.
    Only the longest prefix of a stop string at the end of the stream is withheld. Raises ParameterError for an empty
    string, too many strings, or too long ones. Method: an automaton per string (Knuth, Morris & Pratt 1977).
    """

    def __init__(self, stops: str | Iterable[str], *, include: bool = False) -> None:
        self._matchers = [_Matcher(stop) for stop in _checked(stops)]
        self._include = include
        self._held = ""
        self.stopped: str | None = None
        """The stop string that ended the stream."""

    def push(self, text: str) -> tuple[str, bool]:
        """The text to emit, and whether the stream has stopped. A stopped stream emits nothing."""
        if self.stopped is not None:
            return "", True
        if not self._matchers:
            return text, False
        pending = self._held + text
        for position, character in enumerate(text, start=len(self._held)):
            ended = [matcher.stop for matcher in self._matchers if matcher.advance(character)]
            if ended:
                self.stopped, self._held = max(ended, key=len), ""
                end = position + 1
                return pending[: end if self._include else end - len(self.stopped)], True
        keep = max(matcher.matched for matcher in self._matchers)
        cut = len(pending) - keep
        self._held = pending[cut:]
        return pending[:cut], False

    def flush(self) -> str:
        """The withheld text, if the stream ends without a stop string."""
        held, self._held = self._held, ""
        return held


@dataclass(slots=True)
class _Matcher:
    """Counts how many first characters of ``stop`` the stream ends with."""

    stop: str
    matched: int = 0
    _fallback: list[int] = field(init=False)

    def __post_init__(self) -> None:
        self._fallback = _borders(self.stop)

    def advance(self, character: str) -> bool:
        """Whether the stream now ends with all of ``stop``."""
        while self.matched and self.stop[self.matched] != character:
            self.matched = self._fallback[self.matched - 1]
        if self.stop[self.matched] == character:
            self.matched += 1
        return self.matched == len(self.stop)


def _borders(text: str) -> list[int]:
    """For each prefix of ``text``, the length of its longest proper prefix that is also its suffix."""
    borders = [0] * len(text)
    length = 0
    for index in range(1, len(text)):
        while length and text[length] != text[index]:
            length = borders[length - 1]
        length += text[length] == text[index]
        borders[index] = length
    return borders


def _checked(stops: str | Iterable[str]) -> list[str]:
    unique = [stops] if isinstance(stops, str) else list(dict.fromkeys(stops))
    if len(unique) > MAX_STOPS:
        raise _refused(f"{len(unique)} stop strings are too many; at most {MAX_STOPS} are allowed.")
    for stop in unique:
        if not isinstance(stop, str) or not stop:
            raise _refused("A stop string must be a string of at least one character.")
        if len(stop) > MAX_STOP_CHARS:
            raise _refused(
                f"A stop string of {len(stop)} characters is too long; at most {MAX_STOP_CHARS} are allowed."
            )
    return unique


def _refused(message: str) -> ParameterError:
    return ParameterError(message, param="stop", hint="Give few, short stop strings.")
