"""A transcript made with a real sandboxed kernel reads, character for character, like one of a real `python -i`.

Both are fed the same lines. CPython runs with its output on a terminal device, so that it buffers as it does for
people; its prompts are set to single characters that nothing else prints, and ours are written the same way.
"""

from __future__ import annotations

import os
import pty
import subprocess
import sys
import termios
from collections.abc import Callable
from pathlib import Path

import pytest

from repl_rl.dialect import PRIMARY_PROMPT, PythonReader
from repl_rl.kernel import KernelPool, Limits, Profile
from repl_rl.kernel.paths import PYTHON_INSIDE, Installation
from repl_rl.utils.threads import BackgroundLoop

MARKS = {PRIMARY_PROMPT: "\x01", "...": "\x02"}
SET_PROMPTS = "import sys; sys.ps1 = '\\x01'; sys.ps2 = '\\x02'"
FORGET_LINES = "__import__('linecache')._register_code = lambda *_: None; "
"""From Python 3.13 on, a terminal shows the typed line once more in each traceback. Sessions show what 3.11 and 3.12
do, on every Python, so that a model reads the same wherever it runs."""

SNIPPETS = """
[expressions]
1 + 1
2 ** 100
7 / 2, 7 // 2, 7 % 2
[None]
None
x = None
x
print(None)
[None, None]
[underscore]
40
_ + 2
_
None
_
_ = 5
6
_
[underscore in a fresh interpreter]
_
[quotes]
'it'
"it's"
'say "it\\'s"'
'a\\nb\\tc\\\\'
b'bytes\\x00'
r'\\d'
[unicode]
'é ü 漢字 🎉'
print('é ü 漢字 🎉')
'\\u200b\\ud800'
print('\\ud800')
ä = 1
ä
'\\N{GREEK SMALL LETTER ALPHA}'
[f-strings]
x = 3
f"{x=} {x:>5} {x!r}"
f"{x + }"
[print]
print(1, 2, sep='-', end='!\\n')
print()
print('a', end='')
print('b')
[print without newline before an error]
print('partial', end=''); 1/0
print('partial', end=''); print('next')
[stderr in order]
import sys
print('out'); print('err', file=sys.stderr); print('out again')
sys.stderr.write('no newline')
sys.stdout.write('x\\n')
for i in range(3):
    print('out', i)
    print('err', i, file=sys.stderr)

[raw descriptors]
import os
print('first'); _ = os.write(1, b'second\\n'); print('third')
os.system('echo from a shell')
[semicolons]
a = 1; b = 2; a + b
a; b
a;
[walrus]
(n := 10)
n
[lambda]
f = lambda x: x * 2
f(21)
(lambda: 1/0)()
[comprehensions]
[x ** 2 for x in range(5)]
{x: x for x in 'ab'}
{3, 3}
[1 / x for x in (1, 0)]
list(1 / x for x in (1, 0))
[for loop]
for i in range(3):
    i
    i * 10

[while loop with else]
n = 2
while n:
    n -= 1
else:
    'done'

[nested blocks]
for i in range(2):
    for j in range(2):
        if i == j:
            print(i, j)
        else:
            print('no')

[if elif else]
x = 5
if x > 10:
    'big'
elif x > 3:
    'middle'
else:
    'small'

[comments and blank lines]
# only a comment
x = 1  # behind code

# between
x
for i in range(2):
    # inside
    print(i)  # behind
    # last

[blank lines]


1

[functions]
def f(a, b=2, *c, d, **e):
    '''Doc.'''
    return a, b, c, d, e

f(1, d=4)
f()
f(1, 2, 3)
f(1, d=1, d=2)
f.__doc__, f.__name__
[decorators]
def twice(f):
    return lambda x: f(f(x))

@twice
def g(x):
    return x + 1

g(0)
@undefined
def h(): pass

[classes]
class A:
    '''Doc.'''
    x = 1

    def m(self):
        return self.x

class B:
    x = 1
    def m(self):
        return self.x
    def __repr__(self):
        return 'B!'

B()
B().m()
B().nothing
B.x, B().__class__.__name__
[a class whose repr fails]
class A:
    def __repr__(self):
        raise ValueError('no repr')

A()
[A()]
class C:
    def __repr__(self):
        return 5

C()
[one-line compound statements]
if True: print('yes')

for i in range(2): print(i)

def f(): return 1

f()
class A: pass

[try, except, else, finally]
try:
    1 / 0
except ZeroDivisionError as e:
    print('caught', e)
else:
    print('else')
finally:
    print('finally')

e
try:
    x = 1
except Exception:
    pass
else:
    'else'
finally:
    'finally'

[with]
import contextlib
with contextlib.suppress(ZeroDivisionError):
    1 / 0

with open('/nonexistent') as file:
    pass

with (contextlib.nullcontext(1) as a, contextlib.nullcontext(2) as b):
    a, b

[match]
def kind(x):
    match x:
        case 0:
            return 'zero'
        case [a, *rest]:
            return a, rest
        case {'k': v}:
            return v
        case _:
            return 'other'

kind(0), kind([1, 2, 3]), kind({'k': 9}), kind(7)
match 1:
    case 1:
        'one'

[generators]
def g():
    yield 1
    raise RuntimeError('in generator')

it = g()
next(it)
next(it)
next(it)
[continuation lines]
x = [1,
     2,
     3]
x
y = 1 + \\
    2
y
(1 +
 2)
[errors on continuation lines]
x = 1 + \\
    2 3
x = 1 \\
  + * \\
  3
if True:
    x = \\
    ]

(1,
 2 3
undefined + \\
  1
[triple-quoted strings]
s = '''one
two

three'''
s
print(s)
def f():
    '''Doc

    with a blank line.'''
    return 1

f()
[division by zero]
1/0
[name errors]
undefined
prnt(1)
import math
math.sqroot(2)
lst = [1, 2]
lst.apend(3)
del lst
lst
def f():
    counter += 1

f()
[type errors]
'a' + 1
1 + 'a'
len(5)
int('x')
'abc'[10]
{}['k']
None.x
5()
[assertion]
assert 1 == 2
assert 1 == 2, 'not equal'
[import errors]
import nothing_like_this
from math import nothing_like_this
from os.path import joim
import os.nothing
[chained exceptions]
try:
    1 / 0
except ZeroDivisionError:
    undefined

try:
    int('x')
except ValueError as e:
    raise RuntimeError('wrapped') from e

try:
    int('x')
except ValueError:
    raise RuntimeError('hidden') from None

[chained through functions]
def a():
    raise KeyError('a')

def b():
    try:
        a()
    except KeyError as e:
        raise ValueError('b') from e

def c():
    try:
        b()
    except ValueError:
        a()

c()
[deep traceback]
def f(n):
    if n == 0:
        return 1 / 0
    return f(n - 1)

f(0)
f(2)
f(10)
[recursion]
def f(n):
    return f(n + 1)

f(0)
def even(n):
    return odd(n - 1)

def odd(n):
    return even(n - 1)

even(0)
import sys
sys.getrecursionlimit()
sys.setrecursionlimit(200)
f(0)
class R:
    def __repr__(self):
        return repr(self)

R()
[tracebacks through the standard library]
import json
json.loads('{"a": }')
import re
re.compile('(')
from fractions import Fraction
Fraction(1, 0)
import decimal
decimal.Decimal('x')
[exception groups]
raise ExceptionGroup('several', [ValueError(1), ExceptionGroup('inner', [TypeError('t')])])
try:
    raise ExceptionGroup('eg', [ValueError(1), TypeError(2)])
except* ValueError as e:
    print('values', e.exceptions)

def f():
    raise OSError(2, 'gone')

try:
    f()
except OSError as e:
    raise ExceptionGroup('with a cause', [e])

[exception notes and odd exceptions]
e = ValueError('v')
e.add_note('a note\\nof two lines')
raise e
raise ValueError
raise 5
class Odd(Exception):
    def __str__(self):
        return 1 / 0

raise Odd()
raise KeyError('with\\nnewline')
raise Exception('')
[system errors]
open('/nonexistent')
import os
os.listdir('/nonexistent')
[syntax errors at the top]
x = = 1
print 'hello'
1 +
for
def f(:
)
'unterminated
x = 5 5
a b
if True print(1)
x = (1, 2
y = 3)
print("a" "b" c)
1 = x
f() = 1
None = 1
[more syntax errors]
return 1
yield 1
await x
break
continue
def f(x, x): pass

nonlocal x
f = lambda: (yield)
del f()
x = {1: 2, 3}
class
import
from x import
else:
0777
1_000_
1__0
3x
$
?
a?b
f"{"
[invalid characters]
x = “quoted”
print(１)
x = 1 – 2
x\u00a0= 1
[syntax errors in blocks]
for i in range(3):
    x = = 1
y = 1
if True:
    print(1
    print(2)

def f():
    return return
f
[indentation errors]
  x = 1
for i in range(3):
print(i)
if True:
    x = 1
      y = 2
x
if True:
    x = 1
  y = 2
def f():

x
[blocks without a body]
def f():

try:
    x = 1

@decorator

class A:
    @property

for i in range(3):
    if i:

if True:
    try:
        x = 1

x = (

1)
x = \\

if True:

s = '''

'''
s
if True:
    y = [

    ]

y
[open brackets before an error]
if True:
    print(1
    print(2)

x = [1, (2, 3
y = 4)
z = {'a': (1 2
x = (1, 2
def f(): pass
)
[carriage returns before newlines]
x = 1\r
if x:\r
    print('in')\r
\r
s = '''a\r
b'''\r
s\r
y = x + \\\r
    1\r
y\r
1/0\r
[carriage returns alone]
x = 1\rx
x = 1\rx = 2\rx
'a\rb'
s = '''a\rb'''
s
if True:\r    print('in')

(1,\r 2)
x = 5\r# behind
x
x = 6\r
x
[form feeds]
x = 1\f
\fx
  \fx
\f  x
if True:
    print('in')
\f
if True:
    print('in')
  \f
x
if True:
    print('in')
\f\x20
    x

\f
\f# a thought
[backslashes with nothing behind them]
\\

x = 1
\\
# a thought
x
\\
\\

x
\\
\x20\x20
x
[other white space]
\v
\xa0
\x1c
\u2028x
\v# a thought
if True:
    x = 1
\xa0

'a\vb\x1c'
\ufeff1
\x1a
[control characters]
\x01
x = '\x01\x1b[31m'
x
print(x)
# \x01
x = 1\x7f
[tabs]
if True:
	x = 1
        y = 2

if True:
	x = 7
	x

[unmatched brackets]
(]
[1, 2)
}
x = [1, {2: 3]
foo(1, 2
, 3))
[eval and exec]
eval('1 + 1')
eval('1 +')
exec('x = 1\\nprint(x)\\n1/0')
compile('a b', 'file.py', 'exec')
exec('def f():\\n  return undefined')
f()
[SyntaxError raised by hand]
raise SyntaxError('by hand')
raise SyntaxError('with place', ('file.py', 3, 5, 'x = = 1', 3, 6))
[warnings]
1 is 1
'a' is 'a'
(1, 2)(3)
'\\d'
assert (1, 'always true')
import warnings
warnings.warn('careful')
warnings.warn('old', DeprecationWarning)
def f():
    warnings.warn('twice')

f()
f()
warnings.simplefilter('error')
warnings.warn('now an error')
[warnings inside blocks]
for i in range(2):
    i is 1

def f():
    return [] is ()

f()
[async]
async def f():
    return 5

import asyncio
asyncio.run(f())
await f()
async with x:
    pass

async def g():
    raise ValueError('in a task')

asyncio.run(g())
asyncio.get_event_loop_policy().__class__.__name__
def f():
    await x

[global and del]
x = 1
def f():
    global x
    x += 1

f()
x
del x
x
del x
[unpacking]
a, *b = 1, 2, 3
a, b
a, b = 1
a, b = 1, 2, 3
x, y = {}
[augmented assignment and annotations]
x: int = 5
x += 1
x
y: str
y
__annotations__
[future statements]
def f(x: undefined): pass

from __future__ import annotations
def f(x: undefined): pass

f.__annotations__
from __future__ import nothing
from __future__ import braces
[large integers]
2 ** 200
10 ** 5000
len(str(2 ** 10000))
int('9' * 5000)
[floats and complex]
0.1 + 0.2
1e400, -1e400
float('nan')
3j * 2
round(2.5)
[containers]
[1, 'a', None, 2.5]
(1,)
{'k': [1, {'n': ()}]}
set()
range(3)
frozenset({1})
[..., Ellipsis]
[builtins as values]
int
print
len
type(5)
type
NotImplemented
__name__
__doc__
[help and exit objects]
exit
quit
credits is not None
[reading input]
import sys
sys.exc_info()
sys.last_value
1/0
sys.last_value
sys.last_type
sys.argv
sys.stdout.name, sys.stderr.name, sys.stdout.encoding, sys.stderr.errors
[rebinding displayhook]
import sys
sys.displayhook = lambda value: print('shown:', value)
1 + 1
None
sys.displayhook = sys.__displayhook__
1 + 1
sys.displayhook = lambda value: 1 / 0
5
del sys.displayhook
5
[rebinding excepthook]
import sys
sys.excepthook = lambda *args: print('hook', args[0].__name__)
1 / 0
x = = 1
def bad(*args):
    raise ValueError('in the hook')

sys.excepthook = bad
1 / 0
sys.excepthook = sys.__excepthook__
1 / 0
del sys.excepthook
1 / 0
[rebinding stdout]
import io, sys
sys.stdout = io.StringIO()
print('captured'); 1 + 1
captured = sys.stdout.getvalue(); sys.stdout = sys.__stdout__
captured
sys.stderr = io.StringIO()
1 / 0
sys.stderr = sys.__stderr__
1 / 0
[rebinding builtins]
import builtins
repr = None
[1]
builtins.print('still here')
print = 5
print(1)
del print
print('back')
[threads]
import threading
def work():
    print('in a thread')

t = threading.Thread(target=work); t.start(); t.join()
threading.current_thread().name
[traceback module]
import traceback
try:
    1 / 0
except ZeroDivisionError:
    traceback.print_exc()

traceback.format_exc()
[context variables]
import contextvars
v = contextvars.ContextVar('v')
_ = v.set(5)
v.get()
[dunder name of main]
import __main__
x = 5
__main__.x
if __name__ == '__main__':
    'main'

[pickling what main defines]
import pickle
class P: pass

type(pickle.loads(pickle.dumps(P()))) is P
[keyword-like names]
match = 1
match
case = 2
print(match, case)
type = 3
[numbers with separators]
1_000_000
0x_ff, 0b11, 0o17
1if True else 2
[star expressions]
print(*[1, 2, 3])
[*range(3), *'ab']
{**{'a': 1}, 'b': 2}
*a
*a, = 1, 2
a
[a session that computes]
import math
n = 2024
primes = []
for p in range(2, 50):
    if n % p == 0:
        primes.append(p)
        while n % p == 0:
            n //= p

primes
math.prod(primes)
sum(int(d) for d in str(7 ** 20))
"""


