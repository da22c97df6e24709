"""Attacks inside the interpreter: names rebound, modules changed, frames walked; no other session is to notice."""

from __future__ import annotations

import pytest
from kernel.attacks.arena import BOTH, ERROR, KILLED, OK, SOON_S, TIMEOUT
from kernel.attacks.conftest import Arenas

REBOUND = {
    "stdout-none": "sys.stdout = sys.stderr = None",
    "stdout-closed": "sys.stdout.close(); sys.stderr.close(); sys.stdin.close()",
    "stdout-object": "sys.stdout = type('S', (), {'write': lambda self, text: 1 / 0, 'flush': lambda self: 1 / 0})()",
    "true-stdout": "sys.__stdout__ = sys.__stderr__ = None",
    "displayhook": "sys.displayhook = lambda value: os.write(1, b'forged')",
    "displayhook-deleted": "del sys.displayhook",
    "excepthook": "sys.excepthook = lambda *_: 1 / 0",
    "excepthook-deleted": "del sys.excepthook, sys.displayhook",
    "print": "import builtins; builtins.print = lambda *_: 1 / 0",
    "builtins": "import builtins\nfor name in dir(builtins): name[0] == '_' or tried(setattr, builtins, name, None)\n",
    "builtins-deleted": "import builtins\nfor name in dir(builtins): tried(delattr, builtins, name)\n",
    "import": "import builtins; builtins.__import__ = lambda *_, **__: 1 / 0",
    "import-hooks": "sys.meta_path.clear(); sys.path_hooks.clear(); sys.path.clear(); sys.path_importer_cache.clear()",
    "modules": "sys.modules.clear()",
    "globals": "globals().clear()",
    "builtins-of-main": "__builtins__ = {}",
    "submit-deleted": "del submit_final_answer",
    "submit-rebound": "submit_final_answer = print",
    "submits-code": "submit_final_answer.__code__ = (lambda *values: None).__code__",
    "submits-list": "submit_final_answer.__closure__ and submit_final_answer.__closure__[0].cell_contents",
    "json": "json.dumps = json.loads = lambda *_, **__: 1 / 0",
    "json-forging": "true = json.dumps; json.dumps = lambda value, **__: true(value | {'answer': ['1', 2, None]})",
    "os-write": "os.write = os.read = os._exit = lambda *_: 1 / 0",
    "signal": "signal.signal = signal.getsignal = None",
    "resource": "resource.setrlimit = None",
    "clock": "time.time = time.monotonic = time.perf_counter = lambda: 1e18",
    "collector": "gc.disable(); gc.set_threshold(0); gc.unfreeze(); _ = gc.collect()",
    "recursion": "sys.setrecursionlimit(5)",
    "switching": "sys.setswitchinterval(1e9)",
    "exceptions": "import builtins; builtins.BaseException = builtins.Exception = ValueError",
    "compile": "import builtins; builtins.compile = builtins.exec = builtins.eval = None",
    "encodings": "import codecs; codecs.register(lambda name: 1 / 0); codecs.lookup = None",
    "warnings": "import warnings; warnings.simplefilter('error'); warnings.showwarning = None",
    "abstract": "import io; io.TextIOWrapper = io.open = None",
    "profile": "threading.settrace(lambda *_: 1 / 0); threading.setprofile(lambda *_: 1 / 0)",
    "working-folder": "os.chdir('/'); os.umask(0o777)",
    "environment": "os.environ.clear(); os.environ['PYTHONPATH'] = '/tmp'; os.environ['LD_PRELOAD'] = '/tmp/x.so'",
    "standard-descriptors": "os.closerange(0, 3)",
    "every-function": "for o in gc.get_objects():\n"
    "  if type(o).__name__ == 'function' and o.__module__[:5] == 'repl_': o.__code__ = (lambda *_: 1 / 0).__code__\n",
    "every-frame": "f = sys._getframe()\nwhile f:\n  f.f_locals.clear() if f.f_back else 0; f = f.f_back\n",
    "every-threads-frames": "[f.f_back and f.f_back.f_globals.clear() for f in sys._current_frames().values()]",
    "below": "sys._getframe().f_back.f_globals.clear()",
    "interned": "ctypes.memset(id(10 ** 3 + 7) + 24, 0, 4)",
    "small-numbers": "ctypes.memset(id(7) + 24, 9, 1)",
    "none": "ctypes.memset(id(None), 1, 8)",
}


@pytest.mark.parametrize("kind", BOTH)
@pytest.mark.parametrize("name", REBOUND)
def test_what_is_rebound_is_the_sessions_own(kind: str, name: str, arenas: Arenas) -> None:
    """Its own lines may fail from then on, or its session end; the arena looks after the others."""
    results = arenas(kind).attack(REBOUND[name], "1 + 1", "submit_final_answer(5)")
    assert all(result.status in (OK, ERROR, TIMEOUT, KILLED) for result in results)
    assert all(isinstance(text, str) for result in results for text in (result.output, *(result.answer or ())))


