"""OpenEnv's own clients and validator against `repl-rl serve openenv`, a process of its own, over its socket.

Clients are processes too: OpenEnv's fastmcp needs an older mcp than the one that vLLM brings into other tests.
"""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
from integrations.conftest import kill_the_server
from pages import blocks
from waiting import DEADLINE_S, until

pytestmark = pytest.mark.more
CHECKOUT = Path(__file__).parents[2]
OPENENV = CHECKOUT / ".venv" / "openenv"
DOCS = blocks((CHECKOUT / "docs" / "openenv.md").read_text(encoding="utf-8"), "python")
SERVE = ("-m", "repl_rl.cli", "serve", "openenv", "--port", "0")
SECRET = 982451653
"""The answer to the served problem."""
CLIENT = """\
import json, sys, threading, time
import openenv.core
url = sys.argv[1]

def connect():
    return openenv.core.GenericEnvClient(base_url=url, message_timeout_s=300).sync()

def shown(result):
    return {**result.observation, "reward": result.reward, "done": result.done}

def refused(call, *arguments, **named):
    try:
        return shown(call(*arguments, **named))
    except RuntimeError as error:
        return str(error)

def say(value):
    print(json.dumps(value), flush=True)

"""


def environment() -> dict[str, str]:
    assert (OPENENV / "openenv").is_dir(), f"{OPENENV} is missing; `make .venv/openenv/.installed` brings it"
    return {**os.environ, "PYTHONPATH": os.pathsep.join((str(OPENENV), *filter(None, sys.path)))}


def start(*arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, *arguments]
    return subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@contextmanager
def serving(
    *options: str, arguments: tuple[str, ...] = SERVE, is_quiet: bool = True
) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """A server's address and process, which ends without a word, unless it has something to log."""
    with start(*arguments, *options) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            address = re.match(r"http://[\d.:]+", line)
            assert address, (line, process.communicate())
            yield address[0], process
            process.send_signal(signal.SIGTERM)
            out, err = process.communicate(timeout=DEADLINE_S)
            assert (out, process.returncode) == ("", 0)
            assert not (is_quiet and err), err
        finally:
            process.kill()


def client(url: str, program: str) -> list[Any]:
    """What a client's program says."""
    with start("-c", CLIENT + program, url) as process:
        out, err = process.communicate(timeout=DEADLINE_S)
        assert process.returncode == 0, err
    return [json.loads(line) for line in out.splitlines()]


