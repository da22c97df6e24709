"""The folders in docs/hub are what other sides' own tools take: verifiers' commands, and OpenEnv's checks of a push."""

import json
import os
import re
import shutil
import subprocess
import sys
from email.parser import HeaderParser
from pathlib import Path
from zipfile import ZipFile

import pytest
from chat_server import serve
from integrations.test_openenv import CLIENT, serving, start
from packaging.requirements import Requirement
from waiting import DEADLINE_S

from repl_rl import __version__
from repl_rl.tasks import make_tasks

pytestmark = pytest.mark.more
PLAYED = """
sys.path.insert(0, sys.argv[2])
from repl_rl_env import ReplRlEnv
assert not {"repl_rl", "torch"} & set(sys.modules)
with ReplRlEnv(base_url=url).sync() as env:
    assert env.reset(split="heldout", index=0).observation["question"]
    print(env.step({"code": "6 * 7"}).observation["output"], end="")
"""
CHECKOUT = Path(__file__).parents[2]
HUB = CHECKOUT / "docs" / "hub"


def wheel_of(source: Path, folder: Path) -> tuple[list[str], list[Requirement]]:
    """Builds a wheel, as `prime env push` does, and unpacks it. Returns its modules and its requirements."""
    copy = shutil.copytree(source, folder / "source")  # what builds leave there
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(copy)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    [path] = folder.glob("*.whl")
    with ZipFile(path) as wheel:
        names = wheel.namelist()
        [metadata] = [name for name in names if name.endswith("/METADATA")]
        headers = HeaderParser().parsestr(wheel.read(metadata).decode())
        wheel.extractall(folder)
    modules = [name for name in names if name.endswith(".py")]
    return modules, [Requirement(text) for text in headers.get_all("Requires-Dist") or []]


@pytest.mark.usefixtures("verifiers_path")
def test_verifiers_commands_play_the_package(tmp_path: Path, verifiers_path: Path) -> None:
    modules, requirements = wheel_of(HUB / "verifiers", tmp_path)
    assert modules == ["repl_rl_env.py"]
    needed = {requirement.name: requirement.specifier for requirement in requirements}
    assert needed["repl-rl"].contains(__version__)
    assert needed["verifiers"].contains("0.4.0")
    path = os.pathsep.join((str(tmp_path), str(verifiers_path), *filter(None, sys.path)))
    surroundings = {**os.environ, "PYTHONPATH": path, "SCRIPTED_KEY": "none"}

    def run(module: str, *options: str) -> None:
        program = f"import sys; from verifiers.v1.cli.{module} import main; sys.exit(main())"
        command = [sys.executable, "-c", program, "repl-rl-env", "-o", str(tmp_path / "out")]
        done = subprocess.run(
            [*command, "--no-rich", *options],
            env=surroundings,
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr

    families = ["--env.taskset.families", '["modpow"]']
    run("validate", "--only-noop", "--runtime.type", "subprocess", "-n", "2", "--taskset.families", '["modpow"]')
    answers = {task.question: task.answer for task in make_tasks(["modpow"], 256, 0, "train")}
    with serve(lambda shown: f"submit_final_answer({answers[shown[0].split(chr(10))[0]]})") as (url, requests):
        options = ["--model", "m", "--client.base-url", url, "--client.api-key-var", "SCRIPTED_KEY", "-n", "2"]
        run("eval.main", "--env.agent.harness.id", "repl-rl-env", *families, *options)
    assert [request["stop"] for request in requests] == [["\n"]] * 2
    [results] = (tmp_path / "out").rglob("traces.jsonl")
    traces = [json.loads(line)["traces"][0] for line in results.read_text().splitlines()]
    assert [trace["rewards"]["answered"]["score"] for trace in traces] == [1.0, 1.0]


def test_openenvs_checks_of_a_push_pass_and_the_server_of_the_container_plays(tmp_path: Path) -> None:
    folder = HUB / "openenv"
    program = """
import json, sys
from pathlib import Path
from openenv.cli._cli_utils import validate_env_structure
from openenv.cli._validation import validate_multi_mode_deployment
folder = Path(sys.argv[1])
validate_env_structure(folder)
print(json.dumps(validate_multi_mode_deployment(folder)[1]))
"""
    with start("-c", program, str(folder)) as process:
        out, err = process.communicate(timeout=DEADLINE_S)
        assert process.returncode == 0, err
    assert json.loads(out) == ["Missing uv.lock - run 'uv lock' to generate it"]
    with start("-m", "openenv.cli", "validate", str(folder), "--level", "static", "--skip-build") as process:
        assert process.communicate(timeout=DEADLINE_S)[0].endswith("Verdict: PASS\n")
    _, requirements = wheel_of(folder, tmp_path)
    of_client = [requirement.name for requirement in requirements if requirement.marker is None]
    of_server = [requirement.name for requirement in requirements if requirement.marker is not None]
    assert (of_client, of_server) == (["openenv"], ["repl-rl"])
    image = (folder / "Dockerfile").read_text()
    assert re.search(r'^RUN pip install .* "\.\[server\]"$', image, re.MULTILINE)
    [arguments] = re.findall(r'^CMD \["server", (.*)\]$', image, re.MULTILINE)
    program = f"""
import sys
sys.path.insert(0, {str(tmp_path)!r})
from repl_rl_env.server.app import app, main
assert app.title.startswith("OpenEnv")
sys.argv[1:] = [{arguments}, "--host", "127.0.0.1", "--port", "0"]
main()
"""
    with serving(arguments=("-c", program)) as (url, _):
        with start("-c", CLIENT + PLAYED, url, str(tmp_path)) as process:
            out, err = process.communicate(timeout=DEADLINE_S)
        assert out == "42\n", err
