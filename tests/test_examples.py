"""The sessions that the project's first users described, on real sandboxed kernels with a scripted policy."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from exactness import RecordingEngine, assert_exact
from scripted import ScriptedEngine, multiply, rollout_of

from repl_rl.config import CreditConfig, DialectConfig, RewardsConfig, TasksConfig
from repl_rl.dialect import dialect_class
from repl_rl.engine import load_vocabulary
from repl_rl.kernel import KernelPool, Limits
from repl_rl.models.nano import NANO_PATH
from repl_rl.rewards import RewardTable
from repl_rl.rollout import credit, score
from repl_rl.tasks import grade, load_tasks
from repl_rl.tools import tool_metrics
from repl_rl.trajectory import LineKind, Message, StopReason, Task, Trajectory

pytestmark = pytest.mark.more
TEMPLATE = (Path(__file__).parent / "dialect" / "templates" / "qwen2_5.jinja").read_text(encoding="utf-8")
SESSIONS = yaml.safe_load(Path(__file__).with_name("examples.yaml").read_text(encoding="utf-8"))


class WeatherLookupError(ValueError):
    """The place can't be looked up."""


def weather(city: str) -> str:
    """Look up the weather.

    Args:
        city: The city and its state, such as "Boston, MA".
    """
    if "," not in city:
        raise WeatherLookupError("Must specify a two-letter state.")
    return f"The weather in {city.partition(',')[0]} is 40 deg F and sunny all day."


class Roll:
    """Scripted rollouts on real kernels. What holds for every trajectory is asserted here."""

    def __init__(self, pool: KernelPool) -> None:
        self.pool = pool
        self.vocabulary = load_vocabulary(str(NANO_PATH))

    async def __call__(
        self, scripts: Sequence[Sequence[str]], tasks: Sequence[Task], dialect: str = "python", **extensions: Any
    ) -> list[Trajectory]:
        """A script for each task."""
        self.vocabulary = load_vocabulary(str(NANO_PATH), dialect_class(DialectConfig(name=dialect)).stops)
        self.vocabulary.tokenizer.chat_template = TEMPLATE if dialect == "tool_call" else None
        by_question = {task.question: script for task, script in zip(tasks, scripts, strict=True)}

        def script(prompt: str) -> Sequence[str]:
            return next(script for question, script in by_question.items() if question.splitlines()[0] in prompt)

        engine = RecordingEngine(ScriptedEngine(self.vocabulary, script))
        given: dict[str, Any] = {"vocabulary": self.vocabulary, "dialect": dialect, "context_tokens": 6000}
        given["budget"] = {"lines": 20, "tokens": 4000, "line_tokens": 400}
        trajectories = await rollout_of(engine, self.pool, **given, **extensions).many(tasks)
        assert_exact(trajectories, engine, self.vocabulary)
        return trajectories


@pytest.fixture
def roll(kernel_pools: Callable[..., KernelPool]) -> Roll:
    return Roll(kernel_pools(Limits(line_s=60)))


def typed(session: str) -> list[str]:
    return [f" {line}\n" for line in session.splitlines()]


async def test_session_1_a_proof_explored_line_by_line(roll: Roll) -> None:
    task = Task("proof", "p is a prime that divides neither a nor b.", "")
    [trajectory] = await roll([typed(SESSIONS["proof"])], [task])
    by_text = {line.text.strip(): line for line in trajectory.lines}
    quiet = [line for text, line in by_text.items() if " = " in text or text.startswith(("#", "from"))]
    assert len(quiet) == 10
    assert {line.output for line in quiet} == {">>>"}
    shown = "Intersection({-sqrt(a + p*y), sqrt(a + p*y)}, Integers)"
    assert by_text["s1  # what does sympy make of it?"].output == f"{shown}\n>>>"
    assert by_text["s1, s2, s3"].output.count("Intersection(") == 3
    assert trajectory.answer is not None
    assert len(trajectory.answer) == 3
    assert trajectory.answer[0] == shown
    assert trajectory.stop_reason is StopReason.ANSWER


