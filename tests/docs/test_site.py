"""mkdocs' site: builds without a warning, which names every dead link and every page outside the table of contents."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from pages import ROOT

pytestmark = pytest.mark.more
TOO_WIDE = """() => [...document.querySelectorAll('.md-content *')]
    .filter(each => each.getBoundingClientRect().right > innerWidth + 1)
    .filter(each => !each.closest('pre, .md-typeset__scrollwrap'))
    .map(each => each.textContent.trim().slice(0, 60))"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, ""), done.stdout + done.stderr
    return folder


def test_it_builds_strictly_and_starts_with_the_readme(site: Path) -> None:
    config = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    assert {"omitted_files": "warn", "anchors": "warn"}.items() <= config["validation"].items()
    start = (site / "index.html").read_text(encoding="utf-8")
    assert "Reinforcement learning for models that think" in start
    assert 'href="concepts/"' in start
    assert (site / "studies" / "index.html").is_file()
    assert len(list((ROOT / "docs").glob("*.md"))) <= 25


def colours(css: str) -> list[dict[str, str]]:
    """The colours by name of each block that sets the ground's."""
    blocks = [dict(re.findall(r"--([\w-]+): (#\w+);", block)) for block in re.findall(r"\{([^{}]*)\}", css)]
    return [block for block in blocks if "ground" in block]


def test_it_has_the_colours_of_the_viewer() -> None:
    viewer, site = (
        colours((ROOT / file).read_text(encoding="utf-8"))
        for file in ("repl_rl/view/viewer/page/viewer.css", "docs/images/site.css")
    )
    assert len(viewer) == len(site) == 2, "light and dark"
    for theirs, ours in zip(viewer, site, strict=True):
        assert ours.items() <= theirs.items()
        assert len(ours) > 8


def test_pages_fetch_nothing_and_fit_wide_and_narrow_screens(site: Path) -> None:
    from playwright.sync_api import sync_playwright

    if (chromium := shutil.which("chromium")) is None:
        pytest.skip("there is no Chromium (Debian: apt-get install chromium)")
    fetched: list[str] = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        for width, pattern in ((1280, "c*/index.html"), (390, "**/index.html")):
            page = browser.new_page(viewport={"width": width, "height": 900})
            page.on("request", lambda request: fetched.append(request.url))
            for file in site.glob(pattern):
                page.goto(file.as_uri(), wait_until="domcontentloaded")
                assert page.evaluate(TOO_WIDE) == [], (width, file)
                assert page.evaluate("document.documentElement.scrollWidth") <= width, (width, file)
        browser.close()
    assert [url for url in fetched if not url.startswith("file://")] == []
