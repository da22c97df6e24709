"""`repl-rl rescore`: its arguments, and what it prints and writes. Importing this loads nothing heavy."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, NamedTuple

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from repl_rl.errors import ConfigError, ReplRLError, RunError
from repl_rl.trajectory import Trajectory, read_jsonl, recorded_label, write_jsonl
from repl_rl.utils.folders import require_file
from repl_rl.utils.text import shown
from repl_rl.view.terminal import say
from repl_rl.view.words import counted, signed, solved, total_reward

if TYPE_CHECKING:
    from repl_rl.config import Config
    from repl_rl.run.rescore.findings import Findings, Hole, Passing

_SECTIONS = ("rewards", "credit")
_SHOWN = 5
"""How many sessions of a kind are named; the `--json` file has them all."""
_SIGNS = {1: "above 0", 0: "0", -1: "below 0"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `repl-rl rescore`, and set `run` as its command."""
    parser.add_argument("run", type=Path, metavar="RUN", help="a run's folder, or a file of rollouts")
    parser.add_argument(
        "--set", action="append", default=[], metavar="a.b=c", help="another value of the sections rewards and credit"
    )
    parser.add_argument("--config", metavar="CONFIG", help="take both sections from this config")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="keep the rescored sessions, for repl-rl view")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures, and every session that is named")
    parser.set_defaults(command=run)


class Source(NamedTuple):
    """The files to rescore, by training step, and the config of their run, if they are of one."""

    files: tuple[tuple[int, Path], ...]
    config: Config | None


def run(options: argparse.Namespace, console: Console) -> int:
    """Rescore step by step, print what changed, and write. Raises ConfigError and RunError before anything is read."""
    if options.json is not None:
        require_file("--json", options.json)
    if options.out is not None and options.out.exists():
        raise ConfigError(f"--out {options.out}: it exists already; give the name of a new folder")
    source = source_of(options.run)
    config = _asked(options, source)
    _require_all_steps(options.run, source, config)
    from repl_rl.config import dump_config
    from repl_rl.rollout import Rescoring
    from repl_rl.run.rescore.findings import Findings
    from repl_rl.view.run import RESCORED

    rescoring = Rescoring(config.rewards, config.credit)
    unchanged = Unchanged(source.config, _has_all_steps(options.run, source))
    findings = Findings()
    metrics = []
    notes = []
    group_size = None if source.config is None else source.config.train.group_size
    for step, file in source.files:
        recorded = list(read_jsonl(file))
        incomplete = _what_is_missing(recorded, group_size)
        if incomplete and len(source.files) == 1:
            raise RunError(f"{file}{incomplete}")
        if incomplete:
            notes.append(f"{file.name}{incomplete}; it is left out")
            continue
        rescored = rescoring.step(recorded, group_size, step - 1)
        findings.add(file.name, recorded, rescored, group_size or _size_of_first_group(recorded))
        unchanged.add(recorded, group_size, step - 1)
        if options.out is not None:
            labels = map(recorded_label, recorded)
            write_jsonl(options.out / "rollouts" / file.name, rescored, labels=labels)
            metrics.append({"kind": "train", "step": step, **_means(rescored)})
    changes = [] if source.config is None else changed_settings(source.config, config)
    for sentence in _head(options.run, source, findings, changes):
        say(console, sentence)
    for sentence in unchanged.sentences(is_asked=source.config is not None and not changes):
        say(console, sentence)
    for note in notes:
        say(console, f"note: {note}", style="yellow")
    _print_findings(console, findings)
    report = {"of": str(options.run), "changed": changes, **_report(findings)}
    report_text = json.dumps(report, indent=1, allow_nan=False) + "\n"
    if options.json is not None:
        options.json.write_text(report_text, encoding="utf-8")
    if options.out is not None:
        (options.out / RESCORED).write_text(report_text, encoding="utf-8")
        rows = [json.dumps(row) + "\n" for row in metrics]
        (options.out / "metrics.jsonl").write_text("".join(rows), encoding="utf-8")
        (options.out / "config.yaml").write_text(dump_config(config), encoding="utf-8")
        say(console, f"line by line, both advantages beside each other: repl-rl view {options.out}")
    return 0