def sessions() -> dict[str, list[str]]:
    """The lines of each snippet by its name; a line in square brackets that is a known heading opens the next one."""
    found: dict[str, list[str]] = {}
    for line in SNIPPETS.strip("\n").split("\n"):
        if line.startswith("[") and line.endswith("]") and _is_heading(line):
            lines = found[line[1:-1]] = []
        else:
            lines.append(line)
    return found


def _is_heading(line: str) -> bool:
    return line[1].isalpha() and all(character.isalpha() or character in " ,-" for character in line[1:-1])


SESSIONS = sessions()


def cpython(lines: list[str], folder: Path) -> str:
    """What a real `python -i` shows for `lines`, prompts as the characters of `MARKS`, if it lies where ours does."""
    installation = Installation.current()
    primary, terminal = pty.openpty()
    attributes = termios.tcgetattr(terminal)
    attributes[1] &= ~termios.OPOST
    termios.tcsetattr(terminal, termios.TCSANOW, attributes)
    with subprocess.Popen(
        [str(installation.executable), "-i", "-q", "-s"],
        stdin=subprocess.PIPE,
        stdout=terminal,
        stderr=terminal,
        env=dict(Profile.load().environment) | {"PYTHON_BASIC_REPL": "1"},
        cwd=folder,
    ) as process:
        os.close(terminal)
        assert process.stdin is not None
        begin = (FORGET_LINES if sys.version_info >= (3, 13) else "") + SET_PROMPTS
        process.stdin.write("".join(f"{line}\n" for line in [begin, *lines]).encode())
        process.stdin.close()
        shown = read_all(primary)
    assert process.returncode == 0, shown
    return shown.removeprefix(">>> ").removesuffix("\n").replace(f"{installation.prefix}/", f"{PYTHON_INSIDE}/")


