"""The charts of a run as plotly figures in plain JSON types, and their curves as still images.

Pure: rows of a run in, dictionaries out.

Colours come from one palette of middle tones that reads well on light and dark backgrounds; what depends on the
background (text, grid, hover box) is left to the page. Every label is escaped twice: by `visible` against hidden and
control characters, and with HTML entities because plotly reads tags in labels.
"""

import html
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from io import StringIO
from itertools import cycle
from typing import Any

from repl_rl.trajectory import LineKind
from repl_rl.utils.text import visible
from repl_rl.view.run import Row, Run, number

Trace = dict[str, Any]

BLUE, GREEN, AMBER, RED, VIOLET, GREY = "#4a82d9", "#2f9e6e", "#cf8a1f", "#d1524f", "#8b6fd0", "#8a929e"
_CYCLE = (BLUE, AMBER, VIOLET, GREEN, RED, GREY)
_KIND_COLOURS = {
    LineKind.ANSWER: GREEN,
    LineKind.EXPRESSION: "#3fa7b5",
    LineKind.STATEMENT: BLUE,
    LineKind.OPEN: "#8fb0e8",
    LineKind.COMMENT: VIOLET,
    LineKind.BLANK: "#b4bac4",
    LineKind.OVERLONG: "#b98a5a",
    LineKind.EXCEPTION: AMBER,
    LineKind.SYNTAX_ERROR: RED,
    LineKind.TIMEOUT: "#a05fa8",
    LineKind.KILLED: "#6b4a52",
}
_RIGHT = {"overlaying": "y", "side": "right", "showgrid": False, "tickmode": "auto"}
_COMPARED = {
    "heldout": "Held-out problems solved",
    "solve_rate": "Training batch solved",
    "reward": "Reward",
    "lines_per_trajectory": "Lines of a trajectory",
    "tokens_per_trajectory": "Tokens of a trajectory",
    "mean_token_accuracy": "Recorded tokens that were likeliest",
    "entropy": "Entropy, nats per token",
    "kl": "KL from the reference model, nats per token",
    "drift/logprob_mean": "Drift of sampler and trainer, nats per token",
    "step_time": "Seconds of a step",
    "tokens_per_s": "Tokens sampled per second",
}
"""The charts of several runs: a metric of a step, or the solve rate of the evaluations, and the chart's title."""
_MOST_ERRORS = 6
_MOST_NAMES = 40
"""How many parts of rewards, and families of problems, are drawn: a file may name any number of them."""
_SMOOTHED_FROM = 20
"""Curves of fewer steps get no moving average."""


@dataclass(frozen=True, slots=True)
class Chart:
    """One figure. `data` and `layout` are plotly's; `height` is in pixels on a wide page."""

    id: str
    title: str
    caption: str
    data: list[Trace]
    layout: dict[str, Any]
    height: int = 320


def charts(run: Run) -> list[Chart]:
    """The charts that this run has data for, in the order of the page."""
    makers: tuple[Callable[[Run], Chart | None], ...] = (
        *(_learning, _families, _imitation, _kinds, _errors, _rewards),
        *(_lengths, _entropy, _kl, _problems, _latency, _speed),
    )
    return [chart for make in makers if (chart := make(run)) is not None]


def charts_of_several(runs: Mapping[str, Run]) -> list[Chart]:
    """A chart for each number that is worth comparing, with a curve for each run; then one for each part of the rewards
    and each kind of line. Curves of many steps are moving averages."""
    keys: dict[str, None] = {}  # a set in the order in which the rows name them
    for run in runs.values():
        for row in run.train:
            keys.update(dict.fromkeys(row))
    parts = [key for key in keys if re.fullmatch(r"rewards/[^/]+/mean", key)]
    rewards = {key: f"Reward: {key.split('/')[1]}" for key in parts[:_MOST_NAMES]}
    kinds = {f"kinds/{kind}": f"Lines: {kind.replace('_', ' ')}" for kind in _KIND_COLOURS if f"kinds/{kind}" in keys}
    colours = dict(zip(runs, cycle(_CYCLE), strict=False))
    last_part = list(rewards)[-1] if rewards else None
    drawn = []
    for key, title in {**_COMPARED, **rewards, **kinds}.items():
        is_heldout = key == "heldout"
        column = "solve_rate" if is_heldout else key
        traces = []
        for name, run in runs.items():
            curve = _series(run.evals if is_heldout else run.train, column, name, colours[name])
            if curve is not None:
                average = _with_average(curve)[-1]
                traces.append({**average, "name": curve["name"]})
        if column == "solve_rate" or key in kinds:
            y_axis = {"tickformat": ".0%", "rangemode": "tozero"}
        else:
            y_axis = {"tickformat": "", "rangemode": "normal"}
        caption = f"{title}, of each run."
        if key == last_part:
            caption += _left_out(parts)
        chart = _chart(key.replace("/", "-"), title, caption, traces, {"yaxis": y_axis})
        if chart is not None:
            drawn.append(chart)
    return drawn


