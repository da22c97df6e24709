"""The cards of what is pushed: README.md of the model and of its rollouts, with the metadata that the hub reads.

Names from a config or a file, and what a model typed, are hostile text here: in tables they are escaped, and a
transcript stands in a fence that is longer than any it contains.
"""

import html
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
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
from repl_rl.view.words import fenced

CURVE = "curve.svg"
HUB = "https://huggingface.co"
_SAMPLE_CHARS = 6_000
_LEFT_OUT = "\n[... {} characters left out ...]\n"
_HERE = Path(__file__).parent
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
            path = values["tasks"][key]
            if path:
                last_part = Path(path).name
                values["tasks"][key] = last_part if path.endswith(DATA_FILES) else f"./{last_part}"
    if config.engine.backend == "server":
        del values["engine"]["backend"]
    return _public(values, "")


def _public(values: Mapping[str, Any], section: str) -> dict[str, Any]:
    public: dict[str, Any] = {}
    sections = published()["config"]
    texts = published()["texts"]
    for name, value in values.items():
        path = f"{section}.{name}".lstrip(".")
        if isinstance(value, Mapping) and path in sections:
            public[name] = _public(value, path)
        elif name in sections[section] and _is_public(value, is_text=path in texts):
            public[name] = value
    return public


def _is_public(value: Any, is_text: bool) -> bool:
    if isinstance(value, Mapping):
        return _is_public(list(value), is_text) and _is_public(list(value.values()), is_text)
    if isinstance(value, list):
        return all(_is_public(item, is_text) for item in value)
    return not isinstance(value, str) or is_text or _NAME.fullmatch(value) is not None


def base_name(path: str) -> str:
    """The model that a run began with, as others may see it: a hub id, a name that ships, or a folder's last part."""
    is_hub_id = _HUB_ID.fullmatch(path) is not None and not Path(path).exists()
    if path in SHIPPED or path in PACKAGED or is_hub_id:
        return path
    return Path(path).name or "model"


def curve(run: Run) -> str | None:
    """The learning curve as an SVG document; None for a run without any."""
    for chart in charts(run):
        if chart.id == "learning":
            return chart_svg(chart)
    return None


def model_card(run: Run, config: Config, example: Trajectory | None, has_adapter: bool, published: Published) -> str:
    """README.md of the model. `run` has the public part of its config."""
    from huggingface_hub import ModelCard, ModelCardData

    base = base_name(config.model.path)
    base_model = None
    model_license = None
    if base in PACKAGED:
        base_model = PACKAGED[base].hub_id
        model_license = PACKAGED[base].license
    elif base in SHIPPED:
        model_license = "apache-2.0"
    elif _HUB_ID.fullmatch(base):
        base_model = base
    data = ModelCardData(
        base_model=base_model,
        datasets=[published.rollouts] if published.on_hub and published.rollouts else None,
        license=model_license,
        library_name="transformers",
        pipeline_tag="text-generation",
        tags=["repl-rl", "reinforcement-learning", "grpo"],
    )
    text = "" if example is None else cut_middle(transcript(example), _SAMPLE_CHARS, _LEFT_OUT)
    return str(
        ModelCard.from_template(
            data,
            str(_HERE / "model.md"),
            plain=_plain,
            title=run.path.resolve().name,
            base=base,
            summary=". ".join(summary(run)),
            curve="" if curve(run) is None else CURVE,
            rates=family_rows(run),
            published=published,
            is_merged=config.train.lora is not None,
            has_adapter=has_adapter,
            example=example,
            transcript=fenced(visible(text), "python"),
            facts=facts(run),
            config=fenced(visible(write_yaml(run.config)), "yaml"),
        )
    )


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
    card = DatasetCard.from_template(
        data,
        str(_HERE / "rollouts.md"),
        plain=_plain,
        title=name,
        base=base_name(config.model.path),
        rows=rows,
        published=published,
    )
    return str(card)


def _plain(text: object) -> str:
    """Text that Markdown shows as it is, within a line or a cell."""
    one_line = " ".join(visible(str(text)).split())
    without_html = html.escape(one_line, quote=False)
    return re.sub(r"([\\`*_\[\]|#])", r"\\\1", without_html)
