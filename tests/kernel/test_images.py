"""What cells draw with matplotlib is kept as PNG files, in every kind of Python kernel, and no more than that."""

import base64
from contextlib import closing
from typing import Any

import pytest
from kernel.conftest import LIMITS, Typed
from kernel.kernelspecs import OWN, STOCK, kernelspecs
from kernel.kernelspecs import typed as typed_in

from repl_rl.kernel import Profile
from repl_rl.kernel.border import images_of
from repl_rl.kernel.caches import home_caches
from repl_rl.kernel.paths import Home
from repl_rl.kernel.sandbox import Sandbox

__all__ = ["kernelspecs"]

PNG = b"\x89PNG\r\n\x1a\n"
END = b"IEND\xaeB`\x82"
DRAW = ("import matplotlib.pyplot as plt", "lines = plt.plot([1, 3, 2])", "plt.show()")
FONTS = "f'~/.cache/matplotlib/fontlist-v{fonts.FontManager.__version__}.json'"


def test_the_list_of_fonts_is_not_made_in_each_session(typed: Typed) -> None:
    imported, listed, found = typed(
        "import os, matplotlib.font_manager as fonts",
        f"os.path.islink(os.path.expanduser({FONTS})), os.access(os.path.expanduser('~/.cache/matplotlib'), os.W_OK)",
        "os.path.basename(fonts.findfont('DejaVu Sans'))",
    )
    assert [imported.output, listed.output, found.output] == ["", "(True, True)\n", "'DejaVuSans.ttf'\n"]


@pytest.mark.parametrize(
    ("code", "left"),
    [
        ("import os; os.makedirs('.cache/a'); open('.cache/a/b', 'w'); open('kept', 'w')", [".cache/a/b", "kept"]),
        ("import not_there", []),
        ("", None),
        ("raise ValueError('wrong')", None),
    ],
)
def test_a_profile_builds_what_belongs_into_homes_once(code, left, monkeypatch, tmp_path, caplog) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with closing(Home()) as home:
        sandbox = Sandbox("bwrap", Profile.load(), LIMITS, home)
        folder = home_caches(sandbox, code)
        assert folder == home_caches(sandbox, code)
    found = folder and sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
    assert found == left
    assert ("ValueError: wrong" in caplog.text) == ("wrong" in code)


def encoded(*images: bytes) -> list[str]:
    return [base64.b64encode(image).decode() for image in images]


def test_show_keeps_the_open_figures_and_closes_them(typed: Typed) -> None:
    results = typed(
        *DRAW, "plt.show()", "plt.get_fignums()", "a, b = plt.figure(), plt.figure()", "plt.show()", "1 / 0"
    )
    assert [len(result.images) for result in results] == [0, 0, 1, 0, 0, 0, 2, 0]
    [image] = results[2].images
    assert (image[:8], image[-8:]) == (PNG, END)
    assert [result.output for result in results[1:7]] == ["", "", "", "[]\n", "", ""]


@pytest.mark.more
def test_a_figure_that_can_not_be_drawn_is_closed_too(typed: Typed) -> None:
    bad, missing = "title = plt.title(r'$\\frac{1}{x$')", "title = plt.title('\\u4e2d')"
    *_, failed, left, _, _, shown = typed(
        *DRAW[:2], bad, "plt.show()", "plt.get_fignums()", DRAW[1], missing, "plt.show()"
    )
    assert (failed.error_name, failed.images, left.output) == ("ValueError", (), "[]\n")
    assert (len(shown.images), shown.output) == (1, "")


@pytest.mark.more
def test_a_figure_shows_itself_and_stays_open(typed: Typed) -> None:
    *_, shown, open_ones = typed(*DRAW[:2], "plt.gcf().show()", "plt.get_fignums()")
    assert (len(shown.images), shown.output, open_ones.output) == (1, "", "[1]\n")


@pytest.mark.more
def test_a_session_may_choose_a_backend_that_keeps_nothing(typed: Typed) -> None:
    *_, shown = typed("import matplotlib; matplotlib.use('svg')", *DRAW)
    assert (shown.images, shown.status) == ((), "ok")


@pytest.mark.more
def test_no_more_than_eight_of_a_cell(typed: Typed) -> None:
    *_, shown, after = typed(DRAW[0], "for _ in range(9): plt.figure(figsize=(1, 1)).show()\n", "1")
    assert (len(shown.images), len(after.images)) == (8, 0)


@pytest.mark.slow
@pytest.mark.parametrize("name", [STOCK, OWN])
async def test_kernelspecs(name: str) -> None:
    cells = ["%matplotlib inline"] if name == STOCK else []
    *_, shown = await typed_in(name, *cells, "\n".join(DRAW), line_s=300.0)
    assert [image[:8] for image in shown.images] == [PNG]


@pytest.mark.parametrize(
    ("reported", "kept"),
    [
        (None, ()),
        ("x", ()),
        ({"0": "x"}, ()),
        ([None, 3, ["x"], "", "no base64", "é", "\ud800", *encoded(b"GIF89a")], ()),
        (encoded(PNG + b"1", b"", PNG + b"2"), (PNG + b"1", PNG + b"2")),
        (encoded(*[PNG + bytes([n]) for n in range(9)]), tuple(PNG + bytes([n]) for n in range(8))),
        (encoded(PNG + b"1" * (1 << 20), PNG + b"2" * (1 << 20), PNG), (PNG + b"1" * (1 << 20), PNG)),
        ([encoded(PNG)[0] + "\n"], ()),
    ],
)
def test_what_a_session_reports_is_not_trusted(reported: Any, kept: tuple[bytes, ...]) -> None:
    assert images_of(reported) == kept