def _means(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    """What the curves of the page can show."""
    valid = [trajectory for trajectory in trajectories if not trajectory.is_void]
    if not valid:
        return {}
    return {
        "reward": fmean(total_reward(trajectory) or 0.0 for trajectory in valid),
        "solve_rate": fmean(solved(trajectory) for trajectory in valid),
    }


def source_of(path: Path) -> Source:
    """The files at `path`, in the order of their steps. Raises RunError if there are none."""
    from repl_rl.run.folder import RunFolder

    if path.is_file():
        folder = RunFolder(path.resolve().parent.parent)
        is_of_run = path.resolve().parent == folder.rollouts and folder.config_path.is_file()
        return Source(((_step_of(path) or 1, path),), folder.config() if is_of_run else None)
    folder = RunFolder(path)
    files = []
    for file in folder.rollouts.glob("step_*.jsonl"):
        step = _step_of(file)
        if step is not None:
            files.append((step, file))
    if not files:
        raise RunError(f"no sessions of training at {path}: give a run's folder, which has rollouts/, or a .jsonl file")
    return Source(tuple(sorted(files)), folder.config() if folder.config_path.is_file() else None)


def _step_of(file: Path) -> int | None:
    digits = file.stem.removeprefix("step_")
    return int(digits) if digits.isdecimal() and file.stem.startswith("step_") else None


def _asked(options: argparse.Namespace, source: Source) -> Config:
    """The config whose rewards and credit are asked for. Raises ConfigError for settings of other sections."""
    from repl_rl.config import load_config, parse_config

    for override in options.set:
        key, _, value = override.partition("=")
        if key.partition(".")[0] not in _SECTIONS:
            raise ConfigError(
                f"--set {override}: the sessions stay as they were recorded, so only settings of rewards and credit "
                "can be others"
            )
        if key == "rewards.preset":
            raise ConfigError(
                f"--set {override}: the run's config has all keys of its preset written out, and they would stay; "
                f"take the whole section: --set rewards={value}"
            )
    overrides = tuple(options.set)
    if source.config is None:
        if options.config is None:
            raise ConfigError(
                f"{options.run} is not in a run's folder, so there is no config to begin with; name one with --config"
            )
        return load_config(options.config, overrides)
    if options.config is None:
        return parse_config(source.config.model_dump(mode="json"), overrides)
    other = load_config(options.config).model_dump(mode="json")
    values = source.config.model_dump(mode="json") | {section: other[section] for section in _SECTIONS}
    return parse_config(values, overrides)


def _has_all_steps(path: Path, source: Source) -> bool:
    """Whether no step is missing before the last: each batch of a run has a file, in equal distances."""
    steps = [step for step, _ in source.files]
    gaps = {later - earlier for earlier, later in pairwise(steps)}
    return not path.is_file() and steps[0] == 1 and len(gaps) <= 1


def _require_all_steps(path: Path, source: Source, config: Config) -> None:
    """Raises RunError where an estimator would miss the steps before."""
    if config.credit.estimator == "critic" and not _has_all_steps(path, source):
        raise RunError(
            f"credit.estimator: critic remembers the steps before, and {path} does not have all of them; give the "
            "folder of a run that kept its rollouts from the first step on"
        )


def _what_is_missing(trajectories: Sequence[Trajectory], group_size: int | None) -> str:
    """Why a file can't be compared with, to follow its name; "" if it can."""
    if not trajectories:
        return " holds no session"
    for index, trajectory in enumerate(trajectories):
        if any(line.advantage is None for line in trajectory.lines):
            return (
                f"#{index} has no advantages to compare with: rescore takes sessions of training (rollouts/ of a run; "
                "a step that was interrupted has none), or a group of one problem whose answer was known (repl-rl "
                "rollout --task --answer -n 8 --out)"
            )
    if group_size is not None and len(trajectories) % group_size:
        return f" has {len(trajectories)} sessions, which are no whole groups of {group_size}"
    return ""


def _size_of_first_group(trajectories: Sequence[Trajectory]) -> int:
    first = trajectories[0].task_id
    return sum(trajectory.task_id == first for trajectory in trajectories)


class Unchanged:
    """Whether sessions come out as they were recorded, under the config of their run."""

    def __init__(self, config: Config | None, has_all_steps: bool) -> None:
        """None if it is not known. Without all steps, an estimator with a memory is not asked."""
        self._rescoring: Any = None
        self._failure = ""
        self._others = 0
        self._count = 0
        if config is None or (config.credit.estimator == "critic" and not has_all_steps):
            return
        from repl_rl.rollout import Rescoring

        try:
            self._rescoring = Rescoring(config.rewards, config.credit)
        except ReplRLError as error:
            self._failure = str(error)

    def add(self, recorded: Sequence[Trajectory], group_size: int | None, step: int) -> None:
        if self._rescoring is None:
            return
        for before, after in zip(recorded, self._rescoring.step(recorded, group_size, step), strict=True):
            self._count += 1
            self._others += worths(before) != worths(after)

    def sentences(self, is_asked: bool) -> Iterator[str]:
        """With `is_asked`, that everything is as recorded is said too."""
        if is_asked and self._count and not self._others:
            yield "  with the run's own rewards and credit, every session comes out as it was recorded"
        if self._failure:
            yield f"the run's own rewards can't be computed again here: {self._failure}"
        if self._others:
            yield (
                f"under the run's own config, {self._others} of {counted(self._count, 'session')} come out otherwise "
                "than recorded, so not all of what follows is due to other settings: the run was resumed with another "
                "config, or a reward function does not always give the same"
            )


def worths(trajectory: Trajectory) -> list[tuple[float | None, float | None]]:
    """The reward and the advantage of each line."""
    return [(line.reward, line.advantage) for line in trajectory.lines]


def changed_settings(before: Config, after: Config) -> list[tuple[str, Any, Any]]:
    """The settings of rewards and credit that differ, with both values; None for what is not set."""
    from repl_rl.run.resume import ABSENT, differences

    changes = []
    for section in _SECTIONS:
        recorded = getattr(before, section).model_dump(mode="json")
        asked = getattr(after, section).model_dump(mode="json")
        for key, there, here in sorted(differences(recorded, asked, f"{section}.")):
            changes.append((key, None if there is ABSENT else there, None if here is ABSENT else here))
    return changes


def _head(path: Path, source: Source, findings: Findings, changes: Sequence[tuple[str, Any, Any]]) -> Iterator[str]:
    steps = counted(len(source.files), "step")
    sessions = counted(findings.sessions, "session")
    yield f"{path}: {steps}, {sessions} in {counted(findings.groups, 'group')}, {counted(findings.lines, 'line')}"
    for key, before, after in changes:
        yield f"  {key}: {_setting(after)}, was {_setting(before)}"


def _setting(value: Any) -> str:
    return "not set" if value is None else shown(value)


def _print_findings(console: Console, findings: Findings) -> None:
    changed = findings.sign_changes
    share = changed / max(findings.lines, 1)
    say(console, f"{counted(changed, 'line')} ({share:.1%}) have an advantage of another sign", style="bold")
    for (before, after), count in findings.signs.most_common():
        if before != after:
            say(console, f"  {count:,} from {_SIGNS[before]} to {_SIGNS[after]}")
    console.print(_kinds_table(findings))
    _print_passings(console, findings)
    _print_holes(console, findings)
    for (limit, name), cut in findings.cuts.items():
        earned = findings.earned[name]
        text = f"{limit} took {cut.amount:+.2f} of {earned:+.2f} that {name} earned, from {counted(cut.lines, 'line')}"
        say(console, text)
    if findings.environment_paid:
        sessions = counted(findings.environment_paid, "session")
        say(console, f"as recorded: what an environment paid for {sessions}, since it can't be asked again")
    if findings.functions_paid:
        sessions = counted(findings.functions_paid, "session")
        say(console, f"as recorded: what reward_funcs paid for {sessions}; they see whole batches, and objects")


def _kinds_table(findings: Findings) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False, caption="means over lines, as recorded and now", header_style="bold")
    for name in ("lines by kind", "", "reward", "now", "advantage", "now", "other sign"):
        table.add_column(name, justify="left" if name == "lines by kind" else "right", no_wrap=True)
    kinds = sorted(findings.kinds, key=lambda kind: -findings.kinds[kind].lines)
    for kind in kinds:
        tally = findings.kinds[kind]
        cells = []
        for total in tally.rewards + tally.advantages:
            mean = round(total / tally.lines, 2)
            cells.append(Text(signed(mean), style="" if mean else "dim"))
        table.add_row(kind.replace("_", " "), f"{tally.lines:,}", *cells, f"{tally.sign_changes / tally.lines:.1%}")
    return table


