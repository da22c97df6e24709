"""Each place where code of users is called, called for real: what it raises, and what it returns besides the expected,
becomes one error that names the code, the line and what was expected, or ends its session alone."""

import ast
import asyncio
import inspect
import logging
import pickle
import re
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
from kernel_fakes import FakeKernelPool
from scripted import ScriptedEngine, rollout_of
from transformers.integrations.integration_utils import INTEGRATION_TO_CALLBACK
from vocabularies import nano

import repl_rl
from repl_rl.config import BranchConfig, BudgetConfig, Config, CreditConfig, DialectConfig, EngineConfig, ModelConfig
from repl_rl.config.train import MaskConfig
from repl_rl.credit import estimator_of
from repl_rl.dialect import CellRun, PythonDialect, PythonReader, Turn, make_dialect, require_dialect
from repl_rl.dialect.base import ChatPrompt, Shown
from repl_rl.engine import SampledLine, make_engine
from repl_rl.errors import BrokenStateError, ConfigError, ExtensionError, KernelError, ReplRLError
from repl_rl.integrations.trl_credit import per_turn
from repl_rl.kernel import HostCall, HostReply, KernelPool, Limits
from repl_rl.rewards import RewardTable, ScoredTrajectory
from repl_rl.rewards.functions import call_function
from repl_rl.rewards.table import PROBE
from repl_rl.rollout.batch import RolloutBatch
from repl_rl.rollout.episode import make_prompt
from repl_rl.rollout.execute import TurnResult
from repl_rl.rollout.guest import Guest
from repl_rl.rollout.score import graded_by
from repl_rl.rollout.setup import RolloutSetup
from repl_rl.rollout.tree import ForkRule, Root
from repl_rl.rollout.worker.program import as_sent
from repl_rl.run.folder import RunFolder
from repl_rl.run.trackers import Trackers
from repl_rl.tasks import Family
from repl_rl.tasks.identity import identity_of
from repl_rl.tasks.make import KNOWN, family_of, make_tasks
from repl_rl.tools import Toolbox, as_tools
from repl_rl.tools.environments import environment_factory
from repl_rl.trainer.mask import leaves_out
from repl_rl.trainer.reward_functions import asked_of_valid, try_functions
from repl_rl.trainer.weights import EngineGeneration
from repl_rl.trajectory import StopReason, Task, Trajectory
from repl_rl.utils.user_code import Seam, boundary, failure, name_of_code

PACKAGE = Path(repl_rl.__file__).parent
TASK = Task("t", "What?", "42")
LINES = [" x = 6\n", " submit_final_answer(42)\n"]


class Trouble(Exception):
    """What users' code raises here."""


class Nonsense:
    """What it returns, where no such thing is expected."""

    def __repr__(self) -> str:
        return "<nonsense>"


Act = Callable[[], Any]
ACTS: dict[str, Act] = {}
"""What the user's code does at the place that is tested. It works at all others."""


def raises() -> Any:
    raise Trouble("no unit")


def at(place: str, works: Act = lambda: None) -> Any:
    return ACTS.get(place, works)()


# Code of a user, at each place.


class MyDialect(PythonDialect):
    def __init__(self, config: Any = None, tools: Any = ()) -> None:
        at("dialect")
        super().__init__(config or DialectConfig(), tools)

    def reader(self) -> Any:
        at("reader")
        return MyReader(self)

    def chat_prompt(self, *args: Any) -> ChatPrompt:
        return at("chat_prompt", lambda: super(MyDialect, self).chat_prompt(*args))

    def completion_prompt(self, *args: Any) -> str:
        return at("completion_prompt", lambda: super(MyDialect, self).completion_prompt(*args))

    def plain_output(self, run: CellRun) -> str:
        return at("plain_output", lambda: super(MyDialect, self).plain_output(run))

    def summary(self, text: str) -> str:
        return at("summary", lambda: super(MyDialect, self).summary(text))

    def may_follow_summary(self, text: str) -> bool:
        return at("may_follow_summary", lambda: super(MyDialect, self).may_follow_summary(text))


