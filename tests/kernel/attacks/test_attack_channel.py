"""Attacks on the private channel: forged, broken and unasked-for replies cost their own session, and never more."""

from __future__ import annotations

import json

import pytest
from kernel.attacks.arena import BOTH, BWRAP, ERROR, KILLED, LIMITS, OK, SHORT, SOON_S, TIMEOUT, Attack, cases
from kernel.attacks.conftest import Arenas

FORGED = {"status": "ok", "error_name": None, "compiled": True, "answer": ["'forged'"], "fingerprint": None}
SEND = "_ = os.write(3, {})"


def forged(**changed: object) -> str:
    return f"frame(json.dumps({FORGED | changed!r}))"


BROKEN = {
    "early-reply": forged(id="0" * 16),
    "reply-without-a-number": forged(),
    "ready-once-more": forged(id="ready"),
    "null-number": forged(id=None),
    "listed-number": forged(id=[]),
    "no-object": "frame('[]')",
    "a-number": "frame('1e999')",
    "no-json": "frame('forged')",
    "no-utf-8": r"frame(b'\xff\xfe\xff')",
    "nothing": "frame('')",
    "nul": "bytes(64)",
    "four-gib": r"b'\xff\xff\xff\xff' + bytes(999)",
    "just-too-much": "struct.pack('!I', (4 << 20) + 1)",
    "large-and-short-of-its-end": "struct.pack('!I', 4 << 20) + bytes(99)",
    "half-a-frame": "frame('{\"id\": 1}')[:7]",
    "half-a-header": r"b'\0\0'",
    "nested": "frame('[' * 10 ** 5)",
    "nested-objects": "frame('{\"a\":' * 10 ** 5)",
    "huge-number": "frame('9' * 10 ** 5)",
    "garbage": "os.urandom(9999)",
    "surrogate": 'frame(\'{"id": "\\\\ud800"}\')',
    "same-key-twice": 'frame(\'{"id": 1, "id": "ready"}\')',
    "many": "frame('{}') * 5000",
}


@pytest.mark.parametrize("kind", BOTH)
@pytest.mark.parametrize("name", BROKEN)
def test_what_was_not_asked_for_costs_the_session(kind: str, name: str, arenas: Arenas) -> None:
    """In the same line or at the latest in the next one, and is the reply to neither."""
    results = arenas(kind, SHORT).attack(SEND.format(BROKEN[name]), "'next'")
    assert results[-1].status is KILLED
    assert all(result.answer is None for result in results)


@pytest.mark.parametrize("kind", BOTH)
@pytest.mark.parametrize("name", ["early-reply", "garbage", "half-a-frame", "four-gib"])
def test_what_is_sent_between_two_lines_costs_the_session(kind: str, name: str, arenas: Arenas) -> None:
    later = f"later = threading.Timer(1, os.write, (3, {BROKEN[name]})); later.start()"
    first, *others = arenas(kind).attack(later, "later.join(); 'next'", "'third'")
    assert (first.status, first.answer) == (OK, None)
    assert others[-1].status is KILLED
    assert all(result.answer is None for result in others)


TWICE = "text = frame(json.dumps({forged!r} | {{'id': request_id()}})); _ = os.write(3, text)"


@pytest.mark.parametrize("kind", BOTH)
def test_a_line_may_lie_about_itself_but_about_no_later_one(kind: str, arenas: Arenas) -> None:
    lie, *later = arenas(kind, SHORT).attack(TWICE.format(forged=FORGED), "'later'", "'later still'")
    assert (lie.status, lie.answer) == (OK, ("'forged'",))
    assert [(result.status, result.answer) for result in later] == [(KILLED, None)]


@pytest.mark.parametrize("kind", BOTH)
def test_a_number_that_was_used_is_worth_nothing(kind: str, arenas: Arenas) -> None:
    late = f"_ = os.write(3, frame(json.dumps({FORGED!r} | {{'id': kept}})))"
    results = arenas(kind, SHORT).attack("kept = request_id()", late)
    assert [(result.status, result.answer) for result in results] == [(OK, None), (KILLED, None)]


BAD_FIELDS: dict[str, object] = {
    "status-listed": {"status": []},
    "status-unknown": {"status": "wonderful"},
    "status-number": {"status": 1},
    "error-listed": {"error_name": ["x"]},
    "error-number": {"error_name": 5},
    "answer-number": {"answer": 5},
    "answer-of-numbers": {"answer": [1, 2]},
    "answer-nested": {"answer": [["x"]]},
    "answer-object": {"answer": {"1": 2}},
    "fingerprint-listed": {"fingerprint": []},
}


