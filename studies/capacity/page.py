"""Draws the plots and writes the tables of README.md, from the report beside it.

    python -m studies.capacity --json studies/capacity/report.json
    python -m studies.capacity.page

Tables are put between `<!-- capacity NAME -->` and `<!-- end -->`. A test holds the page against what this writes.
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from repl_rl.view.charts import AMBER, BLUE, GREEN, GREY
from studies.capacity.study import DISTURBED_CORES, longest_queue

PAGE = Path(__file__).with_name("README.md")
_WIDTH, _HEIGHT, _LEFT, _TOP, _BOTTOM = 560, 300, 64, 44, 58


def load() -> dict[str, Any]:
    """The report that lies beside this file."""
    report: dict[str, Any] = json.loads(PAGE.with_name("report.json").read_text(encoding="utf-8"))
    return report


def pictures(report: Mapping[str, Any]) -> dict[str, str]:
    """Names of files, and SVG text."""
    checked = [f"{row['kernels']} x {row['lines']}, {1000 * row['wait']:g} ms" for row in report["checked"]]
    cores = _of(report, _middle(report))
    flights = report["in_flight"]
    return {
        "check.svg": chart(
            "Lines per second: measured, and by the model",
            "sessions at once x lines of each, wait of a line; bars: measured, plus and minus 20%",
            checked,
            {
                "measured": (GREY, [row["lines_per_s"] for row in report["checked"]]),
                "model": (BLUE, [row["model"] for row in report["checked"]]),
            },
            joined=False,
        ),
        "cores.svg": chart(
            "Lines per second of a GPU",
            "CPU cores for each GPU",
            [f"{row['cores_per_gpu']:g}" for row in cores],
            {"by the model": (BLUE, [row["lines_per_s"] / row["gpus"] for row in cores])},
        ),
        "sessions.svg": chart(
            "Lines per second of a GPU",
            "sessions in flight for each GPU",
            [f"{row['sessions']}" for row in flights],
            {"by the model": (BLUE, [row["lines_per_s"] for row in flights])},
        ),
        "line.svg": chart(
            "Seconds that a line takes, from the request to its output",
            "sessions in flight for each GPU",
            [f"{row['sessions']}" for row in flights],
            {
                "p99": (AMBER, [row["line_p99_s"] for row in flights]),
                "p50": (GREEN, [row["line_p50_s"] for row in flights]),
            },
        ),
    }


def chart(
    title: str,
    below: str,
    labels: Sequence[str],
    series: Mapping[str, tuple[str, Sequence[float]]],
    joined: bool = True,
) -> str:
    """A value for each label, of each series: points, joined by lines, or with a bar of 20% around the first series."""
    most = max(value for _, values in series.values() for value in values) * (1.1 if joined else 1.3)
    unit = 10 ** (len(f"{most:.0f}") - 1)
    step = next(unit * part for part in (0.1, 0.2, 0.5, 1, 2, 5) if most / (unit * part) <= 6)
    width, height = _WIDTH - _LEFT - 16, _HEIGHT - _TOP - _BOTTOM
    across = [_LEFT + width * (index + 0.5) / len(labels) for index in range(len(labels))]

    def up(value: float) -> float:
        return _TOP + height * (1 - value / most)

    def text(x: float, y: float, words: str, anchor: str = "middle", size: int = 12, colour: str = GREY) -> str:
        return (
            f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}" fill="{colour}">'
            f"{html.escape(words)}</text>"
        )

    parts = [text(_LEFT, 20, title, "start", 14)]
    for number in range(int(most / step) + 1):
        y = up(number * step)
        parts.append(f'<path d="M{_LEFT} {y:.1f}h{width}" stroke="{GREY}" stroke-opacity="0.3"/>')
        parts.append(text(_LEFT - 6, y + 4, f"{number * step:,g}", "end"))
    parts += [text(x, _HEIGHT - _BOTTOM + 18, label, size=11) for x, label in zip(across, labels, strict=True)]
    parts.append(text(_LEFT + width / 2, _HEIGHT - 14, below))
    for place, (name, (colour, values)) in enumerate(series.items()):
        if joined:
            points = " ".join(f"{x:.1f},{up(value):.1f}" for x, value in zip(across, values, strict=True))
            parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>')
        for x, value in zip(across, values, strict=True):
            if not joined and not place:
                ends = f"M{x:.1f} {up(0.8 * value):.1f}V{up(1.2 * value):.1f}"
                parts.append(f'<path d="{ends}" stroke="{colour}" stroke-width="10" stroke-opacity="0.3"/>')
            parts.append(f'<circle cx="{x:.1f}" cy="{up(value):.1f}" r="4" fill="{colour}"/>')
        if len(series) > 1:
            parts.append(f'<circle cx="{_LEFT + 14}" cy="{_TOP - 4 + 16 * place}" r="4" fill="{colour}"/>')
            parts.append(text(_LEFT + 24, _TOP + 16 * place, name, "start"))
    drawing = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" '
        f'font-family="sans-serif">\n{drawing}\n</svg>\n'
    )


def tables(report: Mapping[str, Any]) -> dict[str, str]:
    """Markdown, by the names in the pages."""
    rates = [
        ("a step of nano's engine", f"{_ms(report, 'step')}, {_ms(report, 'sequence')} more for each line in it"),
        ("a token that it reads", _ms(report, "read")),
        ("the line loop", f"{_ms(report, 'loop')} for a line, {_ms(report, 'loop_session')} for a session"),
        ("a cell", _ms(report, "cell")),
        ("a kernel's start and end", f"{_ms(report, 'kernel')}, and {_ms(report, 'ending')} without a core"),
        ("the trainer's process, for a session", _ms(report, "taking")),
    ]
    return {
        "answers": _answers(report),
        "rates": _table(["", "takes"], rates),
        "check": _others(report)
        + _table(
            ["sessions at once", "lines of each", "wait of a line", "measured", "model", "ratio"],
            [
                (
                    row["kernels"],
                    row["lines"],
                    f"{1000 * row['wait']:g} ms",
                    f"{row['lines_per_s']:,.0f}",
                    f"{row['model']:,.0f}",
                    f"{row['ratio']:.2f}",
                )
                for row in report["checked"]
            ],
        ),
        "fleets": _table(
            [
                "GPUs",
                "sessions in flight",
                "lines/s",
                "cores for each GPU",
                "p50",
                "p99",
                "first queue",
                "the trainer's process is busy",
                "a lost machine: sessions begun again",
                "lines done again",
                "later by",
            ],
            [_fleet(report, gpus) for gpus in sorted({row["gpus"] for row in report["asked"]})],
        ),
        "cores": _table(
            ["cores for each GPU", "lines/s of a GPU", "p50", "p99", "engines", "cores", "loops", "longest queue"],
            [
                (
                    f"{row['cores_per_gpu']:g}",
                    f"{row['lines_per_s'] / row['gpus']:,.0f}",
                    *_times(row),
                    *(f"{row[name]:.0%}" for name in ("engine_busy", "core_busy", "loop_busy")),
                    longest_queue(row),
                )
                for row in _of(report, _middle(report))
            ],
        ),
    }


def _answers(report: Mapping[str, Any]) -> str:
    rates, assumed, rows = report["rates"], report["assumed"], _of(report, _middle(report))
    enough = _enough(rows)
    lines_s = enough["lines_per_s"] / enough["gpus"]
    sessions_s = lines_s / assumed["lines"]
    cell = rates["cell"] if assumed["cell_ms"] is None else assumed["cell_ms"] / 1000
    loop = rates["loop"] * lines_s + rates["loop_session"] * sessions_s
    cells, kernels = cell * lines_s, rates["kernel"] * sessions_s
    loops = 1 / (rates["loop"] + rates["loop_session"] / assumed["lines"])
    taken = 1 / rates["taking"]
    answers = [
        f"**Cores for each GPU: {loop + cells + kernels:.2f} are busy**, with {lines_s:,.0f} lines per second: "
        f"{loop:.2f} by line loops, {cells:.2f} by cells, {kernels:.2f} by starts of kernels. Of the numbers that were "
        f"tried, {enough['cores_per_gpu']:g} is the first that is enough. A line that computes for 10 ms adds "
        f"{lines_s / 100:.1f} cores for each GPU.",
        f"**A line loop does {loops:,.0f} lines per second**, those of {loops / lines_s:.1f} GPUs. The plan has "
        "one for each two.",
        f"**The trainer's process unpacks {taken:,.0f} sessions per second**, those of {taken / sessions_s:,.0f} GPUs. "
        "It is the only part that all GPUs share, and what fills up first in a fleet that is larger.",
        f"**Before that, the queue is in front of the engines**, and it is meant to be: {enough['sessions']:,} "
        f"sessions are more than {enough['gpus']} engines with {assumed['places']} places sample at once.",
    ]
    return "\n".join(f"- {answer}" for answer in answers)


def _others(report: Mapping[str, Any]) -> str:
    used = report["others_cores"]
    if used <= DISTURBED_CORES:
        return ""
    return f"**Other processes used {used:.1f} of {report['cores']} cores: this has to be measured again.**\n\n"


def _enough(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The row with the fewest cores that give 98% of the lines."""
    best = max(row["lines_per_s"] for row in rows)
    return next(row for row in rows if row["lines_per_s"] >= 0.98 * best)


