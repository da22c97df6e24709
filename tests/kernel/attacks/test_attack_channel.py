"""Attacks on the private channel: forged, broken and unasked-for replies cost their own session, and never more."""

import json

import pytest
from kernel.attacks.arena import BOTH, KILLED, LIMITS, OK, SHORT, SOON_S, TIMEOUT, WAYS, Attack, cases, some
from kernel.attacks.conftest import Arenas, TryOut

from repl_rl.kernel.sandbox import SandboxKind


@pytest.mark.parametrize(("kind", "attack"), cases("channel"))
def test_what_is_sent_costs_its_own_session_alone(kind: SandboxKind, attack: Attack, try_out: TryOut) -> None:
    try_out(kind, attack)


NESTED = """
text = forged(id=request_id())[4:-1].decode() + ', "{field}": ' + {opening!r} * {depth} + '1'
send(frame(text + {closing!r} * {depth} + '}}'))
"""


@pytest.mark.more
@pytest.mark.parametrize("kind", BOTH)
@pytest.mark.parametrize("depth", [90, 110, 940, 960, 975, 985, 20_000])
@pytest.mark.parametrize("field", ["status", "error_name", "error_message", "answer", "fingerprint"])
def test_a_reply_nested_deeply_costs_the_session_and_no_more(kind: str, field: str, depth: int, arenas: Arenas) -> None:
    opening, closing = ("[", "]") if depth % 2 else ('{"a": ', "}")
    lie = NESTED.format(field=field, opening=opening, closing=closing, depth=depth)
    [result] = arenas(kind, SHORT).attack(lie, in_time=True)
    assert (result.status, result.answer) == (KILLED, None)


LONE = json.dumps({"answer": ["\ud800"], "error_name": "\udfff", "fingerprint": "\ud800"})


@pytest.mark.parametrize("kind", BOTH)
def test_forged_text_is_text_that_can_be_written(kind: str, arenas: Arenas) -> None:
    lie = f"send(forged(id=request_id(), **json.loads({LONE!r})))"
    [result, *_] = arenas(kind, SHORT).attack(lie)
    for text in (result.output, result.error_name or "", result.fingerprint or "", *(result.answer or ())):
        assert text.encode().decode() == text


PIPES = WAYS["pipes"]


@pytest.mark.parametrize("kind", BOTH)
@pytest.mark.parametrize("name", some(PIPES))
def test_a_bent_pipe_still_carries_text(kind: str, name: str, arenas: Arenas) -> None:
    cells = PIPES[name], "'shown'", "tried(print, 'x' * 10 ** 6)", "'after'"
    bent, shown, flood, after = arenas(kind).attack(*cells)
    assert (bent.output, shown.output) == ("", "'shown'\n")
    assert after.output.endswith("'after'\n") or name in ("unblocked", "direct")  # what finds no room is lost or late
    assert len(flood.output) < LIMITS.output_bytes + 100


@pytest.mark.more
@pytest.mark.parametrize("kind", BOTH)
def test_a_session_that_reads_nothing_can_not_hold_the_host_up(kind: str, arenas: Arenas) -> None:
    lie, large = arenas(kind, SHORT).attack(
        "send(forged(id=request_id())); time.sleep(60)", "x = '" + "x" * 10**7 + "'"
    )
    assert lie.status in (OK, TIMEOUT)  # on a busy machine the lie may come late
    assert large.status is KILLED
    assert large.duration_s < SOON_S
