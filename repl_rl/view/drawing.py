"""A chart as a static image: SVG text that any page shows, without a script and without plotly.

For notebooks and readmes. Draws curves (solid or dashed lines, and markers) on one linear scale, in the chart's own
colours, which read well on light and dark backgrounds; text and axes are a middle grey. Raises ValueError for a chart
that needs more: stacked areas, a second axis, names along an axis.
"""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from repl_rl.view.charts import GREY, Chart, Trace

_LEFT, _RIGHT, _TOP, _BOTTOM = 56, 16, 34, 40
_DASHES = {"dash": "9 5", "dot": "2 4"}
_FONT = 'font-family="system-ui, sans-serif" font-size="12"'


@dataclass(frozen=True, slots=True)
class _Scale:
    """A linear map from data to pixels."""

    least: float
    most: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        share = (value - self.least) / (self.most - self.least)
        return round(self.start + share * (self.end - self.start), 1)

    def ticks(self, at_most: int = 7) -> list[float]:
        """Round numbers within the scale: multiples of 1, 2 or 5 times a power of ten."""
        span = self.most - self.least
        steps = (factor * 10.0**power for power in range(-9, 10) for factor in (1, 2, 5))
        step = next(step for step in steps if span / step < at_most)
        first, last = math.ceil(self.least / step - 1e-9), math.floor(self.most / step + 1e-9)
        return [round(index * step, 9) for index in range(first, last + 1)]


def chart_svg(chart: Chart, width: int = 720) -> str:
    """The chart as an SVG document, with a title for screen readers. Raises ValueError if it is not made of curves."""
    odd = any(key in trace for trace in chart.data for key in ("stackgroup", "yaxis"))
    if odd or any(isinstance(value, str) for trace in chart.data for value in (*trace["x"], *trace["y"])):
        raise ValueError(f"chart {chart.id!r} is more than curves on one scale; draw it with plotly")
    height = chart.height
    x_axis, y_axis = chart.layout.get("xaxis", {}), chart.layout.get("yaxis", {})
    points = [point for trace in chart.data for point in _points(trace)]
    x = _scale([point[0] for point in points], None, _LEFT, width - _RIGHT)
    y = _scale([point[1] for point in points], y_axis.get("range"), height - _BOTTOM, _TOP)
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}"'
    parts = [f'{head} role="img" {_FONT}>', f"<title>{html.escape(f'{chart.title}. {chart.caption}')}</title>"]
    for value in y.ticks():
        text = f"{value:.0%}" if y_axis.get("tickformat", "").endswith("%") else f"{value:g}"
        line = f'x1="{x.start}" x2="{x.end}" y1="{y(value)}" y2="{y(value)}"'
        parts.append(f'<line {line} stroke="{GREY}" stroke-opacity="0.3"/>')
        parts.append(_text(text, x.start - 8, y(value) + 4, "end"))
    for value in (tick for tick in x.ticks() if tick == int(tick)):
        parts.append(_text(f"{value:g}", x(value), y.start + 18, "middle"))
    parts.append(_text(x_axis.get("title", {}).get("text", ""), (x.start + x.end) / 2, y.start + 35, "middle"))
    for trace in chart.data:
        if "lines" in trace["mode"]:
            moves, pen = [], "M"
            for along, up in zip(trace["x"], trace["y"], strict=True):
                if up is not None:  # A gap in the values is a gap in the line.
                    moves.append(f"{pen}{x(along)} {y(up)}")
                pen = "M" if up is None else "L"
            parts.append(f'<path d="{" ".join(moves)}" fill="none" {_stroke(trace)}/>')
        if "markers" in trace["mode"]:
            fill = html.escape(trace["line"]["color"])
            parts += [f'<circle cx="{x(at[0])}" cy="{y(at[1])}" r="5" fill="{fill}"/>' for at in _points(trace)]
    left = float(_LEFT)
    for trace in chart.data:
        parts.append(f'<line x1="{left}" x2="{left + 14}" y1="14" y2="14" {_stroke(trace)}/>')
        parts.append(_text(html.unescape(trace["name"]), left + 20, 18, "start"))
        left += 46 + 6.5 * len(trace["name"])
    return "\n".join([*parts, "</svg>"])


def _points(trace: Trace) -> list[tuple[float, float]]:
    return [(x, y) for x, y in zip(trace["x"], trace["y"], strict=True) if y is not None]


def _scale(values: Sequence[float], wanted: Sequence[float] | None, start: float, end: float) -> _Scale:
    least, most = wanted or (min(values), max(values))
    return _Scale(least, most if most > least else least + 1, start, end)


def _stroke(trace: Trace) -> str:
    line = trace["line"]
    dash, opacity = _DASHES.get(line.get("dash", ""), "none"), trace.get("opacity", 1)
    look = f'stroke-width="{line.get("width", 2)}" stroke-dasharray="{dash}" stroke-opacity="{opacity}"'
    return f'stroke="{html.escape(line["color"])}" {look}'


def _text(text: Any, x: float, y: float, anchor: str) -> str:
    return f'<text x="{x}" y="{y}" text-anchor="{anchor}" fill="{GREY}">{html.escape(str(text))}</text>'
