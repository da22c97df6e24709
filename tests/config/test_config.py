"""Config files: ranges, unknown keys with the nearest known name, overrides, round trips."""

import copy
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from repl_rl.config import (
    BudgetConfig,
    Config,
    Section,
    SubcallsConfig,
    dump_config,
    load_config,
    parse_config,
    shipped_configs,
)
from repl_rl.config.section import YES_OR_NO
from repl_rl.errors import ConfigError
from repl_rl.trajectory import LineKind

CASES = yaml.safe_load(Path(__file__).with_name("cases.yaml").read_text(encoding="utf-8"))


@pytest.mark.parametrize(("values", "message"), CASES["refused"])
def test_what_no_config_says_is_refused_with_the_nearest_known_name_or_the_range(values: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_config(values)


def refusal(values: dict[str, Any]) -> str:
    """The message, or nothing."""
    try:
        parse_config(values)
    except ConfigError as error:
        return str(error)
    return ""


def excluding() -> Iterator[tuple[str, tuple[str, ...]]]:
    """The section, and options of it that exclude one another."""
    for path, model in [("", Config), *((name, field.annotation) for name, field in Config.model_fields.items())]:
        for names, _ in getattr(model, "EXCLUDING", ()):
            yield path, names


@pytest.mark.parametrize(("path", "names"), excluding())
def test_options_that_exclude_one_another_are_named_with_the_reason(path: str, names: tuple[str, ...]) -> None:
    def file(chosen: Sequence[str]) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for name in chosen:
            value, below, keys = CASES["excluding"], values, [*filter(None, [path]), *name.split(".")]
            for key in keys:
                value = value[key]
            for key in keys[:-1]:
                below = below.setdefault(key, {})
            below[keys[-1]] = below.get(keys[-1]) or value
        return values

    said = refusal(file(names))
    assert "exclude one another: " in said
    assert all(name in said for name in names)
    for left in names:  # the others may need something else, but exclude nothing
        assert "exclude one another" not in refusal(file([name for name in names if name != left]))


def test_every_fault_is_listed() -> None:
    with pytest.raises(ConfigError) as caught:
        parse_config({"seed": -1, "tarin": {}, "budget": {"lines": 0}})
    assert sorted(str(caught.value).splitlines()) == [
        "budget.lines: Input should be greater than or equal to 1 (got 0)",
        "seed: Input should be greater than or equal to 0 (got -1)",
        "unknown key 'tarin'; did you mean 'train'?",
    ]


@pytest.mark.parametrize(("override", "message"), CASES["overrides refused"].items())
def test_an_override_that_makes_no_sense_or_would_silently_be_lost_is_refused(override: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_config({}, (override,))
    assert str(caught.value).startswith(message)
    if "quote it" in message:  # the way out is one
        way_out = shlex.split(message.rpartition("--set ")[2])
        assert len(way_out) == 1
        assert yaml.safe_load(way_out[0].partition("=")[2]) == override.partition("=")[2]


@pytest.mark.parametrize(("override", "expected"), CASES["overrides"].items())
def test_overrides_reach_nested_keys_and_are_yaml(override: str, expected: Any) -> None:
    values = {"train": {"steps": 5, "group_size": 4}, "rewards": {"kinds": {"blank": -1.0}}}
    before = copy.deepcopy(values)
    made = parse_config(values, (override, "train.max_minutes=9")).model_dump(mode="json")
    for key in override.partition("=")[0].split("."):
        made = made[key]
    assert made == expected
    assert values == before


def test_later_overrides_go_over_earlier_ones_and_leave_what_is_beside_them() -> None:
    values = {"train": {"steps": 5, "group_size": 4}, "rewards": {"kinds": {"blank": -1.0}}}
    config = parse_config(values, ("train.steps=7", "rewards.kinds.exception=-0.25", "name=a.b", "name=a.b-c"))
    assert (config.train.steps, config.train.group_size, config.name) == (7, 4, "a.b-c")
    assert config.rewards.kinds == {LineKind.BLANK: -1.0, LineKind.EXCEPTION: -0.25}


@example({"rewards": {"functions": ["0E0"]}})  # a name that reads like a number
@given(
    st.fixed_dictionaries(
        {
            "name": st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,20}", fullmatch=True),
            "seed": st.integers(0, 2**40),
            "dialect": st.fixed_dictionaries({"system": st.none() | st.text(max_size=20)}),
            "kernel": st.fixed_dictionaries({"line_s": st.floats(1e-300, 1e300)}),
            "tasks": st.fixed_dictionaries({"families": st.none() | st.lists(st.text(max_size=5), max_size=3)}),
            "rewards": st.fixed_dictionaries(
                {
                    "kinds": st.dictionaries(st.sampled_from(LineKind), st.floats(-100, 100)),
                    "exceptions": st.dictionaries(st.sampled_from(["IOError", "a.b.C"]), st.floats(-100, 100)),
                    "functions": st.lists(st.text(max_size=5), max_size=2),
                    "preset": st.sampled_from(["none", "gentle", "strict"]),
                    "rules": st.just([{"name": "a", "reward": 1, "text": "#", "times": "first"}]),
                    "shaping": st.fixed_dictionaries({"clip": st.tuples(st.floats(-9, 0), st.floats(0, 9))}),
                }
            ),
            "train": st.just({"trl": {"a": [1, "b"]}}),
        }
    )
)
def test_dumped_configs_load_as_they_were(tmp_path_factory: pytest.TempPathFactory, values: dict[str, Any]) -> None:
    config = parse_config(values)
    path = tmp_path_factory.mktemp("config") / "config.yaml"
    path.write_text(dump_config(config), encoding="utf-8")
    named = [*config.rewards.functions, *(config.tasks.families or [])]
    looked_in = str(path.parent) if any(":" in name for name in named) else None
    assert load_config(str(path)) == config.model_copy(update={"import_from": looked_in})


@pytest.mark.parametrize("section", CASES["named imports"])
def test_modules_are_looked_up_beside_a_file_that_names_some(tmp_path: Path, section: dict[str, Any]) -> None:
    (tmp_path / "x.yaml").write_text(yaml.dump(section))
    assert load_config(str(tmp_path / "x.yaml")).import_from == str(tmp_path)
    (tmp_path / "x.yaml").write_text(yaml.dump({"dialect": {"system": f"{section} json:loads"}}))
    assert load_config(str(tmp_path / "x.yaml")).import_from is None


def test_shipped_configs_load_by_name() -> None:
    for name in shipped_configs():
        config = load_config(name)
        assert parse_config(config.model_dump(mode="json")) == config


def test_a_name_of_no_config_is_asked_back_with_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no config 'quickstrat': neither .*; did you mean 'quickstart'\?$"):
        load_config("quickstrat")
    (tmp_path / "my_run.yaml").write_text("{}")
    with pytest.raises(ConfigError, match=r"neither a file nor a shipped name; did you mean '.*/my_run.yaml'\?$"):
        load_config(str(tmp_path / "myrun.yaml"))


def test_files_that_are_no_yaml_and_empty_ones(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    for content in (b"a: [1", b"\xff\xfe\xff", b"a: 2024-99-99", 9000 * b"[", b"a:\n\t- b", b"a: !!python/tuple []"):
        path.write_bytes(content)
        with pytest.raises(ConfigError, match="can't be read as YAML"):
            load_config(str(path))
    path.write_text("# nothing\n")
    assert load_config(str(path)) == Config()


@pytest.mark.parametrize(("short", "long"), CASES["short forms"])
def test_short_forms_are_what_they_stand_for(short: dict[str, Any], long: dict[str, Any]) -> None:
    config = parse_config(short)
    assert config == parse_config(long)
    assert parse_config(config.model_dump(mode="json")) == config


def test_configs_of_runs_that_name_the_one_level_of_sub_calls_load(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text("subcalls: {calls: 3, depth: 1, session_tokens: 2048}\n")
    config = load_config(str(path))
    assert config.subcalls == SubcallsConfig(calls=3)
    assert "depth" not in dump_config(config)
    assert load_config(str(path), ("subcalls.depth=1",)) == config
    with pytest.raises(ConfigError, match="subcalls: depth 2: sub-calls have one level"):
        load_config(str(path), ("subcalls.depth=2",))


def test_an_override_goes_into_a_section_that_a_name_stands_for() -> None:
    config = parse_config({"model": "nano", "credit": "rloo"}, ("model.dtype=bfloat16", "credit.clip=2"))
    assert (config.model.path, config.model.dtype) == ("nano", "bfloat16")
    assert (config.credit.estimator, config.credit.clip) == ("rloo", 2)


@pytest.mark.parametrize(("text", "message"), CASES["unmeant"])
def test_what_a_file_can_not_mean_is_refused_with_its_lines(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "c.yaml").write_text(text)
    with pytest.raises(ConfigError, match=rf"c.yaml can't be read as YAML: {message}"):
        load_config(str(tmp_path / "c.yaml"))


def test_keys_of_merged_mappings_and_comments_of_empty_values_are_no_mistakes(tmp_path: Path) -> None:
    text = "train: &train {steps: 3}\neval:  # as it is\n  problems: 7\ntools: {where: host}\n"
    (tmp_path / "c.yaml").write_text(
        text + "budget: {<<: {lines: 3}, <<: {tokens: 9}, lines: 4}\nenvironment: # none\n"
    )
    config = load_config(str(tmp_path / "c.yaml"))
    assert (config.budget.lines, config.budget.tokens, config.eval.problems, config.environment) == (4, 9, 7, None)


def test_configs_are_frozen() -> None:
    with pytest.raises(ValueError, match="frozen"):
        Config().train.steps = 3


def test_a_new_section_is_handed_on_by_its_name() -> None:
    class Weather(Section):
        wind: float = 3.0

    class LargerConfig(Config):
        weather: Annotated[Weather | None, YES_OR_NO] = None
        altitude: int = 500

    @dataclass
    class Receiver:
        altitude: int
        budget: Any
        weather: Any = None
        elsewhere: int = 0

    config = LargerConfig.model_validate({"weather": True, "budget": {"lines": 3}})
    assert LargerConfig.keys_in(Receiver) == ("budget", "weather", "altitude")
    assert LargerConfig.sections_in(Receiver) == ("budget", "weather")
    assert Receiver(**config.values_for(Receiver)) == Receiver(500, BudgetConfig(lines=3), Weather())


def test_numbers_in_scientific_notation_are_numbers_where_no_model_says_so(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text("train: {trl: {adam_epsilon: 1e-3, weight_decay: 2.5E-2, run_name: 1e-3x}}")
    config = load_config(str(tmp_path / "c.yaml"), ("train.trl.delta=1e2",))
    assert config.train.trl == {"adam_epsilon": 0.001, "weight_decay": 0.025, "run_name": "1e-3x", "delta": 100}
    assert all(isinstance(value, float) for key, value in config.train.trl.items() if key != "run_name")


def test_seeds_follow_from_the_batch_the_trajectory_and_the_length() -> None:
    batch = load_config("quickstart").sampling.seeded("0/train/7")
    assert batch.temperature == 0.7
    seeds = {batch.of_trajectory(index).line_seed(length) for index in range(12) for length in range(120)}
    assert len(seeds) == 12 * 120
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert batch.of_trajectory(1).line_seed(2) == batch.of_trajectory(1).line_seed(2)
