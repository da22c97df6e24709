import re
from dataclasses import replace

import pytest
from IPython.core.formatters import DisplayFormatter

from repl_rl.trajectory import Branch, Group, LineKind, RecordedCell, StopReason, ToolCall, Trajectory
from repl_rl.view.display import bundle, group_html, trajectory_html, transcript_html
from repl_rl.view.words import is_graded, status
from tests.view.conftest import SESSIONS, failed_trajectory, make_trajectory, solved_trajectory
from tests.view.fragments import HOSTILE, SHOWN, Fragment


def hostile_trajectory() -> Trajectory:
    typed = [
        (f" # {HOSTILE}\n", LineKind.COMMENT, None, f"{HOSTILE}\n>>>"),
        (" x\n", LineKind.EXCEPTION, HOSTILE, HOSTILE),
    ]
    made = make_trajectory(f"t-{HOSTILE}", HOSTILE, typed, answer=(HOSTILE,), grade=1.0)
    calls = (ToolCall(HOSTILE, HOSTILE, 0.01),)
    return replace(made, error=HOSTILE, lines=(replace(made.lines[0], calls=calls), made.lines[1]))


def long_trajectory(lines: int = 10_000) -> Trajectory:
    kinds = (LineKind.STATEMENT, LineKind.EXCEPTION)
    names = (None, "ValueError")
    typed = [(f" f({n})\n", kinds[n % 2], names[n % 2], f"<{n}>\n>>>") for n in range(lines)]
    return make_trajectory("long", "q", typed, stop=StopReason.MAX_LINES)


def test_rows_say_who_wrote_them_and_what_the_lines_were_worth() -> None:
    page = Fragment(trajectory_html(failed_trajectory()))
    assert page.rows[:8] == SESSIONS["failed as a table"]


def drawn_trajectory(*images: bytes) -> Trajectory:
    made = make_trajectory("t", "q", [(" plt.show()\n", LineKind.EXPRESSION, None, ">>>")])
    cells = (RecordedCell("plt.show()", "", images),)
    return replace(made, lines=(replace(made.lines[0], cells=cells),))


def test_images_are_drawn_beside_their_line_while_there_is_room() -> None:
    drawn = drawn_trajectory(b"\x89PNG", b"\x89PNG" * 100_000, b"\x89PNG2")
    html = trajectory_html(drawn)
    assert re.findall(r"<img[^>]*>", html) == [
        '<img src="data:image/png;base64,iVBORw==" alt="what line 1 drew">',
        '<img src="data:image/png;base64,iVBORzI=" alt="what line 1 drew">',
    ]
    assert '<i class="gap">1 image not shown here</i>' in html
    assert "<img" not in group_html([drawn, drawn])
    assert '<i class="gap">3 images not shown here</i>' in group_html([drawn, drawn])
    assert "› >>> plt.show()    [3 images]" in bundle(drawn)["text/plain"].split("\n")
    [row] = [row.split() for row in str(drawn).split("\n") if "plt.show()" in row]
    assert row == ["›", ">>>", "plt.show()", "expression,", "3", "images", "0", "-0.75"]


def test_the_head_holds_verdict_task_and_totals() -> None:
    made = replace(solved_trajectory(), engine_s=0.2, kernel_s=0.05)
    words = Fragment(trajectory_html(made)).words
    assert words.startswith(
        "✓ solved task gcd-heldout-12-18 stopped answer answer 6 graded 1 reward +1.00 lines 7 "
        "tokens 21 typed, 12 interpreter's time 0.3 s (model 0.2 s, interpreter 0.1 s)"
    )
    assert "lines 2, ✗ 1 error tokens" in Fragment(trajectory_html(failed_trajectory())).words
    long_prompt = Fragment(trajectory_html(replace(made, prompt="line\n" * 9 + ">>>")))
    assert "the prompt, 9 rows" in long_prompt.words
    assert len(long_prompt.named("details")) == len(Fragment(trajectory_html(made)).named("details")) + 1


def test_what_nobody_assigned_is_a_dash_and_an_aborted_one_says_why() -> None:
    made = replace(failed_trajectory(credited=False), stop_reason=StopReason.ABORTED, error="the kernel went away")
    page = Fragment(trajectory_html(made))
    assert page.rows[3][4:6] == ["–", "–"]
    assert page.words.startswith("· void task gcd-heldout-12-18 stopped aborted answer 12 failure the kernel went away")
    assert " reward +" not in page.words


def test_tools_that_a_line_called_stand_below_its_kind() -> None:
    made = solved_trajectory()
    calls = (ToolCall("search", None, 0.12), ToolCall("fetch", "KeyError", 0.003))
    lines = (replace(made.lines[0], calls=calls), *made.lines[1:])
    cells = Fragment(trajectory_html(replace(made, lines=lines))).rows[3]
    assert cells[3] == "commentcalled search, 120 mscalled fetch ✗ KeyError, 3 ms"


