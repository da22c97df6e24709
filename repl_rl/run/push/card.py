"""The cards of what is pushed: README.md of the model and of its rollouts, with the metadata that the hub reads.

Names from a config or a file, and what a model typed, are hostile text here: in tables they are escaped, and a
transcript stands in a fence that is longer than any it contains.
"""

from __future__ import annotations

import html
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from string import Template
from typing import Any

from repl_rl.config import Config
from repl_rl.config.tasks import DATA_FILES
from repl_rl.models.gguf import PACKAGED
from repl_rl.models.nano import SHIPPED
from repl_rl.run.push.dataset import data_files, published, transcript
from repl_rl.trajectory import Trajectory
from repl_rl.utils.text import cut_middle, visible
from repl_rl.utils.yaml import write_yaml
from repl_rl.view.charts import chart_svg, charts
from repl_rl.view.run import Run, facts, family_rows, summary

CURVE = "curve.svg"
HUB = "https://huggingface.co"
_SAMPLE_CHARS = 6_000
_HUB_ID = re.compile(r"[\w-][\w.-]*/[\w.-]+")
_NAME = re.compile(r"(\./)?[\w-][\w.: -]*(/[\w.-]+)?")
"""A word, a name of a hub, a date, an import path; no address, and no path of a machine."""


@dataclass(frozen=True, slots=True)
class Published:
    """Where model and rollouts can be found: hub ids, or folders beside each other. `rollouts` may be missing."""

    model: str
    rollouts: str | None
    on_hub: bool

    @property
    def model_link(self) -> str:
        return f"{HUB}/{self.model}" if self.on_hub else f"../{Path(self.model).name}"

    @property
    def rollouts_link(self) -> str:
        return f"{HUB}/datasets/{self.rollouts}" if self.on_hub else f"../{Path(self.rollouts or '').name}"


def public_config(config: Config) -> dict[str, Any]:
    """What of a config is published, as sections of plain values: the keys that public.yaml lists, if their values are
    numbers and names, or texts where it says so. A model, a file and a folder go by the last part of their path."""
    values = config.model_dump(mode="json")
    values["model"]["path"] = base_name(config.model.path)
    values["dialect"]["name"] = Path(config.dialect.name).name
    if config.tasks.path is not None:
        for key in ("dataset", "folder"):
            if name := values["tasks"][key]:
                values["tasks"][key] = Path(name).name if name.endswith(DATA_FILES) else f"./{Path(name).name}"
    if config.engine.backend == "server":
        del values["engine"]["backend"]
    return _public(values, "")


def _public(values: Mapping[str, Any], section: str) -> dict[str, Any]:
    kept, allowed = dict[str, Any](), published()
    for name, value in values.items():
        path = f"{section}.{name}".lstrip(".")
        if isinstance(value, Mapping) and path in allowed["config"]:
            kept[name] = _public(value, path)
        elif name in allowed["config"][section] and _is_public(value, path in allowed["texts"]):
            kept[name] = value
    return kept


def _is_public(value: Any, is_text: bool) -> bool:
    if isinstance(value, Mapping):
        return all(_is_public(each, is_text) for each in (*value, *value.values()))
    if isinstance(value, list):
        return all(_is_public(each, is_text) for each in value)
    return not isinstance(value, str) or is_text or _NAME.fullmatch(value) is not None


def base_name(path: str) -> str:
    """The model that a run began with, as others may see it: a hub id, a name that ships, or a folder's last part."""
    is_id = path in SHIPPED or path in PACKAGED or (_HUB_ID.fullmatch(path) is not None and not Path(path).exists())
    return path if is_id else Path(path).name or "model"


def curve(run: Run) -> str | None:
    """The learning curve as an SVG document; None for a run without any."""
    return next((chart_svg(chart) for chart in charts(run) if chart.id == "learning"), None)


