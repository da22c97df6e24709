"""Fingerprints of a session's names: equal for equal states, different for others, and its own code never runs."""

import builtins
import math
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from kernel.system_calls import FOLDER, load

STATES = yaml.safe_load(Path(__file__).with_name("fingerprints.yaml").read_text())
HIDDEN = {"__builtins__", "__name__", "__annotations__", "_"}
MOST_CALLS = 500_000
"""Of the fingerprint of any value, however large."""
HOSTILE = Path(__file__).with_name("hostile_values.txt").read_text()
"""Binds values whose classes run code of their own wherever they can; BASE stands for what one of them derives from."""
FINALIZERS = Path(__file__).with_name("finalizers.txt").read_text()
"""Prints how often a finalizer ran during a fingerprint, and after it."""
fingerprint: Callable[[dict[Any, Any], set[str]], str] = load("repl_fingerprint").fingerprint


def state(source: str) -> dict[str, Any]:
    namespace: dict[str, Any] = {"__name__": "__main__"}
    exec(textwrap.dedent(source), namespace)
    return namespace


def after(source: str) -> str:
    """The fingerprint of a session that ran `source`."""
    return fingerprint(state(source), HIDDEN)


def of(value: object) -> str:
    return fingerprint({"value": value}, HIDDEN)


def test_it_is_16_hex_digits() -> None:
    assert len(of(1)) == 16
    assert int(of(1), 16) >= 0
    assert after("") == fingerprint({}, set())


def groups(kind: str) -> Iterator[list[str]]:
    """Of states in the file: each is one, or as many as it has first lines for its states."""
    for group in STATES[kind]:
        if isinstance(group, dict):
            yield from ([f"{first}\n{state}" for state in group["states"]] for first in group["after"])
        else:
            yield group


@pytest.mark.parametrize("sources", groups("same"))
def test_one_state_reached_in_several_ways(sources: list[str]) -> None:
    assert len({after(source) for source in sources}) == 1


@pytest.mark.parametrize("sources", groups("different"))
def test_different_states(sources: list[str]) -> None:
    assert len({after(source) for source in sources}) == len(sources)
    assert [after(source) for source in sources] == [after(source) for source in sources]


def test_two_processes_agree() -> None:
    program = f"""
        import sys
        junk = [object() for _ in range(int(sys.argv[1]))]
        sys.path.insert(0, {str(FOLDER)!r})
        from repl_fingerprint import fingerprint
        namespace = {{"__name__": "__main__"}}
        exec({STATES["mixed"]!r}, namespace)
        print(fingerprint(namespace, {{"__builtins__"}}))
    """
    environment = {**os.environ, "PYTHONHASHSEED": "7"}
    command = [sys.executable, "-c", textwrap.dedent(program)]
    printed = {subprocess.check_output([*command, str(n)], text=True, env=environment, timeout=600) for n in (0, 12345)}
    assert len(printed) == 1


@pytest.mark.parametrize(
    "base", ["object", "int", "str", "list", "dict", "tuple", "set", "float", "bytes", "Exception"]
)
def test_no_code_of_the_session_runs(base: str) -> None:
    calls: list[int] = []
    namespace: dict[Any, Any] = {"__name__": "__main__", "ran": lambda: calls.append(1), "sys": sys}
    try:
        exec(HOSTILE.replace("BASE", base), namespace)
        del calls[:]
        first = fingerprint(namespace, HIDDEN)
        assert calls == []
        assert fingerprint(namespace, HIDDEN) == first
        namespace["held"].append(1)
        assert fingerprint(namespace, HIDDEN) != first
        assert calls == []
    finally:
        sys.modules.pop("sympy.core.symbol.evil", None)


def test_keys_of_the_namespace_may_be_hostile() -> None:
    calls = []

    class Key(str):
        __slots__ = ()

        def __hash__(self) -> int:
            calls.append(1)
            return 0

        def __eq__(self, other: object) -> bool:
            calls.append(1)
            return False

        __lt__ = __eq__  # type: ignore[assignment]

    namespace = {Key("a"): 1, "b": 2, 3: 4}
    del calls[:]
    assert fingerprint(namespace, {"a"}) != fingerprint({"b": 2, 3: 4}, {"a"}) != fingerprint({"b": 2}, {"a"})
    assert calls == []


def test_rebound_builtins_are_not_called() -> None:
    namespace = state("a = [[1], {2, (3,)}, {4: 5}]\nclass A: x = 1\na.append(A())")
    expected = fingerprint(namespace, HIDDEN)
    calls: list[int] = []
    names = ("id", "len", "list", "sorted", "map", "reversed", "max", "min", "sum", "type", "any")
    table, saved = vars(builtins), {name: vars(builtins)[name] for name in names}
    try:
        table.update(dict.fromkeys(names, lambda *_, **__: calls.append(1)))
        found = fingerprint(namespace, HIDDEN)
    finally:
        table.update(saved)
    assert (found, calls) == (expected, [])


def test_finalizers_wait() -> None:
    """In a process of its own: threads that other tests left may set off a collection."""
    found = subprocess.run([sys.executable, "-c", FINALIZERS], cwd=FOLDER, capture_output=True, timeout=600)
    assert found.stdout.split() == [b"0", b"2000"], found.stderr


