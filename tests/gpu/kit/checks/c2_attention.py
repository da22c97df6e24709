"""Check 2: attention of one layer at Qwen3-4B's shape, forward and backward: ours beside what else torch has.

Eight sequences of 1,600 tokens, the first 400 of which all share. `packed` is `repl_rl.trainer.packed.packed_attention`
on one row, with the shared tokens in it once; `whole` is the same without sharing; `padded` is SDPA on a batch, without
and with the mask that transformers makes for padding; `varlen` is `torch.nn.attention.varlen`. TFLOP/s count what the
values need, for each side the same kind: 3.5 times the causal forward pass. Errors are ‖out - ref‖ / ‖ref‖ against
float64, over outputs and all three gradients.

vLLM switches cuDNN's attention off in its process, so the trainer beside it has flash attention; both are measured, and
what the first pass over new lengths costs, for which cuDNN makes a plan each time.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from inspect import signature
from typing import Any

import torch
from common import TINY, attempt, device, median_ms, peak_gb, record, reset_peak, wait
from torch.nn.functional import scaled_dot_product_attention

from repl_rl.trainer.packed import packed_attention

HEADS, KV_HEADS, SIZE = (4, 2, 16) if TINY else (32, 8, 128)
SEQUENCES, LENGTH, SHARED = (3, 48, 12) if TINY else (8, 1600, 400)
OWN = LENGTH - SHARED
SCALE = SIZE**-0.5


def attend(states: Sequence[torch.Tensor], lengths: tuple[int, ...], shared: tuple[torch.Tensor, ...]) -> torch.Tensor:
    """Our attention over one row."""
    layer, named = torch.nn.Module(), {"sequence_lengths": lengths, "sequence_shared": shared}
    return packed_attention(layer, *states, None, scaling=SCALE, **named)[0]


class Row:
    """One row with shared tokens in it once: N tokens, of which the first sequence owns its whole length."""

    def __init__(self, dtype: torch.dtype) -> None:
        generator = torch.Generator(device=device()).manual_seed(0)
        tokens = LENGTH + (SEQUENCES - 1) * OWN
        shapes = ((1, HEADS, tokens, SIZE), (1, KV_HEADS, tokens, SIZE), (1, KV_HEADS, tokens, SIZE))
        self.states = [
            torch.randn(shape, generator=generator, device=device()).to(dtype).requires_grad_() for shape in shapes
        ]
        self.upstream = torch.randn((1, tokens, HEADS, SIZE), generator=generator, device=device()).to(dtype)
        prefix = torch.arange(SHARED, device=device())
        none = prefix[:0]
        self.lengths = (LENGTH, *(OWN,) * (SEQUENCES - 1))
        self.shared = (none, *(prefix,) * (SEQUENCES - 1))
        starts = [0, *(LENGTH + number * OWN for number in range(SEQUENCES - 1))]
        self.places = [
            torch.cat([before, torch.arange(start, start + own, device=device())])
            for before, start, own in zip(self.shared, starts, self.lengths, strict=True)
        ]

    def ours(self) -> torch.Tensor:
        return attend(self.states, self.lengths, self.shared)

    def clear(self) -> None:
        for each in self.states:
            each.grad = None

    def whole(self) -> list[torch.Tensor]:
        """The states of each sequence, one after another: (1, H, sequences * length, D)."""
        every = torch.cat(self.places)
        return [each.detach()[:, :, every].clone().requires_grad_() for each in self.states]

    def reference(self) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """Output and gradients in float64, one sequence at a time."""
        states = [each.detach().double().requires_grad_() for each in self.states]
        out = torch.zeros(self.upstream.shape, dtype=torch.float64, device=device())
        causal = torch.ones(LENGTH, LENGTH, dtype=torch.bool, device=device()).tril()
        for place, own in zip(self.places, self.lengths, strict=True):
            query, key, value = (each[:, :, place] for each in states)
            key, value = (each.repeat_interleave(HEADS // KV_HEADS, dim=1) for each in (key, value))
            weights = (query @ key.transpose(2, 3) * SCALE).masked_fill(~causal, -torch.inf).softmax(-1)
            part = (weights @ value).transpose(1, 2)[:, -own:]  # the shared tokens are the first sequence's
            out[:, place[-own:]] = part.detach()
            (part * self.upstream[:, place[-own:]].double()).sum().backward()
        return out, [each.grad for each in states]


def error(found: torch.Tensor, wanted: torch.Tensor) -> float:
    return float((found.double() - wanted).norm() / wanted.norm())


def kernels(work: Callable[[], Any]) -> list[str]:
    """The GPU's kernels by their share of the time, most first."""
    from torch.profiler import ProfilerActivity, profile

    if device() == "cpu":
        return []
    with profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as watched:
        work()
        torch.cuda.synchronize()
    events = [event for event in watched.key_averages() if event.device_type == torch.autograd.DeviceType.CUDA]
    events.sort(key=lambda event: -event.self_device_time_total)
    total = sum(event.self_device_time_total for event in events) or 1
    return [f"{event.self_device_time_total / total:.0%} {event.key[:70]} x{event.count}" for event in events[:4]]


