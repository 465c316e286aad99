"""A request to an engine: its prompt, its parameters, and its options (urgency, tenant, time limits, cache)."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Final, Literal, TypeAlias, get_args

from twofold.core.errors import ParameterError
from twofold.core.params import (
    MAX_FLOAT,
    MAX_LOGPROBS,
    RequestParams,
    SamplingParams,
    check_choice,
    check_flag,
    impossible,
    known_keywords,
    whole_number,
)
from twofold.core.step import FinishReason, Pooling

TimeToLive = Literal["5m", "30m", "1h", "24h"]
TTL_SECONDS: Final[dict[TimeToLive, float]] = {"5m": 300.0, "30m": 1800.0, "1h": 3600.0, "24h": 86400.0}
STORED_TTL: Final[TimeToLive] = "24h"
"""The pins of this time to live are kept in the KV store on the disk, across restarts, instead of in memory."""
MAX_PINS: Final = 4
MAX_PRIORITY: Final = 1_000
MAX_NAME_CHARS: Final = 256


@known_keywords
@dataclass(frozen=True, slots=True, kw_only=True)
class CachePin:
    """The first ``tokens`` tokens of a prompt stay in the prefix cache for ``ttl`` after their last use."""

    tokens: int
    ttl: TimeToLive = "5m"

    def __post_init__(self) -> None:
        if not isinstance(self.tokens, int) or isinstance(self.tokens, bool) or self.tokens < 1:
            raise ParameterError(f"tokens must be a whole number above 0, not {self.tokens!r:.60}.", param="tokens")
        check_choice("ttl", self.ttl, tuple(TTL_SECONDS))

    @property
    def seconds(self) -> float:
        return TTL_SECONDS[self.ttl]


@known_keywords
@dataclass(frozen=True, slots=True, kw_only=True)
class RequestOptions:
    """How a request is treated beside others. None of it changes its completions.

    priority        requests with a lower number go first; waiting makes every request more urgent
    tenant          the owner of the request: tenants of equal priority share the machine evenly
    tpot_target_s   maximum mean seconds for each token after the first; None: the engine's target
    deadline_s      seconds from arrival to the forced end of the request, with finish reason "deadline"
    queue_limit_s   seconds after arrival at which the request, unless it has begun to run, is refused with a BusyError
    cache_salt      only prompts with the same salt share cached prefixes
    cache_pins      prefixes of the prompt to keep cached; at most 4, ascending
    speculation     draft tokens may be proposed, and computed beside the newest token
    prediction      token ids of the completion that the caller expects, as a source of draft tokens
    timeline        its report lists its steps, and its deltas say when and how their tokens were made
    progress        its caller gets its progress until its first token
    """

    priority: int = 0
    tenant: str = ""
    tpot_target_s: float | None = None
    deadline_s: float | None = None
    queue_limit_s: float | None = None
    cache_salt: str = ""
    cache_pins: tuple[CachePin, ...] = ()
    speculation: bool = True
    prediction: tuple[int, ...] = ()
    timeline: bool = False
    progress: bool = False

    def __post_init__(self) -> None:
        whole_number("priority", self.priority, -MAX_PRIORITY, MAX_PRIORITY)
        for name in ("tenant", "cache_salt"):
            value = getattr(self, name)
            if not isinstance(value, str) or len(value) > MAX_NAME_CHARS:
                raise impossible(name, value, f"text of at most {MAX_NAME_CHARS} characters")
        for name in ("tpot_target_s", "deadline_s", "queue_limit_s"):
            value = getattr(self, name)
            number = isinstance(value, int | float) and not isinstance(value, bool)
            if value is not None and not (number and (0 < value <= MAX_FLOAT or value == float("inf"))):
                raise impossible(name, value, "a number of seconds above 0")
        check_flag("speculation", self.speculation)
        check_flag("timeline", self.timeline)
        check_flag("progress", self.progress)
        pins = self.cache_pins
        if not isinstance(pins, tuple) or not all(isinstance(pin, CachePin) for pin in pins) or len(pins) > MAX_PINS:
            raise impossible("cache_pins", pins, f"a tuple of at most {MAX_PINS} CachePin")
        if any(later.tokens <= earlier.tokens for earlier, later in pairwise(pins)):
            raise ParameterError("cache_pins must ascend in tokens.", param="cache_pins")

    @property
    def cache_key(self) -> str:
        """What prompts must have in common, beside tokens, to share cached prefixes, stored segments and drafts."""
        return self.cache_salt


@dataclass(frozen=True, slots=True)
class PoolingParams(RequestParams):
    """One vector for a text: the mean of its hidden states after the last norm, or the last of them.

    dimensions  the number of values that the caller expects; None: the model's
    normalize   scales the vector to length 1
    """

    pooling: Pooling = "mean"
    dimensions: int | None = None
    normalize: bool = True

    def __post_init__(self) -> None:
        check_choice("pooling", self.pooling, get_args(Pooling))

    def check(self, hidden_size: int) -> None:
        """Raises ParameterError if the model's vectors have another number of values."""
        if self.dimensions not in (None, hidden_size):
            raise ParameterError(
                f"dimensions must be the model's {hidden_size}, not {self.dimensions}: embeddings cannot be truncated.",
                param="dimensions",
                hint="Remove it.",
            )


@dataclass(frozen=True, slots=True)
class ScoringParams(RequestParams):
    """The log-probabilities of a text's tokens, and of the ``alternatives`` most likely tokens at each position."""

    alternatives: int = 0

    def __post_init__(self) -> None:
        whole_number("prompt_logprobs", self.alternatives, 0, MAX_LOGPROBS)


DEFAULT_OPTIONS: Final = RequestOptions()
TextOrTokens: TypeAlias = str | tuple[int, ...]
"""A prompt: its text, or its token ids."""


@dataclass(frozen=True, slots=True)
class DeliveredCompletion:
    """The part of a completion that the caller has from another engine. With a finish reason it has all of it."""

    token_ids: tuple[int, ...] = ()
    finish_reason: FinishReason | None = None


@dataclass(frozen=True, slots=True)
class EngineRequest:
    """A request to an engine, in the same process or in another.

    token_ids   of the prompt
    params      SamplingParams, BeamSearchParams, PoolingParams or ScoringParams
    prompt      the text of the prompt, if the caller gave text
    request_id  unique among the requests of an engine, which chooses one if this is empty
    arrival     seconds on the monotonic clock, which processes of a machine share; None: when the engine gets it
    stream      whether deltas are sent as they are made, or all at the end
    answered    number of tokens at the end of the prompt that begin the completion: its text goes on where theirs ends,
                even within a character
    delivered   the part of each completion that another engine has computed, or nothing: deltas have what follows it,
                and the output has the text and the tokens of all of it, but log-probabilities and times of the rest
                only. Completions that have ended are not computed, and their outputs are empty
    fetch_s     seconds in which it waited for blocks of another replica, before the engine got it
    """

    token_ids: tuple[int, ...]
    params: RequestParams
    options: RequestOptions = DEFAULT_OPTIONS
    prompt: str | None = None
    request_id: str = ""
    arrival: float | None = None
    stream: bool = True
    answered: int = 0
    delivered: tuple[DeliveredCompletion, ...] = ()
    fetch_s: float = 0.0

    @property
    def arrived(self) -> float:
        """``arrival``, which every request in an engine has."""
        assert self.arrival is not None, "an engine's requests have arrived"
        return self.arrival

    @property
    def completions(self) -> int:
        """The number of sequences that are sampled; 1 for requests that sample none."""
        return self.params.answers if isinstance(self.params, SamplingParams) else 1
