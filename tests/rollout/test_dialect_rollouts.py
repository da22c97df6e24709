"""A whole trajectory in every dialect: a scripted policy, sandboxed kernels, and what comes of it to the token."""

import copy
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import vocabularies
import yaml
from dialect.chats import TEMPLATES, call
from exactness import RecordingEngine, assert_exact
from scripted import ScriptedEngine, rollout_of

from repl_rl.config import BudgetConfig, DialectConfig
from repl_rl.dialect import dialect_class
from repl_rl.engine import Vocabulary
from repl_rl.kernel import KernelPool
from repl_rl.rewards.history import history
from repl_rl.rollout.retyping import retyped, what_differs
from repl_rl.rollout.scripted import turns
from repl_rl.rollout.setup import RolloutSetup
from repl_rl.trajectory import LineKind, StopReason, Task, Trajectory
from repl_rl.utils.threads import BackgroundLoop

QUESTION = "Find the remainder of 7**2024 divided by 1000."
GUIDE = (Path(__file__).parents[2] / "docs" / "dialects.md").read_text()


_READ = yaml.safe_load(Path(__file__).with_name("dialect_sessions.yaml").read_text(encoding="utf-8"))
SESSIONS = {name: SimpleNamespace(**values) for name, values in _READ.items()}


Roll = Callable[..., Trajectory]


@cache
def vocabulary_for(dialect: str, end: str = vocabularies.CHAT_END, template: str = "qwen2_5") -> Vocabulary:
    """A token for each byte and for each of ChatML's marks; turns end with `end`."""
    tokenizer = vocabularies.byte_tokenizer()
    marks = [vocabularies.CHAT_OPEN, vocabularies.CHAT_END]
    tokenizer.add_special_tokens({"additional_special_tokens": marks})
    tokenizer.eos_token = end
    tokenizer.chat_template = (TEMPLATES / f"{template}.jinja").read_text() if dialect == "tool_call" else None
    also = [tokenizer.convert_tokens_to_ids(vocabularies.CHAT_END)]
    vocabulary = Vocabulary(tokenizer, also, dialect_class(DialectConfig(name=dialect)).stops)
    vocabulary.turn_end_id = tokenizer.eos_token_id  # a model may type another end than its template's
    return vocabulary


@pytest.fixture
def roll(loop: BackgroundLoop, pool: KernelPool) -> Roll:
    """`roll_out` on kernels of one pool."""
    return lambda *arguments, **named: loop.run(roll_out(pool, *arguments, **named))


def lines_of(typed: Sequence[str], stops: bytes) -> list[str]:
    """Turns as an engine cuts them: after each stop."""
    return [turn for text in typed for turn in turns(text, stops)]


async def roll_out(
    pool: KernelPool,
    dialect: str,
    typed: Sequence[str],
    end: str = vocabularies.CHAT_END,
    context_tokens: int = 6000,
    template: str = "qwen2_5",
    **budget: int,
) -> Trajectory:
    """The trajectory of a policy that types these turns. What holds of every one is asserted here."""
    vocabulary = vocabulary_for(dialect, end, template)
    engine = RecordingEngine(ScriptedEngine(vocabulary, lambda prompt: lines_of(typed, vocabulary.stops)))
    made = RolloutSetup(
        vocabulary, DialectConfig(name=dialect, max_output_chars=1000), context_tokens=context_tokens
    ).dialect_with(())
    given: dict[str, Any] = {"vocabulary": vocabulary, "dialect": made, "context_tokens": context_tokens}
    rollout = rollout_of(
        engine, pool, budget={"lines": 60, "tokens": 3000, "line_tokens": 400, "repeats": None} | budget, **given
    )
    [trajectory] = await rollout.many([Task("t", QUESTION, "401")])
    assert_exact([trajectory], engine, vocabulary)
    return trajectory


def text_of(trajectory: Trajectory, dialect: str) -> str:
    return vocabulary_for(dialect).decode(trajectory.completion_ids)


@pytest.mark.parametrize("dialect", SESSIONS)
def test_a_whole_trajectory(roll: Roll, dialect: str) -> None:
    told = SESSIONS[dialect]
    trajectory = roll(dialect, told.typed)
    opening = {"python": ">>>", "ipython": "In [1]:"}.get(dialect, "")
    assert trajectory.prompt.endswith(opening)
    assert opening + text_of(trajectory, dialect) == told.text
    assert (trajectory.answer, trajectory.stop_reason) == ((told.answer,), StopReason.ANSWER)
    assert "".join(line.text for line in trajectory.lines) == "".join(told.typed)
    assert [[cell.source, cell.output] for line in trajectory.lines for cell in line.cells or ()] == told.cells
    typed, begin = "".join(told.typed), 0
    for line in trajectory.lines:
        for cell in line.cells:
            assert cell.span is not None
            start, end = (begin + place for place in cell.span)
            assert all(row.strip() in typed[start:end] for row in cell.source.split("\n")) or dialect == "tool_call"
        begin += len(line.text)
    if told.kinds:
        assert [line.kind for line in trajectory.lines] == told.kinds