def _fleet(report: Mapping[str, Any], gpus: int) -> tuple[object, ...]:
    enough = _enough(_of(report, gpus))
    lost = next((row for row in report["lost"] if row["gpus"] == gpus), None)
    return (
        gpus,
        f"{enough['sessions']:,}",
        f"{enough['lines_per_s']:,.0f}",
        f"{enough['cores_per_gpu']:g}",
        *_times(enough),
        longest_queue(enough),
        f"{enough['taking_busy']:.0%}",
        *(
            ("all", "all", "it is out")
            if lost is None
            else (f"{lost['begun_again']:,}", f"{lost['lost_lines'] / lost['lines']:.1%}", f"{lost['more_s']:.0f} s")
        ),
    )


def _of(report: Mapping[str, Any], gpus: int) -> list[dict[str, Any]]:
    return [row for row in report["asked"] if row["gpus"] == gpus]


def _middle(report: Mapping[str, Any]) -> int:
    """64 GPUs, if the model was asked about them."""
    return max((row["gpus"] for row in report["asked"] if row["gpus"] <= 64), default=1)


def _times(row: Mapping[str, Any]) -> tuple[str, str]:
    return f"{row['line_p50_s']:.1f} s", f"{row['line_p99_s']:.1f} s"


def _ms(report: Mapping[str, Any], name: str) -> str:
    return f"{1000 * report['rates'][name]:.3g} ms"


def _table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)


def filled(page: str, report: Mapping[str, Any]) -> str:
    """The page with its tables."""
    for name, rows in tables(report).items():

        def put(found: re.Match[str], rows: str = rows) -> str:
            return f"{found[1]}{rows}\n{found[2]}"

        page = re.sub(rf"(<!-- capacity {name} -->\n).*?(<!-- end -->)", put, page, flags=re.DOTALL)
    return page


if __name__ == "__main__":
    for name, svg in pictures(load()).items():
        PAGE.with_name(name).write_text(svg, encoding="utf-8")
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8"), load()), encoding="utf-8")