@pytest.mark.parametrize("where", [pytest.param("sandbox", marks=pytest.mark.slow), "host"])
async def test_session_3_calls_inside_prose(where: Any, roll: Roll) -> None:
    asked = Message("user", "Should I pack an umbrella?"), Message("assistant", "For which city?")
    task = Task("umbrella", "Seattle.", "no", history=asked)
    lines = SESSIONS["prose"]["typed"]
    [trajectory] = await roll([lines], [task], "inline", tools=[weather], where=where)
    assert "user: Should I pack an umbrella?\nassistant: For which city?\n" in trajectory.prompt
    assert "weather(city: str) -> str: Look up the weather." in trajectory.prompt
    assert roll.vocabulary.decode(trajectory.completion_ids) == SESSIONS["prose"]["shown"]
    first, second = trajectory.lines[1], trajectory.lines[4]
    assert (first.kind, first.error_name) == (LineKind.EXCEPTION, "WeatherLookupError")
    assert second.kind is LineKind.EXPRESSION
    assert [call.error_name for line in trajectory.lines for call in line.calls] == ["WeatherLookupError", None]
    assert (trajectory.answer, trajectory.stop_reason) == (("'no'",), StopReason.ANSWER)
    table = RewardTable(RewardsConfig(exceptions={"ValueError": -0.1}, kinds={LineKind.EXCEPTION: -0.3}))
    [scored] = score([task], [trajectory], grade, table)
    assert [line.reward for line in scored.trajectory.lines] == [0, -0.3, 0, 0, 0, 0, 0, 1.0]


@pytest.mark.parametrize("where", ["sandbox", "host"])
@pytest.mark.parametrize(("dialect", "scripts"), SESSIONS["calls"].items())
async def test_session_4_calls_and_failures_are_counted(
    dialect: str, scripts: dict[str, list[str]], where: Any, roll: Roll
) -> None:
    tasks = [Task(name, f"Multiply 12 and 13 {name}.", "") for name in scripts]  # nobody asks for an answer then
    trajectories = await roll(list(scripts.values()), tasks, dialect, tools=[multiply], where=where)
    metrics = tool_metrics(trajectories, ["multiply"])
    assert metrics["tools/multiply/call_frequency"] == pytest.approx(2 / 3)
    assert metrics["tools/multiply/failure_frequency"] == pytest.approx(1 / 2)
    rightly, wrongly, _ = trajectories
    assert "multiply(a: int, b: int) -> int" in rightly.prompt or '"name": "multiply"' in rightly.prompt
    results = [line.output for line in rightly.lines if line.calls]
    assert ["156\n" in output for output in results] == [True]
    [failed] = [line for line in wrongly.lines if line.calls]
    assert (failed.kind, failed.error_name) == (LineKind.EXCEPTION, "TypeError")
    assert "TypeError: multiply() " in failed.output


async def test_session_4_several_calls_of_a_turn_are_all_answered(roll: Roll) -> None:
    calls = "".join(SESSIONS["several calls"])
    task = Task("t", "Multiply 2 by 3 and 4 by 5.", "")
    [trajectory] = await roll([[calls, "6 and 20"]], [task], "tool_call", tools=[multiply])
    answered = trajectory.lines[0]
    assert answered.output.count("<tool_response>") == 3
    assert (
        answered.output.index("\n6\n") < answered.output.index("\n20\n") < answered.output.index("the call is not JSON")
    )
    assert answered.kind is LineKind.SYNTAX_ERROR
    assert [call.error_name for call in answered.calls] == [None, None]
    between = trajectory.completion_ids[answered.end : trajectory.lines[1].start]
    assert roll.vocabulary.decode(between) == answered.output
    assert trajectory.stop_reason is StopReason.EOS


