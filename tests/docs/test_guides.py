"""What the guides show works: their code and configs are taken from the pages and used; their tables are complete."""

import asyncio
import dataclasses
import json
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml
from exactness import assert_masked_text_is_the_outputs
from made_trajectories import line, made
from pages import ROOT, blocks
from safetensors.torch import load_file
from scripted import ScriptedEngine
from vocabularies import nano

import repl_rl
from repl_rl.config import (
    Baseline,
    CreditConfig,
    DialectConfig,
    EngineConfig,
    ModelConfig,
    SamplingConfig,
    Scale,
    load_config,
    parse_config,
)
from repl_rl.config.estimators import ESTIMATOR_RECORDS
from repl_rl.dialect import Dialect, PythonDialect, make_dialect
from repl_rl.engine import Engine, Finish, SampledLine, TrainableEngine, make_engine
from repl_rl.errors import ConfigError
from repl_rl.kernel import KernelPool, Limits, Profile
from repl_rl.models.nano import NANO_PATH
from repl_rl.rewards import RewardTable
from repl_rl.rollout import reward_table
from repl_rl.rollout.loop import Rollout
from repl_rl.rollout.setup import Extensions, RolloutSetup, load_extensions, make_extensions, make_pool
from repl_rl.tasks import load_tasks
from repl_rl.trajectory import LineKind, StopReason, Task, Trajectory