class MyReader:
    def __init__(self, dialect: MyDialect) -> None:
        self._reader: Any = PythonDialect.reader(dialect)

    def begin_after(self, before: str) -> None:
        at("begin_after")

    def read(self, typed: bytes | str, end_of_input: bool = False) -> Turn:
        return at("read", lambda: self._reader.read(typed, end_of_input))

    def reading(self, typed: Any, end_of_input: bool, language: str) -> Any:
        return at("reading", lambda: self._reader.reading(typed, end_of_input, language))

    def show(self, runs: Sequence[CellRun], goes_on: bool) -> tuple[Shown, ...]:
        return at("show", lambda: self._reader.show(runs, goes_on))

    def flush(self) -> str:
        return at("flush", self._reader.flush)


class MyEngine(ScriptedEngine):
    @asynccontextmanager
    async def slot(self, tokens: int, depth: int = 0) -> AsyncIterator[Any]:
        at("slot")
        yield self

    async def sample_line(self, *args: Any) -> SampledLine:
        at("sample_line")
        return await super().sample_line(*args)

    def load_weights(self, weights: Any) -> None:
        at("load_weights")

    def load_adapter(self, save: Any) -> None:
        at("load_adapter")

    weights = None

    def adopt(self, weights: Any) -> None:
        at("adopt")

    def require_weight_updates(self) -> None: ...


class MyGuest(Guest):
    def __init__(self) -> None:
        at("guest")

    async def opened(self, session: Any) -> None:
        at("opened")

    async def ran(self, session: Any, turn: Turn, ran: TurnResult) -> TurnResult:
        return at("ran", lambda: ran)

    async def after_line(self, session: Any, line: Any) -> None:
        at("after_line")

    async def ended(self, session: Any, trajectory: Trajectory) -> Trajectory:
        return at("ended", lambda: trajectory)


class MyWorld:
    def __init__(self) -> None:
        at("make")

    def reset(self, task: Task) -> Any:
        return at("reset", dict)

    async def observe(self) -> Any:
        return at("observe", str)

    def reward(self, trajectory: Trajectory) -> Any:
        return at("reward", lambda: 1.0)

    def close(self) -> None:
        at("close")

    @staticmethod
    def check(task: Task) -> None:
        at("check")


class MyRule(ForkRule):
    def __init__(self, roots: Sequence[Root]) -> None:
        at("rule")
        super().__init__(roots)

    def is_due(self, root: Root) -> bool:
        return bool(at("is_due", lambda: False))

    def ended(self, root: Root, is_branch: bool, outcome: float | None) -> None:
        at("rule ended")
        super().ended(root, is_branch, outcome)


def listens(event: Any) -> None:
    at("listener")


def on_end(index: int, trajectory: Trajectory) -> None:
    at("on_end")


async def samples(tasks: Any, engine: Any, kernels: Any) -> Any:
    return at("sampler", list)


async def uses_engine(tasks: Any, engine: Any, kernels: Any) -> Any:
    async with engine.slot() as slot:
        await slot.sample_line([1], 1, engine.sampling)


def rewards_lines(trajectory: Trajectory) -> Any:
    return at("line reward")


async def rewards_lines_later(trajectory: Trajectory) -> Any:
    return at("line reward")


def rewards(**_: Any) -> Any:
    return at("batch reward")


async def rewards_later(**_: Any) -> Any:
    return at("batch reward")


def grades(task: Task, answer: Any) -> Any:
    return at("grader")


def estimates(group: Any, rewards: Any, config: Any) -> Any:
    return at("estimator")


def masks(trajectory: Trajectory) -> Any:
    return at("mask")


def wraps(pool: Any) -> Any:
    return at("wrap_kernels")


def makes_engine(*_: Any) -> Any:
    return at("engine maker")


def makes_world() -> Any:
    return at("factory")


def makes_family(number: int) -> Any:
    return at("family maker")


def draws(rng: Any) -> tuple[int, ...]:
    return at("draw", lambda: (rng.randrange(10**9),))


def presents(number: int) -> tuple[Any, ...]:
    return at("present", lambda: (number,))


def solves(number: int) -> str:
    return at("solve", lambda: str(number))


