"""Processes and event loops in threads: nothing of them is left, and what hangs holds nobody up for ever."""

import asyncio
import contextlib
import multiprocessing
import os
import signal
import threading
import time
from multiprocessing.connection import Connection

import psutil
from waiting import DEADLINE_S, until

from repl_rl.utils.processes import end_with_parent
from repl_rl.utils.threads import BackgroundLoop


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


def test_a_loops_threads_are_gone_once_it_is_closed() -> None:
    before = set(threading.enumerate())
    with BackgroundLoop() as loop:
        assert loop.run(asyncio.to_thread(lambda: 42)) == 42
        assert len(set(threading.enumerate()) - before) == 2
    assert set(threading.enumerate()) <= before
    assert loop.is_closed


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
