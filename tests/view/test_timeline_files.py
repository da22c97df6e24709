"""Timelines of a run's steps: the page says where they are, and the server gives them as they are, and nothing else."""

import gzip
from pathlib import Path

import pytest

from repl_rl.view.viewer.queries import NotFound
from tests.view.conftest import STEPS, indexed
from tests.view.test_viewer_server import viewing

CONTENT = gzip.compress(b'{"traceEvents": []}', mtime=0)
NAMES = ["eval_00000.json.gz", "step_00001.json.gz", f"step_{STEPS:05d}.json.gz"]


def write_timelines(folder: Path, names: list[str]) -> None:
    (folder / "trace").mkdir()
    for name in names:
        (folder / "trace" / name).write_bytes(CONTENT)


def test_the_page_is_told_of_each_and_of_that_of_a_trajectory(run_folder: Path) -> None:
    before = indexed(run_folder)
    assert (before.run()["timelines"], before.run()["more_timelines"]) == ([], 0)
    revision = before.run()["revision"]
    write_timelines(run_folder, [*NAMES, "step_1.json.gz", "notes.txt", ".step_00002.json.gz.part"])
    source = indexed(run_folder)
    run = source.run()
    assert run["revision"] != revision
    assert run["timelines"] == [
        {"title": "evaluation at step 0", "address": "trace/0/eval_00000.json.gz"},
        {"title": "step 1", "address": "trace/0/step_00001.json.gz"},
        {"title": f"step {STEPS}", "address": f"trace/0/step_{STEPS:05d}.json.gz"},
    ]
    addresses = [source.trajectory(id)["timeline"] for id in ("train-1-0", "eval-0-0", f"eval-{STEPS}-0")]
    assert addresses == ["trace/0/step_00001.json.gz", "trace/0/eval_00000.json.gz", None]


def test_of_many_the_newest_are_offered(run_folder: Path) -> None:
    write_timelines(run_folder, [f"step_{step:05d}.json.gz" for step in range(1, 41)])
    run = indexed(run_folder).run()
    assert [timeline["title"] for timeline in run["timelines"]] == [f"step {step}" for step in range(29, 41)]
    assert run["more_timelines"] == 28


def test_nothing_but_timelines_of_the_run_is_given(run_folder: Path, tmp_path: Path) -> None:
    write_timelines(run_folder, NAMES)
    (tmp_path / "secret").write_bytes(b"secret")
    (run_folder / "trace" / "step_00002.json.gz").symlink_to(tmp_path / "secret")
    source = indexed(run_folder)
    assert source.timeline("0", NAMES[1]) == CONTENT
    for number, name in (("1", NAMES[1]), ("x", NAMES[1]), ("0", "config.yaml"), ("0", "../config.yaml"), ("0", "")):
        with pytest.raises(NotFound, match="there is no timeline"):
            source.timeline(number, name)
    with pytest.raises(NotFound, match=r"step_00002\.json\.gz can't be read: it is reached by a link"):
        source.timeline("0", "step_00002.json.gz")
    with pytest.raises(NotFound, match=r"step_00003\.json\.gz can't be read: No such file or directory"):
        source.timeline("0", "step_00003.json.gz")


def test_a_file_of_rollouts_has_none(run_folder: Path) -> None:
    write_timelines(run_folder, NAMES)
    source = indexed(run_folder / "rollouts" / "step_00001.jsonl")
    assert source.run()["timelines"] == []
    with pytest.raises(NotFound):
        source.timeline("0", NAMES[1])


@pytest.mark.more
def test_the_server_gives_the_file_to_keep(run_folder: Path) -> None:
    write_timelines(run_folder, NAMES)
    with viewing(run_folder) as viewer:
        status, headers, body = viewer.ask("/trace/0/step_00001.json.gz")
        assert (status, headers["content-type"], body) == (200, "application/gzip", CONTENT)
        assert headers["content-disposition"] == 'attachment; filename="step_00001.json.gz"'
        assert "content-encoding" not in headers, "a browser would unpack it, under the name of a packed file"
        assert viewer.ask("/trace/0/step_00001.json.gz", host="evil.example")[0] == 403
        for path in ("/trace/0/config.yaml", "/trace/0/..%2fconfig.yaml", "/trace/7/step_00001.json.gz", "/trace/0/"):
            assert viewer.ask(path)[0] == 404, path
