"""A recursive language model in real sandboxed sessions: what lies in them, what comes of it, and what is refused."""

from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import vocabularies
import yaml
from exactness import assert_masked_text_is_the_outputs
from kernel.kernelspecs import add_spec
from scripted import AskedEngine, rollout_of

from repl_rl.config import BranchConfig, parse_config
from repl_rl.errors import ConfigError
from repl_rl.kernel import KernelPool
from repl_rl.rollout.checks import check_rollouts
from repl_rl.rollout.loop import Rollout
from repl_rl.rollout.metrics import batch_metrics
from repl_rl.rollout.setup import load_extensions
from repl_rl.tasks import make_tasks
from repl_rl.trajectory import StopReason, Task, Trajectory, read_jsonl, write_jsonl
from repl_rl.utils.threads import BackgroundLoop

TASK = Task("t", "Who has the key?", "Ada", metadata={"context": "Ada has it. " * 100})
CASES = yaml.safe_load(Path(__file__).with_name("rlm.yaml").read_text(encoding="utf-8"))
Play = Callable[..., Trajectory]


def asking(typed: Sequence[str], pool: KernelPool, dialect: str = "python", **subcalls: Any) -> Rollout:
    """Rollouts whose sessions may ask."""
    budget = {"lines": 40, "tokens": 6000, "line_tokens": 400}
    given: dict[str, Any] = {"context_tokens": 8192, "budget": budget, "subcalls": subcalls, "environment": "rlm"}
    return rollout_of(AskedEngine(vocabularies.nano(), typed), pool, dialect=dialect, **given)


@pytest.fixture
def play(loop: BackgroundLoop, pool: KernelPool) -> Play:
    """Plays a session in which these lines are typed."""

    def play(typed: Sequence[str], task: Task = TASK, **options: Any) -> Trajectory:
        rollout = asking(typed, pool, **options)
        [trajectory] = loop.run(rollout.many([task]))
        assert (rollout.engine.admission.admitted, rollout.engine.admission.taken) == (0, 0)  # type: ignore[attr-defined]
        return trajectory

    return play


def shown(trajectory: Trajectory) -> list[str]:
    return [line.shown for line in trajectory.lines]


@pytest.mark.more
def test_the_prompt_tells_the_type_and_the_length_of_the_context_and_nothing_of_it(play: Play) -> None:
    trajectory = play(["submit_final_answer(context[:3])\n"])
    assert trajectory.answer == ("'Ada'",)
    assert "Ada" not in trajectory.prompt
    assert "\n>>> # The variable context is a str of 1,200 characters. Print parts of it, not all" in trajectory.prompt
    assert "\n>>> # llm_query(prompt: str) -> str: Ask a language model, which sees" in trajectory.prompt
    assert "\n>>> # llm_query_batched(prompts: list[str]) -> list[str]: Ask" in trajectory.prompt


@pytest.mark.parametrize("dialect", ["python", "ipython"])
def test_what_a_session_asks_is_shown_in_masked_text_and_recorded_apart(
    play: Play, dialect: str, tmp_path: Any
) -> None:
    typed = ["llm_query('one')\n", "x = llm_query_batched(['a', 'b', 'c'])\n", "print(x)\n", "FINAL(x[2])\n"]
    trajectory = play(typed, dialect=dialect)
    assert trajectory.stop_reason == StopReason.ANSWER
    assert trajectory.answer == ("'about c'",)
    assert [line.rstrip("\n").rpartition(" ")[2] for line in shown(trajectory)] == ["one'", "", "c']", ""]
    asked = [[(call.prompt, call.text, call.batch) for call in line.subcalls] for line in trajectory.lines]
    assert asked == [[("one", "about one", 0)], [(name, f"about {name}", 1) for name in "abc"], [], []]
    assert all(call.tokens and call.prompt_tokens for line in trajectory.lines for call in line.subcalls)
    assert_masked_text_is_the_outputs(trajectory, vocabularies.nano())
    sampled = [index for index, own in zip(trajectory.completion_ids, trajectory.sampled_mask, strict=True) if own]
    assert vocabularies.nano().decode(sampled) == "".join(line.text for line in trajectory.lines)
    write_jsonl(tmp_path / "made.jsonl", [trajectory])
    assert list(read_jsonl(tmp_path / "made.jsonl")) == [trajectory]


