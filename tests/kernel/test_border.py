"""What a session sends is refused or read, and neither takes long, recurses, raises anything else, or is shown."""

import asyncio
import contextlib
import gc
import json
import logging
import random
import socket
import struct
import sys
import time
import weakref
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jupyter_client.session import Session
from kernel.conftest import SOAK
from waiting import until_async

from repl_rl.kernel.border import MOST_BYTES, MOST_DEPTH, MOST_MARKS, BorderError, forms_of, parsed, result_of, text_of
from repl_rl.kernel.forked.channel import LineCalls, PrivateChannel
from repl_rl.kernel.jupyter.messages import CellOutput, judge
from repl_rl.kernel.output import HeadAndTail
from repl_rl.kernel.results import ExecResult, ExecStatus, HostCall, HostReply

TEXTS = st.text() | st.sampled_from(["ok", "error", "killed", "\ud800", "[[", '"', "\\", "\0"])
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=12,
)
FIELDS = (
    "status",
    "error_name",
    "error_message",
    "compiled",
    "answer",
    "answer_forms",
    "fingerprint",
    "calls",
    "images",
)
OK = {"status": "ok", "error_name": None, "compiled": True, "answer": ["'4'"], "fingerprint": "5d41"}
REPLIES: list[dict[str, Any]] = [
    OK,
    OK | {"calls": [["search", None, 0.25], ["search", "TimeoutError", 3.0]]},
    OK | {"status": "error", "error_name": "NameError", "error_message": "NameError: name 'x' is not defined"},
    OK | {"images": ["iVBORw0KGgo="], "answer": None},
    {"call": {"number": 1, "name": "search", "args": ["x", {"a": [1.5, None]}], "kwargs": {"k": True}}},
]
"""What sessions send: replies to a line, and a call."""
UNUSUAL = [
    *(b"[" * count + b"]" * count for count in (MOST_DEPTH - 2, MOST_DEPTH, 980, 10**5)),
    *(b'{"a":' * count + b"1" + b"}" * count for count in (MOST_DEPTH, 980)),
    b"[" + b"[]," * 90_000 + b"1]",
    b"[" + b"1," * 200_000 + b"1]",
    b'"' + b"\\n" * 200_000 + b'"',
    b'"' + b"x" * (3 << 20) + b'"',
    b'"\\ud800"',
    b"9" * 5_000,
    b"1." + b"9" * 5_000,
    b"1e999",
    b"NaN",
    b"-Infinity",
    b'"\xff"',
    b"null",
    b"[]",
    b"{}",
    b"true",
    b'"ok"',
    b"",
]


@given(st.dictionaries(TEXTS, VALUES, max_size=4))
def test_an_ordinary_message_is_read_as_json_reads_it(message: dict[str, Any]) -> None:
    text = json.dumps(message)
    assert repr(parsed(text.encode())) == repr(json.loads(text))


@given(
    st.binary()
    | TEXTS.map(lambda text: text.encode("utf-8", "surrogatepass"))
    | VALUES.map(lambda v: json.dumps(v).encode())
)
def test_whatever_else_comes_is_a_border_error(text: bytes) -> None:
    with contextlib.suppress(BorderError):
        assert isinstance(parsed(text), dict)


@pytest.mark.parametrize(
    ("opening", "closing", "levels"),
    [("[", "]", 1), ('{"a":', "}", 1), ('[{"a":', "}]", 2), ('["]]]",', "]", 1), ('["\\"]]",', "]", 1)],
)
def test_depth_is_counted_outside_of_strings(opening: str, closing: str, levels: int) -> None:
    def nested(count: int) -> bytes:
        return f'{{"x": {opening * count}1{closing * count}}}'.encode()

    fits = (MOST_DEPTH - 1) // levels
    assert parsed(nested(fits))
    for count in (fits + 1, fits + 2, 900, 8_000):
        with pytest.raises(BorderError, match="nested too deeply"):
            parsed(nested(count))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (b'{"x": "' + b"x" * MOST_BYTES + b'"}', "too long"),
        (b'{"x": [' + b"1," * MOST_MARKS + b"1]}", "too many parts"),
        (b'{"x": "' + b'\\"' * (MOST_MARKS // 2) + b'"}', "too many parts"),
        (b'{"x": [1.' + b"1" * 5_000 + b"]}", "not JSON"),
        (b'{"x": 1' + b"1" * 5_000 + b"}", "not JSON"),
        (b"[1]", "not an object"),
    ],
)
def test_what_is_too_large_is_not_parsed(text: bytes, why: str) -> None:
    with pytest.raises(BorderError, match=why):
        parsed(text)


