"""Names of differences, from texts and sources alone: `causes.yaml` has the cases."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from repl_rl.view.replay.comparison import Cause, TaintedNames, cause_of

CASES = yaml.safe_load(Path(__file__).with_name("causes.yaml").read_text(encoding="utf-8"))


@pytest.mark.parametrize("case", CASES["works_with"], ids=lambda case: "; ".join(case["sources"]))
def test_what_a_cell_works_with(case: dict[str, list[str]]) -> None:
    session = TaintedNames()
    assert [session.take(source) for source in case["sources"]][-1] == set(map(Cause, case["causes"]))


def test_what_is_known_beforehand_goes_on_to_other_cells() -> None:
    session = TaintedNames()
    assert session.take("n = 0") == frozenset()
    assert session.take("while True: n += 1", [Cause.TIMEOUT]) == {Cause.TIMEOUT}
    assert session.take("n") == {Cause.TIMEOUT}
    assert session.take("m = 1") == frozenset()


@pytest.mark.parametrize("case", CASES["names"], ids=lambda case: f"{case['cause']}: {case['source']}")
def test_the_name_of_a_difference(case: dict[str, Any]) -> None:
    works_with = frozenset(map(Cause, case["works_with"]))
    assert cause_of(case["expected"], case["got"], works_with, case["source"]) is Cause(case["cause"])
