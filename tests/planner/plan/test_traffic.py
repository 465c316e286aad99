"""A load becomes a few kinds of requests that represent all of them."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from twofold.bench.load.lengths import Fixed, parse_lengths
from twofold.bench.load.synthetic import LoadPlan, SharedPrefix
from twofold.core.errors import ParameterError
from twofold.planner.plan.traffic import EDGES, Traffic
from twofold.planner.simulate.jobs import prompt_history

REQUESTS = st.lists(
    st.tuples(st.integers(2, 5000), st.floats(0, 0.99), st.integers(2, 500)).map(
        lambda each: (each[0], int(each[0] * each[1]), each[2])
    ),
    min_size=1,
    max_size=300,
)


def planned(**others: object) -> Traffic:
    load = LoadPlan(rate=4.0, requests=1000, kind="constant", **others)  # type: ignore[arg-type]
    return Traffic.of(load.load(prompt_history, 0))


def test_equal_requests_are_one_kind() -> None:
    traffic = planned(input_tokens=Fixed(1000), output_tokens=Fixed(11))
    (kind,) = traffic.kinds
    assert (kind.share, kind.prompt, kind.cached, kind.output) == (1.0, 1000, 0, 11)
    assert traffic.longest == 1011
    assert traffic.decoded == 10
    assert traffic.rate == pytest.approx(4.0)


@settings(max_examples=60)
@given(REQUESTS)
def test_kinds_have_the_means_of_the_requests(requests: list[tuple[int, int, int]]) -> None:
    traffic = Traffic.of_requests(1.0, requests)
    assert sum(kind.share for kind in traffic.kinds) == pytest.approx(1)
    assert len(traffic.kinds) < len(EDGES)
    for column, mean in (
        (0, traffic.mean(kind.prompt for kind in traffic.kinds)),
        (1, traffic.mean(kind.cached for kind in traffic.kinds)),
        (2, traffic.mean(kind.output for kind in traffic.kinds)),
    ):
        assert mean == pytest.approx(sum(each[column] for each in requests) / len(requests), abs=1.01)
    assert all(0 <= kind.cached < kind.prompt for kind in traffic.kinds)
    assert traffic.longest == max(prompt + output for prompt, _, output in requests)


def test_longer_completions_count_more_in_the_mean_context() -> None:
    traffic = Traffic.of_requests(1.0, [(100, 0, 2), (1000, 0, 1001)])
    assert traffic.context == pytest.approx((1 * 101 + 1000 * 1500.5) / 1001, abs=1)


def test_shared_pieces_are_cached_from_the_second_prompt_on() -> None:
    traffic = planned(input_tokens=Fixed(100), shared=SharedPrefix(0.5), output_tokens=Fixed(5))
    assert traffic.cached_share == pytest.approx(0.5 * 999 / 1000, abs=0.01)


def test_a_prompt_that_is_cached_whole_still_computes_its_last_token() -> None:
    traffic = planned(input_tokens=Fixed(100), shared=SharedPrefix(1.0), output_tokens=Fixed(5))
    assert min(kind.new for kind in traffic.kinds) == 1


def test_many_groups_share_little() -> None:
    traffic = planned(input_tokens=Fixed(100), shared=SharedPrefix(0.5, groups=100_000), output_tokens=Fixed(5))
    assert traffic.cached_share < 0.01


def test_the_longest_prompts_are_kinds_of_their_own() -> None:
    traffic = planned(input_tokens=parse_lengths("lognormal:1000,1.0", "x"), output_tokens=Fixed(5))
    news = [kind.new for kind in traffic.kinds]
    assert news == sorted(news)
    assert news[-1] > 4 * traffic.mean(news)
    assert traffic.kinds[-1].share == pytest.approx(0.005)


@pytest.mark.parametrize(
    ("requests", "word"), [([], "no requests"), ([(10, 0, 1)], "one token")], ids=["none", "one token"]
)
def test_what_cannot_be_planned_for(requests: list[tuple[int, int, int]], word: str) -> None:
    with pytest.raises(ParameterError, match=word):
        Traffic.of_requests(1.0, requests)


def test_requests_that_arrive_at_once_have_no_rate() -> None:
    load = LoadPlan(rate=float("inf"), requests=10, kind="constant")
    with pytest.raises(ParameterError, match="arrive at once"):
        Traffic.of(load.load(prompt_history, 0))
