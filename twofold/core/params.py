"""The parameters of generation, checked on construction: ``SamplingParams`` and others, with vLLM's names."""

from __future__ import annotations

import functools
import inspect
import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Real
from types import MappingProxyType
from typing import Any, Final, TypeVar, cast

from twofold.core.errors import MAX_QUOTED, ParameterError, closest_match, describe, did_you_mean, quoted

C = TypeVar("C", bound=type[Any])

MAX_N: Final = 16
MAX_LOGPROBS: Final = 20
MAX_STOPS: Final = 16
MAX_STOP_CHARS: Final = 256
MAX_STOP_TOKENS: Final = 256
MAX_BIASED_TOKENS: Final = 1024
MAX_TOKEN_ID: Final = 2**31 - 1
MAX_SEED: Final = 2**64 - 1
MAX_FLOAT: Final = sys.float_info.max
"""Larger integers cannot be converted to float."""
MAX_CHOICES: Final = 1024
MAX_BEAMS: Final = 64
MAX_MARK_TOKENS: Final = 16


class RequestParams:
    """The base of the parameters of each kind of request: what an engine computes for a prompt."""

    __slots__ = ()


def known_keywords(cls: C) -> C:
    """Class decorator: an unknown keyword of the constructor is a ParameterError that gives the nearest known name."""
    construct = cls.__init__
    known = [name for name in inspect.signature(construct).parameters if name != "self"]

    @functools.wraps(construct)
    def checked(*args: Any, **kwargs: Any) -> None:
        check_keywords(cls.__name__, kwargs, known)
        construct(*args, **kwargs)

    cls.__init__ = checked
    return cls


def check_keywords(owner: str, given: Iterable[str], known: Sequence[str]) -> None:
    """Raises ParameterError for the first keyword that ``owner`` does not know, with the nearest one that it does."""
    for name in given:
        if name not in known:
            hint = did_you_mean(name, sorted(known))
            raise ParameterError(f"{owner} has no parameter {quoted(name)}.", param=name[:MAX_QUOTED], hint=hint)


def check_choice(name: str, value: object, choices: Sequence[str]) -> None:
    """Raises ParameterError unless ``value`` is one of the ``choices`` of the parameter ``name``."""
    if value not in choices:
        close = closest_match(str(value), choices)
        raise ParameterError(
            f"{name} must be {', '.join(choices[:-1])} or {choices[-1]}, not {value!r:.40}.",
            param=name,
            hint=f"Did you mean {close!r}?" if close else None,
        )


@known_keywords
@dataclass(frozen=True, slots=True, kw_only=True)
class StructuredOutputsParams:
    """The form that a completion must have: exactly one of these fields, which have vLLM's names.

    json          a JSON schema, as a mapping or as its text
    json_object   any JSON object
    regex         a regular expression that the whole completion matches
    choice        one of these texts
    grammar       a context-free grammar in llguidance's Lark dialect, or in GBNF
    """

    json: str | Mapping[str, Any] | None = field(default=None, hash=False)
    json_object: bool = False
    regex: str | None = None
    choice: Sequence[str] | None = None
    grammar: str | None = None

    def __post_init__(self) -> None:
        check_flag("json_object", self.json_object)
        given = [name for name in ("json", "regex", "choice", "grammar") if getattr(self, name) is not None]
        given += ["json_object"] * (self.json_object is True)
        if len(given) != 1:
            raise ParameterError(
                f"Structured output takes exactly one form, not {' and '.join(given) or 'none'}.",
                param="structured_outputs",
                hint="Give one of json, json_object, regex, choice and grammar.",
            )
        for name in ("regex", "grammar"):
            value = getattr(self, name)
            if value is not None and not (isinstance(value, str) and value):
                raise impossible(name, value, "text")
        if self.json is not None and not isinstance(self.json, str | Mapping):
            raise impossible("json", self.json, "a JSON schema")
        if self.choice is not None:
            object.__setattr__(self, "choice", _choices(self.choice))


def _choices(choice: object) -> tuple[str, ...]:
    if not isinstance(choice, Sequence) or isinstance(choice, str) or not 0 < len(choice) <= MAX_CHOICES:
        raise impossible("choice", choice, f"a list of 1 to {MAX_CHOICES} texts")
    if not all(isinstance(text, str) and text for text in choice):
        raise impossible("choice", choice, "a list of texts, none of them empty")
    return tuple(choice)


@known_keywords
@dataclass(frozen=True, slots=True, kw_only=True)
class ThinkingParams:
    """The section of a completion in which the model thinks first.

    start    tokens that open the section; empty where the prompt has opened it
    end      tokens that close it
    budget   maximum number of tokens between them, after which the tokens of ``end`` are forced. None: no limit

    ``structured_outputs`` apply to the text after the section. A completion that does not open it has no section.
    """

    start: Sequence[int] = ()
    end: Sequence[int]
    budget: int | None = None

    def __post_init__(self) -> None:
        for name in ("start", "end"):
            object.__setattr__(self, name, _token_ids(name, getattr(self, name), MAX_MARK_TOKENS))
        if not self.end:
            raise impossible("end", self.end, "the tokens that close the section")
        if self.budget is not None:
            whole_number("budget", self.budget, 0, MAX_TOKEN_ID)


