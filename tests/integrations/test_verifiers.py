"""`verifiers` runs our environment: its env, slot, interception, trace and scoring, our kernels, a scripted model."""

import asyncio
import json
import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from chat_server import Script, serve
from integrations.conftest import kill_the_server

from repl_rl.config import DialectConfig, KernelConfig
from repl_rl.errors import ConfigError
from repl_rl.integrations.shared import shared_kernels

pytestmark = [pytest.mark.more, pytest.mark.usefixtures("verifiers_path")]
KERNEL = KernelConfig(size=2, line_s=30.0, grace_s=5.0)
ENDING = {"lines/answer": 1.0, "lines/statement": 1.0, "lines": 3.0, "lines/expression": 1.0}


@pytest.fixture(autouse=True)
def _key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SCRIPTED_KEY", "none")


def problems(folder: Path, *rows: tuple[str, str]) -> Path:
    path = folder / "problems.jsonl"
    path.write_text("".join(json.dumps({"question": q, "answer": a}) + "\n" for q, a in rows))
    return path


def play(script: Script, env: Any, at_once: int = 1) -> tuple[list[Any], list[dict[str, Any]]]:
    """The episodes of `at_once` rollouts on the first task, and what the model was asked."""
    import verifiers.v1 as vf

    async def run(url: str) -> list[Any]:
        context = vf.ModelContext(model="m", client=vf.EvalClientConfig(base_url=url, api_key_var="SCRIPTED_KEY"))
        task = next(iter(env.taskset))
        async with env.serving():
            return await asyncio.gather(*(env.run_episode(task, context) for _ in range(at_once)))

    with serve(script) as (url, requests):
        return asyncio.run(run(url)), requests


def environment(folder: Path, **settings: Any) -> Any:
    from repl_rl.integrations.verifiers import load_environment

    return load_environment(problems=problems(folder, ("What is 17 * 23?", "391")), kernel=KERNEL, **settings)


def typing(*lines: str) -> Script:
    return lambda shown: lines[len(shown) - 1]


def messages(episode: Any) -> list[tuple[str, str]]:
    return [(message.role, message.content) for message in episode.traces[0].messages]


def test_messages_are_lines_outputs_the_next_messages_and_the_trace_holds_reward_and_metrics(tmp_path: Path) -> None:
    (episode,), requests = play(typing("x = 17 * 23", "x", "submit_final_answer(x)"), environment(tmp_path))
    system, question, *rest = messages(episode)
    assert system[1].startswith("You think inside a live Python interpreter.")
    assert question[1].startswith("What is 17 * 23?\n\nPython 3.11")
    assert question[1].endswith("\n>>>")
    assert rest == [
        ("assistant", "x = 17 * 23"),
        ("user", ">>>"),
        ("assistant", "x"),
        ("user", "391\n>>>"),
        ("assistant", "submit_final_answer(x)"),
    ]
    assert [request["stop"] for request in requests] == [["\n"]] * 3
    (trace,) = episode.traces
    assert (episode.ok, trace.reward, trace.num_turns, len(trace.branches)) == (True, 1.0, 3, 1)
    assert {name: value for name, value in trace.metrics.items() if value} == ENDING
    assert trace.metrics["lines/exception"] == 0.0
    assert trace.info["repl_rl"] == {"answer": ("391",), "kinds": ["statement", "expression", "answer"]}


def test_a_wrong_answer_and_none_earn_nothing(tmp_path: Path) -> None:
    wrong, _ = play(typing("submit_final_answer(390)"), environment(tmp_path))
    never, requests = play(lambda shown: "1", environment(tmp_path, max_lines=3))
    assert (wrong[0].traces[0].reward, never[0].traces[0].reward) == (0.0, 0.0)
    assert (never[0].ok, len(requests)) == (True, 3)
    assert never[0].traces[0].info["repl_rl"]["answer"] is None


def test_errors_and_blocks_look_as_at_a_terminal(tmp_path: Path) -> None:
    lines = ("y", "for i in range(2):", "    i", "", "submit_final_answer(i)")
    (episode,), _ = play(typing(*lines), environment(tmp_path))
    shown = [content for role, content in messages(episode) if role == "user"][1:]
    assert shown[0].startswith("Traceback (most recent call last):\n")
    assert shown[0].endswith("NameError: name 'y' is not defined\n>>>")
    assert shown[1:] == ["...", "...", "0\n1\n>>>"]
    assert episode.traces[0].metrics["lines/exception"] == 1.0
    assert episode.traces[0].metrics["lines/open"] == 2.0