def makes_context(number: int) -> Any:
    return at("context")


def identifies(number: int) -> str:
    return at("identity", lambda: str(number))


FAMILY = Family("mine", draws, solves, ("{0}?",), presents)


async def answers(call: HostCall) -> HostReply:
    return at("host calls", lambda: HostReply("here"))


def finds(name: str) -> str:
    """Find it."""
    return at("tool", lambda: name)


class MyTracker:
    def on_log(self, *_: Any, **__: Any) -> None:
        at("tracker")


# How each is called.


class Here(NamedTuple):
    pool: KernelPool
    folder: Path
    monkeypatch: pytest.MonkeyPatch
    caplog: pytest.LogCaptureFixture


async def rolled_out(here: Here, branch: BranchConfig | None = None, **setup: Any) -> Trajectory:
    given: dict[str, Any] = {"dialect": MyDialect(), "guests": [MyGuest], "kernels": FakeKernelPool()} | setup
    rollout = rollout_of(given.pop("engine", None) or MyEngine(nano(), LINES), **given)
    batch = RolloutBatch([TASK] * (branch.group_size if branch else 1), branch=branch)
    [trajectory, *_], _ = await rollout.run(batch, on_end)
    return trajectory


async def in_world(here: Here) -> str:
    """What became of a session whose environment is the user's."""
    trajectory = await rolled_out(here, environment=MyWorld)
    logged = " ".join(here.caplog.messages)
    return f"{trajectory.stop_reason} {trajectory.environment_reward} {trajectory.error} {logged}"


async def listened(here: Here) -> None:
    rollout = rollout_of(MyEngine(nano(), LINES))
    async for _ in rollout.as_completed(RolloutBatch([TASK]), listens):
        pass


async def compacted(here: Here) -> Any:
    lines = [f" number_{count} = {count}\n" for count in range(80)] + LINES
    budget = BudgetConfig(compact_at=0.9, lines=100, tokens=5000, line_tokens=60, seconds=3600)
    return await rolled_out(here, engine=MyEngine(nano(), lines), context_tokens=400, budget=budget)


async def synced(here: Here, *, sends_adapter: bool = False) -> None:
    generation: Any = object.__new__(EngineGeneration)
    generation._engine = MyEngine(nano(), LINES)
    generation._sends_adapter = sends_adapter
    generation.accelerator = SimpleNamespace(is_main_process=True)
    generation._whole_adapter = dict
    generation.sync_weights()


async def tracked(here: Here) -> str:
    here.monkeypatch.setitem(INTEGRATION_TO_CALLBACK, "mine", MyTracker)
    trainer: Any = SimpleNamespace(
        args=SimpleNamespace(report_to=["mine"]),
        pop_callback=lambda kind: kind(),
        add_callback=lambda callback: None,
    )
    Trackers(trainer, Config(), RunFolder(here.folder)).on_log(logs={"loss": 1.0})
    return " ".join(here.caplog.messages)


async def called_from_session(here: Here, host: Any) -> str:
    async with here.pool.session() as kernel:
        await kernel.prepare(Toolbox(as_tools([finds], "host")).setup_source())
        result = await kernel.execute("finds('it')\n", host)
    return " ".join([result.output, *here.caplog.messages])


def own(name: str) -> str:
    return f"{__name__}:{name}"


ROLLED = rolled_out
SCORED = ScoredTrajectory(PROBE, {})
TRY = partial(try_functions, row={"prompt": "?"}, count=2, scored=SCORED, has_environment=False)
BRANCH = BranchConfig(roots=1, forks=1, branches=2, at=own("MyRule"), by="replay")


def estimated(here: Here) -> Any:
    credit = CreditConfig(estimator=own("estimates"))
    return estimator_of(credit)([PROBE], [[0.0] * 3], credit)


def engine_of(here: Here) -> Any:
    return make_engine("x", nano(), ModelConfig(), EngineConfig(backend=own("makes_engine")))


def wrapped(here: Here) -> Any:
    return RolloutSetup(nano(), context_tokens=9, wrap_kernels=wraps).kernels(here.pool)


