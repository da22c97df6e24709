"""Runs that are ended at random moments: none is lost, no rollout that was shown is, and no process is left over.

CHAOS_SEED is the seed of the moments; "new" draws one, which is printed.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest
import yaml
from run.commands import CONFIGS, rollouts, rows
from safetensors.torch import load_file
from waiting import until

from repl_rl.run.folder import RunFolder

SEED = os.environ.get("CHAOS_SEED", "0")
SEED = uuid.uuid4().hex[:8] if SEED == "new" else SEED
WAIT_S = 600
HARMS = ("Ctrl-C", "kill -9", "full disk", "killed worker")
PHASES = ("start", "rollout", "training", "evaluation", "saving")
LONGEST_S = {"start": 12.0, "rollout": 0.6, "training": 0.4, "evaluation": 0.4, "saving": 0.15}
"""Of a phase: how long after its beginning the moment comes, at most. Later is another moment."""


@dataclass
class Disk:
    """A small disk: a file system in memory, in a mount namespace that a process holds."""

    holder: subprocess.Popen[bytes]
    path: Path

    @property
    def seen(self) -> Path:
        """Where its files are for this process."""
        return Path(f"/proc/{self.holder.pid}/root{self.path}")

    @property
    def ballast(self) -> Path:
        return self.seen / "ballast"

    def command(self, *command: str) -> list[str]:
        """The command that runs one where the disk is mounted."""
        space = ["nsenter", "-t", str(self.holder.pid), "-U", "-m", "--preserve-credentials", f"--wdns={self.path}"]
        return [*space, *command]

    def fill(self) -> None:
        with self.ballast.open("wb", buffering=0) as file, suppress(OSError):
            while True:
                file.write(bytes(1 << 16))


@pytest.fixture
def disk() -> Iterator[Disk]:
    with tempfile.TemporaryDirectory(prefix="k") as folder:
        mount = f"mount -t tmpfs -o size=128m tmpfs {folder} && echo mounted && exec cat"
        pipe = subprocess.PIPE  # which ends with this process, and the holder with it
        with subprocess.Popen(["unshare", "-Urm", "sh", "-c", mount], stdin=pipe, stdout=pipe) as holder:
            assert holder.stdout is not None
            if not holder.stdout.readline():
                pytest.skip("a small disk can't be mounted here: unshare -Urm fails")
            yield Disk(holder, Path(folder))


@dataclass
class Attempt:
    """One `repl-rl train`, which is harmed on its way."""

    disk: Disk
    process: subprocess.Popen[str]
    marker: str
    """In the environment of all its processes."""
    began: float = field(default_factory=time.time)
    lines: list[str] = field(default_factory=list)
    started: set[psutil.Process] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.reader = threading.Thread(target=self._read)
        self.reader.start()

    @classmethod
    def begin(cls, disk: Disk, environment: dict[str, str], *arguments: str) -> Attempt:
        marker = uuid.uuid4().hex
        env = os.environ | {"CHAOS": marker} | environment
        command = disk.command(sys.executable, "-m", "repl_rl.cli", "train", *arguments)
        process = subprocess.Popen(
            command, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=env, start_new_session=True
        )
        return cls(disk, process, marker)

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as output:
            for line in output:
                self.lines.append(line)
                print(line, end="")

    def is_new(self, pattern: str) -> bool:
        with suppress(OSError):  # it is gone again
            return any(path.stat().st_ctime > self.began for path in (self.disk.seen / "runs" / "tiny").glob(pattern))
        return False

    def is_in(self, phase: str, nth: int) -> bool:
        """Whether the nth such phase has begun."""
        if phase == "training":
            return self.is_new("rollouts/*.jsonl")
        if phase == "saving":
            return self.is_new("checkpoints/checkpoint-*") or self.is_new("model")
        if phase == "start":  # the handler of SIGTERM is there
            status = Path(f"/proc/{self.process.pid}/status").read_text()
            return bool(int(status.partition("SigCgt:")[2].split()[0], 16) >> (signal.SIGTERM - 1) & 1)
        begins = ("resuming from", "held-out at step 0", "step  ") if phase == "rollout" else ("1 held-out problems",)
        return sum(line.startswith(begins) for line in self.lines) > nth

    def wait_for(self, phase: str, chance: random.Random) -> bool:
        """Whether the moment came before the end."""
        nth, delay = chance.randrange(2) if phase == "rollout" else 0, chance.uniform(0, LONGEST_S[phase])
        deadline = time.monotonic() + WAIT_S
        while not self.is_in(phase, nth):
            if self.process.poll() is not None:
                return False
            assert time.monotonic() < deadline
            time.sleep(0.002)
        time.sleep(delay)
        with suppress(psutil.NoSuchProcess):
            self.started |= {*psutil.Process(self.process.pid).children(recursive=True)}
        return self.process.poll() is None

    def harm(self, harm: str, chance: random.Random) -> None:
        if harm == "full disk":
            self.disk.fill()
        elif harm == "kill -9":
            self.process.kill()
        elif harm == "Ctrl-C":  # which a terminal sends to all that run in it; schedulers send SIGTERM
            number = chance.choice([signal.SIGINT, signal.SIGINT, signal.SIGTERM])
            for delay in [0.0, *[chance.uniform(0, 1.5)] * chance.randrange(3)]:
                time.sleep(delay)
                print("chaos: send", number)
                with suppress(ProcessLookupError):
                    os.killpg(self.process.pid, number)
        else:
            workers: dict[str, psutil.Process] = {}  # one of those that are alike
            for each in sorted(self.started, key=lambda each: each.pid):
                with suppress(psutil.NoSuchProcess):
                    workers.setdefault(" ".join(each.cmdline())[:120], each)
            if workers:
                command, worker = chance.choice([*workers.items()])
                print("chaos: kill", worker.pid, command)
                worker.kill()

    def end(self) -> int:
        until(lambda: self.process.poll() is not None, WAIT_S)
        self.reader.join()
        until(lambda: not self.left_over(), 120)
        return self.process.returncode

    def left_over(self) -> list[int]:
        """Processes that have the marker in their environment, or that the run was seen to have started."""
        found = [each.pid for each in self.started if each.is_running() and each.status() != psutil.STATUS_ZOMBIE]
        for path in Path("/proc").glob("[0-9]*/environ"):
            with suppress(OSError):
                if self.marker.encode() in path.read_bytes():
                    found.append(int(path.parent.name))
        return found


def require_kept(attempt: Attempt, run: Path) -> None:
    """What was shown, and what metrics.jsonl says, is kept."""
    shown = {int(line.split()[1]) for line in attempt.lines if line.startswith("step ")}
    measured = {int(line.split()[3].rstrip(":")) for line in attempt.lines if line.startswith("held-out at step")}
    logged = {row["step"] for row in rows(run, "train")} if (run / "metrics.jsonl").exists() else set()
    assert shown <= logged
    for step in logged:
        assert len(rollouts(run, step)) == 4
    for step in measured:
        assert len(rollouts(run, step, "eval")) == 1


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("number", range(5))
def test_whatever_ends_a_run_it_can_be_resumed_and_what_was_shown_is_kept(number: int, disk: Disk) -> None:
    chance = random.Random(f"{SEED}/{number}")
    print(f"CHAOS_SEED={SEED}")
    backend = "transformers" if number else "vllm"  # which takes longer to load
    config = CONFIGS["tiny"] | {"engine": {"context_tokens": 384, "places": 8, "backend": backend}}
    temporary = {"TMPDIR": str(disk.path)} if number else {}  # vLLM compiles there, which takes more than the disk has
    (disk.seen / "tiny.yaml").write_text(yaml.safe_dump(config))
    run, steps = disk.seen / "runs" / "tiny", 4
    moments = [(harm, PHASES[(index + number) % len(PHASES)]) for index, harm in enumerate(HARMS)]
    chance.shuffle(moments)
    for _ in range(20):
        arguments = ["--resume", "runs/tiny", "--set", f"train.steps={steps}"] if run.exists() else ["tiny.yaml"]
        attempt = Attempt.begin(disk, temporary, *arguments)
        harm, phase = moments[0] if moments else ("none", "start")
        print(f"chaos: {harm} in {phase}; {' '.join(arguments)}")
        if moments and attempt.wait_for(phase, chance):
            del moments[0]
            attempt.harm(harm, chance)
        code = attempt.end()
        disk.ballast.unlink(missing_ok=True)
        print(f"chaos: ended with {code} after {time.time() - attempt.began:.0f} s")
        if code != -signal.SIGKILL:
            assert "Traceback" not in "".join(attempt.lines)
            assert code in (0, 2, 130, -signal.SIGINT, -signal.SIGTERM)
        if not run.exists():
            said = ("nothing has been", "repl-rl: ", "interrupted")
            assert harm == "kill -9" or any(line.startswith(said) for line in attempt.lines)
            continue
        require_kept(attempt, run)
        if code == 0:
            if not moments:
                break
            steps += 4
        elif code != -signal.SIGKILL:
            has_begun = any(line.startswith("run folder: ") for line in attempt.lines)
            go_on = "go on with: repl-rl train --resume runs/tiny\n"
            assert attempt.lines[-1].endswith(go_on) or not has_begun, attempt.lines[-5:]
    assert [row["step"] for row in rows(run, "train")] == [*range(1, steps + 1)]
    assert {row["step"] for row in rows(run, "eval")} >= {0, steps}
    saved = [*run.glob("checkpoints/checkpoint-*"), run / "model"]
    assert len(saved) == 3
    for folder in saved:
        load_file(folder / "model.safetensors")
    assert RunFolder(run).reached() == steps
    assert (run / "report.html").stat().st_size > 10_000