def test_tokens_are_chips_with_number_shade_and_mask() -> None:
    made = replace(make_trajectory("t", "q", [(" x\n", LineKind.EXPRESSION, None, "1\n>>>")]))
    made = replace(made, logprobs=(-0.05, -0.5, -4.0, 0.0, 0.0))
    page = Fragment(trajectory_html(made, token_texts=lambda ids: [[" ", "x", "\n", "1\n", ">>>"][i] for i in ids]))
    assert page.rows[-2:] == [["› 1 typed", "␣ -0.05 x -0.50 ⏎ -4.00 "], ["‹  interpreter", "1⏎ >>> masked"]]
    chips = [span for span in page.named("span") if (span.get("class") or "").startswith("c ")]
    assert [chip["class"] for chip in chips] == ["c s0", "c s1", "c s4", "c s0", "c s0"]
    assert [chip["title"] for chip in chips] == ["id 0", "id 1", "id 2", "id 3", "id 4"]
    assert "tokens: 3 sampled, 2 masked" in page.words


def test_hostile_text_stays_text_wherever_it_stands() -> None:
    made = hostile_trajectory()
    drawings = {
        "trajectory": (trajectory_html(made, token_texts=lambda ids: [HOSTILE] * len(ids)), 6, 20),
        "group": (group_html([made, replace(made, task_id=HOSTILE)]), 12, 22),
        "tree": (group_html([made, replace(made, branch=Branch(0, 1, 0.5))]), 12, 21),
        "session": (transcript_html(HOSTILE, made.lines, pending=HOSTILE, note=HOSTILE), 6, 9),
    }
    for name, (html, *counts) in drawings.items():
        html.encode("utf-8")
        page = Fragment(html)
        allowed = {"article", "code", "col", "colgroup", "dd", "details", "div", "dl", "dt", "i", "p", "small", "span"}
        allowed |= {"caption", "style", "summary", "table", "tbody", "td", "th", "thead", "tr"}
        assert {tag for tag, _ in page.tags} <= allowed, name
        known = {"aria-label", "aria-level", "class", "colspan", "dir", "lang", "role", "scope", "tabindex", "title"}
        assert {attribute for _, attributes in page.tags for attribute in attributes} <= known, name
        assert (page.text.count(SHOWN), page.text.count("<script>hit()")) == tuple(counts), name
        assert "hit()" not in page.style
        assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u200b\u202e\u2066\ud800-\udfff]", html), name


@pytest.mark.more
def test_ten_thousand_lines_fit_and_what_is_missing_is_counted() -> None:
    html = trajectory_html(long_trajectory())
    assert 800_000 < len(html.encode()) < 1_500_000
    page = Fragment(html)
    typed = [row for row in page.rows if len(row) == 8 and row[0] == "› typed"]
    numbers = [int(row[2]) for row in typed]
    assert numbers[:3] == [1, 2, 3]
    assert numbers[-1] == 10_000
    assert numbers == sorted(set(numbers))
    gap = re.search(r"… ([\d,]+) rows, lines ([\d,]+) to ([\d,]+), ✗ [\d,]+ errors left out here …", page.words)
    assert gap is not None
    first, last = (int(gap[index].replace(",", "")) for index in (2, 3))
    assert numbers == [*range(1, first), *range(last + 1, 10_001)]
    assert re.search(r"… [\d,]+ stretches of tokens left out here …", page.words)
    assert len(numbers) > 800


@pytest.mark.more
def test_ten_thousand_lines_of_nothing_are_many_rows_and_fit_too() -> None:
    html = trajectory_html(make_trajectory("t", "q", [("", LineKind.BLANK, None, "")] * 10_000))
    assert len(html) < 1_500_000
    assert re.search(r"… [\d,]+ rows, lines [\d,]+ to [\d,]+ left out here …", Fragment(html).words)


def test_a_group_has_a_heading_a_row_for_each_and_its_siblings() -> None:
    page = Fragment(group_html([solved_trajectory(), failed_trajectory(), solved_trajectory()]))
    assert page.words.startswith("2 of 3 solved gcd-heldout-12-18 rollout verdict stopped answer graded reward lines")
    assert page.rows[1:3] == [
        ["#1", "✓ solved", "answer", "6", "1", "+1.00", "7", "21 typed, 12 interpreter's", "0.3 s"],
        ["#2", "✗ not solved", "answer", "12", "0", "-0.10", "2, ✗ 1 error", "6 typed, 2 interpreter's", "0.3 s"],
    ]
    assert [article["aria-label"] for article in page.named("article")] == [
        "group of rollouts, 2 of 3 solved",
        *("rollout 1, solved", "rollout 2, not solved", "rollout 3, solved"),
    ]
    assert page.words.count("the prompt, 2 rows") == 3
    assert page.words.count("gcd-heldout-12-18") == 1


@pytest.mark.more
def test_groups_of_several_tasks_of_none_and_of_too_many() -> None:
    void = replace(solved_trajectory("b"), stop_reason=StopReason.UNFINISHED)
    page = Fragment(group_html([solved_trajectory("a"), void]))
    assert page.words.startswith("2 of 2 solved, 1 void 2 tasks")
    assert "#2 · void task b" in page.words
    assert Fragment(group_html([])).words.startswith("0 of 0 solved")
    many = group_html([long_trajectory(300)] * 200)
    assert len(many) < 1_500_000
    assert "… 136 rollouts in the middle left out …" in Fragment(many).words
    assert "#200" in Fragment(many).words


