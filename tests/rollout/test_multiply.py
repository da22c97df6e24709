"""TRL's multiply example in our trainer, its tool in the sandbox and on the host. Slow: an imitation, then GRPO twice.

nano first imitates sessions that call `multiply` rightly, with an argument missing, or not at all; GRPO has to find out
which of them pays. Prints the share of right answers and the tool's frequencies per step.
"""

from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from datasets import Dataset
from scripted import multiply
from small import rows_of, small_trainer
from transformers import AutoModelForCausalLM

from repl_rl.config import DialectConfig
from repl_rl.dialect import make_dialect
from repl_rl.engine import Vocabulary, load_vocabulary
from repl_rl.models.nano import NANO_PATH
from repl_rl.tools import as_tools
from repl_rl.trajectory import Task
from studies.nano.build import example_of, loss_of
from studies.nano.sessions import SessionRecord, Span, load_interpreter

STEPS, IMITATED = 30, 150


def accuracy(completions: list[Any], result: list[int], scored: list[Any], **_: Any) -> list[float]:
    """As TRL's example pays it: for the product."""
    return [float(item.trajectory.answer == (str(right),)) for item, right in zip(scored, result, strict=True)]


def session(a: int, b: int, rng: Random) -> SessionRecord:
    prompt = make_dialect(DialectConfig(), as_tools([multiply])).completion_prompt(f"Multiply {a} and {b}.")
    way = rng.choices(["right", "missing", "guess"], [35, 25, 40])[0]
    if way == "guess":
        return record(prompt, f" submit_final_answer({rng.choice([10, 500, 1000, 5000])})\n")
    call = f"multiply({a}, {b})" if way == "right" else f"multiply({a})"
    interpreter = load_interpreter().PythonInterpreter()
    interpreter.namespace["multiply"] = multiply
    answer = "_" if way == "right" else "1000"
    shown = f"{interpreter.run(call).output}>>>"
    return record(prompt, f" {call}\n", shown, f" submit_final_answer({answer})\n")


def record(*texts: str) -> SessionRecord:
    """What is put in and what is typed, in turn."""
    spans = [Span(text, sampled=number % 2 == 1) for number, text in enumerate(texts)]
    return SessionRecord(Task("t", "", ""), tuple(spans), None)


def imitate(model: Any, vocabulary: Vocabulary) -> None:
    rng = Random(0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(IMITATED):
        records = [session(rng.randint(11, 99), rng.randint(11, 99), rng) for _ in range(32)]
        batch = [example_of(each, vocabulary.tokenizer) for each in records]
        optimizer.zero_grad()
        loss_of(model, batch, sum(float(each.is_typed.sum()) for each in batch)).backward()
        optimizer.step()


@pytest.fixture(scope="module")
def imitator(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("imitator")
    torch.manual_seed(0)
    vocabulary = load_vocabulary(str(NANO_PATH))
    model = AutoModelForCausalLM.from_pretrained(NANO_PATH, dtype="float32")
    imitate(model, vocabulary)
    model.save_pretrained(folder)
    vocabulary.tokenizer.save_pretrained(folder)
    return str(folder)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("where", ["sandbox", "host"])
def test_the_multiply_example_is_solved(imitator: str, tmp_path: Path, where: Any) -> None:
    rng = Random(1)
    rows = [(rng.randint(11, 99), rng.randint(11, 99)) for _ in range(256)]
    dataset = Dataset.from_list(
        [{"prompt": [{"role": "user", "content": f"Multiply {a} and {b}."}], "result": a * b} for a, b in rows]
    )
    settings = {
        "per_device_train_batch_size": 32,
        "num_generations": 8,
        "max_steps": STEPS,
        "learning_rate": 3e-4,
        "kernel": {"size": 16},
        "engine": {"context_tokens": 512, "places": 32},
        "budget": {"lines": 4, "tokens": 300, "line_tokens": 48},
        "credit": {"estimator": "outcome"},
        "seed": 0,
    }
    given = {"tools": [multiply], "tools_where": where, "reward_funcs": accuracy}
    with small_trainer(tmp_path, dataset, given, model=imitator, **settings) as trainer:
        trainer.train()
    logged = rows_of(trainer)
    names = ("rewards/accuracy/mean", "tools/multiply/call_frequency", "tools/multiply/failure_frequency")
    for row in logged:
        print(where, [round(row[name], 3) for name in names], "seconds", round(row["tools/multiply/seconds"], 4))
    before, after = (sum(row[names[0]] for row in part) / 3 for part in (logged[:3], logged[-3:]))
    assert before < 0.7 < 0.9 < after
    assert logged[-1]["tools/multiply/call_frequency"] > 0.9
    assert logged[-1]["tools/multiply/failure_frequency"] < 0.1