@known_keywords
@dataclass(frozen=True, slots=True, kw_only=True)
class BeamSearchParams(RequestParams):
    """Beam search, as vLLM spells it: the ``beam_width`` most likely completions, by log-probability / length^penalty.

    ``max_tokens`` is the maximum length of a completion; with ``ignore_eos`` beams go on after an end of sequence.
    """

    beam_width: int
    max_tokens: int
    ignore_eos: bool = False
    length_penalty: float = 1.0

    def __post_init__(self) -> None:
        whole_number("beam_width", self.beam_width, 1, MAX_BEAMS)
        whole_number("max_tokens", self.max_tokens, 1, MAX_TOKEN_ID)
        _number("length_penalty", self.length_penalty, -10, 10)
        check_flag("ignore_eos", self.ignore_eos)


@known_keywords
@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams(RequestParams):
    """How tokens are chosen, when generation stops, and what is reported about it.

    n                     independent completions of the prompt; number i has a seed derived from (seed, i)
    best_of               samples this many completions and keeps the n of the highest mean log-probability
    temperature           divides the logits; 0 takes the most likely token
    top_p                 keeps the smallest set of most likely tokens whose probability reaches it; 0: the likeliest
    top_k                 keeps the k most likely tokens; 0 or −1 keeps all
    min_p                 keeps tokens at least this fraction as likely as the most likely one
    repetition_penalty    > 1 makes tokens of prompt and completion less likely (Keskar et al. 2019)
    presence_penalty      subtracted from the logit of a token that the completion already holds
    frequency_penalty     subtracted once for each time the completion already holds the token
    logit_bias            added to the logits of these token ids
    seed                  equal seeds give equal completions, in any batch; None takes one from the engine's seed
    stop                  strings that end the completion; ``include_stop_str_in_output`` keeps them in the text
    stop_token_ids        token ids that end the completion
    max_tokens            the maximum number of tokens of the completion; default: as many as fit the context
    min_tokens            no end-of-sequence, stop token or stop string before that many tokens
    ignore_eos            go on after the model's end-of-sequence tokens
    logprobs              report log-probabilities of each sampled token and of this many most likely ones
    prompt_logprobs       the same for the tokens of the prompt
    skip_special_tokens   leave special tokens out of the text
    detokenize            make text of the tokens; without it ``text`` stays empty
    structured_outputs    the form that the completion must have
    thinking              the section in which the model thinks first, and how long it may be

    Raises ParameterError for an unknown name or an impossible value. Penalties and bias change what is sampled, never
    the reported log-probabilities: these are of the model's own distribution, as vLLM's ``raw_logprobs``.
    """

    n: int = 1
    best_of: int | None = None
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] | None = field(default=None, hash=False)
    seed: int | None = None
    stop: str | Sequence[str] | None = None
    stop_token_ids: Sequence[int] | None = None
    max_tokens: int | None = 16
    min_tokens: int = 0
    ignore_eos: bool = False
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    skip_special_tokens: bool = True
    include_stop_str_in_output: bool = False
    detokenize: bool = True
    structured_outputs: StructuredOutputsParams | None = None
    thinking: ThinkingParams | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "stop", _stop_strings(self.stop))
        object.__setattr__(self, "stop_token_ids", _token_ids("stop_token_ids", self.stop_token_ids, MAX_STOP_TOKENS))
        object.__setattr__(self, "logit_bias", _biases(self.logit_bias))
        self._check_numbers()
        self._check_counts()
        self._check_structured()
        if self.thinking is not None and not isinstance(self.thinking, ThinkingParams):
            raise impossible("thinking", self.thinking, "ThinkingParams")
        for name in ("ignore_eos", "skip_special_tokens", "include_stop_str_in_output", "detokenize"):
            check_flag(name, getattr(self, name))
        if self.stop_strings and not self.detokenize:
            raise ParameterError("Stop strings need text, but detokenize is off.", param="stop")

    @property
    def answers(self) -> int:
        """How many completions are sampled."""
        return self.best_of or self.n

    @property
    def greedy(self) -> bool:
        return self.temperature == 0

    @property
    def stop_strings(self) -> tuple[str, ...]:
        return cast(tuple[str, ...], self.stop)

    @property
    def stop_tokens(self) -> tuple[int, ...]:
        return cast(tuple[int, ...], self.stop_token_ids)

    @property
    def biases(self) -> Mapping[int, float]:
        return cast(Mapping[int, float], self.logit_bias)

    @property
    def penalises(self) -> bool:
        """Whether sampling depends on the tokens before."""
        return self.repetition_penalty != 1 or self.presence_penalty != 0 or self.frequency_penalty != 0

    def _check_numbers(self) -> None:
        _number("temperature", self.temperature, 0, math.inf)
        _number("top_p", self.top_p, 0, 1)
        _number("min_p", self.min_p, 0, 1)
        _number("repetition_penalty", self.repetition_penalty, 0, math.inf, open_low=True)
        _number("presence_penalty", self.presence_penalty, -2, 2)
        _number("frequency_penalty", self.frequency_penalty, -2, 2)

    def _check_counts(self) -> None:
        whole_number("n", self.n, 1, MAX_N)
        if self.best_of is not None:
            whole_number("best_of", self.best_of, self.n, MAX_N)
        whole_number("top_k", self.top_k, -1, MAX_TOKEN_ID)
        whole_number("min_tokens", self.min_tokens, 0, MAX_TOKEN_ID)
        if self.seed is not None:
            whole_number("seed", self.seed, 0, MAX_SEED)
        if self.max_tokens is not None:
            whole_number("max_tokens", self.max_tokens, 1, MAX_TOKEN_ID)
            whole_number("min_tokens", self.min_tokens, 0, self.max_tokens)
        for name, value in (("logprobs", self.logprobs), ("prompt_logprobs", self.prompt_logprobs)):
            if value is not None:
                whole_number(name, value, 0, MAX_LOGPROBS)

    def _check_structured(self) -> None:
        if self.structured_outputs is None:
            return
        if not isinstance(self.structured_outputs, StructuredOutputsParams):
            raise impossible("structured_outputs", self.structured_outputs, "StructuredOutputsParams")
        if self.ignore_eos or self.min_tokens:
            raise ParameterError(
                "Structured output ends when its grammar is complete; remove ignore_eos and min_tokens.",
                param="ignore_eos" if self.ignore_eos else "min_tokens",
            )


