from __future__ import annotations

from twofold.bench.draw.chart import Axis, Chart, Dots, Guide, Label, Line, Mark
from twofold.bench.draw.svg import PlacedText, labels, lay_out


def placed(*marks: Mark) -> list[PlacedText]:
    chart = Chart("t", marks, Axis(low=0, high=10), Axis(low=0, high=10))
    return list(labels(marks, lay_out(chart, 640, 300)))


def test_a_label_is_on_the_side_of_its_point_that_no_curve_crosses() -> None:
    (alone,) = placed(Label(5, 5, "a point"))
    (rising,) = placed(Line([(0, 0), (10, 10)]), Label(5, 5, "a point"))
    (falling,) = placed(Line([(0, 10), (10, 0)]), Label(5, 5, "a point"))
    assert not alone.to_left
    assert rising.to_left
    assert not falling.to_left


def test_the_text_of_a_guide_avoids_curves() -> None:
    guide = Guide("y", 5, "objective 50 ms")
    (alone,) = placed(guide)
    (crossed,) = placed(Line([(7, 5.2), (10, 5.4)]), Dots([(10, 5.4)]), guide)
    assert alone.to_left
    assert crossed.box[2] < alone.box[0]


def test_the_outline_of_a_guides_words_hides_no_curve_at_the_top() -> None:
    """For example the ridge of a roofline, whose roof is the upper end of the plot."""
    (words,) = placed(Line([(0, 0), (5, 10), (10, 10)]), Guide("x", 5, "ridge 295"))
    (alone,) = placed(Guide("x", 5, "ridge 295"))
    assert words.y > alone.y


def test_labels_of_the_same_point_do_not_lie_on_each_other_and_the_rest_are_omitted() -> None:
    found = placed(*[Label(5, 5, f"point {index}") for index in range(40)])
    assert 1 < len(found) < 40
    boxes = sorted(each.box for each in found)
    for first in boxes:
        for other in boxes:
            apart = first[2] <= other[0] or other[2] <= first[0] or first[3] <= other[1] or other[3] <= first[1]
            assert apart or first == other


def test_labels_stay_in_the_plot() -> None:
    chart = Chart("t", (), Axis(low=0, high=10), Axis(low=0, high=10))
    layout = lay_out(chart, 640, 300)
    for words in placed(Label(10, 10, "upper right"), Label(0, 0, "lower left"), Guide("x", 10, "end")):
        left, top, right, bottom = words.box
        assert layout.left <= left < right <= layout.right
        assert layout.top <= top < bottom <= layout.bottom
