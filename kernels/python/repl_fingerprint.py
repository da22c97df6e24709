"""What a session's names are bound to, by value, as 16 hex digits.

    fingerprint(namespace, {"__builtins__", ...})    # "5f0c..."

Two sessions that reached the same state have the same fingerprint, given the same PYTHONHASHSEED and Python. The order
in which names were bound does not matter; that of a dict's keys does, as programs see it. Two names for one list (or
dict, set, instance, function, class) differ from names for two equal lists; tuples and all that can't change are taken
by value alone. Functions count by their code, not by where it was typed; what a module defines, by its name there.
Expressions of sympy count by structure, because their hashes collide: hash(x - 1) == hash(x - 2).

None of the session's own code runs, whatever it bound: objects are looked up by the identity of their exact type, and
read through CPython's own descriptors, never by `repr`, `==`, `hash`, iteration or attributes that a class can define.

Not covered, so that a change there goes unnoticed: what no name leads to (the state of `random`, of modules, of files);
the state of objects made in C, except for builtin containers, what derives from builtins, arrays and scalars of numpy,
Decimal, date, timedelta and partial (so iterators, generators, datetime and the cache of an `lru_cache` count by type
and attributes); elements of arrays that hold objects, names of an array's fields; annotations of functions; what lies
beyond the limits below, which keep a call within tens of milliseconds (a long string or number counts by length and
ends, a long list by length and head, a long set by length). A session can have its code run here by hostile keys in the
dict of a class or in `sys.modules`, and by audit hooks and tracers, which see this module's calls.
"""

from __future__ import annotations

import gc
import sys
import types

# Bound here, since a session may rebind what `builtins` holds.
from builtins import (  # noqa: UP029
    AttributeError,
    Exception,
    ValueError,
    any,
    bytes,
    dict,
    float,
    frozenset,
    id,
    int,
    len,
    list,
    map,
    max,
    min,
    reversed,
    set,
    sorted,
    str,
    sum,
    tuple,
    type,
)
from collections import deque
from hashlib import blake2b
from itertools import islice, repeat
from marshal import dumps
from operator import itemgetter
from sys import getsizeof

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Set
    from typing import Any

_STEPS = 16384
"""Values looked at in one call; the names share them evenly, and what one does not use goes to those after it."""
_STEP_BITS = 10  # bytes that are read in C cost a step for each KiB,
_FLAT_BITS = 4  # and numbers and strings in one container a step for each 16, if that is more
_LARGE_BYTES = 1 << 16
_EDGE_BYTES = 1 << 12
_ARRAY_BYTES = 1 << 22
_SET_DEPTH = 16
_known: dict[int, tuple[object, bytes]] = {}
"""id -> (expression of sympy, encoding), of the names of the last call: these never change, and are slow."""
_MARSHAL_VERSION = 2  # the last whose bytes depend on nothing but values

_CUT, _UNREADABLE, _EMPTY_CELL = b"<.", b"<!", b"<0"  # marshal begins no flat value with "<"
_HEAP_TYPE, _IMMUTABLE_TYPE = 1 << 9, 1 << 8
_LONG, _LIST, _TUPLE, _BYTES, _STR, _DICT, _ERROR, _CLASS = (1 << bit for bit in range(24, 32))

_MODULES = sys.modules
_FIRST = itemgetter(0)
_flags, _mro, _bases, _dict, _module, _qualname = (
    type.__dict__[f"__{name}__"].__get__ for name in ("flags", "mro", "bases", "dict", "module", "qualname")
)
_error_arguments = BaseException.__dict__["args"].__get__
_FLAT = {id(kind) for kind in (type(None), bool, int, float, complex, str, bytes, type(...))}
_CACHES = {"_mhash", "_assumptions", "_assumptions0"}  # of sympy's objects: they depend on what was asked before


def fingerprint(namespace: dict[str, Any], hidden: Set[str]) -> str:
    """The digest of `namespace`, an exact dict, without the names in `hidden`, a set of exact strings. Never raises."""
    collecting = gc.isenabled()
    gc.disable()  # finalizers are the session's code
    try:
        try:
            encoded = b"".join(_Walk().names(namespace, hidden))
        except Exception:  # noqa: BLE001 - a thread of the session may be changing it
            encoded = _UNREADABLE
        return blake2b(encoded, digest_size=8).hexdigest()
    finally:
        if collecting:
            gc.enable()