@given(st.fixed_dictionaries({}, optional=dict.fromkeys(FIELDS, VALUES | st.lists(VALUES) | TEXTS)))
def test_a_report_is_a_result_or_a_border_error(report: dict[str, Any]) -> None:
    try:
        result = result_of(report)
    except BorderError:
        return
    assert isinstance(result.status, ExecStatus)
    texts = [result.error_name, result.error_message, result.fingerprint, *(result.answer or ())]
    texts += result.answer_forms or ()
    assert result.answer_forms is None or len(result.answer_forms) == len(result.answer or ())
    for text in filter(None, texts):
        assert text.encode().decode() == text
        assert len(text) <= 10_000


def test_texts_are_bounded() -> None:
    assert len(text_of("\ud800" * (1 << 20)) or "") == 10_000
    result = result_of(OK | {"answer": ["x" * 10**6] * 3, "error_name": "y" * 10**6})
    assert ([len(text) for text in result.answer or ()], len(result.error_name or "")) == ([10_000] * 3, 200)


def mutated(draw: random.Random, text: bytes) -> bytes:
    """A message with one to four changes: other bytes, parts left out, doubled or moved, and values of other kinds."""
    for _ in range(draw.choice((1, 1, 2, 4))):
        at, to = sorted(draw.randrange(len(text) + 1) for _ in range(2))
        kind = draw.randrange(6)
        if kind == 0:
            text = text[:at] + bytes(draw.randrange(256) for _ in range(draw.randint(1, 4))) + text[at + 1 :]
        elif kind == 1:
            text = text[:at] + text[to:]
        elif kind == 2:
            text = text[:to] + text[at:]
        elif kind == 3:
            text = text[:at] + draw.choice(b'[]{}",:\\0e-').to_bytes() + text[at:]
        else:
            offsets = [index for index, byte in enumerate(text) if byte in b":[,"]
            if offsets:
                start = draw.choice(offsets) + 1
                ends = [index for index in range(start, len(text)) if text[index] in b",]}"]
                weights = [10 if len(value) < 100 else 1 for value in UNUSUAL]
                text = text[:start] + draw.choices(UNUSUAL, weights)[0] + text[ends[0] if ends else len(text) :]
    return text


class LongestPause:
    """How long the event loop was kept from its next step, at most, in seconds of its thread's CPU time."""

    def __init__(self) -> None:
        self.longest_s = 0.0
        self._task = asyncio.create_task(self._watch())

    def stop(self) -> None:
        self._task.cancel()

    async def _watch(self) -> None:
        while True:
            began = time.thread_time()
            await asyncio.sleep(0)
            self.longest_s = max(self.longest_s, time.thread_time() - began)


class Peer:
    """The other end of a private channel, which answers each request with what it is given, in a thread of its own."""

    def __init__(self) -> None:
        ours, self._socket = socket.socketpair()
        self.channel = PrivateChannel(ours)

    async def greet(self) -> None:
        self._socket.sendall(framed(b'{"id": "ready"}'))
        assert await self.channel.reply(60)

    async def exchange(self, answer: Callable[[str], bytes]) -> ExecResult | None:
        """The result of one request, if the answer is one; if it is not, the channel is closed afterwards."""

        called = asyncio.Event()

        async def host(call: HostCall) -> HostReply:
            called.set()
            return HostReply(value=len(call.args))

        answering = asyncio.create_task(asyncio.to_thread(self._answer, answer))
        with LineCalls(host, self.channel, asyncio.Lock()) as calls:
            asking = asyncio.create_task(self.channel.ask({"run": "1"}, 60, on_call=calls.take))
            while not asking.done() and not called.is_set():
                await asyncio.sleep(0)
            if asking.done():
                reply = await asking
            else:  # a call, and no reply after it
                asking.cancel()
                reply = None
        with contextlib.suppress(BorderError):
            if reply is not None:
                result = result_of(reply)
                await answering
                return result
        self.channel.close()
        await answering
        return None

    def _answer(self, answer: Callable[[str], bytes]) -> None:
        (size,) = struct.unpack("!I", self._socket.recv(4))
        message = framed(answer(json.loads(self._socket.recv(size))["id"]))
        with contextlib.suppress(OSError):  # it was refused before its end
            self._socket.sendall(message)

    def close(self) -> None:
        self.channel.close()
        self._socket.close()


def framed(text: bytes) -> bytes:
    return struct.pack("!I", len(text)) + text


