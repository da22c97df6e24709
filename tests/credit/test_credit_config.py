"""A field that an estimator does not use is refused by name, and what has no baseline is refused before a run."""

import re
from typing import Any

import pytest
from groups import configs
from hypothesis import given

from repl_rl.config import Config, CreditConfig, dump_config, parse_config
from repl_rl.config.estimators import ESTIMATOR_RECORDS, Trees
from repl_rl.credit import ESTIMATORS
from repl_rl.errors import ConfigError

TREES: dict[str, Any] = {"branch": {"roots": 2, "branches": 2}, "train": {"group_size": 4}}
"""Estimators for trees can't be had without."""
VALUES: dict[str, Any] = {"gamma": 0.5, "baseline": "none", "scale": "none", "omega": 0.5, "clip": 1.0}
VALUES |= {"lam": 0.5, "decay": 0.5}


def test_the_config_names_exactly_the_estimators() -> None:
    assert set(ESTIMATOR_RECORDS) == {*ESTIMATORS, "critic"}


@pytest.mark.parametrize("estimator", sorted(ESTIMATORS))
@pytest.mark.parametrize("field", VALUES)
def test_a_field_without_meaning_is_refused_even_at_its_default(estimator: str, field: str) -> None:
    for value in (VALUES[field], CreditConfig.model_fields[field].default):
        values = {"estimator": estimator, field: value}
        if values.get("baseline") == "none" and "scale" in ESTIMATOR_RECORDS[estimator].settings:
            values["scale"] = "none"
        if field in ESTIMATOR_RECORDS[estimator].settings:
            beside = TREES if ESTIMATOR_RECORDS[estimator].trees is not Trees.REFUSED else {}
            assert getattr(parse_config({**beside, "credit": values}).credit, field) == value
        else:
            message = re.escape(f"credit: {field} means nothing to estimator {estimator};")
            with pytest.raises(ConfigError, match=message):
                parse_config({"credit": values})


@given(configs())
def test_a_written_config_holds_what_takes_effect_and_reads_back(credit: CreditConfig) -> None:
    takes_trees = ESTIMATOR_RECORDS[credit.estimator].trees is not Trees.REFUSED
    whole = parse_config({**TREES, "credit": credit}) if takes_trees else Config(credit=credit)
    written = credit.model_dump(mode="json")
    assert set(written) == {"estimator", *ESTIMATOR_RECORDS[credit.estimator].settings}
    assert CreditConfig.model_validate(written) == credit
    assert parse_config(whole.model_dump(mode="json")) == whole
    assert dump_config(parse_config(whole.model_dump(mode="json"))) == dump_config(whole)


def test_one_of_ones_own_is_handed_every_field() -> None:
    values = {"estimator": "my_credit:own", **VALUES, "scale": "group"}
    credit = parse_config({"credit": values}).credit
    assert credit.model_dump() == values
    assert CreditConfig.model_validate(credit.model_dump(mode="json")) == credit
