"""Quotas of keys: requests, tokens and bytes per minute, concurrent requests, KV tokens.

Pure bookkeeping; ``now`` is an argument. Rates are token buckets that hold a minute's worth and fill evenly, so a
burst up to the limit passes at once. A request goes through in this order:

    visit = quotas.enter(name, quota, now, size)  takes one request and the bytes of its body, before that is read
    visit.reserve(tokens, kv_tokens, now)         takes the most that it can use, before it runs
    visit.leave(used_tokens, read_bytes, now)     gives back what it did not use; more than once does nothing

A body may be larger than a minute's worth: it is let in while nothing is owed, and the next one waits until it is paid.

A key that is at rest with full buckets is forgotten, which is the same as never having been seen.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields
from itertools import islice
from typing import Final

from twofold.core.errors import ParameterError, QuotaError
from twofold.server.edge.refusals import Header

MINUTE_S: Final = 60.0
SLOT_RETRY_S: Final = 1.0
"""When to come again for what comes back as other requests end, which nobody knows exactly."""
SWEPT: Final = 2
"""Keys that are looked at for being at rest with each request, so that there are never many."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Quota:
    """Most of each that a key may use; None: no limit of its own.

    requests_per_minute  POST requests, and lines of batches
    tokens_per_minute    tokens that models read or generate
    bytes_per_minute     bytes of request bodies, uploads included
    concurrent           requests at a time
    kv_tokens            tokens in the KV cache at a time
    """

    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    bytes_per_minute: int | None = None
    concurrent: int | None = None
    kv_tokens: int | None = None

    def __post_init__(self) -> None:
        for limit in fields(self):
            value = getattr(self, limit.name)
            if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
                raise ParameterError(
                    f"{limit.name} must be a whole number above 0, not {value!r:.60}.", param=limit.name
                )


class Bucket:
    """A minute's worth of something, filling evenly. Levels may fall below zero by what is taken anyway."""

    def __init__(self, limit: int, now: float) -> None:
        self.limit = limit
        self._level = float(limit)
        self._at = now

    def level(self, now: float) -> float:
        """What can be taken now."""
        if now > self._at:
            self._level = min(self.limit, self._level + (now - self._at) * self.limit / MINUTE_S)
            self._at = now
        return self._level

    def take(self, amount: float, now: float) -> None:
        """Takes an amount, or gives back a negative one; never above the limit."""
        self._level = min(self.limit, self.level(now) - amount)

    def wait_s(self, amount: float, now: float) -> float:
        """Seconds until that much can be taken; 0 where it can be now."""
        return max(0.0, (amount - self.level(now)) * MINUTE_S / self.limit)


@dataclass(slots=True)
class KeyQuota:
    """What a key has left and has running."""

    name: str
    quota: Quota
    requests: Bucket | None
    tokens: Bucket | None
    bytes: Bucket | None
    running: int = 0
    kv_tokens: int = 0

    @classmethod
    def open(cls, name: str, quota: Quota, now: float) -> KeyQuota:
        """An account that nothing was taken from."""
        rates = (quota.requests_per_minute, quota.tokens_per_minute, quota.bytes_per_minute)
        requests, tokens, data = (None if rate is None else Bucket(rate, now) for rate in rates)
        return cls(name, quota, requests, tokens, data)

    def rests(self, now: float) -> bool:
        """Whether it is as if it had just been opened."""
        buckets = (self.requests, self.tokens, self.bytes)
        return not self.running and all(bucket is None or bucket.level(now) >= bucket.limit for bucket in buckets)

    def headers(self, now: float) -> tuple[Header, ...]:
        """The state of its rates, under the names that OpenAI gives them; what has no limit is left out."""
        rates = ((b"requests", self.requests), (b"tokens", self.tokens), (b"bytes", self.bytes))
        return tuple(header for what, bucket in rates for header in _rate_headers(what, bucket, now))