async def test_a_log_of_what_was_refused_keeps_no_message(caplog: pytest.LogCaptureFixture) -> None:
    peer = Peer()
    await peer.greet()
    assert await peer.exchange(lambda number: b"[" * 1000) is None
    peer.close()
    channel = weakref.ref(peer.channel)
    del peer
    assert "a session is ended: a message is nested too deeply" in caplog.messages

    def is_freed() -> bool:
        gc.collect()
        return channel() is None

    # The thread that answered drops its work, which holds the peer, some time after its result is here.
    await until_async(is_freed)


async def fuzz_channel(count: int, seed: int) -> tuple[int, float]:
    """How many of `count` messages were read as results, and the longest pause of the loop."""
    draw, read = random.Random(seed), 0
    pause, peer = LongestPause(), Peer()
    await peer.greet()
    for _ in range(count):
        message = draw.choice(REPLIES)
        is_asked_for = draw.random() < 0.9

        def answer(number: str, message: dict[str, Any] = message, is_asked_for: bool = is_asked_for) -> bytes:
            text = mutated(draw, json.dumps(message).encode())
            return b'{"id": "%s", ' % number.encode() + text[1:] if is_asked_for else text

        result = await peer.exchange(answer)
        read += result is not None
        if result is None:
            peer.close()
            peer = Peer()
            await peer.greet()
    peer.close()
    pause.stop()
    return read, pause.longest_s


def fuzz_messages(count: int, seed: int) -> tuple[int, float]:
    """The same for replies on Jupyter's channels, signed as a kernel signs them."""
    draw, read, longest_s = random.Random(seed), 0, 0.0
    kernel, client = Session(key=b"key"), Session(key=b"key")
    client.unpack, client.digest_history_size = parsed, 0
    for _ in range(count):
        report = json.dumps({"status": "ok", "execution_count": 1, "repl_rl": draw.choice(REPLIES)}).encode()
        parts = [json.dumps(part).encode() for part in ({"msg_id": "1", "msg_type": "x"}, {"msg_id": "2"}, {})]
        parts.append(report)
        at = draw.choice([0, 1, 2, 3, 3, 3, 3])
        parts[at] = mutated(draw, parts[at])
        signed = [kernel.sign(parts), *parts]
        began = time.thread_time()
        try:
            content = dict(client.deserialize(signed)["content"])
            read += isinstance(judge(content, CellOutput(HeadAndTail(1000))), ExecResult)
        except (RecursionError, MemoryError):
            raise
        except Exception:  # noqa: BLE001 - whoever reads these takes any exception for a broken message
            pass
        longest_s = max(longest_s, time.thread_time() - began)
    return read, longest_s


@pytest.mark.more
async def test_mutated_messages_are_results_or_the_end_of_their_channel() -> None:
    read, _ = await fuzz_channel(1_500, seed=0)
    assert read > 100
    read, _ = fuzz_messages(1_500, seed=0)
    assert read > 100


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_many_messages_neither_hold_up_the_loop_nor_grow_the_process(caplog: pytest.LogCaptureFixture) -> None:
    """A hundred thousand, a million by `make test-soak`."""
    most = 500_000 if SOAK else 50_000
    caplog.set_level(logging.CRITICAL, "repl_rl")  # or pytest keeps a record of every channel that ends
    asyncio.run(fuzz_channel(20_000, seed=1))
    fuzz_messages(20_000, seed=1)
    gc.collect()
    gc.freeze()  # a collection looks at what the messages made, not at all that the tests have made
    before_blocks = sys.getallocatedblocks()
    read, longest_s = asyncio.run(fuzz_channel(most, seed=2))
    read_jupyter, longest_jupyter_s = fuzz_messages(most, seed=2)
    gc.collect()
    after_blocks = sys.getallocatedblocks()
    gc.unfreeze()
    print(f"{read:,} and {read_jupyter:,} read; longest pauses {longest_s:.3f}, {longest_jupyter_s:.3f} s of CPU")
    assert max(longest_s, longest_jupyter_s) < 0.5  # of CPU time of this thread, ten times what it takes
    assert after_blocks < before_blocks + 20_000


def test_forms_are_one_for_each_answer_and_never_cut() -> None:
    long = "x" * 10_001
    assert forms_of(["pi", None, long, 5, "1", "more"], ("a", "b", "c", "d", "e")) == ("pi", None, None, None, "1")
    for reported in (None, "pi", [], [None], [long], {"0": "pi"}):
        assert forms_of(reported, ("a",)) is None
    assert forms_of(["pi"], None) is None
    assert result_of(OK | {"answer_forms": ["'5'"]}).answer_forms == ("'5'",)
