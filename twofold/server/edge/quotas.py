"""Quotas of keys: requests, tokens and bytes per minute, concurrent requests, KV tokens.

Pure bookkeeping; ``now`` is an argument. Rates are token buckets that hold a minute's worth and fill evenly, so a burst
up to the limit passes at once. For each request:

    use = quotas.enter(name, quota, now, size)    takes one request and the bytes of its body, before the body is read
    use.reserve(tokens, kv_tokens, now)           takes the tokens that it can use at most, before it runs
    use.leave(used_tokens, read_bytes, now)       returns the unused ones; further calls do nothing

A body larger than a minute's worth is admitted if the bucket is full, and takes it below zero: further bodies wait
until it has filled again. The account of a key that runs nothing and has full buckets is removed; a new one is equal.
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
"""Delay before a retry if a running request must end first, which may happen at any time."""
SWEPT: Final = 2
"""Accounts that are checked for removal with each request; this bounds their number."""
RATES: Final = {"requests": "requests_per_minute", "tokens": "tokens_per_minute", "bytes": "bytes_per_minute"}
"""Buckets, and the fields of ``Quota`` that limit them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Quota:
    """The limits of a key; None: no limit.

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


UNLIMITED: Final = Quota()


class Bucket:
    """A token bucket of one minute's worth. Its level may fall below zero."""

    def __init__(self, limit: int, now: float) -> None:
        self.limit = limit
        self._level = float(limit)
        self._at = now

    def level(self, now: float) -> float:
        """The amount that can be taken now."""
        if now > self._at:
            self._level = min(self.limit, self._level + (now - self._at) * self.limit / MINUTE_S)
            self._at = now
        return self._level

    def take(self, amount: float, now: float) -> None:
        """Takes an amount; a negative one is returned, up to the limit."""
        self._level = min(self.limit, self.level(now) - amount)

    def wait_s(self, amount: float, now: float) -> float:
        """Seconds until the amount can be taken; 0: now."""
        return max(0.0, (amount - self.level(now)) * MINUTE_S / self.limit)


@dataclass(slots=True)
class KeyQuota:
    """The account of a key: buckets of its limited ``RATES``, and its running requests with their KV tokens."""

    name: str
    quota: Quota
    buckets: dict[str, Bucket]
    running: int = 0
    kv_tokens: int = 0

    @classmethod
    def open(cls, name: str, quota: Quota, now: float) -> KeyQuota:
        """A new account, with full buckets."""
        limits = {rate: getattr(quota, field) for rate, field in RATES.items()}
        return cls(name, quota, {rate: Bucket(limit, now) for rate, limit in limits.items() if limit is not None})

    def unused(self, now: float) -> bool:
        """Whether the key runs nothing and all buckets are full."""
        return not self.running and all(bucket.level(now) >= bucket.limit for bucket in self.buckets.values())

    def check(self, rate: str, amount: int, now: float) -> None:
        """Raises QuotaError if the amount cannot be taken now."""
        wait_s = self.buckets[rate].wait_s(amount, now) if rate in self.buckets else 0.0
        if wait_s > 0:
            raise _exceeded(f"{rate} a minute", self.buckets[rate].limit, wait_s)

    def take(self, rate: str, amount: int, now: float) -> None:
        """Takes an amount, if the rate is limited."""
        if rate in self.buckets:
            self.buckets[rate].take(amount, now)

    def headers(self, now: float) -> tuple[Header, ...]:
        """The state of its limited rates, in OpenAI's headers."""
        return tuple(
            (f"x-ratelimit-{name}-{rate}".encode(), value)
            for rate, bucket in self.buckets.items()
            for name, value in (
                ("limit", b"%d" % bucket.limit),
                ("remaining", b"%d" % max(0, math.floor(bucket.level(now)))),
                ("reset", b"%.3fs" % bucket.wait_s(bucket.limit, now)),
            )
        )


@dataclass(slots=True)
class QuotaUse:
    """The amounts that one request has taken from its key's account. Made by ``Quotas.enter``."""

    account: KeyQuota
    _bytes: int = 0
    _tokens: int = 0
    _kv_tokens: int = 0
    _left: bool = field(default=False)

    def reserve(self, tokens: int, kv_tokens: int, now: float) -> None:
        """Takes the maximum tokens that the request can read and generate, and the maximum KV tokens that it can hold.

        Raises QuotaError if they are not available now, ParameterError if they never will be.
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
        account.check("tokens", tokens, now)
        account.take("tokens", tokens, now)
        account.kv_tokens += kv_tokens
        self._tokens += tokens
        self._kv_tokens += kv_tokens

    def leave(self, used_tokens: int, read_bytes: int, now: float) -> None:
        """Ends the request and returns its KV tokens, and the tokens and bytes that it did not use."""
        if self._left:
            return
        self._left = True
        self.account.running -= 1
        self.account.kv_tokens -= self._kv_tokens
        self.account.take("tokens", used_tokens - self._tokens, now)
        self.account.take("bytes", read_bytes - self._bytes, now)


class Quotas:
    """The accounts of all keys in use."""

    def __init__(self) -> None:
        self._accounts: dict[str, KeyQuota] = {}

    def enter(self, name: str, quota: Quota, now: float, size: int = 0) -> QuotaUse:
        """Admits a request of the key ``name`` with a body of ``size`` bytes, 0 if unknown. Raises QuotaError."""
        self._sweep(now)
        account = self._account(name, quota, now)
        if quota.concurrent is not None and account.running >= quota.concurrent:
            raise _exceeded("requests at a time", quota.concurrent, SLOT_RETRY_S)
        account.check("bytes", min(size or 1, quota.bytes_per_minute or 1), now)
        account.check("requests", 1, now)
        account.take("requests", 1, now)
        account.take("bytes", size, now)
        account.running += 1
        return QuotaUse(account, size)

    def _account(self, name: str, quota: Quota, now: float) -> KeyQuota:
        """The key's account, with new buckets after a change of its quota."""
        account = self._accounts.pop(name, None)
        if account is None:
            account = KeyQuota.open(name, quota, now)
        elif account.quota != quota:
            account.quota, account.buckets = quota, KeyQuota.open(name, quota, now).buckets
        self._accounts[name] = account
        return account

    def _sweep(self, now: float) -> None:
        """Checks the next SWEPT accounts in turn, and removes unused ones."""
        for name in list(islice(self._accounts, SWEPT)):
            account = self._accounts.pop(name)
            if not account.unused(now):
                self._accounts[name] = account  # at the end: others are checked next time


def _exceeded(what: str, limit: int, retry_after_s: float) -> QuotaError:
    return QuotaError(
        f"The key's limit of {limit:,} {what} is reached.",
        retry_after_s=retry_after_s,
        hint=f"Try again in {math.ceil(retry_after_s)} s.",
    )
