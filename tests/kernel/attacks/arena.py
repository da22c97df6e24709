"""Where attacks take place: a pool under small limits, a sibling session with state, and a host that is counted.

`Arena.attack` runs what a hostile model might type in a fresh session, and looks that its processes end with it. After
every batch of attacks the arena looks whether everybody else is well: the sibling still has its state and answers, the
next session is fresh and answers, the same fork server serves, and on the host nothing is left: no process, no file, no
mount, no descriptor. Where others on the machine may be to blame, the batch runs once more in a new pool, and has to do
no harm then. An attack's evidence is for its test to check.

Most attacks are data, in the YAML files beside: groups of named attacks. An attack is one cell or a list of cells, or a
mapping that has these under `type`. The keys of a group hold for all of its attacks, and an attack may have its own:

    then           cells that are typed after those of the attack
    sandbox        the only kind of sandbox that it is meant for
    limits         usual, short or gentle
    status         how the last cell ends, one or several; ok if nothing is said
    output         a pattern for all that the last cell shows; `text` is the exact text that the first one shows
    error          the name of its exception, one or several
    answer         what it hands in; "any" if that does not matter, and nothing if nothing is said
    first          the same five for the first cell
    soon           whether each cell ends long before its time
    log            what the host's log says then
    next_session   an expression that shows (True, True) in the session after it

Names with a dollar are filled in by `values`: the numbers of system calls, and what is different on each host.

With ATTACK_FROM_FORKS in the environment, each attack is typed into a fork of a session, and the session has to be well
afterwards too.
"""

from __future__ import annotations

import os
import re
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from string import Template
from typing import Any

import pytest
import yaml
from kernel.conftest import LIMITS as OURS
from kernel.system_calls import NUMBERS

import repl_rl
from repl_rl.kernel import ExecResult, ExecStatus, KernelPool, Limits
from repl_rl.kernel.paths import Installation
from repl_rl.kernel.pool import PooledKernel
from repl_rl.kernel.processes import tree
from repl_rl.kernel.sandbox import SandboxKind
from repl_rl.utils.threads import BackgroundLoop

CHECKOUT = Path(repl_rl.__file__).resolve().parent.parent
FROM_FORKS = "ATTACK_FROM_FORKS" in os.environ
MARK = f"attack-{os.getpid()}"
"""Names that attacks give to what they try to leave behind."""
SECRET = "s3cret-of-the-host"
DISGUISED_SECRET = bytes(byte ^ 0x55 for byte in SECRET.encode())
"""What is searched for must not be in memory because it is searched for."""
LIMITS = replace(OURS, line_s=30.0, grace_s=5.0, memory_mb=128, read_mb=2)
SHORT = replace(LIMITS, line_s=1.0, line_wall_s=1.2, grace_s=0.5)
"""For attacks that end only because their time does."""
GENTLE = replace(SHORT, grace_s=LIMITS.grace_s)
"""For those that end with the interrupt, however long a busy machine takes over it."""
BY_NAME = {"usual": LIMITS, "short": SHORT, "gentle": GENTLE}
SOON_S = 25.0
"""How long a line under `SHORT` takes at most on a busy machine; what attacks wait for takes a minute."""
BWRAP: tuple[SandboxKind, ...] = ("bwrap",)
SANDLOCK: tuple[SandboxKind, ...] = ("sandlock",)
BOTH = BWRAP + SANDLOCK
OK, ERROR, TIMEOUT, KILLED = ExecStatus.OK, ExecStatus.ERROR, ExecStatus.TIMEOUT, ExecStatus.KILLED

TOOLS = Path(__file__).with_name("tools.txt").read_text().replace("MARK", repr(MARK))
"""What attacks are written with: `tried` and `c` give a result or the name of what went wrong."""

GONE = "'(ENOENT|EACCES|EPERM|EROFS|ENOTDIR|ELOOP|EXDEV|ENXIO|ESRCH|EINVAL|ENOSYS|ENODEV|ETXTBSY|EISDIR)'"
"""How it looks, through `tried`, that something is not there or not to be had."""

