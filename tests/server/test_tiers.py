"""Service tiers: which tier a request gets, and its options for the scheduler."""

from __future__ import annotations

from itertools import pairwise
from typing import get_args

import pytest

from twofold.api.base import AskedTier, ServiceTier
from twofold.core.errors import ForbiddenError, ParameterError
from twofold.core.request import RequestOptions
from twofold.host.settings import parse_toml
from twofold.observe.billing import TIERS
from twofold.server.admission import BEST_FIRST, MAX_OWN_PRIORITY, STANDARD, Tiers


def test_every_tier_is_known_everywhere() -> None:
    assert set(get_args(ServiceTier)) == {tier.name for tier in STANDARD} == set(BEST_FIRST) == set(TIERS)


def test_tiers_do_not_overlap() -> None:
    ordered = [Tiers.standard().by_name[name].priority for name in BEST_FIRST]
    assert all(after - before > MAX_OWN_PRIORITY for before, after in pairwise(ordered))


ALL: tuple[ServiceTier, ...] = get_args(ServiceTier)


@pytest.mark.parametrize(
    ("asked", "granted", "given"),
    [
        ("auto", ALL, "default"),
        ("auto", ("default", "priority"), "default"),
        ("auto", ("priority",), "priority"),
        ("auto", ("batch", "flex"), "flex"),
        ("priority", ALL, "priority"),
        ("flex", ("flex",), "flex"),
    ],
)
def test_the_chosen_tier(asked: AskedTier, granted: tuple[ServiceTier, ...], given: str) -> None:
    assert Tiers.standard().choose(asked, granted).name == given


def test_requests_without_a_tier_pay_the_plain_price() -> None:
    tiers = Tiers.standard()
    assert TIERS[tiers.choose("auto", ALL).name] == 1


@pytest.mark.parametrize(
    ("asked", "granted", "hint"),
    [
        ("priority", ("flex", "default", "batch"), "It may use default, flex."),
        ("default", ("batch",), "It may only be used for batches."),
        ("auto", ("batch",), "It may only be used for batches."),
        ("auto", (), "It may only be used for batches."),
    ],
)
def test_a_tier_that_is_not_granted_is_refused(asked: AskedTier, granted: tuple[ServiceTier, ...], hint: str) -> None:
    with pytest.raises(ForbiddenError, match=f"may not use the service tier '{asked}'") as caught:
        Tiers.standard().choose(asked, granted)
    assert caught.value.hint == hint


def test_options_of_a_tier() -> None:
    tiers = Tiers.standard()
    asked = RequestOptions(priority=7, tenant="t", cache_salt="s", deadline_s=9.0, queue_limit_s=45.0)
    found = tiers.by_name["flex"].options(asked)
    assert (found.priority, found.tpot_target_s, found.queue_limit_s) == (107, 0.5, 45.0)
    assert (found.tenant, found.cache_salt, found.deadline_s) == ("t", "s", 9.0)
    assert tiers.by_name["priority"].options(asked).queue_limit_s == 30.0
    assert tiers.by_name["batch"].options(RequestOptions()).queue_limit_s is None
    assert tiers.by_name["priority"].options(RequestOptions(tpot_target_s=0.2)).tpot_target_s == 0.2


@pytest.mark.parametrize("priority", [-1, MAX_OWN_PRIORITY + 1])
def test_priorities_outside_of_a_tier_are_refused(priority: int) -> None:
    with pytest.raises(ParameterError, match="priority must be from 0 to 49"):
        Tiers.standard().by_name["default"].options(RequestOptions(priority=priority))


def test_settings_change_tiers() -> None:
    tiers = Tiers.of(parse_toml("[flex]\npriority = 900\ntpot_target_s = 2\nqueue_limit_s = 1.5"))
    flex = tiers.by_name["flex"]
    assert (flex.priority, flex.tpot_target_s, flex.queue_limit_s) == (900, 2.0, 1.5)
    assert tiers.by_name["default"] == Tiers.standard().by_name["default"]


@pytest.mark.parametrize(
    ("text", "param"),
    [
        ("[fast]", "fast"),
        ("[flex]\npriority = 952", "priority"),
        ("[flex]\nqueue_limit_s = 0", "queue_limit_s"),
        ("[flex]\nprice = 1", "price"),
        ("flex = 1", "flex"),
    ],
)
def test_wrong_settings_are_named(text: str, param: str) -> None:
    with pytest.raises(ParameterError) as caught:
        Tiers.of(parse_toml(text))
    assert caught.value.param.endswith(param)