@pytest.mark.parametrize(("typed", "answer"), CASES["answers"])
def test_ways_to_answer(play: Play, typed: list[str], answer: str) -> None:
    trajectory = play([*typed, "1\n"])
    assert (trajectory.answer, len(trajectory.lines)) == ((answer,), len(typed))


def test_an_answer_that_is_not_ready_or_not_there_ends_nothing(play: Play) -> None:
    trajectory = play(["answer['content'] = 5\n", "FINAL_VAR('y')\n", "answer\n", "FINAL(1)\n"])
    assert [line.error_name for line in trajectory.lines] == [None, "NameError", None, None]
    assert "there is no variable 'y'; SHOW_VARS() lists them, and FINAL(value) takes a value" in shown(trajectory)[1]
    assert shown(trajectory)[2] == "{'content': 5, 'ready': False}\n"


RESERVED = ("context", "llm_query", "llm_query_batched", "answer", "FINAL", "FINAL_VAR", "SHOW_VARS")


def test_reserved_names_are_back_after_every_line(play: Play) -> None:
    names = "[type(each).__name__ for each in (" + ", ".join(RESERVED) + ")]\n"
    kinds = "['str', 'function', 'function', 'dict', 'function', 'function', 'function']\n"
    typed = [
        f"{' = '.join(RESERVED)} = None\n",
        names,
        f"del {', '.join(RESERVED)}, submit_final_answer\n",
        names,
        "x = y = 1; context = 'mine'; raise ValueError\n",
        "globals().clear()\n",
        "SHOW_VARS()\n",
        "z = len(context); llm_query = 3\n",
        "SHOW_VARS()\n",
        "FINAL(llm_query(z))\n",
        "FINAL(llm_query(str(z)))\n",
    ]
    trajectory = play(typed)
    said = shown(trajectory)
    assert (said[1], said[3], said[6], said[8]) == (kinds, kinds, "{}\n", "{'z': 'int'}\n")
    assert trajectory.lines[9].error_name in ("TypeError", "ValidationError")
    assert trajectory.answer == ("'about 1200'",)


def test_a_line_changes_the_state_by_what_it_binds_and_not_by_what_it_asks(play: Play) -> None:
    typed = ["llm_query('a')\n", "1\n", "x = 2\n", "answer['content'] = 1\n", "len(context)\n", "FINAL(1)\n"]
    asked, shown, bound, answered, looked, _ = (line.fingerprint for line in play(typed).lines)
    assert asked is not None
    assert asked == shown != bound != answered == looked


@pytest.mark.parametrize("name", ["needle-1k", "count-10k", "join-100k", "needle-1m", "count-1m", "join-1m"])
def test_documents_of_each_size_are_solved_in_a_session(play: Play, name: str) -> None:
    kind = name.partition("-")[0]
    solve = {
        "needle": "import re; FINAL(re.search(r'access code of \\w+ is (\\d+)', context)[1])\n",
        "count": "FINAL(sum(any(w in r for w in ('broke', 'money back', 'crack')) for r in context))\n",
        "join": "import re; town = {r['id']: r['town'] for r in context if r['row'] == 'person'}\n",
    }[kind]
    [task] = make_tasks(name, 1, seed=4, split="heldout")
    typed = [solve]
    if kind == "join":
        town = task.question.split(" of ")[1].split()[0]
        typed.append("bought = [(r['price'], town[r['person']]) for r in context if r['row'] != 'person']\n")
        typed.append(f"FINAL(sum(price for price, where in bought if where == {town!r}))\n")
    trajectory = play(typed, task)
    assert trajectory.answer is not None
    assert trajectory.answer[0].strip("'") == task.answer
    assert task.answer not in trajectory.prompt


def test_budgets_end_with_a_message(play: Play) -> None:
    typed = ["llm_query_batched(list('abc'))\n", "llm_query('d')\n", "FINAL(1)\n"]
    trajectory = play(typed, calls=2)
    refused = "[no answer: the budget of 2 questions is used up]"
    assert eval(shown(trajectory)[0]) == ["about a", "about b", refused]
    assert eval(shown(trajectory)[1]) == refused
    names = [[call.error_name for call in line.subcalls] for line in trajectory.lines]
    assert names == [[None, None, "calls"], ["calls"], []]
    assert eval(shown(play(typed[1:], calls=0))[0]) == "[no answer: the budget of 0 questions is used up]"
    numbers = batch_metrics([trajectory], 1.0)
    seconds, tokens = numbers.pop("subcalls/seconds"), numbers.pop("subcalls/tokens")
    assert (seconds >= 0, tokens) == (True, sum(call.tokens for line in trajectory.lines for call in line.subcalls))
    found = {name: value for name, value in numbers.items() if name.startswith("subcalls/")}
    counts = {"calls": 4.0, "batch": 2.0, "prompt_tokens": 2.0, "refused": 0.5}
    assert found == {f"subcalls/{name}": value for name, value in counts.items()}