WAYS = yaml.safe_load(Path(__file__).with_name("ways.yaml").read_text())
BATCH = 30
"""Attacks between two looks at the host."""
PATIENCE_S = 30.0
"""For what takes some milliseconds on a machine that has nothing else to do."""
ANY = "any"


def check(words: dict[str, Any], result: ExecResult) -> None:
    """That a result is as `words` say. Their pattern is for its output without white space around it."""
    assert result.status in _tuple(words.get("status", "ok")), result
    assert re.fullmatch(words.get("output", ".*"), result.output.strip(), re.DOTALL), result.output
    assert words.get("text", result.output) == result.output
    assert "error" not in words or result.error_name in _tuple(words["error"]), result
    answer = words.get("answer")
    assert answer == ANY or result.answer == (None if answer is None else _tuple(answer))


@dataclass(frozen=True, slots=True)
class Attack:
    """`cells` are typed into one session, up to the one that loses its state."""

    name: str
    cells: tuple[str, ...]
    kinds: tuple[SandboxKind, ...]
    limits: str
    first: dict[str, Any] | None
    last: dict[str, Any]
    is_soon_over: bool
    log: str
    next_session: str

    @property
    def times_out(self) -> bool:
        """Whether one of its lines may."""
        return any(TIMEOUT in _tuple(each.get("status", ())) for each in (self.first or {}, self.last))

    def check(self, results: list[ExecResult]) -> None:
        if self.first is not None:
            check(self.first, results[0])
        check(self.last, results[-1])
        assert self.last.get("answer") == ANY or all(result.answer is None for result in results[1:-1])
        for result in results:
            assert result.status is not ExecStatus.INCOMPLETE
            assert len(result.output) < LIMITS.output_bytes + 100
            assert result.duration_s < SOON_S or not self.is_soon_over


def attacks(file: str) -> dict[str, list[Attack]]:
    """The attacks in a file beside, by their groups."""
    groups = yaml.safe_load(Path(__file__).with_name(f"{file}.yaml").read_text())
    return {group: list(_of_group(group, words)) for group, words in filled_in(groups, values()).items()}


def filled_in(words: Any, known: dict[str, object]) -> Any:
    if isinstance(words, dict):
        return {name: filled_in(word, known) for name, word in words.items()}
    if isinstance(words, list):
        return [filled_in(word, known) for word in words]
    return Template(words).safe_substitute(known) if isinstance(words, str) else words


def values() -> dict[str, object]:
    """What is filled in for names with a dollar."""
    return NUMBERS | {
        "checkout": CHECKOUT,
        "disguised_secret": DISGUISED_SECRET,
        "gone": GONE,
        "groups_of_the_host": set() if os.geteuid() == 0 else {*os.getgroups(), 1000, 65534},
        "home": Path.home(),
        "host_pid": os.getpid(),
        "secret": SECRET,
    }


def _of_group(group: str, of_all: dict[str, Any]) -> Iterator[Attack]:
    for name, own in of_all["attacks"].items():
        words = of_all | (own if isinstance(own, dict) else {"type": own})
        limits = words.get("limits", "usual")
        yield Attack(
            f"{group}-{name}",
            cells=_tuple(words["type"]) + _tuple(words.get("then", ())),
            kinds=(words["sandbox"],) if "sandbox" in words else BOTH,
            limits=limits,
            first=words.get("first"),
            last=words,
            is_soon_over=words.get("soon", limits != "usual"),
            log=words.get("log", ""),
            next_session=words.get("next_session", ""),
        )


def _tuple(words: Any) -> tuple[str, ...]:
    return (words,) if isinstance(words, str) else tuple(words)


def cases(file: str, only: str = "", without: str = "") -> list[object]:
    """Parameters (kind, attack) for the attacks in a file, each once for each kind of sandbox that it is meant for.

    Of each group, `make test` tries the first attack alone.
    """
    return [
        pytest.param(kind, attack, id=f"{kind}-{attack.name}", marks=[pytest.mark.more] * (attack is not group[0]))
        for name, group in attacks(file).items()
        for attack in group
        for kind in attack.kinds
        if name != without and only in (name, "")
    ]


