"""Config files: ranges, unknown keys with the nearest known name, overrides, round trips."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from repl_rl.config import Config, dump_config, load_config, parse_config, shipped_configs
from repl_rl.errors import ConfigError
from repl_rl.trajectory import LineKind


def test_an_empty_file_is_all_defaults(tmp_path: Path) -> None:
    (tmp_path / "empty.yaml").write_text("# nothing\n")
    assert load_config(str(tmp_path / "empty.yaml")) == Config()


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"trian": {}}, r"^unknown key 'trian'; did you mean 'train'\?$"),
        ({"train": {"step": 3}}, r"^unknown key 'train.step'; did you mean 'steps'\?$"),
        ({"rewards": {"kind": {}}}, r"^unknown key 'rewards.kind'; did you mean 'kinds'\?$"),
        ({"rewards": {"kinds": {"excepton": 1}}}, r"unknown line kind 'excepton'; did you mean 'exception'\?$"),
        ({"model": {"zzzzzz": 1}}, r"^unknown key 'model.zzzzzz'; known are path, dtype, chat$"),
        ({"budget": {1: 2}}, r"^budget\.1: Keys should be strings \(got 1\)$"),
    ],
)
def test_unknown_keys_are_refused_with_the_nearest_known_one(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_config(values)


def test_every_fault_is_listed() -> None:
    with pytest.raises(ConfigError) as caught:
        parse_config({"seed": -1, "tarin": {}, "budget": {"lines": 0}})
    assert sorted(str(caught.value).splitlines()) == [
        "budget.lines: Input should be greater than or equal to 1 (got 0)",
        "seed: Input should be greater than or equal to 0 (got -1)",
        "unknown key 'tarin'; did you mean 'train'?",
    ]


@pytest.mark.parametrize(
    "override",
    [
        "kernel.line_s=0",
        "kernel.line_s=.nan",
        "kernel.memory_mb=1",
        "kernel.sandbox=docker",
        "engine.gpu_memory_utilization=1.5",
        "sampling.temperature=-0.1",
        "sampling.top_p=0",
        "credit.gamma=1.01",
        "credit.estimator=ppo",
        "train.group_size=0",
        "train.group_size=1",
        "train.learning_rate=0",
        "train.learning_rate=.inf",
        "train.loss_type=mse",
        "train.beta=.inf",
        "rewards.outcome=.nan",
        "rewards.outcome=101",
        "rewards.kinds.blank=.inf",
        "rewards.exceptions.NameError=-101",
        "dialect.max_output_chars=63",
        "model.dtype=int8",
        "name=../escape",
        "name=''",
        "train=3",
        "seed=one",
    ],
)
def test_values_out_of_range_are_refused_by_name(override: str) -> None:
    key = override.partition("=")[0]
    with pytest.raises(ConfigError, match=rf"^{key}.*: .*\(got "):
        parse_config({}, (override,))


def test_overrides_reach_nested_keys_and_are_yaml() -> None:
    config = parse_config(
        {"train": {"steps": 5, "group_size": 4}, "rewards": {"kinds": {"blank": -1.0}}},
        (
            "train.steps=7",
            "train.learning_rate=1e-3",
            "rewards.kinds.exception=-0.25",
            "model.chat=null",
            "credit.scale=none",
            "tasks.families=[gcd, lcm]",
            "name=a.b-c",
            "train.trl.num_iterations=2",
        ),
    )
    assert (config.train.steps, config.train.group_size, config.train.learning_rate) == (7, 4, 0.001)
    assert config.rewards.kinds == {LineKind.BLANK: -1.0, LineKind.EXCEPTION: -0.25}
    assert config.model.chat is None
    assert config.credit.scale == "none"
    assert config.tasks.families == ("gcd", "lcm")
    assert config.name == "a.b-c"
    assert config.train.trl == {"num_iterations": 2}


def test_a_later_override_wins() -> None:
    assert parse_config({}, ("train.steps=3", "train.steps=4")).train.steps == 4


def test_a_value_may_hold_an_equals_sign() -> None:
    assert parse_config({}, ("dialect.system=x = 1",)).dialect.system == "x = 1"


def test_overrides_leave_the_callers_values_alone() -> None:
    values: dict[str, Any] = {"train": {"steps": 5}}
    parse_config(values, ("train.steps=7", "budget.lines=2"))
    assert values == {"train": {"steps": 5}}


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("train.steps", "write it as section.key=value"),
        ("=3", "write it as section.key=value"),
        ("train.steps=[1", "the value is not YAML"),
        ("train.setps=1", r"unknown key 'train.setps'; did you mean 'steps'\?"),
    ],
)
def test_overrides_that_make_no_sense(override: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_config({}, (override,))


@pytest.mark.parametrize(
    ("override", "message"),
    [
        (
            "tasks.answer_pattern=####",
            "--set 'tasks.answer_pattern=####': '#' begins a comment in YAML, so nothing is left of the value; quote "
            """it: --set 'tasks.answer_pattern="####"'""",
        ),
        (
            "dialect.system=Use # for thoughts.",
            "--set 'dialect.system=Use # for thoughts.': '#' begins a comment in YAML, so the value would be 'Use'; "
            """quote it: --set 'dialect.system="Use # for thoughts."'""",
        ),
        (
            "dialect.system=",
            "--set 'dialect.system=': the value is empty; write --set dialect.system=null, or for empty text "
            """--set 'dialect.system=""'""",
        ),
    ],
)
def test_an_override_that_would_silently_be_lost_is_refused(override: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_config({}, (override,))
    assert str(caught.value) == message
    if "quote it" in message:  # the way out is one
        way_out = shlex.split(message.rpartition("--set ")[2])
        assert len(way_out) == 1
        assert yaml.safe_load(way_out[0].partition("=")[2]) == override.partition("=")[2]


@pytest.mark.parametrize(
    ("value", "meaning"),
    [("null", None), ("~", None), ("C#", "C#"), ("'a # b'", "a # b"), ('"####"', "####"), ("''", "")],
)
def test_null_and_hashes_may_be_set(value: str, meaning: str | None) -> None:
    assert parse_config({}, (f"dialect.system={value}",)).dialect.system == meaning


def test_a_single_name_needs_no_list() -> None:
    config = parse_config(
        {"tools": {"functions": "math:gcd"}},
        ("tasks.families=gcd", "rewards.functions=my_rewards:short", "engine.servers=http://node1:8000"),
    )
    assert config.tasks.families == ("gcd",)
    assert config.tools.functions == ("math:gcd",)
    assert config.rewards.functions == ("my_rewards:short",)
    assert config.engine.servers == ("http://node1:8000",)


@given(
    st.fixed_dictionaries(
        {},
        optional={
            "name": st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,20}", fullmatch=True),
            "seed": st.integers(0, 2**40),
            "dialect": st.fixed_dictionaries({"system": st.none() | st.text(max_size=20)}),
            "kernel": st.fixed_dictionaries({"line_s": st.floats(1e-300, 1e300)}),
            "tasks": st.fixed_dictionaries({"families": st.none() | st.lists(st.text(max_size=5), max_size=3)}),
            "rewards": st.fixed_dictionaries(
                {
                    "kinds": st.dictionaries(st.sampled_from(LineKind), st.floats(-100, 100)),
                    "exceptions": st.dictionaries(
                        st.sampled_from(["IOError", "KeyError", "Warning", "json.JSONDecodeError", "a.b.C"]),
                        st.floats(-100, 100),
                    ),
                    "functions": st.lists(st.text(max_size=5), max_size=2),
                    "preset": st.sampled_from(["none", "gentle", "strict"]),
                    "rules": st.lists(
                        st.fixed_dictionaries(
                            {"name": st.from_regex(r"[a-z]{1,8}", fullmatch=True), "reward": st.floats(-100, 100)},
                            optional={
                                "kinds": st.lists(st.sampled_from(LineKind), max_size=2),
                                "text": st.sampled_from([r"\bimport\b", "#", r"^\s*$"]),
                                "times": st.sampled_from(["first", "repeated"]),
                                "after": st.integers(1, 9),
                            },
                        ),
                        max_size=2,
                        unique_by=lambda rule: rule["name"],
                    ),
                    "shaping": st.fixed_dictionaries(
                        {},
                        optional={
                            "mode": st.sampled_from(["additive", "potential"]),
                            "clip": st.none() | st.tuples(st.floats(-9, 0), st.floats(0, 9)),
                            "caps": st.fixed_dictionaries({}, optional={"gain": st.none() | st.floats(0, 1)}),
                            "weight": st.floats(0, 9)
                            | st.fixed_dictionaries({"end": st.floats(0, 9), "steps": st.integers(1, 99)}),
                        },
                    ),
                }
            ),
            "train": st.fixed_dictionaries({"learning_rate": st.floats(1e-12, 1.0), "trl": st.just({"a": [1, "b"]})}),
        },
    )
)
def test_dumped_configs_load_as_they_were(tmp_path_factory: pytest.TempPathFactory, values: dict[str, Any]) -> None:
    config = parse_config(values)
    path = tmp_path_factory.mktemp("config") / "config.yaml"
    path.write_text(dump_config(config), encoding="utf-8")
    looked_in = str(path.parent) if any(":" in name for name in config.rewards.functions) else None
    assert load_config(str(path)) == config.model_copy(update={"import_from": looked_in})


@pytest.mark.parametrize(
    ("section", "names_imports"),
    [
        ({"dialect": {"system": "A:A and b.c:D"}}, False),
        ({"dialect": {"name": "json:loads"}}, True),
        ({"environment": "json:loads"}, True),
        ({"rollout": "json:loads"}, True),
        ({"engine": {"backend": "json:loads"}}, True),
        ({"credit": {"estimator": "json:loads"}}, True),
        ({"tools": {"functions": ["json:loads"]}}, True),
        ({"rewards": {"functions": ["json:loads"]}}, True),
    ],
)
def test_modules_are_looked_up_beside_a_file_that_names_some(
    tmp_path: Path, section: dict[str, Any], names_imports: bool
) -> None:
    (tmp_path / "x.yaml").write_text(yaml.dump(section))
    assert load_config(str(tmp_path / "x.yaml")).import_from == (str(tmp_path) if names_imports else None)


@pytest.mark.parametrize("name", shipped_configs())
def test_shipped_configs_load_by_name(name: str) -> None:
    config = load_config(name)
    assert parse_config(config.model_dump(mode="json")) == config


def test_the_quickstart_ships() -> None:
    assert "quickstart" in shipped_configs()


def test_a_name_that_is_neither_file_nor_shipped_lists_what_is() -> None:
    with pytest.raises(ConfigError, match=r"no config 'quickstrat': neither a file nor a shipped name \(.*quickstart"):
        load_config("quickstrat")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"a: [1", "can't be read as YAML"),
        (b"\xff\xfe\xff", "can't be read as YAML"),
        (b"- train\n", "a config is a mapping of sections, got list"),
        (b"train\n", "a config is a mapping of sections, got str"),
        (b"train:\n", r"^train: Input should be .* \(got None\)"),
    ],
)
def test_files_that_are_no_config(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "c.yaml"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=message):
        load_config(str(path))


def test_configs_are_frozen() -> None:
    with pytest.raises(ValueError, match="frozen"):
        Config().train.steps = 3


def test_numbers_in_scientific_notation_are_numbers_where_no_model_says_so(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text("train: {trl: {adam_epsilon: 1e-3, weight_decay: 2.5E-2, run_name: 1e-3x}}")
    config = load_config(str(tmp_path / "c.yaml"), ("train.trl.max_grad_norm=1e2",))
    assert config.train.trl == {"adam_epsilon": 0.001, "weight_decay": 0.025, "run_name": "1e-3x", "max_grad_norm": 100}
    assert all(isinstance(value, float) for key, value in config.train.trl.items() if key != "run_name")


def test_a_name_that_reads_like_a_number_stays_a_name(tmp_path: Path) -> None:
    config = parse_config({"rewards": {"functions": ["0E0"]}})
    (tmp_path / "c.yaml").write_text(dump_config(config))
    assert load_config(str(tmp_path / "c.yaml")) == config


def test_what_a_deterministic_engine_cannot_repeat_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"budget\.finish_share 0\.5 cuts what is late"):
        load_config("quickstart", ("engine.deterministic=true", "budget.finish_share=0.5"))
    with pytest.raises(ConfigError, match="deterministic needs an engine in this process"):
        load_config("quickstart", ("engine={deterministic: true, servers: [http://a:1]}",))


def test_seeds_follow_from_the_batch_the_trajectory_and_the_place() -> None:
    batch = load_config("quickstart").sampling.seeded("0/train/7")
    assert batch.temperature == 0.7
    seeds = {batch.of_trajectory(index).line_seed(length) for index in range(12) for length in range(120)}
    assert len(seeds) == 12 * 120
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert batch.of_trajectory(1).line_seed(2) == batch.of_trajectory(1).line_seed(2)
