"""The picture of growth: every curve and limit is drawn, inside the picture."""

from __future__ import annotations

from xml.etree import ElementTree

from benchmarks.growth import Curve, draw

SVG = "{http://www.w3.org/2000/svg}"


def test_every_curve_is_drawn_inside_the_picture() -> None:
    curves = [
        Curve(diagram, "tokens", threads, (1, 8, 64), (3.0 * threads, 70.0, 812.5), (9.0, 90.0, 900.0))
        for diagram in ("prefill", "a < b")
        for threads in (1, 2)
    ]
    picture = ElementTree.fromstring(draw("model & machine", curves))
    _, _, width, height = map(float, picture.attrib["viewBox"].split())
    lines = [line.attrib["points"] for line in picture.iter(f"{SVG}polyline")]
    assert len(lines) == 2 * len(curves)
    for points in lines:
        places = [tuple(map(float, point.split(","))) for point in points.split()]
        assert len(places) == 3
        assert all(0 < x < width and 0 < y < height for x, y in places)
        assert [x for x, _ in places] == sorted({x for x, _ in places})
        assert [y for _, y in places] == sorted((y for _, y in places), reverse=True), "higher rates stand higher"
    texts = [text.text for text in picture.iter(f"{SVG}text")]
    assert "a < b" in texts
    assert any("model & machine" in (text or "") for text in texts)
