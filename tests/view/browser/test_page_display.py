"""Fragments in a real Chromium: nothing runs, nothing leaks, themes are followed, and axe finds nothing."""

from dataclasses import replace

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import BrowserContext, Page

from repl_rl.trajectory import LineKind
from repl_rl.view.display import group_html, trajectory_html, transcript_html
from tests.view.browser.conftest import STORED
from tests.view.conftest import failed_trajectory, make_trajectory, solved_trajectory
from tests.view.fragments import HOSTILE
from tests.view.test_display import hostile_trajectory

pytestmark = pytest.mark.slow

GROUND = "getComputedStyle(document.querySelector('.repl-rl')).backgroundColor"
GROUNDS = {"light": "rgb(255, 255, 255)", "dark": "rgb(27, 31, 37)"}


def show(browser: BrowserContext, *fragments: str, body: str = "", scheme: str = "light", width: int = 1200) -> Page:
    page = browser.new_page()
    page.set_viewport_size({"width": width, "height": 800})
    page.emulate_media(color_scheme="dark" if scheme == "dark" else "light")
    ground = "#ffffff" if scheme == "light" else "#111111"
    page.set_content(
        "<!doctype html><html lang='en'><meta charset='utf-8'><meta name='viewport' content='width=device-width'>"
        f"<title>outputs</title><style>body {{ background: {ground}; }}</style>"
        f"<body {body}><main><h1>Outputs</h1><h2>One</h2>{''.join(fragments)}</main></body></html>"
    )
    return page


def fragments() -> list[str]:
    """One of each kind, with folds, errors, chips of all shades, and several of one kind in a page."""
    typed = [(f" f({n})\n", LineKind.STATEMENT, None, "x\n>>>") for n in range(75)]
    made = make_trajectory("long", "q\n" * 12, typed)
    shades = tuple(-0.05 * 4 ** (index % 5) if mask else 0.0 for index, mask in enumerate(made.sampled_mask))
    return [
        trajectory_html(replace(made, logprobs=shades)),
        trajectory_html(failed_trajectory()),
        group_html([solved_trajectory(), failed_trajectory(), solved_trajectory()]),
        transcript_html(made.prompt, failed_trajectory().lines, pending=" x\n", note="line 3 runs"),
    ]


@pytest.mark.parametrize(("scheme", "width"), [("light", 390), ("dark", 1200)])
def test_axe_finds_nothing(browser: BrowserContext, scheme: str, width: int) -> None:
    page = show(browser, *fragments(), trajectory_html(hostile_trajectory()), scheme=scheme, width=width)
    page.evaluate("document.querySelectorAll('details').forEach(element => element.open = true)")
    assert page.evaluate("document.documentElement.scrollWidth") == width
    page.eval_on_selector("main", f"main => main.style.color = '{'#000' if scheme == 'light' else '#eee'}'")
    found = Axe().run(page)
    assert [(rule["id"], rule["impact"], rule["nodes"][0]["html"][:200]) for rule in found.response["violations"]] == []
    checked = {rule["id"] for rule in found.response["passes"]}
    assert {"color-contrast", "scrollable-region-focusable", "summary-name", "td-headers-attr"} <= checked
    page.close()


@pytest.mark.parametrize(("body", "scheme", "ground"), STORED["themes"])
def test_the_notebooks_theme_goes_before_the_browsers(
    browser: BrowserContext, body: str, scheme: str, ground: str
) -> None:
    page = show(browser, trajectory_html(solved_trajectory()), body=body, scheme=scheme)
    assert page.evaluate(GROUND) == GROUNDS[ground]
    page.close()


def test_nothing_that_anybody_wrote_runs(browser: BrowserContext) -> None:
    made = hostile_trajectory()
    errors: list[str] = []
    page = browser.new_page()
    page.on("pageerror", lambda error: errors.append(str(error)))
    counter = "<script>window.hits = 0; function hit() { window.hits += 1 }</script>"
    for html in (
        trajectory_html(made, token_texts=lambda ids: [HOSTILE] * len(ids)),
        group_html([made, made]),
        transcript_html(HOSTILE, made.lines, pending=HOSTILE, note=HOSTILE),
    ):
        page.set_content(f"<!doctype html><body><p></p>{counter}<main>{html}</main>")
        page.evaluate("document.querySelectorAll('details').forEach(element => element.open = true)")
        assert page.evaluate("window.hits") == 0
        assert page.locator("main :is(script, img, svg, b)").count() == 0
    page.set_content(f"<!doctype html><body>{counter}<img src=x onerror=hit()>")
    page.wait_for_function("window.hits === 1")
    assert errors == []
    page.close()
