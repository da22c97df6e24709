"""Whatever stands in a run's files is shown as text: nothing of it runs, loads, or becomes an element or an address."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from playwright.sync_api import Page, expect

from repl_rl.trajectory import LineKind, RewardPart, SubCall, ToolCall, Trajectory, write_jsonl
from repl_rl.view.viewer.api import RunApi
from repl_rl.view.viewer.export import export
from tests.view.browser.conftest import Visit
from tests.view.conftest import make_trajectory, train_row, write_metrics
from tests.view.test_viewer_server import viewing

pytestmark = pytest.mark.more

RUN = "window.ran=(window.ran||0)+1"
STORED: list[str] = json.loads(Path(__file__).with_name("payloads.json").read_text(encoding="utf-8"))
PAYLOADS = [text.replace("RUN", RUN) for text in STORED]
EVIL = " ".join(PAYLOADS)
CANARY = "<script>window.ran"
HIDDEN = "\u202e\u2066\u200b\u2028\u2029\x1b\x07"


def evil_trajectory(number: int) -> Trajectory:
    payload = PAYLOADS[number % len(PAYLOADS)]
    typed = [
        (f" {payload}\n", LineKind.EXCEPTION, payload, f"{EVIL}\n>>>"),
        (f" submit_final_answer({payload})\n", LineKind.ANSWER, None, ""),
    ]
    made = make_trajectory(f"{payload}-train-{number}", EVIL, typed, answer=(EVIL, payload), grade=1.0)
    call = ToolCall(EVIL, payload, 0.1)
    asked = SubCall(EVIL, payload, error_name=payload)
    parts = (RewardPart(EVIL, 0.5, 1.0, ((payload, 0.5),)),)
    first = replace(made.lines[0], calls=(call,), subcalls=(asked,), reward_parts=parts)
    return replace(made, lines=(first, made.lines[1]), error=EVIL, reference=EVIL, grade_reason=EVIL)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("evil") / "run"
    folder.mkdir()
    config = {"name": EVIL, "seed": EVIL, "model": {"path": EVIL}, "credit": {"estimator": EVIL}}
    (folder / "config.yaml").write_text(yaml.safe_dump(config, allow_unicode=False), encoding="utf-8")
    rates = dict.fromkeys(PAYLOADS, 0.5)
    evals = [{"kind": "eval", "step": step, "solve_rate": 0.5, "problems": 9, "families": rates} for step in (0, 2)]
    named = {f"errors/{payload}": 0.2 for payload in PAYLOADS}
    named |= {f"rewards/{payload}/mean": 0.1 for payload in PAYLOADS}
    write_metrics(folder, [evals[0], *({**train_row(step), **named} for step in (1, 2)), evals[1]])
    many = [evil_trajectory(number) for number in range(len(PAYLOADS))]
    write_jsonl(folder / "rollouts" / "step_00001.jsonl", [*many, *many])
    write_jsonl(folder / "rollouts" / "step_00002.jsonl", many)
    broken = [{**many[0].to_dict(), "stop_reason": PAYLOADS[0]}, {"task_id": EVIL}, EVIL]
    (folder / "rollouts" / "step_00003.jsonl").write_text("".join(json.dumps(row) + "\n" for row in broken))
    return folder


@pytest.fixture(scope="module")
def served(folder: Path) -> Iterator[str]:
    with viewing(folder) as viewer:
        yield f"http://127.0.0.1:{viewer.port}/"


@pytest.fixture(scope="module")
def exported(folder: Path) -> str:
    export(RunApi(folder), folder.parent / "evil.html")
    return (folder.parent / "evil.html").as_uri()


def harmless(page: Page) -> None:
    """Nothing ran, no element came out of the data, and every address stays within the page."""
    assert page.evaluate("window.ran") is None
    assert page.locator("main :is(script, img, iframe, object, embed, form[action], style, base, meta)").count() == 0
    found = page.evaluate(
        "[...document.querySelectorAll('main *')].flatMap(one => [...one.attributes])"
        ".filter(one => /^on/i.test(one.name)"
        " || (/href$|src|action/i.test(one.name) && !/^(#|data:)/.test(one.value)))"
        ".map(one => one.name + '=' + one.value)"
    )
    assert found == []
    # Plotly draws labels of its own kind of markup: links in them would be such elements.
    assert page.locator("svg a").count() == 0
    text = page.locator("body").inner_text()
    assert [hex(ord(character)) for character in HIDDEN if character in text] == []


def look_around(page: Page) -> None:
    expect(page.locator("#charts .main-svg").first).to_be_visible()
    assert CANARY in page.locator("#name").inner_text()
    expect(page.locator("#table tbody tr").first).to_be_visible()
    assert CANARY in page.locator("#table .task a").all_inner_texts()[0]
    assert CANARY in page.locator("#notes").inner_text()
    harmless(page)
    page.locator("#curves-buttons").get_by_role("link", name="Show all").click()
    expect(page.locator("#charts .main-svg:first-child")).to_have_count(page.locator("#charts figure").count())
    assert CANARY in page.locator("#families").inner_text()
    harmless(page)
    for name in ("error", "family", "stop", "status"):
        assert page.locator(f"#filter-{name} option").count() > 1


def look_into(page: Page) -> None:
    """Every trajectory of a step, its tokens and both other views."""
    page.locator("#filter-step").fill("2")
    expect(page.locator("#count")).to_have_text(f"{len(PAYLOADS)}, shown: 1 to {len(PAYLOADS)}")
    page.locator("#table a.open").first.click()
    for number in range(len(PAYLOADS)):
        expect(page.locator("#pane .facts-line")).to_contain_text(f"#{number} in its file")
        page.locator("#pane .row.acted .mark").first.click()
        expect(page.locator(".strip .token").first).to_be_visible()
        assert CANARY in page.locator(".strip > p").first.inner_text()
        assert CANARY in page.locator(".strip .paid").inner_text()
        assert CANARY in page.locator("#pane .verdict").inner_text()
        harmless(page)
        page.keyboard.press("g")
        expect(page.locator("#pane .column .row").first).to_be_visible()
        page.keyboard.press("s")
        expect(page.locator("#pane .diff")).to_be_visible()
        harmless(page)
        page.keyboard.press("t")
        page.keyboard.press("j")


@pytest.mark.parametrize("where", ["served", "exported"])
def test_nothing_in_a_run_runs(visit: Visit, request: pytest.FixtureRequest, where: str) -> None:
    page = visit(request.getfixturevalue(where))
    look_around(page)
    look_into(page)


def test_nothing_in_an_address_runs(visit: Visit, served: str) -> None:
    page = visit(served, excused="Failed to load resource")
    for name in ("open", "q", "step", "task", "family", "error", "with", "sort", "mode", "line", "curves"):
        page.evaluate("([name, value]) => location.hash = new URLSearchParams([[name, value]])", [name, EVIL])
        page.wait_for_load_state("networkidle")
        expect(page.locator("#table-problem, #pane [role=alert], #table tbody tr").first).to_be_attached()
        harmless(page)