def impossible(name: str, value: object, wanted: str) -> ParameterError:
    """The error for a parameter that must be ``wanted`` and is not."""
    return ParameterError(f"{name} must be {wanted}, not {describe(value)}.", param=name)


def check_flag(name: str, value: object) -> None:
    """Raises ParameterError for anything but True or False."""
    if not isinstance(value, bool):
        raise impossible(name, value, "true or false")


def _number(name: str, value: object, low: float, high: float, *, open_low: bool = False) -> None:
    """Checks that ``value`` is a finite real number in [low, high], or in (low, high]."""
    least = math.nextafter(low, math.inf) if open_low else low
    if isinstance(value, Real) and not isinstance(value, bool) and not value < least and value <= min(high, MAX_FLOAT):
        return
    above = f"a number {'above' if open_low else 'of at least'} {low}"
    raise impossible(name, value, above if high == math.inf else f"{above} and at most {high}")


def whole_number(name: str, value: object, low: int, high: int) -> None:
    """Raises ParameterError for anything but an integer in [low, high]."""
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise impossible(name, value, f"a whole number from {low} to {high}")


def _stop_strings(stop: object) -> tuple[str, ...]:
    if stop is None:
        return ()
    given = (stop,) if isinstance(stop, str) else stop
    if not isinstance(given, Sequence) or isinstance(given, bytes) or not all(isinstance(s, str) for s in given):
        raise impossible("stop", stop, "a string or a list of strings")
    if not all(0 < len(s) <= MAX_STOP_CHARS for s in given):
        which = "stop" if isinstance(stop, str) else "each of stop"
        wrong = next(len(s) for s in given if not 0 < len(s) <= MAX_STOP_CHARS)
        raise ParameterError(f"{which} must have 1 to {MAX_STOP_CHARS} characters, not {wrong}.", param="stop")
    if len(given) > MAX_STOPS:
        raise ParameterError(f"stop holds {len(given)} strings; the maximum is {MAX_STOPS}.", param="stop")
    return tuple(given)


def _token_ids(name: str, ids: object, limit: int) -> tuple[int, ...]:
    if ids is None:
        return ()
    if not isinstance(ids, Sequence) or isinstance(ids, str | bytes) or not all(_is_token(i) for i in ids):
        raise impossible(name, ids, "a list of token ids")
    if len(ids) > limit:
        raise ParameterError(f"{name} holds {len(ids)} token ids; the maximum is {limit}.", param=name)
    return tuple(ids)


def _is_token(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAX_TOKEN_ID


def _biases(bias: object) -> Mapping[int, float]:
    if bias is None:
        return MappingProxyType({})
    if not isinstance(bias, Mapping) or not all(_is_token(token) for token in bias):
        raise impossible("logit_bias", bias, "a mapping from token ids to numbers")
    if len(bias) > MAX_BIASED_TOKENS:
        raise ParameterError(
            f"logit_bias holds {len(bias)} tokens; the maximum is {MAX_BIASED_TOKENS}.", param="logit_bias"
        )
    for value in bias.values():
        _number("logit_bias", value, -100, 100)
    return MappingProxyType(dict(bias))