def _left_out(names: Sequence[str]) -> str:
    """A sentence for a caption, if not all names are drawn."""
    if len(names) <= _MOST_NAMES:
        return ""
    return f" {len(names) - _MOST_NAMES:,} more are left out."


def label(text: object) -> str:
    """`text` made safe for plotly: no hidden characters and no tags."""
    return html.escape(visible(str(text)))


def moving_average(values: Sequence[float | None], width: int) -> list[float | None]:
    """The mean of each value and up to `width - 1` values before it; gaps stay gaps and are left out of the means."""
    # Running totals, so that the work does not grow with the width.
    sums = [0.0]
    counts = [0]
    for value in values:
        sums.append(sums[-1] + (value or 0.0))
        counts.append(counts[-1] + (0 if value is None else 1))
    means: list[float | None] = []
    for end, value in enumerate(values, 1):
        if value is None:
            means.append(None)
            continue
        begin = max(0, end - width)
        means.append((sums[end] - sums[begin]) / (counts[end] - counts[begin]))
    return means


def _learning(run: Run) -> Chart | None:
    curve = _series(run.train, "solve_rate", "training batch", BLUE)
    heldout = _series(run.evals, "solve_rate", "held-out", GREEN)
    if heldout is not None:
        heldout |= {"mode": "lines+markers", "marker": {"size": 11, "symbol": "diamond"}}
        heldout["line"] = {"color": GREEN, "width": 2, "dash": "dot"}
    traces = [*_with_average(curve), heldout]
    caption = "Share of problems solved: each step's own batch, and the held-out problems before and after."
    return _chart("learning", "Learning curve", caption, traces, _percent("solved"), height=360)


def _with_average(curve: Trace | None) -> list[Trace]:
    """The curve; if it has many steps, faint, and its moving average as the last trace."""
    if curve is None:
        return []
    values = curve["y"]
    if len(values) < _SMOOTHED_FROM:
        return [curve]
    width = len(values) // 10 + 1
    average = curve | {"y": moving_average(values, width), "name": f"mean of {width} steps"}
    faint = curve | {"opacity": 0.55, "line": {**curve["line"], "width": 1}}
    return [faint, average]


def _families(run: Run) -> Chart | None:
    rows = []
    rates = []  # of each row, by family
    for row in (run.before, run.after):
        if row is not None and isinstance(row.get("families"), Mapping):
            rows.append(row)
            rates.append(row["families"])
    families: set[str] = set()
    for rates_of_row in rates:
        families.update(rates_of_row)
    if not families:
        return None

    def newest_rate(family: str) -> float:
        return number(rates[-1], family) or 0.0

    names = sorted(sorted(families), key=newest_rate)
    caption = "Held-out problems solved per family: open circles before training, full ones after." + _left_out(names)
    names = names[:_MOST_NAMES]
    labels = [label(name) for name in names]
    traces: list[Trace | None] = []
    if len(rates) > 1:  # a line from each open circle to its full one
        x: list[float | None] = []
        y: list[str | None] = []
        for name, text in zip(names, labels, strict=True):
            # plotly interrupts a line at None.
            x += [number(rates[0], name), number(rates[1], name), None]
            y += [text, text, None]
        line = {"mode": "lines", "line": {"color": GREY, "width": 2}, "hoverinfo": "skip", "showlegend": False}
        traces.append({"type": "scatter", "x": x, "y": y, **line})
    styles = (("circle-open", GREY), ("circle", GREEN))
    for row, rates_of_row, (symbol, colour) in zip(rows, rates, styles, strict=False):
        dots: Trace = {"mode": "markers", "name": f"step {int(row['step'])}", "hovertemplate": "%{y}: %{x:.1%}"}
        dots["marker"] = {"size": 12, "symbol": symbol, "color": colour, "line": {"width": 2}}
        x = [number(rates_of_row, name) for name in names]
        traces.append({"type": "scatter", "x": x, "y": labels, **dots})
    layout = {"xaxis": {"range": [-0.03, 1.05], "tickformat": ".0%"}, "yaxis": {"automargin": True, "type": "category"}}
    height = 110 + 30 * len(names)
    return _chart("families", "Before and after, by family", caption, traces, layout, height, x="")


