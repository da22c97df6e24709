"""A live interpreter for TRL's own `GRPOTrainer`, as an environment with one tool.

    trainer = GRPOTrainer(
        model=...,
        train_dataset=...,                      # columns prompt, answer
        reward_funcs=[answer_reward],
        environment_factory=ReplEnvironment,    # or ReplEnvironment.configured(kernel=KernelConfig(size=128))
    )

TRL makes one instance per rollout of a batch, resets it before each, and offers its public methods as tools: here
`python`, whose docstring is what the model reads. Loop, masks and loss are TRL's: it waits for a whole tool call, runs
the calls of a batch one after another, and goes on sampling after an answer. `ReplGRPOTrainer` does none of that.

A terminal would end a function at the first blank line inside it, and refuse a statement right after an indented block.
Models that write whole programs don't expect either, so a program that parses is split by its grammar into one cell per
statement, with expressions echoed. A program that does not parse is typed line by line, so that the error appears where
a terminal shows it, after the output of the lines before it. A very long one is refused as a whole.

Nothing here imports TRL.
"""

from __future__ import annotations

import ast
import re
import weakref
from collections.abc import Sequence
from typing import Any, ClassVar

from repl_rl.config import KernelConfig
from repl_rl.dialect import SMALLEST_LIMIT_CHARS, Cell, PythonReader, Refusal, Turn, truncate_middle
from repl_rl.errors import ConfigError
from repl_rl.integrations.shared import shared_kernels
from repl_rl.tasks import grade
from repl_rl.trajectory import LineKind, Task
from repl_rl.utils.text import parsed

_MOST_READ = 2_000_000
"""Lines times characters, such as 500 lines of 4,000 characters together."""


def read_program(code: str) -> Turn:
    """`code` as one complete turn, with no block left open. Statements that share a line make one cell.

    A program that does not parse and is too long to be typed line by line is a syntax error as a whole.
    """
    tree = parsed(code)
    if tree is None:
        if takes_long_to_type(code):
            return refused_program(code, "that does not parse")
        return PythonReader().read(code.encode("utf-8", "surrogatepass"), end_of_input=True)
    groups: list[list[ast.stmt]] = []
    for statement in tree.body:
        if groups and _first_line(statement) == groups[-1][-1].end_lineno:
            groups[-1].append(statement)
        else:
            groups.append([statement])
    lines = re.split(r"\r\n|\r|\n", code)
    cells = []
    for group in groups:
        last = group[-1]
        source = "\n".join(lines[_first_line(group[0]) - 1 : last.end_lineno])
        if hasattr(last, "body") or isinstance(last, ast.Match):
            source += "\n"  # a terminal runs a block only after an empty line
        kind = LineKind.EXPRESSION if isinstance(last, ast.Expr) else LineKind.STATEMENT
        cells.append(Cell(source, kind))
    idle_kind = LineKind.COMMENT if code.strip() else LineKind.BLANK
    return Turn(code, tuple(cells), idle_kind)


def takes_long_to_type(code: str, open_chars: int = 0) -> bool:
    """Whether to type this line by line would hold up a process for more than a second or two, up to minutes.

    A terminal looks at all of an open block again with every line. `open_chars` of it have been typed before.
    """
    return len(code.splitlines()) * (open_chars + len(code)) > _MOST_READ


def refused_program(code: str, why: str) -> Turn:
    """`code` as a syntax error, which runs nothing."""
    reason = f"SyntaxError: a program of {len(code.splitlines()):,} lines and {len(code):,} characters {why}\n"
    cell = Cell(code, LineKind.SYNTAX_ERROR, Refusal("SyntaxError", reason))
    return Turn(code, (cell,), LineKind.SYNTAX_ERROR)


def _first_line(statement: ast.stmt) -> int:
    """Where a statement begins, its decorators included."""
    decorators: list[ast.expr] = getattr(statement, "decorator_list", [])
    return min([statement.lineno, *(decorator.lineno for decorator in decorators)])


class ReplEnvironment:
    """One rollout's interpreter, in a sandboxed kernel of the pool that all environments of a process share.

    Configure it through `configured`: TRL constructs environments without arguments. Raises ConfigError if more of them
    are alive than `KernelConfig.size` allows, DependencyError or SandboxError if no kernel can run.
    """

    kernel_config: ClassVar[KernelConfig] = KernelConfig()
    max_output_chars: ClassVar[int] = 1000
    """Longer outputs are cut in the middle."""

    def __init__(self) -> None:
        self._kernels = shared_kernels(self.kernel_config)
        self._session = self._kernels.take()
        weakref.finalize(self, self._kernels.give_back, self._session).atexit = False

    @classmethod
    def configured(
        cls, kernel: KernelConfig | None = None, max_output_chars: int | None = None
    ) -> type[ReplEnvironment]:
        """A subclass with other settings, of the same name, under which TRL logs it.

        Raises ConfigError for a limit below 64 characters, which would leave nothing useful of a cut output.
        """
        limit = cls.max_output_chars if max_output_chars is None else max_output_chars
        if limit < SMALLEST_LIMIT_CHARS:
            raise ConfigError(f"max_output_chars is {limit}; it has to be at least {SMALLEST_LIMIT_CHARS}")
        attributes = {
            "__doc__": cls.__doc__,
            "__module__": cls.__module__,
            "kernel_config": kernel or cls.kernel_config,
            "max_output_chars": limit,
        }
        return type(cls.__name__, (cls,), attributes)

    def reset(self, **row: Any) -> None:
        """Begin an episode in a fresh interpreter. Raises KernelStartError if it does not start."""
        self._kernels.loop.run(self._session.restart())

    def python(self, code: str) -> str:
        """Run Python code in a live interpreter and return what it prints, the values of bare expressions included.

        Names stay defined between calls. Hand over the final answer with submit_final_answer(value).

        Args:
            code: The code to run: one line or several.
        """
        if not isinstance(code, str):
            raise TypeError(f"code has to be a string, got {type(code).__name__}")
        reply = self._kernels.loop.run(self._session.type(read_program(code)))
        output = reply.note + "".join(cell.text for cell in reply.cells)
        return truncate_middle(output, self.max_output_chars)

    @property
    def answer(self) -> tuple[str, ...] | None:
        """The `repr`s of the values that the episode's first submission handed over; None before that."""
        return self._session.answer

    @property
    def answer_forms(self) -> tuple[str | None, ...] | None:
        """The forms of these values, see `Trajectory.answer_forms`."""
        return self._session.answer_forms

    @property
    def failure(self) -> str | None:
        """What failed in the machinery, through no fault of the code, else None. Such an episode deserves no reward."""
        return self._session.failure


def answer_reward(environments: Sequence[ReplEnvironment], answer: Sequence[Any], **_: Any) -> list[float | None]:
    """1.0 if the submitted answer is the data set's `answer`, 0.0 if it is not or there is none.

    None, which TRL leaves out of the loss, if the machinery failed.
    """
    rewards: list[float | None] = []
    for environment, expected in zip(environments, answer, strict=True):
        if environment.failure:
            rewards.append(None)
        else:
            task = Task("", "", str(expected))
            rewards.append(grade(task, environment.answer, environment.answer_forms))
    return rewards
