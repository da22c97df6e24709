"""`repl-rl rescore`: what other rewards and another estimator change in the sessions of a run."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from rescorable import write_rescorable

from repl_rl.cli import main
from repl_rl.config import CreditConfig
from repl_rl.trajectory import read_jsonl
from repl_rl.view.viewer.api import RunApi
from repl_rl.view.viewer.indexer import update

Rescored = Callable[..., str]


@pytest.fixture
def rescored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Rescored:
    """Call `repl-rl rescore` in a folder with the run `run`: the code, and what it printed."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "160")
    write_rescorable(Path("run"))

    def call(*arguments: str, code: int = 0) -> str:
        assert main(["rescore", *arguments]) == code
        printed = capsys.readouterr()
        return re.sub(r"[ \t]+\n", "\n", printed.err if code else printed.out)

    return call


def test_with_its_own_settings_nothing_changes(rescored: Rescored) -> None:
    printed = rescored("run")
    assert printed.startswith(
        "run: 2 steps, 4 sessions in 2 groups, 12 lines\n"
        "  with the run's own rewards and credit, every session comes out as it was recorded\n"
        "0 lines (0.0%) have an advantage of another sign\n"
    )
    assert "no two sessions of a group change places" in printed
    assert "no wrong session earns more than a right one of its group; as recorded, none did\n" in printed


def test_a_price_that_turns_wrong_over_right_is_found_and_mended(rescored: Rescored) -> None:
    farmed = "--set", "rewards.kinds.expression=0.5", "--set", "rewards.kinds.exception=-0.1"
    printed = rescored("run", *farmed)
    assert "  rewards.kinds.exception: -0.1, was not set\n  rewards.kinds.expression: 0.5, was not set\n" in printed
    assert (
        "a hole: 2 wrong sessions earn more than a right one of the same group; as recorded, none did\n"
        "  step_00001.jsonl#1 earns +1.40 (kinds.expression +1.50 in 3 lines, kinds.exception -0.10 in 1 line); "
        "step_00001.jsonl#0, right, +1.00\n"
    ) in printed
    assert "2 pairs of sessions change places, in 2 of 2 groups" in printed
    assert "  step_00001.jsonl#1 (+1.40, was +0.00) passes #0 (+1.00, was +1.00)\n" in printed
    # Returns are 1 and 1 of the right session, 1.4, 0.9, 0.4 and 0.5 of the wrong one, each less the other's.
    rows = [" ".join(row.split()) for row in printed.splitlines()]
    assert "expression 6 0 +0.50 -1.00 -0.07 33.3%" in rows
    assert "exception 2 0 -0.10 -1.00 -0.60 0.0%" in rows
    assert "statement 2 0 0 +1.00 -0.40 100.0%" in rows
    assert "answer 2 +1.00 +1.00 +1.00 +0.10 0.0%" in rows

    mended = rescored("run", *farmed, "--set", "rewards.shaping.caps.gain=0.5")
    assert "no wrong session earns more than a right one of its group; as recorded, none did\n" in mended
    assert "caps took +2.00 of +3.00 that kinds.expression earned, from 4 lines\n" in mended


def test_what_it_keeps_is_shown_with_both_advantages(rescored: Rescored, tmp_path: Path) -> None:
    price = "--set", "rewards.kinds.expression=0.5"
    printed = rescored("run", *price, "--out", "kept", "--json", "figures.json")
    assert printed.endswith("line by line, both advantages beside each other: repl-rl view kept\n")
    recorded = list(read_jsonl("run/rollouts/step_00001.jsonl"))
    [right, _] = read_jsonl("kept/rollouts/step_00001.jsonl")
    assert [line.advantage for line in right.lines] == [-0.5, 0.0]
    assert [line.advantage for line in recorded[0].lines] == [1.0, 1.0]
    figures = json.loads(Path("figures.json").read_text())
    assert json.loads(Path("kept/rescored.json").read_text()) == figures
    assert figures["changed"] == [["rewards.kinds.expression", None, 0.5]]
    assert [hole["wrong"] for hole in figures["holes"]] == ["step_00001.jsonl#1", "step_00002.jsonl#1"]

    api = RunApi(Path("kept"), index=tmp_path / "index.sqlite")
    update(api.targets, api.index)
    assert api.run()["choices"]["other_signs"] == ["yes"]
    assert api.run()["state"] == "rescored: sessions of another folder, and nothing is trained here"
    assert "the sessions of run with rewards.kinds.expression 0.5" in api.run()["summary"]
    rows = api.rows({"other_sign": "yes", "step": "1"})["rows"]
    assert [row["position"] for row in rows] == [0, 1]
    lines = api.trajectory("train-1-0")["lines"]
    assert lines["0"]["advantage"] == -0.5
    assert lines["0"]["as_recorded"] == {"reward": 0.0, "advantage": 1.0, "other_sign": True}
    # The run itself has nothing beside its advantages.
    api = RunApi(Path("run"), index=tmp_path / "run.sqlite")
    update(api.targets, api.index)
    assert api.run()["choices"]["other_signs"] == []
    assert "as_recorded" not in api.trajectory("train-1-0")["lines"]["0"]


def test_another_config_gives_both_sections(rescored: Rescored) -> None:
    Path("other.yaml").write_text("rewards: strict\ncredit: rloo\ntrain: {group_size: 7}\n")
    printed = rescored("run", "--config", "other.yaml", "--set", "rewards.outcome=2")
    assert "  rewards.outcome: 2.0, was 1.0\n" in printed
    assert "  credit.estimator: 'rloo', was 'return_to_go'\n" in printed
    assert "4 sessions in 2 groups" in printed


