"""Packed passes of real architectures give what one sequence at a time gives: values, entropies, gradients."""

import json
import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from families import FAMILIES, random_model
from peft import LoraConfig, get_peft_model
from test_packing import padded
from trl.trainer.utils import add_fused_lm_head

from repl_rl.trainer import attention
from repl_rl.trainer import forward as forwards
from repl_rl.trainer.forward import TypedForward
from repl_rl.trainer.packing import pack

CPU = torch.device("cpu")
TEMPERATURE = 0.7
# The third has the first one's prompt and first token, the fourth begins as the second does.
PROMPTS = [[5, 6, 7], [8, 9, 10, 11, 12], [5, 6, 7], [8, 9, 13]]
COMPLETIONS = [[20, 21, 22, 23, 24, 25, 26, 27, 28], [30, 31, 32], [20, 41, 42, 43, 44, 45], [50, 51, 52, 53]]
MASKS = [[1, 1, 0, 0, 1, 0, 1, 1, 0], [1, 0, 1], [1, 1, 1, 1, 0, 0], [1, 1, 0, 1]]


def make_model(name: str, **arguments: Any) -> Any:
    model = random_model(name, dtype=torch.float64, **arguments)
    add_fused_lm_head(model, temperature=TEMPERATURE, outputs=("log_probs", "entropy"))
    return model.eval()


def batch() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    ids, typed = padded(PROMPTS, COMPLETIONS, MASKS)
    return ids, (ids > 0).long(), typed