def model_card(run: Run, config: Config, example: Trajectory | None, has_adapter: bool, published: Published) -> str:
    """README.md of the model. `run` has the public part of its config."""
    from huggingface_hub import ModelCard, ModelCardData

    base = base_name(config.model.path)
    data = ModelCardData(
        base_model=PACKAGED[base].hub_id if base in PACKAGED else base if _HUB_ID.fullmatch(base) else None,
        datasets=[published.rollouts] if published.on_hub and published.rollouts else None,
        license=PACKAGED[base].license if base in PACKAGED else "apache-2.0" if base in SHIPPED else None,
        library_name="transformers",
        pipeline_tag="text-generation",
        tags=["repl-rl", "reinforcement-learning", "grpo"],
    )
    rates, rollout, rollouts = family_rows(run), "", ""
    if example is not None:
        shown = visible(cut_middle(transcript(example), _SAMPLE_CHARS, "\n[... {} characters left out ...]\n"))
        graded = "not graded" if example.outcome_reward is None else f"graded {example.outcome_reward:g}"
        task = f"Task <code>{_plain(example.task_id)}</code>, {graded}."
        rollout = f"## A rollout\n\n{task}\n\n{_fenced(shown, 'python')}\n\n"
    if published.rollouts:
        rollouts = f" The run's rollouts: [{_plain(published.rollouts)}]({published.rollouts_link})."
    weights = "the adapter is merged into them" if config.train.lora is not None else "whole"
    image = f"![Learning curve: the share of problems solved, by step]({CURVE})\n\n"
    text = _filled(
        "model.md",
        title=_plain(run.path.resolve().name),
        base=_plain(base),
        summary=_plain(". ".join(summary(run))),
        curve="" if curve(run) is None else image,
        rates=f"## Held-out problems solved\n\n{_rates(rates)}\n\n" if rates else "",
        model=repr(published.model),
        path=published.model,
        weights=weights + (", and alone in the folder `adapter`, for PEFT." if has_adapter else "."),
        rollouts=rollouts,
        rollout=rollout,
        facts="\n".join(f"| {_plain(key)} | {_plain(value)} |" for key, value in facts(run) if key != "model"),
        config=_fenced(visible(write_yaml(run.config)), "yaml"),
    )
    return str(ModelCard(f"---\n{data.to_yaml()}\n---\n\n{text}"))


def rollouts_card(run: Run, config: Config, rows: Mapping[str, int], published: Published) -> str:
    """README.md of the data set."""
    from huggingface_hub import DatasetCard, DatasetCardData

    name = run.path.resolve().name
    data = DatasetCardData(
        pretty_name=f"Rollouts of {name}",
        task_categories=["text-generation"],
        tags=["repl-rl", "reinforcement-learning", "rollouts"],
        configs=[{"config_name": "default", "data_files": data_files(rows)}],
    )
    text = _filled(
        "rollouts.md",
        title=_plain(name),
        base=_plain(base_name(config.model.path)),
        counts=", ".join(f"{count:,} in `{split}`" for split, count in rows.items()),
        model=_plain(published.model),
        model_link=published.model_link,
    )
    return str(DatasetCard(f"---\n{data.to_yaml()}\n---\n\n{text}"))


def _filled(name: str, **fields: str) -> str:
    """The text of a file beside this one, with the fields filled in."""
    return Template(Path(__file__).with_name(name).read_text(encoding="utf-8")).substitute(fields)


def _rates(rows: Sequence[Mapping[str, Any]]) -> str:
    def percent(value: float | None) -> str:
        return "–" if value is None else f"{value:.1%}"

    lines = ["| family | problems | before | after |", "|---|---|---|---|"]
    for row in rows:
        count = "–" if row["count"] is None else f"{row['count']:.0f}"
        lines.append(f"| {_plain(row['name'])} | {count} | {percent(row['before'])} | {percent(row['after'])} |")
    return "\n".join(lines)


def _plain(text: object) -> str:
    """Text that Markdown shows as it is, within a line or a cell."""
    return re.sub(r"([\\`*_\[\]|#])", r"\\\1", html.escape(" ".join(visible(str(text)).split()), quote=False))


def _fenced(text: str, language: str) -> str:
    """A block that its text can't end."""
    fence = "`" * max(3, 1 + max(map(len, re.findall(r"`+", text)), default=0))
    return f"{fence}{language}\n{text.rstrip()}\n{fence}"