def test_what_no_prompt_holds_gets_an_answer_that_says_so(play: Play) -> None:
    typed = [
        "llm_query('x ' * 9000)\n",
        "llm_query('x' * 500_000)\n",
        "llm_query('')\n",
        "llm_query('\\ud800')\n",
        "llm_query('x' * 2_000_000)\n",
        "llm_query_batched('abc')\n",
        "llm_query_batched([])\n",
        "llm_query()\n",
        "FINAL(1)\n",
    ]
    trajectory = play(typed)
    said = shown(trajectory)
    assert "tokens, and 7,936 fit]" in said[0]
    assert eval(said[1]) == "[no answer: the prompt has 500,000 characters, and 7,936 tokens fit]"
    assert eval(said[2]) == "[no answer: the prompt has 0 tokens, and 7,936 fit]"
    assert trajectory.lines[3].error_name == "TypeError"
    assert "takes 1048576 bytes" in said[4]
    assert trajectory.lines[5].error_name is not None
    assert said[6] == "[]\n"
    assert trajectory.lines[7].error_name == "TypeError"
    assert trajectory.answer == ("1",)


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({}, r"task 't' has no context, and environment rlm needs one: metadata\['context'\]"),
        (
            {"context": "x" * 2_100_000},
            "the context of task 't' has 2,100,009 bytes when it is pickled, and a session takes 2,031,616; split",
        ),
        ({"context": "\u6c49" * 1_000_000}, "the context of task 't' has 3,000,009 bytes when it is pickled"),
    ],
    ids=["none", "too long", "too many bytes"],
)
def test_a_task_without_a_context_or_with_too_long_a_one_is_refused_before_anything_starts(
    play: Play, metadata: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        play(["1\n"], Task("t", "What?", "", metadata=metadata))


@pytest.mark.parametrize(("context", "said"), CASES["contexts"])
def test_contexts_are_told_by_type_and_length(play: Play, context: Any, said: str) -> None:
    trajectory = play(["FINAL(context)\n"], Task("t", "What?", "", metadata={"context": context}))
    assert f"# The variable context is {said}. Print" in trajectory.prompt
    assert trajectory.answer == (repr(context),)


@pytest.mark.parametrize(("values", "message"), CASES["refused"])
def test_configs_that_can_not_work_are_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check_rollouts(parse_config({"environment": "rlm", **values}))


def test_a_kernel_that_takes_no_tools_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    add_spec(tmp_path, "ir", ["R", "-e", "IRkernel::main()", "{connection_file}"], language="R")
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path))
    config = parse_config({"environment": "rlm", "kernel": {"backend": "ir"}})
    with pytest.raises(
        ConfigError, match=r"environment RLM sets up its sessions with repl_tools.*'ir'.*take kernel.back"
    ):
        load_extensions(config).require(config.dialect, config.kernel, None)


async def test_trees_are_refused_where_they_are_asked_for(pool: KernelPool) -> None:
    with pytest.raises(ConfigError, match="its sessions can't be forked"):
        await asking([], pool).many([TASK] * 4, branch=BranchConfig(roots=2, forks=1, branches=3))


class Judge:
    """An environment of a user's own that asks: what it observes comes from the model."""

    def use_model(self, model: Any) -> None:
        self._ask: Callable[[Sequence[str]], Awaitable[list[str]]] = model.ask

    def reset(self, task: Task) -> None: ...

    async def observe(self) -> str:
        return (await self._ask(["opinion"]))[0]


async def test_an_environment_of_ones_own_may_ask_too(pool: KernelPool) -> None:
    engine = AskedEngine(vocabularies.nano(), ["1\n", "submit_final_answer(1)\n"])
    rollout = rollout_of(engine, pool, context_tokens=4096, environment=Judge)
    [trajectory] = await rollout.many([Task("t", "What?", "")])
    assert shown(trajectory) == ["1\nabout opinion\n", ""]
    assert [[call.prompt for call in line.subcalls] for line in trajectory.lines] == [["opinion", "opinion"], []]
