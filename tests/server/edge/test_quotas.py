"""Quotas of keys: when they refuse a request, and when they are refilled."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from twofold.core.errors import ParameterError, QuotaError
from twofold.server.edge.quotas import Quota, Quotas, QuotaUse


def test_requests_a_minute_fill_evenly() -> None:
    quotas, quota = Quotas(), Quota(requests_per_minute=6)
    for _ in range(6):
        quotas.enter("a", quota, 0.0)
    with pytest.raises(QuotaError, match="6 requests a minute") as refusal:
        quotas.enter("a", quota, 4.0)
    assert refusal.value.retry_after_s == pytest.approx(6.0)
    quotas.enter("b", quota, 4.0)
    quotas.enter("a", quota, 10.0)
    with pytest.raises(QuotaError):
        quotas.enter("a", quota, 10.0)


def test_concurrent_requests_end() -> None:
    quotas, quota = Quotas(), Quota(concurrent=2)
    first, _ = quotas.enter("a", quota, 0.0), quotas.enter("a", quota, 0.0)
    with pytest.raises(QuotaError, match="at a time"):
        quotas.enter("a", quota, 0.0)
    first.leave(0, 0, 1.0)
    first.leave(0, 0, 1.0)
    quotas.enter("a", quota, 1.0)
    with pytest.raises(QuotaError):
        quotas.enter("a", quota, 1.0)


def test_a_refused_request_takes_nothing() -> None:
    quotas, quota = Quotas(), Quota(requests_per_minute=10, concurrent=1)
    use = quotas.enter("a", quota, 0.0)
    for _ in range(20):
        with pytest.raises(QuotaError):
            quotas.enter("a", quota, 0.0)
    assert dict(use.account.headers(0.0))[b"x-ratelimit-remaining-requests"] == b"9"


def test_bytes_of_bodies_are_counted() -> None:
    quotas, quota = Quotas(), Quota(bytes_per_minute=600)
    use = quotas.enter("a", quota, 0.0, 500)
    with pytest.raises(QuotaError, match="600 bytes a minute") as refusal:
        quotas.enter("a", quota, 0.0, 200)
    assert refusal.value.retry_after_s == pytest.approx(10.0)
    use.leave(0, 100, 0.0)
    quotas.enter("a", quota, 0.0, 500)


def test_after_a_body_beyond_a_minutes_worth_others_wait() -> None:
    quotas, quota = Quotas(), Quota(bytes_per_minute=60)
    quotas.enter("a", quota, 0.0, 180).leave(0, 180, 0.0)
    for size in (0, 1, 60):
        with pytest.raises(QuotaError):
            quotas.enter("a", quota, 120.0, size)
    quotas.enter("a", quota, 180.0, 60)
    chunked = quotas.enter("b", quota, 0.0)
    chunked.leave(0, 90, 0.0)
    with pytest.raises(QuotaError) as refusal:
        quotas.enter("b", quota, 0.0)
    assert refusal.value.retry_after_s == pytest.approx(31.0)


def test_unused_tokens_are_returned() -> None:
    quotas, quota = Quotas(), Quota(tokens_per_minute=600)
    use = quotas.enter("a", quota, 0.0)
    use.reserve(500, 0, 0.0)
    other = quotas.enter("a", quota, 0.0)
    with pytest.raises(QuotaError, match="tokens a minute") as refusal:
        other.reserve(200, 0, 0.0)
    assert refusal.value.retry_after_s == pytest.approx(10.0)
    use.leave(100, 0, 0.0)
    other.reserve(500, 0, 0.0)


def test_use_beyond_the_reservation_delays_later_requests() -> None:
    quotas, quota = Quotas(), Quota(tokens_per_minute=60)
    use = quotas.enter("a", quota, 0.0)
    use.reserve(10, 0, 0.0)
    use.leave(90, 0, 0.0)
    later = quotas.enter("a", quota, 30.0)
    with pytest.raises(QuotaError) as refusal:
        later.reserve(1, 0, 30.0)
    assert refusal.value.retry_after_s == pytest.approx(1.0)


def test_kv_tokens_are_held_until_the_end() -> None:
    quotas, quota = Quotas(), Quota(kv_tokens=1000)
    use, other = quotas.enter("a", quota, 0.0), quotas.enter("a", quota, 0.0)
    use.reserve(0, 800, 0.0)
    with pytest.raises(QuotaError, match="KV tokens"):
        other.reserve(0, 300, 0.0)
    use.leave(0, 0, 5.0)
    other.reserve(0, 300, 5.0)


def test_a_request_beyond_the_whole_quota_is_an_error() -> None:
    use = Quotas().enter("a", Quota(tokens_per_minute=100, kv_tokens=50), 0.0)
    with pytest.raises(ParameterError, match="101"):
        use.reserve(101, 0, 0.0)
    with pytest.raises(ParameterError, match="KV"):
        use.reserve(10, 51, 0.0)


def test_headers_have_limit_remaining_and_reset() -> None:
    quotas = Quotas()
    use = quotas.enter("a", Quota(requests_per_minute=60, tokens_per_minute=600), 0.0)
    use.reserve(300, 0, 0.0)
    assert dict(use.account.headers(0.0)) == {
        b"x-ratelimit-limit-requests": b"60",
        b"x-ratelimit-remaining-requests": b"59",
        b"x-ratelimit-reset-requests": b"1.000s",
        b"x-ratelimit-limit-tokens": b"600",
        b"x-ratelimit-remaining-tokens": b"300",
        b"x-ratelimit-reset-tokens": b"30.000s",
    }
    assert quotas.enter("b", Quota(), 0.0).account.headers(0.0) == ()


def test_accounts_of_idle_keys_are_removed() -> None:
    quotas, quota = Quotas(), Quota(requests_per_minute=60)
    for number in range(1000):
        quotas.enter(f"key-{number}", quota, float(number)).leave(0, 0, float(number))
    assert len(quotas._accounts) < 10
    held = [quotas.enter(f"held-{number}", quota, 2000.0) for number in range(5)]
    for number in range(100):
        quotas.enter(f"late-{number}", quota, 3000.0 + 2 * number).leave(0, 0, 3000.0 + 2 * number)
    assert 5 <= len(quotas._accounts) < 15
    assert len(held) == 5


def test_a_changed_quota_holds_at_once() -> None:
    quotas = Quotas()
    quotas.enter("a", Quota(concurrent=5), 0.0)
    with pytest.raises(QuotaError):
        quotas.enter("a", Quota(concurrent=1), 0.0)


@pytest.mark.parametrize("value", [0, -1, 1.5, True, "9"])
def test_a_quota_is_a_whole_number(value: object) -> None:
    with pytest.raises(ParameterError, match="concurrent"):
        Quota(concurrent=value)  # type: ignore[arg-type]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.floats(0, 5), st.integers(1, 40)), max_size=60))
def test_a_bucket_admits_no_more_than_it_holds_and_refills(steps: list[tuple[float, int]]) -> None:
    """A bucket admits at most its content and its refill, and the announced delay is sufficient."""
    quotas, quota = Quotas(), Quota(tokens_per_minute=100)
    now, taken = 0.0, 0
    for pause, tokens in steps:
        now += pause
        use = quotas.enter("a", quota, now)
        try:
            use.reserve(tokens, 0, now)
        except QuotaError as refusal:
            now += refusal.retry_after_s + 1e-6
            use.reserve(tokens, 0, now)
        use.leave(tokens, 0, now)
        taken += tokens
        assert taken <= 100 + now * 100 / 60 + 1e-3


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 5), max_size=80))
def test_running_requests_never_exceed_the_limit(choices: list[int]) -> None:
    quotas, quota, running = Quotas(), Quota(concurrent=3, kv_tokens=100), list[QuotaUse]()
    for choice in choices:
        if choice < 2 and running:
            running.pop(choice % len(running)).leave(0, 0, 0.0)
            continue
        try:
            use = quotas.enter("a", quota, 0.0)
        except QuotaError:
            assert len(running) == 3
            continue
        use.reserve(0, 20 * (choice % 2), 0.0)
        running.append(use)
        assert len(running) <= 3