async def test_session_5_gsm8k_with_an_interpreter(tmp_path: Path, roll: Roll) -> None:
    question = "Ann has 16 eggs, eats 3, bakes with 4 and sells the rest at 2 each. How much does she earn?"
    row = {"question": question, "answer": "She sells 16 - 3 - 4 = 9 eggs for 9 * 2 = 18.\n#### 18"}
    other = {"question": "What are three dozen eggs?", "answer": "12 * 3 = 36\n#### 36"}
    (tmp_path / "train.jsonl").write_text(f"{json.dumps(row)}\n{json.dumps(other)}\n")
    (tmp_path / "test.jsonl").write_text(f"{json.dumps({**row, 'question': 'Another?'})}\n")
    tasks = load_tasks(TasksConfig(dataset="gsm8k", folder=str(tmp_path)), "train", 0, 2)
    eggs = next(task for task in tasks if task.answer == "18")
    prying = typed("grade\ntask\n16 - 3 - 4\n_ * 2\nsubmit_final_answer(_)\n")
    guess = typed("submit_final_answer(36)\n")
    made = [(await roll([lines], [eggs]))[0] for lines in (prying, guess)]
    right, wrong = made
    assert [line.error_name for line in right.lines] == ["NameError", "NameError", None, None, None]
    assert "18" not in right.prompt.partition("Ann has")[2]
    assert sum(right.sampled_mask) == sum(line.end - line.start for line in right.lines) < len(right.sampled_mask)
    scored = score([eggs, eggs], made, grade, RewardTable(RewardsConfig(kinds={LineKind.EXCEPTION: -0.1})))
    assert [item.trajectory.outcome_reward for item in scored] == [1.0, 0.0]
    [first, _] = credit(scored, 2, CreditConfig(estimator="return_to_go"))
    values = first.token_advantages
    assert len(values) == len(right.completion_ids)
    assert {value for value, was in zip(values, right.sampled_mask, strict=True) if not was} == {0.0}
    assert values[right.lines[0].start] < values[right.lines[2].start]
    assert wrong.answer == ("36",)


class Shop:
    """A sandbox that owns everything: its functions are all that there is."""

    def __init__(self) -> None:
        self.cart: list[str] = []

    def reset(self, task: Task) -> dict[str, Any]:
        return {"shelf": {"tea": 3, "milk": 2}, "buy": self.buy}

    def buy(self, name: str) -> str:
        """Put something into the cart."""
        if name not in ("tea", "milk"):
            raise KeyError(name)
        self.cart.append(name)
        return f"{len(self.cart)} in the cart"

    def observe(self) -> str:
        return f"(cart: {', '.join(self.cart) or 'empty'})\n"

    def reward(self, trajectory: Trajectory) -> tuple[float, str]:
        return float(self.cart == ["tea", "milk"]), f"bought: {self.cart}"


async def test_session_6_an_environment_that_owns_everything(roll: Roll) -> None:
    tasks = [Task("shop", "Buy tea and milk.", ""), Task("none", "Buy nothing.", "")]
    scripts = [
        [" shelf['tea']\n", " buy('tea')\n", " buy('gold')\n", " buy('milk')\n", " submit_final_answer('done')\n"],
        [" submit_final_answer('done')\n"],
    ]
    [shopped, idle] = await roll(scripts, tasks, environment=Shop())
    assert "# (cart: empty)\n" in shopped.prompt
    assert [line.output for line in shopped.lines][:2] == ["3\n(cart: empty)\n>>>", "'1 in the cart'\n(cart: tea)\n>>>"]
    assert shopped.lines[2].error_name == "KeyError"
    assert [call.name for line in shopped.lines for call in line.calls] == ["buy", "buy", "buy"]
    assert (shopped.environment_reward, idle.environment_reward) == (1.0, 0.0)
    assert (shopped.environment_reason, idle.environment_reason) == ("bought: ['tea', 'milk']", "bought: []")
    scored = score(tasks, [shopped, idle], grade, RewardTable(RewardsConfig()))
    assert scored[1].trajectory.grade_reason == "bought: []"
    assert "graded 0: bought: []" in str(scored[1].trajectory)
    [first, second] = credit(scored, 2, CreditConfig(estimator="outcome"))
    assert first.trajectory.outcome_reward == 1.0
    assert max(first.token_advantages) > 0 > min(second.token_advantages)