def some(names: Iterable[str]) -> list[object]:
    """Parameters: the first for `make test`, the others for `make test-more`."""
    return [pytest.param(name, marks=[pytest.mark.more] * (number > 0)) for number, name in enumerate(names)]


@dataclass(frozen=True, slots=True)
class Host:
    """What attacks must leave as it was."""

    descriptors: Counter[str]
    """How many of each kind: a file by its path, others without their numbers (`socket:[]`)."""
    counts: tuple[int, ...]
    """Of descriptors, of the server's processes, of mounts, and of folders of sessions."""
    marked: tuple[str, ...]

    def holds_more_than(self, before: Host) -> bool:
        """Less is no harm: what ends by itself may have been there when it was counted first."""
        is_more = any(now > then for now, then in zip(self.counts, before.counts, strict=True))
        return is_more or self.marked != before.marked


_MOST_SESSIONS = 10
"""Tried until one is ready in the time that a line has."""


class DoubtfulError(AssertionError):
    """An honest line has lost to its time, or this process holds more. An attack may have done that, or others here."""


_OPEN: list[Arena] = []


class Arena:
    def __init__(
        self, loop: BackgroundLoop, kind: SandboxKind, limits: Limits = LIMITS, profile: str = "default"
    ) -> None:
        self.loop = loop
        self._kind, self._limits, self._profile = kind, limits, profile
        self._batch: list[tuple[str, ...]] = []
        self._before: Host | None = None
        self._open()

    def _open(self) -> None:
        self.pool = KernelPool(size=3, limits=self._limits, sandbox=self._kind, profile=self._profile)
        self.loop.run(self.pool.__aenter__())
        _OPEN.append(self)
        for _ in range(_MOST_SESSIONS):
            self._sibling_session = self.pool.session()
            self.sibling = self.loop.run(self._sibling_session.__aenter__())
            if self.loop.run(self.sibling.execute("held = 'kept'")).status is OK:
                self.server_pid = self._current_server_pid()
                return
            self.loop.run(self._sibling_session.__aexit__(None, None, None))  # a busy machine, under `SHORT`
        raise AssertionError("no sibling could be got ready")

    def close(self) -> None:
        _OPEN.remove(self)
        self.loop.run(self._sibling_session.__aexit__(None, None, None))
        self.loop.run(self.pool.__aexit__(None, None, None))

    def attack(self, *cells: str, in_time: bool = False) -> list[ExecResult]:
        """The results of `cells`, typed into one session up to the one that loses the state.

        With `in_time`, a line that times out has come too late, on a busy machine, and all begins again.
        """
        self._batch.append(cells)
        for _ in range(_MOST_SESSIONS):
            results, pids = self.loop.run(self._typed(cells))
            assert _still_there(pids) == []
            if not in_time or all(result.status is not TIMEOUT for result in results):
                break
        return results

    def begin(self) -> None:
        """Before a test: keep what the host looks like, unless a batch is under way."""
        self._before = self._before or self._calm_host()

    def end(self, most: int) -> None:
        """After a test: assert that the batch has done no harm, if it has `most` attacks or more.

        If the file's last test has ended a batch, nothing has run since.
        """
        if self._before is None or len(self._batch) < most:
            return
        batch, self._batch = self._batch, []
        before, self._before = self._before, None
        try:
            try:
                self._assert_well(before)
            except DoubtfulError:
                self.close()
                self._open()
                before = self._calm_host()
                for cells in batch:
                    self.attack(*cells)
                self._batch = []
                self._assert_well(before)
        except AssertionError as error:
            error.add_note("it was one of these attacks:\n" + "\n".join(map(str, batch)))
            raise

    def fresh(self, *cells: str) -> list[ExecResult]:
        """The results of `cells` in the next session."""
        return self.loop.run(self._typed(cells))[0]

    async def _typed(self, cells: tuple[str, ...]) -> tuple[list[ExecResult], list[int]]:
        tools = None
        for _ in range(_MOST_SESSIONS):
            async with self.pool.session() as kernel:
                tools = await kernel.execute(TOOLS)
                if tools.status in (TIMEOUT, KILLED):  # a busy machine: the attack has not begun, so begin again
                    continue
                assert tools.status is OK, tools
                if not FROM_FORKS:
                    return await _typed_into(kernel, cells)
                async with self.pool.fork(kernel) as fork:
                    found = await _typed_into(fork, cells)
                    told = await kernel.execute("mark")
                    assert (told.status, told.output) == (OK, f"{MARK!r}\n"), f"the attack reached its session: {told}"
                return found
        raise AssertionError(f"no session could be got ready: {tools}")

    def _assert_well(self, before: Host) -> None:
        held = self.loop.run(self.sibling.execute("held"))
        [answered] = self.fresh("submit_final_answer(6 * 7); 'held' in globals()")
        for honest in (held, answered):
            if honest.status in (TIMEOUT, KILLED) and honest.duration_s >= self._limits.line_s:
                raise DoubtfulError(f"an honest line took {honest.duration_s:.1f} s")
        assert (held.status, held.output) == (OK, "'kept'\n")
        assert (answered.status, answered.output, answered.answer) == (OK, "False\n", ("42",))
        assert self._current_server_pid() == self.server_pid
        deadline = time.monotonic() + PATIENCE_S
        while (after := self._host()).holds_more_than(before) and time.monotonic() < deadline:
            time.sleep(0.01)
        assert after.marked == before.marked
        if after.holds_more_than(before):
            new = dict(after.descriptors - before.descriptors)
            raise DoubtfulError(f"before: {before}, after: {after}, new descriptors: {new}")

    def _calm_host(self) -> Host:
        """Once what the last attack left behind has gone its way."""
        seen = [self._host()]
        while len(seen) < 3 or not seen[-3] == seen[-2] == seen[-1]:
            time.sleep(0.003)
            seen.append(self._host())
        return seen[-1]

    def _host(self) -> Host:
        self._wait_for_warm_ones()
        home = self.pool.backend.home  # type: ignore[attr-defined]
        folders = (Path("/tmp"), Path("/dev/shm"), Path("/"), CHECKOUT, Installation.current().prefix, Path.cwd())
        descriptors = Counter(map(_kind_of, os.listdir("/proc/self/fd")))
        mounts = Path("/proc/self/mountinfo").read_text().splitlines()
        found = descriptors.total(), len(descendants(self.server_pid)), len(mounts), len(list(home.sessions.iterdir()))
        marked = tuple(str(path) for folder in folders for path in folder.glob(f"*{MARK}*"))
        return Host(descriptors, found, marked)

    def _wait_for_warm_ones(self) -> None:
        """In all arenas: a session that starts anywhere has some of its descriptors."""
        deadline = time.monotonic() + PATIENCE_S
        while any(each.pool.stats.alive < each.pool.size or each.pool.stats.starting for each in _OPEN):
            assert time.monotonic() < deadline, "no warm sessions came up"
            time.sleep(0.002)

    def _current_server_pid(self) -> int:
        pid: int = self.pool.backend.server.pid  # type: ignore[attr-defined]
        return pid


def _kind_of(descriptor: str) -> str:
    try:
        return re.sub(r"(?<=\[)\d+(?=\]$)", "", os.readlink(f"/proc/self/fd/{descriptor}"))
    except OSError:  # the one that listed them, which is closed again
        return "closed"


async def _typed_into(kernel: PooledKernel, cells: tuple[str, ...]) -> tuple[list[ExecResult], list[int]]:
    pid = kernel.kernel.pid  # type: ignore[attr-defined]
    pids, results = [pid], list[ExecResult]()
    for cell in cells:
        results.append(await kernel.execute(cell))
        if results[-1].state_lost:
            break
        pids += descendants(pid)
    return results, pids


def _still_there(pids: list[int]) -> list[int]:
    """Those of `pids` that don't vanish in a moment."""
    deadline = time.monotonic() + PATIENCE_S
    while (there := [pid for pid in pids if Path(f"/proc/{pid}").exists()]) and time.monotonic() < deadline:
        time.sleep(0.005)
    return there


def descendants(pid: int) -> list[int]:
    return list(tree(pid))[1:]