def test_several_lines_in_a_message_where_they_are_allowed(tmp_path: Path) -> None:
    script = typing("x = 17\nx\nx * 23", "'a' * 500", "submit_final_answer(391)\n")
    short = environment(tmp_path, line_by_line=False, dialect=DialectConfig(max_output_chars=64))
    (episode,), requests = play(script, short)
    assert messages(episode)[3] == ("user", "17\n391\n>>>")
    cut = messages(episode)[5][1]
    assert ("characters left out" in cut, len(cut)) == (True, 64 + len(">>>"))
    assert episode.traces[0].reward == 1.0
    assert "stop" not in requests[0]


def test_what_would_take_minutes_to_be_typed_is_refused_and_the_session_goes_on(tmp_path: Path) -> None:
    """A terminal reads an open block again with every line: these took 17 seconds to minutes, and all others waited."""
    at_once = "def f():\n" + "    x = 1\n" * 4000
    script = typing("y = 391", at_once, "values = [", "1,\n" * 600, "1,\n" * 600, "1", "submit_final_answer(y)")
    (episode,), _ = play(script, environment(tmp_path, line_by_line=False))
    shown = [content for role, content in messages(episode) if role == "user"][2:]
    # An open block is dropped with what is refused.
    refused = "SyntaxError: a program of {} characters is too long to be typed at once\n>>>"
    assert shown[0] == refused.format("4,001 lines and 40,009")
    assert shown[1:5] == ["...", "...", refused.format("600 lines and 1,800"), "1\n>>>"]
    assert episode.traces[0].reward == 1.0


def test_dialects_that_are_no_lines_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="dialect 'fenced' does not go line by line here"):
        environment(tmp_path, dialect=DialectConfig(name="fenced"))


def test_more_rollouts_than_kernels_wait_for_one(tmp_path: Path) -> None:
    """None sees another's names."""
    lines = ("'x' in dir()", "x = 1", "submit_final_answer(391)")
    episodes, _ = play(typing(*lines), environment(tmp_path), at_once=5)
    assert [messages(episode)[3] for episode in episodes] == [("user", "False\n>>>")] * 5
    assert [episode.traces[0].reward for episode in episodes] == [1.0] * 5


def test_a_model_that_fails_is_an_error_of_the_episode_and_no_reward(tmp_path: Path) -> None:
    (episode,), _ = play(lambda shown: None if len(shown) > 1 else "x = 1", environment(tmp_path))
    (trace,) = episode.traces
    assert (episode.ok, trace.rewards) == (False, {})
    assert "out of order" in trace.errors[0].message
    assert trace.info["repl_rl"]["kinds"] == ["statement"]


def test_a_machine_that_fails_is_an_error_of_the_episode_and_no_reward(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(shown: list[str]) -> str:
        if len(shown) == 2:
            kill_the_server(shared_kernels(KERNEL).pool.backend.server.pid)
        return "x = 1"

    with caplog.at_level(logging.ERROR):
        (episode,), _ = play(fails, environment(tmp_path))
    (trace,) = episode.traces
    assert (episode.ok, trace.rewards, trace.errors[0].type) == (False, {}, "SandboxError")
    assert trace.info["repl_rl"] == {"answer": None, "kinds": ["statement", "killed"]}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("not json", r"problems.jsonl, line 1: can't be read as jsonl: Expecting value"),
        ('{"question": "1 + 1?"}', r"line 1: a problem has question and answer, and there is no 'answer'"),
        (None, r"problems.jsonl: can't be read as jsonl: .*No such file"),
    ],
)
def test_a_file_of_no_use_is_named(tmp_path: Path, text: str | None, said: str) -> None:
    from repl_rl.integrations.verifiers import load_environment

    path = tmp_path / "problems.jsonl"
    if text is not None:
        path.write_text(text)
    with pytest.raises(ConfigError, match=said):
        list(load_environment(problems=path).taskset)


def test_without_the_package_the_error_names_it() -> None:
    program = "import sys; sys.modules['verifiers'] = None; import repl_rl.integrations.verifiers"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(part for part in sys.path if "verifiers" not in part)}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=600, check=False
    )
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("repl_rl.errors.DependencyError: this environment is for verifiers 0.4")
    assert last.endswith(": pip install verifiers")