def measure(
    name: str,
    dtype: torch.dtype,
    forward: Callable[[], torch.Tensor],
    upstream: torch.Tensor,
    leaves: list[torch.Tensor],
    flops: float,
) -> None:
    def backward() -> None:
        for each in leaves:
            each.grad = None
        forward().backward(upstream)

    with torch.no_grad():
        forward_ms = median_ms(forward)
    reset_peak()
    both_ms = median_ms(backward)
    record(
        2,
        name,
        dtype=str(dtype).removeprefix("torch."),
        forward_ms=forward_ms,
        both_ms=both_ms,
        tflops=3.5 * flops / both_ms / 1e9,
        peak_gb=peak_gb(),
        kernels=kernels(backward),
    )


def new_lengths(name: str, dtype: torch.dtype) -> None:
    """The first and the second pass over batches of lengths that were not there before."""
    first, second, none = [], [], torch.arange(0, device=device())
    for batch in range(6):
        lengths = tuple(
            LENGTH - (1 if TINY else 37) * batch - (2 if TINY else 61) * number for number in range(SEQUENCES)
        )
        shapes = ((1, heads, sum(lengths), SIZE) for heads in (HEADS, KV_HEADS, KV_HEADS))
        states = [torch.randn(shape, device=device(), dtype=dtype, requires_grad=True) for shape in shapes]
        for times in (first, second):
            wait()
            began = time.perf_counter()
            attend(states, lengths, (none,) * SEQUENCES).sum().backward()
            wait()
            times.append((time.perf_counter() - began) * 1e3)
    medians = {"first_ms": statistics.median(first[1:]), "second_ms": statistics.median(second[1:])}
    record(2, f"new lengths, {name}", dtype=str(dtype), **medians)


def causal_flops(queries: int, before: int = 0) -> float:
    """Of a forward pass over `queries` tokens that follow `before` others."""
    return 4 * HEADS * SIZE * (queries * (queries + 1) / 2 + queries * before)