def _print_passings(console: Console, findings: Findings) -> None:
    apart = f"sessions that had earned the same are told apart in {counted(findings.groups_told_apart, 'group')}"
    if not findings.passings:
        say(console, f"no two sessions of a group change places; {apart}", style="bold")
        return
    pairs = counted(len(findings.passings), "pair")
    groups = f"{findings.groups_with_passings:,} of {counted(findings.groups, 'group')}"
    say(console, f"{pairs} of sessions change places, in {groups}; {apart}", style="bold")
    by_session: dict[str, list[Passing]] = {}
    for passing in sorted(findings.passings, key=lambda passing: -passing.swing):
        by_session.setdefault(passing.ahead.name, []).append(passing)
    for passings in list(by_session.values())[:_SHOWN]:
        say(console, f"  {passing_text(passings)}")


def passing_text(passings: Sequence[Passing]) -> str:
    """Which sessions one has passed."""
    first, *others = passings
    ahead = f"{first.ahead.name} ({first.ahead.total:+.2f}, was {first.ahead_recorded:+.2f})"
    behind = f"#{first.behind.position} ({first.behind.total:+.2f}, was {first.behind_recorded:+.2f})"
    more = f" and {len(others)} more" if others else ""
    return f"{ahead} passes {behind}{more}"