@pytest.mark.more
@pytest.mark.parametrize("wrap", ["[a]", "(a,)", "{1: a}", "frozenset({a, 1})", "f(a)"])
def test_deep_nesting(wrap: str) -> None:
    source = f"f = lambda x: lambda: x\na = 0\nfor _ in range(100_000): a = {wrap}\nb = %d"
    assert after(source % 1) != after(source % 2)


def test_what_lies_beyond_a_large_value_counts() -> None:
    """No name's size keeps the others from being looked at."""
    large = "a = [[n] for n in range(100_000)]\nm = [[1, [2, %d]]]\nz = %d"
    assert len({after(large % numbers) for numbers in ((1, 1), (1, 2), (2, 1))}) == 3


@pytest.mark.parametrize("values", STATES["large"])
def test_large_scalars_by_length_and_ends(values: list[str]) -> None:
    assert len({after(f"a = {value}") for value in values}) == len(values)


def test_long_flat_containers_are_read_whole() -> None:
    sieve = [n % 7 == 0 for n in range(100_000)]
    changed = [*sieve[:50_000], 1, *sieve[50_001:]]
    assert len({of(sieve), of(changed), of(tuple(sieve)), of(set(range(9999))), of(set(range(1, 10_000)))}) == 5


def calls_for(value: object) -> int:
    """Work, and not time, which a busy machine decides."""
    calls = 0

    def count(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    of(value)
    sys.setprofile(count)
    try:
        of(value)
    finally:
        sys.setprofile(None)
    return calls


def test_the_cost_is_bounded() -> None:
    values: list[Any] = [
        [0] * 10**6,
        {n: [n] for n in range(10**5)},
        {(n, (n,)) for n in range(10**5)},
        [["x" * 60_000] for _ in range(1000)],
        {str(n): n for n in range(10**6)},
        {frozenset([n, (n,)]) for n in range(5000)},
    ]
    shared: tuple[Any, ...] = ()
    for _ in range(1000):
        shared = (shared, shared, [])
    assert [calls for value in [*values, shared] if (calls := calls_for(value)) > MOST_CALLS] == []


def test_five_small_values_take_few_calls() -> None:
    assert calls_for({"a": 1, "b": "hello", "c": [1, 2, 3], "d": 3.5, "e": {"x": 1, "y": 2}}) < 200


def test_it_never_raises() -> None:
    unreadable: dict[str, Any] = {"b": 1}
    exec("A = type('A', (), {})\na = [A()]", unreadable)  # without a name around it, A has no __module__
    with pytest.raises(AttributeError):
        _ = unreadable["A"].__module__
    assert fingerprint(unreadable, HIDDEN) != fingerprint({**unreadable, "b": 2}, HIDDEN)
    assert len(fingerprint(None, HIDDEN)) == 16  # type: ignore[arg-type]


def test_numpy_by_dtype_shape_and_bytes() -> None:
    np = pytest.importorskip("numpy")
    arrays = [eval(f"np.{value}", {"np": np}) for value in STATES["numpy"]]
    assert len({of(array) for array in arrays}) == len(arrays)
    assert of(np.arange(12).reshape(3, 4).T) == of(np.arange(12).reshape(3, 4).T.copy())
    assert of(np.zeros(10**8, "i1")) != of(np.ones(10**8, "i1"))


def test_numpy_is_not_imported() -> None:
    source = f"import sys; sys.path.insert(0, {str(FOLDER)!r}); import repl_fingerprint as r\n"
    source += "r.fingerprint({'a': [1]}, set()); print('numpy' in sys.modules, 'sympy' in sys.modules)"
    assert subprocess.check_output([sys.executable, "-c", source], text=True, timeout=600) == "False False\n"


def test_sympy_by_structure() -> None:
    pytest.importorskip("sympy")
    given_symbols = "from sympy import *\nx, y = symbols('x y')\n"
    assert len({after(f"{given_symbols}e = {value}") for value in STATES["sympy"]}) == len(STATES["sympy"])
    built, reached = "e = x**2 + 2*x*y + y**2", "e = expand((x + y)**2)\ne.is_positive\nhash(e)"
    assert after(given_symbols + built) == after(given_symbols + reached)
    matrix = "m = Matrix([[1, 2], [3, 4]])\n"
    assert after(given_symbols + matrix) != after(given_symbols + matrix + "m[0, 0] = 5")


scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.binary(max_size=8)
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=4) | st.tuples(inner, inner)
    ),
    max_leaves=20,
)


def spelled(value: Any) -> str:
    """Equal texts for values that no program can tell apart."""
    if isinstance(value, float) and math.isnan(value):
        return f"nan {math.copysign(1, value)}"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{key!r}: {spelled(each)}' for key, each in value.items())}}}"
    if isinstance(value, (list, tuple)):
        return f"{type(value).__name__}({', '.join(map(spelled, value))})"
    return repr(value)


def unshared(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: unshared(each) for key, each in value.items()}
    return type(value)(map(unshared, value)) if isinstance(value, (list, tuple)) else value


@given(values, values)
def test_fingerprints_are_equal_where_values_are(one: Any, other: Any) -> None:
    assert of(one) == of(unshared(one))
    assert (of(one) == of(other)) == (spelled(one) == spelled(other))


@given(st.dictionaries(st.text(max_size=3), values, max_size=5), st.randoms())
def test_names_in_any_order(namespace: dict[str, Any], random: Any) -> None:
    names = list(namespace)
    random.shuffle(names)
    assert fingerprint({name: namespace[name] for name in names}, set()) == fingerprint(namespace, set())
