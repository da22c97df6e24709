"""Which trajectories a report shows: a handful out of hundreds, chosen by rule and not by looks.

Held-out: the same problems before and after training, those that it changed first. Training: of the first and of the
last step one solved and one unsolved trajectory, of one task where a group holds both.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby

from repl_rl.trajectory import Trajectory
from repl_rl.view.run import Rollouts, Run
from repl_rl.view.words import solved


@dataclass(frozen=True, slots=True)
class Example:
    """A trajectory and the step of the run that it comes from."""

    step: int
    trajectory: Trajectory


@dataclass(frozen=True, slots=True)
class ExampleGroup:
    """Trajectories to be read beside each other, with a heading that says why."""

    heading: str
    examples: tuple[Example, ...]


def examples(run: Run, pairs: int = 4) -> list[ExampleGroup]:
    """What the report shows of this run; nothing where it has no trajectories."""
    return [*_heldout(run.evaluations, pairs), *filter(None, (_training(rollouts) for rollouts in run.rollouts))]


def _heldout(evaluations: Sequence[Rollouts], count: int) -> list[ExampleGroup]:
    if len(evaluations) < 2:
        return []
    before, after = evaluations
    late = {trajectory.task_id: trajectory for trajectory in after.trajectories}
    pairs = [(early, late[early.task_id]) for early in before.trajectories if early.task_id in late]
    chosen = _spread(sorted(pairs, key=lambda pair: _interest(*pair)), count)
    return [
        ExampleGroup(_change(*pair), (Example(before.step, pair[0]), Example(after.step, pair[1]))) for pair in chosen
    ]


def _interest(early: Trajectory, late: Trajectory) -> int:
    """Learned comes first, then lost, then never learned, then known from the start."""
    order = [(False, True), (True, False), (False, False), (True, True)]
    return order.index((solved(early), solved(late)))


def _change(early: Trajectory, late: Trajectory) -> str:
    words = {
        (False, True): "Learned: unsolved before, solved after",
        (True, False): "Lost: solved before, unsolved after",
        (False, False): "Unsolved before and after",
        (True, True): "Solved before and after",
    }
    return words[solved(early), solved(late)]


def _spread(pairs: list[tuple[Trajectory, Trajectory]], count: int) -> list[tuple[Trajectory, Trajectory]]:
    """Half of the places to the first kind of pair, the rest to the others; families differ where they can."""
    by_interest = [_by_family(group) for _, group in groupby(pairs, key=lambda pair: _interest(*pair))]
    firsts = [pair for group in by_interest for pair in group[: (count + 1) // 2 if group is by_interest[0] else 1]]
    rest = [pair for group in by_interest for pair in group if pair not in firsts]
    chosen = [*firsts[:count], *rest[: max(0, count - len(firsts))]]
    return sorted(chosen, key=lambda pair: _interest(*pair))


def _by_family(pairs: Iterable[tuple[Trajectory, Trajectory]]) -> list[tuple[Trajectory, Trajectory]]:
    """Stable order in which no family comes again before every other one has come as often."""
    seen: dict[str, int] = {}
    ranked: list[tuple[int, tuple[Trajectory, Trajectory]]] = []
    for pair in pairs:
        family = pair[0].task_id.partition("-")[0]
        seen[family] = seen.get(family, 0) + 1
        ranked.append((seen[family], pair))
    return [pair for _, pair in sorted(ranked, key=lambda item: item[0])]


def _training(rollouts: Rollouts) -> ExampleGroup | None:
    usable = [trajectory for trajectory in rollouts.trajectories if not trajectory.is_void]
    if not usable:
        return None
    right = [trajectory for trajectory in usable if solved(trajectory)]
    wrong = [trajectory for trajectory in usable if not solved(trajectory)]
    mixed = {trajectory.task_id for trajectory in right} & {trajectory.task_id for trajectory in wrong}
    chosen = [_preferred(side, mixed) for side in (right, wrong) if side]
    heading = f"Training, step {rollouts.step}"
    if len(chosen) == 2 and mixed:
        heading += ": one task, solved and not"
    return ExampleGroup(heading, tuple(Example(rollouts.step, trajectory) for trajectory in chosen))


def _preferred(side: list[Trajectory], mixed: set[str]) -> Trajectory:
    """The first one of the first task that was both solved and not, else the first of all."""
    first_mixed = min(mixed, default="")
    return next((trajectory for trajectory in side if trajectory.task_id == first_mixed), side[0])