class _Walk:
    """One pass over a namespace, depth first, without recursion except for sets.

    Each value becomes a header that tells how many values follow as its parts, so that the encoding is unambiguous.
    """

    __slots__ = ("_depth", "_kept", "_parts", "_seen", "_stack", "_steps")

    def __init__(self) -> None:
        self._kept: dict[int, tuple[object, bytes]] = {}
        self._parts: list[bytes] = []
        self._seen: dict[int, tuple[int, object]] = {}  # id -> (number, the object, kept so that its id stays its own)
        self._stack: list[Any] = []
        self._steps = 0
        self._depth = 0

    def names(self, namespace: dict[str, Any], hidden: Set[str]) -> list[bytes]:
        """The encoded parts of all names, sorted; keys that are not strings come last, in the dict's order."""
        shown, odd = [], []  # type: list[tuple[str, Any]], list[Any]
        for name, value in list(namespace.items()):
            if type(name) is not str:
                odd += name, value
            elif name not in hidden:
                shown.append((name, value))
        shown.sort(key=_FIRST)
        left, steps = len(shown), _STEPS
        for name, value in shown:
            self._parts.append(dumps(name, _MARSHAL_VERSION))
            if id(type(value)) in _FLAT:
                self._parts.append(_flat(value))
                steps -= 1 + (len(self._parts[-1]) >> _STEP_BITS)
            else:
                steps -= self._walk_name(value, steps // left)
            left -= 1
        if odd:
            self._walk(_Parts(odd), steps)
        _known.clear()
        _known.update(self._kept)
        return self._parts

    def _walk_name(self, value: Any, steps: int) -> int:
        """As `_walk`; an expression that was there at the last call is not encoded again."""
        if not _is_expression(type(value)):
            return self._walk(value, steps)
        known, taken = _known.get(id(value)), 1
        if known is not None and known[0] is value:
            self._parts.append(known[1])
        else:
            mark = len(self._parts)
            taken = self._walk(value, steps)
            known = value, b"".join(self._parts[mark:])
        self._kept[id(value)] = known
        return taken

    def _walk(self, value: Any, steps: int) -> int:
        """Encode `value` in at most `steps` steps, and return how many it took."""
        self._steps = steps
        parts, seen = len(self._parts), len(self._seen)
        try:
            self._stack = [value]
            self._drain()
        except Exception:  # noqa: BLE001 - one value that can't be read leaves the rest as it is
            del self._parts[parts:]
            self._forget(seen)
            self._parts.append(_UNREADABLE)
        return steps - self._steps

    def _drain(self) -> None:
        parts, stack = self._parts, self._stack
        while stack:
            self._steps -= 1
            if self._steps < 0:
                parts.append(_CUT)
                return
            value = stack.pop()
            kind = id(type(value))
            if kind in _FLAT:
                parts.append(_flat(value))
                self._steps -= len(parts[-1]) >> _STEP_BITS
            elif kind not in _TRACKED and kind in _READERS:
                _READERS[kind](self, value)
            elif not self._met(value):
                _READERS.get(kind, _Walk._object)(self, value)

    def _met(self, value: object) -> bool:
        """Whether `value` came up before; then its number is all that is written."""
        known = self._seen.get(id(value))
        if known is None:
            if not _of_sympy(type(value)):
                self._seen[id(value)] = (len(self._seen), value)
            return False
        self._parts.append(b"<@%d;" % known[0])
        return True

    def _forget(self, mark: int) -> None:
        while len(self._seen) > mark:
            self._seen.popitem()

    def _put(self, tag: bytes, items: list[Any] | tuple[Any, ...]) -> None:
        """A header, then `items`, an exact list or tuple: in one piece if nothing in it has parts."""
        self._parts.append(b"<%b%d;" % (tag, len(items)))
        if self._takes_flat(items):
            self._parts.append(b"=" + dumps(items, _MARSHAL_VERSION))
        else:
            self._stack.extend(reversed(items[: max(self._steps, 0) + 1]))

    def _takes_flat(self, items: Collection[Any]) -> bool:
        """Whether none of `items` has parts and there are steps left for all, which are then taken. Loops only in C."""
        steps = len(items) >> _FLAT_BITS
        if steps > self._steps or not set(map(id, map(type, items))) <= _FLAT:
            return False
        steps = max(steps, sum(map(getsizeof, items)) >> _STEP_BITS)
        if steps > self._steps:
            return False
        self._steps -= steps
        return True

    def _sequence(self, value: list[Any]) -> None:
        self._put(b"L", value)

    def _deque(self, value: deque[Any]) -> None:
        self._put(b"Q", (value.maxlen, _Parts(list(value))))

    def _tuple(self, value: tuple[Any, ...]) -> None:
        self._put(b"T", value)

    def _inner_parts(self, value: _Parts) -> None:
        self._put(b"P", value.items)

    def _mapping(self, value: dict[Any, Any]) -> None:
        self._parts.append(b"<D%d;" % len(value))
        most = (max(self._steps, 0) + 1) << _FLAT_BITS
        self._stack += [_Parts(list(islice(part, most))) for part in (value.values(), value)]

    def _set(self, value: set[Any]) -> None:
        self._unordered(b"S", value)

    def _frozen_set(self, value: frozenset[Any]) -> None:
        self._unordered(b"Z", value)

    def _unordered(self, tag: bytes, items: Set[Any]) -> None:
        """The encodings of the items, sorted; each is made as if the others were not there."""
        self._parts.append(b"<%b%d;" % (tag, len(items)))
        if self._takes_flat(items):
            self._parts += sorted(map(dumps, items, repeat(_MARSHAL_VERSION)))
        elif len(items) > self._steps or self._depth >= _SET_DEPTH:
            self._parts.append(_CUT)
        else:
            left, share = self._steps, self._steps // len(items)
            encoded = []
            for item in list(items):
                encoding, taken = self._alone(item, share)
                encoded.append(encoding)
                left -= taken
            self._steps = left
            self._parts += sorted(encoded)

    def _alone(self, item: Any, steps: int) -> tuple[bytes, int]:
        """The encoding of `item` and the steps that it took, leaving the walk as it was."""
        outside, mark = (self._parts, self._stack), len(self._seen)
        self._parts, self._depth = [], self._depth + 1
        try:
            taken = self._walk(item, steps)
            return b"".join(self._parts), taken
        finally:
            self._forget(mark)
            self._parts, self._stack = outside
            self._depth -= 1

    def _range(self, value: range) -> None:
        self._put(b"R", (value.start, value.stop, value.step))

    def _slice(self, value: slice) -> None:
        self._put(b"/", (value.start, value.stop, value.step))

    def _bytearray(self, value: bytearray) -> None:
        self._parts.append(b"<B" + _edges(value))

    def _module(self, value: types.ModuleType) -> None:
        self._put(b"M", (value.__dict__.get("__name__"),))

    def _function(self, value: types.FunctionType) -> None:
        module, name = value.__module__, value.__qualname__
        if _is_importable(module, name, value):
            self._put(b"f", (module, name))
            return
        parts = (value.__code__, value.__defaults__, value.__kwdefaults__, value.__closure__, value.__dict__)
        self._put(b"F", (name, *parts))

    def _code(self, value: types.CodeType) -> None:
        # Read as parts, not marshalled whole: `replace` may have put anything among the constants.
        counts = (value.co_argcount, value.co_posonlyargcount, value.co_kwonlyargcount, value.co_flags)
        names = (value.co_name, value.co_names, value.co_varnames, value.co_freevars, value.co_cellvars)
        self._put(b"C", (value.co_code, value.co_exceptiontable, value.co_consts, *names, *counts))

    def _cell(self, value: types.CellType) -> None:
        try:
            self._put(b"c", (value.cell_contents,))
        except ValueError:
            self._parts.append(_EMPTY_CELL)

    def _builtin(self, value: types.BuiltinFunctionType) -> None:
        self._put(b"b", (value.__module__, value.__name__, value.__self__))

    def _method(self, value: types.MethodType) -> None:
        self._put(b"m", (value.__func__, value.__self__))

    def _wrapper(self, value: Any) -> None:
        self._put(b"w", (value.__func__,))

    def _property(self, value: property) -> None:
        self._put(b"p", (value.fget, value.fset, value.fdel))

    def _object(self, value: object) -> None:
        kind = type(value)
        flags = _flags(kind)
        if flags & _CLASS:
            self._class(value)
        elif not flags & _HEAP_TYPE or flags & _IMMUTABLE_TYPE:
            self._made_in_c(value, kind)
        else:
            self._put(b"O", (kind, *_contents(value, kind, flags), *_state(value, kind)))

    def _class(self, value: Any) -> None:
        flags = _flags(value)
        module, name = _module(value), _qualname(value)
        if not flags & _HEAP_TYPE or flags & _IMMUTABLE_TYPE or _is_importable(module, name, value):
            self._put(b"k", (module, name))
        else:
            items = [
                (key, entry) for key, entry in _dict(value).items() if type(entry) is not types.GetSetDescriptorType
            ]
            self._put(b"K", (module, name, _bases(value), type(value), _Parts(items)))

    def _made_in_c(self, value: Any, kind: type) -> None:
        """Such a type can't be forged, so its name tells what it is."""
        module, name = _module(kind), _qualname(kind)
        reader = _C_READERS.get((module, name))
        if reader is None and module == "numpy":
            reader = _numpy_scalar if _is_numpy_scalar(kind) else None
        if reader is _array:
            self._steps -= min(value.nbytes, _ARRAY_BYTES) >> _STEP_BITS
        parts = [module, name]
        if reader is not None:
            parts += reader(value)
        parts += _contents(value, kind, _flags(kind))
        parts += _state(value, kind)
        self._put(b"X", tuple(parts))  # a list would have other bytes


class _Parts:
    """Parts of something: a list made by the walk, which no reference leads back to."""

    __slots__ = ("items",)

    def __init__(self, items: list[Any]) -> None:
        self.items = items


def _flat(value: Any) -> bytes:
    """Self-delimiting bytes for one value of `_FLAT`."""
    if getsizeof(value) <= _LARGE_BYTES:
        return dumps(value, _MARSHAL_VERSION)
    if type(value) is int:
        bits, edge = value.bit_length(), 8 * _EDGE_BYTES
        return dumps((bits, value < 0, value & ((1 << edge) - 1), value >> (bits - edge)), _MARSHAL_VERSION)
    if type(value) is str:
        head, tail = (part.encode("utf-8", "surrogatepass") for part in (value[:_EDGE_BYTES], value[-_EDGE_BYTES:]))
        return dumps(("str", len(value), head, tail), _MARSHAL_VERSION)
    return b"<s" + _edges(value)


def _edges(value: bytes | bytearray) -> bytes:
    """A long bytes or bytearray by its length and ends, a short one as it is."""
    if len(value) <= 2 * _EDGE_BYTES:
        return dumps(bytes(value), _MARSHAL_VERSION)
    return dumps((len(value), bytes(value[:_EDGE_BYTES]), bytes(value[-_EDGE_BYTES:])), _MARSHAL_VERSION)


def _is_importable(module: object, name: object, value: object) -> bool:
    """Whether `value` is what the module says it defines under that name: then its name tells all."""
    if type(module) is not str or type(name) is not str or module == "__main__":
        return False
    holder = _MODULES.get(module)
    return type(holder) is types.ModuleType and holder.__dict__.get(name) is value


def _is_expression(kind: type) -> bool:
    if not _of_sympy(kind):
        return False
    core = _MODULES.get("sympy.core.basic")
    if type(core) is not types.ModuleType:
        return False
    basic = id(core.__dict__.get("Basic"))
    return basic in map(id, _mro(kind))  # `in` alone would compare, by a metaclass's own `__eq__`


def _of_sympy(kind: type) -> bool:
    """Whether instances of `kind` never change and hold no cycles, so that sharing is no part of their value."""
    if not _flags(kind) & _HEAP_TYPE:
        return False
    module = _dict(kind).get("__module__")
    return type(module) is str and module.startswith("sympy.")


def _contents(value: Any, kind: type, flags: int) -> tuple[Any, ...]:
    """What an instance of a subclass of a builtin holds besides its attributes."""
    if flags & _DICT:
        pairs = islice(dict.items(value), _STEPS)
        return dict.__len__(value), _Parts([part for pair in pairs for part in pair])
    if flags & _LIST:
        return list.__len__(value), _Parts(list(islice(list.__iter__(value), _STEPS)))
    if flags & _ERROR:
        return (_error_arguments(value),)
    if flags & _TUPLE:
        return (tuple.__getitem__(value, slice(None)),)
    if flags & _STR:
        return (str.__str__(value),)
    if flags & _LONG:
        return (int.__add__(value, 0),)
    if flags & _BYTES:
        return (bytes.__getitem__(value, slice(None)),)
    bases = {id(base) for base in _mro(kind)}
    if id(set) in bases or id(frozenset) in bases:
        return (frozenset().union(value),)
    return (float.__float__(value),) if id(float) in bases else ()


def _state(value: object, kind: type) -> list[Any]:
    """The attributes of an instance: its slots by name, then its `__dict__` if it has a genuine one."""
    parts, holder = [], None  # type: list[Any], Any
    for base in _mro(kind):
        entries = _dict(base)
        if holder is None:
            holder = entries.get("__dict__")
        if _flags(base) & _HEAP_TYPE:
            slots = entries.get("__slots__")
            if slots:
                parts += _slots(value, base, slots)
    if type(holder) is types.GetSetDescriptorType:
        parts.append(holder.__get__(value))
    return parts


def _slots(value: object, base: type, slots: Any) -> Iterator[Any]:
    entries = _dict(base)
    names = (slots,) if type(slots) is str else slots if type(slots) in (tuple, list, dict) else ()
    for name in names:
        if type(name) is not str or name in _CACHES:
            continue
        private = name.startswith("__") and not name.endswith("__")
        slot = entries.get(f"_{_qualname(base).rpartition('.')[2].lstrip('_')}{name}" if private else name)
        if type(slot) is types.MemberDescriptorType:
            yield name
            try:
                yield slot.__get__(value)
            except AttributeError:
                yield _Parts([])


def _array(value: Any) -> tuple[Any, ...]:
    """The parts of an exact numpy.ndarray."""
    kind = value.dtype
    if kind.hasobject:
        return (kind.str, value.shape)
    if value.nbytes <= _ARRAY_BYTES:
        return (kind.str, value.shape, value.flags.writeable, blake2b(value.tobytes()).digest())
    count = _LARGE_BYTES // (kind.itemsize or 1) or 1
    return (kind.str, value.shape, value.flags.writeable, value.flat[:count].tobytes(), value.flat[-count:].tobytes())


def _is_numpy_scalar(kind: type) -> bool:
    return any(_qualname(base) == "generic" and _module(base) == "numpy" for base in _mro(kind))


def _numpy_scalar(value: Any) -> tuple[Any, ...]:
    kind = value.dtype
    return (kind.str,) if kind.hasobject else (kind.str, value.tobytes())


def _partial(value: Any) -> tuple[Any, ...]:
    return value.func, value.args, value.keywords


_READERS: dict[Any, Callable[[_Walk, Any], None]] = {
    list: _Walk._sequence,
    deque: _Walk._deque,
    tuple: _Walk._tuple,
    _Parts: _Walk._inner_parts,
    dict: _Walk._mapping,
    set: _Walk._set,
    frozenset: _Walk._frozen_set,
    range: _Walk._range,
    slice: _Walk._slice,
    bytearray: _Walk._bytearray,
    types.ModuleType: _Walk._module,
    types.FunctionType: _Walk._function,
    types.CodeType: _Walk._code,
    types.CellType: _Walk._cell,
    types.BuiltinFunctionType: _Walk._builtin,
    types.MethodType: _Walk._method,
    staticmethod: _Walk._wrapper,
    classmethod: _Walk._wrapper,
    property: _Walk._property,
}
_UNTRACKED = (tuple, frozenset, range, slice, _Parts, types.CodeType, types.BuiltinFunctionType, types.ModuleType)
_TRACKED = {id(kind) for kind in _READERS if kind not in _UNTRACKED}
_READERS = {id(kind): reader for kind, reader in _READERS.items()}
_C_READERS: dict[tuple[str, str], Callable[[Any], tuple[Any, ...]]] = {
    ("numpy", "ndarray"): _array,
    ("decimal", "Decimal"): lambda value: (str(value),),
    ("datetime", "date"): lambda value: (str(value),),
    ("datetime", "timedelta"): lambda value: (str(value),),
    ("functools", "partial"): _partial,
    ("collections", "defaultdict"): lambda value: (value.default_factory,),
}
