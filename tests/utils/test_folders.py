"""A folder is made once, whole or not at all, whoever asks and whoever dies."""

import errno
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from waiting import until

from repl_rl.utils.folders import cache_home, full_disk, made_once, scratch_folder
from repl_rl.utils.machine import in_a_sentence

MAKER = Path(__file__).with_name("maker.py.txt").read_text()


def start(base: Path, how: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", MAKER, str(base), how]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def contents(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_folder_is_made_once(tmp_path: Path) -> None:
    calls: list[Path] = []

    def make(part: Path) -> None:
        assert contents(part) == []
        calls.append(part)
        (part / "weights").write_text("numbers")

    folder = tmp_path / "a" / "b" / "model"
    for _ in range(2):
        assert made_once(folder, make) == folder
    assert (folder / "weights").read_text() == "numbers"
    assert len(calls) == 1
    assert calls[0].parent == folder.parent != calls[0]  # renaming is atomic within a file system only
    assert contents(folder.parent) == [".model.lock", "model"]


def test_what_fails_half_way_leaves_no_folder(tmp_path: Path) -> None:
    def make(part: Path) -> None:
        (part / "weights").write_text("half of the numb")
        raise ValueError("disk on fire")

    with pytest.raises(ValueError, match="disk on fire"):
        made_once(tmp_path / "model", make)
    assert contents(tmp_path) == [".model.lock"]


def test_what_a_killed_process_left_is_not_taken_for_the_folder(tmp_path: Path) -> None:
    killed = start(tmp_path, "die")
    killed.communicate()
    assert killed.returncode == -signal.SIGKILL
    cache = tmp_path / "cache"
    assert not (cache / "model").exists()
    assert contents(cache / ".model.part") == ["first"]

    made_once(cache / "model", lambda part: (part / "third").touch())
    assert contents(cache / "model") == ["third"]
    assert contents(cache) == [".model.lock", "model"]


def test_the_second_of_two_at_once_waits_and_takes_what_the_first_made(tmp_path: Path) -> None:
    first = start(tmp_path, "wait")
    until((tmp_path / "cache" / ".model.part" / "first").exists, process=first)
    second = start(tmp_path, "wait")
    assert second.stderr is not None
    assert second.stderr.readline() == f"another process is making {tmp_path}/cache/model; waiting for it\n"
    assert not (tmp_path / "cache" / "model").exists()
    (tmp_path / "go").touch()
    for process in (first, second):
        output, errors = process.communicate()
        assert (process.returncode, output, errors) == (0, f"{tmp_path}/cache/model\n", "")
    assert contents(tmp_path / "cache" / "model") == ["first", "second"]
    assert (tmp_path / "log").read_text() == "made\n"


def test_a_scratch_folder_that_a_killed_process_left_is_removed_and_that_of_a_living_one_stays(tmp_path: Path) -> None:
    def begin() -> tuple[subprocess.Popen[str], Path]:
        process = start(tmp_path, "scratch")
        assert process.stdout is not None
        return process, Path(process.stdout.readline().strip())

    (tmp_path / "repl-rl-weights-elsewhere-1").mkdir()  # of another machine
    killed, left = begin()
    killed.kill()
    killed.communicate()
    assert contents(left) == [".in-use", "weights"]
    living, kept = begin()
    with scratch_folder("repl-rl-weights-", tmp_path) as own:
        assert not left.exists()
        assert (kept / "weights").read_text() == "numbers"
        assert contents(tmp_path / "repl-rl-weights-elsewhere-1") == []
        assert own.stat().st_mode & 0o777 == 0o700
    assert not own.exists()
    living.kill()
    living.communicate()


def test_where_caches_lie(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for value, home in (("/elsewhere", Path("/elsewhere")), ("", tmp_path / ".cache"), ("~/c", tmp_path / "c")):
        monkeypatch.setenv("XDG_CACHE_HOME", value)
        assert cache_home() == home / "repl-rl"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_home() == tmp_path / ".cache" / "repl-rl"


def test_a_limit_of_the_shell_is_told_with_its_way_out(tmp_path: Path) -> None:
    for number, limit in ((errno.EFBIG, "the size of files (`ulimit -f`)"), (errno.EMFILE, "open files (`ulimit -n`)")):
        error = RuntimeError("a library's own")
        error.__cause__ = OSError(number, os.strerror(number), "x")
        assert in_a_sentence(error, tmp_path) == f"this shell's limit on {limit} is too low: a library's own; raise it"
    assert in_a_sentence(OSError(errno.EFBIG, "it is larger than 64 MiB"), tmp_path) is None


def test_a_full_disk_is_told_from_other_trouble(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(OSError, match="No space left") as caught:
        Path("/dev/full").write_text("x")
    wrapped = RuntimeError("the file could not be written")
    wrapped.__cause__ = caught.value
    of_safetensors = ValueError("Error while serializing: I/O error: No space left on device (os error 28)")
    for error in (caught.value, wrapped, of_safetensors, OSError(errno.EDQUOT, "Disk quota exceeded")):
        assert f"a disk is full: that of {tmp_path}, or of" in (full_disk(error, tmp_path) or "")
    others = ValueError("5"), OSError(errno.EACCES, "Permission denied"), RuntimeError("[enforce fail] unexpected pos")
    assert [full_disk(error, tmp_path) for error in others] == [None] * 3
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(10, 10, 0))  # type: ignore[attr-defined]
    assert full_disk(others[-1], tmp_path) is not None, "torch does not say why"