@pytest.fixture(scope="module")
def problems(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("problems") / "problems.jsonl"
    rows = [{"question": f"Question {number}?", "answer": str(SECRET + number)} for number in range(2)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture(scope="module")
def server(problems: Path) -> Iterator[str]:
    options = ("--size", "4", "--set", "kernel.line_s=2", "--set", f"tasks.dataset={problems}")
    with serving(*options, "--set", "tasks.heldout=0.5") as (url, _):
        yield url


def test_an_episode_pays_its_answer_and_shows_it_nowhere(server: str) -> None:
    reset, *steps, state, over = client(
        server,
        """
with connect() as env:
    say(shown(env.reset(split="train", index=0, episode_id="mine")))
    for code in ("x = 6", "x * 7", "for i in range(2):\\n    i\\n\\nx", "1 / 0", "submit_final_answer(7)"):
        say(shown(env.step({"code": code})))
    say(env.state())
    say(shown(env.step({"code": "x"})))
""",
    )
    assert re.fullmatch(r"Question [01]\?", reset["question"])
    assert (reset["reward"], reset["done"]) == (None, False)
    assert [
        (step["kind"], step["output"][-4:], step["error_name"], step["reward"], step["done"]) for step in steps
    ] == [
        ("statement", "", None, 0.0, False),
        ("expression", "42\n", None, 0.0, False),
        ("expression", "1\n6\n", None, 0.0, False),
        ("exception", "ero\n", "ZeroDivisionError", 0.0, False),
        ("answer", "", None, 0.0, True),
    ]
    kinds = [step["kind"] for step in steps]
    assert state == {"episode_id": "mine", "step_count": 5, "kinds": kinds, "answer": ["7"], "reward": 0.0}
    assert over["output"] == "(the answer has been submitted; nothing runs any more)\n"
    assert (over["kind"], over["reward"], over["done"]) == (None, 0.0, True)
    assert str(SECRET)[:-1] not in json.dumps([reset, steps, state, over])


def test_problems_are_the_servers_or_the_clients(server: str) -> None:
    """Of the two that are served, the first has the answer that is handed in."""
    served, drawn, drawn_again, given, right, no_answer, beside_columns, *refusals = client(
        server,
        f"""
def play(code, **row):
    question = env.reset(**row).observation["question"]
    return question, shown(env.step({{"code": f"submit_final_answer({{code}})"}}))["reward"]

with connect() as env:
    say(play({SECRET}, split="train", index=0))
    say(play({SECRET}, seed=3))
    say(play({SECRET}, seed=3))
    say(play({SECRET}, question="17 * 23?", answer=391, prompt=[]))
    say(play("17 * 23", question="17 * 23?", answer="391"))
    say(play("'well'", question="How are you?"))
    say(play("17 * 23", question="17 * 23?", answer="391", split="train", index=0, prompt=[]))
    say(refused(env.reset, split="test"))
    say(refused(env.reset, split="train", index=7))
    say(refused(env.reset, answer="what?!"))
    say(refused(env.reset, question="17 * 23?", split="train"))
    say(refused(env.reset, question="17 * 23?", index=0))
""",
    )
    for question, reward in (served, drawn):
        assert reward == (1.0 if question == "Question 0?" else 0.0)
    assert drawn == drawn_again
    assert (given, right, no_answer) == (["17 * 23?", 0.0], ["17 * 23?", 1.0], ["How are you?", None])
    assert beside_columns == ["17 * 23?", 1.0], "a data set's columns of these names, beside its answer"
    assert refusals[0] == "Server error: no split 'test' here; there are train, heldout (code: EXECUTION_ERROR)"
    assert "index out of range" in refusals[1]
    assert "what?!" in refusals[2]
    assert refusals[3] == refusals[4]
    assert "Server error: reset got a question without an answer, and the split or index of a problem" in refusals[3]


def test_what_one_session_does_others_dont_notice(server: str) -> None:
    """Four at once: one hangs where no interrupt helps, one ends itself, one floods and types what takes long to read,
    and one just goes on."""
    hung, ended, flooded, steady = client(
        server,
        """
said = [[], [], [], []]
programs = [
    ["x = 1", "sum(range(10**12))", "x"],
    ["x = 2", "import os; os._exit(3)", "x"],
    ["x = 3", "while True: print('x' * 1000)", "x", "@a\\n" * 10000],
    ["x = 4"] + ["x"] * 40,
]
def play(number):
    with connect() as env:
        env.reset()
        for code in programs[number]:
            said[number].append(shown(env.step({"code": code})))
threads = [threading.Thread(target=play, args=[number]) for number in range(4)]
for thread in threads: thread.start()
for thread in threads: thread.join()
for results in said: say(results)
""",
    )
    assert [step["kind"] for step in hung] == ["statement", "timeout", "expression"]
    assert hung[2]["output"] == "1\n"
    assert [step["kind"] for step in ended] == ["statement", "killed", "exception"]
    assert ended[2]["output"].startswith("(a fresh interpreter: everything defined before is gone)\n")
    assert ended[2]["error_name"] == "NameError"
    assert [step["kind"] for step in flooded] == ["statement", "timeout", "expression", "syntax_error"]
    assert flooded[3]["output"].startswith("SyntaxError: a program of 10,000 lines and 30,000 characters that does not")
    assert (len(flooded[1]["output"]) <= 1000, flooded[2]["output"]) == (True, "3\n")
    assert [step["output"] for step in steady] == [""] + ["4\n"] * 40


def test_a_vanished_client_frees_its_interpreters_and_one_too_many_is_told(server: str) -> None:
    takes_all = """
clients = [connect() for _ in range(4)]
for env in clients: env.reset()
say(clients[0].step({"code": "6 * 7"}).observation["output"])
"""
    fifth = "say(refused(connect().reset))\n"
    with start("-c", CLIENT + takes_all + fifth + "time.sleep(1000)", server) as process:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline()) == "42\n"
        refusal = json.loads(process.stdout.readline())
        assert "Server at capacity: 4/4 sessions active" in refusal
        process.kill()
    assert client(server, takes_all) == ["42\n"]


def test_the_tool_over_mcp(server: str) -> None:
    tools, *outputs, episode = client(
        server,
        """
from openenv.core.mcp_client import MCPToolClient
with MCPToolClient(base_url=url).sync() as env:
    [tool] = env.list_tools()
    say([tool.name, tool.input_schema["required"], "submit_final_answer" in tool.description])
    say(env.call_tool("python", code="x = 6"))
    say(env.call_tool("python", code="x * 7"))
    try:
        env.call_tool("python", code=7)
    except RuntimeError as error:
        say(str(error))
    env.reset(question="17 * 23?", answer="391")
    say(env.call_tool("python", code="x"))
    env.call_tool("python", code="submit_final_answer(391)")
    say(env.state().step_count)
""",
    )
    assert tools == ["python", ["code"], True]
    assert outputs[:2] == ["", "42\n"]
    assert "Input should be a valid string" in outputs[2]
    assert outputs[3].endswith("NameError: name 'x' is not defined\n")
    assert episode == 2


def test_openenvs_validator_passes_and_requests_without_a_session_work(server: str) -> None:
    with start("-m", "openenv.cli", "validate", "--json", "--url", server) as process:
        report = json.loads(process.communicate(timeout=DEADLINE_S)[0])
    assert (report["passed"], report["mode"], report["summary"]["failed_criteria"]) == (True, "simulation", [])
    split, task, step, bad = client(
        server,
        """
import requests
say(requests.get(f"{url}/repl_rl/splits").json())
say(requests.post(f"{url}/repl_rl/task", json={"split": "heldout", "index": 0}).json())
say(requests.post(f"{url}/step", json={"action": {"code": "6 * 7"}}).json())
say(requests.post(f"{url}/step", json={"action": {"text": "6 * 7"}}).status_code)
""",
    )
    assert split == [{"name": "train", "type": "train"}, {"name": "heldout", "type": "validation"}]
    assert (list(task["task"]), step["observation"]["output"], bad) == (["index", "question", "family"], "42\n", 422)


def test_the_machine_failing_is_an_error_and_no_reward(problems: Path) -> None:
    with serving("--size", "2", "--problems", str(problems), is_quiet=False) as (url, process):
        program = """
with connect() as env:
    env.reset()
    say(shown(env.step({"code": "x = 1"}))["kind"])
    sys.stdin.readline()
    say(refused(env.step, {"code": "x"}))
"""
        command = [sys.executable, "-c", CLIENT + program, url]
        with subprocess.Popen(
            command, env=environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as player:
            assert player.stdout is not None
            assert json.loads(player.stdout.readline()) == "statement"
            children = psutil.Process(process.pid).children()
            [sandbox] = (child for child in children if any("launch.py" in part for part in child.cmdline()))
            kill_the_server(sandbox.pid)
            out, _ = player.communicate("\n", timeout=DEADLINE_S)
        refusal = json.loads(out)
        assert refusal.startswith("Server error: the interpreter failed: ")
        assert refusal.endswith("; reset begins a new episode (code: EXECUTION_ERROR)")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_server_with_all_that_it_started(number: int) -> None:
    with start(*SERVE, "--size", "2") as process:
        assert process.stdout is not None
        url = process.stdout.readline().split()[0]
        endless = """
with connect() as env:
    env.reset()
    say("ready")
    say(refused(env.step, {"code": "import time\\nwhile True: time.sleep(1)"}))
"""
        with start("-c", CLIENT + endless, url) as player:
            assert player.stdout is not None
            player.stdout.readline()
            family = psutil.Process(process.pid).children(recursive=True)
            time.sleep(0.5)  # until the line runs
            process.send_signal(number)
            said = process.communicate(timeout=DEADLINE_S)
            assert (said[0], process.returncode) == ("", 0), said
            _, alive = psutil.wait_procs(family, timeout=DEADLINE_S)
            assert (len(family) > 0, alive) == (True, [])


def test_an_unused_session_ends_and_says_so() -> None:
    with serving("--size", "1", "--idle-s", "5") as (url, process):
        before = psutil.Process(process.pid)
        first, second, again = client(
            url,
            """
env = connect()
env.reset()
say(refused(env.step, {"code": "6 * 7"})["output"])
while True:
    time.sleep(11)
    said = refused(env.step, {"code": "6 * 7"})
    if isinstance(said, str): break
say(said)
with connect() as other:
    other.reset()
    say(shown(other.step({"code": "6 * 7"}))["output"])
""",
        )
        assert (first, again) == ("42\n", "42\n")
        assert "this session has ended, because no request came for too long; connect again" in second
        until(before.is_running)


def test_without_the_package_the_error_names_it() -> None:
    program = "import sys; sys.modules['openenv'] = None; from repl_rl.cli import main; main(['serve', 'openenv'])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=600, check=False)
    assert done.stderr.startswith("repl-rl: this server is built on openenv 0.10, which can't be imported (")
    assert done.stderr.endswith("): pip install 'openenv>=0.10,<0.11'\n")


def test_in_process_as_nemo_gym_uses_it_with_limits_on_actions_and_on_waiting() -> None:
    program = """
import json
import repl_rl.integrations.openenv as served
from repl_rl.config import KernelConfig

def shown(code):
    return first.step(served.ReplAction(code=code)).model_dump()

served.ACTION_S = served.WAIT_S = 300.0
first, second = served.ReplEnvironment(KernelConfig(size=1)), served.ReplEnvironment(KernelConfig(size=1))
said = []
try:
    first.reset(question="17 * 23?", split="train")
except Exception as error:
    said.append(str(error))
first.reset(answer="391")
said.append(shown("x = 1"))
served.ACTION_S = 0.5
said.append(shown("import time\\n" + "time.sleep(0.2)\\n" * 1000))
served.ACTION_S = 300.0
said.append(shown("x"))
served.WAIT_S = 0.5
try:
    second.reset()
except Exception as error:
    said.append(str(error))
served.WAIT_S = 300.0
first.close()
second.reset()
said.append(second.step(served.ReplAction(code="6 * 7")).output)
print(json.dumps(said))
"""
    with start("-c", program) as process:
        out, err = process.communicate(timeout=DEADLINE_S)
        assert process.returncode == 0, err
    no_problems, quick, slow, later, refusal, free = json.loads(out)
    assert no_problems == "this server has no problems, so reset takes no split and no index"
    assert (quick["kind"], slow["kind"], later["error_name"]) == ("statement", "killed", "NameError")
    assert slow["output"] == "(the interpreter was ended: this took longer than 0.5 s)\n"
    assert (later["reward"], later["done"]) == (0.0, False)
    assert refusal.startswith("none of the 1 interpreters of this server became free within 0.5 s")
    assert free == "42\n"


def test_the_pages_client(server: str) -> None:
    [code] = [block for block in DOCS if "GRPOTrainer" not in block]
    with start("-c", code.replace("http://127.0.0.1:8000", server)) as process:
        out, err = process.communicate(timeout=DEADLINE_S)
    assert out.splitlines() == [
        "What is 17 * 23?",
        " statement 0.0 False",
        "391",
        " expression 0.0 False",
        " answer 1.0 True",
    ], err


@pytest.mark.slow
def test_the_pages_trainer(server: str, tmp_path: Path) -> None:
    [code] = [block for block in DOCS if "GRPOTrainer" in block]
    code = code.replace("http://127.0.0.1:8000", server)
    code = code.replace("max_steps=1", "max_steps=1, report_to='none', use_cpu=True, bf16=False")
    program = f"""
from scripted_chat import call, make_model, make_tokenizer

def script(row, seen):
    return [call(f"17 * {{23 + row % 2}}"), call("submit_final_answer(_)"), "Done."][len(seen)]

tokenizer = make_tokenizer()
model = make_model(tokenizer, script)
{code}
print([environment.reward for environment in trainer.environments])
print(trainer.state.log_history[0]["reward"])
"""
    with start("-c", f"import os; os.chdir({str(tmp_path)!r})\n{program}") as process:
        out, err = process.communicate(timeout=DEADLINE_S)
    assert out.splitlines()[-2:] == ["[1.0, 0.0, 1.0, 0.0]", "0.5"], err
