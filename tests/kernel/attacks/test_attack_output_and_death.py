"""Attacks by what is printed, shown and handed in, and by the way in which a session ends."""

from __future__ import annotations

import re

import pytest
from kernel.attacks.arena import (
    BOTH,
    BWRAP,
    ERROR,
    GENTLE,
    KILLED,
    LIMITS,
    OK,
    SANDLOCK,
    SHORT,
    SOON_S,
    TIMEOUT,
    Attack,
    cases,
)
from kernel.attacks.conftest import Arenas

MOST_CHARS = LIMITS.output_bytes + 100
SHOWN = "class A:\n  def __repr__(self): {}\n"
FOREVER = "lines = []\ndef forever():\n  while True: print('x' * 1000); lines.append(0)\n"

FLOODS = [
    Attack("print", ("while True: print('x' * 10 ** 6)\n",), statuses=(TIMEOUT,)),
    Attack("no-newline", ("while True: print(end='x' * 1000)\n",), statuses=(TIMEOUT,), kinds=BWRAP),
    Attack("stderr", ("while True: sys.stderr.write('x' * 1000)\n",), statuses=(TIMEOUT,), kinds=BWRAP),
    Attack("c", ("text = b'x' * 10 ** 6\nwhile True: libc.write(1, text, len(text))\n",), statuses=(TIMEOUT,)),
    Attack("program", ("subprocess.run(['yes'])",), statuses=(TIMEOUT, KILLED), kinds=BWRAP),
    Attack(
        "children",
        ("[os.fork() for _ in range(2)]\nwhile True: os.write(1, b'x' * 999)\n",),
        statuses=(TIMEOUT, KILLED),
        kinds=BWRAP,
    ),
    Attack(
        "swallowing", ("while True:\n  try: print('x' * 1000)\n  except BaseException: pass\n",), statuses=(KILLED,)
    ),
    Attack(
        "thread",
        (FOREVER, "threading.Thread(target=forever, daemon=True).start()", "while len(lines) < 99: time.sleep(0.01)\n"),
        statuses=(OK, TIMEOUT, KILLED),
    ),
    Attack(
        "program-behind",
        ("child = subprocess.Popen(['yes'])", "time.sleep(0.9)"),
        statuses=(OK, TIMEOUT, KILLED),
        kinds=BWRAP,
    ),
]


@pytest.mark.parametrize(("kind", "attack"), cases(*FLOODS))
def test_floods_are_cut(kind: str, attack: Attack, arenas: Arenas) -> None:
    *_, last = arenas(kind, SHORT if KILLED in attack.statuses else GENTLE).attack(*attack.cells)
    if not last.omitted_bytes:  # a busy machine may not print enough in so short a time
        *_, last = arenas(kind).attack(*attack.cells)
    assert last.status in attack.statuses
    assert last.omitted_bytes > 0
    assert len(last.output) < MOST_CHARS


TEXTS = {
    "nul": (r"print('a\0b')", "a\0b\n"),
    "terminal": (r"print('\x1b]0;owned\a\x1b[2J\x1b[31m\x9b\x1bc')", "\x1b]0;owned\a\x1b[2J\x1b[31m\x9b\x1bc\n"),
    "carriage-return": (r"print('wrong\rright')", "wrong\rright\n"),
    "surrogate-shown": (r"'\ud800'", "'\\ud800'\n"),
    "surrogate-to-stderr": (r"_ = sys.stderr.write('\ud800\n')", "\\ud800\n"),
    "direction": (r"print('\u202e\u2066abc')", "\u202e\u2066abc\n"),
    "no-utf-8": (r"_ = os.write(1, b'\xff\xfe\x80\n')", "���\n"),
    "half-a-character": (r"_ = os.write(1, b'\xf0\x9f')", "�"),
    "encoded-surrogate": (r"_ = os.write(1, b'\xed\xa0\x80\n')", "���\n"),
}


@pytest.mark.parametrize("kind", BOTH)
@pytest.mark.parametrize("name", TEXTS)
def test_any_text_comes_through_as_text(kind: str, name: str, arenas: Arenas) -> None:
    cell, text = TEXTS[name]
    result, after = arenas(kind).attack(cell, "'after'")
    assert (result.status, result.output, after.output) == (OK, text, "'after'\n")
    assert result.output.encode().decode() == text


@pytest.mark.parametrize("kind", BOTH)
def test_a_lone_surrogate_that_is_printed_is_an_error_of_the_line(kind: str, arenas: Arenas) -> None:
    [result] = arenas(kind).attack("print('\\ud800')")
    assert (result.status, result.error_name) == (ERROR, "UnicodeEncodeError")


REPRS = [
    Attack(
        "huge", (SHOWN.format("return 'x' * 10 ** 7"), "A()"), "x{5000}.*left out.*|.*KeyboardInterrupt", (OK, TIMEOUT)
    ),
    Attack("raising", (SHOWN.format("return 1 / 0"), "A()"), ".*ZeroDivisionError.*", (ERROR,)),
    Attack("endless", (SHOWN.format("\n    while True: pass"), "A()"), ".*KeyboardInterrupt.*", (TIMEOUT,)),
    Attack("no-text", (SHOWN.format("return 5"), "A()"), ".*TypeError.*", (ERROR,)),
    Attack("exiting", (SHOWN.format("os._exit(0)"), "A()"), "", (KILLED,)),
    Attack("recursive", (SHOWN.format("return repr(self)"), "A()"), ".*RecursionError.*", (ERROR,)),
    Attack("of-an-error", ("class E(Exception):\n  def __str__(self): os._exit(0)\n", "raise E"), ".*", (KILLED,)),
    Attack(
        "of-a-class", ("class M(type): __repr__ = __str__ = lambda c: 1 / 0\n", "M('A', (), {})"), ".*Zero.*", (ERROR,)
    ),
    Attack(
        "answer-endless", (SHOWN.format("\n    while True: pass"), "submit_final_answer(A())"), ".*", (TIMEOUT,), BWRAP
    ),
    Attack("answer-exiting", (SHOWN.format("os._exit(0)"), "submit_final_answer(A())"), "", (KILLED,)),
]


