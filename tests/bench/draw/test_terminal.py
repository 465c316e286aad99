from __future__ import annotations

import math

from hypothesis import given, settings
from hypothesis import strategies as st

from twofold.bench.draw.chart import Axis, Chart, Dots, Guide, Line, StepLine
from twofold.bench.draw.terminal import plot

points = st.lists(st.tuples(st.floats(), st.floats()), max_size=8)
BLANK = "\u2800"


def picture(text: str) -> list[str]:
    return [line.split("┤")[1] for line in text.splitlines() if "┤" in line]


def test_a_rising_line_runs_from_the_lower_left_to_the_upper_right() -> None:
    rows = picture(plot(Chart("t", (Line([(0, 0), (1, 1)]),), Axis(low=0, high=1), Axis(low=0, high=1))))
    assert rows[0][-1] != BLANK
    assert rows[-1][0] != BLANK
    assert rows[0][0] == rows[-1][-1] == BLANK


def test_ticks_and_labels_stand_at_the_ends() -> None:
    chart = Chart("title", (Line([(0, 0), (8, 100)]),), Axis("across", low=0, high=8), Axis("up", low=0, high=100))
    first, *_, axis = plot(chart, width=40).splitlines()
    assert first == "title  (up)"
    assert axis.split() == ["0", "across", "8"]


def test_several_curves_are_numbered_where_they_end() -> None:
    chart = Chart(
        "t", (Line([(0, 0), (1, 1)], "one"), StepLine([(0, 0), (1, 0.5)], "two"), Guide("y", 0.5), Guide("x", 1))
    )
    text = plot(chart)
    assert text.splitlines()[-1].split() == ["1", "one", "2", "two"]
    assert any("1" in row for row in picture(text))
    assert any("2" in row for row in picture(text))


def test_a_hole_is_not_bridged() -> None:
    rows = picture(plot(Chart("t", (Line([(0, 1), (4, math.inf), (8, 1)]),), Axis(low=0, high=8))))
    assert all(row[len(row) // 2] == BLANK for row in rows)


@settings(max_examples=30)
@given(points, points, st.integers(1, 100), st.integers(1, 20))
def test_any_data_fits(
    some: list[tuple[float, float]], others: list[tuple[float, float]], width: int, height: int
) -> None:
    chart = Chart("", (Line(some, "a"), Dots(others, "b"), StepLine(some)), Axis(low=0, high=1), Axis("y"))
    assert len(picture(plot(chart, width=width, height=height))) == max(2, height)
