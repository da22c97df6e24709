"""What a training step costs: seconds by phase, memory and tokens.

`repl-rl doctor --train` and `repl-rl bench train` have their figures from here. Memory is torch's on a GPU, and the
whole process's on a CPU. Before a step and before each of its phases, unused memory is freed and the peak is forgotten,
so that each peak is of one phase; the time that this takes is in no figure.

Not covered: what other processes hold, and phases inside of others.
"""

from __future__ import annotations

import ctypes
import functools
import gc
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(slots=True)
class StepCost:
    """What one step takes. A phase that comes several times in a step has the sum of their seconds, and the highest of
    their peaks. Memory is in MiB."""

    held_mb: float
    """What was held before the step."""
    step_s: float = 0.0
    phases_s: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    peak_mb: float = 0.0
    """The most that was held in the step, with what was held before."""
    peaks_mb: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    tokens: int = 0

    @property
    def rest_s(self) -> float:
        """What the step took outside of its phases."""
        return self.step_s - sum(self.phases_s.values())


class StepMeter:
    """Measures one step after another on `device`, as torch names its type: `cuda`, or `cpu` for anything else.

    Outside of a step, phases and tokens are not measured.
    """

    def __init__(self, device: str) -> None:
        self.steps: list[StepCost] = []
        """The steps that have ended."""
        self._device = device
        self._step: StepCost | None = None
        self._step_began_s = 0.0
        self._overhead_s = 0.0
        """What measuring took of the step."""

    def begin_step(self) -> None:
        self._step = StepCost(held_mb=self._forget_peak())
        self._overhead_s = 0.0
        self._step_began_s = time.perf_counter()

    def end_step(self) -> StepCost:
        assert self._step is not None
        step = self._step
        step.step_s = self._now_s() - self._step_began_s - self._overhead_s
        step.peak_mb = max(step.peak_mb, self.peak_mb())
        self.steps.append(step)
        self._step = None
        return step

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Measures the block as a phase of the step. Phases don't overlap."""
        step = self._step
        if step is None:
            yield
            return
        called_s = self._now_s()
        step.peak_mb = max(step.peak_mb, self.peak_mb())  # of what came before the phase
        self._forget_peak()
        began_s = time.perf_counter()
        self._overhead_s += began_s - called_s
        yield
        ended_s = self._now_s()
        peak_mb = self.peak_mb()
        step.phases_s[name] += ended_s - began_s
        step.peaks_mb[name] = max(step.peaks_mb[name], peak_mb)
        step.peak_mb = max(step.peak_mb, peak_mb)
        self._overhead_s += time.perf_counter() - ended_s

    def follow(self, owner: Any, method: str, phase: str, tokens: Callable[[Any], int] = lambda result: 0) -> None:
        """From now on, each call of this method of `owner` is a phase. `tokens` counts those in what it returns."""
        original: Callable[..., Any] = getattr(owner, method)

        @functools.wraps(original)
        def followed(*arguments: Any, **named: Any) -> Any:
            with self.phase(phase):
                result = original(*arguments, **named)
            self.count(tokens(result))
            return result

        setattr(owner, method, followed)

    def count(self, tokens: int) -> None:
        """These tokens are in the step as well."""
        if self._step is not None:
            self._step.tokens += tokens

    def peak_mb(self) -> float:
        """The most memory that was held since the last step or phase began; before the first, since the process did."""
        if self._device == "cuda":
            import torch

            torch.cuda.synchronize()
            return float(torch.cuda.max_memory_allocated()) / 2**20
        return _process_mb("VmHWM")

    def _forget_peak(self) -> float:
        """Free unused memory and reset the peak; returns the memory in MiB that is held now."""
        gc.collect()
        if self._device == "cuda":
            import torch

            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
            return float(torch.cuda.memory_allocated()) / 2**20
        ctypes.CDLL(None).malloc_trim(0)
        Path("/proc/self/clear_refs").write_text("5")
        return _process_mb("VmRSS")

    def _now_s(self) -> float:
        """The time at which the device has done what it was given."""
        if self._device == "cuda":
            import torch

            torch.cuda.synchronize()
        return time.perf_counter()


def _process_mb(name: str) -> float:
    """A field of this process's status file, in MiB."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    [line] = [line for line in lines if line.startswith(name + ":")]
    _, kib, _ = line.split()
    return int(kib) / 1024