def test_a_session_in_the_making_shows_the_line_that_runs() -> None:
    made = failed_trajectory()
    page = Fragment(transcript_html(made.prompt, made.lines[:1], pending=" x = 1\n", note="line 2 runs"))
    assert page.words.startswith("line 2 runs who text")
    assert page.rows[3][2:] == ["1", "✗ exception: NameError", "-0.10", "-0.75", "–", "4.2 ms"]
    assert page.rows[-1] == ["› typed", ">>> x = 1", "", "running …"]
    assert len(page.rows_of("pending")) == 1
    assert Fragment(transcript_html(">>>", ())).rows[-1] == ["¶ prompt", ">>>"]
    assert not Fragment(transcript_html(">>>", ())).rows_of("pending")


def test_plain_text_has_the_marks_and_what_went_wrong() -> None:
    assert bundle(failed_trajectory())["text/plain"] == SESSIONS["failed as text"]


@pytest.mark.more
def test_plain_text_is_capped_and_safe() -> None:
    text = bundle(long_trajectory())["text/plain"]
    assert len(text) < 151_000
    assert re.search(r"\n  … [\d,]+ characters left out …\n", text)
    assert text.endswith("10,000 lines, 30,000 tokens, 0.3 s")
    hostile = bundle(replace(hostile_trajectory(), task_id="a\n¶ forged", error="b\n¶ forged"))["text/plain"]
    hostile.encode("utf-8")
    assert SHOWN in hostile
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]", hostile)
    assert "\n¶ forged" not in hostile
    many = bundle(Group([long_trajectory(300)] * 40))["text/plain"]
    assert many.startswith("0 of 40 solved, 40 not graded\n\n")
    assert "… 24 rollouts left out …" in many
    assert len(many) < 200_000


@pytest.mark.parametrize("thing", [solved_trajectory(), Group([solved_trajectory(), failed_trajectory()])])
def test_ipython_shows_html_and_text(thing: Trajectory | Group) -> None:
    """Also of a group, though IPython has a printer for lists."""
    data, _ = DisplayFormatter().format(thing)
    html = trajectory_html(thing) if isinstance(thing, Trajectory) else group_html(thing)
    assert data == bundle(thing) == {"text/html": html, "text/plain": data["text/plain"]}


def test_a_trajectory_of_nothing_is_drawn() -> None:
    empty = Trajectory("a", "", (1,), (), (), (), StopReason.ABORTED, error="no kernel")
    assert "· void task a stopped aborted failure no kernel lines 0" in Fragment(trajectory_html(empty)).words
    assert bundle(empty)["text/plain"].startswith("· void  task a\nstopped: aborted  failure: no kernel")


@pytest.mark.parametrize("stop", StopReason)
def test_a_verdict_is_void_where_no_solve_rate_counts_the_session(stop: StopReason) -> None:
    """And nowhere else: not where it broke its environment, which leaves an error, nor where it has no line."""
    broken = Trajectory("a", "", (1,), (), (), (), stop, error="it broke its state", outcome_reward=0.0)
    assert (status(broken) == "void") == (not is_graded(broken))
    assert status(broken) in ("void", "not solved")


def forked() -> list[Trajectory]:
    """Two roots; the first one forked after its first line, and the second one's branch began at the prompt."""
    root, other = failed_trajectory(), solved_trajectory()
    branch = replace(solved_trajectory(), branch=Branch(0, 1, 0.5, "replay"))
    return [root, other, branch, replace(other, branch=Branch(1, 0, 1.0, "anew"))]


def test_a_group_that_forked_is_drawn_as_a_tree() -> None:
    page = Fragment(group_html(forked()))
    tree = [row for row in page.rows if row[0].startswith("#") and ("worth" in row[1] or "worth" in row[2])]
    assert [row[0].split()[0] for row in tree] == ["#1", "#3", "#2", "#4"]
    first, branch, second, _ = tree
    assert first[1:] == ["-0.75worth +0.40", "-0.75worth 0"]  # -0.1, and the mean of 0 and 1 that followed
    assert branch[1] == "by replay after line 0 of #1, weight 0.5└"
    assert branch[2] == "+1.25worth +1.00"
    assert len(branch) == 2 + 7
    assert second[1] == "+1.25worth +1.00"
    titles = [attributes.get("title") or "" for tag, attributes in page.tags if tag == "td"]
    assert "line 0: math.gcd(12, 18)" in titles
    assert sum("forks" in (attributes.get("class") or "") for tag, attributes in page.tags if tag == "td") == 1


def test_no_tree_where_nothing_forked_where_a_parent_is_missing_and_of_too_many_lines() -> None:
    plain, cut = [solved_trajectory(), failed_trajectory()], forked()[2:]
    for group in (plain, cut, [*forked(), long_trajectory(1000)]):
        assert "worth" not in group_html(group)
