from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from twofold.bench.draw.svg import thin

places = st.lists(st.tuples(st.floats(0, 20), st.floats(0, 100)), max_size=60).map(sorted)


@settings(max_examples=40)
@given(places)
def test_each_column_keeps_its_ends_and_extremes(points: list[tuple[float, float]]) -> None:
    kept = thin(points)
    for column in {int(x) for x, _ in points}:
        whole = [y for x, y in points if int(x) == column]
        left = [y for x, y in kept if int(x) == column]
        assert len(left) <= 4
        assert (left[0], left[-1], min(left), max(left)) == (whole[0], whole[-1], min(whole), max(whole))


@settings(max_examples=40)
@given(places)
def test_what_is_kept_keeps_its_order(points: list[tuple[float, float]]) -> None:
    remaining = iter(points)
    assert all(place in remaining for place in thin(points))


def test_a_long_curve_becomes_as_long_as_the_picture_is_wide() -> None:
    assert len(thin([(index / 500, index % 7) for index in range(50_000)])) <= 400
