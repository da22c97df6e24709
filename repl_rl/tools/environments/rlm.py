"""`environment: rlm`: a recursive language model, after Zhang, Kraska and Khattab (arXiv:2512.24601).

A long context is not in the prompt but in the session, as the variable `context`. The model reads it by typing Python,
and asks a language model about pieces of it: `llm_query`, `llm_query_batched`. The answer is the value of
`answer["content"]` when `answer["ready"]` is set, or the argument of `FINAL` or `FINAL_VAR`. All of these names are
restored after every line, whatever the line bound them to.
"""

import pickle
from collections.abc import Mapping, Sequence
from typing import Any

from repl_rl.errors import ConfigError
from repl_rl.tasks.documents import DOCUMENT_FAMILIES
from repl_rl.tools.tool import tool
from repl_rl.tools.toolbox import MOST_BYTES
from repl_rl.trajectory import Task
from repl_rl.utils.folders import resource_folder

# Calls of the model are not limited here: budgets, and the model's own limits, end them.
_TIMEOUT_S = 3600.0
_AT_ONCE = 1 << 20
_MOST_BYTES = MOST_BYTES - (1 << 16)
"""Of a pickled context; 64 KiB are left for the rest of the toolbox."""


class RLM:
    """The environment. A task's context is `metadata["context"]`: text, a list, or a table (a list of dicts).

    Tasks of the families in `repl_rl.tasks.documents` need none: theirs is computed when a session begins.
    """

    session_setup = (resource_folder("kernels") / "setup" / "rlm.py").read_text(encoding="utf-8")
    told = (resource_folder("prompts") / "rlm.txt").read_text(encoding="utf-8").strip()

    def __init__(self) -> None:
        self._model: Any = None
        self._description: str | None = None

    @staticmethod
    def check(task: Task) -> None:
        """Raises ConfigError for a task without a context, or with one that no session takes."""
        if task.family in DOCUMENT_FAMILIES and "context" not in task.metadata:
            return
        context = task.metadata.get("context")
        if context is None:
            raise ConfigError(
                f"task {task.id!r} has no context, and environment rlm needs one: metadata['context'] of a Task, or "
                "tasks.columns.context of a data set"
            )
        try:
            size = len(pickle.dumps(context))
        except Exception:  # noqa: BLE001 - an object's own __reduce__ may raise anything; cloudpickle may know better
            return
        if size > _MOST_BYTES:
            raise ConfigError(
                f"the context of task {task.id!r} has {size:,} bytes when it is pickled, and a session takes "
                f"{_MOST_BYTES:,}; split it over several tasks, or write an environment with a tool that reads it"
            )

    def use_model(self, model: Any) -> None:
        """Called before `reset` with a `repl_rl.rollout.SubCalls`."""
        self._model = model

    def reset(self, task: Task) -> dict[str, Any]:
        self.check(task)
        context = task.metadata.get("context")
        if context is None:
            make = DOCUMENT_FAMILIES[task.family].context
            assert make is not None
            context = make(*task.metadata["operands"])
        self._description = described(context)
        return {"context": context, "llm_query": self.llm_query, "llm_query_batched": self.llm_query_batched}

    def observe(self) -> str | None:
        """The model's instructions, once: the context's type and size, and how to answer."""
        description = self._description
        self._description = None
        return None if description is None else self.told.format(context=description)

    @tool(where="host", timeout_s=_TIMEOUT_S, at_once=_AT_ONCE)
    async def llm_query(self, prompt: str) -> str:
        """Ask a language model, which sees nothing but the prompt.

        Args:
            prompt: The question, with all that is needed to answer it.
        """
        [answer] = await self.llm_query_batched([prompt])
        return answer

    @tool(where="host", timeout_s=_TIMEOUT_S, at_once=_AT_ONCE)
    async def llm_query_batched(self, prompts: list[str]) -> list[str]:
        """Ask a language model several things at once; the answers have the same order.

        Args:
            prompts: The questions, each with all that is needed to answer it.
        """
        answers: list[str] = await self._model.ask(prompts)
        return answers


def described(context: Any) -> str:
    """A context's type and size in words, for the prompt."""
    if isinstance(context, str):
        return f"a str of {len(context):,} characters"
    if isinstance(context, Mapping):
        return f"a dict of {len(context):,} items"
    if isinstance(context, Sequence):
        rows = [row for row in context if isinstance(row, Mapping)]
        if rows and len(rows) == len(context):
            keys = dict.fromkeys(key for row in rows for key in row)
            return f"a list of {len(rows):,} dicts with the keys {', '.join(map(repr, keys))}"
        texts = [len(text) for text in context if isinstance(text, str)]
        longest = f", the longest of {max(texts):,} characters" if texts else ""
        return f"a list of {len(context):,} items{longest}"
    return f"of type {type(context).__name__}"
