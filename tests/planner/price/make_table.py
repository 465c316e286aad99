"""Makes ``twofold/planner/price/table.toml`` from the installed genai-prices.

    python -m tests.planner.price.make_table > twofold/planner/price/table.toml

It keeps what is sold by text tokens on the day it is made: no models for speech or pictures, none that are withdrawn,
and no prices of the past.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from datetime import UTC, date, datetime, time
from decimal import Decimal

from twofold.planner.price.catalog import MAKERS, ApiModel, Rate, RateKind, Tier, read_published

HEADER = """\
# What Anthropic, OpenAI and Google charge for text tokens, in dollars per million, for planner/price/catalog.py;
# tests/planner/price/make_table.py makes it from genai-prices (MIT licence), whose prices are those of the
# providers' pages: platform.claude.com/docs/en/about-claude/pricing, developers.openai.com/api/docs/pricing,
# ai.google.dev/gemini-api/docs/pricing.
"""
NOT_TEXT = ("image", "audio", "tts", "realtime", "live", "transcribe", "omni", "embedding", "banana")
OTHERS_MODELS = {"google": "claude", "openai": "gpt-oss"}
"""Models that a provider sells and another one makes, or that it gives away."""


def kept(model: ApiModel) -> bool:
    """Whether the table has that model."""
    if model.provider not in MAKERS or "output" not in model.lists[-1].rates:
        return False
    other = OTHERS_MODELS.get(model.provider)
    return not any(word in model.id for word in NOT_TEXT) and not (other and model.id.startswith(other))


def moments(model: ApiModel, today: date) -> list[datetime]:
    """Today, and each later day on which a price of the model changes."""
    lists = [*model.lists, *(each for found in model.tiers.values() for each in found)]
    days = {each.start for each in lists if each.start is not None and each.start > today}
    return [datetime.combine(day, time(), UTC) for day in (today, *sorted(days))]


def write(today: date) -> Iterator[str]:
    """The table's lines."""
    catalog = read_published()
    yield HEADER
    yield f'source = "{catalog.source}"'
    yield f"checked = {today}"
    for maker in MAKERS:
        yield f"\n[{maker}]"
        for model in sorted(catalog.models.values(), key=lambda model: model.id):
            if model.provider == maker and kept(model):
                lists = list(price_lists(model, today))
                short = f'"{model.id}" = [{", ".join(lists)}]'
                if len(short) <= 120 and "\n" not in short:
                    yield short
                else:
                    yield f'"{model.id}" = ['
                    yield from (f"    {each}," for each in lists)
                    yield "]"


def price_lists(model: ApiModel, today: date) -> Iterator[str]:
    """The standard lists of a model, and those of its tiers."""
    when = moments(model, today)
    before: Mapping[RateKind, Rate] = {}
    for at in when:
        rates = model.rates(at)
        if rates != before:
            yield listed(rates, at, today)
        before = rates
    for tier in model.known_tiers(when[-1]):
        if tier != "default":
            yield from tier_lists(model, tier, when, today)


def tier_lists(model: ApiModel, tier: Tier, when: list[datetime], today: date) -> Iterator[str]:
    """One line where the tier pays a part of every standard price, else its prices."""
    shares = {share(model.rates(at), model.rates(at, tier)) for at in when}
    if len(shares) == 1 and (only := shares.pop()) is not None:
        yield f'{{ tier = "{tier}", of = {plain(only)} }}'
        return
    lists = [listed(changed(model, at, tier), at, today, tier) for at in when]
    yield from reversed([each for index, each in enumerate(lists) if not index or each != lists[index - 1]])


def changed(model: ApiModel, at: datetime, tier: Tier) -> dict[RateKind, Rate]:
    standard = model.rates(at)
    return {kind: rate for kind, rate in model.rates(at, tier).items() if rate != standard.get(kind)}


def share(standard: Mapping[RateKind, Rate], tier: Mapping[RateKind, Rate]) -> Decimal | None:
    """What part of every standard price the tier's are; None where they are no one part."""
    mine, theirs = ([price for rate in rates.values() for price in numbers(rate)] for rates in (tier, standard))
    if len(mine) != len(theirs) or not all(theirs):
        return None
    part = round(mine[0] / theirs[0], 3)
    return part if all(one == other * part for one, other in zip(mine, theirs, strict=True)) else None


def numbers(rate: Rate) -> tuple[Decimal, ...]:
    return rate.base, *(price for _, price in rate.steps)


def listed(rates: Mapping[RateKind, Rate], at: datetime, today: date, tier: str = "") -> str:
    """A list of prices, and behind it those of longer prompts."""
    fields = [f'tier = "{tier}"'] if tier else []
    fields += [f"from = {at.date()}"] if at.date() > today else []
    found = [table(*fields, *(f"{kind} = {plain(rate.base)}" for kind, rate in rates.items()))]
    for above in sorted({above for rate in rates.values() for above, _ in rate.steps}):
        steps = [(kind, dict(rate.steps)) for kind, rate in rates.items()]
        prices = [f"{kind} = {plain(found[above])}" for kind, found in steps if above in found]
        found.append(table(f"above = {above}", *prices))
    return ",\n    ".join(found)


def table(*fields: str) -> str:
    return f"{{ {', '.join(fields)} }}"


def plain(number: Decimal) -> str:
    return f"{number.normalize():f}"


if __name__ == "__main__":
    sys.stdout.writelines(f"{line}\n" for line in write(datetime.now(UTC).date()))
