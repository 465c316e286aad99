"""What a caller may say about a request beside its prompt and how it is sampled: urgency, owner, time, cache."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Final, Literal

from twofold.core.errors import ParameterError, nearest, told
from twofold.core.params import known_keywords

TimeToLive = Literal["5m", "30m", "1h"]
TTL_SECONDS: Final[dict[TimeToLive, float]] = {"5m": 300.0, "30m": 1800.0, "1h": 3600.0}
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
        if self.ttl not in TTL_SECONDS:
            close = nearest(str(self.ttl), TTL_SECONDS)
            raise ParameterError(
                f"ttl must be 5m, 30m or 1h, not {self.ttl!r:.60}.",
                param="ttl",
                hint=f"Did you mean {close!r}?" if close else None,
            )

    @property
    def seconds(self) -> float:
        return TTL_SECONDS[self.ttl]


@known_keywords
@dataclass(frozen=True, slots=True, kw_only=True)
class RequestOptions:
    """How a request is treated beside others. None of it changes its answer.

    priority        requests of a lower number go first; waiting makes every request more urgent
    tenant          whose request it is: tenants of equal priority share the machine evenly
    tpot_target_s   most seconds for each token after the first; None takes the server's target
    deadline_s      seconds after its arrival when it ends as it stands, with finish reason "deadline"
    queue_limit_s   seconds after its arrival when it is refused with a BusyError, if it has not begun to run
    cache_salt      only prompts of the same salt share cached prefixes
    cache_pins      prefixes of the prompt that shall stay cached; at most 4, ascending
    """

    priority: int = 0
    tenant: str = ""
    tpot_target_s: float | None = None
    deadline_s: float | None = None
    queue_limit_s: float | None = None
    cache_salt: str = ""
    cache_pins: tuple[CachePin, ...] = ()

    def __post_init__(self) -> None:
        if not isinstance(self.priority, int) or isinstance(self.priority, bool) or abs(self.priority) > MAX_PRIORITY:
            raise _impossible("priority", self.priority, f"a whole number from -{MAX_PRIORITY} to {MAX_PRIORITY}")
        for name in ("tenant", "cache_salt"):
            value = getattr(self, name)
            if not isinstance(value, str) or len(value) > MAX_NAME_CHARS:
                raise _impossible(name, value, f"text of at most {MAX_NAME_CHARS} characters")
        for name in ("tpot_target_s", "deadline_s", "queue_limit_s"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int | float) or isinstance(value, bool) or not value > 0):
                raise _impossible(name, value, "a number of seconds above 0")
        self._check_pins()

    def _check_pins(self) -> None:
        pins = self.cache_pins
        if not isinstance(pins, tuple) or not all(isinstance(pin, CachePin) for pin in pins) or len(pins) > MAX_PINS:
            raise _impossible("cache_pins", pins, f"a tuple of at most {MAX_PINS} CachePin")
        if any(later.tokens <= earlier.tokens for earlier, later in pairwise(pins)):
            raise ParameterError("cache_pins must ascend in tokens.", param="cache_pins")


def _impossible(name: str, value: object, wanted: str) -> ParameterError:
    return ParameterError(f"{name} must be {wanted}, not {told(value)}.", param=name)