MUTATIONS = {
    "numpy": ("import numpy; numpy.pi = 4; numpy.ones = None", "import numpy; numpy.pi < 3.2, bool(numpy.ones(1)[0])"),
    "numpy-errors": (
        "import numpy; _ = numpy.seterr(all='raise')",
        "import numpy; numpy.geterr()['divide'] == 'warn', True",
    ),
    "numpy-print": (
        "import numpy; numpy.set_printoptions(1)",
        "import numpy; len(str(numpy.array([1 / 3]))) > 6, True",
    ),
    "sympy": (
        "import sympy; sympy.factorint = sympy.pi = None",
        "import sympy; sympy.factorint(4) == {2: 2}, bool(sympy.pi)",
    ),
    "random": ("import random; random.random = lambda: 4", "import random; random.random() < 1, True"),
    "json": ("json.dumps = None", "json.dumps(1) == '1', True"),
    "socket": ("socket.socket = None", "socket.socket is not None, True"),
    "os": ("os.getpid = os.listdir = None", "os.getpid() > 0, os.listdir('/usr/lib') != []"),
    "math": ("import math; math.pi = 3", "import math; math.pi > 3, True"),
    "builtins": ("import builtins; builtins.len = lambda _: 5", "len('') == 0, True"),
    "path": ("sys.path.insert(0, '/tmp')", "'/tmp' not in sys.path, True"),
    "environment": ("os.environ['LEFT'] = 'x'", "'LEFT' not in os.environ, os.getenv('LEFT') is None"),
    "c-environment": ("_ = libc.setenv(b'LEFT', b'x', 1)", "libc.getenv(b'LEFT') == 0, True"),
    "folder": ("os.mkdir('left'); os.chdir('left')", "not os.path.exists('left'), os.getcwd()[-5:] != '/left'"),
    "mask": ("_ = os.umask(0)", "os.umask(0) == 0o22 or os.umask(0) != 0, True"),
    "limit": (
        "resource.setrlimit(resource.RLIMIT_NOFILE, (9, 9))",
        "resource.getrlimit(resource.RLIMIT_NOFILE)[0] > 9, True",
    ),
    "decimal": (
        "import decimal; decimal.getcontext().prec = 2",
        "import decimal; decimal.getcontext().prec == 28, True",
    ),
    "recursion": ("sys.setrecursionlimit(99)", "sys.getrecursionlimit() == 1000, True"),
    "digits": ("sys.set_int_max_str_digits(0)", "sys.get_int_max_str_digits() == 4300, True"),
    "hooks": ("sys.meta_path.clear()", "len(sys.meta_path) > 0, True"),
    "handlers": ("_ = signal.signal(14, signal.SIG_IGN)", "signal.getsignal(14) == signal.SIG_DFL, True"),
    "masked": ("_ = signal.pthread_sigmask(0, [10, 12])", "signal.pthread_sigmask(0, []) == set(), True"),
    "timer": ("_ = signal.signal(14, 1), signal.setitimer(0, 99)", "signal.getitimer(0) == (0.0, 0.0), True"),
    "small-numbers": ("ctypes.memset(id(7) + 24, 9, 1)", "3 + 4 == 21 // 3, str(8 - 1) == '7'"),
    "bytes-of-code": ("ctypes.memset(id(json.dumps.__code__) + 200, 0, 1)", "json.dumps([1]) == '[1]', True"),
}


@pytest.mark.parametrize("kind", BOTH)
@pytest.mark.parametrize("name", MUTATIONS)
def test_no_later_session_sees_what_was_changed(kind: str, name: str, arenas: Arenas) -> None:
    changed, look = MUTATIONS[name]
    arenas(kind).attack(changed)
    [seen] = arenas(kind).fresh(look)
    assert seen.output == "(True, True)\n"


@pytest.mark.parametrize("kind", BOTH)
@pytest.mark.parametrize(
    "cell",
    [
        "import random; random.random()",
        "import numpy; numpy.random.rand()",
        "import numpy; numpy.random.default_rng().random()",
        "import sympy.core.random as r; r.rng.random()",
        "os.urandom(8)",
        "__import__('uuid').uuid4()",
        "__import__('tempfile').mktemp()",
    ],
    ids=["random", "numpy", "generator", "sympy", "system", "uuid", "tempfile"],
)
def test_sessions_draw_different_numbers(kind: str, cell: str, arenas: Arenas) -> None:
    drawn = [arenas(kind).fresh(cell)[0].output for _ in range(3)]
    assert len(set(drawn)) == 3
    assert all(drawn)


@pytest.mark.parametrize("kind", BOTH)
def test_hashes_are_equal_in_all_sessions_whatever_one_does(kind: str, arenas: Arenas) -> None:
    look = "hash('a'), list({'some', 'words', 'in', 'a', 'set'})"
    [before] = arenas(kind).fresh(look)
    arenas(kind).attack("os.environ['PYTHONHASHSEED'] = '7'; _ = hash('a')")
    [after] = arenas(kind).fresh(look)
    assert before.output == after.output
    assert before.output.startswith("(")


@pytest.mark.parametrize("kind", BOTH)
def test_a_rebound_clock_changes_no_duration(kind: str, arenas: Arenas) -> None:
    *_, timed = arenas(kind).attack("sleep = time.sleep; time.time = time.monotonic = lambda: 0.0", "sleep(0.2)")
    assert 0.2 <= timed.duration_s < SOON_S


@pytest.mark.parametrize("kind", BOTH)
def test_nothing_of_other_sessions_is_in_reach_of_the_collector(kind: str, arenas: Arenas) -> None:
    words = "[o for o in gc.get_objects() if isinstance(o, dict) and 'held' in o and o is not globals()]"
    [found] = arenas(kind).attack(words)
    assert found.output == "[]\n"
