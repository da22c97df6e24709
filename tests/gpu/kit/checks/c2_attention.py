"""Check 2: attention of one layer at Qwen3-4B's shape, forward and backward: ours beside what else torch has.

Eight sequences of 1,600 tokens, the first 400 of which all share. `packed` is ours (`repl_rl.trainer.attention`)
on one row, with the shared tokens in it once; `whole` is the same without sharing; `one by one` is `packed` with a call
for each sequence, as it is in float32; `padded` is SDPA on a batch, without and with the mask that transformers makes
for padding. TFLOP/s count what the values need, for each side the same kind: 3.5 times the causal forward pass. Errors
are ‖out - ref‖ / ‖ref‖ against float64, over outputs and all three gradients. cuDNN's attention is off, as in repl_rl.
"""

import functools
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from common import TINY, attempt, device, median_ms, peak_gb, record, reset_peak, wait
from torch.nn.functional import scaled_dot_product_attention

from repl_rl.trainer.attention import packed_attention
from repl_rl.trainer.packing import Packed

HEADS, KV_HEADS, SIZE = (4, 2, 16) if TINY else (32, 8, 128)
SEQUENCES, LENGTH, SHARED = (3, 48, 12) if TINY else (8, 1600, 400)
OWN = LENGTH - SHARED
SCALE = SIZE**-0.5


def attend(
    states: Sequence[torch.Tensor], lengths: tuple[int, ...], shared: tuple[torch.Tensor, ...], one_by_one: bool = False
) -> torch.Tensor:
    """Our attention over one row."""
    none = torch.zeros(1, sum(lengths), dtype=torch.long, device=device())
    row = Packed(none, none, lengths, shared, none[0], none[0], none[0])
    named = {"sequence_lengths": lengths, "sequence_shared": shared, "sequence_seen": None if one_by_one else row.seen}
    named |= {"cu_seq_lens_q": row.bounds, "cu_seq_lens_k": row.seen_bounds}
    named |= {"max_length_q": max(lengths), "max_length_k": row.longest}
    return packed_attention(torch.nn.Module(), *states, None, scaling=SCALE, **named)[0]


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

    def ours(self, one_by_one: bool = False) -> torch.Tensor:
        return attend(self.states, self.lengths, self.shared, one_by_one)

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


def new_lengths(dtype: torch.dtype) -> None:
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
    record(2, "new lengths", dtype=str(dtype), **medians)


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

    for name, forward, upward, leaves, flops in (
        ("packed", row.ours, row.upstream, row.states, shared_flops),
        ("one by one", lambda: row.ours(one_by_one=True), row.upstream, row.states, shared_flops),
        ("whole", whole, upstream, states, whole_flops),
    ):
        attempt(2, name, functools.partial(measure, name, dtype, forward, upward, leaves, flops))
    attempt(2, "new lengths", lambda: new_lengths(dtype))

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


if __name__ == "__main__":
    torch.backends.cuda.enable_cudnn_sdp(False)
    record(2, "shape", heads=HEADS, kv_heads=KV_HEADS, size=SIZE, sequences=SEQUENCES, length=LENGTH, shared=SHARED)
    for dtype in (torch.bfloat16, torch.float32):
        main(dtype)
