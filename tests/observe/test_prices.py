"""Price sheets: what they say, and what they must not."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path

import pytest

from twofold.core.errors import ParameterError
from twofold.host.settings import parse_toml
from twofold.observe.billing import MachinePrices, PriceSheet, TokenPrices


def sheet(text: str) -> PriceSheet:
    return PriceSheet.of(parse_toml(text))


def decimals(*texts: str) -> list[Decimal]:
    return [Decimal(text) for text in texts]


def test_prices_of_the_cache_follow_that_of_input() -> None:
    found = sheet("[default]\ninput = 3\noutput = 15").prices("any")
    assert found == TokenPrices(*decimals("3", "0.3", "3.75", "3.75", "6", "15", "0.3", "6"))


def test_prices_of_the_cache_may_be_given() -> None:
    text = "[default]\ninput = 2\noutput = 0\ncache_read = 0.04\nof_input = { cache_write_1h = 1.5 }"
    assert sheet(text).prices("any") == TokenPrices(*decimals("2", "0.04", "2.5", "2.5", "3", "0", "0.2", "4"))


def test_models_have_their_own() -> None:
    found = sheet('currency = "EUR"\n[models."a.b"]\nper_hour = 0.5\nwatts = 200\nper_kwh = 0.30\nbusy_share = 0.5')
    assert found.currency == "EUR"
    assert found.prices("a.b") == MachinePrices(*decimals("0.56", "0.5"))
    assert found.prices("other") is None


def test_electricity_alone_is_a_price() -> None:
    assert sheet("[default]\nwatts = 100\nper_kwh = 0.25").prices("m") == MachinePrices(Decimal("0.025"))


def test_tiers_pay_a_part() -> None:
    found = sheet("[tiers]\nflex = 0.4")
    assert {tier: found.factor(tier) for tier in found.tiers} == {
        "default": 1,
        "priority": 2,
        "flex": Decimal("0.4"),
        "batch": Decimal("0.5"),
    }


WRONG = {
    "[default]\ninptu = 1\noutput = 1": ("default.inptu", "is not a known setting", "Did you mean 'input'?"),
    "[default]\noutput = 1": ("default.input", "is missing", "Give input and output, or per_hour."),
    "[default]\nof_input = {}\ninput = 1": ("default.output", "is missing", "Give input and output, or per_hour."),
    "[default]": ("default.input", "is missing", "Give input and output, or per_hour."),
    "[default]\nbusy_share = 1": ("default.per_hour", "is missing", "Give input and output, or per_hour."),
    "[default]\nwatts = 1": ("default.per_kwh", "is missing", "Give both or neither."),
    "[default]\ninput = 1\nper_hour = 1": ("default.per_hour", "exclude each other", "A model has prices of tokens"),
    "[default]\nper_hour = 1\nbusy_share = 0": ("default.busy_share", "must be a number from 0.001", None),
    "[default]\ninput = -1\noutput = 1": ("default.input", "must be a number from 0 to", None),
    "[default]\ninput = 1\noutput = 0.0000001": ("default.output", "at most 6 decimal places", None),
    "[models]\na = 1": ("models.a", "must be a table", None),
    "[tiers]\nfast = 1": ("tiers.fast", "is not a known setting", "Known: batch, default, flex, priority."),
    "[defaults]": ("defaults", "is not a known setting", "Did you mean 'default'?"),
    "[default]\ninput = 1\noutput = 1\ncache_read = 1\nof_input = { cache_read = 1 }": (
        "default.cache_read",
        "is given as a price and in of_input",
        "Give one of them.",
    ),
    "[default]\ninput = 1\noutput = 1\nof_input = { cache_reed = 1 }": (
        "default.of_input.cache_reed",
        "is not a known setting",
        "Did you mean 'cache_read'?",
    ),
}


@pytest.mark.parametrize("text", WRONG)
def test_what_is_wrong_is_named(text: str) -> None:
    param, message, hint = WRONG[text]
    with pytest.raises(ParameterError, match=message) as caught:
        sheet(text)
    assert caught.value.param == param
    assert (caught.value.hint or "").startswith(hint or "")


def test_the_example_in_the_docstring_is_read(tmp_path: Path) -> None:
    import twofold.observe.billing as module  # noqa: PLC0415 - its text is the test

    text = (module.__doc__ or "").split("\n\n", 1)[1].split("\n\nDefault prices")[0]
    path = tmp_path / "prices.toml"
    path.write_text("\n".join(line.strip() for line in text.splitlines()).replace("currency", "\ncurrency"))
    with pytest.raises(ParameterError, match="exclude each other"):
        PriceSheet.of(parse_toml("[models.m]\ninput = 1\nwatts = 2"))
    found = PriceSheet.read(path)
    assert found.prices("my-model") == MachinePrices(Decimal("0.4558"), Decimal("0.6"))
    assert found.factor("flex") == Decimal("0.4")