@pytest.mark.parametrize("kind", BOTH)
@pytest.mark.parametrize("name", BAD_FIELDS)
def test_a_forged_reply_of_the_wrong_form_costs_the_session(kind: str, name: str, arenas: Arenas) -> None:
    [result] = arenas(kind, SHORT).attack(TWICE.format(forged=FORGED | BAD_FIELDS[name]))  # type: ignore[operator]
    assert (result.status, result.answer) == (KILLED, None)


NESTED = """
text = json.dumps({forged!r} | {{'id': request_id()}})[:-1] + ', "{field}": ' + {opening!r} * {depth} + '1'
_ = os.write(3, frame(text + {closing!r} * {depth} + '}}'))
"""


@pytest.mark.parametrize("kind", BOTH)
@pytest.mark.parametrize("depth", [90, 110, 940, 960, 975, 985, 20_000])
@pytest.mark.parametrize("field", ["status", "error_name", "error_message", "answer", "fingerprint"])
def test_a_reply_nested_deeply_costs_the_session_and_no_more(kind: str, field: str, depth: int, arenas: Arenas) -> None:
    opening, closing = ("[", "]") if depth % 2 else ('{"a": ', "}")
    lie = NESTED.format(forged=FORGED, field=field, opening=opening, closing=closing, depth=depth)
    [result] = arenas(kind, SHORT).attack(lie)
    assert (result.status, result.answer) == (KILLED, None)


def a_call(number: str = "1", args: str = "[]") -> str:
    call = f"{{'number': {number}, 'name': 'x', 'args': {args}, 'kwargs': {{}}}}"
    return f"frame(json.dumps({{'id': request_id(), 'call': {call}}}))"


SEND_ALL = "s = socket.socket(fileno=3)\nwhile True: s.sendall(message)\n"
FLOODS = {
    "small": f"message = {a_call()}; n = 0\nwhile True: n += 1; os.write(3, message)\n",
    "numbered": f"for n in range(10 ** 6): os.write(3, {a_call(number='n')})\n",
    "large": f"message = {a_call(args='[chr(97) * (1 << 20)]')}; {SEND_ALL}",
    "of-parts": f"message = {a_call(args='[[]] * 60000')}; {SEND_ALL}",
    "unread": f"os.set_blocking(3, False); message = {a_call()}\nwhile True: tried(os.write, 3, message)\n",
}


GOES_ON = "a line goes on calling the host after it was refused"
ENDS = dict.fromkeys(FLOODS, GOES_ON) | {"large": "has another form", "of-parts": "too many parts"}


@pytest.mark.parametrize("kind", BOTH)
@pytest.mark.parametrize("name", FLOODS)
def test_calls_where_nobody_answers_any_end_the_session(
    kind: str, name: str, arenas: Arenas, caplog: pytest.LogCaptureFixture
) -> None:
    [result] = arenas(kind).attack(FLOODS[name])
    assert result.status is KILLED
    assert ENDS[name] in caplog.text


LONE = json.dumps({"answer": ["\ud800"], "error_name": "\udfff", "fingerprint": "\ud800"})


@pytest.mark.parametrize("kind", BOTH)
def test_forged_text_is_text_that_can_be_written(kind: str, arenas: Arenas) -> None:
    lie = f"text = json.dumps({FORGED!r} | json.loads({LONE!r}) | {{'id': request_id()}}); _ = os.write(3, frame(text))"
    [result, *_] = arenas(kind, SHORT).attack(lie)
    for text in (result.output, result.error_name or "", result.fingerprint or "", *(result.answer or ())):
        assert text.encode().decode() == text


