"""An event loop in a thread: nothing of it is left once it is closed, and nothing that hangs holds it up for ever."""

from __future__ import annotations

import asyncio
import threading

from repl_rl.utils.threads import BackgroundLoop


def test_its_threads_are_gone_once_it_is_closed() -> None:
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