@pytest.mark.parametrize(("kind", "attack"), cases(*REPRS))
def test_a_repr_costs_its_line(kind: str, attack: Attack, arenas: Arenas) -> None:
    *_, last = arenas(kind, GENTLE if TIMEOUT in attack.statuses else LIMITS).attack(*attack.cells)
    assert last.status in attack.statuses
    assert re.fullmatch(attack.evidence, last.output.strip(), re.DOTALL)
    assert len(last.output) < MOST_CHARS
    assert last.answer is None


@pytest.mark.parametrize("kind", BOTH)
def test_a_huge_answer_is_cut(kind: str, arenas: Arenas) -> None:
    [result] = arenas(kind).attack("submit_final_answer('x' * 10 ** 7)")
    assert result.answer is not None
    assert len(result.answer[0]) <= 10_000


DEEP = "def deep(): deep()\n"
NESTED = "x = []\nfor _ in range(10 ** 5): x = [x]\n"
DEATHS = [
    Attack("exit", ("os._exit(0)",), statuses=(KILLED,)),
    Attack("system-exit", ("raise SystemExit",), statuses=(KILLED,)),
    Attack("abort", ("os.abort()",), statuses=(KILLED,)),
    Attack("segfault", ("ctypes.string_at(0)",), statuses=(KILLED,)),
    Attack("own-sigkill", ("os.kill(os.getpid(), 9)",), statuses=(KILLED,), kinds=SANDLOCK),
    Attack("trap", ("signal.raise_signal(signal.SIGTRAP)",), statuses=(KILLED,), kinds=SANDLOCK),
    Attack("recursion", (DEEP, "deep()"), ".*RecursionError.*", (ERROR,)),
    Attack("python-stack", (DEEP, "sys.setrecursionlimit(10 ** 9); deep()"), ".*", (KILLED, ERROR, TIMEOUT)),
    Attack("c-stack", (NESTED, "sys.setrecursionlimit(10 ** 9); x"), ".*", (KILLED, ERROR, TIMEOUT)),
    Attack("compiler-stack", ("tried(compile, '-' * 10 ** 5 + '1', '', 'eval')",), ".*", (OK, KILLED)),
    Attack("parser-stack", ("tried(eval, '(' * 10 ** 5)",), ".*", (OK, KILLED)),
    Attack("unpickled", ("__import__('pickle').loads(b'.')",), ".*", (ERROR,)),
    Attack("no-code", ("eval((lambda: 0).__code__.replace(co_code=bytes([255] * 64)))",), ".*", (OK, ERROR, KILLED)),
    Attack("at-exit", ("import atexit; _ = atexit.register(time.sleep, 60); exit()",), "", (KILLED,)),
    Attack("at-exit-printing", ("import atexit; _ = atexit.register(print, 'late'); exit()",), "", (KILLED,)),
    Attack("thread-at-exit", ("threading.Thread(target=time.sleep, args=(60,)).start(); exit()",), "", (KILLED,)),
    Attack("thread-exits", ("threading.Timer(0.05, os._exit, (1,)).start()", "time.sleep(60)"), ".*", (KILLED,)),
    Attack("input", ("input()",), ".*EOFError.*", (ERROR,)),
    Attack("standard-input", ("sys.stdin.read(), os.read(0, 9)",), r"\('', b''\)"),
    Attack("profiler", ("sys.setprofile(lambda *_: 1 / 0)", "1"), ".*", (OK, ERROR, KILLED)),
    Attack("tracer", ("sys.settrace(lambda *_: os._exit(1))", "len('1')"), ".*", (OK, ERROR, KILLED)),
    Attack("audit", ("sys.addaudithook(lambda *_: 1 / 0)", "1"), ".*", (OK, ERROR, KILLED)),
    Attack(
        "timer",
        ("_ = signal.signal(14, lambda *_: 1 / 0); _ = signal.setitimer(0, 0.02, 0.001)", "time.sleep(0.1)"),
        ".*",
        (OK, ERROR, KILLED),
    ),
    Attack("alarm", ("_ = signal.setitimer(0, 0.02)", "time.sleep(0.2)"), ".*", (OK, KILLED)),
    Attack(
        "children-signal",
        ("_ = signal.signal(17, lambda *_: 1 / 0); os.system('true')", "1"),
        ".*",
        (OK, ERROR, KILLED),
    ),
]


@pytest.mark.parametrize(("kind", "attack"), cases(*DEATHS))
def test_an_end_is_the_sessions_own(kind: str, attack: Attack, arenas: Arenas) -> None:
    *_, last = arenas(kind, GENTLE if TIMEOUT in attack.statuses else LIMITS).attack(*attack.cells)
    assert last.status in attack.statuses
    assert re.fullmatch(attack.evidence, last.output.strip(), re.DOTALL)
    assert last.duration_s < SOON_S


@pytest.mark.parametrize("kind", BOTH)
def test_what_a_thread_prints_late_comes_with_a_later_line(kind: str, arenas: Arenas) -> None:
    start = "late = threading.Timer(0.05, print, ('late',)); late.start()"
    started, later = arenas(kind).attack(start, "late.join(); 'now'")
    assert (started.output, later.output) == ("", "late\n'now'\n")
