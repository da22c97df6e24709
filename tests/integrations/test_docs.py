"""Every block of docs/integrations.md runs as it stands there; a scripted model is behind the names it leaves open."""

import ast
import asyncio
import inspect
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from chat_server import serve
from scripted_chat import call, make_model, make_tokenizer

from repl_rl.integrations.shared import close_shared_kernels
from repl_rl.tasks import make_tasks

pytestmark = pytest.mark.more
TEXT = (Path(__file__).parents[2] / "docs" / "integrations.md").read_text(encoding="utf-8")
BLOCKS: list[tuple[str, str]] = re.findall(r"^```(\w+)\n(.*?)^```$", TEXT, re.DOTALL | re.MULTILINE)


def run(code: str, **names: Any) -> dict[str, Any]:
    """The names of a block after it has run; it may await."""
    compiled = compile(code, "docs/integrations.md", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    awaited = eval(compiled, names)
    if inspect.isawaitable(awaited):

        async def finish() -> None:
            await awaited

        asyncio.run(finish())
    return names


@pytest.fixture(autouse=True)
def _surroundings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_KEY", "none")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)


def test_there_are_as_many_blocks_as_are_run_here() -> None:
    assert [language for language, _ in BLOCKS] == ["python"] * 4 + ["toml"]


def test_trl() -> None:
    def script(row: int, seen: Any) -> str:
        return [call(f"17 * {23 + row % 2}"), call("submit_final_answer(_)"), "Done."][len(seen)]

    code = BLOCKS[0][1].replace("max_steps=1", "max_steps=1, report_to='none', use_cpu=True, bf16=False")
    tokenizer = make_tokenizer()
    names = run(code, model=make_model(tokenizer, script), tokenizer=tokenizer)
    environments = names["trainer"].environments
    assert [environment.answer for environment in environments] == [("391",), ("408",)] * 2
    assert names["trainer"].state.log_history[0]["reward"] == 0.5
    environments[0].reset()
    assert run(BLOCKS[1][1])["submitted"](environments=environments, completions=[""] * 4) == [0.0, 0.1, 0.1, 0.1]
    close_shared_kernels()


@pytest.mark.slow
@pytest.mark.usefixtures("verifiers_path")
def test_verifiers(capsys: pytest.CaptureFixture[str]) -> None:
    answers = {task.question: task.answer for task in make_tasks(["modpow"], 64, 0, "heldout")}

    def script(shown: list[str]) -> str:
        question = shown[0].split("\n\n")[0]
        return ["1 / 0", f"submit_final_answer({answers[question]})"][len(shown) - 1]

    with serve(script) as (url, _):
        run(BLOCKS[2][1], url=url)
    expected = [f"1.0 2.0 1.0 ({answer!r},)" for answer in list(answers.values())[:2]]
    assert capsys.readouterr().out.splitlines() == expected


@pytest.mark.usefixtures("verifiers_path")
def test_the_plugin_and_its_toml(tmp_path: Path) -> None:
    import verifiers.v1 as vf

    code = BLOCKS[3][1]
    (tmp_path / code.splitlines()[0].removeprefix("# ")).write_text(code)
    env = vf.load_environment(vf.resolve_env_config(tomllib.loads(BLOCKS[4][1])["env"]))
    assert type(env).__name__ == "ReplEnv"
    assert [task.data.prompt for task in env.taskset.take(3)] == [
        task.question for task in make_tasks(["modpow"], 3, 0, "heldout")
    ]
    harness = env.config.agent.harness
    assert (harness.max_lines, harness.kernel.size) == (12, 8)
