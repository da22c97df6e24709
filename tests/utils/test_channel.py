"""Messages between two processes: however the bytes come apart, and in which order they go out."""

import asyncio
import socket
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from repl_rl.utils.channel import Channel, Frames, frame

MESSAGES = st.one_of(st.integers(), st.text(), st.binary(), st.tuples(st.integers(), st.text()))


@given(st.lists(st.lists(MESSAGES, max_size=4), max_size=6), st.data())
def test_messages_come_out_whole_and_in_order_however_the_bytes_are_cut(frames: list[list[Any]], data: Any) -> None:
    stream = b"".join(frame(messages) for messages in frames)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=12)))
    reader = Frames()
    received: list[Any] = []
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        received += reader.feed(stream[start:end])
    assert received == [message for messages in frames for message in messages]


class End:
    """A channel, what came in at it, and whether it has ended."""

    def __init__(self) -> None:
        self.received: list[Any] = []
        self.ended = asyncio.Event()
        self._came = asyncio.Event()

    async def open(self, end: socket.socket) -> Channel:
        return await Channel.open(end, self._take, self.ended.set)

    async def has(self, count: int) -> list[Any]:
        while len(self.received) < count:
            self._came.clear()
            await self._came.wait()
        return self.received

    def _take(self, message: Any) -> None:
        self.received.append(message)
        self._came.set()


async def test_what_is_sent_in_one_turn_goes_out_in_one_frame() -> None:
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    with theirs:
        channel = await End().open(ours)
        for message in "abc":
            channel.send(message)
        await asyncio.sleep(0)
        channel.send("d")
        loop = asyncio.get_running_loop()
        assert await loop.sock_recv(theirs, 4096) == frame(["a", "b", "c"])
        assert await loop.sock_recv(theirs, 4096) == frame(["d"])
        channel.close()


async def test_messages_arrive_in_the_order_of_sending_in_both_directions() -> None:
    ours, theirs = socket.socketpair()
    here, there = End(), End()
    one, other = await here.open(ours), await there.open(theirs)
    for number in range(200):
        one.send(number)
        other.send((number, b"x" * 5000))
        if number % 7 == 0:
            await asyncio.sleep(0)
        if number % 50 == 0:
            one.flush()
    assert await there.has(200) == list(range(200))
    assert await here.has(200) == [(number, b"x" * 5000) for number in range(200)]
    one.close()
    other.close()
    await here.ended.wait()
    await there.ended.wait()


async def test_closing_sends_what_waits_and_the_other_end_hears_of_it() -> None:
    ours, theirs = socket.socketpair()
    here, there = End(), End()
    one, other = await here.open(ours), await there.open(theirs)
    one.send("last")
    one.close()
    await there.ended.wait()
    assert there.received == ["last"]
    other.send("to nobody")
    other.close()
    await here.ended.wait()
    assert here.received == []
