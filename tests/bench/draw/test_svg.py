from __future__ import annotations

import math
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from twofold.bench.draw.chart import Axis, Chart, Dots, Guide, Kind, Line, Mark, Span, Spans, StepLine
from twofold.bench.draw.form import duration
from twofold.bench.draw.svg import svg

SVG = "{http://www.w3.org/2000/svg}"
POINTS = [(0.0, 1.0), (1.0, 3.0), (2.0, 2.0)]
values = st.floats()
points = st.lists(st.tuples(values, values), max_size=8)


def drawn(chart: Chart) -> ElementTree.Element:
    return ElementTree.fromstring(svg(chart, standalone=True))


def paths(chart: Chart, kind: str) -> list[str]:
    found = drawn(chart).iter(f"{SVG}path")
    return [path.attrib["d"] for path in found if kind in path.attrib["class"].split()]


def words(chart: Chart) -> list[str]:
    return ["".join(text.itertext()) for text in drawn(chart).iter(f"{SVG}text")]


def test_a_line_goes_up_where_values_do() -> None:
    chart = Chart("t", (Line([(0, 0), (10, 100)]),), Axis(low=0, high=10), Axis(low=0, high=100))
    (path,) = paths(chart, "line")
    (x0, y0), (x1, y1) = ([float(part) for part in place.split()] for place in path[1:].split("L"))
    assert x0 < x1
    assert y0 > y1


def test_steps_hold_their_value_until_the_next() -> None:
    (path,) = paths(Chart("t", (StepLine(POINTS),)), "line")
    assert [sign for sign in path if sign.isalpha()] == list("MHVHV")


def test_a_curve_has_a_hole_where_a_value_is_infinite() -> None:
    points = [(0, 1), (1, 2), (2, math.inf), (3, 2), (4, 1)]
    assert len(paths(Chart("t", (Line(points),)), "line")) == 2
    assert len(paths(Chart("t", (Line([(0, 1), (1, math.inf)]),)), "line")) == 1
    assert paths(Chart("t", (Line([(0, math.nan)]),)), "line") == []


def test_titles_ticks_labels_notes_and_the_legend_are_there() -> None:
    chart = Chart(
        "A title",
        (Line(POINTS, "one", 0), Dots(POINTS, "one", 0), Line(POINTS, "two", 1), Guide("y", 2, "limit")),
        Axis("across", form=duration),
        Axis("up"),
        "A note.",
    )
    found = words(chart)
    assert {"A title", "A note.", "across", "up", "two", "limit", "500 ms", "2 s"} <= set(found)
    assert found.count("one") == 1


def test_dots_and_spans_show_their_titles_on_hover() -> None:
    marks: tuple[Mark, ...] = (
        Dots([(0, 1)], titles=["dot"]),
        Spans([Span(0, 0, 1, "span")]),
    )
    titles = {title.text for title in drawn(Chart("t", marks)).iter(f"{SVG}title")}
    assert titles == {"dot", "span"}


def test_rows_of_a_timeline_go_down() -> None:
    chart = Chart("t", (Spans([Span(0, 0, 1), Span(1, 1, 2)]),), y=Axis(downwards=True))
    boxes = [box for box in drawn(chart).iter(f"{SVG}rect") if box.attrib["class"].startswith("span")]
    assert [float(box.attrib["y"]) for box in boxes] == sorted(float(box.attrib["y"]) for box in boxes)


@pytest.mark.parametrize("name", ['<script>alert("1")</script>', "a & b ' c", "null \x00 and \ud800 half"])
def test_names_are_escaped(name: str) -> None:
    chart = Chart(name, (Dots([(1, 1)], name, titles=[name]),), Axis(name), Axis(name), name)
    text = svg(chart)
    assert "<script" not in text
    drawn(chart)


def test_many_points_make_a_small_picture() -> None:
    assert len(svg(Chart("t", (Line([(x / 100, x % 97) for x in range(30_000)]),)))) < 40_000


@settings(max_examples=30)
@given(points, points, st.sampled_from(("linear", "log")), st.sampled_from(("linear", "log")), st.booleans())
def test_any_data_draws(
    some: list[tuple[float, float]], others: list[tuple[float, float]], x: Kind, y: Kind, tight: bool
) -> None:
    marks: tuple[Mark, ...] = (
        Line(some, "a"),
        StepLine(others, "b", 9),
        Dots(some),
        Spans([Span(a, b, a) for a, b in some]),
        *(Guide("x", a) for a, _ in some),
    )
    chart = Chart("any", marks, Axis(kind=x, tight=tight), Axis(kind=y, tight=tight))
    drawn(chart)
    assert "nan" not in svg(chart)