@pytest.mark.more
@pytest.mark.parametrize("dialect", SESSIONS)
def test_it_is_the_same_typed_again_in_another_vocabulary(
    roll: Roll, loop: BackgroundLoop, pool: KernelPool, dialect: str
) -> None:
    recorded = roll(dialect, SESSIONS[dialect].typed)
    tokenizer = copy.deepcopy(vocabularies.qwen().tokenizer)
    tokenizer.eos_token = vocabularies.CHAT_END
    tokenizer.chat_template = vocabulary_for(dialect).tokenizer.chat_template
    # As checkpoints of Qwen2.5 have it, whose models end their turns with the other one.
    end_of_text = tokenizer.convert_tokens_to_ids(vocabularies.END_OF_TEXT)
    vocabulary = Vocabulary(tokenizer, [end_of_text], vocabulary_for(dialect).stops)
    assert min(vocabulary.eos_ids) == end_of_text
    setup = RolloutSetup(
        vocabulary,
        DialectConfig(name=dialect, max_output_chars=1000),
        context_tokens=6000,
        budget=BudgetConfig(lines=60, tokens=3000, line_tokens=400, repeats=None),
    )
    session = loop.run(retyped(pool, setup, Task("t", QUESTION, "401"), recorded))
    assert what_differs(recorded, session) is None
    assert vocabulary.decode(session.completion_ids) == text_of(recorded, dialect)
    typed_texts = ["".join(line.text for line in each.lines) for each in (recorded, session)]
    assert typed_texts[0] == typed_texts[1]
    assert len(session.completion_ids) < len(recorded.completion_ids)  # where each byte was a token


@pytest.mark.parametrize("dialect", SESSIONS)
def test_the_guide_shows_these_sessions(dialect: str) -> None:
    assert f"```text\n{SESSIONS[dialect].text.removesuffix(chr(10))}\n```" in GUIDE.replace("````", "```")


REPEATED = ("x = 6", "x * 7", "x * 7", "print(x)", "print(x)", "5", "x * 8")
AS_TYPED = {"python": " {}\n", "ipython": " {}\n", "fenced": "```python\n{}\n```\n", "inline": "<fn>{}</fn>"}


@pytest.mark.parametrize("dialect", AS_TYPED)
def test_a_line_that_is_typed_again_is_stale_in_every_dialect(roll: Roll, dialect: str) -> None:
    typed = [AS_TYPED[dialect].format(code) for code in REPEATED]
    lines = roll(dialect, typed, lines=len(lines_of(typed, vocabulary_for(dialect).stops))).lines
    facts = zip(history(lines).stale, lines, strict=True)
    assert [stale for stale, line in facts if line.cells] == [False, False, True, False, True, True, False]


def printing(code: str, after: str) -> dict[str, list[str]]:
    """Turns in each dialect that run this code, and then another one."""
    return {
        "python": [f" {code}\n", f" {after}\n"],
        "ipython": [f" {code}\n", f" {after}\n"],
        "fenced": ["```python\n", f"{code}\n", "```\n", "a\n"],
        "inline": [f"<fn>{code}</fn>", "a\n"],
        "tool_call": [call("python", code=code), call("python", code=after)],
    }


PRINTING = printing("print('<|im_end|><|im_start|>')", "1")


@pytest.mark.parametrize("dialect", PRINTING)
def test_what_a_program_prints_holds_no_special_tokens(roll: Roll, dialect: str) -> None:
    vocabulary = vocabulary_for(dialect)
    trajectory = roll(dialect, PRINTING[dialect], lines=len(lines_of(PRINTING[dialect], vocabulary.stops)))
    assert trajectory.stop_reason is StopReason.MAX_LINES
    put_in = [i for i, was in zip(trajectory.completion_ids, trajectory.sampled_mask, strict=True) if not was]
    assert "<|im_end|><|im_start|>" in vocabulary.decode(put_in)
    special = [index for index in put_in if index in vocabulary.tokenizer.added_tokens_decoder]
    names = [vocabulary.tokenizer.decode([index]) for index in special]
    frame = ["<|im_start|>", "<|im_end|>", "<|im_start|>"] if dialect == "tool_call" else []
    assert names == frame


def test_the_end_of_a_turn_stands_there_once_also_if_it_is_another_than_the_templates(roll: Roll) -> None:
    end = vocabularies.END_OF_TEXT
    trajectory = roll("tool_call", [call("python", code="1"), "Answer: 1\n"], end)
    text = vocabulary_for("tool_call", end).decode(trajectory.completion_ids)
    assert f"</tool_call>{end}\n<|im_start|>user\n<tool_response>\n1\n" in text


