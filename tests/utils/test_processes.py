"""Processes and event loops in threads: nothing of them is left, and what hangs holds nobody up for ever."""

import asyncio
import contextlib
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from multiprocessing.connection import Connection

import psutil
import pytest
from waiting import DEADLINE_S, until

from repl_rl.utils.processes import die_with_parent, end_with_parent, start_process
from repl_rl.utils.threads import BackgroundLoop

LOOPS = "while True: pass"
HOLDS_THE_LOCK = "import re; re.match('(a*)*b', 'a' * 99)"
SLEEPS = "import time; time.sleep(9999)"
FORKS = """
import os, time
from repl_rl.utils.processes import die_with_parent
parent = os.getpid()
if os.fork():
    time.sleep(9999)
die_with_parent(parent)
while True: pass
"""
PROGRAMS = {
    "loops": f"start_process([sys.executable, '-c', {LOOPS!r}])",
    "is in C code that holds Python's lock": f"start_process([sys.executable, '-c', {HOLDS_THE_LOCK!r}])",
    "is in a session of its own": f"start_process([sys.executable, '-c', {SLEEPS!r}], start_new_session=True)",
    "was forked": f"start_process([sys.executable, '-c', {FORKS!r}])",
    "grades": "ask([('time:sleep', [9999])])",
    "reads a tokenizer": "compute('time:sleep', [9999], 600)",
}
WITH_DESCENDANTS = {"was forked": 2, "grades": 2, "reads a tokenizer": 2}
PARENT = """
import sys, threading
from repl_rl.utils.confined import ask, compute
from repl_rl.utils.processes import start_process
threading.Thread(target=lambda: {}, daemon=True).start()
sys.stdin.read()
"""


@pytest.mark.parametrize("doing", PROGRAMS)
def test_what_was_started_ends_with_a_command_that_is_killed(doing: str) -> None:
    """Started in a thread that ends before."""
    command = [sys.executable, "-c", PARENT.format(PROGRAMS[doing])]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as parent:
        started = psutil.Process(parent.pid)
        until(lambda: len(started.children(recursive=True)) == WITH_DESCENDANTS.get(doing, 1))
        descendants = started.children(recursive=True)
        assert all(map(is_alive, descendants))
        parent.kill()
    until(lambda: not any(map(is_alive, descendants)))


def test_it_lives_on_when_the_thread_that_started_it_has_ended() -> None:
    started: list[subprocess.Popen[bytes]] = []
    options = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    thread = threading.Thread(target=lambda: started.append(start_process(["cat"], **options)))
    thread.start()
    thread.join()
    [process] = started
    assert process.communicate(b"still here")[0] == b"still here"
    assert process.returncode == 0


def test_a_fork_whose_parent_is_gone_already_ends_at_once() -> None:
    child = multiprocessing.get_context("fork").Process(target=die_with_parent, args=(1 << 22,))
    child.start()
    child.join()
    assert child.exitcode == 1


def is_alive(process: psutil.Process) -> bool:
    """A zombie is gone, and stays one where nothing reaps orphans."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.status() != psutil.STATUS_ZOMBIE
    return False


def test_a_process_of_multiprocessing_ends_with_the_one_that_started_it() -> None:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    parent = context.Process(target=start_a_child, args=(theirs,))
    parent.start()
    child = psutil.Process(ours.recv())
    assert child.is_running()
    parent.kill()
    parent.join()
    with contextlib.suppress(psutil.NoSuchProcess):
        until(lambda: child.status() == psutil.STATUS_ZOMBIE)  # which it stays where nothing reaps orphans


def start_a_child(pipe: Connection) -> None:
    context = multiprocessing.get_context("spawn")
    context.Process(target=tell_and_stay, args=(pipe,)).start()
    signal.pause()


def tell_and_stay(pipe: Connection) -> None:
    end_with_parent()
    pipe.send(os.getpid())
    time.sleep(2 * DEADLINE_S)


def lasting_threads() -> set[threading.Thread]:
    """Without those that make one call each, as pools of other tests may have."""
    return {thread for thread in threading.enumerate() if thread.name != "repl-rl-call"}


def test_a_loops_threads_are_gone_once_it_is_closed() -> None:
    before = lasting_threads()
    with BackgroundLoop() as loop:
        assert loop.run(asyncio.to_thread(lambda: 42)) == 42
        assert len(lasting_threads() - before) == 2
    assert lasting_threads() <= before
    assert loop.is_closed


@pytest.mark.more
def test_a_thread_that_hangs_is_left_behind() -> None:
    release, started = threading.Event(), threading.Event()

    def hang() -> None:
        started.set()
        release.wait(60)

    loop = BackgroundLoop()
    loop.submit(asyncio.to_thread(hang))
    assert started.wait(10)
    loop.close()
    assert not release.is_set()
    release.set()