def _kinds(run: Run) -> Chart | None:
    traces: list[Trace | None] = []
    for kind, colour in _KIND_COLOURS.items():
        trace = _series(run.train, f"kinds/{kind}", str(kind).replace("_", " "), colour)
        if trace is not None and any(trace["y"]):
            # A gap here would interrupt all the areas stacked above it.
            trace["y"] = [value or 0.0 for value in trace["y"]]
            traces.append(trace | {"stackgroup": "kinds", "line": {"width": 0.5, "color": colour}, "mode": "lines"})
    caption = "What became of the lines that the model typed, as shares of all lines of a step."
    return _chart("kinds", "Kinds of lines", caption, traces, _percent("of lines"), height=380)


def _errors(run: Run) -> Chart | None:
    totals: dict[str, float] = {}
    for row in run.train:
        for name in row:
            if name.startswith("errors/"):
                totals[name] = totals.get(name, 0.0) + (number(row, name) or 0.0)
    names = sorted(name for name in totals if totals[name])
    frequent = sorted(names, key=totals.__getitem__, reverse=True)[:_MOST_ERRORS]
    # A row names only the exceptions of its step: a missing one means none.
    none_raised = dict.fromkeys(frequent, 0.0)
    rows = [{**none_raised, **row} for row in run.train]
    traces = []
    for name, colour in zip(frequent, _CYCLE, strict=False):
        traces.append(_series(rows, name, name.removeprefix("errors/"), colour))
    caption = f"Lines that raised, by exception: the {len(traces)} most frequent ones."
    return _chart("errors", "Exceptions", caption, traces, {"yaxis": {"tickformat": ".1%", "rangemode": "tozero"}})


def _rewards(run: Run) -> Chart | None:
    parts: set[str] = set()
    for row in run.train:
        parts.update(key for key in row if key.startswith("rewards/") and key.endswith("/mean"))
    keys = sorted(parts)
    total = _series(run.train, "reward", "total", GREY)
    if total is not None:
        total["line"] = {"color": GREY, "width": 2, "dash": "dash"}
    traces = [total]
    colours = _CYCLE[:-1]  # without the grey of the total
    for key, colour in zip(keys[:_MOST_NAMES], cycle(colours), strict=False):
        name = key.removeprefix("rewards/").removesuffix("/mean")
        traces.append(_series(run.train, key, name, colour))
    caption = f"Mean reward of a trajectory, and the components that it is made of.{_left_out(keys)}"
    return _chart("rewards", "Rewards", caption, traces, {"yaxis": {"zeroline": True}})


def _imitation(run: Run) -> Chart | None:
    """Of fine-tuning alone: a step of GRPO has a loss, too, whose height says nothing."""
    accuracy = _series(run.train, "mean_token_accuracy", "likeliest", GREEN)
    if accuracy is None:
        return None
    loss = _series(run.train, "loss", "loss", BLUE)
    layout = _two_scales([loss], _from_zero("nats per token"), accuracy, {"tickformat": ".0%"})
    caption = (
        "How well the model predicts what was typed in the recorded sessions: the loss on the left scale, on the right "
        "one the share of tokens that it held to be the likeliest."
    )
    return _chart("imitation", "Fine-tuning on recorded sessions", caption, [loss, accuracy], layout)


def _lengths(run: Run) -> Chart | None:
    lines = _series(run.train, "lines_per_trajectory", "lines", BLUE)
    tokens = _series(run.train, "tokens_per_trajectory", "tokens", AMBER)
    layout = _two_scales([lines], _from_zero("lines"), tokens, _from_zero("tokens"))
    caption = "What the model typed in one trajectory, on average: lines on the left scale, tokens on the right one."
    return _chart("lengths", "Length of a trajectory", caption, [lines, tokens], layout)


def _entropy(run: Run) -> Chart | None:
    curve = _series(run.train, "entropy", "entropy", VIOLET)
    caption = "Mean entropy of the policy over the tokens that it typed: what falls to zero explores no more."
    return _chart("entropy", "Entropy", caption, _with_average(curve), {"yaxis": _from_zero("nats per token")})


def _kl(run: Run) -> Chart | None:
    traces = [
        _series(run.train, "kl", "from the reference model", RED),
        _series(run.train, "drift/logprob_mean", "sampler and trainer, mean |Δ logprob|", GREY),
    ]
    caption = (
        "How far the policy is from the model that it began with (where `train.beta` is above zero), and how far apart "
        "the sampler's and the trainer's probabilities of one token are."
    )
    layout = {"yaxis": {"title": {"text": "nats per token"}, "exponentformat": "e"}}
    return _chart("kl", "KL divergence and drift", caption, traces, layout)


def _problems(run: Run) -> Chart | None:
    shares = (("between", GREEN), ("unseen", GREY), ("resting", RED), ("retired", BLUE))
    traces = [_series(run.train, f"tasks/{name}", name, colour) for name, colour in shares]
    caption = (
        "Training problems by how often they are solved: between a tenth and nine tenths of the time, never drawn, "
        "hardly ever (resting), nearly always (retired)."
    )
    return _chart("problems", "Problems by solve rate", caption, traces, _percent("of problems"))