def identified(here: Here, **more: Any) -> Any:
    return identity_of("m", Family("m", draws, solves, ("?",), **more), (1,))


def drawn(here: Here) -> Any:
    return make_tasks("mine", 1, 0, "train")


class Place(NamedTuple):
    seam: Seam
    code: str
    """What the message calls the user's code."""
    at: str
    call: Callable[[Here], Any]
    """May return an awaitable."""
    checks: str = ""
    """Begins what is said of nonsense, where the place looks at what is returned."""
    says: str = ""
    """What becomes of a session or a run that goes on: a pattern. Empty where an error ends it."""


PLACES = [
    Place(
        Seam.LINE_REWARD, "rewards_lines", "line reward", lambda _: call_function(rewards_lines, PROBE, 60), "returned"
    ),
    Place(
        Seam.LINE_REWARD,
        "rewards_lines_later",
        "line reward",
        lambda _: RewardTable(Config().rewards, [rewards_lines_later]),
        "returned",
    ),
    Place(Seam.BATCH_REWARD, "rewards", "batch reward", lambda _: TRY([rewards]), "returned"),
    Place(Seam.BATCH_REWARD, "rewards_later", "batch reward", lambda _: TRY([rewards_later]), "returned"),
    Place(Seam.BATCH_REWARD, "rewards", "batch reward", lambda _: asked_of_valid(rewards)(scored=[SCORED]), "returned"),
    Place(
        Seam.BATCH_REWARD,
        "rewards_later",
        "batch reward",
        lambda _: asked_of_valid(rewards_later)(scored=[SCORED]),
        "returned",
    ),
    Place(
        Seam.TURN_VALUES,
        "rewards",
        "batch reward",
        lambda _: per_turn(rewards, [[(0, 1)]], {}, float),
        "raised TypeError",
    ),
    Place(Seam.GRADER, "grades", "grader", lambda _: graded_by(grades, TASK, PROBE), "returned"),
    Place(Seam.ESTIMATOR, "estimates", "estimator", estimated, "raised TypeError"),
    Place(Seam.MASK, "masks", "mask", lambda _: leaves_out(MaskConfig(function=own("masks")))(PROBE)),
    Place(Seam.FORK_RULE, "MyRule", "rule", partial(ROLLED, branch=BRANCH)),
    Place(Seam.FORK_RULE, "MyRule.is_due", "is_due", partial(ROLLED, branch=BRANCH)),
    Place(Seam.FORK_RULE, "MyRule.ended", "rule ended", partial(ROLLED, branch=BRANCH)),
    Place(Seam.GUEST, "MyGuest", "guest", ROLLED),
    Place(Seam.GUEST, "MyGuest.opened", "opened", ROLLED),
    Place(Seam.GUEST, "MyGuest.ran", "ran", ROLLED, "returned"),
    Place(Seam.GUEST, "MyGuest.after_line", "after_line", ROLLED),
    Place(Seam.GUEST, "MyGuest.ended", "ended", ROLLED, "returned"),
    Place(Seam.LISTENER, "listens", "listener", listened),
    Place(Seam.LISTENER, "on_end", "on_end", ROLLED),
    Place(Seam.SAMPLER, "samples", "sampler", partial(ROLLED, guests=[], sampler=samples), "returned"),
    Place(Seam.ENGINE_MAKER, "makes_engine", "engine maker", engine_of, "returned"),
    Place(Seam.ENGINE, "MyEngine.slot", "slot", ROLLED),
    Place(Seam.ENGINE, "MyEngine.slot", "slot", partial(ROLLED, guests=[], sampler=uses_engine)),
    Place(Seam.ENGINE, "MyEngine.sample_line", "sample_line", ROLLED),
    Place(Seam.ENGINE, "MyEngine.load_weights", "load_weights", synced),
    Place(Seam.ENGINE, "MyEngine.load_adapter", "load_adapter", partial(synced, sends_adapter=True)),
    Place(Seam.ENGINE, "MyEngine.adopt", "adopt", synced),
    Place(Seam.KERNELS, "wraps", "wrap_kernels", wrapped),
    Place(Seam.DIALECT, "MyDialect", "dialect", lambda _: make_dialect(DialectConfig(name=own("MyDialect")))),
    Place(Seam.DIALECT, "MyDialect", "dialect", lambda _: require_dialect(DialectConfig(name=own("MyDialect")))),
    Place(Seam.DIALECT, "MyDialect.reader", "reader", ROLLED),
    Place(Seam.DIALECT, "MyDialect.chat_prompt", "chat_prompt", lambda _: make_prompt(MyDialect(), nano(), "?", True)),
    Place(Seam.DIALECT, "MyDialect.completion_prompt", "completion_prompt", ROLLED),
    Place(Seam.DIALECT, "MyDialect.plain_output", "plain_output", ROLLED),
    Place(Seam.DIALECT, "MyDialect.summary", "summary", compacted),
    Place(Seam.DIALECT, "MyDialect.may_follow_summary", "may_follow_summary", compacted),
    Place(Seam.DIALECT, "MyReader.begin_after", "begin_after", ROLLED),
    Place(Seam.DIALECT, "MyReader.read", "read", ROLLED),
    Place(Seam.DIALECT, "MyReader.show", "show", ROLLED),
    Place(Seam.DIALECT, "MyReader.flush", "flush", ROLLED),
    Place(Seam.ENVIRONMENT_FACTORY, "makes_world", "factory", lambda _: environment_factory(makes_world)),
    Place(Seam.ENVIRONMENT_CHECK, "MyWorld.check", "check", in_world),
    Place(Seam.ENVIRONMENT, "MyWorld.__init__", "make", in_world, says="aborted None EnvironmentFailure: "),
    Place(Seam.ENVIRONMENT, "MyWorld.reset", "reset", in_world, "returned", says="aborted None EnvironmentFailure: "),
    Place(Seam.ENVIRONMENT, "MyWorld.reward", "reward", in_world, "returned", says="answer 0.0 "),
    Place(
        Seam.ENVIRONMENT, "MyWorld.observe", "observe", in_world, "returned", says="aborted None EnvironmentFailure: "
    ),
    Place(Seam.ENVIRONMENT, "MyWorld.close", "close", in_world, says="answer 1.0 None "),
    Place(Seam.BEGINNING, "MyWorld", "reset", partial(identified, environment=own("MyWorld"))),
    Place(Seam.FAMILY_MAKER, "makes_family", "family maker", lambda _: family_of(own("makes_family-3")), "returned"),
    Place(Seam.FAMILY, "draws", "draw", drawn),
    Place(Seam.FAMILY, "presents", "present", drawn),
    Place(Seam.FAMILY, "solves", "solve", drawn),
    Place(Seam.FAMILY, "identifies", "identity", partial(identified, identity=identifies)),
    Place(Seam.FAMILY, "makes_context", "context", partial(identified, context=makes_context)),
    Place(Seam.TRACKER, "MyTracker.on_log", "tracker", tracked, says="the tracker mine failed, and training goes on"),
]


