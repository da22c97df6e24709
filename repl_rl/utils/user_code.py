"""The boundary around code of users: whatever it raises becomes one error, which says whose code failed, and where.

    with boundary(Seam.GRADER, grader, where=f"on task {task.id!r}"):
        result = grader(task, answer)

    repl_rl.errors.RewardError: grader 'my_graders:near' raised KeyError: 'unit' (my_graders.py:12, on task 'a-7'); it
    has to be (task, answer) -> float, ...

The user's own exception, with its traceback, is the error's `__cause__`. `Seam` lists the places where users' code is
called. A boundary holds around an `await` as well.

Three things pass unchanged. KeyboardInterrupt, SystemExit and a cancelled task end more than a call. A ReplRLError says
already what is wrong. And an exception of this package's own code, which goes through the same places (a shipped
dialect, a shipped guest), is a bug of this package: its traceback is what helps.

Not covered, because a failure there is an answer and not an error: tools on the host and `HostCalls`, whose exceptions
are raised again in the session (`repl_rl.tools.calls`), and a chat template's refusal, which is text of a model
(`repl_rl.engine.vocabulary`). Modules that can't be imported have messages of their own (`repl_rl.utils.import_path`).
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import Enum
from functools import partial
from inspect import isroutine, unwrap
from typing import Any, ParamSpec, TypeVar

from repl_rl.errors import (
    EnvironmentFailure,
    ExtensionConfigError,
    ExtensionEngineError,
    ExtensionError,
    ReplRLError,
    RewardError,
)
from repl_rl.utils.import_path import import_path_of, place_in, place_of
from repl_rl.utils.text import cut_middle, whole

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")

_PACKAGE = __name__.partition(".")[0]
_MESSAGE_CHARS = 2000


class Seam(Enum):
    """A kind of code that users hand in: what messages call it, what is expected of it, and the error if it fails."""

    LINE_REWARD = (
        "reward function",
        "it has to be (trajectory) -> list[float], one number per line, 0.0 where it has nothing to say",
        RewardError,
    )
    BATCH_REWARD = (
        "reward function",
        "it has to return a list with a finite number, or None, for each completion",
        RewardError,
    )
    """A reward function of TRL's kind."""
    TURN_VALUES = (
        "function of turns",
        "it has to return a list for each completion, with a value for each turn: a number as its reward, a text or "
        "None as its state",
        RewardError,
    )
    """What `TurnCredit` asks about turns in TRL's trainer."""
    GRADER = (
        "grader",
        "it has to be (task, answer) -> float, or -> (float, reason), where answer is a tuple of texts, or None "
        "without a submission",
        RewardError,
    )
    ESTIMATOR = (
        "credit.estimator",
        "it has to return one finite number per line of each trajectory",
        RewardError,
    )
    MASK = ("train.mask.function", "it has to be (trajectory) -> bool", RewardError)
    FORK_RULE = ("branch.at", "it has to say where the roots of its group fork, as ForkRule does", ExtensionError)
    GUEST = ("guest", "its methods have to return what those of Guest do", ExtensionError)
    LISTENER = ("listener", "it has to take each event of a session", ExtensionError)
    SAMPLER = (
        "rollout",
        "it has to return a list with one trajectory for each task, in the order of the tasks",
        ExtensionConfigError,
    )
    ENGINE_MAKER = (
        "engine.backend",
        "it has to return an engine, with version, slot and close (docs/engines.md)",
        ExtensionConfigError,
    )
    ENGINE = ("engine", "it has to do what repl_rl.engine.Engine says (docs/engines.md)", ExtensionEngineError)
    KERNELS = ("wrap_kernels", "it has to take a pool and return what sessions are taken from", ExtensionError)
    DIALECT = ("dialect", "it has to do what repl_rl.dialect.Dialect says", ExtensionError)
    ENVIRONMENT_FACTORY = (
        "environment",
        "it has to be a class, a function without arguments that makes an environment, or an object that can be copied",
        ExtensionConfigError,
    )
    ENVIRONMENT_CHECK = ("environment", "its check has to return for tasks that it can take", ExtensionConfigError)
    ENVIRONMENT = ("environment", "its methods have to do what docs/tools.md says", EnvironmentFailure)
    BEGINNING = (
        "tasks.families: environment",
        "it has to begin, for its problems to be told apart; or say what a problem is with Family(identity=...), from "
        "the operands",
        ExtensionConfigError,
    )
    """The environment of a family, which is begun to see what its problems are."""
    FAMILY_MAKER = ("tasks.families:", "it has to return a repl_rl.tasks.Family", ExtensionConfigError)
    FAMILY = ("tasks.families:", "it has to do what repl_rl.tasks.Family says of it", ExtensionError)
    """One of the functions of a family."""
    TRACKER = ("tracker", "it has to take the events of a TrainerCallback", ExtensionError)

    def __init__(self, label: str, expects: str, error: type[ReplRLError]) -> None:
        self.label = label
        self.expects = expects
        """One sentence, for whoever wrote the code."""
        self.error = error


