"""docs/capacity.md has the tables and plots of the report that lies with them."""

from __future__ import annotations

import importlib.util
from types import ModuleType

import pytest
from pages import ROOT

IMAGES = ROOT / "docs" / "images"


@pytest.fixture
def drawing() -> ModuleType:
    spec = importlib.util.spec_from_file_location("capacity_page", IMAGES / "capacity.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_tables_and_plots_are_those_of_the_report(drawing: ModuleType) -> None:
    report = drawing.load()
    for page in drawing.PAGES:
        text = page.read_text(encoding="utf-8")
        assert text == drawing.filled(text, report), "python docs/images/capacity.py"
        assert "| --- |" in text.partition("<!-- capacity check -->\n")[2].partition("<!-- end -->")[0]
    for name, svg in drawing.pictures(report).items():
        assert (IMAGES / name).read_text(encoding="utf-8") == svg, "python docs/images/capacity.py"


def test_a_chart_shows_each_value_at_its_height(drawing: ModuleType) -> None:
    svg = drawing.chart("<b>", "x", ["1", "2"], {"a": ("#000", [10.0, 5.0])})
    assert "&lt;b&gt;" in svg
    top, middle, bottom = drawing._TOP, drawing._HEIGHT - drawing._BOTTOM, drawing._HEIGHT - drawing._BOTTOM
    heights = [float(part.split('"')[0]) for part in svg.split(' cy="')[1:]]
    expected = [bottom - (bottom - top) * value / 11 for value in (10.0, 5.0)]
    assert heights == pytest.approx(expected, abs=0.06)
    assert middle > heights[1] > heights[0] > top


def test_the_fewest_cores_that_are_enough(drawing: ModuleType) -> None:
    rows = [{"cores_per_gpu": cores, "lines_per_s": lines} for cores, lines in ((1, 60.0), (2, 98.5), (4, 100.0))]
    assert drawing._enough(rows)["cores_per_gpu"] == 2
