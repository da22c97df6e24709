"""What each process holds of a model that `accelerate launch` shards: before that, and after a pass without a gradient.

    accelerate launch --num_processes 2 --mixed_precision bf16 --use_fsdp ... whole_weights.py FOLDER FILE.gguf

Each process writes sums of absolute weights, by where they are, to FOLDER/RANK.json, and which models were sharded when
their packed passes were tried. Each converts the GGUF file for itself.
"""

import json
import sys
from pathlib import Path
from typing import Any

import sharded
import torch

sharded.over_gloo()

from recorded import first_is_right, make_tasks_named, recorded_trainer  # noqa: E402
from torch.distributed.tensor import DTensor  # noqa: E402
from transformers import AutoModelForCausalLM  # noqa: E402

from repl_rl.config import EngineConfig, ModelConfig  # noqa: E402
from repl_rl.engine import load_vocabulary  # noqa: E402
from repl_rl.engine.transformers import TransformersEngine  # noqa: E402
from repl_rl.models import gguf  # noqa: E402
from repl_rl.models.nano import NANO_PATH  # noqa: E402
from repl_rl.models.whole import whole_weights  # noqa: E402
from repl_rl.trainer.forward import TypedForward  # noqa: E402
from repl_rl.trainer.weights import EngineGeneration  # noqa: E402
from repl_rl.utils.distributed import join, leave, process_rank  # noqa: E402

NANO = str(NANO_PATH)


def total(weights: Any) -> float:
    """The sum over the whole of tensors that may be sharded; all processes have to ask for it."""
    whole = [weight.full_tensor() if isinstance(weight, DTensor) else weight for weight in weights]
    return sum(weight.detach().double().abs().sum().item() for weight in whole)


def open_engine() -> TransformersEngine:
    config = EngineConfig(backend="transformers", context_tokens=64, places=1)
    return TransformersEngine(NANO, load_vocabulary(NANO), ModelConfig(path=NANO, dtype="float32"), config)


def converted(file: str, folder: Path) -> float:
    folder.mkdir()
    gguf.convert(file, folder)
    with whole_weights():
        return total(AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).parameters())


def watch_probes() -> list[bool]:
    """Whether the weights were sharded, of each model whose packed passes have been tried since."""
    found: list[bool] = []
    opened = TypedForward.open

    def watched(model: Any, device: torch.device) -> Any:
        found.append(all(isinstance(weight, DTensor) for weight in model.parameters()))
        return opened(model, device)

    TypedForward.open = watched  # type: ignore[method-assign]
    return found


def sent_after_a_pass(trainer: Any, engine: TransformersEngine) -> float:
    """Of what the engine is sent when the trainer has just computed log-probabilities in bfloat16."""
    trainer.train()
    trainer.logprobs(trainer.batch())
    sender = EngineGeneration(
        engine, model=trainer.model, accelerator=trainer.accelerator, processing_class=trainer.processing_class
    )
    return total(weight for _, weight in sender.whole_weights())


def main(folder: Path, file: str) -> None:
    join()
    engine, probed = open_engine(), watch_probes()
    plain = AutoModelForCausalLM.from_pretrained(NANO, dtype=torch.float32)
    sums: dict[str, Any] = {
        "loaded as accelerate says": total(plain.parameters()),
        "engine": total(engine._model._model.parameters()),
        "converted": converted(file, folder / f"converted-{process_rank()}"),
    }
    for name, model in (("by name", NANO), ("by a model", plain)):
        trainer = recorded_trainer(
            folder, first_is_right, make_tasks_named(*"abcd"), model=model, beta=0.1, bf16=True, learning_rate=0.0
        )
        sums[f"trainer, {name}"] = total(trainer.model.parameters())
        sums[f"reference, {name}"] = total(trainer.ref_model.parameters())
        sums[f"sent, {name}"] = sent_after_a_pass(trainer, engine)
    engine.close()
    sums["sharded when probed"] = probed
    (folder / f"{process_rank()}.json").write_text(json.dumps(sums), encoding="utf-8")
    leave()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
