"""A real Chromium on the real viewer. What a page may not do (errors, requests elsewhere) is checked for every page."""

import base64
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from playwright.sync_api import BrowserContext, Page, expect, sync_playwright

from repl_rl.trajectory import LineKind, RecordedCell, StopReason, SubCall, ToolCall, Trajectory, write_jsonl
from tests.view.conftest import failed_trajectory, make_trajectory, solved_trajectory, write_run
from tests.view.test_viewer_server import Viewer, viewing

FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"]
FLAGS += ["--disable-component-update", "--disable-sync"]
TRAINED = 12
TWO_PIXELS = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAIAAAABCAIAAAB7QOjdAAAADUlEQVR4nGP4z8AARAAI/gH/xp559wAAAABJRU5ErkJggg=="
)
"""A PNG file, 2 wide and 1 high."""
LONG_ID, LONG_LINES = "train-13-1", 10_000
Visit = Callable[..., Page]
STORED = yaml.safe_load(Path(__file__).with_name("page.yaml").read_text(encoding="utf-8"))
expect.set_options(timeout=200_000)


@pytest.fixture(scope="module")
def browser(chromium: str) -> Iterator[BrowserContext]:
    """One for each module and not for the session: an open Playwright keeps an event loop running in this thread, and
    tests elsewhere start their own. Its pages share a cache, or each would compile plotly anew."""
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=chromium, args=FLAGS)
        context = started.new_context()
        context.set_default_timeout(200_000)
        yield context
        started.close()


@pytest.fixture
def problems() -> list[str]:
    """What pages of this test did wrong. A test that expects something of it takes it out."""
    return []


@pytest.fixture
def visit(browser: BrowserContext, problems: list[str]) -> Iterator[Visit]:
    """Opens an address in a page of its own. Problems that say `excused` are what the test is about."""
    pages: list[Page] = []

    def opened(address: str, width: int = 1280, height: int = 900, scheme: str = "light", excused: str = "-") -> Page:
        def note(problem: str) -> None:
            if excused not in problem:
                problems.append(problem)

        page = browser.new_page()
        pages.append(page)
        page.set_viewport_size({"width": width, "height": height})
        page.emulate_media(color_scheme="dark" if scheme == "dark" else "light")
        home = address.partition("#")[0]
        page.on("console", lambda message: note(f"console {message.type}: {message.text}"))
        page.on("pageerror", lambda error: note(f"uncaught: {error}"))
        page.on("dialog", lambda dialog: note(f"dialog: {dialog.message}"))
        page.on("request", lambda request: _is_inside(request.url, home) or note(f"request: {request.url}"))
        page.goto(address)
        return page

    yield opened
    for page in pages:
        page.close()
    assert problems == []


def _is_inside(url: str, home: str) -> bool:
    return url == home or url.startswith(("data:", "blob:")) or (home.startswith("http") and url.startswith(home))


def step_of(step: int) -> list[Trajectory]:
    """Two groups of four, half of each solved."""
    names = [f"gcd-train-{step}-{number}" for number in (1, 2)]
    return [make(name) for name in names for make in (failed_trajectory, solved_trajectory) * 2]


def aborted_trajectory() -> Trajectory:
    typed = [(" look('gcd')\n", LineKind.EXPRESSION, None, "'a divisor'\n>>>")]
    made = make_trajectory("gcd-train-13-1", "Look it up.", typed, stop=StopReason.ABORTED)
    calls = (ToolCall("look", None, 0.012), ToolCall("look", "TimeoutError", 1.5))
    cells = (RecordedCell("look('gcd')", "'a divisor'\n", (TWO_PIXELS,)),)
    first = SubCall("Which?", "this one", tokens=7, duration_s=0.25)
    asked = (first, SubCall("Sure?", "yes", tokens=1))
    line = replace(made.lines[0], calls=calls, subcalls=asked, cells=cells)
    return replace(made, lines=(line,), error="the kernel went away")


def long_trajectory() -> Trajectory:
    typed = [(f" x = {number}\n", LineKind.STATEMENT, None, ">>>") for number in range(LONG_LINES)]
    return make_trajectory("long-train-1", "Count.", typed, stop=StopReason.MAX_LINES)


@pytest.fixture(scope="session")
def shown_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """122 trajectories: 12 steps of 2 groups of 4, evaluations at steps 0 and 24, a failure, and a very long one."""
    folder = tmp_path_factory.mktemp("shown") / "quickstart"
    write_run(folder)
    for step in range(1, TRAINED + 1):
        write_jsonl(folder / "rollouts" / f"step_{step:05d}.jsonl", step_of(step))
    write_jsonl(folder / "rollouts" / "step_00013.jsonl", [aborted_trajectory(), long_trajectory()])
    return folder


@pytest.fixture(scope="session")
def viewer(shown_folder: Path) -> Iterator[Viewer]:
    """For tests that only look."""
    with viewing(shown_folder) as started:
        started.until("/api/run", lambda run: run["index"]["complete"])
        yield started


@pytest.fixture(scope="session")
def address(viewer: Viewer) -> str:
    return f"http://127.0.0.1:{viewer.port}/"


def row_texts(page: Page, column: int) -> list[str]:
    """One column of the table, from the top."""
    return [text.strip() for text in page.locator(f"#table tbody tr > :nth-child({column})").all_inner_texts()]


def screen_texts(page: Page, within: str = "#pane .transcript") -> list[str]:
    """Mark and text of every row of a transcript."""
    rows = f"[...document.querySelectorAll('{within} .row:not(.header)')]"
    texts: list[str] = page.evaluate(
        f"{rows}.map(row => row.querySelector('.mark').textContent + row.querySelector('.text').textContent)"
    )
    return texts