def test_a_file_by_itself(rescored: Rescored) -> None:
    """In its run's folder it has the run's config; elsewhere one has to be named, and groups are those of tasks."""
    assert "1 step, 2 sessions in 1 group" in rescored("run/rollouts/step_00002.jsonl")
    Path("run/rollouts/step_00002.jsonl").rename("alone.jsonl")
    refusal = "repl-rl: alone.jsonl is not in a run's folder, so there is no config to begin with; name one with "
    assert rescored("alone.jsonl", code=2) == f"{refusal}--config\n"
    Path("own.yaml").write_text("rewards: none\n")
    assert "alone.jsonl: 1 step, 2 sessions in 1 group, 6 lines\n0 lines (0.0%)" in rescored(
        "alone.jsonl", "--config", "own.yaml"
    )


def test_an_estimator_with_a_memory_gets_all_steps_or_none(rescored: Rescored, tmp_path: Path) -> None:
    write_rescorable(Path("critic"), credit_config=CreditConfig(estimator="critic"), steps=3)
    assert "every session comes out as it was recorded" in rescored("critic")
    assert "credit.estimator: 'critic', was 'return_to_go'" in rescored("run", "--set", "credit=critic")
    refusal = (
        "repl-rl: credit.estimator: critic remembers the steps before, and {} does not have all of them; give the "
    )
    refusal += "folder of a run that kept its rollouts from the first step on\n"
    file = "critic/rollouts/step_00001.jsonl"
    assert rescored(file, code=2) == refusal.format(file)
    Path(file).unlink()
    assert rescored("critic", code=2) == refusal.format("critic")
    # Any other estimator does with what there is.
    assert "2 steps" in rescored("critic", "--set", "credit=rloo")


def test_sessions_that_do_not_come_out_again_are_told(rescored: Rescored) -> None:
    config = Path("run/config.yaml")
    config.write_text(config.read_text().replace("outcome: 1.0", "outcome: 3.0"))
    printed = rescored("run", "--set", "rewards.kinds.expression=0.1")
    assert "under the run's own config, 4 of 4 sessions come out otherwise than recorded" in printed


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ("run", "--set", "train.steps=3"),
            "--set train.steps=3: the sessions stay as they were recorded, so only settings of rewards and credit can "
            "be others",
        ),
        (
            ("run", "--set", "rewards.preset=strict"),
            "--set rewards.preset=strict: the run's config has all keys of its preset written out, and they would "
            "stay; take the whole section: --set rewards=strict",
        ),
        (("run", "--out", "run"), "--out run: it exists already; give the name of a new folder"),
        (
            ("nowhere",),
            "no sessions of training at nowhere: give a run's folder, which has rollouts/, or a .jsonl file",
        ),
    ],
)
def test_refused(rescored: Rescored, arguments: tuple[str, ...], message: str) -> None:
    assert rescored(*arguments, code=2) == f"repl-rl: {message}\n"


def test_a_step_that_was_interrupted_is_left_out(rescored: Rescored) -> None:
    path = Path("run/rollouts/step_00002.jsonl")
    whole = path.read_text()
    path.write_text(re.sub(r'"advantage": [-0-9.]+', '"advantage": null', whole))
    printed = " ".join(rescored("run").split())
    assert "run: 2 steps, 2 sessions in 1 group, 6 lines with the run's own rewards and credit, every" in printed
    assert "note: step_00002.jsonl#0 has no advantages to compare with: rescore takes sessions of training" in printed
    assert rescored(str(path), code=2).startswith(f"repl-rl: {path}#0 has no advantages to compare with: ")
    path.write_text(whole.splitlines()[0])
    assert "step_00002.jsonl has 1 sessions, which are no whole groups of 2; it is left out" in rescored("run")
    path.write_text("")
    assert "step_00002.jsonl holds no session; it is left out" in rescored("run")


def test_rewards_of_the_run_that_are_gone_are_told(rescored: Rescored) -> None:
    """The run paid by a function that can't be imported any more: other rewards are compared all the same."""
    config = Path("run/config.yaml")
    config.write_text(config.read_text().replace("functions: []", "functions: ['gone:reward']"))
    printed = rescored("run", "--set", "rewards.functions=[]")
    assert "the run's own rewards can't be computed again here: " in printed
    assert "0 lines (0.0%) have an advantage of another sign" in printed


def test_what_each_limit_took_in_the_order_of_the_limits(rescored: Rescored) -> None:
    limits = "--set", "rewards.shaping={clip: [-1, 0.05], caps: {gain: 0.1}}"
    printed = rescored("run", "--set", "rewards.kinds.expression=0.2", *limits)
    assert [line for line in printed.splitlines() if " took " in line] == [
        "clip took +0.90 of +1.20 that kinds.expression earned, from 6 lines",
        "caps took +0.10 of +1.20 that kinds.expression earned, from 2 lines",
    ]


def test_a_potential_moves_what_lines_earn_and_takes_nothing(rescored: Rescored) -> None:
    price = "--set", "rewards.kinds.expression=0.2"
    printed = rescored("run", *price, "--set", "rewards.shaping.mode=potential")
    assert " took " not in printed
    assert "no wrong session earns more than a right one of its group; as recorded, none did\n" in printed