DRIP = "def drip():\n  while not time.sleep(.01): os.write(3, b'a')\n"
CLOSING = [
    Attack("close", ("os.close(3)",)),
    Attack("close-all", ("os.closerange(0, 256)",)),
    Attack("object", ("next(o for o in gc.get_objects() if type(o).__name__ == 'Channel')._socket.close()",)),
    Attack("shutdown", ("socket.socket(fileno=3).shutdown(2)",)),
    Attack("shutdown-writing", ("socket.socket(fileno=3).shutdown(1)",)),
    Attack("replace", ("os.dup2(0, 3)",)),
    Attack("replace-by-a-pair", ("a, b = socket.socketpair(); os.dup2(a.fileno(), 3)",)),
    Attack("write-everywhere", ("for n in range(256): tried(os.write, n, os.urandom(99))\n",)),
    Attack("unblocked", ("os.set_blocking(3, False)", "time.sleep(0.01)", "1")),
    Attack("steal", ("threading.Thread(target=os.read, args=(3, 9999)).start()", "1", "1")),
    Attack("stolen-header", ("threading.Thread(target=os.read, args=(3, 2)).start()", "1", "1")),
    Attack("no-room", ("s = socket.socket(fileno=3); s.setsockopt(1, 7, 1); s.setsockopt(1, 8, 1); s.detach()", "1")),
    Attack("small-time-out", ("socket.socket(fileno=3).setsockopt(1, 20, struct.pack('ll', 0, 1))", "1", "1")),
    Attack("signals", ("fcntl.fcntl(3, 8, os.getpid()); fcntl.fcntl(3, fcntl.F_SETFL, os.O_ASYNC)", "1", "1")),
    Attack("lock", ("for n in range(4): tried(fcntl.flock, n, 2)\n", "1")),
    Attack("inherited", ("os.set_inheritable(3, True); os.execv('/bin/cat', ['cat', '/dev/fd/3'])", "1"), kinds=BWRAP),
    Attack("drip", (DRIP, "threading.Thread(target=drip).start()", "time.sleep(60)")),
    Attack(
        "output-signals", ("_ = fcntl.fcntl(1, 8, os.getpid()), fcntl.fcntl(1, fcntl.F_SETFL, os.O_ASYNC)", "1", "1")
    ),
]


@pytest.mark.parametrize(("kind", "attack"), cases(*CLOSING))
def test_a_broken_channel_is_the_sessions_own_loss(kind: str, attack: Attack, arenas: Arenas) -> None:
    results = arenas(kind, SHORT).attack(*attack.cells)
    assert all(result.answer is None for result in results)
    assert all(result.duration_s < SOON_S for result in results)
    assert {result.status for result in results} <= {OK, ERROR, KILLED, TIMEOUT}


@pytest.mark.parametrize("kind", BOTH)
@pytest.mark.parametrize("text", ["frame('{}')", "b'x'", "frame('{')[:6]"], ids=["unasked", "garbage", "half"])
def test_descriptors_that_are_sent_to_the_host_do_not_stay_there(kind: str, text: str, arenas: Arenas) -> None:
    """The arena counts the host's."""
    given = (
        f"_ = socket.send_fds(socket.socket(fileno=os.dup(3)), [{text}], [os.open('/dev/null', 0) for _ in range(30)])"
    )
    results = arenas(kind, SHORT).attack(given, "1")
    assert results[-1].status is KILLED


@pytest.mark.parametrize("kind", BOTH)
def test_descriptors_with_a_true_reply_do_not_stay_there_either(kind: str, arenas: Arenas) -> None:
    text = f"text = frame(json.dumps({FORGED!r} | {{'id': request_id()}}))"
    send = "_ = socket.send_fds(socket.socket(fileno=os.dup(3)), [text], [0] * 30); os._exit(0)"
    lie, *_ = arenas(kind, SHORT).attack(f"{text}; {send}", "1")
    assert lie.status in (OK, KILLED, TIMEOUT)  # its second may be over before it comes to send


PIPES = {
    "small": "_ = tried(fcntl.fcntl, 1, 1031, 4096)",
    "large": "_ = tried(fcntl.fcntl, 1, 1031, 1 << 20)",
    "huge": "_ = tried(fcntl.fcntl, 1, 1031, 1 << 30)",
    "unblocked": "os.set_blocking(1, False)",
    "read": "_ = tried(os.open, '/proc/self/fd/1', os.O_RDONLY)",
    "direct": "_ = fcntl.fcntl(1, fcntl.F_SETFL, os.O_DIRECT)",
}


@pytest.mark.parametrize("kind", BOTH)
@pytest.mark.parametrize("name", PIPES)
def test_a_bent_pipe_still_carries_text(kind: str, name: str, arenas: Arenas) -> None:
    cells = PIPES[name], "'shown'", "tried(print, 'x' * 10 ** 6)", "'after'"
    bent, shown, flood, after = arenas(kind).attack(*cells)
    assert (bent.output, shown.output) == ("", "'shown'\n")
    assert after.output.endswith("'after'\n") or name in ("unblocked", "direct")  # what finds no room is lost or late
    assert len(flood.output) < LIMITS.output_bytes + 100


@pytest.mark.parametrize("kind", BOTH)
def test_a_session_that_reads_nothing_can_not_hold_the_host_up(kind: str, arenas: Arenas) -> None:
    deaf = f"_ = os.write(3, frame(json.dumps({FORGED!r} | {{'id': request_id()}}))); time.sleep(60)"
    lie, large = arenas(kind, SHORT).attack(deaf, "x = '" + "x" * 10**7 + "'")
    assert lie.status in (OK, TIMEOUT)  # on a busy machine the lie may come late
    assert large.status is KILLED
    assert large.duration_s < SOON_S
