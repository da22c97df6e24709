"""Charts as stills: every point stands where the numbers say, and what is no curve is refused."""

from __future__ import annotations

from typing import Any
from xml.etree import ElementTree

import pytest

from repl_rl.view.charts import BLUE, Chart, chart_svg

SVG = "{http://www.w3.org/2000/svg}"
PERCENT = {"yaxis": {"tickformat": ".0%", "range": [0, 1]}, "xaxis": {"title": {"text": "step"}}}


def trace(y: list[float | None], **more: Any) -> dict[str, Any]:
    line = {"color": BLUE, "width": 2.25}
    return {"mode": "lines", "name": "solved", "x": list(range(len(y))), "y": y, "line": line, **more}


def drawn(*traces: dict[str, Any], layout: dict[str, Any] | None = None, title: str = "T") -> ElementTree.Element:
    return ElementTree.fromstring(
        chart_svg(Chart("c", title, "What it is.", list(traces), PERCENT if layout is None else layout, 240))
    )


def paths(svg: ElementTree.Element) -> list[str]:
    return [path.attrib["d"] for path in svg.iter(f"{SVG}path")]


def labels(svg: ElementTree.Element) -> list[str]:
    return [text.text or "" for text in svg.iter(f"{SVG}text")]


def test_points_stand_where_the_numbers_say() -> None:
    """720 by 240, margins 56, 16, 34 and 40: x from 56 to 704, y from 200 up to 34."""
    svg = drawn(trace([0.0, 0.5, 1.0]))
    assert paths(svg) == ["M56.0 200.0 L380.0 117.0 L704.0 34.0"]
    assert labels(svg) == ["0%", "20%", "40%", "60%", "80%", "100%", "0", "1", "2", "step", "solved"]
    assert svg.find(f"{SVG}title").text == "T. What it is."  # type: ignore[union-attr]


def test_markers_opacity_and_dashes_are_drawn() -> None:
    held = trace([0.2, 0.4], mode="lines+markers", line={"color": "#123456", "dash": "dot"}, opacity=0.5)
    svg = drawn(held)
    assert [circle.attrib["fill"] for circle in svg.iter(f"{SVG}circle")] == ["#123456", "#123456"]
    [path] = svg.iter(f"{SVG}path")
    assert (path.attrib["stroke-dasharray"], path.attrib["stroke-opacity"]) == ("2 4", "0.5")


def test_one_value_is_enough_and_names_are_text() -> None:
    for y in ([0.3], [0.3, 0.3, 0.3]):
        assert len(paths(drawn(trace(y), layout={}))) == 1
    svg = drawn(trace([0.0, 1.0], name="&lt;b&gt;"), title="<script>")
    assert labels(svg)[-1] == "<b>"
    assert [child.tag for child in svg.iter(f"{SVG}script")] == []


@pytest.mark.parametrize(
    "odd", [trace([1.0, 2.0], stackgroup="kinds"), trace([1.0], yaxis="y2"), {**trace([1.0]), "y": ["gcd"]}]
)
def test_what_is_no_curve_is_refused(odd: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="chart 'c' is more than curves"):
        drawn(odd)
