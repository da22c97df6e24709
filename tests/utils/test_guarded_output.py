"""Output whose other end goes away: a command that has something to lose is interrupted once, any other ends."""

import os
import subprocess
import sys

import pytest

COMMAND = """
import signal, sys
from contextlib import nullcontext
from repl_rl.errors import ReplRLError
from repl_rl.utils.output import ends_in_order, guarded_output

told = []
signal.signal(signal.SIGTERM, lambda *_: told.append("interrupted"))
signal.signal(signal.SIGINT, {handler})
sys.stdin.readline()  # until the reader is gone
with guarded_output():
    try:
        with {order}:
            for number in range(3):
                print(f"line {{number}}", flush=True)
            told.append("went on")
    except ReplRLError as error:
        told.append(str(error))
    except SystemExit as ended:
        told.append(f"exit {{ended.code}}")
    print("last")
    print("said", file=sys.stderr)
open(sys.argv[1], "w").write(", ".join(told))
"""
WHY = "standard output can't be written any more: "
SENTENCE = "repl-rl: " + WHY + "{}; what was done is kept, as after Ctrl-C\n"


def outcome(folder: object, order: str, ends: str, handler: str = "lambda *_: None") -> tuple[str, str]:
    """What became of a command whose standard output, and whose standard error, lead to `ends`; and what it wrote to
    the latter if that can be read. A `pipe` is one without a reader."""
    program = COMMAND.format(order=order, handler=handler)
    command = [sys.executable, "-c", program, f"{folder}/told"]
    output, errors = ends.split()
    reading, pipe = os.pipe()
    with open("/dev/full", "w") as full:
        ways = {"pipe": pipe, "full": full.fileno(), "read": subprocess.PIPE}
        streams = {"stdin": subprocess.PIPE, "stdout": ways[output], "stderr": ways[errors]}
        with subprocess.Popen(command, text=True, **streams) as run:
            os.close(reading)
            os.close(pipe)
            _, said = run.communicate("now\n")
    assert run.returncode == 0, said
    with open(f"{folder}/told") as file:
        return file.read(), said or ""


@pytest.mark.parametrize(
    ("order", "ends", "became", "said"),
    [
        ("ends_in_order()", "pipe read", "interrupted, went on", SENTENCE.format("Broken pipe")),
        ("ends_in_order()", "full read", "interrupted, went on", SENTENCE.format("No space left on device")),
        ("ends_in_order()", "pipe pipe", "interrupted, went on", ""),
        ("ends_in_order()", "read pipe", "went on", ""),
        ("nullcontext()", "pipe read", "exit 1", ""),
        ("nullcontext()", "full read", WHY + "No space left on device", ""),
    ],
)
def test_what_becomes_of_a_command(order: str, ends: str, became: str, said: str, tmp_path: object) -> None:
    told, printed = outcome(tmp_path, order, ends)
    assert told == became
    assert printed.startswith(said)
    rest = "line 1\nline 2\nlast\nsaid\n" if "interrupted" in became else "said\n"
    assert printed.endswith(rest if ends.endswith("read") else "")


def test_one_that_was_interrupted_before_is_not_interrupted_again(tmp_path: object) -> None:
    """As by Ctrl-C in `repl-rl train | tee`, which ends the reader too."""
    told, _ = outcome(tmp_path, "ends_in_order()", "pipe read", "signal.default_int_handler")
    assert told == "went on"


def test_output_that_is_closed_from_the_start_goes_nowhere() -> None:
    program = "from repl_rl.utils.output import guarded_output\nwith guarded_output(): print('line')\nopen('/dev/null')"
    shell = f'exec "{sys.executable}" -c "{program}" >&- 2>&-'
    assert subprocess.run(["bash", "-c", shell]).returncode == 0


def test_a_locale_without_a_sign_gets_its_escape() -> None:
    program = "from repl_rl.utils.output import guarded_output\nwith guarded_output(): print('\\xb6 \\udcff')"
    environment = os.environ | {"PYTHONIOENCODING": "ascii"}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, env=environment)
    assert done.stdout == b"\\xb6 \\udcff\n"


AT = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's jobs in the background ignore it
sys.argv = ["/usr/bin/repl-rl", "doctor"]
class Interrupts:
    def find_spec(name, *_):
        if name == "{module}":
            signal.raise_signal(signal.SIGINT)
sys.meta_path.insert(0, Interrupts)
from repl_rl.cli import main
sys.exit(main())
"""


@pytest.mark.parametrize("module", ["repl_rl.trajectory", "rich.console", "repl_rl.view", "repl_rl.doctor"])
def test_ctrl_c_while_modules_are_imported_is_no_traceback(module: str) -> None:
    done = subprocess.run([sys.executable, "-c", AT.format(module=module)], capture_output=True, text=True)
    assert done.returncode == 130
    assert done.stderr == ("interrupted\n" if module == "repl_rl.doctor" else "")