def _print_holes(console: Console, findings: Findings) -> None:
    before = f"as recorded, {findings.recorded_holes} did" if findings.recorded_holes else "as recorded, none did"
    if not findings.holes:
        text = f"no wrong session earns more than a right one of its group; {before}"
        say(console, text, style="bold green")
        return
    verb = "earns" if len(findings.holes) == 1 else "earn"
    count = counted(len(findings.holes), "wrong session")
    say(console, f"a hole: {count} {verb} more than a right one of the same group; {before}", style="bold red")
    for hole in sorted(findings.holes, key=lambda hole: -hole.margin)[:_SHOWN]:
        say(console, f"  {hole_text(hole)}")


def hole_text(hole: Hole) -> str:
    paid = []
    for source, lines, amount in hole.paid_for[:3]:
        paid.append(f"{source} {amount:+.2f} in {counted(lines, 'line')}")
    sources = f" ({', '.join(paid)})" if paid else ""
    return (
        f"{hole.wrong.name} earns {hole.wrong.total:+.2f}{sources}; {hole.right.name}, right, {hole.right.total:+.2f}"
    )


def _report(findings: Findings) -> dict[str, Any]:
    signs = []
    for (before, after), count in findings.signs.items():
        signs.append({"before": before, "after": after, "lines": count})
    cuts = []
    for (limit, source), cut in findings.cuts.items():
        cuts.append({"limit": limit, "source": source, "earned": findings.earned[source], **asdict(cut)})
    return {
        "sessions": findings.sessions,
        "groups": findings.groups,
        "lines": findings.lines,
        "signs": signs,
        "kinds": {kind: asdict(tally) for kind, tally in findings.kinds.items()},
        "passings": [
            {
                "ahead": passing.ahead.name,
                "behind": passing.behind.name,
                "earn": [passing.ahead.total, passing.behind.total],
                "earned": [passing.ahead_recorded, passing.behind_recorded],
            }
            for passing in findings.passings
        ],
        "groups_told_apart": findings.groups_told_apart,
        "holes": [
            {
                "wrong": hole.wrong.name,
                "right": hole.right.name,
                "earns": hole.wrong.total,
                "right_earns": hole.right.total,
                "paid_for": [list(part) for part in hole.paid_for],
            }
            for hole in findings.holes
        ],
        "recorded_holes": findings.recorded_holes,
        "cuts": cuts,
        "environment_paid": findings.environment_paid,
        "functions_paid": findings.functions_paid,
    }
