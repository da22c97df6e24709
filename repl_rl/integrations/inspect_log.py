"""Graded sessions as a log of inspect_ai, which `inspect view` opens, by the package `inspect-ai`.

    log = to_inspect_log(read_jsonl("e.jsonl"), task="qwen-coder-0.5b", model="qwen2.5-coder-0.5b")
    inspect_ai.log.write_eval_log(log, "e.eval")

A session is a sample; sessions of one problem are its epochs, in their order. A line is a message of the assistant,
with a call of `python` for each of its cells, and what a cell showed is the tool's reply. What a line asked a language
model is a call of `subcall`, after those of its cells, and the answer is the reply. Where a transcript was compacted,
a message of the user has the new prompt, with `compaction` in its metadata. The grade is the score `grade`, with the
grader's reason. Rewards and kinds of lines are in the messages' metadata.

A branch is exported as the whole session (`repl_rl.trajectory.whole_session`). Messages of its parent's lines have
`of_parent` in their metadata, and their tokens are counted at the parent alone.

Not covered: tokens, log-probabilities and images, for which the log has no place; calls of tools, and the lines of a
sub-call that the policy answered, of which the log has the answer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from statistics import fmean
from typing import TYPE_CHECKING, Any

import msgspec

from repl_rl import __version__
from repl_rl.errors import DependencyError
from repl_rl.trajectory import Line, Trajectory
from repl_rl.utils.text import whole

if TYPE_CHECKING:
    from inspect_ai.log import EvalLog, EvalSample, EvalScore
    from inspect_ai.model import ChatMessage, ModelUsage

SCORE = "grade"


def require_inspect() -> None:
    """Raises DependencyError, with the command that installs it, without the package."""
    try:
        import inspect_ai.log  # noqa: F401 - is it there?
    except ImportError as error:
        raise DependencyError(
            f"logs of inspect_ai are made by its own package ({error}); bring it with: pip install inspect-ai"
        ) from error


def to_inspect_log(
    trajectories: Iterable[Trajectory],
    task: str,
    model: str,
    *,
    recorded_at: datetime | None = None,
    first_own_lines: Sequence[int] | None = None,
) -> EvalLog:
    """The log of an evaluation: `task` names it, `model` who typed. Raises DependencyError without the package.

    Sessions without a timeline do not say when they were typed. So `recorded_at`, by default now, is both the log's
    beginning and its end; `repl-rl export` gives the time at which their file was last written. `first_own_lines` has a
    number for each session: in a branch that was made whole, the lines before this one are its parent's.
    """
    require_inspect()
    from inspect_ai.log import EvalConfig, EvalDataset, EvalLog, EvalResults, EvalSpec, EvalStats
    from inspect_ai.model import ModelUsage

    sessions = list(trajectories)
    if first_own_lines is None:
        first_own_lines = [0] * len(sessions)
    epochs: Counter[str] = Counter()
    samples = []
    usage = ModelUsage()
    for session, first_own_line in zip(sessions, first_own_lines, strict=True):
        epochs[session.task_id] += 1
        samples.append(_sample(session, epochs[session.task_id], model, first_own_line))
        usage += _usage(session, first_own_line)
    recorded = (recorded_at or datetime.now(UTC)).isoformat(timespec="seconds")
    return EvalLog(
        status="success",
        eval=EvalSpec(
            created=recorded,
            task=task,
            model=model,
            dataset=EvalDataset(name=task, samples=len(epochs), sample_ids=list(epochs)),
            config=EvalConfig(epochs=max(epochs.values(), default=1)),
            packages={"repl_rl": __version__},
        ),
        results=EvalResults(
            total_samples=len(sessions),
            completed_samples=sum(not session.is_lost for session in sessions),
            scores=_scores(sessions),
        ),
        stats=EvalStats(started_at=recorded, completed_at=recorded, model_usage={model: usage}),
        samples=samples,
    )


def _scores(sessions: Sequence[Trajectory]) -> list[EvalScore]:
    from inspect_ai.log import EvalMetric, EvalScore

    grades = [session.outcome_reward for session in sessions if not session.is_lost]
    graded = [grade for grade in grades if grade is not None]
    if not graded:
        return []
    mean = EvalMetric(name="mean", value=fmean(graded))
    return [
        EvalScore(
            name=SCORE,
            scorer=SCORE,
            scored_samples=len(graded),
            unscored_samples=len(sessions) - len(graded),
            metrics={"mean": mean},
        )
    ]


def _sample(session: Trajectory, epoch: int, model: str, first_own_line: int) -> EvalSample:
    from inspect_ai.log import EvalError, EvalSample
    from inspect_ai.model import ChatMessageAssistant, ModelOutput
    from inspect_ai.scorer import Score

    question = whole(session.prompt if session.question is None else session.question)
    messages = list(_messages(session, question, first_own_line))
    said = [message for message in messages if isinstance(message, ChatMessageAssistant)]
    answer = None if session.answer is None else whole(", ".join(session.answer))
    reason = None if session.grade_reason is None else whole(session.grade_reason)
    scores = {}
    if session.outcome_reward is not None and not session.is_lost:
        scores[SCORE] = Score(value=session.outcome_reward, answer=answer, explanation=reason)
    error = None
    if session.is_lost:
        message = whole(session.error or str(session.stop_reason))
        error = EvalError(message=message, traceback=message, traceback_ansi=message)
    metadata: dict[str, Any] = {
        "family": session.family,
        "dialect": session.dialect or "python",
        "stop_reason": str(session.stop_reason),
        "prompt": whole(session.prompt),
        "lines": len(session.lines),
    }
    if session.branch is not None:
        metadata["branch"] = msgspec.to_builtins(session.branch)
        metadata["first_own_line"] = first_own_line
    return EvalSample(
        id=session.task_id,
        epoch=epoch,
        input=question,
        target=session.reference or "",
        messages=messages,
        output=ModelOutput.from_message(said[-1]) if said else ModelOutput(model=model),
        scores=scores or None,
        error=error,
        model_usage={model: _usage(session, first_own_line)},
        total_time=session.duration_s,
        working_time=session.duration_s - session.queue_s,
        metadata=metadata,
    )


def _messages(session: Trajectory, question: str, first_own_line: int) -> Iterator[ChatMessage]:
    from inspect_ai.model import ChatMessageUser

    yield ChatMessageUser(content=question)
    compactions = {compaction.start: compaction for compaction in session.compactions}
    for number, line in enumerate(session.lines):
        if line.start in compactions:
            # `inspect view` puts all messages of the system at the top, so this is one of the user.
            yield ChatMessageUser(content=whole(compactions[line.start].prompt), metadata={"compaction": True})
        yield from _messages_of_line(line, number, is_of_parent=number < first_own_line)


def _messages_of_line(line: Line, number: int, *, is_of_parent: bool) -> Iterator[ChatMessage]:
    from inspect_ai.model import ChatMessageAssistant, ChatMessageTool
    from inspect_ai.tool import ToolCall

    calls = []
    replies = []
    for index, cell in enumerate(line.cells):
        call_id = f"{number}.{index}"
        calls.append(ToolCall(id=call_id, function="python", arguments={"code": whole(cell.source)}))
        replies.append(ChatMessageTool(content=whole(cell.output), tool_call_id=call_id, function="python"))
    for index, subcall in enumerate(line.subcalls):
        call_id = f"{number}.subcall.{index}"
        calls.append(ToolCall(id=call_id, function="subcall", arguments={"prompt": whole(subcall.prompt)}))
        replies.append(
            ChatMessageTool(
                content=whole(subcall.text),
                tool_call_id=call_id,
                function="subcall",
                metadata={"error_name": subcall.error_name},
            )
        )
    metadata: dict[str, Any] = {
        "line": number,
        "kind": str(line.kind),
        "error_name": line.error_name,
        "reward": line.reward,
        "advantage": line.advantage,
    }
    if is_of_parent:
        metadata["of_parent"] = True
    yield ChatMessageAssistant(content=whole(line.text), tool_calls=calls or None, metadata=metadata)
    yield from replies


def _usage(session: Trajectory, first_own_line: int) -> ModelUsage:
    """Sampled tokens of its own lines, and its prompt once."""
    from inspect_ai.model import ModelUsage

    sampled = sum(line.end - line.start for line in session.lines[first_own_line:])
    read = len(session.prompt_ids)
    return ModelUsage(input_tokens=read, output_tokens=sampled, total_tokens=read + sampled)