@contextmanager
def boundary(
    seam: Seam,
    code: Any,
    method: str = "",
    *,
    where: str = "",
    catches: type[BaseException] | tuple[type[BaseException], ...] = Exception,
    through: tuple[type[BaseException], ...] | None = None,
) -> Iterator[None]:
    """Turn what `code` raises in the block into the seam's error (see `failure`).

    `catches` may add SystemExit, where the code runs in a thread of its own: there it would end nothing but the thread.
    `through` is all that passes, if it is given.
    """
    try:
        yield
    except catches as error:
        is_through = isinstance(error, ReplRLError) or is_shipped(code)
        if through is not None:
            is_through = isinstance(error, through)
        if is_through:
            raise
        raise failure(seam, code, error, method, where=where) from error


def called(
    seam: Seam, function: Callable[Parameters, Result], *args: Parameters.args, **kwargs: Parameters.kwargs
) -> Result:
    """What the user's function returns for these arguments."""
    with boundary(seam, function):
        return function(*args, **kwargs)


def failure(
    seam: Seam,
    code: Any,
    what: BaseException | str,
    method: str = "",
    *,
    where: str = "",
    error: type[ReplRLError] | None = None,
) -> ReplRLError:
    """The error for what `code` has raised, or for what it did instead of what the seam expects (`returned None`).

    `code` is a function, a class, or an object, of which `method` was called; `where` adds what it was called for. The
    message names the line that raised, or the one where the code is defined. `error` replaces the seam's error.
    """
    name = name_of_code(code)
    if method:
        name += f".{method}"
    if isinstance(what, BaseException):
        place = place_of(what) or defined_at(code)
        what = f"raised {described(what)}"
    else:
        place = defined_at(code)
    details = ", ".join(filter(None, (place, where)))
    if details:
        details = f" ({details})"
    kind = error or seam.error
    return kind(f"{seam.label} {name!r} {what}{details}; {seam.expects}")


def described(error: BaseException) -> str:
    """An exception in words: its class, and what it says."""
    name = type(error).__name__
    message = message_of(error)
    return whole(f"{name}: {message}" if message else name)


def message_of(error: BaseException) -> str:
    """What an exception says, with its middle left out if it is long; "" if its own `__str__` fails."""
    try:
        return cut_middle(str(error), _MESSAGE_CHARS, " ... {} characters left out ... ")
    except Exception:  # noqa: BLE001 - it may raise anything
        return ""


def name_of_code(code: Any) -> str:
    """`module:qualname` of a function or a class, or of the class of an object."""
    return import_path_of(_definition(code))


def defined_at(code: Any) -> str:
    """Where a function or a class of the user's is defined, as `file.py:15`; "" if that is not known."""
    definition = _definition(code)
    if isinstance(definition, type):
        # A class does not know its line. Its first method is near it.
        methods = [value for value in vars(definition).values() if hasattr(value, "__code__")]
        definition = methods[0] if methods else None
    source = getattr(unwrap(definition), "__code__", None)
    return "" if source is None else place_in(source.co_filename, source.co_firstlineno)


def is_shipped(code: Any) -> bool:
    """Whether code is this package's own."""
    return name_of_code(code).startswith((f"{_PACKAGE}.", f"{_PACKAGE}:"))


def _definition(code: Any) -> Any:
    """The function or the class, of a partial object what it stands around."""
    while isinstance(code, partial):
        code = code.func
    return code if isinstance(code, type) or isroutine(code) else type(code)
