"""Charts as stills: every point of a curve is there, and names are text."""

from __future__ import annotations

import re
from xml.etree import ElementTree

from repl_rl.view.charts import BLUE, GREEN, Chart, chart_svg

SVG = "{http://www.w3.org/2000/svg}"


def test_curves_gaps_markers_and_names_are_drawn() -> None:
    steps = {"mode": "lines", "name": "solved &lt;b&gt; $5$", "x": [0, 1, 2, 3], "y": [0.0, None, 0.5, 1.0]}
    held_out = {"mode": "lines+markers", "name": "held-out", "x": [0, 3], "y": [0.2, 0.4], "opacity": 0.5}
    data = [{**steps, "line": {"color": BLUE}}, {**held_out, "line": {"color": GREEN, "dash": "dot"}}]
    layout = {"yaxis": {"tickformat": ".0%", "range": [0, 1]}, "xaxis": {"title": {"text": "step"}}}
    text = chart_svg(Chart("c", "<script>", "What it is.", data, layout, 240))
    svg = ElementTree.fromstring(text)
    labels = {"".join(each.itertext()).strip() for each in svg.iter(f"{SVG}text")}
    assert {"0%", "100%", "step", "solved <b> $5$", "held-out", "<script>", "0", "3"} <= labels
    assert "0.5" not in labels  # of steps
    [curve] = [path for path in svg.iter(f"{SVG}path") if BLUE in path.get("style", "") and path.get("clip-path")]
    assert len(re.findall(r"[ML] ", curve.attrib["d"])) == 3
    dots = [each for each in svg.iter(f"{SVG}use") if GREEN in each.get("style", "")]
    assert len(dots) == 3  # two points, and one in the legend
    assert text == chart_svg(Chart("c", "<script>", "What it is.", data, layout, 240))
    assert not list(svg.iter(f"{SVG}script"))