def main(dtype: torch.dtype) -> None:
    row = Row(dtype)
    shared_flops = causal_flops(LENGTH) + (SEQUENCES - 1) * causal_flops(OWN, SHARED)
    whole_flops = SEQUENCES * causal_flops(LENGTH)

    def agree() -> None:
        wanted, gradients = row.reference()
        row.clear()
        found = row.ours()
        found.backward(row.upstream)
        errors = [error(each.grad, gradient) for each, gradient in zip(row.states, gradients, strict=True)]
        record(2, "packed agrees with float64", dtype=str(dtype), output=error(found, wanted), gradients=errors)

    attempt(2, "packed agrees with float64", agree)
    states = row.whole()

    def whole() -> torch.Tensor:
        return attend(states, (LENGTH,) * SEQUENCES, (row.shared[0],) * SEQUENCES)

    upstream = torch.randn_like(states[0].transpose(1, 2))

    def packed_and_whole(how: str = "") -> None:
        ours = row.ours, row.upstream, row.states, shared_flops
        attempt(2, "packed", lambda: measure(f"packed{how}", dtype, *ours))
        attempt(2, "whole", lambda: measure(f"whole{how}", dtype, whole, upstream, states, whole_flops))

    packed_and_whole()
    attempt(2, "new lengths", lambda: new_lengths("as torch chooses", dtype))

    def padded() -> None:
        sides = ((each.size(1), SEQUENCES, LENGTH, SIZE) for each in states)
        batch = [
            each.detach().view(side).transpose(0, 1).clone().requires_grad_()
            for each, side in zip(states, sides, strict=True)
        ]
        upstream = torch.randn_like(batch[0])

        def causal() -> torch.Tensor:
            return scaled_dot_product_attention(*batch, is_causal=True, scale=SCALE, enable_gqa=True)

        measure("padded, causal", dtype, causal, upstream, batch, whole_flops)
        mask = torch.ones(LENGTH, LENGTH, dtype=torch.bool, device=device()).tril()
        mask = mask.expand(SEQUENCES, 1, -1, -1).clone()
        mask[:, :, :, 0] &= torch.arange(LENGTH, device=device()) < 1 + LENGTH  # a mask that no kernel can guess

        def masked() -> torch.Tensor:
            key, value = (each.repeat_interleave(HEADS // KV_HEADS, dim=1) for each in batch[1:])
            return scaled_dot_product_attention(batch[0], key, value, attn_mask=mask, scale=SCALE)

        measure("padded, with a mask", dtype, masked, upstream, batch, whole_flops)

    attempt(2, "padded", padded)

    def varlen() -> None:
        from torch.nn.attention.varlen import varlen_attn

        flat = [each.detach()[0].transpose(0, 1).contiguous().requires_grad_() for each in states]  # (N, H, D)
        bounds = torch.arange(SEQUENCES + 1, dtype=torch.int32, device=device()) * LENGTH

        def forward(repeats: bool) -> torch.Tensor:
            key, value = (each.repeat_interleave(HEADS // KV_HEADS, dim=1) if repeats else each for each in flat[1:])
            asks = "enable_gqa" in signature(varlen_attn).parameters  # later versions of torch do
            groups = {"enable_gqa": True} if asks else {}
            return varlen_attn(
                flat[0], key, value, bounds, bounds, LENGTH, LENGTH, scale=SCALE, window_size=(-1, 0), **groups
            )

        repeats = False
        try:
            forward(repeats).sum().backward()
        except (RuntimeError, ValueError) as refusal:  # it may want as many heads everywhere
            record(2, "varlen with groups of heads", dtype=str(dtype), failed=str(refusal)[:200])
            repeats = True
            forward(repeats).sum().backward()
        name = "varlen, heads repeated" if repeats else "varlen"
        measure(name, dtype, lambda: forward(repeats), torch.randn_like(flat[0]), flat, whole_flops)
        with torch.no_grad():
            record(2, "varlen beside whole", dtype=str(dtype), output=error(forward(repeats)[None], whole().double()))

    if dtype == torch.bfloat16:  # flash attention takes no float32
        attempt(2, "varlen", varlen)
    if dtype == torch.bfloat16:
        torch.backends.cuda.enable_cudnn_sdp(False)
        try:
            packed_and_whole(", no cuDNN")
            attempt(2, "new lengths", lambda: new_lengths("no cuDNN", dtype))
        finally:
            torch.backends.cuda.enable_cudnn_sdp(True)


if __name__ == "__main__":
    record(2, "shape", heads=HEADS, kv_heads=KV_HEADS, size=SIZE, sequences=SEQUENCES, length=LENGTH, shared=SHARED)
    for dtype in (torch.bfloat16, torch.float32):
        main(dtype)
