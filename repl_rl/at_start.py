"""Ctrl-C while the modules of the command are imported, which may take a second. The package imports this first."""

import os
import signal
import sys


def end_quietly(*_: object) -> None:
    """Ends the process at once: there is nothing yet to save or to print. `main` puts Python's own handler back."""
    os._exit(130)


if os.path.basename(sys.argv[0]) == "repl-rl" and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, end_quietly)