def read_all(descriptor: int) -> str:
    chunks = []
    try:
        while chunk := os.read(descriptor, 65536):
            chunks.append(chunk)
    except OSError:
        pass  # how Linux reports that the last writer has closed a terminal
    finally:
        os.close(descriptor)
    return b"".join(chunks).decode()


async def ours(lines: list[str], pool: KernelPool) -> str:
    """The same through the dialect's reader and a sandboxed kernel."""
    reader, shown = PythonReader(), ""
    async with pool.session() as kernel:
        assert (await kernel.execute(SET_PROMPTS)).output == ""
        for line in lines:
            shown += MARKS[reader.next_prompt()]
            for cell in reader.read(f" {line}\n").cells:
                shown += (await kernel.execute(cell.source)).output
    return shown + MARKS[reader.next_prompt()]


@pytest.fixture(scope="module")
def pool(kernel_pools: Callable[..., KernelPool]) -> KernelPool:
    return kernel_pools(Limits(line_s=20.0), size=4)


@pytest.mark.parametrize("name", SESSIONS)
def test_a_transcript_reads_like_a_terminal(name: str, loop: BackgroundLoop, pool: KernelPool, tmp_path: Path) -> None:
    terminal = cpython(SESSIONS[name], tmp_path)
    if sys.version_info >= (3, 13) and ("<stdin>-" in terminal or name == "eval and exec"):
        pytest.skip("this CPython shows the typed line in errors of its compiler too, and in those of `eval`")
    assert loop.run(ours(SESSIONS[name], pool)) == terminal


def test_there_are_enough_snippets() -> None:
    assert len(SESSIONS) >= 60
    assert sum(len(lines) for lines in SESSIONS.values()) >= 400