def page(name: str) -> str:
    return (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8")


async def roll(
    pool: KernelPool,
    lines: Sequence[str],
    tasks: Sequence[Task],
    extensions: Extensions | None = None,
    dialect: Dialect | None = None,
) -> list[Trajectory]:
    """What comes of typing the lines for each task."""
    setup = RolloutSetup(nano(), dialect or PythonDialect(), context_tokens=1024, extensions=extensions or Extensions())
    return await Rollout(ScriptedEngine(nano(), lambda prompt: lines), pool, setup).many(tasks)


# Credit


def test_an_estimator_of_ones_own(here: Path) -> None:
    code, use = blocks(page("credit"), "python")
    (here / "my_package").mkdir()
    (here / "my_package" / "credit.py").write_text(code)
    config = parse_config(yaml.safe_load(blocks(page("credit"), "yaml")[1]))
    assert (config.credit.estimator, config.credit.gamma) == ("my_package.credit:beside_others", 0.5)
    reward_table(config.rewards, config.credit)
    before, said = use.rstrip().rsplit("\n", 1)
    call, expected = said.split("  # ")
    names = {"group": [made([line("x"), line("y")])] * 2}
    exec(before, names)
    assert eval(call, names) == [pytest.approx(values) for values in eval(expected)]


def test_the_tables_of_credit_name_every_estimator_and_every_key() -> None:
    parts = re.split(r"^\|---.*\n", page("credit"), flags=re.MULTILINE)
    tables = [[row.split("|") for row in part.partition("\n\n")[0].splitlines()] for part in parts[1:]]
    named = [
        {re.findall(r"`([^`]+)`", row[1])[0]: re.findall(r"`(\w+)`", row[-2]) for row in rows}
        for rows in tables
        if all(row[1].startswith(" `") for row in rows)  # one has figures
    ]
    estimators, keys, baselines, scales = named[:4]
    told = {name: {*used, "clip"} for name, used in estimators.items()}
    assert told == {name: set(record.settings) for name, record in ESTIMATOR_RECORDS.items()}
    assert set(keys) == set(CreditConfig.model_fields) - {"estimator"}
    assert (set(baselines), set(scales)) == (set(get_args(Baseline)), set(get_args(Scale)))


# Dialects


def test_a_file_of_texts(here: Path) -> None:
    [texts] = blocks(page("dialects"), "yaml")
    (here / "riddles.yaml").write_text(texts)
    dialect = make_dialect(DialectConfig(name="riddles.yaml", examples=1))
    assert dialect.completion_prompt("What is 6 * 7?") == "Q: What is 2 + 2?\nA:\nAnswer: 4\nQ: What is 6 * 7?\nA:\n"
    system, user = (message["content"] for message in dialect.chat_prompt("What is 3?").messages)
    assert system.startswith("You solve riddles with Python.")
    assert system.endswith("with numbers of their own:\n\nQ: What is 2 + 2?\nA:\nAnswer: 4")
    assert user == "Q: What is 3?\nA:"
    [cell] = dialect.reader().read("```python\n6 * 7\n```\n").cells
    assert cell.source == "6 * 7"


@pytest.mark.more
async def test_a_dialect_of_ones_own(here: Path, pool: KernelPool) -> None:
    (here / "guide_calculator.py").write_text(blocks(page("dialects"), "python")[-1])
    session = blocks(page("dialects"), "text")[-1]
    typed = [text.removeprefix("$") + "\n" for text in session.splitlines() if text.startswith("$")]
    dialect = make_dialect(DialectConfig(name="guide_calculator:Calculator"))
    [trajectory] = await roll(pool, typed, [Task("t", "What is 6 * 7?", "42")], dialect=dialect)
    assert trajectory.answer == ("42",)
    assert_masked_text_is_the_outputs(trajectory, nano())
    assert trajectory.prompt + nano().decode(trajectory.completion_ids) == session


# Engines

BACKEND = "guide_engine:PlainEngine"


@pytest.fixture
def plain(here: Path) -> Engine:
    """The page's engine."""
    [code] = blocks(page("engines"), "python")
    (here / "guide_engine.py").write_text(code)
    return make_engine(str(NANO_PATH), nano(), ModelConfig(), EngineConfig(backend=BACKEND))


async def sampled(engine: Engine, ids: list[int], temperature: float = 0, max_tokens: int = 40) -> SampledLine:
    async with engine.slot(200) as slot:
        return await slot.sample_line(ids, max_tokens, SamplingConfig(temperature=temperature))


async def test_an_engine_of_ones_own_samples_what_the_shipped_ones_do_and_takes_new_weights(plain: Engine) -> None:
    ids = list(nano().encode_prompt(">>> # What is 12 * 17?\n>>>"))
    shipped = make_engine(str(NANO_PATH), nano(), ModelConfig(), EngineConfig(backend="transformers"))
    found, expected = await sampled(plain, ids), await sampled(shipped, ids)
    shipped.close()
    assert (found.ids, found.finish) == (expected.ids, expected.finish)
    assert found.logprobs == pytest.approx(expected.logprobs, abs=1e-4)
    cut = await sampled(plain, ids, temperature=1, max_tokens=1)
    assert (len(cut.ids), len(cut.logprobs), cut.finish) == (1, 1, Finish.LENGTH)
    assert isinstance(plain, TrainableEngine)
    plain.load_weights((name, weight * 0) for name, weight in load_file(NANO_PATH / "model.safetensors").items())
    assert (await sampled(plain, ids)).logprobs[0] != pytest.approx(found.logprobs[0])
    assert plain.version == 1


@pytest.mark.more
@pytest.mark.usefixtures("plain")
async def test_an_engine_of_ones_own_rolls_out_by_its_name_in_a_config() -> None:
    overrides = [f"engine.backend={BACKEND}", "engine.context_tokens=256", "kernel.size=2", "budget.lines=3"]
    async with repl_rl.open_rollout("nano", overrides) as rollout:
        [trajectory] = await rollout.many([Task("t", "What is 6 * 7?", "42")])
    assert trajectory.lines
    assert trajectory.stop_reason is not StopReason.ABORTED


# Tools, environments, loops

LINES = [" x = 6\n", " y\n", " x * 7\n", " submit_final_answer(_)\n"]


@pytest.fixture
def tools(here: Path) -> str:
    """The page, with its blocks as modules of a user."""
    text = page("tools")
    names = ("my_tools", "words_server", "my_shop", "my_guests", "my_loops")
    for name, block in zip(names, blocks(text, "python"), strict=True):
        (here / f"{name}.py").write_text(block)
    return text


@pytest.mark.more
async def test_tools_that_a_config_names(tools: str, pool: KernelPool) -> None:
    text, _ = blocks(tools, "yaml")
    extensions = load_extensions(parse_config(yaml.safe_load(text)))
    where = [(tool.name, tool.where) for tool in extensions.toolbox.tools]
    assert where == [("multiply", "sandbox"), ("search", "host")]
    lines = [" multiply(6, 7)\n", " search('tea')\n", " search(3)\n", " submit_final_answer(1)\n"]
    [trajectory] = await roll(pool, lines, [Task("t", "Look.", "")], extensions)
    assert [line.output for line in trajectory.lines][:2] == ["42\n>>>", "['tea is a word.']\n>>>"]
    assert trajectory.lines[2].error_name == "TypeError"


@pytest.mark.more
async def test_the_mcp_server_of_the_page(tools: str, pool: KernelPool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    monkeypatch.setenv("LANG", "C.UTF-8")
    _, text = blocks(tools, "yaml")
    extensions = await asyncio.to_thread(load_extensions, parse_config(yaml.safe_load(text)))
    lines = [" count('banana')\n", " submit_final_answer(3)\n"]
    [trajectory] = await roll(pool, lines, [Task("t", "Count.", "3")], extensions)
    assert trajectory.lines[0].output == "3\n>>>"


@pytest.mark.more
@pytest.mark.usefixtures("tools")
async def test_the_environment_of_the_page(pool: KernelPool) -> None:
    lines = [" buy('tea')\n", " buy('milk')\n", " submit_final_answer(1)\n"]
    [trajectory] = await roll(pool, lines, [Task("t", "Buy.", "")], make_extensions(environment="my_shop:Shop"))
    assert trajectory.lines[1].output == "'2 in the cart'\n(cart: tea, milk)\n>>>"
    assert trajectory.environment_reward == 1.0


@pytest.mark.usefixtures("tools")
async def test_the_guest_of_the_page(pool: KernelPool) -> None:
    lines = [" 1 / 0\n", " x\n", " 2 / 0\n", " 1\n", " 3 / 0\n", " submit_final_answer(1)\n"]
    extensions = load_extensions(parse_config({"guests": ["my_guests:ThreeTimes"]}))
    [trajectory] = await roll(pool, lines, [Task("t", "Divide.", "1")], extensions)
    assert (len(trajectory.lines), trajectory.stop_reason) == (5, StopReason.REPEATS)


@pytest.mark.usefixtures("tools")
async def test_the_plain_loop_makes_what_ours_makes(pool: KernelPool) -> None:
    tasks = [Task("a", "First?", "42"), Task("b", "Second?", "42")]
    plain = await roll(pool, LINES, tasks, make_extensions(sampler="my_loops:plain_loop"))
    for one, other in zip(plain, await roll(pool, LINES, tasks), strict=True):
        assert (one.completion_ids, one.sampled_mask) == (other.completion_ids, other.sampled_mask)
        assert [line.output for line in one.lines][:3] == [line.output for line in other.lines][:3]
        assert (one.answer, one.stop_reason) == (other.answer, other.stop_reason) == (("42",), StopReason.ANSWER)
        assert one.lines[1].kind is other.lines[1].kind is LineKind.EXCEPTION


async def too_few(tasks: Any, engine: Any, kernels: Any) -> list[Trajectory]:
    return []


@pytest.mark.usefixtures("tools")
async def test_a_loop_that_returns_something_else_is_named(pool: KernelPool) -> None:
    with pytest.raises(ConfigError, match=r"rollout '.*too_few' returned 0 trajectories for 1 tasks"):
        await roll(pool, LINES, [Task("a", "First?", "42")], make_extensions(sampler=too_few))
    with pytest.raises(ConfigError, match="is not an async function"):
        make_extensions(sampler=len)
    with pytest.raises(ConfigError, match="can't be imported"):
        make_extensions(sampler="no_such_module:loop")
    with pytest.raises(ConfigError, match="a loop of your own, which tools, environment and guests would never reach"):
        make_extensions(environment="my_shop:Shop", sampler=too_few)


# Rewards


def test_reward_functions_of_ones_own(here: Path) -> None:
    [code], section = blocks(page("rewards"), "python"), blocks(page("rewards"), "yaml")[1]
    (here / code.splitlines()[0].removeprefix("# ")).write_text(code)
    table = RewardTable(parse_config(yaml.safe_load(section)).rewards)
    thought = line("# Look at the product first.", LineKind.COMMENT)
    seen, end = line("6 * 7", LineKind.EXPRESSION), line("submit_final_answer(_)", LineKind.ANSWER)
    paid = table.score(made([thought, seen, end]), 1.0).components
    assert paid["brief"] == (-0.03, -0.007, -0.024)
    assert paid["looked"] == (0.0, 0.0, 0.1)
    assert paid["judged"] == (0.05, 0.0, 0.0)
    assert table.score(made([]), 0.0).line_rewards == ()


# Sessions


async def outputs(pool: KernelPool, *cells: str) -> list[str]:
    async with pool.session() as kernel:
        return [(await kernel.execute(cell)).output for cell in cells]


@pytest.mark.more
async def test_a_profile_shows_modules_and_data(here: Path) -> None:
    [profile], [config] = blocks(page("sessions"), "toml"), blocks(page("sessions"), "yaml")
    texts = {"modules/shapes.py": "sides = 4\n", "data/table.csv": "a,b\n", "tables/prices.csv": "1\n"}
    for name, text in {**texts, "mine.toml": profile, "my.yaml": config}.items():
        (here / name).parent.mkdir(exist_ok=True)
        (here / name).write_text(text)
    async with make_pool(load_config("my.yaml", ("kernel.size=1", "kernel.line_s=60")).kernel) as pool:
        shown = await outputs(
            pool,
            "import sys; [name in sys.modules for name in ('numpy', 'sympy', 'shapes')]",
            "import shapes; shapes.sides",
            'open("data/table.csv").read() + open("prices").read()',
        )
    assert shown == ["[True, True, True]\n", "4\n", "'a,b\\n1\\n'\n"]


def test_the_table_of_profiles_has_every_key_and_every_limit() -> None:
    keys = re.findall(r"^\| `(\w+)` \|", page("sessions"), re.MULTILINE)
    known = {each.name for each in dataclasses.fields(Profile)} - {"name"} | {"also_read_only"}
    assert sorted(keys) == sorted(known)
    [limits] = re.findall(r"a table of limits: (.*?)\. ", page("sessions"))
    assert limits == ", ".join(f"`{each.name}`" for each in dataclasses.fields(Limits))


async def test_rich_values_show_as_the_page_says(pool: KernelPool) -> None:
    shown = await outputs(
        pool,
        "class Rich:\n    def __repr__(self): return 'its repr'\n    def _repr_html_(self): return '<b>html</b>'\n",
        "Rich()",
        "from IPython.display import HTML, display; display(HTML('<b>html</b>'))",
    )
    assert shown == ["", "its repr\n", "<IPython.core.display.HTML object>\n"]


# Tasks


def test_problems_in_a_file_of_ones_own(here: Path) -> None:
    [rows], [config] = blocks(page("tasks"), "json"), blocks(page("tasks"), "yaml")
    (here / "problems.jsonl").write_text(rows)
    (here / "own.yaml").write_text(config)
    loaded = load_config("own.yaml")
    train = load_tasks(loaded.tasks, "train", loaded.seed, loaded.tasks.train)
    heldout = load_tasks(loaded.tasks, "heldout", 0, loaded.eval.problems)
    assert (len(train), len(heldout)) == (5, 3)
    told = [json.loads(row) for row in rows.splitlines()]
    answers = [row["solution"].rpartition(" ")[2].replace(",", "") for row in told]
    about = [(row["uid"], row["topic"]) for row in told]
    assert {(task.id, task.family): task.answer for task in [*train, *heldout]} == dict(
        zip(about, answers, strict=True)
    )
    other = load_config("own.yaml", ("tasks.dataset=null", "tasks.folder=problems.jsonl"))
    assert load_tasks(other.tasks, "train", other.seed, other.tasks.train) == train


def test_a_task_and_its_grades() -> None:
    [code] = blocks(page("tasks"), "python")
    names: dict[str, object] = {}
    exec(code, names)
    said = re.findall(r"^(grade\(.*\))  # (.*)$", code, re.MULTILINE)
    assert [eval(call, names) for call, _ in said] == [float(value) for _, value in said] == [1.0, 1.0, 0.0]
