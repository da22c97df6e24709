"""`repl-rl view` as a process of its own: it answers, follows its run, refuses strangers, and ends cleanly."""

import http.client
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from repl_rl.trajectory import write_jsonl
from repl_rl.view.viewer.index import index_path, targets_of
from tests.view.conftest import failed_trajectory, solved_trajectory, train_row

REFUSED = yaml.safe_load(Path(__file__).with_name("requests_refused.yaml").read_text(encoding="utf-8"))


class Viewer:
    """A running `repl-rl view`, asked over its socket."""

    def __init__(self, target: Path, *options: str) -> None:
        command = [sys.executable, "-m", "repl_rl.cli", "view", str(target), "--no-browser", *options]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.said: list[str] = []
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.said.append(line.strip())
            if line.startswith("viewer: "):
                break
        assert self.said, "it ended without a word"
        assert self.said[-1].startswith("viewer: http://127.0.0.1:"), self.said
        self.port = int(self.said[-1].rpartition(":")[2].rstrip("/"))

    def ask(
        self, path: str, method: str = "GET", host: str | None = None, **headers: str
    ) -> tuple[int, dict[str, str], bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=600)
        if host is not None:
            headers["Host"] = host
        connection.request(method, path, headers=headers)
        response = connection.getresponse()
        answer = response.status, {name.lower(): value for name, value in response.getheaders()}, response.read()
        connection.close()
        return answer

    def json(self, path: str) -> Any:
        status, headers, body = self.ask(path)
        assert (status, headers["content-type"]) == (200, "application/json; charset=utf-8"), body
        return json.loads(body)

    def until(self, path: str, fits: Callable[[Any], bool]) -> Any:
        for _ in range(3000):
            answer = self.json(path)
            if fits(answer):
                return answer
            time.sleep(0.1)
        raise AssertionError(f"{path} stayed at {answer}")

    def end(self, number: int = signal.SIGINT) -> int:
        self.process.send_signal(number)
        code = self.process.wait(timeout=600)
        assert self.process.stdout is not None
        self.said += [line.strip() for line in self.process.stdout]
        return code


@contextmanager
def viewing(target: Path, *options: str) -> Iterator[Viewer]:
    viewer = Viewer(target, *options)
    try:
        viewer.until("/api/run", lambda run: run["index"]["complete"])
        yield viewer
    finally:
        viewer.process.kill()
        viewer.process.communicate()


@pytest.fixture
def viewer(run_folder: Path) -> Iterator[Viewer]:
    with viewing(run_folder) as started:
        yield started


def test_it_answers_and_ends_with_0_at_ctrl_c(viewer: Viewer, run_folder: Path) -> None:
    assert viewer.said[0] == "quickstart: 24 steps on nano, finished"
    assert viewer.json("/api/trajectories?split=eval&limit=2&sort=step")["total"] == 24
    assert viewer.json("/api/trajectory/train-1-0?first=2&count=1")["screen"][0]["lines"] == [0]
    assert [token["id"] for token in viewer.json("/api/tokens/train-1-0?line=1")["tokens"]] == [5, 6, 7]
    assert len(viewer.json("/api/group/train-1-0")["rows"]) == 3
    assert len(viewer.json("/api/task/eval-0-0")["rows"]) == 2
    assert viewer.end() == 0
    assert viewer.said[-1] == f"report: {run_folder / 'report.html'}"
    assert (run_folder / "report.html").is_file()


@pytest.mark.parametrize(("method", "path", "status", "sentence"), REFUSED)
def test_what_is_not_there_is_said_in_a_sentence(
    one_viewer: Viewer, method: str, path: str, status: int, sentence: str
) -> None:
    got, headers, body = one_viewer.ask(path, method)
    assert got == status
    assert sentence in json.loads(body)["error"]
    assert headers["x-content-type-options"] == "nosniff"


@pytest.fixture(scope="module")
def one_viewer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Viewer]:
    folder = tmp_path_factory.mktemp("runs") / "one"
    write_jsonl(folder / "rollouts" / "step_00001.jsonl", [solved_trajectory(), failed_trajectory()])
    with viewing(folder) as started:
        yield started


def test_a_host_of_another_name_is_refused_and_this_machine_s_names_are_answered(one_viewer: Viewer) -> None:
    port = one_viewer.port
    for host in ("evil.example", f"evil.example:{port}", f"127.0.0.1.evil.example:{port}", "[::1]", ""):
        status, _, body = one_viewer.ask("/api/run", host=host)
        assert (status, b"rollouts" in body) in ((403, False), (400, False)), host
    for host in (f"localhost:{port}", "127.0.0.1", "LOCALHOST"):
        assert one_viewer.ask("/api/run", host=host)[0] == 200, host


def test_the_page_may_run_its_own_scripts_alone(one_viewer: Viewer) -> None:
    status, headers, body = one_viewer.ask("/")
    assert (status, headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert b"<html" in body
    policy = dict(part.split(" ", 1) for part in headers["content-security-policy"].split("; "))
    assert (policy["default-src"], policy["script-src"], policy["connect-src"]) == ("'none'", "'self'", "'self'")
    assert (policy["frame-ancestors"], policy["base-uri"]) == ("'none'", "'none'")


def test_assets_come_with_their_type_and_are_not_sent_twice(one_viewer: Viewer) -> None:
    status, headers, body = one_viewer.ask("/assets/plotly.js")
    assert (status, headers["content-type"]) == (200, "text/javascript; charset=utf-8")
    assert len(body) > 1_000_000
    again = one_viewer.ask("/assets/plotly.js", **{"If-None-Match": headers["etag"]})
    assert (again[0], again[2]) == (304, b"")
    assert one_viewer.ask("/api/run")[1]["cache-control"] == "no-store"


@pytest.mark.more
def test_a_training_that_goes_on_is_followed(viewer: Viewer, run_folder: Path) -> None:
    before = viewer.json("/api/run")["revision"]
    write_jsonl(run_folder / "rollouts" / "step_00025.jsonl", [solved_trajectory("gcd-train-9-9")])
    with (run_folder / "metrics.jsonl").open("a") as file:
        file.write(json.dumps(train_row(25)) + "\n")
    found = viewer.until("/api/trajectories?step=25", lambda rows: rows["total"] == 1)
    assert found["rows"][0]["task_id"] == "gcd-train-9-9"
    run = viewer.json("/api/run")
    assert run["revision"] != before
    assert run["choices"]["steps"] == [0, 25]
    (run_folder / "rollouts" / "step_00025.jsonl").unlink()
    viewer.until("/api/trajectories?step=25", lambda rows: rows["total"] == 0)


@pytest.mark.more
def test_an_index_that_is_damaged_while_it_is_served_is_made_again(viewer: Viewer, run_folder: Path) -> None:
    index = index_path(targets_of([run_folder]))
    for path in index.parent.glob("index-*"):
        path.write_bytes(b"no database" * 1000)
    statuses = []
    for _ in range(1000):
        statuses.append(viewer.ask("/api/trajectories")[0])
        if statuses[-1] == 200 and viewer.json("/api/trajectories")["total"] == 30:
            break
        time.sleep(0.1)
    assert set(statuses) <= {200, 503}
    assert statuses[-1] == 200


@pytest.mark.more
def test_a_file_is_served_too(run_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with viewing(run_folder / "rollouts" / "step_00001.jsonl", "--serve") as viewer:
        assert viewer.json("/api/trajectories?step=1")["total"] == 3
        assert viewer.end() == 0