def _latency(run: Run) -> Chart | None:
    median = _series(run.train, "kernel_ms_p50", "a line in the interpreter, median", BLUE)
    slowest = _series(run.train, "kernel_ms_p99", "99th percentile", AMBER)
    whole = _series(run.train, "step_time", "a whole step", GREY)
    for trace in (median, slowest):
        if trace is not None:
            trace["hovertemplate"] = "%{y:.3g} ms"
    if whole is not None:
        whole["hovertemplate"] = "%{y:.3g} s"
    layout = _two_scales([median, slowest], {"title": {"text": "ms"}, "type": "log"}, whole, _from_zero("s"))
    caption = "How long the interpreter took over a line, on the left scale, and a whole step, on the right one."
    return _chart("latency", "Latency", caption, [median, slowest, whole], layout)


def _speed(run: Run) -> Chart | None:
    curve = _series(run.train, "tokens_per_s", "sampled", GREEN)
    layout = {"yaxis": {**_from_zero("tokens/s"), "tickformat": ",.0f"}}
    return _chart("speed", "Throughput", "Tokens sampled per second of rollout.", _with_average(curve), layout)


def _series(rows: Sequence[Row], key: str, name: str, colour: str) -> Trace | None:
    values = [number(row, key) for row in rows]
    if all(value is None for value in values):
        return None
    return {
        "type": "scatter",
        "mode": "lines" if len(values) > 1 else "markers",
        "name": label(name),
        "x": [int(row["step"]) for row in rows],
        "y": values,
        "line": {"color": colour, "width": 2.25},
        "marker": {"color": colour},
    }


def _two_scales(
    traces: Sequence[Trace | None], left: dict[str, Any], other: Trace | None, right: dict[str, Any]
) -> dict[str, Any]:
    """The layout for `traces` on the left scale and `other`, which becomes dashed, on the right one.

    Without `traces`, `other` stays on the left scale and is not dashed.
    """
    if other is None:
        return {"yaxis": left}
    if all(trace is None for trace in traces):
        return {"yaxis": right}
    other |= {"yaxis": "y2", "line": {**other["line"], "width": 2, "dash": "dash"}}
    return {"yaxis": left, "yaxis2": {**right, **_RIGHT}}


def _from_zero(title: str) -> dict[str, Any]:
    return {"title": {"text": title}, "rangemode": "tozero"}


def _percent(title: str) -> dict[str, Any]:
    return {"yaxis": {"tickformat": ".0%", "range": [0, 1.02], "title": {"text": title}}}


def _chart(
    id: str,
    title: str,
    caption: str,
    traces: Sequence[Trace | None],
    layout: dict[str, Any],
    height: int = 320,
    x: str = "step",
) -> Chart | None:
    present = [trace for trace in traces if trace is not None]
    if not present:
        return None
    axis = {"title": {"text": x}, **layout.get("xaxis", {})}
    if x == "step" and max(trace["x"][-1] for trace in present) <= 10:
        # By default plotly would put ticks between the steps.
        axis["dtick"] = 1
    hover = "x unified" if x else "closest"
    return Chart(id, title, caption, present, {**layout, "xaxis": axis, "hovermode": hover}, height)


def chart_svg(chart: Chart) -> str:
    """The chart's curves as an SVG document, drawn by matplotlib for light and dark pages. For curves on one scale."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    greys = dict.fromkeys(("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"), GREY)
    y_axis = chart.layout.get("yaxis", {})
    svg = StringIO()
    # Text stays text, dollar signs in names are no formulas, and the same chart gives the same ids in the SVG.
    settings = {**greys, "svg.fonttype": "none", "svg.hashsalt": "repl_rl", "text.parse_math": False}
    with rc_context(settings):
        figure = Figure(figsize=(7.2, chart.height / 100), layout="constrained")
        axes = figure.subplots()
        for trace in chart.data:
            line = trace["line"]
            values = [math.nan if value is None else value for value in trace["y"]]
            axes.plot(
                trace["x"],
                values,
                linestyle={"dash": "--", "dot": ":"}.get(line.get("dash", ""), "-"),
                marker="o" if "markers" in trace["mode"] else "",
                color=line["color"],
                alpha=trace.get("opacity", 1),
                label=html.unescape(trace["name"]),
            )
        axes.set(title=chart.title, xlabel=chart.layout["xaxis"]["title"]["text"], ylim=y_axis.get("range"))
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        if y_axis.get("tickformat", "").endswith("%"):
            axes.yaxis.set_major_formatter("{x:.0%}")
        axes.grid(alpha=0.3)
        axes.legend(frameon=False)
        figure.savefig(svg, format="svg", transparent=True, metadata={"Date": None, "Description": chart.caption})
    return svg.getvalue()
