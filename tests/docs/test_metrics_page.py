"""The page of all metrics. That it has each one that is logged, `small_trainer` asks in every test that trains."""

import importlib.util
from pathlib import Path

from metric_names import explained

import repl_rl


def test_nothing_on_the_page_is_out_of_date() -> None:
    spec = importlib.util.find_spec("trl.trainer.grpo_trainer")
    assert spec is not None
    assert spec.origin is not None
    files = [*Path(repl_rl.__file__).parent.rglob("*.py"), Path(spec.origin)]
    code = "\n".join(path.read_text(encoding="utf-8") for path in files)
    logged_by_transformers = {"loss", "grad_norm", "learning_rate", "epoch"}
    parts = {part.strip("*_") for name in explained() for part in name.split("/")} - logged_by_transformers
    assert not sorted(part for part in parts if part not in code)
    assert len(explained()) > 80