@dataclass(slots=True)
class QuotaUse:
    """One request's share of its key's account. Made by ``Quotas.enter``."""

    account: KeyQuota
    _bytes: int = 0
    _tokens: int = 0
    _kv_tokens: int = 0
    _left: bool = field(default=False)

    def reserve(self, tokens: int, kv_tokens: int, now: float) -> None:
        """Takes the most tokens that the request can read and draw, and the most KV tokens that it can hold at once.

        Raises QuotaError where they are not there now, ParameterError where they never will be.
        """
        account, quota = self.account, self.account.quota
        for name, amount, limit in (
            ("tokens a minute", tokens, quota.tokens_per_minute),
            ("KV tokens at a time", kv_tokens, quota.kv_tokens),
        ):
            if limit is not None and amount > limit:
                raise ParameterError(
                    f"The request may use {amount:,} tokens, but its key has {limit:,} {name}.",
                    param="max_tokens",
                    hint="Ask for fewer tokens, or shorten the prompt.",
                )
        if quota.kv_tokens is not None and account.kv_tokens + kv_tokens > quota.kv_tokens:
            raise _exceeded("KV tokens at a time", quota.kv_tokens, SLOT_RETRY_S)
        if account.tokens is not None:
            _check(account.tokens, "tokens a minute", tokens, now)
            account.tokens.take(tokens, now)
        account.kv_tokens += kv_tokens
        self._tokens += tokens
        self._kv_tokens += kv_tokens

    def leave(self, used_tokens: int, read_bytes: int, now: float) -> None:
        """Ends the request: what it held goes back, and of tokens and bytes those that it did not use."""
        if self._left:
            return
        self._left = True
        self.account.running -= 1
        self.account.kv_tokens -= self._kv_tokens
        if self.account.tokens is not None:
            self.account.tokens.take(used_tokens - self._tokens, now)
        if self.account.bytes is not None:
            self.account.bytes.take(read_bytes - self._bytes, now)

    def headers(self, now: float) -> tuple[Header, ...]:
        """x-ratelimit-* of its key, for the response."""
        return self.account.headers(now)


class Quotas:
    """The accounts of all keys that are not at rest."""

    def __init__(self) -> None:
        self._accounts: dict[str, KeyQuota] = {}

    def __len__(self) -> int:
        return len(self._accounts)

    def enter(self, name: str, quota: Quota, now: float, size: int = 0) -> QuotaUse:
        """Lets a request of the key ``name`` in, whose body has ``size`` bytes, 0 where that is not known yet.

        Raises QuotaError where its share is used up.
        """
        self._sweep(now)
        account = self._account(name, quota, now)
        if quota.concurrent is not None and account.running >= quota.concurrent:
            raise _exceeded("requests at a time", quota.concurrent, SLOT_RETRY_S)
        if account.bytes is not None:
            _check(account.bytes, "bytes a minute", min(size or 1, account.bytes.limit), now)
        if account.requests is not None:
            _check(account.requests, "requests a minute", 1, now)
            account.requests.take(1, now)
        if account.bytes is not None:
            account.bytes.take(size, now)
        account.running += 1
        return QuotaUse(account, size)

    def headers(self, name: str, now: float) -> tuple[Header, ...]:
        """x-ratelimit-* of a key, for a refusal; nothing where it is at rest."""
        account = self._accounts.get(name)
        return () if account is None else account.headers(now)

    def _account(self, name: str, quota: Quota, now: float) -> KeyQuota:
        """The key's account; a changed quota opens a new one that goes on with what runs."""
        account = self._accounts.pop(name, None)
        if account is None:
            account = KeyQuota.open(name, quota, now)
        elif account.quota != quota:
            _change(account, quota, now)
        self._accounts[name] = account
        return account

    def _sweep(self, now: float) -> None:
        """Forgets the accounts that were used longest ago, where they are at rest."""
        for name in list(islice(self._accounts, SWEPT)):
            account = self._accounts.pop(name)
            if not account.rests(now):
                self._accounts[name] = account  # at the end: others are looked at next time


def _change(account: KeyQuota, quota: Quota, now: float) -> None:
    fresh = KeyQuota.open(account.name, quota, now)
    account.quota, account.requests, account.tokens, account.bytes = quota, fresh.requests, fresh.tokens, fresh.bytes


def _check(bucket: Bucket, what: str, amount: int, now: float) -> None:
    """Raises QuotaError where that much cannot be taken now."""
    wait_s = bucket.wait_s(amount, now)
    if wait_s > 0:
        raise _exceeded(what, bucket.limit, wait_s)


def _exceeded(what: str, limit: int, retry_after_s: float) -> QuotaError:
    return QuotaError(
        f"The key's limit of {limit:,} {what} is reached.",
        retry_after_s=retry_after_s,
        hint=f"Try again in {math.ceil(retry_after_s)} s.",
    )


def _rate_headers(what: bytes, bucket: Bucket | None, now: float) -> tuple[Header, ...]:
    if bucket is None:
        return ()
    return (
        (b"x-ratelimit-limit-" + what, b"%d" % bucket.limit),
        (b"x-ratelimit-remaining-" + what, b"%d" % max(0, math.floor(bucket.level(now)))),
        (b"x-ratelimit-reset-" + what, b"%.3fs" % bucket.wait_s(bucket.limit, now)),
    )
