"""An interrupt that waits for a safe point.

Python raises KeyboardInterrupt wherever the main thread is. In a finalizer it is printed and dropped, and in the middle
of a drawing it leaves a screen half drawn.
"""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def interrupts_at_safe_points() -> Iterator[Callable[[], None]]:
    """In this block an interrupt waits until the function that the block gets is called; a second one does not wait.

    The interrupt is then handled as before the block, which commonly raises KeyboardInterrupt. Threads other than the
    main one get no interrupts, and there the function does nothing.
    """
    previous = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(previous):
        yield lambda: None
        return
    is_waiting = False

    def wait(*_: object) -> None:
        nonlocal is_waiting
        is_waiting = True
        signal.signal(signal.SIGINT, previous)

    def let_through() -> None:
        if is_waiting:
            signal.raise_signal(signal.SIGINT)

    signal.signal(signal.SIGINT, wait)
    try:
        yield let_through
    finally:
        signal.signal(signal.SIGINT, previous)