def plainly(model: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probability and entropy of each typed token, by log_softmax over one sequence after another."""
    logprobs, entropies = [], []
    for prompt, completion, mask in zip(PROMPTS, COMPLETIONS, MASKS, strict=True):
        logits = model(input_ids=torch.tensor([prompt + completion])).logits[0] / TEMPERATURE  # (S, V)
        all_logprobs = torch.log_softmax(logits, dim=-1)
        for index, (token, was_typed) in enumerate(zip(completion, mask, strict=True)):
            if was_typed:
                at = all_logprobs[len(prompt) + index - 1]
                logprobs.append(at[token])
                entropies.append(-(at.exp() * at).sum())
    return torch.stack(logprobs), torch.stack(entropies)


def gradient(model: Any, values: torch.Tensor) -> torch.Tensor:
    model.zero_grad()
    (values * torch.linspace(-1.0, 2.0, len(values), dtype=values.dtype)).sum().backward()
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


def assert_same_gradient(found: torch.Tensor, expected: torch.Tensor) -> None:
    """To a millionth of the largest entry: TRL's head accumulates in float32."""
    largest = expected.abs().max().item()
    assert largest > 1e-2
    torch.testing.assert_close(found, expected, atol=1e-6 * largest, rtol=1e-5)


@pytest.mark.parametrize("shares", [True, False])
@pytest.mark.parametrize("name", FAMILIES)
def test_values_entropies_and_gradients_are_those_of_one_sequence_at_a_time(name: str, shares: bool) -> None:
    model = make_model(name)
    expected, expected_entropy = plainly(model)
    expected_gradient = gradient(model, expected)
    forward = TypedForward.open(model, CPU)
    assert forward is not None
    row = pack(*batch(), shares=shares)
    assert [len(shared) for shared in row.shared] == ([0, 0, 4, 2] if shares else [0] * 4)
    found, entropy = forward(model, row)
    assert entropy is not None
    torch.testing.assert_close(found.double(), expected, atol=1e-6, rtol=0)
    torch.testing.assert_close(entropy.double(), expected_entropy, atol=1e-6, rtol=0)
    assert_same_gradient(gradient(model, found), expected_gradient)


def kernel(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *bounds: Any, scale: float, window_size: Any, **_: Any
) -> torch.Tensor:
    """What torch's kernel does, which needs a GPU: the last query of a sequence sees up to the last key."""
    starts_q, starts_k, most_q, most_k = bounds
    before, after = window_size
    attended = []
    parts = (
        states.tensor_split(starts[1:-1].long())
        for states, starts in ((query, starts_q), (key, starts_k), (value, starts_k))
    )
    for q, k, v in zip(*parts, strict=True):
        assert len(q) <= most_q
        assert len(k) <= most_k
        at = torch.arange(len(q))[:, None] + len(k) - len(q)
        seen = torch.arange(len(k))[None] <= at + after
        seen &= torch.arange(len(k))[None] >= (at - before if before >= 0 else 0)
        k, v = (x.repeat_interleave(q.size(1) // x.size(1), dim=1) for x in (k, v))
        scores = torch.einsum("qhd,khd->hqk", q, k) * scale
        attended.append(torch.einsum("hqk,khd->qhd", scores.masked_fill(~seen, -torch.inf).softmax(-1), v))
    return torch.cat(attended)


@pytest.mark.parametrize("name", FAMILIES)
def test_the_kernel_of_gpus_is_given_what_it_needs_for_the_same(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = make_model(name)
    expected, _ = plainly(model)
    expected_gradient = gradient(model, expected)
    monkeypatch.setattr(attention, "varlen_attn", Mock(side_effect=kernel))
    for module in (attention, forwards):
        monkeypatch.setattr(module, "kernel_takes", lambda *of_what: True)
    forward = TypedForward.open(model, CPU)
    assert forward is not None
    attention.varlen_attn.reset_mock()  # the probe would have left a wrong call for one that works
    found, _ = forward(model, pack(*batch()))
    assert attention.varlen_attn.called
    torch.testing.assert_close(found.double(), expected, atol=1e-6, rtol=0)
    assert_same_gradient(gradient(model, found), expected_gradient)


def test_a_kernel_of_gpus_that_gives_something_else_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    model = make_model("Llama")
    expected, _ = plainly(model)
    monkeypatch.setattr(attention, "varlen_attn", lambda query, *_, **__: query)
    for module in (attention, forwards):
        monkeypatch.setattr(module, "kernel_takes", lambda *of_what: True)
    forward = TypedForward.open(model, CPU)
    assert forward is not None
    found, _ = forward(model, pack(*batch()))
    torch.testing.assert_close(found.double(), expected, atol=1e-6, rtol=0)


def test_a_model_that_was_opened_still_computes_padded_batches_and_plain_logits() -> None:
    model = make_model("Llama")
    ids, attention, _ = batch()
    before = model(input_ids=ids, attention_mask=attention).logits
    assert TypedForward.open(model, CPU) is not None
    torch.testing.assert_close(model(input_ids=ids, attention_mask=attention).logits, before, atol=0, rtol=0)


def test_lora_and_checkpointing_change_nothing() -> None:
    torch.manual_seed(0)
    model = get_peft_model(make_model("Llama"), LoraConfig(r=2, target_modules=["q_proj", "v_proj"]))
    for name, weight in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(weight, std=0.1)
    expected = plainly(model)[0]
    expected_gradient = gradient(model, expected)
    forward = TypedForward.open(model, CPU)
    assert forward is not None
    model.gradient_checkpointing_enable({"use_reentrant": False})
    model.train()
    found, _ = forward(model, pack(*batch()))
    torch.testing.assert_close(found.double(), expected, atol=1e-6, rtol=0)
    assert_same_gradient(gradient(model, found), expected_gradient)


def test_a_model_that_mixes_the_sequences_is_refused_with_the_reason(caplog: pytest.LogCaptureFixture) -> None:
    mamba = make_model("Mamba")
    with caplog.at_level(logging.WARNING):
        assert TypedForward.open(mamba, CPU) is None
        assert TypedForward.open(make_model("Llama", attn_implementation="eager"), CPU) is None
    assert "can't take several sequences in one row" in caplog.messages[0]
    assert "'eager'" in caplog.messages[1]


def test_a_model_that_ignores_where_sequences_end_is_found_out(caplog: pytest.LogCaptureFixture) -> None:
    model = make_model("Llama")
    layer = model.base_model.layers[0].self_attn
    original = layer.forward

    def forgetful(*arguments: Any, sequence_lengths: Any = None, **named: Any) -> Any:
        return original(*arguments, **named)

    layer.forward = forgetful
    with caplog.at_level(logging.WARNING):
        assert TypedForward.open(model, CPU) is None
    found, expected = (each(torch.tensor([[5, 6, 7]])).logits for each in (model, make_model("Llama")))
    assert torch.equal(found, expected), "it computes as before"


@pytest.mark.more
def test_what_fails_in_one_process_no_process_takes(tmp_path: Path) -> None:
    program = Path(__file__).with_name("disagreeing.py")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2", str(program)]
    paths = {"PYTHONPATH": os.pathsep.join([str(program.parent), str(program.parents[2])]), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*command, str(tmp_path)], env=os.environ | paths, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    first, second = (json.loads((tmp_path / f"{rank}.json").read_text(encoding="utf-8")) for rank in (0, 1))
    assert (first["one call"], first["packs"]) == (second["one call"], second["packs"]) == (False, False)
    *slow, padded_batches = first["said"]  # of both models
    beginning = "attention takes a call for each sequence of a row, which is slow: torch's kernel for all of them can't"
    assert [message.startswith(beginning) for message in slow] == [True, True]
    assert padded_batches.startswith("the loss pads its batches: this model can't take several sequences in one row")
    assert second["said"] == [], "the main process alone says it"