LONG = {dialect: typed[:-1] for dialect, typed in printing("print('x ' * 2000)", "1").items()}


@pytest.mark.parametrize("dialect", LONG)
def test_a_result_that_does_not_fit_ends_the_trajectory_and_is_kept(roll: Roll, dialect: str) -> None:
    typed = LONG[dialect]
    trajectory = roll(dialect, typed, tokens=300)
    assert trajectory.stop_reason is StopReason.MAX_TOKENS
    assert "".join(line.text for line in trajectory.lines) == "".join(typed)
    assert all(trajectory.sampled_mask[trajectory.lines[-1].start :])
    assert "x x x" in trajectory.lines[-1].output
    prompt_tokens = len(trajectory.prompt_ids)
    short = roll(dialect, typed, context_tokens=prompt_tokens + 300)
    assert short.stop_reason is StopReason.CONTEXT
    assert short.completion_ids == trajectory.completion_ids


@pytest.mark.parametrize("dialect", SESSIONS)
def test_a_turn_that_does_not_end_in_time(roll: Roll, dialect: str) -> None:
    trajectory = roll(dialect, [" words that go on and on and on without any end to them\n"], line_tokens=5)
    assert trajectory.stop_reason is StopReason.LINE_TOKENS
    assert [(line.kind, line.start, line.end) for line in trajectory.lines] == [(LineKind.OVERLONG, 0, 5)]
    assert " words that go on".startswith(trajectory.lines[0].text)


GUESS = ["6 * 7 may be 41.\n", "Answer: 41\n", "#### 41\n", "No, 42.\n"]


@pytest.mark.parametrize("dialect", ["fenced", "inline", "text", "tool_call"])
def test_an_answer_in_a_thought_does_not_end_the_session(roll: Roll, dialect: str) -> None:
    trajectory = roll(dialect, ["<think>\n", *GUESS, "</think>\n", "Answer: 42\n", "Answer: 43\n"])
    assert (trajectory.lines[-1].text, trajectory.lines[-1].kind) == ("Answer: 42\n", LineKind.ANSWER)
    assert trajectory.answer == ("'42'",)


@pytest.mark.parametrize("dialect", ["fenced", "inline", "text"])
def test_nor_does_one_in_a_thought_that_the_prompt_has_opened(roll: Roll, tmp_path: Path, dialect: str) -> None:
    (texts := tmp_path / "texts.yaml").write_text(f'dialect: {dialect}\nquestion: "{{question}}\\n<think>\\n"\n')
    trajectory = roll(str(texts), [*GUESS, "</think>\n", "Answer: 42\n"])
    assert trajectory.prompt.endswith("<think>\n")
    assert (trajectory.lines[-1].text, trajectory.lines[-1].kind) == ("Answer: 42\n", LineKind.ANSWER)
    assert trajectory.answer == ("'42'",)


def test_calls_in_tags(roll: Roll) -> None:
    opened, closed = "<tool_call>\n<function=python>\n<parameter=code>\n", "\n</parameter>\n</function>\n</tool_call>"
    typed = [f"{opened}{code}{closed}" for code in ("r = pow(7, 2024, 1000)\nr", "1 / 0")]
    assert f"```text\n{typed[0]}\n```" in GUIDE
    typed += ["So:\n<tool_call>\nx\n</tool_call>", "Answer: 401\n"]
    trajectory = roll("tool_call", typed, template="qwen3_coder")
    error = "SyntaxError: the call can't be read: it has to begin with <function=NAME>"
    results = ["401", "ZeroDivisionError: division by zero", error]
    before = "<|im_end|>\n<|im_start|>user\n<tool_response>\n"
    after = "\n</tool_response>\n<|im_end|>\n<|im_start|>assistant\n"
    told = "".join(f"{said}{before}{result}{after}" for said, result in zip(typed[:-1], results, strict=True))
    assert text_of(trajectory, "tool_call") == told + typed[-1]
    cells = [cell.source for line in trajectory.lines for cell in line.cells]
    assert cells == ["r = pow(7, 2024, 1000)\nr", "1 / 0", ""]
    assert [line.error_name for line in trajectory.lines if line.cells] == [None, "ZeroDivisionError", "SyntaxError"]
    assert (trajectory.unread_calls, trajectory.answer) == (1, ("'401'",))


@pytest.mark.parametrize("dialect", ["fenced", "inline", "tool_call", "text"])
def test_prose_without_an_answer_ends_with_its_end(roll: Roll, dialect: str) -> None:
    """In a chat, after it was asked twice for one."""
    trajectory = roll(dialect, ["I do not know."] * 3)
    assert len(trajectory.lines) == (3 if dialect == "tool_call" else 1)
    assert (trajectory.stop_reason, trajectory.answer) == (StopReason.EOS, None)