@pytest.fixture
def here(
    kernel_pools: Callable[..., KernelPool],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> Here:
    monkeypatch.setitem(KNOWN, "mine", FAMILY)
    monkeypatch.syspath_prepend(Path(__file__).parent)
    caplog.set_level(logging.WARNING, "repl_rl")
    return Here(kernel_pools(Limits(line_s=60), size=3), tmp_path, monkeypatch, caplog)


async def called(place: Place, here: Here) -> Any:
    result = place.call(here)
    return await result if inspect.isawaitable(result) else result


async def outcome(place: Place, act: Act, here: Here) -> str:
    """What the place says, by an error or otherwise."""
    here.monkeypatch.setitem(ACTS, place.at, act)
    if place.says:
        text = str(await called(place, here))
        assert re.match(place.says, text, re.DOTALL)
        return text
    with pytest.raises(place.seam.error) as caught:
        await called(place, here)
    assert isinstance(caught.value, ExtensionError)
    assert isinstance(caught.value.__cause__, Trouble) or act is not raises
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("place", PLACES, ids=lambda place: f"{place.seam.name}-{place.code}")
async def test_what_users_code_raises_names_it_the_line_and_what_was_expected(place: Place, here: Here) -> None:
    line = raises.__code__.co_firstlineno + 1
    text = await outcome(place, raises, here)
    named = f"{place.seam.label} '{own(place.code)}' raised Trouble: no unit ("
    assert named in text
    place_of_error = text.partition(named)[2]
    assert f"{Path(__file__).name}:{line}" in place_of_error.partition(")")[0]
    assert place.seam.expects in place_of_error


@pytest.mark.parametrize("place", [each for each in PLACES if each.checks], ids=lambda place: place.code)
async def test_nonsense_is_shown_with_what_was_expected(place: Place, here: Here) -> None:
    text = await outcome(place, Nonsense, here)
    assert f"{place.seam.label} '{own(place.code)}' {place.checks}" in text
    assert "onsense" in text
    assert place.seam.expects in text


async def test_without_trouble_all_of_it_works(here: Here) -> None:
    branched = await rolled_out(here, branch=BRANCH)
    assert (branched.stop_reason, branched.answer) == (StopReason.ANSWER, ("42",))
    assert await in_world(here) == "answer 1.0 None "
    assert await called_from_session(here, answers) == "'here'\n"


async def test_a_tool_on_the_host_answers_the_session_with_what_it_raised(here: Here) -> None:
    """In the words of the exception alone: files of the host are no business of the session's."""
    here.monkeypatch.setitem(ACTS, "tool", raises)
    text = await called_from_session(here, Toolbox(as_tools([finds], "host")).host_calls())
    assert text.rstrip().endswith("Trouble: no unit")
    assert Path(__file__).name not in text
    here.monkeypatch.setitem(ACTS, "host calls", raises)
    text = await called_from_session(here, answers)
    assert "Trouble: no unit\n a host tool, finds, failed outside of what it answers for" in text


def calls_in_the_package() -> set[tuple[str, str]]:
    """Seam and method of each call of the boundary."""
    found = set()
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            match node:
                case ast.Call(
                    func=ast.Name(id="boundary"),
                    args=[ast.Attribute(value=ast.Name(id="Seam"), attr=seam), _, ast.Constant(value=str(method))],
                ):
                    found.add((seam, method))
                case ast.Attribute(value=ast.Name(id="Seam"), attr=seam):
                    found.add((seam, ""))
    return found


def test_each_place_is_called_here() -> None:
    listed = {(place.seam.name, method) for place in PLACES for method in ("", place.code.partition(".")[2])}
    foreign = {("DIALECT", "reading")}  # for kernels of other languages, tests/rollout/test_foreign_rollouts.py
    assert calls_in_the_package() - foreign - listed == set()
    assert {place.seam for place in PLACES} == set(Seam)


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(3), asyncio.CancelledError(), ConfigError("mine")])
def test_what_ends_more_than_a_call_passes_and_so_do_errors_of_ours(error: BaseException) -> None:
    with pytest.raises(type(error)) as caught, boundary(Seam.GRADER, grades):
        raise error
    assert caught.value is error


async def test_a_bug_of_this_package_keeps_its_traceback(here: Here) -> None:
    def broken(*_: Any) -> Any:
        raise Trouble("ours")

    here.monkeypatch.setattr(PythonReader, "read", broken)
    with pytest.raises(Trouble, match="ours"):
        await rolled_out(here, dialect="python", guests=[])


def test_code_without_a_line_and_messages_that_fail_are_named_all_the_same() -> None:
    class Unsaid(Exception):
        def __str__(self) -> str:
            raise self

    assert name_of_code(partial(partial(len))) == "builtins:len"
    assert str(failure(Seam.MASK, len, Unsaid())).startswith("train.mask.function 'builtins:len' raised Unsaid; it has")
    assert isinstance(failure(Seam.ENVIRONMENT, MyWorld(), "was late", error=BrokenStateError), KernelError)


def test_the_users_traceback_goes_to_the_other_process() -> None:
    with pytest.raises(ReplRLError) as caught, boundary(Seam.GUEST, MyGuest, "opened"):
        raises()
    [note] = pickle.loads(pickle.dumps(as_sent(caught.value))).__notes__
    assert 'raise Trouble("no unit")' in note
